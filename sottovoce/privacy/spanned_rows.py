"""Whether rows are combinations of other rows: by structure, whatever the size of noise.

Columns stand for inputs in units of their own, so each is measured by its own largest entry: a row of noise of 1e9 and
weights of 1 counts with both. Weights are simple fractions as a rule, and then all is decided on these, modulo a prime
of 61 bits. Of other weights (roots, powers of eigenvalues) rows are taken out one by one by columns that they alone
have, and what is left of an entry is nothing if rounding of the terms of that very entry may leave as much. What
neither shows is not shown: the answer is no.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

PRIME = 2**61 - 1

STEPS = 5_000_000
"""So many multiplications of residues are done at most: some seconds."""

ROUNDING = 2.0**-50
"""Of a sum of products of stored weights, rounding leaves at most this share of its terms."""

Row = dict[int, int]


def spanned(rows: sparse.csr_array, by: Sequence[sparse.csr_array]) -> bool:
    """Whether all `rows` are combinations of those of `by`, for sure but for one chance in 10^18.

    `by` are asked in turn: the first that are enough decide.

    >>> sent = sparse.csr_array([[1 / 3, 1e6, 0.0], [1.0, 0.0, 2e6]])
    >>> spanned(sparse.csr_array([[4 / 3, 1e6, 2e6]]), [sent]), spanned(sparse.csr_array([[1.0, 1e6, 2e6]]), [sent])
    (True, False)
    """
    parts = [sparse.csr_array(part) for part in (rows, *by)]
    units = np.zeros(rows.shape[1])
    for part in parts:
        np.maximum.at(units, part.indices, np.abs(part.data))
    scaled = [_in_units(part, units) for part in parts]
    values = np.unique(np.concatenate([part.data for part in scaled])).tolist()
    if all(meant(value).denominator <= SIMPLE for value in values):
        return _spanned_exactly(scaled[0], scaled[1:])
    return any(_spanned_by_own_columns(scaled[0], part) for part in scaled[1:])


def _in_units(part: sparse.csr_array, units: NDArray[np.float64]) -> sparse.csr_array:
    there = part.data != 0
    lengths = np.add.reduceat(np.append(there, 0), part.indptr[:-1]) * (np.diff(part.indptr) > 0)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    data = part.data[there] / units[part.indices[there]]
    return sparse.csr_array((data, part.indices[there], starts), shape=part.shape)


# --- simple fractions ----------------------------------------------------------------------------------------------


def _spanned_exactly(rows: sparse.csr_array, by: Sequence[sparse.csr_array]) -> bool:
    """A random combination of rows is one of `by` only by chance where some row is none."""
    target: Row = {}
    weights = np.random.default_rng(0).integers(1, PRIME, rows.shape[0])
    for weight, row in zip(weights.tolist(), _residues_of(rows), strict=True):
        for column, value in row.items():
            target[column] = (target.get(column, 0) + weight * value) % PRIME
    target = {column: value for column, value in target.items() if value}
    counts = np.sum([np.bincount(part.indices, minlength=rows.shape[1]) for part in by], axis=0)
    echelon = _Echelon(counts)
    for part in by:
        seen = set()
        for row in _residues_of(part):
            key = tuple(sorted(row.items()))
            if key not in seen:
                seen.add(key)
                echelon.add(row)
            if echelon.steps > STEPS:
                return False
        target = echelon.rest(target)
        if not target:
            return True
    return False


class _Echelon:
    """Independent rows, each with a column of its own that no later one has: those that fewest rows have."""

    def __init__(self, counts: NDArray[np.intp]) -> None:
        self.steps = 0
        self._counts = counts.tolist()
        self._rows: list[Row] = []
        self._number: dict[int, int] = {}  # by column
        self._columns: list[int] = []

    def add(self, row: Row) -> None:
        left = self.rest(row)
        if left:
            own = min(left, key=lambda column: self._counts[column])
            factor = pow(left[own], -1, PRIME)
            self._number[own] = len(self._rows)
            self._columns.append(own)
            self._rows.append({column: value * factor % PRIME for column, value in left.items()})

    def rest(self, row: Row) -> Row:
        """What is left of a row when these are taken out."""
        left = dict(row)
        waiting = [self._number[column] for column in left if column in self._number]
        heapify(waiting)
        while waiting:
            number = heappop(waiting)
            factor = left.get(self._columns[number], 0)
            if not factor:
                continue
            taken = self._rows[number]
            self.steps += len(taken)
            for column, value in taken.items():
                if column not in left and column in self._number:
                    heappush(waiting, self._number[column])
                found = (left.get(column, 0) - factor * value) % PRIME
                if found:
                    left[column] = found
                else:
                    left.pop(column, None)
        return left


def _residues_of(rows: sparse.csr_array) -> Iterator[Row]:
    columns, data = rows.indices.tolist(), rows.data.tolist()
    for begin, end in zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True):
        row: Row = {}
        for column, value in zip(columns[begin:end], data[begin:end], strict=True):
            row[column] = (row.get(column, 0) + _residue(value)) % PRIME
        yield {column: value for column, value in row.items() if value}


@lru_cache(maxsize=1 << 16)
def _residue(value: float) -> int:
    exact = meant(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


# --- other weights -------------------------------------------------------------------------------------------------


def _spanned_by_own_columns(rows: sparse.csr_array, by: sparse.csr_array) -> bool:
    """Whether nothing is left when rows of `by` are taken out that have a column which no other of them has."""
    left, terms, others = rows, abs(rows), by
    while others.shape[0]:
        single = np.bincount(others.indices, minlength=others.shape[1]) == 1
        row = np.repeat(np.arange(others.shape[0]), np.diff(others.indptr))
        alone = single[others.indices]
        which, first = np.unique(row[alone], return_index=True)
        if not which.size:
            break
        own, values = others.indices[alone][first], others.data[alone][first]
        factors = sparse.csr_array(left.tocsc()[:, own] @ sparse.diags_array(1 / values))
        taken = others[which]
        left, terms = left - factors @ taken, terms + abs(factors) @ abs(taken)
        others = others[np.setdiff1d(np.arange(others.shape[0]), which)]
    over = abs(left) - ROUNDING * terms
    return not over.nnz or float(over.max()) <= 0


# --- the fractions that weights stand for ----------------------------------------------------------------------------

SIMPLE, NEAR, SMALL = 10**6, 1e-15, 1e-6
"""A float next to a fraction with a denominator up to the first stands for it: by chance that is one float in 2,000.
The distance may be the second, which is what is left of one when other weights are taken off, or for floats below the
third four units in their last place."""


def meant(value: float) -> Fraction:
    """The simple fraction next to a float, or else the float itself."""
    exact = Fraction(value)
    simple = exact.limit_denominator(SIMPLE)
    return simple if abs(simple - exact) <= (NEAR if abs(value) >= SMALL else 4 * math.ulp(value)) else exact
