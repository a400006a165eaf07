"""Numbers as integers modulo 2^64, so that sums of them are exact, and can be masked.

A value x is sent as the integer nearest to x / h, plus integer noise, times an integer weight, modulo 2^64:

    w (round(x / h) + z)  mod 2^64

Sums wrap around, and never round. Read as a number between -2^63 and 2^63, a sum is the plain one as long as that lies
between -bound and bound, where `SumRange` has chosen the bound so that chance alone passes it with a probability below
2^-100. What is decoded to more than that counts as failed.

    >>> h = 2.0**-10
    >>> messages = [weighted(encoded(np.array([x]), h), w) for x, w in ((0.5, 3), (-2.0, 1))]
    >>> decoded(messages[0] + messages[1], bound=10_000) * h
    array([-0.5])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import Reals
from sottovoce.errors import InputError

Words: TypeAlias = NDArray[np.uint64]
"""Integers modulo 2^64, as they travel."""

Integers: TypeAlias = NDArray[np.int64]

BITS = 64
LARGEST_INTEGER = 2**52
"""Of a value before noise: float64 has all integers up to it."""

OVERFLOW_BITS = 100
"""The noise of all sums of a run together passes their bound with a probability below 2 to the minus this."""


def encoded(values: Reals, step: float) -> Integers:
    """The integers nearest to `values / step`, computed in float64; refuses what would not be one of its integers."""
    multiples = np.rint(np.asarray(values, dtype=np.float64) / step)
    if not bool((np.abs(multiples) <= LARGEST_INTEGER).all()):  # nan too
        raise InputError(
            f"a value beyond {LARGEST_INTEGER * step:.3g}", f"integers of step {step:g} hold no larger values",
            "clip gradients, lower the step size, or declare a larger range",
        )  # fmt: skip
    return multiples.astype(np.int64)


def weighted(integers: Integers, weight: int) -> Words:
    """`weight * integers` modulo 2^64."""
    return integers.astype(np.uint64) * np.uint64(weight % 2**BITS)


def decoded(total: Words, bound: int) -> Integers | None:
    """A sum read as integers around zero; None, failed, where one of them is beyond the bound."""
    integers = total.astype(np.uint64, copy=False).view(np.int64)
    inside = (integers <= np.int64(bound)) & (integers >= np.int64(-bound))
    return integers if bool(inside.all()) else None


@dataclass(frozen=True)
class SumRange:
    """How large a sum can be: `count` sums of `weights` times values up to `largest` each, plus their noise.

    Noise is sub-Gaussian of standard deviation `sigma`: Gaussians, and discrete Gaussians (Canonne, Kairouz and
    Steinke 2020). Three sequences with an entry for each sender.
    """

    weights: Sequence[int]
    largest: Sequence[int]
    sigma: Sequence[float]
    count: int

    def bound(self) -> int:
        """What all sums stay within, but for a chance below 2^-100; refused where that is no signed 64-bit integer.

        `P[|noise| > a] <= 2 exp(-a^2 / (2 V))` for noise of variance V, once for each of the sums.
        """
        values = sum(abs(weight) * largest for weight, largest in zip(self.weights, self.largest, strict=True))
        deviation = math.hypot(*(weight * sigma for weight, sigma in zip(self.weights, self.sigma, strict=True)))
        factor = math.sqrt(2 * ((OVERFLOW_BITS + 1) * math.log(2) + math.log(max(1, self.count))))
        bound = values + math.ceil(deviation * factor * (1 + 2**-40)) + 1
        if bound >= 2 ** (BITS - 1):
            raise InputError(
                f"sums up to 2^{math.log2(bound):.1f}", f"sums must be integers below 2^{BITS - 1}",
                "declare a smaller range of values, or use weights with a smaller common denominator",
            )  # fmt: skip
        return bound
