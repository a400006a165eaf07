"""Words of counter-based random streams, wherever they stand: Philox 4x64 with ten rounds, as numpy has it.

numpy draws a stream from its beginning. Whoever needs a few words out of many asks here; they are the same words.

    >>> import numpy as np
    >>> key = np.array([[1, 2]], dtype=np.uint64)
    >>> stream = np.random.Philox(key=key[0])
    >>> bool((stream.random_raw(4) == philox_words(key, np.array([1], dtype=np.uint64))[0]).all())
    True

Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import Words

ROUNDS = 10
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], dtype=np.uint64)
HIGH_MULTIPLIERS, LOW_MULTIPLIERS = MULTIPLIERS >> HALF, MULTIPLIERS & LOW
INCREMENTS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], dtype=np.uint64)


def philox_words(keys_K2: Words, counters_K: Words, level: int = 0) -> Words:
    """Four words for each key and counter, K x 4; counters of different levels belong to different words.

    Words 4 c to 4 c + 3 of numpy's stream of a key are those of counter c + 1 at level 0.
    """
    even = np.stack([counters_K, np.zeros_like(counters_K)])
    odd = np.stack([np.full_like(counters_K, level), np.zeros_like(counters_K)])
    keys = keys_K2.T.copy()
    with np.errstate(over="ignore"):
        for round in range(ROUNDS):
            if round:
                keys += INCREMENTS
            high, low = _products(even)
            even, odd = high[::-1] ^ odd ^ keys, low[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]], axis=1)


def _products(values_2K: Words) -> tuple[Words, Words]:
    """The high and the low words of the products of two rows of words with their multipliers."""
    high, low = values_2K >> HALF, values_2K & LOW
    middle = high * LOW_MULTIPLIERS
    middle += low * LOW_MULTIPLIERS >> HALF
    carry = middle & LOW
    carry += low * HIGH_MULTIPLIERS
    high *= HIGH_MULTIPLIERS
    high += middle >> HALF
    high += carry >> HALF
    return high, values_2K * MULTIPLIERS


class PhiloxStream:
    """The stream of one key of 16 bytes, as numpy draws it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._generator = philox_generator(key)

    @property
    def _words_of_key(self) -> Words:
        return np.frombuffer(self._key, np.uint64)

    def words(self, count: int) -> Words:
        """The next words."""
        return self._generator.bit_generator.random_raw(count)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """The next numbers from 0 up to 1."""
        return self._generator.random(count)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below `count` in a random order."""
        return self._generator.permutation(count)

    def gaussians_(self, out: Reals) -> None:
        """By numpy's ziggurat."""
        self._generator.standard_normal(out=out, dtype=out.dtype)

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """By numpy, from a counter on."""
        generator = np.random.Philox(key=self._words_of_key, counter=np.array([first, level, 0, 0], dtype=np.uint64))
        return generator.random_raw(4 * count).reshape(count, 4)

    def words_at(self, counters_K: Words, level: int) -> Words:
        """Wherever they stand."""
        return philox_words(np.broadcast_to(self._words_of_key, (len(counters_K), 2)), counters_K, level)


class _Key(ISeedSequence):
    """A key as it is. numpy's own way takes three times as long: it asks the system for entropy and drops it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.uint32 | np.uint64]:
        return np.frombuffer(self._key, dtype, n_words)


def philox_generator(key: bytes) -> np.random.Generator:
    """numpy's generator with a key of 16 bytes."""
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]  # the stub leaves ISeedSequence out
