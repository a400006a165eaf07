"""The last bits of messages: an attack that works on rounded floating-point sums, and finds nothing on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import NoiseKey, algorithm, iterate_rounds, metropolis
from sottovoce.core.grid import grid_step, with_exact_noise

REPEATS = 40_000
NET = metropolis("path:2")


def messages(rating: float, *, exact: bool, seed: int) -> np.ndarray:
    """What a node sends about the bias of an item, which starts at 0; `rating` is its gradient if it rated the item.

    Every column is one repetition, with noise of its own.
    """
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), NET, exact)
    gradient = np.zeros((2, REPEATS), dtype=np.float32)
    gradient[0] = rating
    x0 = np.zeros((2, REPEATS), dtype=np.float32)
    played = next(iterate_rounds(built, NET, x0, lambda t, x: gradient, rounds=1, noise_key=NoiseKey.of_seed(seed)))
    return np.asarray(played.steps[0].sent_messages().rows[0], dtype=np.float64)


def has_fine_bits(sent: np.ndarray) -> np.ndarray:
    """Small numbers with bits below 2^-26. A sum with a rating of 0.5 that comes out small has none: the noise was
    near 0.5, where float32 has none.
    """
    return (np.abs(sent) < 2**-4) & (np.round(sent * 2**26) != sent * 2**26)


def test_floating_point_sums_betray_who_did_not_rate():
    """Delta of about 0.05 at any epsilon: such messages never occur in the other world."""
    assert has_fine_bits(messages(0.0, exact=False, seed=1)).mean() > 0.03
    assert not has_fine_bits(messages(0.5, exact=False, seed=2)).any()


def test_on_a_grid_the_same_attack_finds_nothing():
    for rating, seed in ((0.0, 1), (0.5, 2)):
        assert not has_fine_bits(messages(rating, exact=True, seed=seed)).any()


@pytest.mark.parametrize("rating", [0.3, 0.5, 1.0])
def test_on_a_grid_both_worlds_send_the_same_numbers_with_the_same_low_bits(rating):
    """Messages are whole multiples of the step whatever was added, and their lowest three bits are as likely."""
    step = grid_step(with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), NET), NET.at(0))
    shares = []
    for world, seed in ((0.0, 3), (rating, 4)):
        multiples = messages(world, exact=True, seed=seed) / step
        np.testing.assert_array_equal(multiples, np.round(multiples))
        shares.append(np.bincount(multiples.astype(int) % 8, minlength=8) / REPEATS)
    assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(2 / 8 / REPEATS)
