"""What a run does with C: the covariance that was chosen, in noise, messages and guarantees."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sottovoce import (
    InputError,
    account,
    algorithm,
    calibrate,
    factorize,
    iterate_rounds,
    metropolis,
    trace,
)
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey


@pytest.mark.parametrize(("size", "accepted"), [(1.0, True), (0.9, False), (1.1, False)])
def test_noise_of_a_run_has_the_covariance_that_was_chosen(size, accepted):
    """Whitened by the claimed (C^T C)^-1 the noise of a run is unit Gaussian: a chi-square test from both sides."""
    net = metropolis("ring:4")
    built = algorithm("mafalda", sigma=1.0, rounds=8, participation="2x4").on(net)
    C = factorize(net, participation="2x4").C
    D = 400
    (term,) = built.noise.local(net.at(0))
    feed = NoiseFeed(0, NoiseKey.of_seed(0), lambda round, x: x, np.zeros((4, D)))
    noise_TND = np.array([feed.correlated(built.noise.correlation, term.sources, term.matrix, t) for t in range(8)])
    flat = noise_TND.reshape(8, -1) * size
    white = C @ flat
    degrees = white.size
    assert bool(1e-4 < stats.chi2.cdf(np.sum(white**2), degrees) < 1 - 1e-4) is accepted
    if accepted:
        off = np.corrcoef(white) - np.eye(8)
        assert np.abs(off).max() < 4.5 / np.sqrt(white.shape[1])
        np.testing.assert_allclose(np.cov(flat), np.linalg.inv(C.T @ C), atol=0.35)


def test_messages_of_a_run_carry_that_noise():
    net = metropolis("path:3")
    built = algorithm("mafalda", sigma=1.0, rounds=4, participation="2x2", step_size=1.0)
    C = factorize(net, participation="2x2").C
    system = trace(built, net, rounds=4)
    said, G = [], np.zeros((4 * 3, 2))
    for played in iterate_rounds(
        built, net, np.zeros((3, 2)), lambda round, x: 0 * x, rounds=4, noise_key=NoiseKey.of_seed(5)
    ):
        said += [step.sent_messages().rows for step in played.steps]
    A, B, _ = system.dense()
    Z = system.draw(NoiseKey.of_seed(5), dimension=2)
    np.testing.assert_allclose(np.concatenate(said), A @ G + B @ Z, atol=1e-12)
    np.testing.assert_allclose(B, A @ np.kron(np.linalg.inv(C), np.eye(3)), atol=1e-12)


@pytest.mark.parametrize("scheme", ["4x8", "every", "2x8"])
def test_everyone_gets_what_calibrate_promised(scheme):
    net = metropolis("ring:8")
    built = algorithm("mafalda", sigma=1.0, rounds=32, participation=scheme)
    sigma = calibrate(built, net, rounds=32, epsilon=2.0, delta=1e-5, participation=scheme)
    run = algorithm("mafalda", sigma=sigma, rounds=32, participation=scheme)
    told = account(trace(run, net, rounds=32), participation=scheme)
    assert told.kind == "any-training"
    assert told.epsilon(1e-5) <= 2.0
    assert told.epsilon(1e-5) == pytest.approx(2.0, rel=1e-9)
    assert told.mu * sigma == pytest.approx(1.0, rel=1e-6)


def test_mafalda_takes_a_factorization_and_the_loop_refuses_more_rounds():
    net = metropolis("ring:4")
    found = factorize(net, participation="2x4")
    given = algorithm("mafalda", sigma=1.0, correlation=found)
    np.testing.assert_array_equal(given.noise.correlation.matrix(8), found.C)
    with pytest.raises(InputError, match="9 rounds with a correlation matrix for 8"):
        trace(given, net, rounds=9)
    with pytest.raises(InputError, match="mafalda without correlation or rounds"):
        algorithm("mafalda", sigma=1.0)
    with pytest.raises(InputError, match="without a topology"):
        algorithm("mafalda", sigma=1.0, rounds=8).noise.correlation.matrix(8)
