"""Sensitivity: how far a change of a node's data can move what it releases, the same for all nodes or one for each.

Noise is in units of it. Noise that one node alone knows is in units of that node's own sensitivity: it protects nobody
else's gradient at its source. Noise that several nodes share, or that nobody knows, is in units of the largest.

    >>> largest((0.5, 2.0)), relative((0.5, 2.0)).tolist()
    (2.0, [0.25, 1.0])
    >>> per_node([0.5, 0.5]), per_node([0.5, 2.0])
    (0.5, (0.5, 2.0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.noise import NoiseTerm, PerNode, checked_sizes
from sottovoce.core.noise_sources import Sources
from sottovoce.errors import InputError

ROUNDING = 1e-14
"""Numbers that differ by less, relatively, are the same."""


def per_node(values: Sequence[float] | NDArray[np.float64]) -> PerNode:
    """One number for each node, or the largest where they differ by rounding alone."""
    found = tuple(float(value) for value in values)
    return max(found) if max(found) - min(found) <= ROUNDING * max(found) else found


def checked(value: ArrayLike) -> PerNode:
    """A positive number, or one for each node, in a form that can be hashed."""
    sizes = checked_sizes("sensitivity", value, positive=True)
    return per_node(sizes) if isinstance(sizes, tuple) else sizes


def check_nodes(sizes: PerNode, n: int, name: str = "sensitivity") -> None:
    """Refuse one for each of another number of nodes."""
    if isinstance(sizes, tuple) and len(sizes) != n:
        raise InputError(f"{name} for {len(sizes)} nodes", f"there are {n}", "give one number, or one for each node")


def largest(sensitivity: PerNode) -> float:
    """The largest over nodes."""
    return max(sensitivity) if isinstance(sensitivity, tuple) else sensitivity


def relative(sensitivity: PerNode) -> NDArray[np.float64] | None:
    """That of each node over the largest; None where one number holds for all."""
    return np.array(sensitivity) / max(sensitivity) if isinstance(sensitivity, tuple) else None


def in_units_of_largest(terms: tuple[NoiseTerm, ...], sensitivity: PerNode) -> tuple[NoiseTerm, ...]:
    """Noise whose sizes are in units of its sources' sensitivities, in units of the largest."""
    return _in_units_of_largest(terms, sensitivity) if isinstance(sensitivity, tuple) else terms


@lru_cache(maxsize=32)
def _in_units_of_largest(terms: tuple[NoiseTerm, ...], sensitivity: tuple[float, ...]) -> tuple[NoiseTerm, ...]:
    shares = np.array(sensitivity) / max(sensitivity)
    return tuple(replace(term, matrix=term.matrix.by_source(_of_sources(term.sources, shares))) for term in terms)


def _of_sources(sources: Sources, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each source the share of the one node that knows it; one where several do, or none."""
    holders = sources.holders
    alone = np.diff(holders.indptr) == 1
    found = np.ones(sources.size)
    found[alone] = shares[holders.indices[holders.indptr[:-1][alone]]]
    return found
