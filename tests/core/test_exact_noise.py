"""Exact noise: rounded sums of gradients and Gaussians, against arithmetic with 50 digits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal

import mpmath
import numpy as np
import pytest

from sottovoce import InputError, SecretSource, algorithm, from_matrix, metropolis, train, weigh
from sottovoce.core import rounded_sum
from sottovoce.core.correlation import ClassCorrelation, Differences, Triangular
from sottovoce.core.exact_gaussians import BLOCK, FINE_ERROR, GUESS_ERROR, decimal_number, fine_, fine_numbers, guess_
from sottovoce.core.grid import NoiseOnGrid, grid_step, noise_on_grid, why_not_exact, with_exact_noise
from sottovoce.core.noise import Temporal
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey, PhiloxStream, philox_words
from sottovoce.tracing.tracer import trace

KEY = np.array([0x123456789ABCDEF, 0xFEDCBA987654321], dtype=np.uint64)
BAND = Triangular(np.eye(6) + 0.5 * np.eye(6, k=-1) - 0.3 * np.eye(6, k=-3))


def stream():
    return PhiloxStream(KEY.tobytes())


def words_at(counters, level):
    return philox_words(np.tile(KEY, (len(counters), 1)), counters, level)


def mpmath_pair(u_bits, v_bits, bits):
    """Both Gaussians of a pair whose U and V start with these bits."""
    with mpmath.workdps(60):
        U, V = (mpmath.mpf(2 * known + 1) / mpmath.mpf(2) ** (bits + 1) for known in (u_bits, v_bits))
        radius = mpmath.sqrt(-2 * mpmath.log(U))
        return radius * mpmath.cos(2 * mpmath.pi * V), radius * mpmath.sin(2 * mpmath.pi * V)


# --- numbers of a stream -------------------------------------------------------------------------------------------


def test_words_anywhere_are_those_of_numpys_stream():
    words = np.random.Philox(key=KEY).random_raw(400).reshape(100, 4)
    counters = np.array([1, 57, 100], dtype=np.uint64)
    np.testing.assert_array_equal(philox_words(np.tile(KEY, (3, 1)), counters), words[[0, 56, 99]])
    deeper = np.random.Philox(key=KEY, counter=[0, 3, 0, 0]).random_raw(8).reshape(2, 4)
    np.testing.assert_array_equal(philox_words(KEY[None], np.array([2], dtype=np.uint64), 3)[0], deeper[1])


@pytest.mark.parametrize("size", [1, 2, 7, BLOCK + 5])
def test_every_way_to_a_number_gives_the_same_number(size):
    guessed, fine = np.empty(size, dtype=np.float32), np.empty(size)
    guess_(stream(), guessed)
    fine_(stream(), fine)
    single, errors = fine_numbers(words_at, np.arange(size), np.full(size, size))
    assert (errors == FINE_ERROR).all()
    np.testing.assert_allclose(single, fine, rtol=0, atol=2**-44)
    known = ~np.isnan(guessed)
    assert known.mean() > 0.99
    assert np.abs(guessed - fine)[known].max() < GUESS_ERROR
    for place in {0, size // 2, size - 1}:
        value, error = decimal_number(words_at, place, size, 1)
        finer = decimal_number(words_at, place, size, 2)
        assert abs(value - finer.value) <= error < Decimal("1e-40")
        assert abs(float(finer.value) - fine[place]) < 2**-44


def words_with(u, more_u, more_v):
    """U and V of all pairs start with the bits of `u`, and go on with `more_u` and `more_v` at every level."""

    def words_at(counters, level):
        words = [u | (u << 32)] * 4 if level == 0 else [more_u, 0, more_v, 0]
        return np.repeat(np.array([words], dtype=np.uint64), len(counters), axis=0)

    return words_at


@pytest.mark.parametrize(
    ("u", "more"),
    [(0, 1 << 60), (1, 0), (1 << 12, 5), (1 << 31, 7), ((1 << 32) - 1, (1 << 64) - (1 << 60)), ((1 << 32) - 9, 3)],
)
def test_tails_and_centre_in_float64(u, more):
    """U from 2^-36 (radius 7) to 1 - 2^-36 (radius 1e-5), with V = U's bits."""
    found, errors = fine_numbers(words_with(u, more, more), np.array([0]), np.array([2]))
    signed = u - (1 << 32) if u >= 1 << 31 else u
    cosine, _ = mpmath_pair((u << 64) + more, (signed << 64) + more, 96)
    assert errors[0] == FINE_ERROR
    assert abs(found[0] - float(cosine)) < 2**-44 * max(1e-4, abs(float(cosine)))


def test_ten_standard_deviations_are_reached_and_more_bits_asked_for():
    """U = 2^-78, V = 0: sqrt(2 78 ln 2) = 10.4. Its 96 first bits are too few for float64, so decimals decide."""
    words_at = words_with(0, 1 << 18, 0)
    found, errors = fine_numbers(words_at, np.array([0]), np.array([2]))
    assert errors[0] == math.inf
    value, error = decimal_number(words_at, 0, 2, 2)
    expected, _ = mpmath_pair((1 << (18 + 64 + 128)) + (1 << (18 + 64)), 0, 288)
    with mpmath.workdps(50):
        assert abs(mpmath.mpf(str(value)) - expected) <= mpmath.mpf(str(error)) + mpmath.mpf(10) ** -45
    assert 10.3 < float(value) < 10.5
    assert found[0] == pytest.approx(float(value), rel=1e-4)


def test_bits_that_are_all_zero_leave_a_number_open():
    assert not decimal_number(words_with(0, 0, 0), 0, 2, 3).error.is_finite()


@pytest.mark.parametrize("secret", [False, True])
def test_rounded_gaussians_have_the_probabilities_of_the_grid(secret, monkeypatch):
    """A chi-square test of 2 million rounded Gaussians, scale 2.3 and offset 0.3 in steps, against 50 digits."""
    draws, scale, offset = 2_000_000, 2.3, 0.3
    net, gradient = metropolis("path:2"), np.full((2, draws // 2), offset, dtype=np.float32)
    term = algorithm("dp-d-sgd", sigma=1.0).noise.local(net.at(0))[0]
    noise = rounded_sum_noise(term, scale)
    monkeypatch.setattr("sottovoce.core.secret_source.urandom", bytes)
    source = SecretSource() if secret else NoiseKey.of_seed(4)
    found = NoiseFeed(4, source, None, gradient).released(gradient, noise, 0).ravel()
    edges = np.arange(-9.0, 9.0)
    with mpmath.workdps(50):
        below = [mpmath.ncdf((mpmath.mpf(edge) + 0.5 - mpmath.mpf(float(gradient[0, 0]))) / scale) for edge in edges]
        parts = [below[0], *(b - a for a, b in itertools.pairwise(below)), 1 - below[-1]]
        expected = draws * np.array([float(part) for part in parts])
    counted = np.histogram(found, [-np.inf, *(edges + 0.5), np.inf])[0]
    chi_square = float(((counted - expected) ** 2 / expected).sum())
    assert chi_square < len(expected) + 6 * math.sqrt(2 * len(expected))
    assert not ((counted - 1.01 * expected) ** 2 / expected).sum() < len(expected) + 6 * math.sqrt(2 * len(expected))


def rounded_sum_noise(term, scale):
    return NoiseOnGrid(1.0, (replace(term, matrix=term.matrix.scaled(scale)),))


# --- rounded sums --------------------------------------------------------------------------------------------------

CASES = {
    "own noise": algorithm("dp-d-sgd", sigma=1.5, sensitivity=0.3),
    "noise of each node's own size": algorithm("dp-d-sgd", sigma=tuple(1.0 + np.arange(6.0)), sensitivity=1e-3),
    "secrets of pairs": algorithm("decor", sigma=0.7, sigma_pair=5.0),
    "differences": algorithm("anti-pgd", sigma=1.5),
    "correlated": algorithm("mf-d-sgd", sigma=1.5, correlation=BAND),
    "correlated by classes": replace(
        algorithm("mf-d-sgd", sigma=1.5, correlation=BAND),
        noise=Temporal(1.5, ClassCorrelation((0, 1, 0, 1, 1, 0), (Differences(), BAND))),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("at_once", [1 << 16, 8])
@pytest.mark.parametrize("useless", [64.0, 0.0])
def test_released_values_are_the_nearest_multiples_of_real_sums(name, dtype, at_once, useless, monkeypatch):
    """Every value of 6 nodes, in round 3, against the sum in decimals; gradients reach 100 standard deviations.

    Whether all nodes are drawn and rounded at once, or two of them; from guesses, or from numbers in float64.
    """
    for place, value in {
        "noise_feed.CHUNK": at_once,
        "rounded_sum.IN_CACHE": at_once,
        "noise_feed.USELESS": useless,
    }.items():
        monkeypatch.setattr(f"sottovoce.core.{place}", value)
    net = metropolis("ring:6")
    built = with_exact_noise(CASES[name], net, True)
    noise = noise_on_grid(built, net.at(0))
    gradient = (40 * built.sensitivity * np.random.default_rng(0).standard_normal((6, 4))).astype(dtype)
    feed = NoiseFeed(5, NoiseKey.of_seed(5), None, gradient)
    released = feed.released(gradient, noise, 3)
    assert released.dtype == dtype
    exact = exact_sum(gradient, noise, seed=5, round=3)
    expected = [[exact.decide_exactly(row, column) for column in range(4)] for row in range(6)]
    np.testing.assert_array_equal(np.array(expected) * noise.step, released)


@pytest.mark.parametrize("noise_type", [np.float32, np.float64])
@pytest.mark.parametrize("type_", [np.float32, np.float64])
@pytest.mark.parametrize("step", [2.0**-8, 2.0**5])
def test_what_guesses_cannot_decide_is_decided_and_nothing_else_is_off(noise_type, type_, step):
    """Sums next to edges between multiples, with guesses that are off by all they may be, towards the edge or away.

    Gradients of nodes have up to 2^19 steps, beside which float32 loses a good part of one; the last node has one large
    number among small ones.
    """
    rng, error = np.random.default_rng(3), 0.01
    steps_ND = np.exp2(np.linspace(-3, 19, 12))[:, None] * rng.uniform(-1, 1, (12, 2000))
    steps_ND[-1, 1:] = rng.uniform(-1, 1, 1999)
    gradient = (steps_ND * step).astype(type_)
    near_edge = 0.5 + rng.choice([-1, 1], gradient.shape) * rng.exponential(0.02, gradient.shape)
    noise = rng.integers(-90, 90, gradient.shape) + near_edge - np.remainder(gradient.astype(np.float64) / step, 1.0)
    true = np.rint(gradient.astype(np.float64) / step + noise)
    guess = ((noise + rng.choice([-error, 0, error], noise.shape)) * step).astype(noise_type)
    lost = np.abs(guess / step - noise).max() - error  # the guess itself is a number of its type
    known = rounded_sum.NoiseBounds(np.full(12, error + max(lost, 0)), np.full(12, 92.0))
    asked = []

    def decide(rows, columns):
        asked.append(len(rows))
        return true[rows, columns]

    released = rounded_sum.rounded_sum_(gradient, guess, known, step, decide)
    assert released.dtype == type_
    np.testing.assert_array_equal(released.astype(np.float64), (true * step).astype(type_))
    assert 0 < asked[0] < true.size


def exact_sum(gradient, noise, *, seed, round):
    return rounded_sum.ExactSum(gradient, noise, NoiseKey.of_seed(seed), round)


@pytest.mark.parametrize("away", [0.0, 1e-6, -1e-6, 1e-13, -1e-13, 1e-30, -1e-30])
def test_values_next_to_an_edge_are_decided_by_as_many_digits_as_it_takes(away):
    """The gradient puts a sum this far from an edge between two multiples, as near as float64 can: all other bits of
    the noise decide, in whatever arithmetic that takes.
    """
    net = metropolis("path:2")
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0), net, True)
    noise = noise_on_grid(built, net.at(0))
    z = rounded_sum.DrawnGaussians(NoiseKey.of_seed(7), noise.terms[0].sources, 0, 1).decimal(0, 0, 3).value
    in_steps = z * Decimal(float(noise.terms[0].matrix.whole()[0, 0]))
    target = in_steps.to_integral_value() + Decimal("0.5") + Decimal(away)
    gradient = np.array([[float((target - in_steps) * Decimal(noise.step))], [0.0]])
    real = in_steps + Decimal(gradient[0, 0]) / Decimal(noise.step)
    expected = int((real + Decimal("0.5")).__floor__())
    released = NoiseFeed(7, NoiseKey.of_seed(7), None, gradient).released(gradient, noise, 0)
    assert released[0, 0] == expected * noise.step


def test_noise_of_a_run_differs_by_at_most_half_a_step_from_real_noise():
    net, x0 = metropolis("ring:5"), np.zeros((5, 3000))
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=2.0, step_size=1.0), net)
    noise, sums = noise_on_grid(built, net.at(0)), np.random.default_rng(1).standard_normal((5, 3000))
    released = NoiseFeed(0, NoiseKey.of_seed(0), None, x0).released(sums, noise, 0)
    true = np.empty((5, 3000))
    for node in range(5):
        fine_(NoiseKey.of_seed(0).stream("node", [node], 0, 0), true[node])
    assert np.abs(released - sums - 2.0 * true).max() <= noise.step / 2 * (1 + 1e-9)


# --- who may -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("built", "weights", "allowed"),
    [
        (algorithm("dp-d-sgd", sigma=1.0), "metropolis", True),
        (algorithm("muffliato", sigma=1.0), "metropolis", True),
        (algorithm("decor", sigma=1.0, sigma_pair=2.0), "metropolis", True),
        (algorithm("dp-csgp", sigma=1.0), "push", True),
        (algorithm("decor", sigma=0.0, sigma_pair=2.0), "metropolis", False),
        (algorithm("dp-d-sgd", sigma=(0.0, 1.0, 1.0, 1.0)), "metropolis", False),
        (algorithm("rss-nb", sigma=1.0), "metropolis", False),
        (algorithm("d-psgd"), "metropolis", False),
    ],
)  # fmt: skip
def test_exact_noise_is_offered_by_where_noise_is_added(built, weights, allowed):
    net = weigh("ring:4", weights)
    assert (why_not_exact(built, net) is None) is allowed
    assert with_exact_noise(built, net).exact_noise is allowed
    if not allowed:
        with pytest.raises(InputError, match="exact_noise with"):
            with_exact_noise(built, net, True)
        with pytest.raises(InputError, match="exact_noise with"):
            train(replace(built, exact_noise=True), net, np.zeros((4, 2)), lambda t, x: x, rounds=1)


def test_a_trusted_sum_is_not_offered_it():
    """One noise for all: what a node adds is known from what any other adds."""
    net = from_matrix(np.full((4, 4), 0.25))
    assert not with_exact_noise(algorithm("dp-fedavg", sigma=1.0), net).exact_noise


def test_correlated_noise_is_exact_on_request():
    net = metropolis("ring:4")
    assert not with_exact_noise(algorithm("anti-pgd", sigma=1.0), net).exact_noise
    chosen = with_exact_noise(algorithm("anti-pgd", sigma=1.0), net, True)
    assert chosen.exact_noise
    assert with_exact_noise(chosen, net).exact_noise
    assert not with_exact_noise(chosen, net, False).exact_noise
    assert with_exact_noise(algorithm("anti-pgd", sigma=1.0), net, "where-possible").exact_noise


@pytest.mark.parametrize("name", CASES)
def test_what_is_traced_is_the_same_with_exact_noise(name):
    net = metropolis("ring:6")
    plain, exact = (trace(with_exact_noise(CASES[name], net, wanted), net, rounds=3) for wanted in (False, True))
    for one, other in zip(plain.steps, exact.steps, strict=True):
        for a, b in zip((one.state_out, one.sent[0].rows), (other.state_out, other.sent[0].rows), strict=True):
            np.testing.assert_allclose(a.toarray(), b.toarray(), rtol=1e-15)


def test_the_step_follows_from_noise_and_sensitivity():
    net = metropolis("ring:4").at(0)
    steps = [grid_step(algorithm("dp-d-sgd", sigma=sigma, sensitivity=0.01), net) for sigma in (1.0, 2.0, 2.1, 100.0)]
    for sigma, step in zip((1.0, 2.0, 2.1, 100.0), steps, strict=True):
        assert 16 <= sigma * 0.01 / step < 32
        assert math.frexp(step)[0] == 0.5
