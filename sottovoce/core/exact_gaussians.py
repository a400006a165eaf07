"""Exact Gaussians: random numbers that are known as far as needed, and further wherever that decides.

A stream of random bits defines infinitely many digits of U and V, and with them a pair of independent, exact Gaussians
(Box and Muller 1958):

    sqrt(-2 ln U) cos(2 pi V),    sqrt(-2 ln U) sin(2 pi V)

- `guess_` gives all numbers of a stream in float32, within `GUESS_ERROR` of the true ones; where 32 bits of U do not
  suffice for that (one pair in 13,000), not-a-number;
- `fine_` gives all in float64, within `FINE_ERROR`, or not-a-number (one pair in 2^41), and `fine_numbers` single ones;
- `decimal_number` gives single ones as decimals, with as many digits as are asked for.

The bounds are several times what a library with errors of four units in the last place needs, so that no processor
and no version of a library has to be trusted to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import RandomStream, Words
from sottovoce.errors import InputError

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
HalfWords = NDArray[np.uint32]

WordsAt = Callable[[Words, int], Words]
"""The words of some numbers' streams: for each number a counter, on one level; four words for each."""

BLOCK = 1 << 15
"""So many numbers are made at once: their arrays stay in the processor's cache. The second half are the sines."""

LOWEST, HIGHEST = np.uint32(1 << 16), np.uint32((1 << 32) - (1 << 18))
"""Between these, 32 bits of U give the radius within the error of a guess; such radii are at most 4.8."""

GUESS_ERROR = 2.0**-16
"""Absolute. At radius 4.8, with functions right to 4 units in the last place: 2^-17."""

FINE_ERROR = 2.0**-44
"""Absolute, for radii up to 12: 2^-50 of the radius with functions right to 4 units in the last place."""

UNDECIDED = np.uint64(1 << 54)
"""Where U starts with 32 equal bits and goes on with less than this, 96 bits are not enough for float64."""


# --- whole streams -------------------------------------------------------------------------------------------------


def guess_(stream: RandomStream, out: NDArray[np.float32]) -> None:
    """Fill an array with the numbers of a fresh stream, within `GUESS_ERROR`, or not-a-number where that takes more."""
    for part in _parts(out):
        u, v = _first_bits(stream, part.size)
        radius = u.astype(np.float32)
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        radius[u - LOWEST >= HIGHEST - LOWEST] = np.nan  # unsigned: what is below wraps around to the top
        angle = v.view(np.int32).astype(np.float32)
        angle *= np.float32(math.pi * 2.0**-31)
        _turn(radius, angle, part)


def fine_(stream: RandomStream, out: Floats) -> None:
    """Fill an array with the numbers of a fresh stream, within `FINE_ERROR`, or not-a-number where that takes more."""
    for block, part in enumerate(_parts(out)):
        u, v = _first_bits(stream, part.size)
        words = stream.consecutive(block * (BLOCK // 2), len(u), 1)
        radius, angle, decided = _polar(u, v, words[:, 0], words[:, 2])
        _turn(np.where(decided, radius, np.nan), angle, part)


def _parts(out: Reals) -> Iterator[Reals]:
    flat = out.reshape(-1)
    return (flat[start : start + BLOCK] for start in range(0, flat.size, BLOCK))


def _first_bits(stream: RandomStream, size: int) -> tuple[HalfWords, HalfWords]:
    """32 bits of U and of V for each pair of the next block, which has so many numbers."""
    half = -(-size // 2)
    u, v = stream.words(half + half % 2).astype("<u8", copy=False).view("<u4").reshape(2, -1)
    return u[:half], v[:half]


def _turn(radius: Reals, angle: Reals, out: Reals) -> None:
    """Fill a block with the cosines, then the sines, of its pairs; of an odd number the last sine is left out."""
    sines = out.size - len(radius)
    np.multiply(radius, np.cos(angle), out=out[: len(radius)])
    np.multiply(radius[:sines], np.sin(angle[:sines]), out=out[len(radius) :])


def _polar(u: HalfWords, v: HalfWords, more_u: Words, more_v: Words) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Radius and angle of pairs in float64 from 96 bits of U and V, and for which of them these are enough."""
    high = u >= np.uint32(1 << 31)
    u, more_u = (np.where(high, ~part, part) for part in (u, more_u))
    from_end = (u + more_u * 2.0**-64) * 2.0**-32
    logarithm = np.empty(len(u))
    with np.errstate(divide="ignore"):
        np.log(from_end, out=logarithm, where=~high)
    np.log1p(-from_end, out=logarithm, where=high)
    angle = (2.0 * math.pi) * ((v.view(np.int32) + more_v * 2.0**-64) * 2.0**-32)
    lost = (u == 0) & (more_u < UNDECIDED)
    return np.sqrt(-2.0 * logarithm), angle, ~lost


# --- single numbers ------------------------------------------------------------------------------------------------


class DecimalInterval(NamedTuple):
    """A number is within `error` of `value`."""

    value: Decimal
    error: Decimal


class PairPlaces(NamedTuple):
    """Where the bits of some numbers' pairs stand in their streams.

    `u` and `v` count half words from the beginning, `pair` pairs; `is_sine` says which number of the pair it is.
    """

    u: Places
    v: Places
    pair: Places
    is_sine: NDArray[np.bool_]


def _pair_places(places_K: Places, sizes_K: Places) -> PairPlaces:
    """Of the numbers at these places in streams that have so many numbers."""
    block = places_K // BLOCK
    half = -(-np.minimum(BLOCK, sizes_K - block * BLOCK) // 2)
    within = places_K - block * BLOCK
    is_sine = within >= half
    at = within - half * is_sine
    first = block * (BLOCK // 2)
    return PairPlaces(2 * first + at, 2 * first + half + half % 2 + at, first + at, is_sine)


def fine_numbers(words_at: WordsAt, places_K: Places, sizes_K: Places) -> tuple[Floats, Floats]:
    """Numbers at places of streams with so many numbers each, and their errors: infinite where that takes more bits."""
    places = _pair_places(places_K, sizes_K)
    more = words_at(places.pair.astype(np.uint64) + np.uint64(1), 1)
    radius, angle, decided = _polar(_half(words_at, places.u), _half(words_at, places.v), more[:, 0], more[:, 2])
    numbers = radius * np.where(places.is_sine, np.sin(angle), np.cos(angle))
    return numbers, np.where(decided, FINE_ERROR, np.inf)


def decimal_number(words_at: WordsAt, place: int, size: int, level: int) -> DecimalInterval:
    """One number of a stream of `size` numbers, with about 38 digits more for each level."""
    places = _pair_places(np.array([place]), np.array([size]))
    u, v = int(_half(words_at, places.u)[0]), int(_half(words_at, places.v).view(np.int32)[0])
    for deeper in range(1, level + 1):
        words = words_at(places.pair.astype(np.uint64) + np.uint64(1), deeper)[0].tolist()
        u, v = (u << 128) + (words[0] << 64) + words[1], (v << 128) + (words[2] << 64) + words[3]
    return _decimal_gaussian(u, v, 32 + 128 * level, bool(places.is_sine[0]))


def _half(words_at: WordsAt, at_K: Places) -> HalfWords:
    """The half words at these places, counted from the beginning of streams."""
    words_K4 = words_at((at_K // 8).astype(np.uint64) + np.uint64(1), 0)
    chosen = words_K4[np.arange(len(at_K)), at_K // 2 % 4]
    return (chosen >> (32 * (at_K % 2)).astype(np.uint64)).astype(np.uint32)


# --- decimals ------------------------------------------------------------------------------------------------------


def _decimal_gaussian(u: int, v: int, bits: int, is_sine: bool) -> DecimalInterval:
    """From the first bits of U and V; all that may follow is in the error. Infinite error where U is not known."""
    digits = bits * 3 // 10 + 15
    with localcontext() as context:
        context.prec = digits
        width = Decimal(2) ** -bits
        U, V = ((2 * known + 1) * width / 2 for known in (u, v))
        radius = (-2 * U.ln()).sqrt()
        angle = 2 * _pi(digits) * V
        value = radius * (_cosine(angle - _pi(digits) / 2, digits) if is_sine else _cosine(angle, digits))
        if u in (0, (1 << bits) - 1):
            return DecimalInterval(value, Decimal("Infinity"))
        # d radius = dU / (U radius); the slope is at most four times that half a width further, since u > 0
        error = 4 * width / (U * radius) + 8 * radius * width + Decimal(10) ** (8 - digits) * (1 + radius)
        return DecimalInterval(value, error)


@lru_cache(maxsize=8)
def _pi(digits: int) -> Decimal:
    """Machin: pi = 16 arctan(1/5) - 4 arctan(1/239), in integers."""
    one = 10 ** (digits + 10)

    def arctan_of_inverse(x: int) -> int:
        power = total = one // x
        n = 1
        while power:
            power //= -x * x
            n += 2
            total += power // n
        return total

    with localcontext() as context:
        context.prec = digits
        return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) / Decimal(one)


def _cosine(angle: Decimal, digits: int) -> Decimal:
    """Its power series, for angles up to 5 (terms up to 50, which digits to spare make up for)."""
    square, term, total, n = angle * angle, Decimal(1), Decimal(1), 0
    while abs(term) > Decimal(10) ** -digits:
        n += 2
        term *= -square / (n * (n - 1))
        total += term
    return total


# --- discrete Gaussians ----------------------------------------------------------------------------------------------


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
    """The next `count` integers of a stream, z with probability proportional to exp(-z^2 / (2 sigma^2)), exactly.

    For noise of several nodes that is added up: sums of discrete Gaussians are all but discrete Gaussians, while sums
    of rounded ones are not (Kairouz, Liu, Steinke 2021). By rejection, after Karney (2016), for a whole number sigma:

        z = +-(k sigma + j),   k = 0, 1, 2, ... with probability ~ exp(-k^2 / 2),   j uniform below sigma,
        kept with probability exp(-x (2 k + x) / 2), x = j / sigma;   -0 is left out

    which is exp(-(k + x)^2 / 2) in all. Probabilities are compared with uniform numbers in float64, within an error
    that is known. Where a comparison is within that error, more bits of the uniform number and more digits of the
    probability decide, as many as it takes. So no value is more or less likely than it should be, by however little.

    >>> from sottovoce.core.random_streams import NoiseKey
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
        keep[i] = _Uniform(stream, int(third[i]), 64).is_below(partial(_chance, int(k[i]), int(j[i]), sigma))
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


class _Uniform:
    """A uniform number of which the first bits are known; the stream has the others."""

    def __init__(self, stream: RandomStream, bits: int, known: int) -> None:
        self._stream, self._bits, self._known = stream, bits, known

    def read_more(self) -> None:
        self._bits, self._known = (self._bits << 64) + int(self._stream.words(1)[0]), self._known + 64

    def is_below(self, probability: Callable[[int], DecimalInterval]) -> bool:
        """Whether it is below a probability, which is given to so many digits: more bits until it shows."""
        while True:
            digits = self._known // 3 + 20
            value, error = probability(digits)
            with localcontext() as context:
                context.prec = digits + 20
                width = Decimal(2) ** -self._known
                if (self._bits + 1) * width <= value - error:
                    return True
                if self._bits * width >= value + error:
                    return False
            self.read_more()


def _exact_step(stream: RandomStream, bits: int) -> int:
    """k from the first 63 bits of a uniform number, where they are those of an edge; the next ones decide."""
    uniform, k = _Uniform(stream, bits, BITS), 0
    uniform.read_more()
    while not uniform.is_below(partial(_cumulative, k)):
        k += 1
    return k


def _chance(k: int, j: int, sigma: int, digits: int) -> DecimalInterval:
    """exp(-x (2 k + x) / 2), x = j / sigma."""
    with localcontext() as context:
        context.prec = digits + 10
        exponent = Decimal(-j * (2 * k * sigma + j)) / Decimal(2 * sigma * sigma)
        return DecimalInterval(exponent.exp(), Decimal(10) ** -digits)


@lru_cache(maxsize=64)
def _cumulative(k: int, digits: int) -> DecimalInterval:
    """`P[K <= k]`, K with probability ~ exp(-K^2 / 2)."""
    with localcontext() as context:
        context.prec = digits + 10
        terms, smallest = [Decimal(1)], Decimal(10) ** -(digits + 5)
        while terms[-1] > smallest:
            terms.append((Decimal(-len(terms) * len(terms)) / 2).exp())
        return DecimalInterval(sum(terms[: k + 1], Decimal(0)) / sum(terms, Decimal(0)), Decimal(10) ** -digits)
