"""Many independent runs: an attack scores each, half of them with the canary; its two error rates bound mu and epsilon.

A test that reports the canary when the score reaches a threshold has a false alarm rate a and a miss rate b. Clopper
and Pearson bound both from above. A mu-GDP mechanism has `b >= Phi(Phi^-1(1 - a) - mu)`, so

    mu >= -Phi^-1(a) - Phi^-1(b),        epsilon >= log((1 - delta - b) / a),  and the same with a and b exchanged.

The threshold has to be fixed before the scores are seen. Where it is not, half of the scores choose it and the other
half is tested; several thresholds share the probability of error.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> without, with_canary = rng.standard_normal(20_000), 1.0 + rng.standard_normal(20_000)     # mu = 1
    >>> found = audit_scores(without, with_canary, threshold=0.5)
    >>> round(found.mu, 2), round(found.highest, 2), found.consistent_with(1.0), found.consistent_with(0.9)
    (0.95, 1.02, True, False)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from sottovoce.attacks.evaluation import check_confidence, lower_limit, upper_limit
from sottovoce.auditing.lower_bound import Audit, Rates, check_delta
from sottovoce.errors import InputError

Array = NDArray[np.float64]

AIMS = ("mu", "epsilon")

CANDIDATES, CAUTION = 200, 100
"""A half chooses among so many thresholds, by bounds with so many times less error: or else luck in the tails wins."""


def audit_scores(
    without: ArrayLike,
    with_canary: ArrayLike,
    *,
    threshold: float | Sequence[float] | None = None,
    aim: str = "mu",
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Lower bounds from the scores of runs without and with the canary; larger scores indicate the canary.

    A given `threshold` must be fixed beforehand; several of them share the probability of error. With None, a random
    half of the scores chooses one, aiming at mu or at epsilon (`aim`), and only the other half counts.
    """
    error, delta = check_confidence(confidence), check_delta(delta)
    if aim not in AIMS:
        raise InputError(f"aim {aim!r}", f"known: {', '.join(AIMS)}", "choose one of them")
    negatives, positives = score_array(without, "without the canary"), score_array(with_canary, "with the canary")
    if threshold is None:
        rng = np.random.default_rng(seed)
        (first_negatives, negatives), (first_positives, positives) = _halves(negatives, rng), _halves(positives, rng)
        _enough(min(len(first_negatives), len(first_positives)), error, "scores in each half")
        levels = _choose(first_negatives, first_positives, aim, delta, error)
    else:
        levels = _levels(threshold)
    _enough(min(len(negatives), len(positives)), error / len(levels), "scores")
    return _best(_count(negatives, positives, levels), levels, aim, delta, confidence)


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


def _best(counts: Counts, levels: Array, aim: str, delta: float, confidence: float) -> Audit:
    error = (1 - confidence) / len(levels)
    found = _bounds(counts, delta, error)
    at = int(np.argmax(found[aim]))
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


def _choose(negatives: Array, positives: Array, aim: str, delta: float, error: float) -> Array:
    """The threshold that bounds best on these scores."""
    levels = np.quantile(np.concatenate([negatives, positives]), np.linspace(0, 1, CANDIDATES), method="nearest")
    found = _bounds(_count(negatives, positives, levels), delta, error / CAUTION)
    order = np.lexsort((found["mu"], found[aim]))
    return levels[order[-1:]]


# --- what is refused -----------------------------------------------------------------------------------------------


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
