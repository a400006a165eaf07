"""Gradient plus noise, rounded to a grid as if both were real numbers.

Sums are computed in floating point, with a bound on the error. Where an edge between two multiples of the step is
within that bound, they are computed again with more digits of the noise: in float64, then in decimals, until all are
decided.

Shapes: N nodes, D parameters, K undecided values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

from sottovoce.core.arrays import IN_CACHE, Reals
from sottovoce.core.correlation import Correlation, for_sources, of_node
from sottovoce.core.exact_gaussians import (
    FINE_ERROR,
    GUESS_ERROR,
    DecimalInterval,
    Floats,
    Places,
    WordsAt,
    decimal_number,
    fine_numbers,
)
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.noise import NoiseTerm
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.support.threads import chunks

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


# --- bounds --------------------------------------------------------------------------------------------------------


class NumberErrors(NamedTuple):
    """Of numbers drawn in one precision: how far they are off, how large they are, what a product and a sum lose."""

    error: float
    largest: float
    lost: float


GUESSES = NumberErrors(GUESS_ERROR, LARGEST / 2, SINGLE / 2)
FINE = NumberErrors(FINE_ERROR, LARGEST, DOUBLE)


@lru_cache(maxsize=32)
def noise_bounds(terms: tuple[NoiseTerm, ...], n: int, numbers: NumberErrors) -> NoiseBounds:
    """Of sums of fresh noise, in the units of the terms."""
    error, largest = np.zeros(n), np.zeros(n)
    for term in terms:
        most = int(np.diff(term.matrix.whole().indptr).max(initial=0))
        sizes = term.matrix.absolute_sums()
        largest += sizes * numbers.largest
        error += sizes * (numbers.error + (most + len(terms) + 2) * numbers.largest * numbers.lost)
    return NoiseBounds(error, largest)


# --- more digits ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DrawnGaussians:
    """The numbers that sources draw in one round, at any place: the same that `Sources.draw` gives as rows."""

    source: RandomSource
    sources: Sources
    round: int
    dimension: int

    def fine(self, sources_K: Places, columns_K: Places) -> tuple[Floats, Floats]:
        """Numbers in float64, and their errors: infinite where that takes more bits."""
        return fine_numbers(*self._places(sources_K, columns_K))

    def decimal(self, source: int, column: int, level: int) -> DecimalInterval:
        """One number, with about 38 digits more for each level."""
        words_at, (place,), (size,) = self._places(np.array([source]), np.array([column]))
        return decimal_number(words_at, int(place), int(size), level)

    def _places(self, sources_K: Places, columns_K: Places) -> tuple[WordsAt, Places, Places]:
        """The words of streams, and where numbers stand in them: in that of a group one source after the other."""
        counts = self.sources.counts
        stops = np.cumsum(counts)
        group = np.searchsorted(stops, sources_K, side="right")
        needed, which = np.unique(group, return_inverse=True)
        names = [self.sources.name(one, self.round, 0) for one in needed.tolist()]
        places = (sources_K - (stops - counts)[group]) * self.dimension + columns_K
        return partial(self.source.words_at, names, which), places, counts[group] * self.dimension


class Summand(NamedTuple):
    """A number that a source draws, times a coefficient."""

    coefficient: Decimal
    draws: DrawnGaussians
    source: int
    column: int


@dataclass(frozen=True, eq=False)
class ExactSum:
    """Gradients plus the noise of a round, with as many digits as it takes."""

    gradient_ND: Reals
    noise: NoiseOnGrid
    source: RandomSource
    round: int

    def decide(self, rows_K: Places, columns_K: Places) -> Floats:
        """Fresh noise in float64; what is not decided then, and noise of many rounds, in decimals."""
        multiples, left = np.empty(len(rows_K)), np.arange(len(rows_K))
        if self.noise.correlation is None:
            total, bound = self._in_float64(rows_K, columns_K)
            multiples = np.rint(total)
            left = np.flatnonzero(~(np.abs(total - multiples) < 0.5 - bound))
        for k in left.tolist():
            multiples[k] = self.decide_exactly(int(rows_K[k]), int(columns_K[k]))
        return multiples

    def _in_float64(self, rows_K: Places, columns_K: Places) -> tuple[Floats, Floats]:
        """Sums in steps, and how far they may be from the true ones."""
        total = self.gradient_ND[rows_K, columns_K].astype(np.float64) / self.noise.step
        sizes, bound = np.abs(total), np.zeros(len(total))
        for term in self.noise.terms:
            which, sources, coefficients = _entries(term.matrix.whole(), rows_K)
            values, errors = self._drawn(term, self.round).fine(sources, columns_K[which])
            total += np.bincount(which, coefficients * values, minlength=len(total))
            sizes += np.bincount(which, np.abs(coefficients), minlength=len(total)) * LARGEST
            bound += np.bincount(which, np.abs(coefficients) * errors, minlength=len(total))
        return total, bound + sizes * DOUBLE * (4 + sum(term.matrix.plain.shape[1] for term in self.noise.terms))

    def decide_exactly(self, row: int, column: int) -> int:
        """One value, in decimals."""
        summands = []
        with localcontext() as context:
            context.prec = DIGITS
            for term in self.noise.terms:
                _, sources, coefficients = _entries(term.matrix.whole(), np.array([row]))
                for source, coefficient in zip(sources.tolist(), coefficients.tolist(), strict=True):
                    for t, weight in self._over_rounds(term, source):
                        summands.append(Summand(weight * Decimal(coefficient), self._drawn(term, t), source, column))
        return rounded_exactly(_steps(self.gradient_ND[row, column], self.noise.step), summands)

    def _drawn(self, term: NoiseTerm, round: int) -> DrawnGaussians:
        return DrawnGaussians(self.source, term.sources, round, self.gradient_ND.shape[1])

    def _over_rounds(self, term: NoiseTerm, source: int) -> list[tuple[int, Decimal]]:
        """The rounds whose draws a source's noise is made of, and the row of C^-1 that these enter by."""
        if self.noise.correlation is None:
            return [(self.round, Decimal(1))]
        own = of_node(for_sources(self.noise.correlation, term.sources), source)
        if own not in self._inverse_rows:
            self._inverse_rows[own] = _decimal_inverse_row(own, self.round)
        return [(t, weight) for t, weight in enumerate(self._inverse_rows[own]) if weight]

    @cached_property
    def _inverse_rows(self) -> dict[Correlation, tuple[Decimal, ...]]:
        return {}


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
            products = float(np.abs(self._correlation.row(t)) @ np.array(self._largest))
            self._residuals.append(FINE_ERROR + DOUBLE * (t + 4) * (LARGEST + products))
        if len(self._inverse) != round + 1:
            self._inverse = _inverse_row(self._correlation, round)
        return 2 * float(np.abs(self._inverse) @ np.array(self._residuals[: round + 1]))


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
