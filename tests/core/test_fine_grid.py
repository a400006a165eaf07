"""Models and messages on one fine grid: what is sent, and how far rounding drives two runs apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sottovoce import InputError, NoiseKey, algorithm, dropout, iterate_rounds, metropolis, train
from sottovoce.core.drawn_gaussians import DrawnGaussians
from sottovoce.core.exact_gaussians import fine_
from sottovoce.core.fine_grid import fine_grid
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.rounded_sum import FreshSum


def on_grid(net, **settings):
    built = with_exact_noise(algorithm("dp-d-sgd", **{"sigma": 4.0, "step_size": 0.5, **settings}), net, "fine")
    return built, fine_grid(built, net.at(0))


@pytest.mark.parametrize("sigma", [4.0, 1000.0])
def test_released_values_are_the_nearest_multiples_of_real_sums(sigma):
    """Noise has 2^27 to 2^35 steps; every value is decided in decimals and compared."""
    net = metropolis("ring:6")
    _, grid = on_grid(net, sigma=sigma)
    (term,) = grid.noise.terms
    assert abs(term.matrix.plain.diagonal()).min() > 2**26
    gradient = np.random.default_rng(0).standard_normal((6, 30))
    released = NoiseFeed(5, NoiseKey.of_seed(5), None, gradient).rounded_sum(gradient, grid.noise, 2)
    draws = DrawnGaussians(NoiseKey.of_seed(5), term.sources, 2, 30)
    exact = FreshSum(gradient, grid.noise.terms, (draws,), grid.step)
    expected = [[exact.decide_exactly(row, column) for column in range(30)] for row in range(6)]
    np.testing.assert_array_equal(np.array(expected) * grid.step, released)


@pytest.mark.parametrize("graph", ["ring:6", "star:5"])
def test_a_round_is_that_of_real_numbers_but_for_rounding(graph):
    net, D = metropolis(graph), 60
    built, grid = on_grid(net)
    W, models = net.at(0).weights.toarray(), np.random.default_rng(1).standard_normal((net.n, D))
    for played in iterate_rounds(built, net, models, lambda t, x: np.tanh(x), rounds=3, noise_key=NoiseKey.of_seed(2)):
        noise = np.empty((net.n, D))
        for node in range(net.n):
            fine_(NoiseKey.of_seed(2).stream("node", [node], played.round, 0), noise[node])
        sent = np.asarray(played.steps[0].sent)
        apart = np.abs(sent - (models - 0.5 * np.tanh(models)) + 0.5 * 4.0 * noise) / grid.step
        assert apart.max() <= (1.001 if played.round == 0 else 0.501)  # starting points are rounded, too
        assert np.abs(played.models - W @ sent).max() <= 0.501 * grid.step
        for values in (sent, played.models):
            np.testing.assert_array_equal(values, np.rint(values / grid.step) * grid.step)
        models = played.models


def test_where_a_difference_is_absorbed_both_runs_send_the_same_bits():
    """Models are some steps apart, and noisy gradients make up for it: real sums are equal."""
    net, D = metropolis("ring:4"), 100
    built, grid = on_grid(net)
    rng = np.random.default_rng(3)
    apart = rng.integers(-1000, 1000, (4, D)) * grid.step
    start, gradient = rng.integers(-99, 99, (4, D)) * 2.0**-8, rng.integers(-99, 99, (4, D)) * 2.0**-10
    sent = [
        next(iterate_rounds(built, net, x0, lambda t, x, g=g: g, rounds=1, noise_key=NoiseKey.of_seed(4))).steps[0].sent
        for x0, g in ((start, gradient), (start + apart, gradient + 2 * apart))
    ]
    np.testing.assert_array_equal(*sent)


def test_what_is_not_absorbed_grows_by_no_more_than_is_counted():
    """The same noise in two runs that are a few steps apart, with non-expansive steps; without it they would pass."""
    net, D = metropolis("star:6"), 2000
    built, grid = on_grid(net)
    W, passed = net.at(0).weights.toarray(), False
    grows = (2 + (grid.neighbours + 3) / 128) * grid.step * math.sqrt(D)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        starts = [rng.standard_normal((6, D))]
        starts.append(starts[0] + rng.uniform(-1.5, 1.5, (6, D)) * grid.step)
        runs = [
            iterate_rounds(built, net, x0, lambda t, x: 1e-3 * x, rounds=8, noise_key=NoiseKey.of_seed(seed))
            for x0 in starts
        ]
        before = np.linalg.norm(starts[0] - starts[1], axis=1) + grid.step * math.sqrt(D)
        for one, other in zip(*runs, strict=True):
            after = np.linalg.norm(one.models - other.models, axis=1)
            assert (after <= W @ before + grows).all()
            passed = passed or bool((after > W @ before).any())
            before = after
    assert passed


@pytest.mark.parametrize("sensitivity", [0.01, (0.3, 2.0, 2.0, 0.7)])
@pytest.mark.parametrize("sigma", [1.0, 50.0])
def test_what_it_adds_is_a_thousandth_of_what_everyone_learns(sensitivity, sigma):
    """For 10 million parameters and 10,000 rounds; everyone learns sqrt(T) / sigma."""
    built, grid = on_grid(metropolis("path:4"), sensitivity=sensitivity, sigma=sigma, step_size=0.1)
    sizes = 0.1 * sigma * np.broadcast_to(sensitivity, 4)
    counted = (2 + 6 / 128) * grid.step * math.sqrt(10**7) * math.sqrt(10_000 * (1 / sizes**2).sum())
    assert counted <= grid.added(10_000) <= 1.001 * counted
    assert grid.added(10_000) < 0.001 * math.sqrt(10_000) / sigma
    assert built.exact_noise == "fine"


def test_models_stay_where_sums_are_right():
    net = metropolis("ring:4")
    built, grid = on_grid(net)
    end = train(built, net, np.zeros((4, 1)), lambda t, x: np.full((4, 1), 1e200), rounds=2)
    assert np.abs(end).max() <= grid.largest_model
    with pytest.raises(InputError, match=r"models that start at .*; its grid reaches to"):
        train(built, net, np.full((4, 1), 2 * grid.largest_model), lambda t, x: x, rounds=1)
    with pytest.raises(InputError, match="models of float32; on its grid they take more bits"):
        train(built, net, np.zeros((4, 1), dtype=np.float32), lambda t, x: x, rounds=1)


def test_only_what_the_proof_is_about_is_offered_it():
    net, plain = metropolis("ring:6"), algorithm("dp-d-sgd", sigma=1.0)
    for built, place in (
        (algorithm("zip-dl", sigma=1.0), net),
        (algorithm("anti-pgd", sigma=1.0), net),
        (algorithm("muffliato-sgd", sigma=1.0, gossip_steps=3), net),
        (algorithm("muffliato", sigma=1.0), net),
        (algorithm("decor", sigma=1.0, sigma_pair=1.0), net),
        (plain, dropout("ring:6", rate=0.3)),
    ):
        with pytest.raises(InputError, match="a fine grid is for"):
            with_exact_noise(built, place, "fine")
        with pytest.raises(InputError, match="a fine grid is for"):
            train(replace(built, exact_noise="fine"), place, np.zeros((6, 1)), lambda t, x: x, rounds=1)
    with pytest.raises(InputError, match="more bits than float32 has"):
        with_exact_noise(plain, net, "fine", in_float64=False)
    assert with_exact_noise(with_exact_noise(plain, net, "fine"), net).exact_noise == "fine"
    with pytest.raises(InputError, match="not every node adds noise"):
        with_exact_noise(algorithm("dp-d-sgd", sigma=(0.0, 1.0, 1.0, 1.0, 1.0, 1.0)), net, "fine")
