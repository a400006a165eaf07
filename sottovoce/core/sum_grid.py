"""The grid of secure sums: in which integers values travel, with how much noise, and how a sum is read.

A node sends `k + z`: k its value in steps of the grid, rounded, z a discrete Gaussian. Receivers get the weighted sum
of such integers, exactly, and nothing else (`fixed_point`, `pair_masks`). All of it follows from public settings:
noise, sensitivity and weights.

Shapes: N nodes, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.arrays import Reals
from sottovoce.core.discrete_gaussians import LARGEST_SIGMA
from sottovoce.core.fixed_point import LARGEST_INTEGER, SumRange, Words, decoded, encoded
from sottovoce.core.integer_weights import IntegerWeights, integer_weights
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.random_streams import RandomSource, RandomStream
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.errors import Diverged, InputError
from sottovoce.support.memo import once_for_each

FINEST = 32
"""A sensitivity has up to 2 to this many steps: rounding k of a billion parameters moves it by less than 1e-5."""

COARSEST = 12
"""Below so many, rounding would cost more than it is worth."""

LARGEST_VALUE = 2**16
"""Values of so many sensitivities can be sent: clipped gradients of records are batches of these."""

LARGEST_MODEL = 2.0**14
"""Parameters of models up to this are sent to neighbours."""

SUMS = 2**60
"""More sums than a run has, over its rounds, nodes and parameters."""


@dataclass(frozen=True, eq=False)
class SumGrid:
    """Values are integers times `step`; each of its nodes adds a discrete Gaussian of so many steps, `sigma_N`.

    Nodes may have sensitivities of their own: noise is in units of the largest, rounding weighs most on the least.
    `bounds_N[v]` is what the sum that node v gets stays within, its own integers counted.
    """

    step: float
    sensitivity: float
    least_sensitivity: float
    nodes: tuple[int, ...]
    sigma_N: tuple[int, ...]
    term: NoiseTerm
    weights: IntegerWeights
    bounds_N: tuple[int, ...]

    @cached_property
    def in_units(self) -> FactoredMatrix:
        """The noise that was asked for, in the units of gradients; what is added is a little more."""
        return self.term.matrix.scaled(self.sensitivity)

    def streams(self, source: RandomSource, round: int) -> Iterator[RandomStream]:
        """The random stream of each of its nodes, for the noise of a round."""
        return (self.term.sources.stream(source, node, round, 0) for node in self.nodes)

    def with_noise_of(self, which_N: NDArray[np.bool_]) -> SumGrid:
        """The same grid where only some nodes add their noise."""
        return replace(self, sigma_N=tuple(np.where(which_N, self.sigma_N, 0).tolist()))

    def of(self, nodes: NDArray[np.intp]) -> SumGrid:
        """The same grid for the rows of some nodes."""
        return replace(self, nodes=tuple(nodes.tolist()), sigma_N=tuple(self.sigma_N[node] for node in nodes))

    def mixed(self, rows_ND: Reals) -> Reals:
        """What every node makes of the sum over all nodes, which have equal weights."""
        total = encoded(rows_ND, self.step).astype(np.uint64).sum(axis=0, dtype=np.uint64)
        return np.broadcast_to(self.average(total), rows_ND.shape)

    def average(self, total_D: Words) -> Reals:
        """The average, from the sum of all nodes' integers."""
        return _read(total_D, self.bounds_N[0], self.weights.denominators[0], self.step)


@dataclass(frozen=True, eq=False)
class ModelGrid:
    """Models are integers times `step`, and each node gets the weighted sum of its neighbours' integers."""

    step: float
    weights: IntegerWeights
    bounds_N: tuple[int, ...]

    def mixed(self, rows_ND: Reals) -> Reals:
        """What every node makes of its sum and of its own integers."""
        totals = self.weights.numerators @ encoded(rows_ND, self.step)
        return np.stack([self.average(v, total) for v, total in enumerate(totals.view(np.uint64))])

    def average(self, node: int, total_D: Words) -> Reals:
        """The weighted average of a node and its neighbours, from the sum of their integers."""
        return _read(total_D, self.bounds_N[node], self.weights.denominators[node], self.step)


IntegerSums: TypeAlias = SumGrid | ModelGrid


def _read(total_D: Words, bound: int, denominator: int, step: float) -> Reals:
    integers = decoded(total_D, bound)
    if integers is None:
        raise Diverged(
            "a secure sum beyond its range",
            "by chance this happens once in 2^100 runs",
            "clip gradients, or lower the step size",
        )
    return integers * step / denominator


@once_for_each
def model_grid(mixing: Mixing) -> ModelGrid:
    """The grid of models whose sums over neighbours fit into 64 bits: the finest for numbers up to 2^14."""
    weights = integer_weights(mixing)
    integers = min(LARGEST_INTEGER, 2**62 // max(weights.denominators))
    step = math.ldexp(1.0, math.ceil(math.log2(LARGEST_MODEL / integers)))
    most = math.ceil(LARGEST_MODEL / step)
    return ModelGrid(step, weights, _bounds(weights, most, (0,) * mixing.n))


def sum_grid(algorithm: Algorithm, mixing: Mixing) -> SumGrid:
    """The grid of an algorithm's secure sums: as fine as 64 bits allow, up to 2^32 steps to a sensitivity."""
    terms = in_units_of_largest(algorithm.noise.local(mixing), algorithm.sensitivity)
    grid = _grid(terms, largest(algorithm.sensitivity), mixing)
    least = float(np.min(algorithm.sensitivity))
    return grid if least == grid.least_sensitivity else replace(grid, least_sensitivity=least)


@lru_cache(maxsize=32)
def _grid(terms: tuple[NoiseTerm, ...], sensitivity: float, mixing: Mixing) -> SumGrid:
    sizes = terms[0].matrix.diagonal() if len(terms) == 1 else None
    if sizes is None or not np.all(sizes > 0):
        raise InputError(
            "noise of secure sums",
            "with secure sums every node must add fresh noise of its own, and no other noise",
            "use sigma > 0",
        )
    weights = integer_weights(mixing)
    least_step = math.ldexp(1.0, math.frexp(sensitivity)[1] - 1)  # the power of two that is not above it
    for finer in range(FINEST, COARSEST - 1, -1):
        step = math.ldexp(least_step, -finer)
        sigma = tuple(math.ceil(size * sensitivity / step) for size in sizes.tolist())
        largest_value = math.ceil(LARGEST_VALUE * sensitivity / step)
        try:
            if max(sigma) > LARGEST_SIGMA or largest_value > LARGEST_INTEGER:
                continue
            nodes = tuple(range(mixing.n))
            bounds = _bounds(weights, largest_value, sigma)
            return SumGrid(step, sensitivity, sensitivity, nodes, sigma, terms[0], weights, bounds)
        except InputError:  # sums do not fit: a coarser grid may do
            continue
    raise InputError(
        f"secure sums with sigma {max(sizes):.3g} and weights over {max(weights.denominators)}",
        f"they do not fit into 64 bits with {2**COARSEST} steps to the sensitivity",
        "use uniform or max-degree weights, or less noise",
    )


def _bounds(weights: IntegerWeights, largest: int, sigma: tuple[int, ...]) -> tuple[int, ...]:
    rows, bounds = weights.numerators, []
    for v in range(rows.shape[0]):
        row = slice(rows.indptr[v], rows.indptr[v + 1])
        senders = rows.indices[row].tolist()
        sums = SumRange(rows.data[row].tolist(), [largest] * len(senders), [sigma[u] for u in senders], SUMS)
        bounds.append(sums.bound())
    return tuple(bounds)
