"""`calibrate`: the least sigma that meets a target, on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sottovoce.compression import Identity
from sottovoce.errors import InputError, Unaccountable
from sottovoce.noise import Noise, Together
from sottovoce.privacy.account import Account, account
from sottovoce.privacy.gaussian import mu_of
from sottovoce.privacy.released import trace_released
from sottovoce.privacy.views import View
from sottovoce.topology import Topology
from sottovoce.trace import trace

if TYPE_CHECKING:
    from sottovoce.algorithms import Algorithm

LARGEST = 1e12
"""A target that no sigma below this meets is refused."""


def with_sigma(algorithm: Algorithm, sigma: float) -> Algorithm:
    """The same algorithm at another noise size."""
    noise: Noise = algorithm.noise.with_sigma(sigma)
    return replace(algorithm, noise=noise)  # type: ignore[type-var]


def calibrate(
    algorithm: Algorithm,
    topology: Topology,
    view: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    **settings: Any,
) -> float:
    """The least sigma with which the headline of `account` is (epsilon, delta)-DP.

    >>> from sottovoce import algorithm, metropolis
    >>> sigma = calibrate(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:8"), rounds=100, epsilon=1.0, delta=1e-5)
    >>> round(sigma, 4)
    37.3063
    """
    target = mu_of(epsilon, delta)

    traced = trace if isinstance(algorithm.compression, Identity) else trace_released

    def at(sigma: float) -> Account:
        return account(traced(with_sigma(algorithm, sigma), topology, rounds=rounds), view, **settings)

    reference = at(1.0)
    if reference.headline is None:
        raise Unaccountable("; ".join(reference.refusals))
    if reference.mu == 0:
        return 0.0
    if isinstance(algorithm.noise, Together):
        return _search(lambda sigma: at(sigma).mu, target, epsilon)
    if math.isinf(reference.mu):
        raise Unaccountable(f"no sigma protects everybody from {reference.view}: some signal is not covered by noise")
    sigma = reference.mu / target  # mu is proportional to 1/sigma; the next floats make up for rounding
    for _ in range(100):
        found = at(sigma)
        if found.mu <= target and found.epsilon(delta) <= epsilon:
            return sigma
        sigma *= 1 + 1e-12
    raise InputError(f"sigma {sigma} does not meet epsilon {epsilon}", "mu falls as 1/sigma", "report this")


def _search(mu: Callable[[float], float], target: float, epsilon: float) -> float:
    """Bisect on sigma where other noise stays as it is."""
    high = 1.0
    while mu(high) > target:
        high *= 2
        if high > LARGEST:
            raise Unaccountable(f"no sigma up to {LARGEST:g} meets epsilon {epsilon}")
    low = high / 2
    while low > 1e-9 and mu(low) <= target:
        low, high = low / 2, low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if mu(middle) <= target else (middle, high)
    return high
