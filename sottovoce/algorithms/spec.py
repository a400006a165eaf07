"""What an algorithm declares about itself: its settings, how it is built, examples and references.

The settings of an algorithm are a frozen dataclass whose fields say what they mean and which part they play:

    >>> from dataclasses import dataclass
    >>> from sottovoce.core.algorithm import Gossip
    >>> from sottovoce.core.noise import Independent
    >>> def build(settings: NoisyStepSettings) -> Gossip:
    ...     return Gossip(name="mine", noise=Independent(settings.sigma), step_size=settings.step_size)
    >>> mine = AlgorithmSpec("mine", NoisyStepSettings, build, examples=(Example({"sigma": 1.5}),))
    >>> [setting.name for setting in mine.settings][:2], mine.noise_setting(), mine.requires
    (['sigma', 'step_size'], 'sigma', 'row-stochastic')
    >>> mine.build(sigma=2.0).noise
    Independent(sigma=2.0)
    >>> mine.build(sgima=2.0)
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: setting 'sgima' of mine; its settings are: sigma, step_size, optimizer, ...

Whoever needs to know which settings an algorithm has, and what they do, asks its `AlgorithmSpec`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Generic, TypeAlias, TypeVar

import numpy as np

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.local_rules import PLAIN, parse_rule
from sottovoce.core.mixing import Requirement
from sottovoce.core.noise import Central, Independent, PerNode
from sottovoce.errors import InputError


class Role(StrEnum):
    """What a setting decides, for those who choose its value from something else."""

    PLAIN = "plain"
    NOISE = "noise"
    """How large the noise is: calibration chooses it."""
    SHARED_NOISE = "shared noise"
    """How large the secrets are that neighbours share."""
    CORRELATION = "correlation"
    """How noise is correlated over rounds."""
    LOCAL_RULE = "local rule"
    """What a node makes of noisy gradients: every algorithm that trains has these."""
    FROM_RUN = "from run"
    """A run fills it in from its other settings."""


@dataclass(frozen=True)
class Meaning:
    """What a setting means. `source` says where a run takes its value from."""

    text: str
    role: Role = Role.PLAIN
    source: str = ""


ROUNDS = Meaning("how many rounds there are to plan for", Role.FROM_RUN, "it is training.rounds")


@dataclass(frozen=True)
class Setting:
    """One setting of an algorithm. `types` are those of its values; empty where the algorithm itself checks them."""

    name: str
    meaning: Meaning
    types: frozenset[type]
    required: bool
    default: object = None

    @property
    def role(self) -> Role:
        """What the setting is for."""
        return self.meaning.role

    @property
    def decides_rule(self) -> bool:
        """Whether it is one of those of the local rule; settings of one's own may bear the same names."""
        return self.role is Role.LOCAL_RULE or self.meaning is ROUNDS

    @property
    def kind(self) -> str:
        """What a value of it is, in words."""
        return " or ".join(KINDS[one] for one in KINDS if one in self.types)

    def accepts(self, value: object) -> bool:
        """Whether a value is of the right type; always where the algorithm itself checks."""
        return not self.types or any(_is(value, one) for one in self.types)


KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
"""Types that are checked here, in words."""


def _is(value: object, kind: type) -> bool:
    if kind is bool or kind is str or kind is type(None):
        return isinstance(value, kind)
    if isinstance(value, int):
        return not isinstance(value, bool)
    if not np.isscalar(value) and not isinstance(value, np.ndarray):
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in ("iu" if kind is int else "iuf")


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings:
    """The settings of an algorithm: each field is `name: Annotated[type, Meaning(...)]`, with its default if any."""


GossipSteps: TypeAlias = Annotated[int, Meaning("gossip steps after each gradient")]
"""A setting of algorithms that may average several times a round."""


@dataclass(frozen=True, kw_only=True)
class StepSettings(AlgorithmSettings):
    """What algorithms that train take."""

    step_size: Annotated[float, Meaning("the factor of gradients and noise")] = 0.1
    optimizer: Annotated[
        str, Meaning("what a node makes of noisy gradients: sgd, momentum:B, adam, adamw", Role.LOCAL_RULE)
    ] = "sgd"
    schedule: Annotated[
        str,
        Meaning(
            "factor of step_size: constant, linear, cosine, step:FACTORxROUNDS, after warmup:ROUNDS,", Role.LOCAL_RULE
        ),
    ] = "constant"
    weight_decay: Annotated[float, Meaning("share of the model that is added to its direction", Role.LOCAL_RULE)] = 0.0
    average: Annotated[float, Meaning("weight of earlier iterates in the final model", Role.LOCAL_RULE)] = 0.0
    step_factors: Annotated[PerNode, Meaning("factor of step_size, one for each node", Role.LOCAL_RULE)] = 1.0
    rounds: Annotated[int | None, ROUNDS] = None


@dataclass(frozen=True, kw_only=True)
class SensitivitySettings(AlgorithmSettings):
    """What algorithms with noise take."""

    sensitivity: Annotated[
        PerNode,
        Meaning(
            "how far a change of data can move a node's gradient; its noise is in units of it",
            Role.FROM_RUN,
            "it follows from clipping and batches",
        ),
    ] = 1.0


@dataclass(frozen=True, kw_only=True)
class NoisyStepSettings(StepSettings, SensitivitySettings):
    """Settings of training in which each node adds its own noise."""

    sigma: Annotated[PerNode, Meaning("standard deviation of a node's own noise over the sensitivity", Role.NOISE)]


@dataclass(frozen=True, kw_only=True)
class AveragingSettings(NoisyStepSettings):
    """Settings of training whose averages may withstand liars."""

    aggregation: Annotated[
        str, Meaning("how messages are averaged: mean, or clipped:RADIUS, where none moves a model further than that")
    ] = "mean"

    @property
    def radius(self) -> float:
        """How far a message may move a model."""
        rule, _, radius = self.aggregation.partition(":")
        with suppress(ValueError):
            if rule == "clipped" and math.isfinite(float(radius)):
                return float(radius)
        if self.aggregation == "mean":
            return math.inf
        raise InputError(
            f"aggregation {self.aggregation!r:.60}", "it is mean, or clipped with a radius", "write clipped:1.0"
        )


@dataclass(frozen=True)
class Example:
    """Settings of an example of an algorithm, and the weights of its topologies; every law runs over them.

    Without noise, compression and extra gossip steps an algorithm is D-PSGD; if it is not, `unlike_d_psgd` says why.
    The algorithm's name is filled in by its `AlgorithmSpec`.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    weights: str = "metropolis"
    unlike_d_psgd: str = ""
    name: str = ""

    def __str__(self) -> str:
        shown = ",".join(f"{key}={value}" for key, value in self.settings.items() if key != "sigma")
        return f"{self.name}({shown})" if shown else self.name


S = TypeVar("S", bound=AlgorithmSettings)


@dataclass(frozen=True, eq=False)
class AlgorithmSpec(Generic[S]):
    """An algorithm by name: its settings, the function that builds it, examples (at least one) and references.

    `written` is its name as papers write it, if that is not its name in capitals.

    Anything else that must be known before it is built is read from its settings, or from its first example, so that
    nothing is written down twice. `sums_of` names the algorithm of which this is the form with secure sums, if any.
    """

    name: str
    settings_type: type[S]
    builder: Callable[[S], Algorithm]
    examples: tuple[Example, ...]
    references: tuple[str, ...] = ()
    sums_of: str | None = None
    written: str = ""

    @property
    def title(self) -> str:
        """Its name as papers write it."""
        return self.written or self.name.upper()

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(replace(example, name=self.name) for example in self.examples))

    def build(self, **given: object) -> Algorithm:
        """The algorithm with these settings; refuses settings that are unknown, missing, or of a wrong type."""
        self.check(given)
        missing = self.missing(given)
        if missing is not None:
            shown = self.shown_value(missing) or "..."
            raise InputError(f"{self.name} without {missing}", "it needs that setting", f"give {missing}={shown}")
        settings = self.settings_type(**given)
        built = self.builder(settings)
        rule = parse_rule(**{one.name: getattr(settings, one.name) for one in self.settings if one.decides_rule})
        return built if rule == PLAIN else replace(built, rule=rule)  # type: ignore[type-var]

    def missing(self, given: Mapping[str, object]) -> str | None:
        """The first setting that must be given and is not."""
        return next((one.name for one in self.settings if one.required and one.name not in given), None)

    def shown_value(self, name: str) -> str:
        """A value of a setting, as an example shows it; empty where none is short."""
        values = (example.settings.get(name) for example in self.examples)
        return next((repr(value) for value in values if isinstance(value, int | float | str)), "")

    def build_at(self, sigma: float, given: Mapping[str, object]) -> Algorithm:
        """The algorithm with these settings and noise of this size, where it has any."""
        noise = self.noise_setting()
        return self.build(**given, **({} if noise is None else {noise: sigma}))

    def check(self, given: Mapping[str, object]) -> None:
        """Refuse settings that it does not have, and values of a wrong type."""
        for name, value in given.items():
            setting = self.setting(name)
            if setting is None:
                known = ", ".join(one.name for one in self.settings)
                raise InputError(
                    f"setting {name!r} of {self.name}", f"its settings are: {known}", "remove or correct it"
                )
            if not setting.accepts(value):
                raise InputError(f"{name} = {value!r:.40} of {self.name}", f"it must be {setting.kind}", "correct it")

    # --- settings ---------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """All settings: those that must be given first, those that a run fills in last."""
        hints = typing.get_type_hints(self.settings_type, include_extras=True)
        found = [_setting(one, hints[one.name]) for one in dataclasses.fields(self.settings_type)]
        return tuple(sorted(found, key=lambda one: (not one.required, one.role is Role.FROM_RUN, one.decides_rule)))

    def setting(self, name: str) -> Setting | None:
        """The setting of that name, if it has one."""
        return next((one for one in self.settings if one.name == name), None)

    def _of_role(self, role: Role) -> list[Setting]:
        return [one for one in self.settings if one.role is role]

    @property
    def adds_noise(self) -> bool:
        """Whether it has noise whose size can be chosen."""
        return bool(self._of_role(Role.NOISE))

    def noise_setting(self, given: Mapping[str, object] | None = None) -> str | None:
        """The setting that decides how large the noise is: the one given, or the first; None without noise."""
        names = [one.name for one in self._of_role(Role.NOISE)]
        return next((name for name in reversed(names) if name in (given or ())), names[0] if names else None)

    @property
    def shares_noise(self) -> bool:
        """Whether neighbours share secrets."""
        return bool(self._of_role(Role.SHARED_NOISE))

    def shared_noise(self, sigma: float) -> dict[str, float]:
        """The settings with which secrets that neighbours share have this size; none where they share none."""
        return {one.name: sigma for one in self._of_role(Role.SHARED_NOISE)}

    @property
    def needs_own_correlation(self) -> bool:
        """Whether C must be given."""
        return any(one.required for one in self._of_role(Role.CORRELATION))

    def from_run(
        self, given: Mapping[str, object], *, rounds: int, participation: str, colluders: int | None = None
    ) -> dict[str, int | str]:
        """What it takes from the run: how many nodes may collude, and what it needs to find its C.

        The latter is nothing where C is given, or where it has none to find. Refused where colluders are counted on,
        and the algorithm has no secure sums in which their number matters.
        """
        known: dict[str, int | str] = {"rounds": rounds, "participation": participation}
        if colluders is not None and self.setting("colluders") is None:
            raise InputError(
                f"{colluders} colluders with {self.name}",
                "the number of colluders matters only for secure sums, and this algorithm has none",
                "leave it out, or use secure-average or secure-gossip",
            )  # fmt: skip
        if colluders is not None:
            known["colluders"] = colluders
        return {one.name: known[one.name] for one in self._of_role(Role.FROM_RUN) if one.name in known}

    # --- facts about what is built ----------------------------------------------------------------------------------

    @cached_property
    def _example(self) -> Algorithm:
        return self.build(**self.examples[0].settings)

    @property
    def requires(self) -> Requirement:
        """Which mixing weights it works with."""
        return self._example.requires

    @property
    def averaging(self) -> bool:
        """Whether it averages values once instead of training."""
        return self._example.averaging

    @property
    def independent_noise(self) -> bool:
        """Whether the only noise is fresh, independent noise on every gradient."""
        return type(self._example.noise) is Independent

    @property
    def needs_trust(self) -> bool:
        """Whether a party whom all trust sees every gradient: noise that no node knows is added by somebody else."""
        return isinstance(self._example.noise, Central)


def _setting(declared: dataclasses.Field[object], hint: object) -> Setting:
    """The setting that a field declares: `name: Annotated[type, Meaning(...)] = default`."""
    value, meaning = typing.get_args(hint)
    united = isinstance(value, types.UnionType) or typing.get_origin(value) is typing.Union
    alternatives = frozenset(typing.get_args(value) if united else (value,))
    checked = alternatives if alternatives <= {*KINDS, type(None)} else frozenset()
    required = declared.default is dataclasses.MISSING
    return Setting(declared.name, meaning, checked, required, None if required else declared.default)
