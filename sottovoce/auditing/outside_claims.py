"""Claims of others, such as a paper or a vendor, beside what is known about the same mechanism.

A claim is refuted only by a lower bound above it: the figure that a change of data really attains, which is exact, or
what an attack showed, with its confidence. An upper bound above the claim refutes nothing. The exact figure of Gaussian
releases on sampled batches is at the end (`epsilon_at_least`).

    >>> claim = OutsideClaim(epsilon=1.0, delta=1e-5, adjacency="record", view="everyone")
    >>> print(judged(claim, [LowerBound(2.0444, "attack", confidence=0.999)], most=4.0).sentence)
    REFUTED: at least 2.044 at 99.9 % confidence
    >>> print(judged(claim, [LowerBound(0.5, "attack", confidence=0.999)], most=4.0).sentence)
    not proven here: at most 4
    >>> print(judged(claim, [], most=0.5).sentence)
    proven: at most 0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sottovoce.auditing.lower_bound import as_json, check_delta, round_down
from sottovoce.core.participation import Change
from sottovoce.errors import InputError
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.rounding import round_up
from sottovoce.support.config import Document
from sottovoce.support.text import to_json

Array = NDArray[np.float64]

REFUTED = 4
"""The exit code of a command that refutes a claim."""

MARGIN = 1e-9
"""An exact figure counts as a lower bound when it is smaller by so much, relatively: it was computed in floats."""

CELLS, MOST_LOSSES = 2**19, 2**20
"""Of the window of all rounds, and of one round, at most."""

ADDED = 0.01
"""Rounding of all rounds together is at most this, where so many cells are enough."""

WIDE, DEVIATIONS = 10.0, 10.0
"""The window is so many deviations wide to each side; outputs beyond so many are left out."""

TILTS = np.geomspace(1e-3, 1e3, 25)


class Outcome(StrEnum):
    """What is known about a claim."""

    REFUTED = "refuted"
    PROVEN = "proven"
    OPEN = "not proven here"


@dataclass(frozen=True, kw_only=True)
class OutsideClaim:
    """Somebody claims (epsilon, delta) against a view, for a `change` of what `adjacency` says; perhaps in a paper."""

    epsilon: float
    delta: float
    adjacency: str
    view: str
    change: str = Change.REPLACE.value
    paper: str = ""
    words: str = ""

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not self.epsilon >= 0:
            raise InputError(f"--claim {self.epsilon}", "an epsilon is 0 or more", "give 1.0, for example")


@dataclass(frozen=True)
class LowerBound:
    """Epsilon is at least `epsilon`: exactly so without a `confidence`. `how` says what showed it."""

    epsilon: float
    how: str
    confidence: float | None = None

    @property
    def sentence(self) -> str:
        """For reading."""
        least = f"at least {round_down(self.epsilon)}"
        return f"{least}, exactly" if self.confidence is None else f"{least} at {100 * self.confidence:g} % confidence"


def attained(mu: float, delta: float, how: str) -> LowerBound:
    """The lower bound of a change of data that a Gaussian mechanism of exactly this mu hides."""
    return LowerBound((1 - MARGIN) * epsilon_of((1 - MARGIN) * mu, delta), how)


@dataclass(frozen=True)
class Judgement:
    """A claim, the largest lower bound beside it, and what is proven at most, if anything is."""

    claim: OutsideClaim
    least: LowerBound | None
    most: float | None

    @property
    def outcome(self) -> Outcome:
        """What follows."""
        if self.least is not None and self.least.epsilon > self.claim.epsilon:
            return Outcome.REFUTED
        return Outcome.PROVEN if self.most is not None and self.most <= self.claim.epsilon else Outcome.OPEN

    @property
    def sentence(self) -> str:
        """The outcome with its figure."""
        if self.outcome is Outcome.REFUTED:
            assert self.least is not None
            return f"REFUTED: {self.least.sentence}"
        most = "nothing is proven" if self.most is None else f"at most {round_up(self.most)}"
        return f"{self.outcome}: {most}"

    def document(self) -> Document:
        """As JSON."""
        return {
            **as_json(asdict(self.claim)), "outcome": self.outcome.value, "sentence": self.sentence,
            "least": None if self.least is None else as_json(asdict(self.least)),
            "most": to_json(self.most),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """The outcome first, then what was compared."""
        claim = self.claim
        about = (
            f"epsilon {claim.epsilon:g} at delta {claim.delta:g}, adjacency {claim.adjacency} ({claim.change}), "
            f"against {claim.view}"
        )
        found = [self.sentence, f"Claim: {about}{f' ({claim.paper})' if claim.paper else ''}."]
        if self.least is not None:
            found.append(f"Lower bound: {self.least.sentence}, {self.least.how}.")
        if self.most is not None:
            found.append(f"Upper bound: at most {round_up(self.most)}.")
        return found


def judged(claim: OutsideClaim, lower: Sequence[LowerBound], most: float | None) -> Judgement:
    """A claim beside all lower bounds that are about it, and the least upper bound."""
    return Judgement(claim, max(lower, key=lambda one: one.epsilon, default=None), most)


def about_settings(claim: OutsideClaim, least: float, most: float) -> Judgement:
    """A claim about settings, of which both bounds are computed."""
    proven = most if math.isfinite(most) else None
    return judged(claim, [LowerBound(least, "attained by a change of data with these settings")], proven)


# --- epsilon that Gaussian releases on Poisson batches really have: from below, every rounding downwards --------------


def epsilon_at_least(*, noise: float, share: float, rounds: int, delta: float) -> float:
    """The larger of both directions; 0 where nothing is known. `noise` is s, for a record of size one.

    The pair of data sets has one record more or less, of full size, while all others count as nothing: outputs of one
    round are from N(0, s^2), or with probability q from N(1, s^2). Outputs are told apart only by the cell of a grid
    that their loss lies in, and the loss counts as that at the lower end of its cell, so that sums of losses over
    rounds are too small, and with them delta. What lies above the grid is left out. To delta is added what the Fourier
    transform may be wrong by, and the mass that comes in again at the other end of its window, by Chernoff's bound.

    >>> least = epsilon_at_least(noise=1.0, share=0.01, rounds=100, delta=1e-5)
    >>> 0.71 < least < 0.72
    True
    """
    if not 0 < noise < math.inf or not 0 < delta < 1:
        return 0.0
    return max(_of_direction(noise, share, rounds, delta, there=there) for there in (True, False))


class _Losses(NamedTuple):
    """Masses of the losses of one round at `first * step`, `(first + 1) * step`, and so on; they may sum to less."""

    masses: Array
    first: int
    step: float

    @property
    def values(self) -> Array:
        return np.asarray(self.step * np.arange(self.first, self.first + len(self.masses)))


def _of_direction(noise: float, share: float, rounds: int, delta: float, *, there: bool) -> float:
    coarse = _losses(noise, share, 1e-3 * _largest(noise, share), there)
    width = 2 * WIDE * math.sqrt(rounds * float(np.sum(coarse.masses * coarse.values**2))) + 2 * coarse.step
    step = max(ADDED / rounds, width / CELLS, _largest(noise, share) / MOST_LOSSES)
    one = _losses(noise, share, step, there)
    first = math.floor((rounds * float(one.masses @ one.values) - width / 2) / step)
    N = 2 * CELLS
    folded = np.bincount(np.arange(one.first, one.first + len(one.masses)) % N, one.masses, minlength=N)
    masses = np.roll(np.fft.irfft(np.fft.rfft(folded) ** rounds, N), -first)
    losses: Array = step * np.arange(first, first + N, dtype=np.float64)
    transforms, distributions = rounds * math.sqrt(N) * math.log2(N) * 2.0**-50, rounds * 2.0**-40
    error = transforms + distributions + _outside(one, rounds, losses[0], losses[-1])
    return _inverted(np.maximum(masses, 0.0), losses, delta + error)


def _largest(noise: float, share: float) -> float:
    """The largest loss that is counted, in either direction."""
    top = 1 + DEVIATIONS * noise
    return max(math.log1p(share * math.expm1(min(700.0, (top - 0.5) / noise**2))), -math.log1p(-min(share, 1 - 1e-16)))


def _losses(noise: float, share: float, step: float, there: bool) -> _Losses:
    """Losses rise with the output where the record is there, and fall with it where it is not."""
    largest = _largest(noise, share)
    lowest = max(math.log1p(-share) if share < 1 else -largest, -largest)
    ends = step * np.arange(math.floor(lowest / step), math.ceil(largest / step) + 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        outputs = 0.5 + noise**2 * np.log(np.maximum(np.expm1(ends) + share, 0.0) / share)
    zero, one = (ndtr((outputs - at) / noise) for at in (0.0, 1.0))
    if there:
        below = (1 - share) * zero + share * one
        return _Losses(np.maximum(np.diff(below), 0.0), round(ends[0] / step), step)
    masses = np.maximum(np.diff(zero), 0.0)[::-1]  # of the loss from -ends[i + 1] to -ends[i]
    return _Losses(masses, -round(ends[-1] / step), step)


def _outside(one: _Losses, rounds: int, low: float, high: float) -> float:
    """Chernoff's bound on the mass of all rounds together below and above a window."""
    with np.errstate(divide="ignore"):
        logs = np.log(one.masses)

    def log_moment(tilt: float) -> float:
        exponents = logs + tilt * one.values
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    above = min(rounds * log_moment(tilt) - tilt * high for tilt in TILTS.tolist())
    below = min(rounds * log_moment(-tilt) + tilt * low for tilt in TILTS.tolist())
    return math.exp(min(0.0, above)) + math.exp(min(0.0, below))


def _inverted(masses: Array, losses: Array, delta: float) -> float:
    """An epsilon at which delta is still reached."""
    low, high = 0.0, float(losses[-1])

    def reached(epsilon: float) -> float:
        from_here = int(np.searchsorted(losses, epsilon, "right"))
        return float(masses[from_here:] @ -np.expm1(epsilon - losses[from_here:]))

    if high <= 0 or reached(0.0) <= delta:
        return 0.0
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return low
