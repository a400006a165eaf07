"""Gradient plus noise, rounded to a grid as if both were real numbers.

Sums are guessed in floating point, with a bound on the error. Where an edge between two multiples of the step is within
that bound, the sum is computed again with more digits of the noise: in float64, then in decimals, until it is decided.

Shapes: N nodes, D parameters, K undecided values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.core.arrays import Reals
from sottovoce.core.correlation import Correlation
from sottovoce.core.exact_gaussians import FINE_ERROR, GUESS_ERROR, Floats, GaussianStream, Places, fine_numbers
from sottovoce.core.noise import NoiseTerm
from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.noise_sources import Sources

Decide = Callable[[Places, Places], Floats]
"""The multiples for some rows and columns, decided with more digits."""

LARGEST = 12.0
"""No number of a stream that float64 gives is larger; of those that float32 gives, none is larger than half of that."""

DIGITS = 400
"""Of C^-1 in decimals: far more than are needed, since substitution may lose some."""

SINGLE, DOUBLE = 2.0**-22, 2.0**-50
"""More than a product and a sum of float32, or of float64, lose of the larger number."""


class NoiseBounds(NamedTuple):
    """For each node, in steps: how far its noise may be from the true one, and how large it is at most."""

    error_N: Floats
    largest_N: Floats


def rounded_sum_(gradient_ND: Reals, noise_ND: Reals, known: NoiseBounds, step: float, decide: Decide) -> Reals:
    """`round(gradient / step + noise) step` for noise that is known within bounds, in steps; nan: not at all.

    The result takes the place of the noise where it has the same type: new memory costs more than what is done with it.
    """
    out = noise_ND if noise_ND.dtype == gradient_ND.dtype else np.empty_like(gradient_ND)
    open_rows, open_columns = [], []
    near, whole = (np.empty(gradient_ND.shape[1], dtype=noise_ND.dtype) for _ in range(2))
    undecided = np.empty(gradient_ND.shape[1], dtype=bool)
    largest_N = max(gradient_ND.max(), -gradient_ND.min()) / step + known.largest_N + 1
    limit_N = 0.5 - known.error_N - largest_N * (SINGLE if noise_ND.dtype == np.float32 else DOUBLE)
    with np.errstate(over="ignore", invalid="ignore"):
        for row, limit in enumerate(limit_N.tolist()):
            np.multiply(gradient_ND[row], 1 / step, out=near, casting="same_kind")
            near += noise_ND[row]
            np.rint(near, out=whole)
            np.multiply(whole, step, out=out[row], casting="same_kind")
            near -= whole
            np.abs(near, out=near)
            columns = np.flatnonzero(np.logical_not(np.less(near, limit, out=undecided), out=undecided))
            open_rows.append(np.full(len(columns), row))
            open_columns.append(columns)
    rows, columns = np.concatenate(open_rows), np.concatenate(open_columns)
    if len(rows):
        out[rows, columns] = decide(rows, columns) * step
    return out


# --- draws ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeyedGaussians:
    """The numbers that sources draw in one step, at any place: the same that `Sources.draw` gives as rows."""

    key: NoiseKey
    sources: Sources
    round: int
    step: int
    dimension: int

    @cached_property
    def _group(self) -> Places:
        """The group of each source."""
        return np.repeat(np.arange(len(self.sources.counts)), self.sources.counts)

    def _stream_key(self, group: int) -> NDArray[np.uint64]:
        return self.key.stream_key(self.sources.kind, self.sources.groups[group].tolist(), self.round, self.step)

    def _places(self, sources_K: Places, columns_K: Places) -> Places:
        """Where numbers stand in the stream of their group, in which one source comes after the other."""
        first = (np.cumsum(self.sources.counts) - self.sources.counts)[self._group[sources_K]]
        return (sources_K - first) * self.dimension + columns_K

    def fine(self, sources_K: Places, columns_K: Places) -> tuple[Floats, NDArray[np.bool_]]:
        """Numbers within `FINE_ERROR`, and which of them are that exact."""
        places, groups = self._places(sources_K, columns_K), self._group[sources_K]
        out, decided = np.empty(len(places)), np.empty(len(places), dtype=bool)
        needed, number = np.unique(groups, return_inverse=True)
        keys = np.array([self._stream_key(group) for group in needed.tolist()], dtype=np.uint64).reshape(-1, 2)
        for count in np.unique(self.sources.counts[needed]):  # streams of the same length at once
            some = self.sources.counts[groups] == count
            size = int(count) * self.dimension
            out[some], decided[some] = fine_numbers(keys[number[some]], places[some], size)
        return out, decided

    def stream(self, source: int, column: int) -> tuple[GaussianStream, int]:
        """The stream of one number, and its place there."""
        group = int(self._group[source])
        place = self._places(np.array([source]), np.array([column]))[0]
        return GaussianStream(self._stream_key(group), int(self.sources.counts[group]) * self.dimension), int(place)


class Summand(NamedTuple):
    """A number of a stream, times a coefficient."""

    coefficient: Decimal
    stream: GaussianStream
    place: int


def rounded_exactly(offset: Decimal, summands: Sequence[Summand]) -> int:
    """The integer nearest to `offset` plus a sum of Gaussians, with as many digits as that takes."""
    level = 0
    while True:
        level += 1
        with localcontext() as context:
            context.prec = 40 + 40 * level + max(0, offset.adjusted())
            value, error = offset, Decimal(0)
            for coefficient, stream, place in summands:
                number, uncertain = stream.decimal(place, level)
                value += coefficient * number
                error += abs(coefficient) * uncertain + Decimal(10) ** (8 - context.prec) * (1 + abs(coefficient))
            if error.is_finite():
                low, high = ((value + sign * error + Decimal("0.5")).to_integral_value(ROUND_FLOOR) for sign in (-1, 1))
                if low == high:
                    return int(low)


# --- fresh noise ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def guess_bounds(terms: tuple[NoiseTerm, ...], n: int) -> NoiseBounds:
    """Of sums of guesses, in the units of the terms."""
    error, largest = np.zeros(n), np.zeros(n)
    for term in terms:
        matrix = term.matrix.whole()
        most = int(np.diff(matrix.indptr).max(initial=0))
        sizes = np.asarray(abs(matrix).sum(axis=1)).ravel()
        largest += sizes * LARGEST / 2
        error += sizes * (GUESS_ERROR + (most + len(terms) + 2) * LARGEST / 2 * SINGLE / 2)
    return NoiseBounds(error, largest)


@dataclass(frozen=True, eq=False)
class FreshSum:
    """Gradients plus fresh noise of several terms, each with its draws."""

    gradient_ND: Reals
    terms: tuple[NoiseTerm, ...]
    draws: tuple[KeyedGaussians, ...]
    step: float

    def decide(self, rows_K: Places, columns_K: Places) -> Floats:
        """In float64; what is not decided then, in decimals."""
        total = self.gradient_ND[rows_K, columns_K].astype(np.float64) / self.step
        sizes, decided = np.abs(total), np.ones(len(total), dtype=bool)
        for term, draws in zip(self.terms, self.draws, strict=True):
            matrix = term.matrix.whole()
            which, sources, coefficients = _entries(matrix, rows_K)
            numbers, fine = draws.fine(sources, columns_K[which])
            total += np.bincount(which, coefficients * numbers, minlength=len(total))
            sizes += np.bincount(which, np.abs(coefficients), minlength=len(total)) * LARGEST
            decided[which[~fine]] = False
        whole = np.rint(total)
        bound = sizes * (FINE_ERROR + DOUBLE * (4 + sum(term.matrix.plain.shape[1] for term in self.terms)))
        for k in np.flatnonzero(~decided | ~(np.abs(total - whole) < 0.5 - bound)).tolist():
            whole[k] = self.decide_exactly(int(rows_K[k]), int(columns_K[k]))
        return whole

    def decide_exactly(self, row: int, column: int) -> int:
        """One value, in decimals."""
        summands = []
        for term, draws in zip(self.terms, self.draws, strict=True):
            _, sources, coefficients = _entries(term.matrix.whole(), np.array([row]))
            for source, coefficient in zip(sources.tolist(), coefficients.tolist(), strict=True):
                summands.append(Summand(Decimal(coefficient), *draws.stream(source, column)))
        return rounded_exactly(_steps(self.gradient_ND[row, column], self.step), summands)


def _steps(value: float, step: float) -> Decimal:
    """An exact quotient: the step is a power of two."""
    with localcontext() as context:
        context.prec = 2500
        return Decimal(float(value)) / Decimal(step)


def _entries(matrix: sparse.csr_array, rows_K: Places) -> tuple[Places, Places, Floats]:
    """The entries of some rows: which of the rows, column, value."""
    counts = np.diff(matrix.indptr)[rows_K]
    which = np.repeat(np.arange(len(rows_K)), counts)
    at = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + matrix.indptr[rows_K][which]
    return which, matrix.indices[at].astype(np.int64), matrix.data[at]


# --- noise correlated over rounds ----------------------------------------------------------------------------------


class CorrelationErrors:
    """How far `(C^-1 Z)_t` may be off when `Correlation.next` computes it in float64 from numbers within `FINE_ERROR`.

    In round s the recursion leaves a residual `rho_s` in `C x = Z`; the error of x is `C^-1 rho`.
    """

    def __init__(self, correlation: Correlation) -> None:
        self._correlation = correlation
        self._residuals: list[float] = []
        self._largest: list[float] = []
        self._inverse = np.zeros(0)

    def of(self, round: int) -> float:
        """The error in this round."""
        for t in range(len(self._residuals), round + 1):
            self._inverse = _inverse_row(self._correlation, t)
            self._largest.append(2 * LARGEST * float(np.abs(self._inverse).sum()))
            products = float(np.abs(self._correlation.matrix(t + 1)[t]) @ np.array(self._largest))
            self._residuals.append(FINE_ERROR + DOUBLE * (t + 4) * (LARGEST + products))
        if len(self._inverse) != round + 1:
            self._inverse = _inverse_row(self._correlation, round)
        return 2 * float(np.abs(self._inverse) @ np.array(self._residuals[: round + 1]))


@dataclass(frozen=True, eq=False)
class CorrelatedSum:
    """Gradients plus noise correlated over rounds: `draws` are those of all rounds so far."""

    gradient_ND: Reals
    term: NoiseTerm
    draws: tuple[KeyedGaussians, ...]
    correlation: Correlation
    step: float

    @cached_property
    def _over_rounds(self) -> tuple[Decimal, ...]:
        return _decimal_inverse_row(self.correlation, len(self.draws) - 1)

    def decide(self, rows_K: Places, columns_K: Places) -> Floats:
        """In decimals: float64 was not enough."""
        each = zip(rows_K.tolist(), columns_K.tolist(), strict=True)
        return np.array([self.decide_exactly(row, column) for row, column in each], dtype=np.float64)

    def decide_exactly(self, row: int, column: int) -> int:
        """One value, in decimals."""
        _, sources, coefficients = _entries(self.term.matrix.whole(), np.array([row]))
        summands = []
        with localcontext() as context:
            context.prec = DIGITS
            for draws, weight in zip(self.draws, self._over_rounds, strict=True):
                for source, coefficient in zip(sources.tolist(), coefficients.tolist(), strict=True):
                    if weight:
                        summands.append(Summand(weight * Decimal(coefficient), *draws.stream(source, column)))
        return rounded_exactly(_steps(self.gradient_ND[row, column], self.step), summands)


def _inverse_row(correlation: Correlation, round: int) -> Floats:
    """Row t of C^-1."""
    C = correlation.matrix(round + 1)
    last = np.zeros(round + 1)
    last[-1] = 1.0
    return np.asarray(linalg.solve_triangular(C, last, lower=True, trans="T"))


def _decimal_inverse_row(correlation: Correlation, round: int) -> tuple[Decimal, ...]:
    """Row t of C^-1 for C as it is stored, by substitution from the last entry back."""
    C = correlation.matrix(round + 1)
    found = [Decimal(0)] * (round + 1)
    with localcontext() as context:
        context.prec = DIGITS
        for s in range(round, -1, -1):
            below = np.flatnonzero(C[s + 1 :, s]) + s + 1
            total = sum((found[j] * Decimal(float(C[j, s])) for j in below.tolist()), Decimal(0))
            found[s] = (int(s == round) - total) / Decimal(float(C[s, s]))
    return tuple(found)
