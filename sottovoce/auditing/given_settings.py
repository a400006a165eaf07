"""What settings really give, without a run: those of DP-SGD, of a paper or of another framework's configuration.

One node holds all records and takes part in every round. It clips what each record (or user) contributes to norm
`clip`, adds Gaussian noise to the sum or to the mean, and releases that in every round. Batches are full, or drawn by
chance: each record with probability batch / records.

    >>> found = given_settings(
    ...     "clip=1,sigma=1,sigma-unit=clip,noise-on=sum,rounds=1,batch=full,records=1000,adjacency=add-remove")
    >>> found.noise_multiplier, round(found.epsilon(1e-5).most, 3)
    (1.0, 4.377)
    >>> found = given_settings(
    ...     "clip=1,sigma=1,sigma-unit=clip,noise-on=sum,rounds=100,batch=10,records=1000,adjacency=add-remove")
    >>> [round(one, 2) for one in found.epsilon(1e-5)]
    [0.71, 0.72]

A unit of sigma that is left open changes epsilon more than anything else: `sigma-unit` and `noise-on` have to be given,
and are printed.

Presets read the parameters of other frameworks by their own names:

- `flower`: `LocalDpMod` clips the update of a client to `clipping_norm` and adds noise of deviation
  `sensitivity * sqrt(2 log(1.25 / delta)) / epsilon` to it, in every round. `sensitivity` is a setting of its own: the
  mod does not ask whether it fits the clipping norm. What may change is a client's update.
- `opacus`: noise of deviation `noise_multiplier * max_grad_norm` is added to the sum of clipped gradients of a Poisson
  batch, in which a record is with probability one over the number of batches of the loader, the last and smaller one
  among them unless `drop_last`; neighbours have one record more or less. `rounds` are optimizer steps.
- `nvflare`: the filter `SVTPrivacy` chooses a `fraction` of an update's coordinates and sends each with Laplace noise
  of scale `2 gamma / noise_var`, clipped to `gamma`. Its `epsilon` is for the threshold alone: `noise_var` is spent for
  every coordinate that is sent. Two updates that differ by their sign at size gamma are chosen from alike, since sizes
  decide; what is sent tells them apart. That is what `SparseFilter` computes. It leaves out that values above gamma are
  not clipped before the noise is added, which tells more; nothing is proven here from above. The filter
  `PercentilePrivacy` adds no noise: no epsilon is finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field
from scipy.signal import fftconvolve

from sottovoce.auditing.outside_claims import MARGIN, epsilon_at_least
from sottovoce.core.noise import LARGEST, SMALLEST
from sottovoce.errors import InputError
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.support.config import Document, Section, parse_section
from sottovoce.support.files import read_text
from sottovoce.support.text import parse_json


def _in_range(value: float) -> float:
    if value and not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}")
    return value


Positive = Annotated[float, Field(gt=0), AfterValidator(_in_range)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(_in_range)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**12)]
AnyTyped = TypeVar("AnyTyped", bound="Typed")

FULL = "full"
EXAMPLE = "clip=1,sigma=1.1,sigma-unit=clip,noise-on=sum,rounds=1000,batch=256,records=60000,adjacency=add-remove"


class Range(NamedTuple):
    """Epsilon is at least and at most this; both are the same where it is exact but for rounding."""

    least: float
    most: float


class Mechanism(Protocol):
    """Settings whose epsilon is known at least, and perhaps at most; what they say themselves is stated."""

    @property
    def stated_epsilon(self) -> float | None: ...

    @property
    def stated_delta(self) -> float | None: ...

    @property
    def adjacency(self) -> str: ...

    def epsilon(self, delta: float) -> Range:
        """At least and at most; infinite from above where nothing is proven."""

    def facts(self) -> dict[str, str]:
        """For reading."""


# --- DP-SGD ----------------------------------------------------------------------------------------------------------


class Adjacency(StrEnum):
    """What may change: a record is there or not, or is another one."""

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"


class SigmaUnit(StrEnum):
    """What sigma is a multiple of: the clipping norm, the sensitivity of what noise is added to, or nothing."""

    CLIP = "clip"
    SENSITIVITY = "sensitivity"
    ABSOLUTE = "absolute"


class NoiseOn(StrEnum):
    """What noise is added to."""

    SUM = "sum"
    MEAN = "mean"


class Typed(Section):
    """Settings as they are typed: numbers are read from text."""

    model_config = ConfigDict(strict=False)


class GivenSettings(Typed):
    """DP-SGD settings, and what they promise themselves if they do."""

    clip: Positive
    sigma: NotNegative
    sigma_unit: SigmaUnit
    noise_on: NoiseOn
    rounds: Count
    batch: Count | Literal["full"]
    records: Count
    adjacency: Adjacency
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    stated_epsilon: NotNegative | None = None
    stated_delta: Probability | None = None

    @property
    def size(self) -> int:
        """The (mean) number of records in a batch."""
        return self.batch if isinstance(self.batch, int) else self.records

    @property
    def share(self) -> float:
        """The probability with which a record is in a batch."""
        return self.size / self.records if self.rate is None else self.rate

    @property
    def sensitivity(self) -> float:
        """How far the change moves what noise is added to."""
        of_sum = self.clip * (2 if self.adjacency is Adjacency.REPLACE else 1)
        return of_sum / self.size if self.noise_on is NoiseOn.MEAN else of_sum

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise, in the units of what it is added to."""
        unit = {SigmaUnit.CLIP: self.clip, SigmaUnit.SENSITIVITY: self.sensitivity, SigmaUnit.ABSOLUTE: 1.0}
        return self.sigma * unit[self.sigma_unit]

    @property
    def noise_multiplier(self) -> float:
        """The deviation over the sensitivity."""
        return self.deviation / self.sensitivity

    def epsilon(self, delta: float) -> Range:
        """What is attained, and what is proven, over all rounds.

        With batches drawn by chance the pair of data sets that is attained is one record that is there, or counts as
        nothing. For replaced records the upper bound is that of batches of a fixed size (`loss_distributions`): its
        proof takes only that one record is in the batch with this probability, and all lie within the sensitivity.
        """
        if self.deviation == 0:
            return Range(math.inf, math.inf)
        if self.share == 1:
            mu = math.sqrt(self.rounds) / self.noise_multiplier
            exact = epsilon_of(mu, delta)
            attained = exact if math.isfinite(exact) else mu**2 / 2 if delta < 0.4 else 0.0  # where delta is nearly 1/2
            return Range((1 - MARGIN) * attained, exact)
        replaced = self.adjacency is Adjacency.REPLACE
        size = self.records if replaced else None
        most = epsilon_of_batches(
            noise=self.noise_multiplier, share=self.share, rounds=self.rounds, delta=delta, size=size
        )
        alone = self.noise_multiplier * (2 if replaced else 1)
        return Range(epsilon_at_least(noise=alone, share=self.share, rounds=self.rounds, delta=delta), most)

    def facts(self) -> dict[str, str]:
        """For reading: the settings, with every unit spelled out."""
        units = {
            SigmaUnit.CLIP: "the clipping norm", SigmaUnit.SENSITIVITY: "the sensitivity",
            SigmaUnit.ABSOLUTE: "the values",
        }  # fmt: skip
        change = "is replaced by another" if self.adjacency is Adjacency.REPLACE else "is there or not"
        batches = "all records in every round" if self.share == 1 else f"each record with probability {self.share:g}"
        return {
            "clipping": f"each contribution to norm {self.clip:g}",
            "sigma": f"{self.sigma:g}, in units of {units[self.sigma_unit]}",
            "noise": f"deviation {self.deviation:g}, on the {self.noise_on} of a batch",
            "change": f"one of {self.records:,} {change}, which moves the {self.noise_on} by {self.sensitivity:g}",
            "noise multiplier": f"{self.noise_multiplier:g}",
            "batches": batches,
            "rounds": f"{self.rounds:,}",
        }


# --- filters that send a part of an update ---------------------------------------------------------------------------

MOST_COORDINATES = 10_000
"""So many coordinates are counted: what more of them tell is left out."""


@dataclass(frozen=True, kw_only=True)
class SparseFilter:
    """An NVFlare filter on the update of a client: `kept` coordinates of so many, with Laplace noise, or with none."""

    name: str
    parameters: int
    kept: int
    with_replacement: bool
    noise_var: float
    gamma: float
    rounds: int
    stated_epsilon: float | None
    stated_delta: float | None = None
    adjacency: str = "a client's update"

    def epsilon(self, delta: float) -> Range:
        """At least what the signs of what is sent tell; nothing is proven from above."""
        if self.noise_var == 0 or math.isinf(self.noise_var):
            return Range(math.inf, math.inf)
        sent, chance = _distinct(self.kept, self.rounds) if self.with_replacement else (self.kept * self.rounds, 1.0)
        return Range(_of_signs(self.noise_var, min(MOST_COORDINATES, sent), delta / chance), math.inf)

    def facts(self) -> dict[str, str]:
        """For reading."""
        noise = "none" if math.isinf(self.noise_var) else f"Laplace, scale 2 * {self.gamma:g} / {self.noise_var:g}"
        return {
            "filter": self.name,
            "sent": f"{self.kept:,} of {self.parameters:,} parameters, clipped to {self.gamma:g}",
            "noise": noise, "change": "the update of a client is replaced by another", "rounds": f"{self.rounds:,}",
        }  # fmt: skip


def _distinct(kept: int, rounds: int) -> tuple[int, float]:
    """How many different coordinates are sent at least, where `kept` are drawn with replacement; and how surely.

    Their mean number in a round is `kept (1 - (1 - 1 / kept)^kept)` or more, and one draw changes it by one at most
    (McDiarmid).
    """
    mean = rounds * kept * (1 - (1 - 1 / kept) ** kept)
    return max(0, math.floor(mean - math.sqrt(rounds * kept * math.log(2) / 2))), 0.5


def _of_signs(per_coordinate: float, count: int, delta: float) -> float:
    """Epsilon at this delta of `count` coordinates that each fall on one end, between, or on the other.

    The end is that of the sign with probability 1/2, the other end with exp(-e) / 2, and what lies between tells
    nothing: the loss is e, -e or 0. Merging what lies between is a lower bound. The transforms are wrong by less than
    what delta is raised by.
    """
    if not delta < 1:
        return 0.0
    other = math.exp(-per_coordinate) / 2
    one, total, power = np.array([other, 0.5 - other, 0.5]), np.array([1.0]), count
    while power:
        if power & 1:
            total = fftconvolve(total, one)
        power >>= 1
        if power:
            one = fftconvolve(one, one)
    losses, shares = per_coordinate * np.arange(-count, count + 1), np.clip(total, 0.0, None)
    wanted, low, high = delta * (1 + 1e-9) + 1e-11, 0.0, per_coordinate * count
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        above = losses > middle
        reached = float(np.sum(shares[above] * -np.expm1(middle - losses[above])))
        low, high = (middle, high) if reached > wanted else (low, middle)
    return low


# --- settings as they are typed --------------------------------------------------------------------------------------


def given_settings(text: str) -> GivenSettings:
    """DP-SGD settings as they are typed, `key=value` with commas between them."""
    return _dp_sgd(_pairs(text))


def _dp_sgd(given: Document) -> GivenSettings:
    found = _checked(GivenSettings, given)
    if found.size > found.records:
        raise InputError(f"batch={found.size} of records={found.records}", "a batch is a part of them", "exchange them")
    return found


def mechanism(settings: str, preset: str | None) -> Mechanism:
    """Settings as they are typed, by the names of a framework if a preset is named."""
    if preset is None:
        return given_settings(settings)
    if preset not in PRESETS:
        raise InputError(f"--preset {preset}", f"known: {', '.join(PRESETS)}", "choose one of them")
    return PRESETS[preset](_pairs(settings))


def _pairs(text: str) -> Document:
    """`key=value` pairs with commas between them; a key that is given twice is refused."""
    found: Document = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or not value or name in found:
            raise InputError(f"--settings {part}", "each is key=value, and is given once", f"write {EXAMPLE}")
        found[name] = value.strip()
    return found


def _checked(kind: type[AnyTyped], given: Document) -> AnyTyped:
    return parse_section(kind, given, "--settings")


# --- presets ---------------------------------------------------------------------------------------------------------


class FlowerMod(Typed):
    """`LocalDpMod`, with the rounds that it is used in."""

    clipping_norm: Positive
    sensitivity: NotNegative
    epsilon: Positive
    delta: Probability
    rounds: Count
    adjacency: Adjacency = Adjacency.REPLACE


class OpacusEngine(Typed):
    """`PrivacyEngine`, with the data that it is used on."""

    noise_multiplier: NotNegative
    max_grad_norm: Positive
    rounds: Count
    batch: Count | Literal["full"]
    records: Count
    drop_last: bool = False


class NVFlareFilter(Typed):
    """What every filter is used on."""

    gamma: Positive
    parameters: Count
    rounds: Count
    data_kinds: object = None


class SVTPrivacy(NVFlareFilter):
    """This filter, with what it takes where a configuration leaves a parameter out."""

    gamma: Positive = 1e-5
    fraction: Positive = 0.1
    epsilon: NotNegative = 0.1
    noise_var: NotNegative = 0.1
    tau: float = 1e-6
    replace: bool = True


class PercentilePrivacy(NVFlareFilter):
    """The same for this one."""

    gamma: Positive = 0.01
    percentile: float = 10


FILTERS = {kind.__name__: kind for kind in (SVTPrivacy, PercentilePrivacy)}


def _flower(given: Document) -> Mechanism:
    mod = _checked(FlowerMod, given)
    deviation = mod.sensitivity * math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon
    settings = {
        "clip": mod.clipping_norm, "sigma": deviation, "sigma_unit": SigmaUnit.ABSOLUTE, "noise_on": NoiseOn.SUM,
        "rounds": mod.rounds, "batch": FULL, "records": 1, "adjacency": mod.adjacency, "stated_epsilon": mod.epsilon,
        "stated_delta": mod.delta,
    }  # fmt: skip
    return _dp_sgd(settings)


def _opacus(given: Document) -> Mechanism:
    engine = _checked(OpacusEngine, given)
    size = engine.batch if isinstance(engine.batch, int) else engine.records
    batches = max(1, engine.records // size if engine.drop_last else -(-engine.records // size))
    settings = {
        "clip": engine.max_grad_norm, "sigma": engine.noise_multiplier, "sigma_unit": SigmaUnit.CLIP,
        "noise_on": NoiseOn.SUM, "rounds": engine.rounds, "batch": engine.batch,
        "records": engine.records, "adjacency": Adjacency.ADD_REMOVE, "rate": 1 / batches,
    }  # fmt: skip
    return _dp_sgd(settings)


def _nvflare(given: Document) -> Mechanism:
    own = {key: value for key, value in given.items() if key not in ("config", "filter")}
    name = given.get("filter", SVTPrivacy.__name__)
    if "config" in given:
        name, arguments = _filter_in(Path(given["config"]))
        own = {**arguments, **own}
    if name not in FILTERS:
        raise InputError(f"--settings filter={name}", f"known: {', '.join(FILTERS)}", "choose one of them")
    found = _checked(FILTERS[name], own)
    common = {"name": name, "parameters": found.parameters, "gamma": found.gamma, "rounds": found.rounds}
    if not isinstance(found, SVTPrivacy):
        return SparseFilter(
            **common, kept=found.parameters, with_replacement=False, noise_var=math.inf, stated_epsilon=None
        )
    kept = max(1, min(found.parameters, math.ceil(found.parameters * found.fraction)))
    return SparseFilter(
        **common, kept=kept, with_replacement=found.replace, noise_var=found.noise_var, stated_epsilon=found.epsilon
    )


def _filter_in(path: Path) -> tuple[str, Document]:
    """The first privacy filter of a client's configuration, and its arguments."""
    remedy = "give config_fed_client.json"
    text = read_text(path, "an NVFlare client configuration is JSON", remedy)
    try:
        document = parse_json(text)
    except ValueError:
        raise InputError(f"{path}: not JSON", "a configuration is JSON", remedy) from None
    waiting = [document]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict):
            name = str(part.get("name") or part.get("path") or "").rpartition(".")[2]
            if name in FILTERS:
                arguments = part.get("args")
                return name, arguments if isinstance(arguments, dict) else {}
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    raise InputError(f"{path}: no filter that is known", f"known: {', '.join(FILTERS)}", "name the file with a filter")


PRESETS: dict[str, Callable[[Document], Mechanism]] = {"flower": _flower, "nvflare": _nvflare, "opacus": _opacus}
