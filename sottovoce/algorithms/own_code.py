"""Algorithms of the user's own, from code that settings name: an `AlgorithmSpec`, or just a class.

A class is a frozen dataclass that inherits from `Gossip`. Its noise is fresh and each node's own, of size `sigma`; the
fields that it adds to `Gossip` are its settings. What else an algorithm may have is said by an `AlgorithmSpec`.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Annotated, Any, cast

from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Example, Meaning, NoisyStepSettings
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import Independent
from sottovoce.errors import InputError
from sottovoce.support.own_code import Offered, named_object

Spec = AlgorithmSpec[AlgorithmSettings]


def own_algorithm(name: str) -> Spec | None:
    """The algorithm that a name stands for, in a file of code or in an installed package; None where it is neither."""
    found = named_object(name, Offered.ALGORITHM)
    return None if found is None else _spec(name, found.value)


@cache
def _spec(name: str, value: object) -> Spec:
    if isinstance(value, AlgorithmSpec):
        return _named(name, value)
    if isinstance(value, type) and issubclass(value, Gossip) and is_dataclass(value):
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
        if not isinstance(built, Algorithm) or not is_dataclass(type(built)):
            raise InputError(
                f"algorithm {name!r} builds a {type(built).__name__}", "an algorithm is a frozen dataclass with five "
                "maps", "inherit from Gossip; see docs/add-an-algorithm.md",
            )  # fmt: skip
        return cast("Algorithm", replace(cast("Any", built), name=name))

    return replace(spec, name=name, builder=build)


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
