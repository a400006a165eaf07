"""Sources of noise: unit Gaussians with a name, and how they are drawn.

Draws are named by (source, round, step), and no draw is ever used for two rounds. From a noise key, a restart, another
process or another transport gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import RandomSource, RandomStream, StreamName, Words

MANY = 2048
"""From so many float32 on, whole arrays of pairs are faster than one value after the other."""

BLOCK = 1 << 15
"""So many values are made at once: their arrays stay in the processor's cache."""

Fill: TypeAlias = (
    Callable[[RandomStream, NDArray[np.float32]], None] | Callable[[RandomStream, NDArray[np.float64]], None]
)
"""Fills an array from a stream, in place."""

ENDS = np.uint32(1 << 24)
"""How many of 2^32 equal parts of (0, 1) are divided further at either end."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Unit Gaussians of one step, in groups that are drawn together because the same party draws them.

    `holders[s, u]` says that node u knows source s: it drew it, or shares the secret it comes from.
    """

    kind: str
    groups: NDArray[np.int64]
    counts: NDArray[np.int64]
    holders: sparse.csr_array

    @property
    def size(self) -> int:
        """Number of sources."""
        return int(self.holders.shape[0])

    def name(self, group: int, round: int, step: int) -> StreamName:
        """The name of the stream from which a group is drawn."""
        return StreamName(self.kind, tuple(self.groups[group].tolist()), round, step)

    def stream(self, source: RandomSource, group: int, round: int, step: int) -> RandomStream:
        """The stream from which a group is drawn."""
        return source.stream(*self.name(group, round, step))

    def blocks(
        self, needed: NDArray[np.bool_] | None = None, limit: int | None = None
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Groups, and the sources in them, about `limit` at a time; groups in which none is needed are left out."""
        stops = np.cumsum(self.counts)
        starts = stops - self.counts
        if needed is None:
            wanted = np.arange(len(stops))
        else:
            wanted = np.flatnonzero(np.add.reduceat(needed, starts) if len(starts) else [])
        for groups in _batches(wanted, self.counts, limit or self.size):
            yield groups, np.concatenate([np.arange(starts[g], stops[g]) for g in groups])

    def draw(
        self,
        source: RandomSource,
        round: int,
        step: int,
        dimension: int,
        dtype: DTypeLike = np.float64,
        needed: NDArray[np.bool_] | None = None,
        at_once: int | None = None,
        fill_: Fill | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], Reals]]:
        """The draws of one step: (which sources, their rows), in blocks of about `at_once` values.

        Groups in which no source is needed are left out. `fill_` draws from a stream: `gaussians_` unless given.
        """
        for groups, sources in self.blocks(needed, None if at_once is None else max(1, at_once // dimension)):
            rows = np.empty((len(sources), dimension), dtype=dtype)
            filled = 0
            for g in groups:
                (fill_ or gaussians_)(self.stream(source, g, round, step), rows[filled : filled + self.counts[g]])
                filled += self.counts[g]
            yield sources, rows


def _batches(groups: NDArray[np.intp], counts: NDArray[np.int64], limit: int) -> Iterator[NDArray[np.intp]]:
    """Consecutive groups whose counts add up to about `limit`."""
    if len(groups):
        number = (np.cumsum(counts[groups]) - 1) // limit
        yield from np.split(groups, np.flatnonzero(np.diff(number)) + 1)


def gaussians_(stream: RandomStream, out: Reals) -> None:
    """Fill an array with N(0, 1): as the stream does it, or, for many float32 at once, by Box and Muller's pairs.

    Many are filled in blocks of one size, so that the numbers depend on the stream and on how many there are alone.
    """
    flat = out.reshape(-1)
    if out.dtype != np.float32 or out.size < MANY:
        stream.gaussians_(flat)
        return
    for start in range(0, out.size, BLOCK):
        pairs_(stream, flat[start : start + BLOCK])


def pairs_(stream: RandomStream, out: NDArray[np.float32]) -> None:
    """`sqrt(-2 ln u) (cos a, sin a)`: exact for uniform u and a, up to rounding (Box and Muller 1958).

    Rounded to float32, u would end the tails at 6.7 and leave holes around zero. So where its 32 bits are within 2^-8
    of either end it gets 53 more, and a logarithm in float64: radii reach 10.8 and are right to 1e-5 of themselves.
    """
    half = -(-out.size // 2)
    words = stream.words(half + half % 2).view(np.uint32).reshape(2, -1)
    bits, turns = words[0, :half], words[1, :half].view(np.int32)
    radius = bits.astype(np.float32)
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    ends = np.flatnonzero(bits + ENDS < 2 * ENDS)
    radius[ends] = np.log((bits[ends] + (1.0 - stream.uniforms(len(ends)))) * 2.0**-32)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    angle = turns.astype(np.float32)
    angle *= np.float32(math.pi * 2.0**-31)
    np.multiply(radius, np.cos(angle), out=out[:half])
    np.multiply(radius[: out.size - half], np.sin(angle[: out.size - half]), out=out[half:])


def polar_(stream: RandomStream, out: Reals) -> None:
    """`(x, y) sqrt(-2 ln s / s)` for points (x, y) of the unit disc, s = x^2 + y^2 (Marsaglia and Bray 1964).

    Points are two words each, one after the other; four of five lie in the disc. Coordinates have at least 53 bits, and
    s is at least 2^-126: tails reach 13, and there is no hole around zero. Both are 0 with a probability of 2^-128.
    """
    filled = 0
    while filled < out.size:
        left = out.size - filled
        points = _points(stream.words(2 * _tries(left)))
        squares = points.real**2 + points.imag**2
        values = _stretched(points, squares, (squares < 1.0).nonzero()[0][: -(-left // 2)])[:left]
        out[filled : filled + len(values)] = values
        filled += len(values)


def _tries(size: int) -> int:
    """How many points are enough for so many numbers, but for six standard deviations."""
    return size * 13 // 20 + 2 * math.isqrt(size) + 16


def _points(words: Words) -> NDArray[np.complex128]:
    """Points of the square from -1 to 1, as complex numbers, which numpy picks out of arrays quickly."""
    return np.asarray(words.view(np.int64) * 2.0**-63).view(np.complex128)


def _stretched(
    points: NDArray[np.complex128], squares: NDArray[np.float64], chosen: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Both Gaussians of the chosen points, one after the other."""
    squares = squares.take(chosen)
    factor = np.log(squares)
    factor /= squares
    factor *= -2.0
    np.sqrt(factor, out=factor)
    return (points.take(chosen) * factor).view(np.float64)
