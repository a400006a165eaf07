"""Compression: what a message loses on its way, and what it then weighs.

Each operator Q states whether it is linear, its omega (`E ||Q(x) - x||^2 <= omega^2 ||x||^2`, dp-csgp Assumption 4)
and the bits of a message of dimension d. The loop sends compressed *differences* with error feedback, which needs a
contraction, omega < 1.

    >>> parse_compression("rand:0.5").bits(1000)
    16000
    >>> parse_compression("gsgd:8").describe(100_000)
    'gsgd:8: omega^2 = 2.47 is no contraction in 100000 dimensions: rescaled by 1/(1 + omega^2), omega^2 = 0.712'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import Precision, Reals
from sottovoce.errors import InputError

Streams: TypeAlias = list[np.random.Generator]
"""One for each row: keyed by node, round and step, so that receivers have the same."""

ESCAPES = 4
"""At most three coordinates can reach the level that b - 1 bits do not hold; one more for rounding."""

SETTLED = 300
"""Rounds after which moments grow steadily."""

AS_PRINTED = ",as-printed"
"""What a spec ends with that asks for an operator without our rescaling."""


@runtime_checkable
class Compression(Protocol):
    """One operator. `apply` gets one row per node and one random stream per row."""

    @property
    def name(self) -> str:
        """The spec that names it, such as `rand:0.5`."""

    @property
    def linear(self) -> bool:
        """Whether it is a linear map that does not depend on what it compresses."""

    def omega(self, dimension: int) -> float:
        """Square root of the relative error it may make; below 1 for a contraction."""

    def bits(self, dimension: int) -> int:
        """Bits of one message."""

    def describe(self, dimension: int) -> str:
        """One line: what it does to messages of this dimension."""

    def apply(self, rows: Reals, streams: Streams) -> Reals:
        """Q of every row."""

    def payload(self, dimension: int, dtype: Precision) -> int:
        """Bytes of one message as `encode` writes it; values have the precision of the rows."""

    def encode(self, rows: Reals, streams: Streams) -> NDArray[np.uint8]:
        """What travels: the bytes of one message a row."""

    def decode(self, sent: NDArray[np.uint8], streams: Streams, dimension: int, dtype: Precision) -> Reals:
        """Q of every row, from what travelled: exactly what `apply` gives on fresh streams of the same keys."""


@dataclass(frozen=True)
class Identity:
    """Nothing is lost."""

    linear = True
    name = "identity"

    def describe(self, dimension: int) -> str:
        return "identity: nothing is lost"

    def omega(self, dimension: int) -> float:
        return 0.0

    def bits(self, dimension: int) -> int:
        return 32 * dimension

    def apply(self, rows: Reals, streams: Streams) -> Reals:
        return rows

    def payload(self, dimension: int, dtype: Precision) -> int:
        return dimension * dtype.itemsize

    def encode(self, rows: Reals, streams: Streams) -> NDArray[np.uint8]:
        return _as_bytes(rows)

    def decode(self, sent: NDArray[np.uint8], streams: Streams, dimension: int, dtype: Precision) -> Reals:
        return _as_values(sent, dtype)


@dataclass(frozen=True)
class _Sparse:
    """Keeps `floor(a d)` coordinates; omega^2 = 1 - a."""

    fraction: float
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(
                f"{self.kind}:{self.fraction}", "the fraction kept lies in (0, 1]", f"write {self.kind}:0.5"
            )

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.fraction:g}"

    def kept(self, dimension: int) -> int:
        """How many coordinates are sent."""
        kept = math.floor(self.fraction * dimension + 1e-9)
        if not kept:
            raise InputError(
                f"{self.name} keeps {self.fraction * dimension:.3g} of {dimension} coordinates",
                "at least one must be sent",
                "keep a larger fraction",
            )
        return kept

    def omega(self, dimension: int) -> float:
        return math.sqrt(1 - self.kept(dimension) / dimension)

    def describe(self, dimension: int) -> str:
        return f"{self.name}: sends {self.kept(dimension)} of {dimension}, omega^2 = {self.omega(dimension) ** 2:.3g}"


class RandomK(_Sparse):
    """rand_a: keeps coordinates drawn from a stream that the receiver shares, so their positions cost nothing.

    Linear once the positions are drawn, and they do not depend on data or noise.
    """

    kind = "rand"
    linear = True

    def bits(self, dimension: int) -> int:
        return 32 * self.kept(dimension)

    def mask(self, dimension: int, streams: Streams) -> NDArray[np.bool_]:
        """Which coordinates each node sends."""
        mask = np.zeros((len(streams), dimension), dtype=bool)
        for row, stream in zip(mask, streams, strict=True):
            row[stream.permutation(dimension)[: self.kept(dimension)]] = True
        return mask

    def growth(self, weights: Sequence[NDArray[np.float64]]) -> float:
        """By how much distances between models grow in a round, from second moments: below 1 they shrink.

        Column-stochastic weights follow each other in turn; models x sum to zero, of the copies h masks are
        independent: `h <- h + mask (x - h)`, `x <- x + (W - I) h`.
        """
        n, lost, rates = len(weights[0]), 1 - self.fraction, list[float]()
        apart, h = np.eye(n) - 1 / n, np.eye(n)
        x, both = apart, np.zeros((n, n))
        for step in range(SETTLED * len(weights)):
            lag, cross, move = x - both - both.T + h, x - both, weights[step % len(weights)] - np.eye(n)
            both, h = (
                x - lost * cross,
                x - lost * (cross + cross.T) + lost**2 * lag + lost * self.fraction * np.diag(np.diag(lag)),
            )
            mixed = both @ move.T
            x, both = apart @ (x + mixed + mixed.T + move @ h @ move.T) @ apart, apart @ (both + move @ h)
            size = float(np.trace(x) + np.trace(h))
            rates.append(math.sqrt(size))
            x, both, h = (x + x.T) / (2 * size), both / size, (h + h.T) / (2 * size)  # else rounding grows
        return math.prod(rates[-len(weights) :]) ** (1 / len(weights))

    def apply(self, rows: Reals, streams: Streams) -> Reals:
        return np.where(self.mask(rows.shape[1], streams), rows, rows.dtype.type(0))

    def payload(self, dimension: int, dtype: Precision) -> int:
        return self.kept(dimension) * dtype.itemsize

    def encode(self, rows: Reals, streams: Streams) -> NDArray[np.uint8]:
        return _as_bytes(rows[self.mask(rows.shape[1], streams)].reshape(len(rows), self.kept(rows.shape[1])))

    def decode(self, sent: NDArray[np.uint8], streams: Streams, dimension: int, dtype: Precision) -> Reals:
        rows = np.zeros((len(sent), dimension), dtype=dtype)
        rows[self.mask(dimension, streams)] = _as_values(sent, dtype).ravel()
        return rows


@dataclass(frozen=True)
class Quantized:
    """gsgd_b: random dithering of `|x| / ||x||` to 2^(b-1) levels, with its sign.

    Unbiased with `omega^2 = min(d / 4^(b-1), sqrt(d) / 2^(b-1))`, which exceeds 1 in large dimensions; there the
    operator is divided by `1 + omega^2`, a contraction with `omega^2 / (1 + omega^2)`. `as_printed` leaves it as the
    paper has it, and then error feedback may diverge. Bits as the paper counts them, b a coordinate; the norm's 32
    come on top on a real wire.
    """

    levels: int
    as_printed: bool = False
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= 24:
            raise InputError(f"gsgd:{self.levels}", "b is a whole number from 2 to 24", "write gsgd:8")

    @property
    def name(self) -> str:
        return f"gsgd:{self.levels}{AS_PRINTED if self.as_printed else ''}"

    def plain_omega_squared(self, dimension: int) -> float:
        """omega^2 as the paper gives it, before any rescaling."""
        steps = 2.0 ** (self.levels - 1)
        return min(dimension / steps**2, math.sqrt(dimension) / steps)

    def scale(self, dimension: int) -> float:
        """The factor that makes it a contraction; 1 where it is one already, or is to stay as printed."""
        plain = self.plain_omega_squared(dimension)
        return 1.0 if plain < 1 or self.as_printed else 1 / (1 + plain)

    def omega(self, dimension: int) -> float:
        plain = self.plain_omega_squared(dimension)
        return math.sqrt(plain if plain < 1 or self.as_printed else plain / (1 + plain))

    def bits(self, dimension: int) -> int:
        return self.levels * dimension

    def describe(self, dimension: int) -> str:
        plain = self.plain_omega_squared(dimension)
        if plain < 1:
            return f"{self.name}: omega^2 = {plain:.3g}"
        if self.as_printed:
            return f"{self.name}: omega^2 = {plain:.3g} is no contraction in {dimension} dimensions: models may diverge"
        return (
            f"{self.name}: omega^2 = {plain:.3g} is no contraction in {dimension} dimensions: "
            f"rescaled by 1/(1 + omega^2), omega^2 = {plain / (1 + plain):.3g}"
        )

    def apply(self, rows: Reals, streams: Streams) -> Reals:
        out = np.zeros_like(rows)
        for row, result, stream in zip(rows, out, streams, strict=True):
            norm, levels = self._dithered(row, stream)
            if norm > 0:
                result[:] = self._valued(norm, levels, np.signbit(row))
        return out

    def _dithered(self, row: Reals, stream: np.random.Generator) -> tuple[float, NDArray[np.float64]]:
        """The norm of a row, and each coordinate's level, from 0 to 2^(b-1)."""
        norm = float(np.linalg.norm(row))
        if not norm > 0:
            return 0.0, np.zeros(len(row))
        return norm, np.floor(2.0 ** (self.levels - 1) * np.abs(row) / norm + stream.random(len(row)))

    def _valued(self, norm: float, levels: Reals, negative: NDArray[np.bool_]) -> NDArray[np.float64]:
        value = levels * (self.scale(len(levels)) * norm / 2.0 ** (self.levels - 1))
        return np.asarray(np.copysign(value, np.where(negative, -1.0, 1.0)))

    def payload(self, dimension: int, dtype: Precision) -> int:
        return dtype.itemsize + 4 * ESCAPES + _packed_size(dimension, self.levels)

    def encode(self, rows: Reals, streams: Streams) -> NDArray[np.uint8]:
        """The norm, where levels are the highest one, and b bits a coordinate: its sign, and its level."""
        top, sent = 2 ** (self.levels - 1), np.empty((len(rows), self.payload(rows.shape[1], rows.dtype)), np.uint8)
        for row, out, stream in zip(rows, sent, streams, strict=True):
            norm, levels = self._dithered(row, stream)
            highest = np.full(ESCAPES, -1, dtype=np.int32)
            found = np.flatnonzero(levels == top)
            highest[: len(found)] = found
            codes = np.minimum(levels, top - 1).astype(np.uint32) + np.uint32(top) * np.signbit(row)
            head = (np.array([norm], dtype=rows.dtype), highest)
            out[:] = np.concatenate([*(part.view(np.uint8) for part in head), _packed(codes, self.levels)])
        return sent

    def decode(self, sent: NDArray[np.uint8], streams: Streams, dimension: int, dtype: Precision) -> Reals:
        top, rows = 2 ** (self.levels - 1), np.zeros((len(sent), dimension), dtype=dtype)
        begin = dtype.itemsize + 4 * ESCAPES
        for row, bits in zip(rows, sent, strict=True):
            norm = float(bits[: dtype.itemsize].copy().view(dtype)[0])
            highest = bits[dtype.itemsize : begin].copy().view(np.int32)
            codes = _unpacked(bits[begin:], dimension, self.levels)
            levels = (codes & np.uint32(top - 1)).astype(np.float64)
            levels[highest[highest >= 0]] = top
            if norm > 0:
                row[:] = self._valued(norm, levels, codes >= top)
        return rows


class TopK(_Sparse):
    """Keeps the largest coordinates and sends their positions along. Which they are depends on the data: not linear."""

    kind = "top"
    linear = False

    def bits(self, dimension: int) -> int:
        return self.kept(dimension) * (32 + self._width(dimension))

    def apply(self, rows: Reals, streams: Streams) -> Reals:
        out = np.zeros_like(rows)
        largest = self._largest(rows)
        np.put_along_axis(out, largest, np.take_along_axis(rows, largest, axis=1), axis=1)
        return out

    def _largest(self, rows: Reals) -> NDArray[np.intp]:
        k = self.kept(rows.shape[1])
        return np.argpartition(-np.abs(rows), k - 1, axis=1)[:, :k]

    def _width(self, dimension: int) -> int:
        """Bits of a position."""
        return max(1, math.ceil(math.log2(dimension)))

    def payload(self, dimension: int, dtype: Precision) -> int:
        kept = self.kept(dimension)
        return kept * dtype.itemsize + _packed_size(kept, self._width(dimension))

    def encode(self, rows: Reals, streams: Streams) -> NDArray[np.uint8]:
        largest, width = self._largest(rows), self._width(rows.shape[1])
        values, places = np.take_along_axis(rows, largest, axis=1), largest.astype(np.uint32)
        sent = np.empty((len(rows), self.payload(rows.shape[1], rows.dtype)), np.uint8)
        for out, value, place in zip(sent, values, places, strict=True):
            out[:] = np.concatenate([value.view(np.uint8), _packed(place, width)])
        return sent

    def decode(self, sent: NDArray[np.uint8], streams: Streams, dimension: int, dtype: Precision) -> Reals:
        kept, rows = self.kept(dimension), np.zeros((len(sent), dimension), dtype=dtype)
        begin = kept * dtype.itemsize
        for row, bits in zip(rows, sent, strict=True):
            row[_unpacked(bits[begin:], kept, self._width(dimension))] = bits[:begin].copy().view(dtype)
        return rows


def parse_compression(spec: str | Compression) -> Compression:
    """The operator that a spec names: `identity`, `rand:A`, `gsgd:B` (also `gsgd:B,as-printed`) or `top:A`."""
    if not isinstance(spec, str):
        return spec
    kind, _, value = spec.partition(":")
    try:
        if spec == "identity":
            return Identity()
        if kind == "rand":
            return RandomK(float(value))
        if kind == "gsgd":
            return Quantized(int(value.removesuffix(AS_PRINTED)), as_printed=value.endswith(AS_PRINTED))
        if kind == "top":
            return TopK(float(value))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    known = "identity, rand:A, gsgd:B, gsgd:B,as-printed, top:A"
    raise InputError(f"compression {spec!r}", f"known: {known}", "write rand:0.5, for example")


def _as_bytes(rows: Reals) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows).view(np.uint8)


def _as_values(sent: NDArray[np.uint8], dtype: Precision) -> Reals:
    return np.ascontiguousarray(sent).view(dtype)


def _packed_size(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _packed(numbers: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Numbers below 2^bits, so many bits each."""
    if bits == 8:
        return numbers.astype(np.uint8)
    return np.packbits((numbers[:, None] >> np.arange(bits, dtype=np.uint32)).astype(np.uint8) & 1)


def _unpacked(packed: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.uint32]:
    if bits == 8:
        return packed.astype(np.uint32)
    each = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    return (each.astype(np.uint32) << np.arange(bits, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
