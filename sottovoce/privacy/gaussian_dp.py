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
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr

from sottovoce.errors import InputError

RELATIVE_ERROR = 1e-10
"""How far `log_delta` may be from the truth, relative to delta; roots are taken that much to the safe side."""

SMALLEST, LARGEST = 1e-290, 1e15
"""Beyond these, conversions stop: a larger epsilon is no promise, and its exact value means nothing."""

NEWTON, CLOSE = 60, 1e-11
"""So many of Newton's steps look for a root at most, until one moves by no more than this share: what is left then is
less than the square of it, times mu."""

SMALL = 0.5
"""Up to this mu the drop of Mills' ratio is integrated."""

HUGE, LOST = 1e4, 1e-15
"""Above this mu, `epsilon / mu - mu / 2` loses more than `RELATIVE_ERROR` covers, by at most this share of epsilon."""

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def log_delta(mu: float, epsilon: float) -> float:
    """Natural logarithm of delta(epsilon) for a mu-GDP mechanism."""
    if mu == 0:
        return -math.inf
    return 0.0 if math.isinf(mu) else float(log_deltas(mu, [epsilon])[0])


def log_deltas(mu: float, epsilons: ArrayLike) -> Array:
    """`log_delta` of one positive mu at many epsilons, which are not negative."""
    epsilon_V = np.asarray(epsilons, dtype=float)
    return _log_deltas(np.full(len(epsilon_V), mu), epsilon_V)[0]


def _log_deltas(mu_V: Array, epsilon_V: Array) -> tuple[Array, Array]:
    """`log_delta` for positive, finite mu, and its derivative by epsilon, `-e^eps Phi(-eps/mu - mu/2) / delta`.

    With Mills' ratio m(x) = Phi(-x)/phi(x) the two terms share a factor, phi(a) (m(x) - m(x + mu)) with
    x = -a = eps/mu - mu/2, so nothing cancels where both are tiny. For x < -5 the first term is 1 to six digits, and
    the second far smaller.
    """
    x_V = epsilon_V / mu_V - mu_V / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # what is not selected may be no number
        first_V, second_V = log_ndtr(-x_V), epsilon_V + log_ndtr(-x_V - mu_V)
        far_V = first_V + np.log1p(-np.exp(second_V - first_V))
        later_V, drop_V = _mills(x_V + mu_V), _mills_drop(x_V, mu_V)
        near_V = -(x_V**2) / 2 - math.log(math.sqrt(2 * math.pi)) + np.log(drop_V)
        slope_V = np.where(x_V < -5, -np.exp(second_V - far_V), -later_V / drop_V)
    return np.where(x_V < -5, far_V, near_V), slope_V


def _mills(x_V: Array) -> Array:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x_V / math.sqrt(2)))


def _mills_drop(x_V: Array, mu_V: Array) -> Array:
    """`m(x) - m(x + mu)`; for small mu as the integral of `-m' = 1 - x m(x)`, where a difference would cancel.

    That slope has a continued fraction, whose asymptotic series is taken where its own difference cancels.
    """
    drop_V, small = _mills(x_V) - _mills(x_V + mu_V), mu_V <= SMALL
    at = x_V[small, None] + mu_V[small, None] * (1 + _NODES) / 2
    far = np.maximum(at, 30.0) ** -2  # 1/x^2 - 3/x^4 + 15/x^6 - 105/x^8 + ...
    series = far * (1 - 3 * far * (1 - 5 * far * (1 - 7 * far * (1 - 9 * far))))
    slopes = np.where(at > 30, series, 1 - at * math.sqrt(math.pi / 2) * erfcx(at / math.sqrt(2)))
    drop_V[small] = mu_V[small] / 2 * (slopes * _WEIGHTS).sum(axis=1)
    return drop_V


@lru_cache(maxsize=10_000)
def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon with delta(epsilon) <= delta, rounded up."""
    return float(epsilons_of([mu], delta)[0])


def epsilons_of(mus: ArrayLike, delta: float) -> Array:
    """`epsilon_of` of many at once, which takes little longer than of one.

    >>> epsilons_of([1.0, 0.0, 0.5], delta=1e-5).round(6).tolist()
    [4.377178, 0.0, 1.993091]
    """
    mu_V, places = np.unique(np.asarray(mus, dtype=float), return_inverse=True)
    for mu in mu_V[~(mu_V >= 0)]:
        _check_mu(float(mu))
    target, largest = math.log(_check_delta(delta)) - RELATIVE_ERROR, math.sqrt(LARGEST)
    out = np.where(mu_V > largest, np.inf, 0.0)
    some = np.flatnonzero((mu_V > 0) & (mu_V <= largest))
    some = some[_log_deltas(mu_V[some], np.zeros(len(some)))[0] > target]
    if some.size:
        out[some] = _roots(mu_V[some], target)
    return np.asarray(out[places])


def _roots(mu_V: Array, target: float) -> Array:
    """Where log delta falls to the target, rounded up.

    Newton's method from above: delta is log-concave in epsilon (the loss is Gaussian, and `1 - e^-s` and Gaussian
    densities are log-concave), so tangents lie above log delta, and steps come down to the root without passing it.
    Whatever rounding makes of the last of them, what is returned meets the target.
    """
    high = mu_V * mu_V / 2 + mu_V * math.sqrt(2 * max(1.0, -target)) + 1e-300  # about where a Gaussian's tail is
    while (short := _log_deltas(mu_V, high)[0] > target).any():
        high = np.where(short, 2 * high, high)
    now, settled = high, np.zeros(len(mu_V), dtype=bool)
    for _ in range(NEWTON):
        value, slope = _log_deltas(mu_V, now)
        nearer = np.where(settled, now, np.clip(now - (value - target) / slope, 1e-20 * high, high))
        settled |= np.abs(nearer - now) <= CLOSE * nearer
        now = nearer
        if settled.all():
            break
    for share in 1e-15 * 4.0 ** np.arange(60):
        short = _log_deltas(mu_V, now)[0] > target
        if not short.any():
            break
        now = np.where(short, np.minimum(now * (1 + share), high), now)
    return np.where(mu_V > HUGE, now * (1 + LOST), now)


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
