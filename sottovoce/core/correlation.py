"""Correlation over rounds: in round t a node adds `(C^-1 Z)_t`; C is lower triangular, so noise only looks back.

There may be one C for each class of nodes (`ClassCorrelation`): nodes of high degree may correlate their noise
otherwise than those of low degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.noise_sources import Sources
from sottovoce.errors import InputError, Unaccountable

Floats = NDArray[np.float64]


@runtime_checkable
class Correlation(Protocol):
    """A lower-triangular C: in round t a node adds `(C^-1 Z)_t`, which depends on the draws of rounds up to t.

    All follows from `matrix` and `memory`; kinds of C that know a shorter way have their own.
    """

    @property
    def memory(self) -> int:
        """How many earlier rounds `next` looks at."""

    def matrix(self, rounds: int) -> Floats:
        """C for that many rounds."""

    def row(self, round: int) -> Floats:
        """The row of a round, up to its diagonal."""
        return np.asarray(self.matrix(round + 1)[round])

    def bands(self, rounds: int) -> int:
        """How many diagonals C has, for that many rounds: a draw of noise is about gradients no farther back."""
        return min(len(self.matrix(rounds)), self.memory + 1)

    def column_squares(self, rounds: int) -> Floats:
        """The squared norm of each column of C for that many rounds: what the gradient of one round tells by itself."""
        return np.asarray((self.matrix(rounds) ** 2).sum(axis=0))

    def inverse(self, rounds: int) -> Floats:
        """C^-1 for that many rounds."""
        return np.asarray(linalg.solve_triangular(self.matrix(rounds), np.eye(rounds), lower=True))

    def numbers(self, rounds: int) -> Floats:
        """All numbers that C is made of, in an order of its own."""
        return self.matrix(rounds)

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        """`(C^-1 Z)_t` from the draw of round t and what was kept of earlier rounds, newest last; and what to keep.

        Forward substitution: `(z_t - sum_{s<t} C[t,s] result_s) / C[t,t]`.
        """
        row = self.row(round)
        result = fresh * (1.0 / float(row[round]))
        for back, earlier in enumerate(reversed(past), start=1):
            if row[round - back]:
                arrays.add_(result, -float(row[round - back] / row[round]), earlier)
        return result, result


@dataclass(frozen=True)
class Differences(Correlation):
    """AntiPGD: a node takes back in each round what it added in the last, `z_t - z_{t-1}`; C is all ones below.

    >>> Differences().inverse(3)
    array([[ 1.,  0.,  0.],
           [-1.,  1.,  0.],
           [ 0., -1.,  1.]])
    """

    @property
    def memory(self) -> int:
        return 1

    def matrix(self, rounds: int) -> Floats:
        return np.tril(np.ones((rounds, rounds)))

    def bands(self, rounds: int) -> int:
        return rounds

    def inverse(self, rounds: int) -> Floats:
        return np.eye(rounds) - np.eye(rounds, k=-1)

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        return (fresh - past[-1] if past else fresh), fresh


class Triangular(Correlation):
    """Any lower-triangular C with a non-zero diagonal, dense or banded; a band of b looks back b - 1 rounds.

    >>> C = Triangular([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]])
    >>> C.memory
    1
    >>> C.inverse(2)
    array([[ 1. ,  0. ],
           [-0.5,  1. ]])
    """

    def __init__(self, matrix: ArrayLike) -> None:
        try:
            if np.iscomplexobj(matrix) or np.ma.is_masked(matrix):
                raise TypeError
            C = np.array(matrix, dtype=np.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise InputError(
                "correlation matrix is not an array of numbers", "C must be one", "give a 2-D array"
            ) from None
        if C.ndim != 2 or C.shape[0] != C.shape[1] or not C.size:
            raise InputError(
                f"correlation matrix of shape {C.shape}", "C must be square, with one row for each round", "reshape it"
            )
        if not np.isfinite(C).all() or np.triu(C, 1).any():
            where = "not finite" if not np.isfinite(C).all() else "not lower triangular"
            raise InputError(
                f"correlation matrix is {where}",
                "noise can depend only on earlier rounds",
                "use its lower-triangular factor",
            )
        if not np.diag(C).all():
            row = int(np.flatnonzero(np.diag(C) == 0)[0])
            raise InputError(f"C[{row},{row}] = 0", "C must be invertible", "give a diagonal without zeros")
        sizes = np.abs(C[C != 0])
        if sizes.max() > 1e100 or sizes.min() < 1e-100:
            raise InputError("entries of C beyond 1e100 or below 1e-100", "its square must be a number", "rescale C")
        self._matrix = C
        self._matrix.flags.writeable = False
        below, above = np.nonzero(C)
        self._memory = int((below - above).max())

    @property
    def is_nonnegative(self) -> bool:
        """Whether it has no negative entry."""
        return bool((self._matrix >= 0).all())

    def __repr__(self) -> str:
        return f"Triangular({len(self._matrix)} rounds, {self._memory + 1} bands)"

    @property
    def memory(self) -> int:
        return self._memory

    def matrix(self, rounds: int) -> Floats:
        return _rows(self._matrix, rounds)[:, :rounds]


class Banded(Correlation):
    """A lower-triangular C kept as its bands, `C[s+j, s]` in row s and column j: memory grows with rounds alone.

    >>> C = Banded(np.array([[1.0, 0.5], [1.0, 0.5], [1.0, 0.0]]))
    >>> C.matrix(3)
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """

    def __init__(self, columns_TB: Floats) -> None:
        if columns_TB.ndim != 2 or not columns_TB.size or not np.isfinite(columns_TB).all():
            raise InputError(
                f"bands of shape {columns_TB.shape}", "they must be finite, with one row for each round", "correct them"
            )
        if not columns_TB[:, 0].all():
            row = int(np.flatnonzero(columns_TB[:, 0] == 0)[0])
            raise InputError(f"C[{row},{row}] = 0", "C must be invertible", "give a diagonal without zeros")
        self._columns = np.array(columns_TB, dtype=np.float64)
        self._columns.flags.writeable = False

    def __repr__(self) -> str:
        return f"Banded({len(self._columns)} rounds, {self._columns.shape[1]} bands)"

    @property
    def memory(self) -> int:
        return self._columns.shape[1] - 1

    def bands(self, rounds: int) -> int:
        return min(len(self.columns(rounds)), self._columns.shape[1])

    def column_squares(self, rounds: int) -> Floats:
        squares = np.asarray((self.columns(rounds) ** 2).sum(axis=1))
        for s in range(max(0, rounds - self.memory), rounds):
            squares[s] = (self._columns[s, : rounds - s] ** 2).sum()
        return squares

    def columns(self, rounds: int) -> Floats:
        """`C[s+j, s]` of the first rounds."""
        return _rows(self._columns, rounds)

    def matrix(self, rounds: int) -> Floats:
        columns = self.columns(rounds)
        C = np.zeros((rounds, rounds))
        for j in range(min(rounds, columns.shape[1])):
            C[np.arange(j, rounds), np.arange(rounds - j)] = columns[: rounds - j, j]
        return C

    def row(self, round: int) -> Floats:
        columns, row = self.columns(round + 1), np.zeros(round + 1)
        for back in range(min(round, self.memory) + 1):
            row[round - back] = columns[round - back, back]
        return row

    def numbers(self, rounds: int) -> Floats:
        return self.columns(rounds)


def _rows(stored: Floats, rounds: int) -> Floats:
    """The rows of the first rounds."""
    if rounds > len(stored):
        raise InputError(
            f"{rounds} rounds with a correlation matrix for {len(stored)}",
            "C needs a row for each round",
            "make a larger C or run fewer rounds",
        )
    return stored[:rounds]


@dataclass(frozen=True)
class ClassCorrelation(Correlation):
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

    def matrix(self, rounds: int) -> Floats:
        raise Unaccountable("each class of nodes has its own C, so this does not apply: it needs one C for all nodes")

    def numbers(self, rounds: int) -> Floats:
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


def unrolled_inverse(correlation: Correlation, rounds: int, nodes: NDArray[np.intp]) -> Floats:
    """What takes the draws of all rounds, those of these nodes in each, to their noise; for small systems."""
    whole = np.zeros((rounds, len(nodes), rounds, len(nodes)))
    for part, places in groups_of(correlation, nodes):
        whole[:, places, :, places] = part.inverse(rounds)
    return whole.reshape(rounds * len(nodes), rounds * len(nodes))
