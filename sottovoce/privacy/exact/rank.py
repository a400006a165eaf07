"""How many directions of the noise a view observes, without rounding: modulo a prime, which dyadic numbers allow.

Floats are whole numbers times powers of two, so sums and products of them are exact modulo an odd prime. The rank there
is never above the true one, and below it only if the prime divides a minor: about one chance in 10^7.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.privacy.observation import Observation

PRIME = 33554393
"""The largest below 2^25: sums of 2^13 products fit into 64 bits."""

LARGEST = 2_000
"""Noise sources up to which it is computed."""

Integers = NDArray[np.int64]


def exact_rank(observation: Observation) -> int | None:
    """The rank of B, the map from noise to observations; None where there are too many sources of noise."""
    sources = observation.sources
    if sources > LARGEST or observation.system.correlation is not None:
        return None
    state = np.zeros((observation.steps[0].observed.state.shape[1], sources), dtype=np.int64)
    echelon, first = _Echelon(sources), 0
    for step in observation.steps:
        fresh = slice(first, first + step.observed.noise.shape[1])
        first = fresh.stop
        both = []
        for part in (step.observed, step.out):
            rows = _residues(part.state) @ state % PRIME
            rows[:, fresh] += _residues(part.noise).toarray()
            both.append(rows % PRIME)
        for row in both[0]:
            echelon.add(row)
        state = both[1]
    return echelon.rank


class _Echelon:
    """Rows in reduced echelon form."""

    def __init__(self, width: int) -> None:
        self._rows, self._pivots = np.zeros((0, width), dtype=np.int64), np.zeros(0, dtype=np.intp)

    @property
    def rank(self) -> int:
        return len(self._pivots)

    def add(self, row: Integers) -> None:
        left = (row - row[self._pivots] @ self._rows) % PRIME
        found = np.flatnonzero(left)
        if not found.size:
            return
        pivot = found[0]
        left = left * pow(int(left[pivot]), -1, PRIME) % PRIME
        self._rows = (self._rows - np.outer(self._rows[:, pivot], left)) % PRIME
        self._rows, self._pivots = np.vstack([self._rows, left]), np.append(self._pivots, pivot)


def _residues(matrix: sparse.csr_array) -> sparse.csr_array:
    values = np.array([_residue(value) for value in matrix.data.tolist()], dtype=np.int64)
    return sparse.csr_array((values, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)


def _residue(value: float) -> int:
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME
