"""How many directions of the noise a view observes, and which gradients it observes without noise: without rounding.

Computed modulo a prime. Weights are fractions, and sums and products of fractions are exact there. The rank there is
never above the true one, and below it only if the prime divides a minor: about one chance in 10^7.

A weight of 1/3 is stored as the nearest float. Three of these do not add up to one, so that the rank of what is stored
may be above that of what is meant: both can be asked for.

Shapes: Z noise sources, G gradients, of all rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.mixing import Mixing
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.privacy.spanned_rows import NEAR, SIMPLE, meant

PRIME = 33554393
"""The largest below 2^25: sums of 2^13 products fit into 64 bits."""

LARGEST, LONGEST = 2_000, 3e8
"""Noise sources up to which it is computed of weights as they are stored; multiplications, of fractions."""

Integers = NDArray[np.int64]


class Rank(NamedTuple):
    """The rank of B, the map from noise to observations, and the columns of A, G of them, that are seen without noise:
    some combination of observations has an entry there, and no noise. Noise is stored in other units than gradients,
    and rounded by itself, so that such columns are known only if it is `certain` what is meant: if all weights are next
    to simple fractions."""

    rank: int
    uncovered: NDArray[np.bool_]
    certain: bool


def exact_rank(observation: Observation, *, stored: bool) -> Rank | None:
    """Of weights as they are `stored`, or of the simple fractions next to them; None where that would take long."""
    Z, G = observation.sources, len(observation.victims) * observation.gradient_rounds
    work = observation.rows * min(observation.rows, Z) * (Z + G)
    if observation.system.correlation is not None or (Z > LARGEST if stored else work > LONGEST):
        return None
    state = np.zeros((observation.steps[0].observed.state.shape[1], Z + G), dtype=np.int64)
    echelon, z, g = _Echelon(Z, G), 0, Z
    for step in observation.steps:
        seen, out = _scaled(step)
        S, V = seen.noise.shape[1], seen.gradient.shape[1]
        both = []
        for part in (seen, out):
            rows = _residues(part.state, stored) @ state % PRIME
            rows[:, z : z + S] += _residues(part.noise, stored).toarray()
            rows[:, g : g + V] += _residues(part.gradient, stored).toarray()
            both.append(rows % PRIME)
        z, g = z + S, g + V
        for row in both[0]:
            echelon.add(row)
        state = both[1]
    certain = not stored and all(_is_simple(part) for step in observation.distinct_steps for part in _parts(step))
    return Rank(echelon.rank, echelon.bare & certain, certain)


def _parts(step: ObservedStep) -> Iterator[sparse.csr_array]:
    for inputs in _scaled(step):
        yield from inputs


def _is_simple(part: sparse.csr_array) -> bool:
    return all(meant(value).denominator <= SIMPLE for value in np.unique(part.data).tolist())


def rank_of_gossip(steps: Iterable[tuple[sparse.csr_array, Mixing]]) -> int:
    """How many combinations of first messages a view gets in some gossip steps: what it gets of each, and its weights,
    as the simple fractions next to them."""
    state, echelon = np.zeros((0, 0), dtype=np.int64), _Echelon(0, 0)
    for seen, mixing in steps:
        if not len(state):
            state, echelon = np.eye(mixing.n, dtype=np.int64), _Echelon(mixing.n, 0)
        for row in _residues(seen, False) @ state % PRIME:
            echelon.add(row)
        state = _residues(mixing.weights, False) @ state % PRIME
    return echelon.rank


def _scaled(step: ObservedStep) -> tuple[Inputs, Inputs]:
    """Noise and gradients in units of their largest entries: that changes no rank, and leaves weights."""
    seen, out = step.observed, step.out
    noise, gradient = _in_units(seen.noise, out.noise), _in_units(seen.gradient, out.gradient)
    return Inputs(seen.state, gradient[0], noise[0]), Inputs(out.state, gradient[1], noise[1])


def _in_units(*parts: sparse.csr_array) -> list[sparse.csr_array]:
    """Columns in units of their largest entry. In those with entries of both signs, differences of weights, what is
    next to nothing is what rounding leaves."""
    least, largest = np.zeros(parts[0].shape[1]), np.zeros(parts[0].shape[1])
    for part in parts:
        np.minimum.at(least, part.indices, part.data)
        np.maximum.at(largest, part.indices, part.data)
    units, differ = np.maximum(-least, largest), (least < 0) & (largest > 0)
    found = []
    for part in parts:
        values = np.divide(part.data, units[part.indices], out=np.zeros(len(part.data)), where=part.data != 0)
        values[differ[part.indices] & (np.abs(values) <= NEAR)] = 0.0
        found.append(sparse.csr_array((values, part.indices, part.indptr), shape=part.shape))
    return found


class _Echelon:
    """Rows in reduced echelon form, by their columns of noise; `bare` are columns after these in which a combination of
    rows has an entry that has none in noise."""

    def __init__(self, noise: int, gradients: int) -> None:
        self._noise = noise
        self._rows, self._pivots = np.zeros((0, noise + gradients), dtype=np.int64), np.zeros(0, dtype=np.intp)
        self.bare = np.zeros(gradients, dtype=bool)

    @property
    def rank(self) -> int:
        return len(self._pivots)

    def add(self, row: Integers) -> None:
        left = (row - row[self._pivots] @ self._rows) % PRIME
        found = np.flatnonzero(left[: self._noise])
        if not found.size:
            self.bare |= left[self._noise :] != 0
            return
        pivot = found[0]
        left = left * pow(int(left[pivot]), -1, PRIME) % PRIME
        self._rows = (self._rows - np.outer(self._rows[:, pivot], left)) % PRIME
        self._rows, self._pivots = np.vstack([self._rows, left]), np.append(self._pivots, pivot)


def _residues(matrix: sparse.csr_array, stored: bool) -> sparse.csr_array:
    values = np.array([_residue(value, stored) for value in matrix.data.tolist()], dtype=np.int64)
    return sparse.csr_array((values, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)


@lru_cache(maxsize=1 << 16)
def _residue(value: float, stored: bool) -> int:
    exact = Fraction(value) if stored else meant(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME
