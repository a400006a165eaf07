"""What integers cost beyond real numbers: bounds against sums in many digits, which share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp
from scipy import stats

from sottovoce import Unaccountable, account, algorithm, trace, uniform
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.integer_sums import sum_grid
from sottovoce.privacy.discrete_noise import SMOOTHING, discrete_factor, lattice_exponent


def sum_distribution(weights, sigmas):
    """P[sum w z = s] for all s, by convolution."""
    found = {0: mp.mpf(1)}
    for w, sigma in zip(weights, sigmas, strict=True):
        reach = range(-30 * sigma, 30 * sigma + 1)
        weight = {z: mp.exp(-(mp.mpf(z) ** 2) / (2 * sigma**2)) for z in reach}
        total, after = mp.fsum(weight.values()), {}
        for s, p in found.items():
            for z, q in weight.items():
                after[s + w * z] = after.get(s + w * z, mp.mpf(0)) + p * q / total
        found = after
    return found


@pytest.mark.parametrize(
    ("weights", "sigmas"), [((1, 1), (1, 1)), ((1, 1, 1), (1, 1, 1)), ((2, 3), (3, 4)), ((1, 2), (2, 2))]
)
def test_sums_are_as_close_to_a_discrete_gaussian_as_the_lattice_says(weights, sigmas):
    """The largest ratio of probabilities, over all values within ten deviations, against (1 + e) / (1 - e)."""
    with mp.workdps(60):
        variance = sum((w * s) ** 2 for w, s in zip(weights, sigmas, strict=True))
        reach = int(10 * math.sqrt(variance))
        shape = {s: mp.exp(-(mp.mpf(s) ** 2) / (2 * variance)) for s in range(-4 * reach, 4 * reach + 1)}
        total = mp.fsum(shape.values())
        found = sum_distribution(weights, sigmas)
        logs = [abs(mp.log(found[s] * total / shape[s])) for s in range(-reach, reach + 1)]
        exponent = lattice_exponent(min(sigmas), max(weights), len(weights))
        e = mp.exp(-exponent)
        bound = mp.log((1 + e) / (1 - e)) if e < 1 else mp.inf
        assert max(logs) <= bound
        assert max(logs) > 0


def test_the_distance_is_that_of_kairouz_liu_and_steinke_for_equal_weights():
    """Theirs, 10 sum exp(-2 pi^2 sigma^2 k / (k + 1)), is above what convolution gives as well."""
    with mp.workdps(60):
        found = sum_distribution((1, 1, 1), (1, 1, 1))
        shape = {s: mp.exp(-(mp.mpf(s) ** 2) / 6) for s in range(-200, 201)}
        total = mp.fsum(shape.values())
        largest = max(abs(mp.log(found[s] * total / shape[s])) for s in range(-15, 16))
        theirs = 10 * sum(mp.exp(-2 * mp.pi**2 * mp.mpf(k) / (k + 1)) for k in (1, 2))
        assert largest <= theirs


def test_a_discrete_gaussian_is_made_of_a_real_one_of_less_variance():
    """By numbers: the mixture over a real Gaussian has the probabilities of the discrete one, up to its factor."""
    sigma, r = 1.0, 0.7
    center, width = np.linspace(-60, 60, 24_001, retstep=True)
    density = stats.norm.pdf(center, 0, math.sqrt(sigma**2 - r**2))
    every = np.exp(-((np.arange(-80, 81)[:, None] - center) ** 2) / (2 * r**2)).sum(axis=0)
    values = np.arange(-7, 8)
    chance = np.exp(-((values[:, None] - center) ** 2) / (2 * r**2)) / every
    mixture = (density * chance).sum(axis=1) * width  # the trapezoid rule: exact but for rounding
    exact = np.exp(-(values**2) / (2 * sigma**2)) / np.exp(-(np.arange(-80, 81) ** 2) / (2 * sigma**2)).sum()
    e = 2 * math.exp(-2 * math.pi**2 * r**2) * (1 + 1e-6)
    off = np.abs(np.log(mixture / exact)).max()
    assert 1e-6 * e < off <= math.log((1 + e) / (1 - e))


@pytest.mark.parametrize(("n", "sigma"), [(3, 0.2), (3, 40.0), (50, 0.2), (50, 40.0)])
def test_the_factor_covers_rounding_and_lost_variance(n, sigma):
    grid = sum_grid(algorithm("secure-average", sigma=sigma, sensitivity=0.003), uniform(f"complete:{n}").at(0))
    factor = discrete_factor(grid)
    variance = 1 / math.sqrt(1 - (SMOOTHING / min(grid.sigma_N)) ** 2)
    rounding = (0.003 + math.sqrt(10**9) * grid.step) / 0.003
    assert factor >= variance * rounding
    assert factor - 1 < 1.0001 * (variance * rounding - 1) + 2e-12
    assert factor < 1 + 2e-5
    assert min(grid.sigma_N) * grid.step >= sigma * 0.003


def test_noise_of_few_steps_is_refused():
    grid = sum_grid(algorithm("secure-average", sigma=2.0**-29), uniform("complete:3").at(0))
    with pytest.raises(Unaccountable, match="not close enough to a Gaussian"):
        discrete_factor(grid)


def test_nodes_of_unequal_sensitivity_add_up_to_what_the_worst_coalition_leaves():
    net = uniform("complete:4")
    own = algorithm("secure-average", sigma=2.0, sensitivity=(1.0, 1.0, 0.5, 0.25))
    found = account(trace(with_exact_noise(own, net), net, rounds=3)).headline
    least_noise = 2.0**2 * (1.0 + 0.5**2 + 0.25**2)  # of the three that do not collude with the first
    assert found.mu == pytest.approx(math.sqrt(3 / least_noise), rel=1e-4)
    grid = sum_grid(with_exact_noise(own, net), net.at(0))
    assert grid.least_sensitivity == 0.25
