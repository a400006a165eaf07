"""Mixing weights as integers over a common denominator, so that weighted sums of integers are integers.

>>> from sottovoce.core.topologies import metropolis
>>> found = integer_weights(metropolis("path:3").at(0))
>>> found.numerators.toarray(), found.denominators
(array([[2, 1, 0],
       [1, 1, 1],
       [0, 1, 2]]), (3, 3, 3))
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy import sparse

from sottovoce.core.mixing import Mixing
from sottovoce.errors import InputError
from sottovoce.support.memo import once_for_each

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
