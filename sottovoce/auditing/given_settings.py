"""What DP-SGD settings really give, without a run: of a paper, or of another framework's configuration.

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sottovoce.auditing.sampled_lower_bound import epsilon_at_least
from sottovoce.errors import InputError
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.gaussian_dp import epsilon_of

FULL = "full"


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


class Range(NamedTuple):
    """Epsilon is at least and at most this; both are the same where it is exact but for rounding."""

    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """DP-SGD settings. `batch` is the (mean) number of records in a batch, all of them where it is `records`."""

    clip: float
    sigma: float
    sigma_unit: SigmaUnit
    noise_on: NoiseOn
    rounds: int
    batch: int
    records: int
    adjacency: Adjacency
    stated_epsilon: float | None = None
    stated_delta: float | None = None

    @property
    def share(self) -> float:
        """The probability with which a record is in a batch."""
        return self.batch / self.records

    @property
    def sensitivity(self) -> float:
        """How far the change moves what noise is added to."""
        of_sum = self.clip * (2 if self.adjacency is Adjacency.REPLACE else 1)
        return of_sum / self.batch if self.noise_on is NoiseOn.MEAN else of_sum

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
            exact = epsilon_of(math.sqrt(self.rounds) / self.noise_multiplier, delta)
            return Range((1 - 1e-9) * exact, exact)
        replaced = self.adjacency is Adjacency.REPLACE
        size = self.records if replaced else None
        most = epsilon_of_batches(
            noise=self.noise_multiplier, share=self.share, rounds=self.rounds, delta=delta, size=size
        )
        alone = self.noise_multiplier * (2 if replaced else 1)
        return Range(epsilon_at_least(noise=alone, share=self.share, rounds=self.rounds, delta=delta), most)

    def facts(self) -> dict[str, str]:
        """For reading: the settings, with every unit spelled out."""
        batches = "all records in every round" if self.share == 1 else f"each record with probability {self.share:g}"
        return {
            "clipping": f"each contribution to norm {self.clip:g}",
            "sigma": f"{self.sigma:g}, in units of {_UNITS[self.sigma_unit]}",
            "noise": f"deviation {self.deviation:g}, on the {self.noise_on} of a batch",
            "change": f"one of {self.records:,} {_CHANGES[self.adjacency]}, which moves the {self.noise_on} by "
            f"{self.sensitivity:g}",
            "noise multiplier": f"{self.noise_multiplier:g}",
            "batches": batches,
            "rounds": f"{self.rounds:,}",
        }


_UNITS = {
    SigmaUnit.CLIP: "the clipping norm", SigmaUnit.SENSITIVITY: "the sensitivity", SigmaUnit.ABSOLUTE: "the values",
}  # fmt: skip
_CHANGES = {Adjacency.ADD_REMOVE: "is there or not", Adjacency.REPLACE: "is replaced by another"}


# --- settings as they are typed --------------------------------------------------------------------------------------

EXAMPLE = "clip=1,sigma=1.1,sigma-unit=clip,noise-on=sum,rounds=1000,batch=256,records=60000,adjacency=add-remove"
KEYS = ("clip", "sigma", "sigma-unit", "noise-on", "rounds", "batch", "records", "adjacency")


def given_settings(text: str) -> GivenSettings:
    """Settings as they are typed, `key=value` with commas between them."""
    given = parse_pairs(text)
    require_keys(given, KEYS)
    records = whole(given, "records")
    batch = records if given["batch"] == FULL else whole(given, "batch")
    if batch > records:
        raise InputError(f"batch={batch} of records={records}", "a batch is a part of the records", "exchange them")
    return GivenSettings(
        clip=positive(given, "clip"), sigma=number(given, "sigma"),
        sigma_unit=SigmaUnit(word(given, "sigma-unit", tuple(SigmaUnit))),
        noise_on=NoiseOn(word(given, "noise-on", tuple(NoiseOn))), rounds=whole(given, "rounds"), batch=batch,
        records=records, adjacency=Adjacency(word(given, "adjacency", tuple(Adjacency))),
    )  # fmt: skip


def parse_pairs(text: str) -> dict[str, str]:
    """`key=value` pairs with commas between them; a key that is given twice is refused."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value or key in found:
            raise InputError(f"--settings {part}", "each is key=value, and is given once", f"write {EXAMPLE}")
        found[key.strip().replace("_", "-")] = value.strip()
    return found


def require_keys(given: Mapping[str, str], keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Refuse settings that lack a key, or have another."""
    missing = [key for key in keys if key not in given]
    unknown = [key for key in given if key not in (*keys, *optional)]
    if missing or unknown:
        what = f"no {missing[0]}" if missing else f"{unknown[0]}, which is no key"
        raise InputError(f"--settings: {what}", f"the keys are {', '.join(keys)}", f"write, for example, {EXAMPLE}")


def number(given: Mapping[str, str], key: str) -> float:
    """A number that is not negative."""
    try:
        value = float(given[key])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--settings {key}={given[key]}", "it is a number, 0 or more", "give 1.0, for example")
    return value


def positive(given: Mapping[str, str], key: str) -> float:
    """A number above 0."""
    value = number(given, key)
    if value == 0:
        raise InputError(f"--settings {key}={given[key]}", "it is above 0", "give 1.0, for example")
    return value


def whole(given: Mapping[str, str], key: str) -> int:
    """A whole number, 1 or more."""
    text = given[key]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**12:
        raise InputError(f"--settings {key}={text}", "it is a whole number, 1 or more", "give 100, for example")
    return int(text)


def word(given: Mapping[str, str], key: str, known: tuple[str, ...]) -> str:
    """One of some words."""
    if given[key] not in known:
        raise InputError(f"--settings {key}={given[key]}", f"known: {', '.join(known)}", "choose one of them")
    return given[key]
