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
from numpy.typing import NDArray

Words = NDArray[np.uint64]

MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
INCREMENTS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
ROUNDS = 10
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def philox_words(keys_K2: Words, counters_K: Words, levels_K: Words | int = 0) -> Words:
    """Four words for each key and counter, K x 4; counters of different levels belong to different words.

    Words 4 c to 4 c + 3 of numpy's stream of a key are those of counter c + 1 at level 0.
    """
    a, b = counters_K, np.broadcast_to(np.asarray(levels_K, dtype=np.uint64), counters_K.shape)
    c, d = np.zeros_like(a), np.zeros_like(a)
    first, second = keys_K2[:, 0].copy(), keys_K2[:, 1].copy()
    with np.errstate(over="ignore"):
        for round in range(ROUNDS):
            if round:
                first, second = first + INCREMENTS[0], second + INCREMENTS[1]
            high_a, low_a = _product(a, MULTIPLIERS[0])
            high_c, low_c = _product(c, MULTIPLIERS[1])
            a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
    return np.stack([a, b, c, d], axis=1)


def _product(values: Words, factor: np.uint64) -> tuple[Words, Words]:
    """The high and the low word of a product of two words."""
    high, low, factor_high, factor_low = values >> HALF, values & LOW, factor >> HALF, factor & LOW
    middle = high * factor_low + (low * factor_low >> HALF)
    carry = (middle & LOW) + low * factor_high
    return high * factor_high + (middle >> HALF) + (carry >> HALF), values * factor
