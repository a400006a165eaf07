"""One run with many canaries, each in or out by its own fair coin: how many coins can be guessed from what was seen?

Of m canaries the auditor guesses r and is right about v; it may abstain on the others, as long as it has not seen the
coins. Two theorems bound how likely that is.

*(epsilon, delta)* (Steinke, Nasr and Jagielski 2023). With q = 1 / (1 + e^-epsilon) and X ~ Binomial(r, q),

    P[v or more right] <= P[X >= v] + 2 m delta max_i P[v - i <= X < v] / i.

*f-DP* (Mahloujifar, Melis and Chaudhuri 2024). Let p_i be the probability of exactly i right, and

    R_j = sum_{i >= j} (i / m) p_i,        H_j = sum_{i >= j} ((r - i) / m) p_i.

Then `R_j <= 1 - f(H_{j-1})` for every j. If v or more are right with probability tau, these inequalities force mass
upon v - 1, then v - 2, and so on; if more than all the mass there is, `R_0 + H_0 > r / m`, tau was impossible.

    >>> found = audit_guesses(canaries=1000, guesses=100, correct=95, delta=1e-5)
    >>> round(found.mu, 3), round(found.epsilon, 3)
    (0.787, 2.165)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln, ndtr, ndtri

from sottovoce.attacks.evaluation import check_confidence
from sottovoce.auditing.lower_bound import Audit, Guesses, check_delta
from sottovoce.auditing.scores import score_array
from sottovoce.errors import InputError

Array = NDArray[np.float64]

LARGEST = 30.0
"""No bound is looked for beyond this epsilon or mu."""

GRID, PASSES = 64, 6
"""A bound is closed in by this many points at a time."""

SHARE = 0.2
"""Share of canaries guessed by default: near the best for mu from 0.5 to 3, 1,000 to 10,000 canaries."""


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
    _check(len(values), guesses, 0)
    half = max(1, guesses // 2)
    order = np.argsort(values, kind="stable")
    correct = int(coins[order[-half:]].sum() + (1 - coins[order[:half]]).sum())
    return audit_guesses(canaries=len(values), guesses=2 * half, correct=correct, delta=delta, confidence=confidence)


def audit_guesses(*, canaries: int, guesses: int, correct: int, delta: float = 1e-5, confidence: float = 0.95) -> Audit:
    """Lower bounds from the counts of one run: the numbers of canaries, of guesses, and of right guesses."""
    _check(canaries, guesses, correct)
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


def _check(canaries: int, guesses: int, correct: int) -> None:
    whole = all(isinstance(value, int | np.integer) for value in (canaries, guesses, correct))
    if not whole or not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise InputError(
            f"{correct} of {guesses} guesses about {canaries} canaries",
            "0 <= correct <= guesses <= canaries, and at least one guess",
            "correct the counts",
        )
