"""What an audit found: a lower bound, with the counts it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from sottovoce.errors import InputError
from sottovoce.support.json_numbers import JSON


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Many runs: how often the attack reported a canary without one, and how often it missed one."""

    without: int
    false_alarms: int
    with_canary: int
    misses: int


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """One run: how many canaries there were, about how many of them a guess was made, and how many were right."""

    canaries: int
    guesses: int
    correct: int


class ClaimedBound(Protocol):
    """Anything that claims mu-GDP: a `Guarantee`, or an `Account` by its headline."""

    @property
    def mu(self) -> float:
        """The mechanism is claimed to be mu-GDP."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Lower bounds that hold with a probability of at least `confidence`, whatever the mechanism is.

    - `mu`: it is not mu'-GDP for any smaller mu';
    - `epsilon`: it is not (epsilon', delta)-DP for any smaller epsilon'; no shape of the loss is assumed.

    With many runs both hold together; with one run each holds with this confidence. `highest` is the upper end of the
    interval for what *this attack* achieves, at the same confidence; about the mechanism it says nothing. `traced` is
    the mu of this very canary by the traced system, exactly; None where it was not computed.

    >>> found = Audit(mu=0.9, epsilon=1.2, delta=1e-5, confidence=0.95, method="many runs",
    ...               counts=Rates(without=1000, false_alarms=300, with_canary=1000, misses=310))
    >>> found.consistent_with(1.0), found.consistent_with(0.5)
    (True, False)
    """

    mu: float
    epsilon: float
    delta: float
    confidence: float
    method: str
    counts: Rates | Guesses
    threshold: float | None = None
    highest: float = math.inf
    traced: float | None = None
    view: str | None = None
    victim: int | None = None

    def consistent_with(self, claim: ClaimedBound | float) -> bool:
        """Whether a claim of mu-GDP survives. False refutes it, with this confidence; True proves nothing."""
        return self.mu <= _mu(claim)

    def __str__(self) -> str:
        about = f" of victim {self.victim} seen by {self.view}" if self.victim is not None else ""
        return (
            f"mu >= {round_down(self.mu)}, epsilon >= {round_down(self.epsilon)} at delta = {self.delta:g}{about} "
            f"({self.method}, confidence {self.confidence:g})"
        )

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        return as_json(asdict(self))


def as_json(values: Mapping[str, JSON]) -> dict[str, JSON]:
    """Figures as JSON can say them: an infinite one is the word "inf"."""
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


def _mu(claim: ClaimedBound | float) -> float:
    mu = claim if isinstance(claim, int | float) else getattr(claim, "mu", None)
    if not isinstance(mu, int | float) or not mu >= 0:
        raise InputError(
            f"claim {claim!r}", "it must be a guarantee, or a mu that is not negative", "give account(...).of(victim)"
        )
    return float(mu)


def round_down(value: float) -> str:
    """A lower bound for reading: three decimals, rounded down."""
    return f"{math.floor(value * 1000) / 1000:g}" if math.isfinite(value) else "inf"


# --- what every audit is asked -------------------------------------------------------------------------------------


def check_delta(delta: float) -> float:
    """An audit may ask about delta = 0."""
    if not isinstance(delta, int | float) or not 0 <= delta < 1:
        raise InputError(f"delta = {delta!r}", "it must lie between 0 and 1", "give 1e-5, for example")
    return float(delta)
