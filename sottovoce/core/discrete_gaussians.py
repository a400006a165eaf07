"""Discrete Gaussians: integers z with probability proportional to exp(-z^2 / (2 sigma^2)), drawn exactly.

For noise of several nodes that is added up: sums of discrete Gaussians are all but discrete Gaussians, while sums of
rounded ones are not (Kairouz, Liu and Steinke 2021). By rejection, after Karney (2016), for a whole number sigma:

    z = +-(k sigma + j),   k = 0, 1, 2, ... with probability ~ exp(-k^2 / 2),   j uniform below sigma,
    kept with probability exp(-x (2 k + x) / 2), x = j / sigma;   -0 is left out

which is exp(-(k + x)^2 / 2) in all. Probabilities are compared with uniform numbers in float64, within an error that is
known. Where a comparison is within that error, more bits of the uniform number and more digits of the probability
decide, as many as it takes. So no value is more or less likely than it should be, by however little.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.random_streams import RandomStream, Words
from sottovoce.errors import InputError

Integers = NDArray[np.int64]

LARGEST_SIGMA = 2**48
"""Then j and sigma are numbers of float64, and so are draws, up to 2^53."""

COMPARISON_ERROR = 2.0**-44
"""More than float64 loses of exp(-x (2 k + x) / 2): 2^-46 with functions right to 4 units in the last place."""

TRIALS = 1 << 15
"""So many are made at once: their arrays stay in the processor's cache."""

USED = 1.45
"""Trials for each number that is kept, and some to spare: 1.40 on average."""

BITS = 63
"""Of the uniform number that k comes from; one more bit of its word is the sign."""


def draw_discrete_gaussians(stream: RandomStream, count: int, sigma: int) -> Integers:
    """The next `count` integers of a stream.

    >>> from sottovoce.core.noise_key import NoiseKey
    >>> draw_discrete_gaussians(NoiseKey.of_seed(0).stream("node", [0], 0), 5, sigma=1000)
    array([...])
    """
    if isinstance(sigma, bool) or not isinstance(sigma, int) or not 1 <= sigma <= LARGEST_SIGMA:
        raise InputError(
            f"a discrete Gaussian of sigma {sigma!r}",
            f"it must be a whole number from 1 to {LARGEST_SIGMA}",
            "correct it",
        )
    out = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        kept = _kept(stream, min(TRIALS, int((count - done) * USED) + 16), sigma)[: count - done]
        out[done : done + len(kept)] = kept
        done += len(kept)
    return out


def _kept(stream: RandomStream, trials: int, sigma: int) -> Integers:
    """Of so many trials, in their order, those that are kept."""
    first, second, third = (stream.words(trials) for _ in range(3))
    k = _steps(stream, first >> np.uint64(1))
    j, inside = _below(second, sigma)
    x = j / float(sigma)
    chance = np.exp(-x * (k + x / 2))
    uniform = (third >> np.uint64(11)) * 2.0**-53
    keep = uniform < chance
    for i in np.flatnonzero(np.abs(uniform - chance) <= COMPARISON_ERROR).tolist():
        keep[i] = _is_below(stream, int(third[i]), partial(_chance, int(k[i]), int(j[i]), sigma))
    value = k * sigma + j
    negative = (first & np.uint64(1)).astype(bool)
    keep &= inside & ~(negative & (value == 0))
    return np.where(negative, -value, value)[keep]


def _below(words: Words, sigma: int) -> tuple[Integers, NDArray[np.bool_]]:
    """As many bits as numbers below sigma have, and which of them are below sigma."""
    j = (words >> np.uint64(64 - max(1, (sigma - 1).bit_length()))).view(np.int64)
    return j, j < sigma


def _steps(stream: RandomStream, uniform: Words) -> Integers:
    """k from 63 bits of a uniform number each, and from more where these do not decide."""
    edges = _edges()
    k = np.searchsorted(edges, uniform, side="left")
    at_edge = np.flatnonzero(edges[np.minimum(k, len(edges) - 1)] == uniform)
    for i in at_edge.tolist():
        k[i] = _exact_step(stream, int(uniform[i]))
    return k.astype(np.int64, copy=False)


@lru_cache(maxsize=1)
def _edges() -> Words:
    """The first 63 bits of `P[K <= k]`, as long as they differ from one to the next, and of 1."""
    found: list[int] = []
    while not found or found[-1] < 2**BITS - 1:
        cumulative, _ = _cumulative(len(found), 60)
        found.append(int((cumulative * 2**BITS).to_integral_value(ROUND_FLOOR)))
    return np.array(found, dtype=np.uint64)


# --- more digits ---------------------------------------------------------------------------------------------------


class Probability(NamedTuple):
    """A probability is within `error` of `value`."""

    value: Decimal
    error: Decimal


def _is_below(stream: RandomStream, bits: int, probability: Callable[[int], Probability]) -> bool:
    """Whether a uniform number, of which 64 bits are known, is below a probability: more bits until it shows."""
    digits, known = 40, 64
    while True:
        value, error = probability(digits)
        with localcontext() as context:
            context.prec = digits + 20
            width = Decimal(2) ** -known
            low = bits * width
            if low + width <= value - error:
                return True
            if low >= value + error:
                return False
        bits, known = (bits << 64) + int(stream.words(1)[0]), known + 64
        digits += 20


def _exact_step(stream: RandomStream, bits: int) -> int:
    """k from the first 63 bits of a uniform number, where they are those of an edge; the next ones decide."""
    bits, known, k = (bits << 64) + int(stream.words(1)[0]), BITS + 64, 0
    while True:
        digits = known // 3 + 20
        value, error = _cumulative(k, digits)
        with localcontext() as context:
            context.prec = digits + 20
            width = Decimal(2) ** -known
            if (bits + 1) * width <= value - error:
                return k
            if bits * width >= value + error:
                k += 1
                continue
        bits, known = (bits << 64) + int(stream.words(1)[0]), known + 64


def _chance(k: int, j: int, sigma: int, digits: int) -> Probability:
    """exp(-x (2 k + x) / 2), x = j / sigma."""
    with localcontext() as context:
        context.prec = digits + 10
        exponent = Decimal(-j * (2 * k * sigma + j)) / Decimal(2 * sigma * sigma)
        return Probability(exponent.exp(), Decimal(10) ** -digits)


@lru_cache(maxsize=64)
def _cumulative(k: int, digits: int) -> Probability:
    """`P[K <= k]`, K with probability ~ exp(-K^2 / 2)."""
    with localcontext() as context:
        context.prec = digits + 10
        terms, smallest = [Decimal(1)], Decimal(10) ** -(digits + 5)
        while terms[-1] > smallest:
            terms.append((Decimal(-len(terms) * len(terms)) / 2).exp())
        return Probability(sum(terms[: k + 1], Decimal(0)) / sum(terms, Decimal(0)), Decimal(10) ** -digits)
