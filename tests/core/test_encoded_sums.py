"""Correlated noise inside secure sums: integers by hand, lost rounds, and what a record can tell whatever is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sottovoce import NoiseKey, account, algorithm, trace, uniform
from sottovoce.core.correlation import Triangular
from sottovoce.core.encoded_sums import Encoding
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.integer_sums import sum_grid
from sottovoce.core.loop import iterate_rounds
from sottovoce.errors import InputError

NET, T, D, SIGMA = uniform("complete:5"), 12, 400, 3.0
GRADIENTS = np.random.default_rng(1).uniform(-0.5, 0.5, (T, 5, D))


def built(name="secure-mafalda", **more):
    settings = {"rounds": T, "participation": "3x4"} if name == "secure-mafalda" else {}
    return with_exact_noise(algorithm(name, sigma=SIGMA, step_size=1.0, **settings | more), NET)


def played(which, gradients=GRADIENTS, key=bytes(16)):
    found = iterate_rounds(which, NET, np.zeros((5, D)), lambda t, x: gradients[t], rounds=T, noise_key=NoiseKey(key))
    return list(found)


def error_of(which):
    """The mean square of what noise adds to models, over all rounds."""
    wanted = -GRADIENTS.mean(axis=1).cumsum(axis=0)
    return np.mean([((np.asarray(one.models)[0] - wanted[t]) ** 2).mean() for t, one in enumerate(played(which))])


def test_sums_are_integers_of_encoded_gradients_and_fresh_noise_of_the_right_size():
    which = built().on(NET)
    C, grid = which.noise.correlation.matrix(T), sum_grid(which, NET.at(0))
    h, noises = Fraction(grid.step), []
    for t, one in enumerate(played(which)):
        total = np.asarray(one.steps[0].mixed)[0] * 5 / grid.step
        assert (total == np.rint(total)).all()
        exact = [
            sum(
                round(sum(Fraction(C[t, s]) * Fraction(GRADIENTS[s, u, d]) for s in range(t + 1)) / h) for u in range(5)
            )
            for d in range(3)
        ]
        plain = np.rint(np.einsum("s,sud->ud", C[t, : t + 1], GRADIENTS[: t + 1]) / grid.step).sum(axis=0)
        assert np.abs(plain[:3] - np.array(exact, dtype=float)).max() <= 5
        noises.append((total - plain) * grid.step)
    noise = np.array(noises)
    size = SIGMA * np.sqrt(5)
    assert abs(noise.std() / size - 1) < 5 / np.sqrt(2 * noise.size)
    correlations = np.corrcoef(noise)[np.triu_indices(T, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(D)


def test_models_move_by_the_average_gradient_and_decoded_noise():
    which = built().on(NET)
    C, models = which.noise.correlation.matrix(T), np.array([np.asarray(one.models)[0] for one in played(which)])
    moved = -np.diff(models, axis=0, prepend=0)
    noise = np.einsum("ts,sd->td", C, moved - GRADIENTS.mean(axis=1))  # C ghat = C g + z
    assert abs(noise.std() * np.sqrt(5) / SIGMA - 1) < 5 / np.sqrt(2 * noise.size)
    assert np.abs(np.corrcoef(noise)[np.triu_indices(T, 1)]).max() < 5 / np.sqrt(D)


def test_errors_are_smaller_than_with_independent_noise_at_the_same_figure():
    names = "secure-mafalda", "secure-average"
    seen = [account(trace(built(name), NET, rounds=T), "node:0", participation="3x4") for name in names]
    assert seen[0].mu == pytest.approx(seen[1].mu, rel=1e-3)
    assert seen[0].headline.kind == "any-training"
    errors = [error_of(built(name)) for name in names]
    assert errors[0] < 0.6 * errors[1]


def test_rounds_that_failed_leave_the_others_as_they_are():
    """Without noise every sum that is known is worth its gradient, whichever rounds are missing."""
    rng = np.random.default_rng(0)
    C = Triangular(np.tril(rng.uniform(0.1, 1, (7, 7))) + np.eye(7))
    encoding, gradients = Encoding(C), rng.standard_normal((7, 2, 3))
    for lost in ((), (0,), (2, 3), (1, 4, 6), (0, 1, 2, 3, 4)):
        held = encoding.nothing(np.zeros((2, 3)))
        for t in range(7):
            if t in lost:
                encoding.encode(held, gradients[t], t)
                continue
            entered, held = encoding.encode(held, gradients[t], t)
            found, held = encoding.decode(held, entered, t)
            np.testing.assert_allclose(found, gradients[t], atol=1e-9)


def told(C, shows, lost):
    """The most that a record tells, squared, where rows of lost rounds were sent, and forgotten by later ones."""
    signs = itertools.product((1.0, -1.0), repeat=len(shows) - 1)
    most = 0.0
    for sign in signs:
        change = np.zeros(len(C))
        change[list(shows)] = (1.0, *sign)
        kept = change * [s not in lost for s in range(len(C))]
        rows = [C[t, :t] @ kept[:t] + C[t, t] * change[t] for t in range(len(C))]
        most = max(most, float(np.square(rows).sum()))
    return most


@pytest.mark.parametrize("kind", ["banded", "nonnegative"])
def test_failed_sums_never_tell_more_than_the_figure(kind):
    rng, apart = np.random.default_rng(3), 3
    for _ in range(20):
        C = np.tril(rng.uniform(0.0 if kind == "nonnegative" else -1.0, 1.0, (6, 6))) + np.eye(6)
        if kind == "banded":
            C = np.triu(C, 1 - apart)
        for first in range(apart):
            shows = range(first, 6, apart)
            whole = max(told(C, shows, ()), 0)
            for count in range(1, 4):
                for lost in itertools.combinations(range(6), count):
                    assert told(C, shows, lost) <= whole * (1 + 1e-12)


def test_a_c_with_which_failed_sums_would_tell_more_is_refused():
    rng = np.random.default_rng(0)
    drawn = (np.tril(rng.uniform(-1, 1, (4, 4)), -1) + 0.2 * np.eye(4) for _ in range(3000))
    lost = [(0,), (1,), (2,), (0, 1)]
    C = next(C for C in drawn if max(told(C, range(4), one) for one in lost) > 1.02 * told(C, range(4), ()))
    with pytest.raises(InputError):
        algorithm("secure-mafalda", sigma=1.0, correlation=Triangular(C), participation="every")
    algorithm("secure-mafalda", sigma=1.0, correlation=Triangular(C), participation="1x4")
    algorithm("secure-mafalda", sigma=1.0, correlation=Triangular(np.abs(C)), participation="every")


@pytest.mark.parametrize("participation", ["every", "shuffle:4"])
def test_rounds_that_may_follow_each_other_have_independent_noise(participation):
    """Where a record may show in two rounds that follow each other, C has one band, and nothing is gained or lost."""
    which = built(participation=participation).on(NET)
    assert np.array_equal(which.noise.correlation.matrix(T), np.eye(T) * which.noise.correlation.matrix(T)[0, 0])


def test_optimisers_take_decoded_sums():
    plain, momentum = (built(optimizer=name) for name in ("sgd", "momentum:0.5"))
    moved = -np.diff([np.asarray(one.models)[0] for one in played(plain)], axis=0, prepend=0)
    heavy, velocity = [], 0.0
    for step in moved:
        velocity = 0.5 * velocity + step
        heavy.append(velocity)
    found = -np.diff([np.asarray(one.models)[0] for one in played(momentum)], axis=0, prepend=0)
    np.testing.assert_allclose(found, heavy, atol=1e-9)


def test_in_real_numbers_noise_has_the_same_law():
    real = replace(built(), exact_noise=False)
    errors = [error_of(built()), error_of(real)]
    assert errors[0] == pytest.approx(errors[1], rel=0.2)
