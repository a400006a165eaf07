"""Algorithms, one file each, found by discovery: adding one means adding one file to this folder.

    >>> algorithm("dp-d-sgd", sigma=2.0).noise
    Independent(sigma=2.0)
    >>> algorithm("dp-d-sdg")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: algorithm 'dp-d-sdg'; known: anti-pgd, ...; did you mean dp-d-sgd?

A file ends with its `EXAMPLES`, each a name with the settings that the laws of `tests/` run, and `CITE`, its
references. See docs/add-an-algorithm.md.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, runtime_checkable

from sottovoce.arrays import Rows
from sottovoce.compression import Compression
from sottovoce.errors import InputError
from sottovoce.mixing import Requirement
from sottovoce.noise import Noise
from sottovoce.topology import Topology


@runtime_checkable
class Algorithm(Protocol):
    """Small maps that the loop calls. All of them are linear in what they are given; states are values."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def noise(self) -> Noise:
        """Which noise is added where."""

    @property
    def compression(self) -> Compression:
        """What messages lose."""

    @property
    def gossip_steps(self) -> int:
        """Gossip steps per gradient (K)."""

    @property
    def step_size(self) -> float:
        """What gradients and noise are multiplied with (eta)."""

    @property
    def sensitivity(self) -> float:
        """How much one node's data may move its gradient (Delta); noise is in units of it."""

    @property
    def requires(self) -> Requirement:
        """Which mixing weights it works with."""

    @property
    def once(self) -> bool:
        """Whether values enter in the first round only, as in averaging."""

    @property
    def secure_sum(self) -> bool:
        """Whether single messages stay hidden and only their sum is seen."""

    def on(self, topology: Topology) -> Algorithm:
        """The algorithm with what it takes from the topology; refuses one that does not fit."""

    def init(self, x0: Rows) -> Any:
        """The state before the first round."""

    def point(self, state: Any) -> Rows:
        """Where the gradient is taken."""

    def local(self, state: Any, grad: Rows, noise: Rows | float) -> Any:
        """The state after the local step."""

    def message(self, state: Any) -> Rows:
        """What leaves the node, the same to all; per-edge noise is added by the loop."""

    def absorb(self, state: Any, mixed: Rows) -> Any:
        """The state after hearing `sum_v W[u,v] (message_v + noise on v -> u)`."""


@dataclass(frozen=True)
class Example:
    """A named algorithm: how it is built, settings that show it, and the weights of the topologies it is shown on.

    Without noise, compression and extra gossip steps an algorithm is D-PSGD; where it is not, `unlike_d_psgd` says why.
    """

    name: str
    build: Callable[..., Algorithm]
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "metropolis"
    unlike_d_psgd: str = ""

    def __str__(self) -> str:
        shown = ",".join(f"{key}={value}" for key, value in self.settings.items() if key != "sigma")
        return f"{self.name}({shown})" if shown else self.name


@cache
def examples() -> tuple[Example, ...]:
    """All examples of all files."""
    found: list[Example] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").EXAMPLES
    return tuple(sorted(found, key=lambda example: example.name))


def names() -> tuple[str, ...]:
    """The names of all algorithms."""
    return tuple(dict.fromkeys(example.name for example in examples()))


def builder(name: str) -> Callable[..., Algorithm]:
    """What builds the algorithm of that name."""
    if not isinstance(name, str):
        raise InputError(f"a {type(name).__name__} as the name of an algorithm", "it is a word", "see names()")
    build = {example.name: example.build for example in examples()}.get(name)
    if build is None:
        near = difflib.get_close_matches(name, names(), n=1)
        remedy = f"did you mean {near[0]}?" if near else "choose one of them"
        raise InputError(f"algorithm {name!r}", f"known: {', '.join(names())}", remedy)
    return build


def algorithm(name: str, **settings: Any) -> Algorithm:
    """Build an algorithm by name; settings it does not have are refused, naming those it has.

    Names and settings are in docs/algorithms.md; noise is in units of the sensitivity.
    """
    build = builder(name)
    accepted = inspect.signature(build).parameters
    for key in settings:
        if key not in accepted:
            raise InputError(f"setting {key!r} of {name}", f"it has: {', '.join(accepted)}", "remove or correct it")
        if isinstance(accepted[key].default, bool) and not isinstance(settings[key], bool):
            raise InputError(f"{key} = {settings[key]!r} of {name}", "it is true or false", "correct it")
    missing = [k for k, p in accepted.items() if p.default is p.empty and k not in settings]
    if missing:
        raise InputError(f"{name} without {missing[0]}", "it needs one", f"give {missing[0]}=...")
    return build(**settings)


def cite(name: str) -> str:
    """The references of an algorithm, one a line."""
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        if any(example.name == name for example in loaded.EXAMPLES):
            return "\n".join(loaded.CITE)
    return cite(algorithm(name).name)
