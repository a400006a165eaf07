"""The row space of products of rational matrices: its rank, and how much of each coordinate lies in it, enclosed.

The rows come in blocks. A block is a product of given matrices, or what was new in the block before it, times a matrix:
then all blocks together span a block Krylov space.

*Rank*: by elimination modulo random primes. A rank modulo a prime is never above the true one, and below it only if the
prime divides a certain minor, of which the size is known: so many primes are drawn that this has a chance below
`FAILURE`.

*Entries of the projector*: blocks are made orthonormal in fixed point. Whatever coefficients H and X a machine arrives
at, the rows

    Q = X (V - H Q_before)

with exact arithmetic lie in the space, where V are rows of the block. So one number bounds how far the stored rows are
from rows of the space, block after block; and with F for what `Q Q^T` differs from the identity, which is computed
without rounding, `|F| < 1` proves that there are as many directions as the primes found. Then

    |c|^2 / (1 + f) <= P_uu <= |c|^2 / (1 - f),     c the column u of Q.

Directions of size 1e-100 count fully: the number of digits follows from the bound.

Shapes: K rows of a block, N columns, R rows of the basis, E entries of a sparse matrix.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Big = NDArray[np.object_]

PRIME_BITS = 50
"""Products of residues are reduced by their quotient in float64, which is right up to one for primes of this size."""

FAILURE = 2.0**-64
"""The largest probability that a rank is larger than what the primes show."""

ELIMINATIONS, PRODUCTS, FACTORS = 5e9, 5e8, 1e5
"""Multiplications modulo a prime, and of long integers, and matrices in all products, up to which entries are computed.
"""

DIGITS = 60
"""Binary digits of the stored basis: three times as many as those whose products float64 adds up exactly."""

LIMB = DIGITS // 3
WIDEST = 1 << 53 - 2 * LIMB
"""Columns up to which sums of products of two limbs are exact in float64."""

MOST_BITS = 1 << 14
NEAR = 2.0**-62
"""How close the rows that are computed are to the space, at least."""

UNIT = float(np.finfo(float).eps) / 2


class TooLarge(Exception):
    """The space is beyond the limits; nothing is known of it."""


class _MoreBits(Exception):
    """Fixed point with so few digits does not tell enough; `missing` is how many more are wanted."""

    def __init__(self, missing: int) -> None:
        self.missing = missing


@dataclass(frozen=True, eq=False)
class Exact:
    """A sparse matrix of fractions, by columns: entry e is `values[codes[e]]` in row `rows[e]`."""

    shape: tuple[int, int]
    indptr: NDArray[np.intp]
    rows: NDArray[np.intp]
    codes: NDArray[np.intp]
    values: tuple[Fraction, ...]

    @cached_property
    def _sizes(self) -> Floats:
        return np.array([abs(float(value)) for value in self.values])[self.codes]

    @cached_property
    def column_sum(self) -> float:
        """The largest sum of absolute values in a column, rounded up."""
        column = np.repeat(np.arange(self.shape[1]), np.diff(self.indptr))
        sums = np.bincount(column, self._sizes, minlength=1)
        return float(sums.max(initial=0.0)) * (1 + len(self.codes) * UNIT)

    @cached_property
    def norm(self) -> float:
        """A bound on the spectral norm: the root of the largest sums of absolute values in rows and in columns."""
        in_row = float(np.bincount(self.rows, self._sizes, minlength=1).max(initial=0.0)) * (1 + len(self.codes) * UNIT)
        return math.sqrt(self.column_sum * in_row) * (1 + 4 * UNIT)

    @cached_property
    def most_terms(self) -> int:
        """The largest number of entries of a column."""
        return int(np.diff(self.indptr).max(initial=0))

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether it equals its transpose."""
        column = np.repeat(np.arange(self.shape[1]), np.diff(self.indptr))
        there = dict(zip(zip(self.rows.tolist(), column.tolist(), strict=True), self.codes.tolist(), strict=True))
        values = self.values
        return self.shape[0] == self.shape[1] and all(
            (j, i) in there and values[there[j, i]] == values[code] for (i, j), code in there.items()
        )

    @cached_property
    def bits(self) -> float:
        """Binary digits of the entries of a row when it is multiplied by their common denominator, at most."""
        common = math.lcm(*(value.denominator for value in self.values)) if self.values else 1
        return math.log2(common) + max(0.0, math.log2(max(self.column_sum, 1e-300)))


class Product(NamedTuple):
    """A block of rows: some rows, times matrices one after the other."""

    start: Exact
    factors: tuple[Exact, ...]


class Power(NamedTuple):
    """A block of rows: those that were new in the block before, times a matrix."""

    step: Exact


Block = Product | Power


class Entries(NamedTuple):
    """The rank of a space, and an upper and a lower bound on the diagonal of its projector."""

    rank: int
    above: Floats
    below: Floats


def projector_entries(blocks: Sequence[Block], columns: int) -> Entries:
    """How much of each coordinate lies in the space that the rows of all blocks span; refused where that takes long."""
    counts = block_ranks(blocks, columns)
    rank = sum(counts)
    if rank == columns:
        return Entries(rank, np.ones(columns), np.ones(columns))
    if rank == 0:
        return Entries(0, np.zeros(columns), np.zeros(columns))
    blocks = [block for block, count in zip(blocks, counts, strict=True) if count]
    counts = [count for count in counts if count]
    if columns > WIDEST or _products(blocks, counts, columns) > PRODUCTS:
        raise TooLarge
    bits = 2 * DIGITS + 6 * len(blocks)
    while bits <= MOST_BITS:
        try:
            return _enclosed(_orthonormal(blocks, counts, bits))
        except _MoreBits as short:
            bits += short.missing + 16
    raise TooLarge


# --- rank ----------------------------------------------------------------------------------------------------------


def block_ranks(blocks: Sequence[Block], columns: int) -> list[int]:
    """By how much each block raises the rank of all before it."""
    most = min(columns, _rows(blocks))
    products = [block for block in blocks if isinstance(block, Product)]
    terms = sum(block.start.shape[0] * sum(len(one.codes) for one in block.factors) for block in products)
    if most**2 * columns / 2 + terms > ELIMINATIONS or sum(len(block.factors) for block in products) > FACTORS:
        raise TooLarge
    best, chance = _ranks_modulo(blocks, columns, _random_prime()), 1.0
    while int(best[-1]) < columns:
        chance *= _chance_of_failure(blocks, int(best[-1]))
        if chance < FAILURE:
            break
        best = np.maximum(best, _ranks_modulo(blocks, columns, _random_prime()))
    return [int(more) for more in np.diff(best, prepend=0)]


def _rows(blocks: Sequence[Block]) -> int:
    found = last = 0
    for block in blocks:
        last = last if isinstance(block, Power) else block.start.shape[0]
        found += last
    return found


def _chance_of_failure(blocks: Sequence[Block], rank: int) -> float:
    """How likely a random prime divides a minor that tells the rank: it has a number of digits, and so of factors.

    Rows are multiplied by common denominators; there are more than 2^48 / 50 primes to draw from.
    """
    heights, last = [], 0.0
    for block in blocks:
        if isinstance(block, Power):
            last += block.step.bits
        else:
            last = block.start.bits + sum(factor.bits for factor in block.factors)
        heights.append(last)
    digits = rank * (max(heights) + 0.5 * math.log2(max(rank, 2)))
    return min(1.0, digits / (PRIME_BITS - 1) / (2.0 ** (PRIME_BITS - 2) / PRIME_BITS))


def _ranks_modulo(blocks: Sequence[Block], columns: int, prime: int) -> Integers:
    """Ranks of the first block, the first two, and so on; no block is looked at once the rank is full."""
    arithmetic, echelon = _Modulo(prime), _Echelon(prime, columns)
    last, found = np.zeros((0, columns), dtype=np.int64), np.zeros(len(blocks), dtype=np.int64)
    for number, block in enumerate(blocks):
        if len(last) or isinstance(block, Product):
            rows = arithmetic.times(last, block.step) if isinstance(block, Power) else _product(arithmetic, block)
            last = rows[echelon.add(rows)]
        found[number] = echelon.rank
        if echelon.rank == columns:
            found[number:] = columns
            break
    return found


class _Arithmetic(Protocol):
    def dense(self, matrix: Exact) -> NDArray[Any]: ...

    def times(self, rows: NDArray[Any], matrix: Exact) -> NDArray[Any]: ...


def _product(arithmetic: _Arithmetic, block: Product) -> NDArray[Any]:
    rows = arithmetic.dense(block.start)
    for factor in block.factors:
        rows = arithmetic.times(rows, factor)
    return rows


def _dense(matrix: Exact, data: NDArray[Any]) -> NDArray[Any]:
    found = np.zeros(matrix.shape, dtype=data.dtype)
    found[matrix.rows, np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))] = data
    return found


AT_ONCE = 1 << 22
"""Entries of products that are alive at once."""


def _summed_terms(rows: NDArray[Any], matrix: Exact, terms: _Terms) -> NDArray[Any]:
    """`rows @ matrix`, some rows after others, by the terms of each entry of the matrix."""
    found = np.zeros((len(rows), matrix.shape[1]), dtype=rows.dtype)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if not filled.size:
        return found
    group = max(1, AT_ONCE // len(matrix.rows))
    for begin in range(0, len(rows), group):
        part = slice(begin, begin + group)
        found[part, filled] = np.add.reduceat(terms(rows[part][:, matrix.rows]), matrix.indptr[filled], axis=1)
    return found


class _Terms(Protocol):
    def __call__(self, gathered: NDArray[Any], /) -> NDArray[Any]: ...


class _Modulo:
    """Residues modulo a prime."""

    def __init__(self, prime: int) -> None:
        self._prime = prime

    def _data(self, matrix: Exact) -> Integers:
        p = self._prime
        each = [value.numerator * pow(value.denominator, -1, p) % p for value in matrix.values]
        return np.array(each, dtype=np.int64)[matrix.codes]

    def dense(self, matrix: Exact) -> Integers:
        return _dense(matrix, self._data(matrix))

    def times(self, rows: Integers, matrix: Exact) -> Integers:
        assert matrix.most_terms < 1 << 63 - PRIME_BITS
        data = self._data(matrix)
        return _summed_terms(rows, matrix, lambda gathered: _multiplied(gathered, data, self._prime)) % self._prime


def _multiplied(one: Integers, other: Integers, prime: int) -> Integers:
    """Products of residues: the rounded quotient is right up to one, and what is lost above 64 bits cancels."""
    quotient = np.rint(one.astype(np.float64) * other.astype(np.float64) * (1.0 / prime)).astype(np.int64)
    left = one * other - quotient * prime
    left += (left >> 63) & prime
    return left


class _Echelon:
    """Rows in echelon form modulo a prime."""

    def __init__(self, prime: int, columns: int) -> None:
        self._prime, self._pivots = prime, list[int]()
        self._room = np.zeros((0, columns), dtype=np.int64)

    @property
    def rank(self) -> int:
        return len(self._pivots)

    def add(self, rows: Integers) -> list[int]:
        """Which rows are new: no combinations of those before."""
        rows, new = rows.copy(), list[int]()
        for row, pivot in zip(self._room[: self.rank], self._pivots, strict=True):
            self._reduce(rows, row, pivot)
        for number in range(len(rows)):
            there = np.flatnonzero(rows[number])
            if not there.size:
                continue
            pivot = int(there[0])
            inverse = np.int64(pow(int(rows[number, pivot]), -1, self._prime))
            row = _multiplied(rows[number], np.full(1, inverse), self._prime)
            self._reduce(rows[number + 1 :], row, pivot)
            self._keep(row, pivot)
            new.append(number)
        return new

    def _reduce(self, rows: Integers, row: Integers, pivot: int) -> None:
        """Take the row off others, so that nothing is left of them at the pivot."""
        there = np.flatnonzero(rows[:, pivot])
        if there.size:
            left = rows[there] - _multiplied(rows[there, pivot][:, None], row[None], self._prime)
            left += (left >> 63) & self._prime
            rows[there] = left

    def _keep(self, row: Integers, pivot: int) -> None:
        if self.rank == len(self._room):
            self._room = np.concatenate([self._room, np.zeros((self.rank + 64, self._room.shape[1]), dtype=np.int64)])
        self._room[self.rank] = row
        self._pivots.append(pivot)


def _random_prime() -> int:
    """A prime of the full length, by the test of Miller and Rabin, which for numbers below 3.3e24 is a proof."""
    while True:
        candidate = (1 << PRIME_BITS - 1) | secrets.randbits(PRIME_BITS - 1) | 1
        if _is_prime(candidate):
            return candidate


def _is_prime(number: int) -> bool:
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if any(number % base == 0 for base in bases):
        return number in bases
    twos = (number - 1 & 1 - number).bit_length() - 1
    return all(_passes(number, base, twos) for base in bases)


def _passes(number: int, base: int, twos: int) -> bool:
    power = pow(base, number >> twos, number)
    return power == 1 or any(pow(power, 1 << times, number) == number - 1 for times in range(twos))


# --- an orthonormal basis in fixed point ---------------------------------------------------------------------------


def _products(blocks: Sequence[Block], counts: Sequence[int], columns: int) -> float:
    """About how many multiplications of long integers the basis takes."""
    found, before = 0.0, [0]
    for block, count in zip(blocks, counts, strict=True):
        rows = before[-1] if isinstance(block, Power) else block.start.shape[0]
        seen = sum(before[-2:]) if _is_short(block) else sum(before)
        entries = (block.step,) if isinstance(block, Power) else block.factors
        found += rows * (2.0 * seen + rows + count) * columns + rows * float(sum(len(one.codes) for one in entries))
        found += count * (rows**2 + count**2 / 6)
        before.append(count)
    return found


def _is_short(block: Block) -> bool:
    """Whether a block is orthogonal to all but the two before it: symmetric matrices have a three-term recurrence."""
    return isinstance(block, Power) and block.step.is_symmetric


class _Fixed:
    """Integers in units of `2^-bits`; products are off by at most one unit."""

    def __init__(self, bits: int) -> None:
        self.bits, self.one = bits, 1 << bits

    def _data(self, matrix: Exact) -> Big:
        each = [(2 * value.numerator * self.one // value.denominator + 1) >> 1 for value in matrix.values]
        return np.array(each, dtype=object)[matrix.codes]

    def dense(self, matrix: Exact) -> Big:
        return _dense(matrix, self._data(matrix))

    def times(self, rows: Big, matrix: Exact) -> Big:
        data = self._data(matrix)
        return np.asarray(_summed_terms(rows, matrix, lambda gathered: gathered * data) >> self.bits, dtype=object)

    def product(self, one: Big, other: Big) -> Big:
        """`one @ other`."""
        return np.asarray(np.dot(one, other) >> self.bits, dtype=object)

    def error(self, largest: float, matrix: Exact) -> float:
        """What rounding may change an entry of a product by, for rows with entries up to the `largest`, in units."""
        return largest * matrix.most_terms + 1

    def floats(self, values: Big) -> Floats:
        """To float64, as fractions of two integers: right in their last digit."""
        flat = [_ratio(value, self.one) for value in values.ravel().tolist()]
        return np.array(flat).reshape(values.shape)

    def norm(self, values: Big) -> float:
        """The root of the sum of squares, rounded up."""
        return float(np.linalg.norm(self.floats(values))) * (1 + (values.size + 4) * UNIT)


def _ratio(value: int, one: int) -> float:
    return value / one if abs(value) < one << 1000 else math.inf


class _Basis(NamedTuple):
    """Rows in units of `2^-DIGITS`, and how far they are from rows of the space, as a whole, besides this rounding."""

    rows_RN: Integers
    error: float


class _Stored(NamedTuple):
    """A block of the basis, and how far it is from rows of the space, in units of the last digit."""

    rows_KN: Big
    error: float


def _orthonormal(blocks: Sequence[Block], counts: Sequence[int], bits: int) -> _Basis:
    """An orthonormal basis: one block after the other, less what of it lies in blocks before."""
    fixed, each, rounded = _Fixed(bits), list[_Stored](), list[Integers]()
    keeps_all, square = not all(map(_is_short, blocks[1:])), 0.0
    for number, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        found = _next(fixed, block, count, each)
        each = [*(each if keeps_all else each[-1:]), found]
        rounded.append(np.asarray(((found.rows_KN >> bits - DIGITS - 1) + 1) >> 1).astype(np.int64))
        square += found.error**2
        lost = math.log2(math.sqrt(square)) if math.isfinite(square) else 2.0 * bits
        if lost - bits > math.log2(NEAR):
            raise _MoreBits(math.ceil(lost * len(blocks) / (number + 1) - math.log2(NEAR)) - bits)
    return _Basis(np.concatenate(rounded), math.ldexp(math.sqrt(square), -bits))


def _next(fixed: _Fixed, block: Block, count: int, before: Sequence[_Stored]) -> _Stored:
    """So many orthonormal rows: those of a block, less what lies in blocks before, whitened."""
    V_KN, error = _rows_of(fixed, block, before)
    for Q_LN, near in before[-2:] if _is_short(block) else before:
        H_KL = fixed.product(V_KN, Q_LN.T)
        V_KN = V_KN - fixed.product(H_KL, Q_LN)
        error += fixed.norm(H_KL) * near + math.sqrt(V_KN.size)
    picked, X_KK = _whitening(fixed, fixed.product(V_KN, V_KN.T), count)
    Q_KN = fixed.product(X_KK, V_KN[picked])
    return _Stored(Q_KN, fixed.norm(X_KK) * error + math.sqrt(Q_KN.size))


def _rows_of(fixed: _Fixed, block: Block, before: Sequence[_Stored]) -> tuple[Big, float]:
    """Rows of a block, and how far they are from rows of the space, in units of the last digit."""
    if isinstance(block, Power):
        Q_KN, near = before[-1]
        rounding = fixed.error(2.0, block.step) * math.sqrt(len(Q_KN) * block.step.shape[1])
        return fixed.times(Q_KN, block.step), block.step.norm * near + rounding
    rows, error, largest = fixed.dense(block.start), 1.0, block.start.column_sum
    for factor in block.factors:
        rows, error = fixed.times(rows, factor), factor.column_sum * error + fixed.error(largest, factor)
        largest *= factor.column_sum
    return rows, error * math.sqrt(rows.size)


def _whitening(fixed: _Fixed, G_KK: Big, count: int) -> tuple[list[int], Big]:
    """Rows that are picked, the largest of what is left first, and X with `X G X^T = 1` for these."""
    rest, picked, columns = G_KK, list[int](), []
    for _ in range(count):
        sizes = rest.diagonal().tolist()
        pivot = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[pivot] < 1 << fixed.bits // 2:
            raise _MoreBits(fixed.bits)
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


# --- entries of the projector --------------------------------------------------------------------------------------


def _enclosed(basis: _Basis) -> Entries:
    """Bounds from a basis that is orthonormal up to F, and lies in the space up to an error."""
    R, N = basis.rows_RN.shape
    size = math.ldexp(1.0, -DIGITS)
    whole, column = basis.error + math.sqrt(R * N) * size, basis.error + math.sqrt(R) * size
    f = _defect(basis.rows_RN)
    f = (f + 2 * whole * math.sqrt(1 + f) + whole**2) * (1 + 8 * UNIT)
    if not f < 0.5:
        raise _MoreBits(DIGITS)
    share = (R + 8) * UNIT
    lengths = np.sqrt(((basis.rows_RN.astype(np.float64) * size) ** 2).sum(axis=0))
    above = (lengths * (1 + share) + column) ** 2 / (1 - f) * (1 + 8 * UNIT)
    below = np.maximum(lengths * (1 - share) - column, 0.0) ** 2 / (1 + f) * (1 - 8 * UNIT)
    return Entries(R, np.minimum(above, 1.0), below)


def _defect(rows_RN: Integers) -> float:
    """The Frobenius norm of `Q Q^T - 1`: sums of products of limbs are integers that float64 holds."""
    low, middle, high = _limbs(rows_RN)
    sums = [
        sum(((one @ other.T).astype(np.int64) for one, other in pairs), start=np.int64(0))
        for pairs in (
            [(low, low)], [(low, middle), (middle, low)], [(low, high), (middle, middle), (high, low)],
            [(middle, high), (high, middle)], [(high, high)],
        )
    ]  # fmt: skip
    found = sums[4] - (np.eye(len(rows_RN), dtype=np.int64) << 2 * LIMB)
    for lower in (sums[3], sums[2]):
        if np.abs(found).max() > 1 << 2 * LIMB:
            return math.inf
        found = (found << LIMB) + lower
    F = found + np.ldexp(sums[1], -LIMB) + np.ldexp(sums[0], -2 * LIMB)
    return float(np.linalg.norm(np.ldexp(F, -4 * LIMB))) * (1 + (F.size + 8) * UNIT)


def _limbs(rows: Integers) -> list[Floats]:
    found = []
    for _ in range(2):
        low = (rows + (1 << LIMB - 1) & (1 << LIMB) - 1) - (1 << LIMB - 1)
        found.append(low.astype(np.float64))
        rows = rows - low >> LIMB
    return [*found, rows.astype(np.float64)]
