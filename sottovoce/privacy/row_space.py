"""The row space of products of rational matrices: its rank, and how much of each coordinate lies in it, from above.

The rows come in blocks: given rows, or what was new in the block before, times matrices. Of the second kind, all blocks
together span a block Krylov space.

*Rank*: by elimination modulo random primes. A rank modulo a prime is never above the true one, and below it only if the
prime divides a certain minor.

*Entries of the projector*: blocks are made orthonormal in fixed point. Whatever coefficients H and X a machine arrives
at, the rows

    Q = X (V - H Q_before)

with exact arithmetic lie in the space, where V are rows of the block. So one number bounds how far the stored rows are
from rows of the space, block after block; and with F for what `Q Q^T` differs from the identity, `|F| < 1` proves that
there are as many directions as the primes found. Then, c being the column u of Q,

    P_uu <= |c|^2 / (1 - |F|).

Directions of size 1e-100 count fully: digits are added until the bounds are near.

Shapes: K rows of a block, N columns, R rows of the basis.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Big = NDArray[np.object_]

PRIME_BITS = 50
"""Products of residues are reduced by their quotient in float64, which is right up to one for primes of this size."""

PRIMES = 4
"""A minor of fewer than 2^30 binary digits, which is far more than any here has, has at most 2^24.5 such factors, of
more than 2^42 primes: that all of so many divide it has a chance below 2^-70."""

ELIMINATIONS, PRODUCTS, FACTORS = 5e9, 5e8, 1e5
"""Multiplications modulo a prime, and of long integers, and matrices in all products, up to which entries are computed.
"""

FEWEST_BITS, MOST_BITS = 256, 1 << 14
"""Binary digits after the point, at first and at most."""

NEAR = 62
"""Binary digits to which computed rows are known to lie in the space, at least."""

AT_ONCE = 1 << 22
"""Entries of products that are alive at once."""

UNIT = float(np.finfo(float).eps) / 2


class TooLarge(Exception):
    """The space is beyond the limits; nothing is known of it."""


SIMPLE, NEXT, SMALL = 10**6, 1e-15, 1e-6
"""A float next to a fraction with a denominator up to the first stands for it: by chance that is one float in 2,000.
The distance may be the second, which is what is left of one when other weights are taken off, or for floats below the
third four units in their last place."""


def meant(value: float) -> Fraction:
    """The simple fraction next to a float, or else the float itself."""
    exact = Fraction(value)
    simple = exact.limit_denominator(SIMPLE)
    return simple if abs(simple - exact) <= (NEXT if abs(value) >= SMALL else 4 * math.ulp(value)) else exact


@dataclass(frozen=True, eq=False)
class Exact:
    """A sparse matrix of fractions, by columns: the stored entries are places in `values`, counted from one."""

    places: sparse.csc_array
    values: tuple[Fraction, ...]

    @classmethod
    def of(cls, pattern: sparse.csr_array, fractions: Iterable[Fraction]) -> Exact:
        """With these entries, in the order in which they are stored."""
        known: dict[Fraction, int] = {}
        places = np.array([known.setdefault(value, len(known) + 1) for value in fractions], dtype=np.int64)
        by_row = sparse.csr_array((places, pattern.indices, pattern.indptr), shape=pattern.shape)
        return cls(by_row.tocsc(), tuple(known))

    @classmethod
    def near(cls, matrix: sparse.csr_array, fraction: Callable[[float], Fraction]) -> Exact:
        """With the fraction that each entry stands for."""
        values, which = np.unique(matrix.data, return_inverse=True)
        each = [fraction(value) for value in values.tolist()]
        return cls.of(matrix, [each[number] for number in which.tolist()])

    def entries(self, number: Callable[[Fraction], Any], dtype: type) -> NDArray[Any]:
        """Each as this number."""
        return np.array([number(value) for value in self.values], dtype=dtype)[self.places.data - 1]

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether it equals its transpose."""
        return self.places.shape[0] == self.places.shape[1] and (self.places != self.places.T).nnz == 0

    @cached_property
    def norm(self) -> float:
        """A bound on the spectral norm, from the largest sums of absolute values in rows and in columns."""
        sizes = sparse.csc_array((self.entries(abs, np.float64), *_structure(self.places)), shape=self.places.shape)
        across, down = (float(sizes.sum(axis=axis).max(initial=0.0)) for axis in (0, 1))
        return math.sqrt(across * down) * (1 + (sizes.nnz + 4) * UNIT)

    @cached_property
    def most_terms(self) -> int:
        """The largest number of entries of a row or a column."""
        return int(max(np.bincount(one).max(initial=0) for one in self.places.tocoo().coords))


def _structure(matrix: sparse.csc_array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return matrix.indices, matrix.indptr


class Block(NamedTuple):
    """Rows: those of a matrix, or else those that were new in the block before, times matrices."""

    start: Exact | None
    factors: tuple[Exact, ...]


def projector_bounds(blocks: Sequence[Block], columns: int) -> Floats:
    """How much of each coordinate lies, at most, in the space that the rows span; refused where that takes long."""
    counts = block_ranks(blocks, columns)
    rank = sum(counts)
    if rank in (0, columns):
        return np.full(columns, float(rank > 0))
    kept = [(block, count) for block, count in zip(blocks, counts, strict=True) if count]
    seen = 3 * max(counts) if all(_is_short(block) for block, _ in kept[1:]) else rank
    if 2.0 * rank * columns * seen > PRODUCTS:
        raise TooLarge
    bits = FEWEST_BITS
    while bits <= MOST_BITS:
        found = _bounds(kept, bits)
        if found is not None:
            return found
        bits *= 2
    raise TooLarge


def _is_short(block: Block) -> bool:
    """Whether a block is orthogonal to all but the two before it: symmetric matrices have a three-term recurrence."""
    return block.start is None and len(block.factors) == 1 and block.factors[0].is_symmetric


class _Arithmetic(Protocol):
    """What numbers stand for fractions, and how they are multiplied."""

    dtype: type

    def number(self, value: Fraction) -> int: ...

    def multiplied(self, rows: NDArray[Any], entries: NDArray[Any]) -> NDArray[Any]: ...

    def reduced(self, sums: NDArray[Any]) -> NDArray[Any]: ...


def dense(arithmetic: _Arithmetic, matrix: Exact) -> NDArray[Any]:
    """All its numbers."""
    found = np.zeros(matrix.places.shape, dtype=arithmetic.dtype)
    found[matrix.places.tocoo().coords] = matrix.entries(arithmetic.number, arithmetic.dtype)
    return found


def times(arithmetic: _Arithmetic, rows: NDArray[Any], matrix: Exact) -> NDArray[Any]:
    """`rows @ matrix`, some rows after others."""
    if matrix.most_terms >> 63 - PRIME_BITS:
        raise TooLarge
    found = np.zeros((len(rows), matrix.places.shape[1]), dtype=arithmetic.dtype)
    from_row, at = _structure(matrix.places)
    filled, entries = np.flatnonzero(np.diff(at)), matrix.entries(arithmetic.number, arithmetic.dtype)
    size = max(1, AT_ONCE // max(1, len(entries)))
    for begin in range(0, len(rows) if filled.size else 0, size):
        terms = arithmetic.multiplied(rows[begin : begin + size][:, from_row], entries)
        found[begin : begin + size, filled] = arithmetic.reduced(np.add.reduceat(terms, at[filled], axis=1))
    return found


# --- rank ----------------------------------------------------------------------------------------------------------


def block_ranks(blocks: Sequence[Block], columns: int) -> list[int]:
    """By how much each block raises the rank of all before it."""
    rows = terms = factors = last = 0
    for block in blocks:
        if block.start is not None:
            last = block.start.places.shape[0]
            terms += last * sum(one.places.nnz for one in block.factors)
            factors += len(block.factors)
        rows += last
    if min(columns, rows) ** 2 * columns / 2 + terms > ELIMINATIONS or factors > FACTORS:
        raise TooLarge
    best = np.zeros(len(blocks), dtype=np.int64)
    for _ in range(PRIMES):
        best = np.maximum(best, _ranks_modulo(blocks, columns, Modulo(random_prime())))
        if best[-1] == columns:
            break
    return np.diff(best, prepend=0).tolist()


def _ranks_modulo(blocks: Sequence[Block], columns: int, modulo: Modulo) -> Integers:
    """Ranks of the first block, the first two, and so on; no block is looked at once the rank is full."""
    echelon, found = Echelon(modulo, columns), np.full(len(blocks), columns, dtype=np.int64)
    rows = np.zeros((0, columns), dtype=np.int64)
    for number, block in enumerate(blocks):
        rows = rows if block.start is None else dense(modulo, block.start)
        for factor in block.factors if len(rows) else ():
            rows = times(modulo, rows, factor)
        rows = rows[echelon.add(rows)]
        found[number] = echelon.rank
        if echelon.rank == columns:
            break
    return found


class Modulo:
    """Residues modulo a prime."""

    dtype: type = np.int64

    def __init__(self, prime: int) -> None:
        self.prime = prime

    def number(self, value: Fraction) -> int:
        return value.numerator * pow(value.denominator, -1, self.prime) % self.prime

    def multiplied(self, rows: Integers, entries: Integers) -> Integers:
        """The rounded quotient is right up to one, and what is lost above 64 bits cancels."""
        quotient = np.rint(rows.astype(np.float64) * entries.astype(np.float64) * (1.0 / self.prime)).astype(np.int64)
        left = rows * entries - quotient * self.prime
        left += (left >> 63) & self.prime
        return left

    def reduced(self, sums: Integers) -> Integers:
        return sums % self.prime


class Echelon:
    """Rows in echelon form, with pivots among the first columns; `bare` are columns after these in which a combination
    of rows has an entry that has none in the first ones. More than `most` multiplications are refused."""

    def __init__(self, modulo: Modulo, pivots: int, others: int = 0, *, most: float = math.inf) -> None:
        self._left = most
        self._modulo, self._width = modulo, pivots
        self._rows, self._pivots = list[Integers](), list[int]()
        self.bare = np.zeros(others, dtype=bool)

    @property
    def rank(self) -> int:
        return len(self._pivots)

    def add(self, rows: Integers) -> list[int]:
        """Which rows are new: no combinations of those before."""
        rows, new = rows.copy(), list[int]()
        for row, pivot in zip(self._rows, self._pivots, strict=True):
            self._reduce_(rows, row, pivot)
        for number in range(len(rows)):
            there = np.flatnonzero(rows[number, : self._width])
            if not there.size:
                self.bare |= rows[number, self._width :] != 0
                continue
            pivot = int(there[0])
            inverse = np.full(1, pow(int(rows[number, pivot]), -1, self._modulo.prime))
            row = self._modulo.multiplied(rows[number], inverse)
            self._reduce_(rows[number + 1 :], row, pivot)
            self._rows.append(row)
            self._pivots.append(pivot)
            new.append(number)
        return new

    def _reduce_(self, rows: Integers, row: Integers, pivot: int) -> None:
        """Take the row off others, so that nothing is left of them at the pivot."""
        there = np.flatnonzero(rows[:, pivot])
        self._left -= there.size * len(row)
        if self._left < 0:
            raise TooLarge
        if there.size:
            left = rows[there] - self._modulo.multiplied(rows[there, pivot][:, None], row[None])
            left += (left >> 63) & self._modulo.prime
            rows[there] = left


def random_prime() -> int:
    """A prime of the full length, by the test of Miller and Rabin, which for numbers below 3.3e24 is a proof."""
    while True:
        candidate = (1 << PRIME_BITS - 1) | secrets.randbits(PRIME_BITS - 1) | 1
        twos = (candidate - 1 & 1 - candidate).bit_length() - 1
        if all(_passes(candidate, base, twos) for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)):
            return candidate


def _passes(number: int, base: int, twos: int) -> bool:
    power = pow(base, number >> twos, number)
    return power == 1 or any(pow(power, 1 << times, number) == number - 1 for times in range(twos))


# --- an orthonormal basis in fixed point ---------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Rows in fixed point, and a bound on how far they are from rows of the space, as a whole; both in units."""

    values: Big
    error: int


class _Fixed:
    """Integers in units of `2^-bits`; products are off by at most one unit."""

    dtype: type = object

    def __init__(self, bits: int) -> None:
        self.bits, self.one = bits, 1 << bits

    def number(self, value: Fraction) -> int:
        return (2 * value.numerator * self.one // value.denominator + 1) >> 1

    def multiplied(self, rows: Big, entries: Big) -> Big:
        return np.asarray(rows * entries)

    def reduced(self, sums: Big) -> Big:
        return np.asarray(sums >> self.bits)

    def product(self, one: Big, other: Big) -> Big:
        """`one @ other`."""
        return np.asarray(np.dot(one, other) >> self.bits, dtype=object)

    def scaled(self, size: int, factor: int) -> int:
        """The product of two sizes, rounded up."""
        return (size * factor >> self.bits) + 1

    def moved(self, rows: _Rows, matrix: Exact) -> _Rows:
        """Times a matrix, whose entries are off by half a unit."""
        found = times(self, rows.values, matrix)
        rounding = self.scaled(norm(rows.values), matrix.most_terms) + math.isqrt(found.size) + 1
        return _Rows(found, self.scaled(rows.error, math.ceil(Fraction(matrix.norm) * self.one)) + rounding)


def norm(values: Big) -> int:
    """The root of the sum of squares, rounded up."""
    return math.isqrt(int((values * values).sum())) + 1


def _bounds(blocks: Sequence[tuple[Block, int]], bits: int) -> Floats | None:
    """Bounds on entries of the projector with so many digits; None where more are needed."""
    fixed, basis = _Fixed(bits), list[_Rows]()
    is_short = all(_is_short(block) for block, _ in blocks[1:])
    for block, count in blocks:
        found = _orthonormal(fixed, _block(fixed, block, basis), count, basis[-2:] if is_short else basis)
        if found is None:
            return None
        basis.append(found)
    error = math.isqrt(sum(rows.error**2 for rows in basis)) + 1
    if error >> bits - NEAR:
        return None
    Q_RN = np.concatenate([rows.values / fixed.one for rows in basis]).astype(np.float64)
    R, N = Q_RN.shape
    far = math.ldexp(1.0, -NEAR) + 2 * UNIT * math.sqrt(R)
    terms, defect = (float(np.linalg.norm(one)) for one in (abs(Q_RN) @ abs(Q_RN).T, Q_RN @ Q_RN.T - np.eye(R)))
    f = (defect + (N + 2) * UNIT * terms) * (1 + (R * R + 8) * UNIT)
    f += 2 * far * math.sqrt(1 + f) + far**2
    if not f < 1e-6:
        return None
    lengths = np.linalg.norm(Q_RN, axis=0) * (1 + (R + 8) * UNIT) + math.ldexp(1.0, -NEAR)
    return np.minimum(lengths**2 / (1 - f) * (1 + 8 * UNIT), 1.0)


def _block(fixed: _Fixed, block: Block, basis: Sequence[_Rows]) -> _Rows:
    """The rows of a block, for those that were new before their orthonormal form."""
    rows = (
        basis[-1] if block.start is None else _Rows(dense(fixed, block.start), math.isqrt(block.start.places.nnz) + 1)
    )
    for factor in block.factors:
        rows = fixed.moved(rows, factor)
    return rows


def _orthonormal(fixed: _Fixed, rows: _Rows, count: int, before: Sequence[_Rows]) -> _Rows | None:
    """So many orthonormal rows: those of a block, less what lies in blocks before, whitened."""
    V_KN, error = rows
    for Q_LN, near in before:
        H_KL = fixed.product(V_KN, Q_LN.T)
        V_KN = V_KN - fixed.product(H_KL, Q_LN)
        error += fixed.scaled(norm(H_KL), near) + math.isqrt(V_KN.size) + 1
    picked, X_KK = _whitening(fixed, fixed.product(V_KN, V_KN.T), count)
    if X_KK is None:
        return None
    Q_KN = fixed.product(X_KK, V_KN[picked])
    return _Rows(Q_KN, fixed.scaled(norm(X_KK), error) + math.isqrt(Q_KN.size) + 1)


def _whitening(fixed: _Fixed, G_KK: Big, count: int) -> tuple[list[int], Big | None]:
    """Rows that are picked, the largest of what is left first, and X with `X G X^T = 1` for these; None for X where
    there are not enough digits."""
    rest, picked, columns = G_KK, list[int](), []
    for _ in range(count):
        sizes = rest.diagonal().tolist()
        pivot = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[pivot] < 1 << fixed.bits // 2:
            return picked, None
        column = (rest[:, pivot] << fixed.bits) // math.isqrt(sizes[pivot] << fixed.bits)
        rest = rest - (np.outer(column, column) >> fixed.bits)
        picked.append(pivot)
        columns.append(column)
    L_KK = np.array(columns, dtype=object).T[picked]
    X_KK = np.zeros((count, count), dtype=object)
    for i in range(count):
        X_KK[i] = -np.dot(L_KK[i, :i], X_KK[:i]) if i else 0
        X_KK[i, i] += fixed.one**2
        X_KK[i] //= L_KK[i, i]
    return picked, X_KK
