"""Gradient plus noise, rounded to a grid as if both were real numbers.

Sums are guessed in floating point, with a bound on the error. Where an edge between two multiples of the step is within
that bound, the sum is computed again with more digits of the noise: in float64, then in decimals, until it is decided.

Shapes: N nodes, D parameters, K undecided values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

from sottovoce.core.arrays import IN_CACHE, Reals
from sottovoce.core.class_correlation import of_node
from sottovoce.core.correlation import Correlation
from sottovoce.core.drawn_gaussians import DrawnGaussians
from sottovoce.core.exact_gaussians import FINE_ERROR, GUESS_ERROR, Floats, Places
from sottovoce.core.noise import NoiseTerm
from sottovoce.support.threads import chunks

Numbers = Callable[[DrawnGaussians, Places, Places], tuple[Floats, Floats]]
"""The numbers of some sources and columns, and their errors."""

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
    """The multiples of `step` nearest to gradient plus noise, for noise that is known within bounds; nan: not at all.

    Adding a large number and taking it off again rounds: floating-point numbers of its size are one step apart. The
    result takes the place of the noise where it has the same type: new memory costs more than what is done with it.
    """
    in_place = noise_ND.dtype == gradient_ND.dtype
    out = noise_ND if in_place else np.empty_like(gradient_ND)
    single = noise_ND.dtype == np.float32
    lost, large = (SINGLE, 1.5 * 2.0**23 * step) if single else (DOUBLE, 1.5 * 2.0**52 * step)
    at_once = max(1, IN_CACHE // max(1, out.shape[1]))
    near_MD = np.empty((min(at_once, len(out)), out.shape[1]), dtype=noise_ND.dtype)
    undecided = []
    with np.errstate(over="ignore", invalid="ignore"):
        size_N = np.maximum(gradient_ND.max(axis=1, initial=0), -gradient_ND.min(axis=1, initial=0)) / step
        limit_N = (0.5 - known.error_N - (size_N + known.largest_N + 1) * lost) * step
        if abs(math.log2(step)) >= (60 if single else 500):  # small noise would underflow
            limit_N[:] = -1.0
        for some in chunks(len(out), at_once):
            rounded, near = out[some], near_MD[: some.stop - some.start]
            np.add(gradient_ND[some], noise_ND[some], out=near, casting="same_kind")
            shifted = np.add(near, large, out=rounded if in_place else None)
            near -= np.subtract(shifted, large, out=rounded)
            np.abs(near, out=near)
            decided = np.less(near, limit_N[some, None].astype(near.dtype))
            undecided.append(np.flatnonzero(np.logical_not(decided, out=decided)) + some.start * out.shape[1])
    rows, columns = np.divmod(np.concatenate(undecided), out.shape[1])
    if len(rows):
        out[rows, columns] = decide(rows, columns) * step
    return out


# --- decimals ------------------------------------------------------------------------------------------------------


class Summand(NamedTuple):
    """A number that a source draws, times a coefficient."""

    coefficient: Decimal
    draws: DrawnGaussians
    source: int
    column: int


def rounded_exactly(offset: Decimal, summands: Sequence[Summand]) -> int:
    """The integer nearest to `offset` plus a sum of Gaussians, with as many digits as that takes."""
    level = 0
    while True:
        level += 1
        with localcontext() as context:
            context.prec = 40 + 40 * level + max(0, offset.adjusted())
            value, error = offset, Decimal(0)
            for coefficient, draws, source, column in summands:
                number, uncertain = draws.decimal(source, column, level)
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
    return _sum_bounds(terms, n, GUESS_ERROR, LARGEST / 2, SINGLE / 2)


@lru_cache(maxsize=32)
def fine_bounds(terms: tuple[NoiseTerm, ...], n: int) -> NoiseBounds:
    """Of sums of numbers that are known in float64."""
    return _sum_bounds(terms, n, FINE_ERROR, LARGEST, DOUBLE)


def _sum_bounds(
    terms: tuple[NoiseTerm, ...], n: int, number_error: float, largest_number: float, lost: float
) -> NoiseBounds:
    error, largest = np.zeros(n), np.zeros(n)
    for term in terms:
        most = int(np.diff(term.matrix.whole().indptr).max(initial=0))
        sizes = term.matrix.absolute_sums()
        largest += sizes * largest_number
        error += sizes * (number_error + (most + len(terms) + 2) * largest_number * lost)
    return NoiseBounds(error, largest)


@dataclass(frozen=True, eq=False)
class FreshSum:
    """Gradients plus fresh noise of several terms, each with its draws."""

    gradient_ND: Reals
    terms: tuple[NoiseTerm, ...]
    draws: tuple[DrawnGaussians, ...]
    step: float

    def decide(self, rows_K: Places, columns_K: Places) -> Floats:
        """From the bits that were kept, then in float64, and what is not decided then, in decimals."""
        multiples, left = np.empty(len(rows_K)), np.arange(len(rows_K))
        kept = all(draws.bits is not None for draws in self.draws)
        for numbers in (DrawnGaussians.of_first_bits, DrawnGaussians.fine)[0 if kept else 1 :]:
            total, bound = self._in_float64(rows_K[left], columns_K[left], numbers)
            multiples[left] = np.rint(total)
            left = left[~(np.abs(total - multiples[left]) < 0.5 - bound)]
            if not len(left):
                return multiples
        for k in left.tolist():
            multiples[k] = self.decide_exactly(int(rows_K[k]), int(columns_K[k]))
        return multiples

    def _in_float64(self, rows_K: Places, columns_K: Places, numbers: Numbers) -> tuple[Floats, Floats]:
        """Sums in steps, and how far they may be from the true ones."""
        total = self.gradient_ND[rows_K, columns_K].astype(np.float64) / self.step
        sizes, bound = np.abs(total), np.zeros(len(total))
        for term, draws in zip(self.terms, self.draws, strict=True):
            which, sources, coefficients = _entries(term.matrix.whole(), rows_K)
            values, errors = numbers(draws, sources, columns_K[which])
            total += np.bincount(which, coefficients * values, minlength=len(total))
            sizes += np.bincount(which, np.abs(coefficients), minlength=len(total)) * LARGEST
            bound += np.bincount(which, np.abs(coefficients) * errors, minlength=len(total))
        return total, bound + sizes * DOUBLE * (4 + sum(term.matrix.plain.shape[1] for term in self.terms))

    def decide_exactly(self, row: int, column: int) -> int:
        """One value, in decimals."""
        summands = []
        for term, draws in zip(self.terms, self.draws, strict=True):
            _, sources, coefficients = _entries(term.matrix.whole(), np.array([row]))
            for source, coefficient in zip(sources.tolist(), coefficients.tolist(), strict=True):
                summands.append(Summand(Decimal(coefficient), draws, source, column))
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
    """Gradients plus noise correlated over rounds, of each source by its own C: `draws` are those of all rounds."""

    gradient_ND: Reals
    term: NoiseTerm
    draws: tuple[DrawnGaussians, ...]
    correlation: Correlation
    step: float

    @cached_property
    def _inverse_rows(self) -> dict[Correlation, tuple[Decimal, ...]]:
        return {}

    def _over_rounds(self, source: int) -> tuple[Decimal, ...]:
        """The row of C^-1 that a source's draws enter by, found once for each C."""
        own = of_node(self.correlation, source)
        if own not in self._inverse_rows:
            self._inverse_rows[own] = _decimal_inverse_row(own, len(self.draws) - 1)
        return self._inverse_rows[own]

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
            for source, coefficient in zip(sources.tolist(), coefficients.tolist(), strict=True):
                for draws, weight in zip(self.draws, self._over_rounds(source), strict=True):
                    if weight:
                        summands.append(Summand(weight * Decimal(coefficient), draws, source, column))
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
