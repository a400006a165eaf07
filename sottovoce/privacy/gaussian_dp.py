"""Gaussian differential privacy: mu, (epsilon, delta) and Renyi, in log space and on the safe side.

    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)        (Dong, Roth, Su 2022, Corollary 1)

    >>> round(epsilon_of(1.0, delta=1e-5), 6)
    4.377178
    >>> round(mu_of(epsilon=1.0, delta=1e-5), 6)
    0.268051

Every answer rounds towards less privacy: an epsilon up, a mu that meets a target down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import erfcx, log_ndtr

from sottovoce.errors import InputError

RELATIVE_ERROR = 1e-10
"""How far `log_delta` may be from the truth, relative to delta; roots are taken that much to the safe side."""

SMALLEST, LARGEST = 1e-290, 1e15
"""Beyond these, conversions stop: a larger epsilon is no promise, and its exact value means nothing."""

SECANTS, CLOSE = 12, 1e-13
"""So many secants look for a root at most, until they move by no more than this share."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def log_delta(mu: float, epsilon: float) -> float:
    """Natural logarithm of delta(epsilon) for a mu-GDP mechanism.

    With Mills' ratio m(x) = Phi(-x)/phi(x) the two terms share a factor, phi(a) (m(x) - m(x + mu)) with
    x = -a = eps/mu - mu/2, so nothing cancels where both are tiny.
    """
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    x = epsilon / mu - mu / 2
    if x < -5:  # the first term is 1 to six digits, the second far smaller
        first, second = float(log_ndtr(-x)), epsilon + float(log_ndtr(-x - mu))
        return first + math.log1p(-math.exp(second - first))
    return -x * x / 2 - math.log(math.sqrt(2 * math.pi)) + math.log(_mills_drop(x, mu))


def _mills(x: float) -> float:
    return float(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _mills_drop(x: float, mu: float) -> float:
    """`m(x) - m(x + mu)`; for small mu as the integral of `-m' = 1 - x m(x)`, where a difference would cancel."""
    if mu > 0.5:
        return _mills(x) - _mills(x + mu)
    at = x + mu * (1 + _NODES) / 2
    return float(mu / 2 * (_WEIGHTS @ _mills_slope(at)))


def _mills_slope(x: np.ndarray) -> np.ndarray:
    """`1 - x m(x)`, by its continued fraction's asymptotic series where the difference cancels."""
    plain = 1 - x * math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    far = np.maximum(x, 30.0) ** -2  # 1/x^2 - 3/x^4 + 15/x^6 - 105/x^8 + ...
    series = far * (1 - 3 * far * (1 - 5 * far * (1 - 7 * far * (1 - 9 * far))))
    return np.where(x > 30, series, plain)


@lru_cache(maxsize=10_000)
def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon with delta(epsilon) <= delta, rounded up."""
    _check_mu(mu)
    target = math.log(_check_delta(delta)) - RELATIVE_ERROR
    if mu > math.sqrt(LARGEST):
        return math.inf
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    high = _tail_bound(mu, target) + 1e-300
    while log_delta(mu, high) > target:
        high *= 2
    bad, good = _narrowed(lambda epsilon: log_delta(mu, epsilon) - target, bad=0.0, good=high)
    return _last(lambda epsilon: log_delta(mu, epsilon) <= target, bad=bad, good=good)


def _narrowed(excess: Callable[[float], float], *, bad: float, good: float) -> tuple[float, float]:
    """Ends next to the root of a falling function, found by secants, where these settle; else the ends as they are."""
    one, now = good, good * 0.75
    before, value = excess(one), excess(now)
    for _ in range(SECANTS):
        if value == before or not bad < now <= good:
            return bad, good
        one, now, before = now, now - value * (now - one) / (value - before), value
        if abs(now - one) <= CLOSE * now:
            break
        value = excess(now)
    below, above = now * (1 - CLOSE), now * (1 + CLOSE)
    inside = bad < below and above < good
    return (below, above) if inside and excess(below) > 0 >= excess(above) else (bad, good)


def _tail_bound(mu: float, target: float) -> float:
    """About where epsilon lies at most, by the tail bound of a Gaussian."""
    return mu * mu / 2 + mu * math.sqrt(2 * max(1.0, -target))


def is_epsilon_of(mu: float, epsilon: float, delta: float, *, tolerance: float) -> bool:
    """Whether epsilon is that of mu, up to a relative tolerance: two evaluations, where `epsilon_of` searches.

    >>> epsilon = epsilon_of(1.0, delta=1e-5)
    >>> [is_epsilon_of(1.0, factor * epsilon, 1e-5, tolerance=1e-9) for factor in (1, 1 - 1e-8, 1 + 1e-8)]
    [True, False, False]
    """
    _check_mu(mu)
    target = math.log(_check_delta(delta)) - RELATIVE_ERROR
    far = 2 * _tail_bound(mu, target)
    if mu > math.sqrt(LARGEST) or not 0 < epsilon < far or mu == 0 or log_delta(mu, 0.0) <= target:
        return epsilon == epsilon_of(mu, delta)
    return log_delta(mu, epsilon * (1 + tolerance)) <= target < log_delta(mu, epsilon * (1 - tolerance))


def delta_of(mu: float, epsilon: float) -> float:
    """delta(epsilon), rounded up."""
    _check_mu(mu)
    if not epsilon >= 0:
        raise InputError(f"epsilon = {epsilon}", "it must not be negative", "give a positive number")
    return min(1.0, math.exp(log_delta(mu, epsilon) + RELATIVE_ERROR))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP, rounded down."""
    if not 0 < epsilon <= LARGEST:
        raise InputError(
            f"epsilon = {epsilon}", f"a target must be positive and at most {LARGEST:g}", "give 1, for example"
        )
    target = math.log(_check_delta(delta)) - RELATIVE_ERROR
    low, high = 1.0, 1.0
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while log_delta(low, epsilon) > target:
        low, high = low / 2, low
        if low < SMALLEST:
            raise InputError(f"epsilon = {epsilon} at delta = {delta}", "no mu above 1e-290 gives that", "give more")
    return _last(lambda mu: log_delta(mu, epsilon) <= target, bad=high, good=low)


def guessing_accuracy_bound(mu: float | None, epsilon: float, delta: float) -> float:
    """An upper bound on how often an adversary guesses right which of two equally likely data sets was used.

    It is (1 + TV) / 2 with the total variation distance TV of what is observed: delta(0) under mu-GDP, and at most
    tanh(epsilon / 2) + 2 delta where only (epsilon, delta) is known, with `mu` None.

    >>> guessing_accuracy_bound(0.0, 0.0, 1e-5), guessing_accuracy_bound(math.inf, math.inf, 1e-5)
    (0.5, 1.0)
    """
    total_variation = math.tanh(epsilon / 2) + 2 * delta if mu is None else delta_of(mu, 0.0)
    return min(1.0, (1 + total_variation) / 2)


def renyi_of(mu: float, alpha: float) -> float:
    """Renyi divergence of order alpha: `alpha mu^2 / 2`."""
    _check_mu(mu)
    if not alpha > 0:
        raise InputError(f"alpha = {alpha}", "the order must be positive", "give 2, for example")
    return alpha * mu * mu / 2


def _last(holds: Callable[[float], bool], *, bad: float, good: float) -> float:
    """Bisect to neighbouring floats; the end for which `holds`."""
    for _ in range(200):
        middle = (bad + good) / 2 if bad * 4 > good or good * 4 > bad else math.sqrt(bad * good)
        if middle in (bad, good) or abs(good - bad) <= 1e-15 * good:
            break
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise InputError(f"mu = {mu}", "it must not be negative", "check where it comes from")


def _check_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta}", "it must lie between 0 and 1", "give 1e-5, for example")
    return delta
