"""Secure sums are sums of integers: mixing weights as integers, the grid of values, how a sum is read, who sends.

A node sends `k + z`: k its value in steps of the grid, rounded, z a discrete Gaussian, as integers modulo 2^64, so that
sums of them are exact and can be masked. Receivers get the weighted sum of such integers, and nothing else:

    w (round(x / h) + z)  mod 2^64

Sums wrap around, and never round. Read as a number between -2^63 and 2^63, a sum is the plain one as long as that lies
between -bound and bound, where `sum_bound` has chosen it so that chance alone passes it with a probability below
2^-100. What is decoded to more than that counts as failed. All of it follows from public settings.

    >>> h = 2.0**-10
    >>> messages = [weighted(encoded(np.array([x]), h), w) for x, w in ((0.5, 3), (-2.0, 1))]
    >>> decoded(messages[0] + messages[1], bound=10_000) * h
    array([-0.5])

Shapes: N nodes, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.arrays import Reals
from sottovoce.core.exact_gaussians import LARGEST_SIGMA
from sottovoce.core.grid import NoiseOnGrid, power_of_two_below
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import Noise, PerNode
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.core.topologies import Topology
from sottovoce.errors import Diverged, InputError, require_whole
from sottovoce.support.memo import once_for_each

Words: TypeAlias = NDArray[np.uint64]
"""Integers modulo 2^64, as they travel."""

Integers: TypeAlias = NDArray[np.int64]

BITS = 64
LARGEST_INTEGER = 2**52
"""Of a value before noise: float64 has all integers up to it."""

OVERFLOW_BITS = 100
"""The noise of all sums of a run together passes their bound with a probability below 2 to the minus this."""


def encoded(values: Reals, step: float) -> Integers:
    """The integers nearest to `values / step`, computed in float64; refuses what would not be one of its integers."""
    multiples = np.rint(np.asarray(values, dtype=np.float64) / step)
    if not bool((np.abs(multiples) <= LARGEST_INTEGER).all()):  # nan too
        raise InputError(
            f"a value beyond {LARGEST_INTEGER * step:.3g}", f"integers of step {step:g} hold no larger values",
            "clip gradients, lower the step size, or declare a larger range",
        )  # fmt: skip
    return multiples.astype(np.int64)


def weighted(integers: Integers, weight: int) -> Words:
    """`weight * integers` modulo 2^64."""
    return integers.astype(np.uint64) * np.uint64(weight % 2**BITS)


def decoded(total: Words, bound: int) -> Integers | None:
    """A sum read as integers around zero; None, failed, where one of them is beyond the bound."""
    integers = total.astype(np.uint64, copy=False).view(np.int64)
    inside = (integers <= np.int64(bound)) & (integers >= np.int64(-bound))
    return integers if bool(inside.all()) else None


def sum_bound(weights: Sequence[int], largest: Sequence[int], sigma: Sequence[float], count: int) -> int:
    """What `count` sums of weights times values up to `largest`, plus noise, stay within but for a chance of 2^-100.

    Refused where that is no signed 64-bit integer. Noise is sub-Gaussian of standard deviation `sigma`: Gaussians, and
    discrete Gaussians (Canonne, Kairouz and Steinke 2020); `P[|noise| > a] <= 2 exp(-a^2 / (2 V))` for variance V, once
    for each of the sums. Three sequences with an entry for each sender.
    """
    values = sum(abs(weight) * most for weight, most in zip(weights, largest, strict=True))
    deviation = math.hypot(*(weight * size for weight, size in zip(weights, sigma, strict=True)))
    factor = math.sqrt(2 * ((OVERFLOW_BITS + 1) * math.log(2) + math.log(max(1, count))))
    bound = values + math.ceil(deviation * factor * (1 + 2**-40)) + 1
    if bound >= 2 ** (BITS - 1):
        raise InputError(
            f"sums up to 2^{math.log2(bound):.1f}", f"sums must be integers below 2^{BITS - 1}",
            "declare a smaller range of values, or use weights with a smaller common denominator",
        )  # fmt: skip
    return bound


LARGEST_DENOMINATOR = 100_000
"""Of a single weight. Two fractions with smaller denominators are 1e-10 apart."""

LARGEST_COMMON = 2**31
"""Of all weights of a receiver together."""

TOLERANCE = 1e-13
"""How far a stored weight may be from its fraction; float64 rounds by 1e-16."""


class IntegerWeights(NamedTuple):
    """`W[v, u] = numerators[v, u] / denominators[v]`, the diagonal stored even where it is zero."""

    numerators: sparse.csr_array
    denominators: tuple[int, ...]

    def senders(self, receiver: int) -> list[int]:
        """Whom a node gets messages from: the others that it gives a weight to."""
        row = self.numerators.indices[self.numerators.indptr[receiver] : self.numerators.indptr[receiver + 1]]
        return [int(sender) for sender in row if sender != receiver]

    def weight(self, receiver: int, sender: int) -> int:
        """The numerator of what a node gives to another."""
        return int(self.numerators[receiver, sender])


@once_for_each
def integer_weights(mixing: Mixing) -> IntegerWeights:
    """The weights of a gossip step as integers; refuses those that are no fractions with a small denominator.

    Rows sum to one, so that what a node gives to itself is what is left, whatever float64 made of it.
    """
    mixing.require("row-stochastic")
    weights = sparse.csr_array(mixing.weights + sparse.csr_array(sparse.eye_array(mixing.n)))  # with a whole diagonal
    numerators, denominators = np.zeros(weights.nnz, dtype=np.int64), []
    fractions: dict[float, Fraction] = {}
    for v in range(mixing.n):
        row = slice(weights.indptr[v], weights.indptr[v + 1])
        own = weights.indices[row] == v
        given = weights.data[row][~own].tolist()
        fractions |= {weight: _fraction(weight, v) for weight in given if weight not in fractions}
        others = [fractions[weight] for weight in given]
        common = math.lcm(*(fraction.denominator for fraction in others))
        _check_common(common, v)
        counts = [int(fraction * common) for fraction in others]
        numerators[row][~own], numerators[row][own] = counts, common - sum(counts)
        denominators.append(common)
    return IntegerWeights(
        sparse.csr_array((numerators, weights.indices, weights.indptr), weights.shape), tuple(denominators)
    )


def _check_common(denominator: int, receiver: int) -> None:
    if denominator > LARGEST_COMMON:
        raise InputError(
            f"the weights of node {receiver} have the common denominator {denominator}",
            f"secure sums need one up to {LARGEST_COMMON}", "use uniform or max-degree weights",
        )  # fmt: skip


def _fraction(weight: float, receiver: int) -> Fraction:
    found = Fraction(weight).limit_denominator(LARGEST_DENOMINATOR)
    if abs(float(found - Fraction(weight))) > TOLERANCE:
        raise InputError(
            f"node {receiver} gives a weight of {weight!r}",
            f"weights of secure sums are fractions with a denominator up to {LARGEST_DENOMINATOR}",
            "use uniform or max-degree weights",
        )  # fmt: skip
    return found


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
class _IntegerGrid:
    """Values are integers times `step`; the sum that node v gets, its own counted, stays within `bounds_N[v]`."""

    step: float
    weights: IntegerWeights
    bounds_N: tuple[int, ...]

    def average(self, total_D: Words, node: int) -> Reals:
        """The weighted average at a node, from the sum of integers that it gets and its own."""
        integers = decoded(total_D, self.bounds_N[node])
        if integers is None:
            raise Diverged(
                "a secure sum beyond its range",
                "by chance this happens once in 2^100 runs",
                "clip gradients, or lower the step size",
            )
        return integers * self.step / self.weights.denominators[node]


@dataclass(frozen=True, eq=False)
class SumGrid(_IntegerGrid):
    """Sums over all nodes, which have equal weights; each node adds a discrete Gaussian of so many steps, `sigma_N`.

    Nodes may have sensitivities of their own: noise is in units of the largest, rounding weighs most on the least.
    `noise` is what was asked for; what is added is a little more.
    """

    least_sensitivity: float
    sigma_N: tuple[int, ...]
    noise: NoiseOnGrid

    def mixed(self, rows_ND: Reals) -> Reals:
        """What every node makes of the sum over all nodes."""
        total = encoded(rows_ND, self.step).astype(np.uint64).sum(axis=0, dtype=np.uint64)
        return np.broadcast_to(self.average(total, 0), rows_ND.shape)


@dataclass(frozen=True, eq=False)
class ModelGrid(_IntegerGrid):
    """Models, of which each node gets the weighted sum of its neighbours' integers."""

    def mixed(self, rows_ND: Reals) -> Reals:
        """What every node makes of its sum and of its own integers."""
        totals = self.weights.numerators @ encoded(rows_ND, self.step)
        return np.stack([self.average(total, v) for v, total in enumerate(totals.view(np.uint64))])


IntegerSums: TypeAlias = SumGrid | ModelGrid


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
    return _sum_grid(algorithm.noise, algorithm.sensitivity, mixing)


@lru_cache(maxsize=32)
def _sum_grid(noise: Noise, sensitivity: PerNode, mixing: Mixing) -> SumGrid:
    terms, unit = in_units_of_largest(noise.local(mixing), sensitivity), largest(sensitivity)
    sizes = terms[0].matrix.diagonal() if len(terms) == 1 else None
    if sizes is None or not np.all(sizes > 0):
        raise InputError(
            "noise of secure sums",
            "with secure sums every node must add fresh noise of its own, and no other noise",
            "use sigma > 0",
        )
    weights = integer_weights(mixing)
    for finer in range(FINEST, COARSEST - 1, -1):
        step = math.ldexp(power_of_two_below(unit), -finer)
        sigma = tuple(whole_sizes(sizes * unit / step))
        largest_value = math.ceil(LARGEST_VALUE * unit / step)
        try:
            if max(sigma) > LARGEST_SIGMA or largest_value > LARGEST_INTEGER:
                continue
            in_units = NoiseOnGrid(step, (replace(terms[0], matrix=terms[0].matrix.scaled(unit)),), whole=True)
            bounds_N = _bounds(weights, largest_value, sigma)
            return SumGrid(step, weights, bounds_N, float(np.min(sensitivity)), sigma, in_units)
        except InputError:  # sums do not fit: a coarser grid may do
            continue
    raise InputError(
        f"secure sums with sigma {max(sizes):.3g} and weights over {max(weights.denominators)}",
        f"they do not fit into 64 bits with {2**COARSEST} steps to the sensitivity",
        "use uniform or max-degree weights, or less noise",
    )


def whole_sizes(sizes: Reals) -> list[int]:
    """Standard deviations of discrete Gaussians, in steps, that are not below these."""
    return [math.ceil(size) for size in sizes.tolist()]


def _bounds(weights: IntegerWeights, largest: int, sigma: tuple[int, ...]) -> tuple[int, ...]:
    rows, bounds = weights.numerators, []
    for v in range(rows.shape[0]):
        row = slice(rows.indptr[v], rows.indptr[v + 1])
        senders = rows.indices[row].tolist()
        sizes = [sigma[u] for u in senders]
        bounds.append(sum_bound(rows.data[row].tolist(), [largest] * len(senders), sizes, SUMS))
    return tuple(bounds)


def check_sum_sets(topology: Topology, colluders: int) -> None:
    """Refuse sets in which some coalition of this size, the receiver in it, leaves fewer than two honest senders.

    >>> from sottovoce.core.topologies import metropolis
    >>> check_sum_sets(metropolis("ring:5"), 1)
    >>> check_sum_sets(metropolis("ring:5"), 2)
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: node 0 gets a sum over nodes 1, 4; with 2 colluders every sum is over at least 3 ...
    """
    require_whole(colluders, f"{colluders!r} colluders", 1, "a receiver knows its own noise: count at least one")
    if not topology.static:
        raise InputError(
            f"secure sums on {topology.name}", "who sends to whom must be fixed before the first round",
            "use a fixed topology",
        )  # fmt: skip
    weights = integer_weights(topology.at(0))
    for receiver in range(topology.n):
        senders = weights.senders(receiver)
        if len(senders) <= colluders:
            raise InputError(
                f"{_named([receiver], topology)} gets a sum over {_named(senders, topology)}",
                f"with {colluders} colluder{'s' * (colluders > 1)} every sum is over at least {colluders + 1} others",
                "give it more neighbours, or assume fewer colluders",
            )  # fmt: skip


def _named(nodes: Sequence[int], topology: Topology) -> str:
    """Nodes as their graph calls them."""
    if not nodes:
        return "nobody"
    if topology.names is not None:
        return ", ".join(topology.names[node] for node in nodes)
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
