"""The last bits of messages: an attack that works on rounded floating-point sums, and finds nothing on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import NoiseKey, SecretSource, algorithm, iterate_rounds, metropolis
from sottovoce.core.grid import grid_step, with_exact_noise
from sottovoce.core.random_streams import RandomSource

REPEATS = 40_000
NET = metropolis("path:2")


def messages(rating: float, *, exact: bool, source: RandomSource, repeats: int = REPEATS) -> np.ndarray:
    """What a node sends about the bias of an item, which starts at 0; `rating` is its gradient if it rated the item.

    Every column is one repetition, with noise of its own.
    """
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), NET, exact)
    gradient = np.zeros((2, repeats), dtype=np.float32)
    gradient[0] = rating
    x0 = np.zeros((2, repeats), dtype=np.float32)
    played = next(iterate_rounds(built, NET, x0, lambda t, x: gradient, rounds=1, noise_key=source))
    return np.asarray(played.steps[0].sent_messages().rows[0], dtype=np.float64)


def has_fine_bits(sent: np.ndarray) -> np.ndarray:
    """Small numbers with bits below 2^-26. A sum with a rating of 0.5 that comes out small has none: the noise was
    near 0.5, where float32 has none.
    """
    return (np.abs(sent) < 2**-4) & (np.round(sent * 2**26) != sent * 2**26)


def test_floating_point_sums_betray_who_did_not_rate():
    """Delta of about 0.05 at any epsilon: such messages never occur in the other world."""
    assert has_fine_bits(messages(0.0, exact=False, source=NoiseKey.of_seed(1))).mean() > 0.03
    assert not has_fine_bits(messages(0.5, exact=False, source=NoiseKey.of_seed(2))).any()


def test_on_a_grid_the_same_attack_finds_nothing():
    for rating, seed in ((0.0, 1), (0.5, 2)):
        assert not has_fine_bits(messages(rating, exact=True, source=NoiseKey.of_seed(seed))).any()


@pytest.mark.parametrize("rating", [0.3, 0.5, 1.0])
def test_on_a_grid_both_worlds_send_the_same_numbers_with_the_same_low_bits(rating):
    """Messages are whole multiples of the step whatever was added, and their lowest three bits are as likely."""
    step = grid_step(with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), NET), NET.at(0))
    shares = []
    for world, seed in ((0.0, 3), (rating, 4)):
        multiples = messages(world, exact=True, source=NoiseKey.of_seed(seed)) / step
        np.testing.assert_array_equal(multiples, np.round(multiples))
        shares.append(np.bincount(multiples.astype(int) % 8, minlength=8) / REPEATS)
    assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(2 / 8 / REPEATS)


def noisy_messages(rating: float, *, exact: bool, source: RandomSource) -> np.ndarray:
    """The same with noise on single messages, of size 1, in the precision that each takes."""
    built = with_exact_noise(algorithm("zip-dl", message_sigma=1.0, step_size=1.0), NET, exact)
    gradient = np.zeros((2, REPEATS), dtype=np.float64 if exact else np.float32)
    gradient[0] = rating
    played = next(
        iterate_rounds(built, NET, np.zeros_like(gradient), lambda t, x: gradient, rounds=1, noise_key=source)
    )
    return np.asarray(played.steps[0].sent_messages().rows[0], dtype=np.float64)


def test_noise_on_single_messages_betrays_as_much_in_floats_and_nothing_on_a_grid():
    assert has_fine_bits(noisy_messages(0.0, exact=False, source=NoiseKey.of_seed(1))).mean() > 0.002
    assert not has_fine_bits(noisy_messages(0.5, exact=False, source=NoiseKey.of_seed(2))).any()
    built = with_exact_noise(algorithm("zip-dl", message_sigma=1.0, step_size=1.0), NET, True)
    step, shares = grid_step(built, NET.at(0)), []
    for rating in (0.0, 0.3):
        multiples = noisy_messages(rating, exact=True, source=SecretSource()) / step
        np.testing.assert_array_equal(multiples, np.round(multiples))
        shares.append(np.bincount(multiples.astype(int) % 8, minlength=8) / REPEATS)
    assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(2 / 8 / REPEATS)


def test_no_message_of_ten_million_with_secret_noise_is_possible_in_one_world_only():
    """Float32 sums betray hundreds of so many; on the grid every multiple that one world sends often, both send."""
    step, repeats = grid_step(with_exact_noise(algorithm("dp-d-sgd", sigma=1.0), NET), NET.at(0)), 5_000_000
    sent = [messages(rating, exact=True, source=SecretSource(), repeats=repeats) / step for rating in (0.0, 0.5)]
    counts = [np.bincount((world + 10 / step).astype(int), minlength=int(20 / step)) for world in sent]
    often = (counts[0] > 1000) | (counts[1] > 1000)
    assert often.sum() > 6 / step
    assert (np.minimum(*counts)[often] > 0).all()
    assert all((np.round(world) == world).all() and not has_fine_bits(world * step).any() for world in sent)
    plain = messages(0.0, exact=False, source=SecretSource(), repeats=50_000)
    assert has_fine_bits(plain).sum() > 500
