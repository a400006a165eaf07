"""One C for each class of nodes: nodes of high degree may correlate their noise otherwise than those of low degree.

    >>> from sottovoce.core.correlation import Differences, Triangular
    >>> mixed = ClassCorrelation((0, 1, 0), (Differences(), Triangular([[1, 0], [0.5, 1]])))
    >>> noise, _ = mixed.next(1, np.ones((3, 1)), [np.ones((3, 1))])
    >>> noise.ravel()
    array([0. , 0.5, 0. ])

What is about one C for all nodes is refused, so that nothing passes over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.correlation import Correlation
from sottovoce.core.noise_sources import Sources
from sottovoce.errors import InputError, Unaccountable

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClassCorrelation:
    """Node u correlates its noise by `parts[labels[u]]`."""

    labels: tuple[int, ...]
    parts: tuple[Correlation, ...]

    def __post_init__(self) -> None:
        if not set(self.labels) <= set(range(len(self.parts))):
            raise InputError(f"classes {sorted(set(self.labels))}", "each class needs a C", "give as many C as classes")

    @property
    def memory(self) -> int:
        return max(part.memory for part in self.parts)

    def bands(self, rounds: int) -> int:
        return max(part.bands(rounds) for part in self.parts)

    def column_squares(self, rounds: int) -> Array:
        return self._refuse()

    def matrix(self, rounds: int) -> Array:
        return self._refuse()

    def inverse(self, rounds: int) -> Array:
        return self._refuse()

    def numbers(self, rounds: int) -> Array:
        each = [part.numbers(rounds).ravel() for part in self.parts]
        return np.concatenate([np.array(self.labels, dtype=np.float64), *each])

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        """Each class by its own C, which looks back as far as that does."""
        if fresh.shape[0] != len(self.labels):
            raise InputError(
                f"noise of {fresh.shape[0]} nodes",
                f"there are classes for {len(self.labels)} nodes",
                "give the noise of all nodes",
            )
        labels = np.array(self.labels)
        noise, kept = arrays.to_numpy(fresh).copy(), arrays.to_numpy(fresh).copy()
        for label, part in enumerate(self.parts):
            nodes = np.flatnonzero(labels == label)
            earlier = [arrays.take(rows, nodes) for rows in past[-part.memory :]] if part.memory else []
            result, remembered = part.next(round, arrays.take(fresh, nodes), earlier)
            noise[nodes], kept[nodes] = arrays.to_numpy(result), arrays.to_numpy(remembered)
        return arrays.convert(noise, fresh), arrays.convert(kept, fresh)

    def among(self, nodes: Sequence[int]) -> ClassCorrelation:
        """For the rows of these nodes alone."""
        return ClassCorrelation(tuple(self.labels[node] for node in nodes), self.parts)

    def _refuse(self) -> NoReturn:
        raise Unaccountable("each class of nodes has its own C, so this does not apply: it needs one C for all nodes")


def for_sources(correlation: Correlation, sources: Sources) -> Correlation:
    """The C of rows that these sources, each a node's own, are drawn for."""
    if not isinstance(correlation, ClassCorrelation):
        return correlation
    return correlation.among(sources.groups[:, 0].tolist())


def of_node(correlation: Correlation, node: int) -> Correlation:
    """The C of one node."""
    return correlation.parts[correlation.labels[node]] if isinstance(correlation, ClassCorrelation) else correlation


def groups_of(correlation: Correlation, nodes: NDArray[np.intp]) -> list[tuple[Correlation, NDArray[np.intp]]]:
    """Each C with the places, among these nodes, of those that have it."""
    if not isinstance(correlation, ClassCorrelation):
        return [(correlation, np.arange(len(nodes)))]
    labels = np.array(correlation.labels)[nodes]
    found = ((part, np.flatnonzero(labels == label)) for label, part in enumerate(correlation.parts))
    return [(part, places) for part, places in found if len(places)]


def unrolled_inverse(correlation: Correlation, rounds: int, nodes: NDArray[np.intp]) -> Array:
    """What takes the draws of all rounds, those of these nodes in each, to their noise; for small systems."""
    whole = np.zeros((rounds, len(nodes), rounds, len(nodes)))
    for part, places in groups_of(correlation, nodes):
        whole[:, places, :, places] = part.inverse(rounds)
    return whole.reshape(rounds * len(nodes), rounds * len(nodes))
