"""What an audit found: lower bounds, and how they follow from scores of many runs, or from guesses about one.

*Many independent runs*, half of them with the canary; an attack scores each. A test that reports the canary when the
score reaches a threshold has a false alarm rate a and a miss rate b. Clopper and Pearson bound both from above. A
mu-GDP mechanism has `b >= Phi(Phi^-1(1 - a) - mu)`, so

    mu >= -Phi^-1(a) - Phi^-1(b),        epsilon >= log((1 - delta - b) / a),  and the same with a and b exchanged.

The threshold has to be fixed before the scores are seen. Where it is not, half of the scores choose it and the other
half is tested; several thresholds share the probability of error.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> without, with_canary = rng.standard_normal(20_000), 1.0 + rng.standard_normal(20_000)     # mu = 1
    >>> found = audit_scores(without, with_canary, threshold=0.5)
    >>> round(found.mu, 2), round(found.highest, 2), found.consistent_with(1.0), found.consistent_with(0.9)
    (0.95, 1.02, True, False)

*One run* with many canaries, each in or out by its own fair coin: how many coins can be guessed from what was seen?
Of m canaries the auditor guesses r and is right about v; it may abstain on the others, as long as it has not seen the
coins. Two theorems bound how likely that is.

(epsilon, delta), by Steinke, Nasr and Jagielski (2023): with q = 1 / (1 + e^-epsilon) and X ~ Binomial(r, q),

    P[v or more right] <= P[X >= v] + 2 m delta max_i P[v - i <= X < v] / i.

f-DP, by Mahloujifar, Melis and Chaudhuri (2024): let p_i be the probability of exactly i right, and

    R_j = sum_{i >= j} (i / m) p_i,        H_j = sum_{i >= j} ((r - i) / m) p_i.

Then `R_j <= 1 - f(H_{j-1})` for every j. If v or more are right with probability tau, these inequalities force mass
upon v - 1, then v - 2, and so on; if more than all the mass there is, `R_0 + H_0 > r / m`, tau was impossible.

    >>> found = audit_guesses(canaries=1000, guesses=100, correct=95, delta=1e-5)
    >>> round(found.mu, 3), round(found.epsilon, 3)
    (0.787, 2.165)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln, ndtr, ndtri

from sottovoce.attacks.evaluation import check_confidence, lower_limit, upper_limit
from sottovoce.errors import InputError
from sottovoce.support.text import JSON

Array = NDArray[np.float64]

CANDIDATES, CAUTION = 200, 100
"""A half chooses among so many thresholds, by bounds with so many times less error: or else luck in the tails wins."""

LARGEST = 30.0
"""No bound is looked for beyond this epsilon or mu."""

GRID, PASSES = 64, 6
"""A bound is closed in by this many points at a time."""

SHARE = 0.2
"""Share of canaries guessed by default: near the best for mu from 0.5 to 3, 1,000 to 10,000 canaries."""


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


# --- many runs --------------------------------------------------------------------------------------------------------


def audit_scores(
    without: ArrayLike,
    with_canary: ArrayLike,
    *,
    threshold: float | Sequence[float] | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Lower bounds from the scores of runs without and with the canary; larger scores indicate the canary.

    A given `threshold` must be fixed beforehand; several of them share the probability of error. With None, a random
    half of the scores chooses the one that bounds mu best, and only the other half counts.
    """
    error, delta = check_confidence(confidence), check_delta(delta)
    negatives, positives = score_array(without, "without the canary"), score_array(with_canary, "with the canary")
    if threshold is None:
        rng = np.random.default_rng(seed)
        (first_negatives, negatives), (first_positives, positives) = _halves(negatives, rng), _halves(positives, rng)
        _enough(min(len(first_negatives), len(first_positives)), error, "scores in each half")
        levels = _choose(first_negatives, first_positives, delta, error)
    else:
        levels = _levels(threshold)
    _enough(min(len(negatives), len(positives)), error / len(levels), "scores")
    return _best(_count(negatives, positives, levels), levels, delta, confidence)


def mu_of_rates(false_alarm: Array, miss: Array) -> Array:
    """The least mu whose trade-off curve allows these rates; negative where guessing would do better."""
    return -ndtri(false_alarm) - ndtri(miss)


def epsilon_of_rates(false_alarm: Array, miss: Array, delta: float) -> Array:
    """The least epsilon that allows these rates at this delta, in either direction; not negative."""
    with np.errstate(divide="ignore"):
        ratios = [np.maximum(1 - delta - b, 0) / a for a, b in ((false_alarm, miss), (miss, false_alarm))]
        return np.maximum(np.log(np.maximum(*ratios)), 0.0)


class Counts(NamedTuple):
    """False alarms and misses at each threshold, and how many scores are without and with the canary."""

    alarms: NDArray[np.intp]
    misses: NDArray[np.intp]
    negatives: int
    positives: int


def _count(negatives: Array, positives: Array, levels: Array) -> Counts:
    alarms = len(negatives) - np.searchsorted(np.sort(negatives), levels, "left")
    return Counts(alarms, np.searchsorted(np.sort(positives), levels, "left"), len(negatives), len(positives))


def _bounds(counts: Counts, delta: float, error: float) -> dict[str, Array]:
    """Lower bounds at each threshold; half of the error goes to each rate."""
    a, b = (
        upper_limit(counts.alarms, counts.negatives, error / 2),
        upper_limit(counts.misses, counts.positives, error / 2),
    )
    return {"mu": mu_of_rates(a, b), "epsilon": epsilon_of_rates(a, b, delta)}


def _best(counts: Counts, levels: Array, delta: float, confidence: float) -> Audit:
    error = (1 - confidence) / len(levels)
    found = _bounds(counts, delta, error)
    at = int(np.argmax(found["mu"]))
    least = (
        lower_limit(counts.alarms, counts.negatives, error / 2),
        lower_limit(counts.misses, counts.positives, error / 2),
    )
    return Audit(
        mu=max(0.0, float(found["mu"].max())),
        epsilon=float(found["epsilon"].max()),
        delta=delta,
        confidence=confidence,
        method="many runs",
        counts=Rates(
            without=counts.negatives,
            false_alarms=int(counts.alarms[at]),
            with_canary=counts.positives,
            misses=int(counts.misses[at]),
        ),
        threshold=float(levels[at]),
        highest=max(0.0, float(mu_of_rates(*least).max())),
    )


def _choose(negatives: Array, positives: Array, delta: float, error: float) -> Array:
    """The threshold that bounds best on these scores."""
    levels = np.quantile(np.concatenate([negatives, positives]), np.linspace(0, 1, CANDIDATES), method="nearest")
    found = _bounds(_count(negatives, positives, levels), delta, error / CAUTION)
    return levels[[int(np.argsort(found["mu"], kind="stable")[-1])]]


def _levels(threshold: float | Sequence[float]) -> Array:
    levels = np.atleast_1d(np.asarray(threshold, dtype=float))
    if levels.ndim != 1 or not levels.size or np.isnan(levels).any():
        raise InputError(f"threshold {threshold!r}", "it must be a number, or several", "give 0.5, for example")
    return levels


def _halves(scores: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Two random halves, so that the order in which scores come does not matter."""
    mixed = rng.permutation(scores)
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def _enough(there: int, error: float, what: str) -> None:
    """Refuse so few scores that even an attack without a single error would prove nothing."""
    needed = math.floor(math.log2(2 / error)) + 1
    if there < needed:
        raise InputError(f"{there} {what}", f"at this confidence fewer than {needed} prove nothing", "score more runs")


# --- one run ----------------------------------------------------------------------------------------------------------


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    guesses: int | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Audit:
    """Lower bounds from one run: a score for each canary and whether its coin put it in.

    The `guesses // 2` highest scores are guessed to be in, the same number of lowest scores to be out, and nothing is
    guessed about the others. `guesses` (None: a fifth of the canaries) must not depend on the coins.
    """
    values = score_array(scores, "of canaries")
    coins = np.asarray(included)
    if coins.shape != values.shape or not np.isin(coins, (0, 1)).all():
        raise InputError(
            f"{len(values)} scores and coins of shape {coins.shape}",
            "there must be one true or false for each canary",
            "give both",
        )
    if guesses is None:
        guesses = max(2, round(SHARE * len(values)))
    _check_counts(len(values), guesses, 0)
    half = max(1, guesses // 2)
    order = np.argsort(values, kind="stable")
    correct = int(coins[order[-half:]].sum() + (1 - coins[order[:half]]).sum())
    return audit_guesses(canaries=len(values), guesses=2 * half, correct=correct, delta=delta, confidence=confidence)


def audit_guesses(*, canaries: int, guesses: int, correct: int, delta: float = 1e-5, confidence: float = 0.95) -> Audit:
    """Lower bounds from the counts of one run: the numbers of canaries, of guesses, and of right guesses."""
    _check_counts(canaries, guesses, correct)
    check_confidence(confidence)
    counts = Guesses(canaries=canaries, guesses=guesses, correct=correct)
    return Audit(
        mu=mu_bound(counts, confidence),
        epsilon=epsilon_bound(counts, check_delta(delta), confidence),
        delta=delta,
        confidence=confidence,
        method="one run",
        counts=counts,
    )


def p_value(counts: Guesses, epsilon: ArrayLike, delta: float) -> Array:
    """How likely at most so many right guesses are, or more, if the run was (epsilon, delta)-DP.

    >>> float(p_value(Guesses(canaries=1000, guesses=1000, correct=600), 0.0, 0.0).round(13))
    1.364e-10
    """
    m, r, v = counts.canaries, counts.guesses, counts.correct
    q = 1 / (1 + np.exp(-np.asarray(epsilon, dtype=float)))
    if v == 0:
        return np.ones_like(q)
    tail = betainc(v, r - v + 1, q)
    if delta == 0:
        return tail
    k = np.arange(v - 1, -1, -1)
    combinations = gammaln(r + 1) - gammaln(k + 1) - gammaln(r - k + 1)
    exactly = np.exp(combinations + k * np.log(q)[..., None] + (r - k) * np.log1p(-q)[..., None])
    steepest = (np.cumsum(exactly, axis=-1) / (v - k)).max(axis=-1)
    return np.minimum(tail + 2 * m * delta * steepest, 1.0)


def epsilon_bound(counts: Guesses, delta: float, confidence: float) -> float:
    """The largest epsilon such that it and every smaller one is refuted."""
    return _largest(lambda epsilons: p_value(counts, epsilons, delta) <= 1 - confidence)


def mu_bound(counts: Guesses, confidence: float) -> float:
    """The largest mu that is refuted as Gaussian DP."""
    return _largest(lambda mus: impossible(counts, mus, 1 - confidence))


def impossible(counts: Guesses, mus: Array, tau: float) -> NDArray[np.bool_]:
    """Whether no mu-GDP run is right `correct` times or more with a probability of tau."""
    m, r, v = counts.canaries, counts.guesses, counts.correct
    right, wrong = np.full(len(mus), tau * v / m), np.full(len(mus), tau * (r - v) / m)
    for j in range(v, 0, -1):
        least = ndtr(ndtri(np.minimum(right, 1.0)) - mus)  # 1 - f is x -> Phi(Phi^-1(x) + mu); this is its inverse
        more = np.maximum(least - wrong, 0.0)
        right, wrong = right + (j - 1) / (r - j + 1) * more, wrong + more
    return right + wrong > r / m


def _largest(refuted: Callable[[Array], NDArray[np.bool_]]) -> float:
    """Where the refuted values from 0 upwards end, rounded down; 0 if 0 itself is not refuted."""
    low, high = 0.0, LARGEST
    for _ in range(PASSES):
        points = np.linspace(low, high, GRID + 1)
        first = int(np.argmin(np.append(refuted(points), False)))
        if first == 0:
            return 0.0
        if first > GRID:
            return high
        low, high = float(points[first - 1]), float(points[first])
    return low


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    whole = all(isinstance(value, int | np.integer) for value in (canaries, guesses, correct))
    if not whole or not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise InputError(
            f"{correct} of {guesses} guesses about {canaries} canaries",
            "0 <= correct <= guesses <= canaries, and at least one guess",
            "correct the counts",
        )


# --- what every audit is asked ----------------------------------------------------------------------------------------


def check_delta(delta: float) -> float:
    """An audit may ask about delta = 0."""
    if not isinstance(delta, int | float) or not 0 <= delta < 1:
        raise InputError(f"delta = {delta!r}", "it must lie between 0 and 1", "give 1e-5, for example")
    return float(delta)


def score_array(scores: ArrayLike, which: str) -> Array:
    """Scores as a plain array of numbers; infinities may be scores, NaN may not."""
    try:
        values = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"scores {which} that are not numbers", "a score is a number", "give an array") from None
    if values.ndim != 1:
        raise InputError(
            f"scores {which} of shape {values.shape}",
            "there must be one score for each run",
            "give an array with one dimension",
        )
    if np.isnan(values).any():
        where = int(np.flatnonzero(np.isnan(values))[0])
        raise InputError(f"score {where} {which} is NaN", "leaving runs out would bias the audit", "fix the attack")
    return values
