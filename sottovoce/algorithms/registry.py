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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sottovoce.core.algorithm import Algorithm
from sottovoce.errors import InputError


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


def _modules() -> Iterator[ModuleType]:
    """The files of this folder, loaded; each holds algorithms."""
    here = Path(__file__)
    for module in pkgutil.iter_modules([str(here.parent)]):
        if module.name != here.stem:
            yield importlib.import_module(f"sottovoce.algorithms.{module.name}")


@cache
def examples() -> tuple[Example, ...]:
    """All examples of all files."""
    found: list[Example] = []
    for module in _modules():
        found += module.EXAMPLES
    return tuple(sorted(found, key=lambda example: example.name))


def algorithm_names() -> tuple[str, ...]:
    """The names of all algorithms."""
    return tuple(dict.fromkeys(example.name for example in examples()))


def builder(name: str) -> Callable[..., Algorithm]:
    """What builds the algorithm of that name."""
    if not isinstance(name, str):
        raise InputError(f"a {type(name).__name__} as the name of an algorithm", "it is a word", "see names()")
    build = {example.name: example.build for example in examples()}.get(name)
    if build is None:
        near = difflib.get_close_matches(name, algorithm_names(), n=1)
        remedy = f"did you mean {near[0]}?" if near else "choose one of them"
        raise InputError(f"algorithm {name!r}", f"known: {', '.join(algorithm_names())}", remedy)
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
    for module in _modules():
        if any(example.name == name for example in module.EXAMPLES):
            return "\n".join(module.CITE)
    return cite(algorithm(name).name)
