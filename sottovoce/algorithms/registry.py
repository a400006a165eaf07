"""Algorithms by name, found by discovery: adding one means adding one file to this folder.

    >>> algorithm("dp-d-sgd", sigma=2.0).noise
    Independent(sigma=2.0)
    >>> algorithm("dp-d-sdg")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: algorithm 'dp-d-sdg'; known: anti-pgd, ...; did you mean dp-d-sgd?

A file ends with its `ALGORITHMS`, an `AlgorithmSpec` each. See docs/add-an-algorithm.md, also for algorithms that are
in a file of the user's own, or in another package.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import typing
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, cast

import sottovoce.algorithms
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Example, Meaning, NoisyStepSettings, Role
from sottovoce.core.algorithm import Algorithm, Gossip
from sottovoce.core.noise import Independent
from sottovoce.errors import InputError
from sottovoce.support.own_code import Offered, code_digest, named_object

NO_ALGORITHMS = ("registry", "spec")
"""Files of this folder that hold no algorithms."""

Spec: TypeAlias = AlgorithmSpec[AlgorithmSettings]


@cache
def algorithm_specs() -> Mapping[str, Spec]:
    """All algorithms of the package, by name in alphabetical order."""
    found: dict[str, Spec] = {}
    for module in pkgutil.iter_modules(sottovoce.algorithms.__path__):
        if module.name not in NO_ALGORITHMS:
            declared = importlib.import_module(f"sottovoce.algorithms.{module.name}").ALGORITHMS
            found |= {spec.name: spec for spec in declared}
    return MappingProxyType(dict(sorted(found.items())))


def algorithm_names() -> tuple[str, ...]:
    """The names of all algorithms of the package."""
    return tuple(algorithm_specs())


def has_independent_noise(name: str) -> bool:
    """Whether an algorithm of the package adds fresh, independent noise to every gradient, and no other.

    False for any other algorithm: documents name it, and reading them loads no code.
    """
    spec = algorithm_specs().get(name)
    return spec is not None and spec.independent_noise


def examples() -> tuple[Example, ...]:
    """The examples of all algorithms."""
    return tuple(example for spec in algorithm_specs().values() for example in spec.examples)


def algorithm_spec(name: str) -> Spec:
    """What is known of the algorithm of that name before it is built."""
    if not isinstance(name, str):
        raise InputError(
            f"an algorithm's name of type {type(name).__name__}", "it must be a string", "see algorithm_names()"
        )
    found = algorithm_specs().get(name) or own_algorithm(name)
    if found is None:
        known = algorithm_names()
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else "choose one of them, or FILE.py:NAME"
        raise InputError(f"algorithm {name!r}", f"known: {', '.join(known)}", remedy)
    return found


def algorithm_code(name: str) -> str | None:
    """A digest of the code of an algorithm of the user's own; None for one of the package."""
    return None if name in algorithm_specs() else code_digest(name, Offered.ALGORITHM)


def spec_with_sums(name: str) -> Spec:
    """What is known of an algorithm in the form that has secure sums: itself, where it is one."""
    found = algorithm_spec(name)
    forms = {spec.sums_of: spec for spec in algorithm_specs().values() if spec.sums_of is not None}
    if found.sums_of is None and name not in forms:
        raise InputError(
            f"secure_sum = true with {name}", f"secure sums exist for {' and '.join(forms)}",
            "use one of them, or leave secure_sum out",
        )  # fmt: skip
    return forms.get(name, found)


def algorithm(name: str, **settings: object) -> Algorithm:
    """Build an algorithm by name. Unknown settings are refused, with a list of the known ones.

    Names and settings are in docs/algorithms.md; noise is in units of the sensitivity.
    """
    return algorithm_spec(name).build(**settings)


def settings_from_run() -> dict[str, str]:
    """Settings that a run fills in itself, whichever algorithm has them, and where it takes them from."""
    return {
        setting.name: setting.meaning.source
        for spec in algorithm_specs().values()
        for setting in spec.settings
        if setting.role is Role.FROM_RUN
    }


def cite(name: str) -> str:
    """The references of an algorithm, one on each line."""
    return "\n".join(algorithm_spec(name).references)


# --- algorithms of the user's own ----------------------------------------------------------------------------------


def own_algorithm(name: str) -> Spec | None:
    """The algorithm that a name stands for, in a file of code or in an installed package; None where it is neither.

    It is an `AlgorithmSpec`, or just a class: a frozen dataclass that inherits from `Gossip`. Its noise is fresh and
    each node's own, of size `sigma`; the fields that it adds to `Gossip` are its settings.
    """
    found = named_object(name, Offered.ALGORITHM)
    return None if found is None else _spec(name, found.value)


@cache
def _spec(name: str, value: object) -> Spec:
    if isinstance(value, AlgorithmSpec):
        return _named(name, value)
    if isinstance(value, type) and issubclass(value, Gossip) and dataclasses.is_dataclass(value):
        return _named(name, _spec_of_class(name, value))
    what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    raise InputError(
        f"algorithm {name!r} is {what}", "it must be an AlgorithmSpec, or a dataclass that inherits from Gossip",
        "see docs/add-an-algorithm.md",
    )  # fmt: skip


def _named(name: str, spec: Spec) -> Spec:
    """The same under the name by which settings know it, so that documents name what was run."""

    def build(settings: AlgorithmSettings) -> Algorithm:
        built: Any = spec.builder(settings)
        if not isinstance(built, Algorithm) or not dataclasses.is_dataclass(type(built)):
            raise InputError(
                f"algorithm {name!r} builds a {type(built).__name__}", "an algorithm is a frozen dataclass with five "
                "maps", "inherit from Gossip; see docs/add-an-algorithm.md",
            )  # fmt: skip
        return cast("Algorithm", dataclasses.replace(cast("Any", built), name=name))

    return dataclasses.replace(spec, name=name, builder=build)


def _spec_of_class(name: str, made: type[Gossip]) -> Spec:
    inherited = {one.name for one in dataclasses.fields(Gossip)}
    hints: dict[str, Any] = typing.get_type_hints(made)
    own = [one for one in dataclasses.fields(made) if one.name not in inherited and one.init]
    lacking = next((one.name for one in own if one.default is dataclasses.MISSING), None)
    if lacking is not None:
        raise InputError(
            f"field {lacking} of {name} has no default",
            "each setting of a class needs one",
            f"write {lacking}: ... = 0.9",
        )
    meaning = Meaning(f"a field of {made.__name__}")
    fields = [(one.name, Annotated[hints[one.name], meaning], dataclasses.field(default=one.default)) for one in own]
    settings_type = dataclasses.make_dataclass(
        f"{made.__name__}Settings", fields, bases=(NoisyStepSettings,), frozen=True, kw_only=True,
    )  # fmt: skip

    def build(settings: Any) -> Gossip:
        return made(
            name=name, noise=Independent(settings.sigma), step_size=settings.step_size,
            sensitivity=settings.sensitivity, **{one.name: getattr(settings, one.name) for one in own},
        )  # fmt: skip

    return AlgorithmSpec(name, settings_type, build, (Example({"sigma": 1.0}),))
