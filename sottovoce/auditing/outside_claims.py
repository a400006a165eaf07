"""Claims of others, such as a paper or a vendor, beside what is known about the same mechanism.

A claim is refuted only by a lower bound above it: the figure that a change of data really attains, which is exact, or
what an attack showed, with its confidence. An upper bound above the claim refutes nothing.

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

from sottovoce.auditing.lower_bound import as_json, check_delta, round_down
from sottovoce.core.adjacency import Change
from sottovoce.errors import InputError
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.rounding import round_up
from sottovoce.support.config import Document

MARGIN = 1e-9
"""An exact figure counts as a lower bound when it is smaller by so much, relatively: it was computed in floats."""


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
            "most": as_json({"most": self.most})["most"],
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
