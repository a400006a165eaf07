"""`calibrate`: the least sigma that meets a target, on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sottovoce.core.compression import Identity
from sottovoce.core.noise import CombinedNoise, Noise
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.accountant import Account, account
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.noisy_gradients import trace_noisy_gradients
from sottovoce.privacy.views import View
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm

LARGEST = 1e12
"""A target that no sigma below this meets is refused."""


def with_sigma(algorithm: Algorithm, sigma: float) -> Algorithm:
    """The same algorithm at another noise size."""
    noise: Noise = algorithm.noise.with_sigma(sigma)
    return replace(algorithm, noise=noise)  # type: ignore[type-var]


class Calibrated(NamedTuple):
    """A sigma, and the account that shows it meets the target."""

    sigma: float
    account: Account


def calibrate(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    **settings: Any,
) -> float:
    """The least sigma with which the headline of `account` is (epsilon, delta)-DP, rounded up.

    The algorithm's own sigma is replaced; `settings` are those of `account`, such as `adjacency` and `victims`.

    >>> from sottovoce import algorithm, metropolis
    >>> sigma = calibrate(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:8"), rounds=100, epsilon=1.0, delta=1e-5)
    >>> round(sigma, 4)
    37.3063
    """
    return calibrated(algorithm, topology, adversary, rounds=rounds, epsilon=epsilon, delta=delta, **settings).sigma


def calibrated(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    tracer: Callable[[Algorithm], LinearSystem] | None = None,
    **settings: Any,
) -> Calibrated:
    """`calibrate` with the account at that sigma; `settings` are those of `account`, `tracer` traces another way."""
    target = mu_of(epsilon, delta)
    whole = trace if isinstance(algorithm.compression, Identity) else trace_noisy_gradients

    def at(sigma: float) -> Account:
        built = with_sigma(algorithm, sigma)
        system = whole(built, topology, rounds=rounds) if tracer is None else tracer(built)
        return account(system, adversary, **settings)

    reference = at(1.0)
    if reference.headline is None:
        raise Unaccountable("; ".join(reference.refusals))
    if reference.mu == 0:
        return Calibrated(0.0, reference)
    if isinstance(algorithm.noise, CombinedNoise):
        return _search(at, target, epsilon, delta)
    if math.isinf(reference.mu):
        raise Unaccountable(f"no sigma protects everybody from {reference.view}: some signal is not covered by noise")
    sigma = reference.mu / target  # mu is proportional to 1/sigma; the next floats make up for rounding
    for _ in range(100):
        found = at(sigma)
        if found.mu <= target and found.epsilon(delta) <= epsilon:
            return Calibrated(sigma, found)
        sigma *= 1 + 1e-12
    raise InputError(f"sigma {sigma} does not meet epsilon {epsilon}", "mu falls as 1/sigma", "report this")


def _search(at: Callable[[float], Account], target: float, epsilon: float, delta: float) -> Calibrated:
    """Bisect on sigma where other noise stays as it is."""

    def meets(found: Account) -> bool:
        return found.mu <= target and found.epsilon(delta) <= epsilon

    high, best = 1.0, at(1.0)
    while not meets(best):
        high *= 2
        if high > LARGEST:
            raise Unaccountable(f"no sigma up to {LARGEST:g} meets epsilon {epsilon}")
        best = at(high)
    low = high / 2
    while low > 1e-9 and meets(found := at(low)):
        low, high, best = low / 2, low, found
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        found = at(middle)
        low, high, best = (low, middle, found) if meets(found) else (middle, high, best)
    return Calibrated(high, best)
