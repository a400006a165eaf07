"""Composed losses are never too small: against integrals of likelihoods, down to delta 1e-15 and below.

The integrals know Gaussian densities and nothing of the package: how a figure comes about is no part of them.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_ndtr

from sottovoce import compose
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.composition import GaussianLoss, SampledLoss
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.loss_distributions import Releases, epsilon_of_releases

DELTAS = (1e-3, 1e-6, 1e-9, 3e-12, 1e-15, 1e-40)


def integrated_delta(epsilon, *, noise, share, mu):
    """One Poisson release beside plain Gaussian ones of joint `mu`: the first integrated, both directions.

    The sum over an even grid is the integral: densities are analytic, and vanish at its ends.
    """
    x, step = np.linspace(-40 * noise, 1 + 40 * noise, 200_001, retstep=True)
    without = stats.norm.logpdf(x, 0, noise)
    beside = np.logaddexp(math.log1p(-share) + without, math.log(share) + stats.norm.logpdf(x, 1, noise))
    worst = 0.0
    for one, other in ((beside, without), (without, beside)):
        left = epsilon - (one - other)
        tail = np.exp(one + log_ndtr(-left / mu + mu / 2)) - np.exp(one + left + log_ndtr(-left / mu - mu / 2))
        worst = max(worst, float(tail.sum() * step))
    return worst


def delta_of_one(epsilon, *, noise, share, there):
    """One Poisson release: the divergence integrated over where it is positive, which is an interval without end."""
    with mpmath.workdps(60):
        noise, share, order = mpmath.mpf(noise), mpmath.mpf(share), mpmath.exp(epsilon)
        edge = (order - 1 + share) / share if there else (1 / order - 1 + share) / share
        if edge <= 0:
            return mpmath.mpf(0)
        x = noise**2 * mpmath.log(edge) + mpmath.mpf(1) / 2
        if there:
            above, moved = mpmath.ncdf(-x / noise), mpmath.ncdf((1 - x) / noise)
            return (1 - share) * above + share * moved - order * above
        below, moved = mpmath.ncdf(x / noise), mpmath.ncdf((x - 1) / noise)
        return below - order * ((1 - share) * below + share * moved)


@pytest.mark.parametrize("noise", [0.3, 1.0, 20.0, 1e4])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 1 - 1e-9])
def test_one_release_is_its_exact_formula(noise, share):
    for delta in DELTAS:
        epsilon = epsilon_of_batches(noise=noise, share=share, rounds=1, delta=delta)
        found = [delta_of_one(epsilon, noise=noise, share=share, there=there) for there in (True, False)]
        assert found[1] <= found[0] * (1 + 1e-12) + 1e-55, "whose record is there loses more"
        assert found[0] <= delta * (1 + 1e-15)
        assert epsilon == 0 or found[0] >= delta * (1 - 1e-6)


@pytest.mark.parametrize("size", [None, 30])
def test_full_batches_are_gaussian_releases_down_to_any_delta(size):
    """Distributions composed by Fourier transforms alone were 0.15 % too small at delta 3e-12, and infinite below."""
    for delta in (*DELTAS, 1e-14, 1e-18, 1e-250):
        for rounds, noise in ((100, 20.0), (10, 1.0), (1000, 100.0), (5000, 27.224161203846133)):
            found = compose([SampledLoss(noise, 1.0, rounds, size)]).epsilon(delta)
            exact = epsilon_of(math.sqrt(rounds) / noise, delta)
            assert exact <= found <= exact * (1 + 1e-12)


@pytest.mark.parametrize("delta", [*DELTAS, 1e-250])
@pytest.mark.parametrize(("noise", "rounds"), [(20.0, 100), (1.0, 10), (0.5, 3), (100.0, 20_000), (1e6, 50)])
def test_compositions_of_almost_full_batches_are_no_smaller_than_gaussian_ones(noise, rounds, delta):
    """A record that is left out once in 1e13 rounds: the figure differs by far less than what is asked for here."""
    exact = epsilon_of(math.sqrt(rounds) / noise, delta)
    assert epsilon_of_batches(noise=noise, share=1 - 1e-13, rounds=rounds, delta=delta) <= exact
    both = [Releases(noise, 1.0, rounds), Releases(1e9, 0.5, 1)]
    assert exact * (1 - 1e-14) <= epsilon_of_releases(both, delta) <= exact * (1 + 1e-6) + 1e-8


@pytest.mark.parametrize(
    ("noise", "share", "mu", "rounds"),
    [(1.0, 0.1, 1.0, 1), (0.6, 0.3, 0.5, 40), (3.0, 0.9, 2.0, 1000), (0.8, 0.001, 0.3, 300)],
)
def test_many_releases_beside_a_sampled_one_are_no_smaller_than_their_integral(noise, share, mu, rounds):
    """The others are plain: of them the loss is known, and yet they are composed one by one."""
    own = Releases(noise, share, 1)
    for delta in (1e-3, 1e-8, 3e-12, 1e-15):
        epsilon = epsilon_of_releases([own, Releases(math.sqrt(rounds) / mu, 1.0, rounds)], delta)
        assert integrated_delta(epsilon, noise=noise, share=share, mu=mu) <= delta * (1 + 1e-9)
        assert integrated_delta(epsilon * (1 - 1e-4), noise=noise, share=share, mu=mu) > delta


@pytest.mark.parametrize(("noise", "share", "rounds"), [(1.0, 1e-4, 10_000), (0.3, 0.001, 100), (2.0, 0.05, 300)])
def test_figures_fall_with_delta_and_grow_with_rounds_and_share(noise, share, rounds):
    def epsilon(delta=1e-6, share=share, rounds=rounds, size=None):
        return epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=delta, size=size)

    found = [epsilon(delta=10.0**-digits) for digits in range(2, 17, 2)]
    assert found == sorted(found)
    assert epsilon(rounds=rounds // 2) < epsilon() < epsilon(share=2 * share)
    assert epsilon() <= epsilon(size=1_000_000)
    assert epsilon() <= epsilon(share=1.0)


def test_plain_releases_beside_sampled_ones_count_as_their_joint_loss():
    """However they are split up."""
    sampled = SampledLoss(1.0, 0.05, 20)
    whole = compose([sampled, GaussianLoss(1.0)]).epsilon(1e-9)
    split = epsilon_of_releases([Releases(1.0, 0.05, 20), Releases(10.0, 1.0, 100)], 1e-9)
    assert split == pytest.approx(whole, rel=1e-5)
