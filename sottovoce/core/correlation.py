"""Correlation over rounds: in round t a node adds `(C^-1 Z)_t`; C is lower triangular, so noise only looks back.

There may be one C for each class of nodes (`ClassCorrelation`): nodes of high degree may correlate their noise
otherwise than those of low degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.noise_sources import Sources
from sottovoce.errors import InputError, Unaccountable


@runtime_checkable
class Correlation(Protocol):
    """A lower-triangular C: in round t a node adds `(C^-1 Z)_t`, which depends on the draws of rounds up to t."""

    @property
    def memory(self) -> int:
        """How many earlier rounds `next` looks at."""

    def bands(self, rounds: int) -> int:
        """How many diagonals C has, for that many rounds: a draw of noise is about gradients no farther back."""

    def column_squares(self, rounds: int) -> NDArray[np.float64]:
        """The squared norm of each column of C for that many rounds: what the gradient of one round tells by itself."""

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        """C for that many rounds."""

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        """C^-1 for that many rounds."""

    def numbers(self, rounds: int) -> NDArray[np.float64]:
        """All numbers that C is made of, in an order of its own."""

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        """`(C^-1 Z)_t` from the draw of round t and what was kept of earlier rounds, newest last; and what to keep."""


@dataclass(frozen=True)
class Differences:
    """AntiPGD: a node takes back in each round what it added in the last, `z_t - z_{t-1}`; C is all ones below.

    >>> Differences().inverse(3)
    array([[ 1.,  0.,  0.],
           [-1.,  1.,  0.],
           [ 0., -1.,  1.]])
    """

    @property
    def memory(self) -> int:
        return 1

    def bands(self, rounds: int) -> int:
        return rounds

    def column_squares(self, rounds: int) -> NDArray[np.float64]:
        return np.arange(rounds, 0, -1, dtype=np.float64)

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        return np.tril(np.ones((rounds, rounds)))

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        return np.eye(rounds) - np.eye(rounds, k=-1)

    def numbers(self, rounds: int) -> NDArray[np.float64]:
        return self.matrix(rounds)

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        return (fresh - past[-1] if past else fresh), fresh


class Triangular:
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

    def __repr__(self) -> str:
        return f"Triangular({len(self._matrix)} rounds, {self._memory + 1} bands)"

    @property
    def memory(self) -> int:
        return self._memory

    def bands(self, rounds: int) -> int:
        return min(len(self.matrix(rounds)), self._memory + 1)

    def column_squares(self, rounds: int) -> NDArray[np.float64]:
        return (self.matrix(rounds) ** 2).sum(axis=0)

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        if rounds > len(self._matrix):
            raise InputError(
                f"{rounds} rounds with a correlation matrix for {len(self._matrix)}",
                "C needs a row for each round",
                "make a larger C or run fewer rounds",
            )
        return self._matrix[:rounds, :rounds]

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        C = self.matrix(rounds)
        return np.asarray(linalg.solve_triangular(C, np.eye(rounds), lower=True))

    def numbers(self, rounds: int) -> NDArray[np.float64]:
        return self.matrix(rounds)

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        """Forward substitution: `(z_t - sum_{s<t} C[t,s] result_s) / C[t,t]`."""
        row = self.matrix(round + 1)[round]
        result = fresh * (1.0 / float(row[round]))
        for back, earlier in enumerate(reversed(past), start=1):
            if row[round - back]:
                arrays.add_(result, -float(row[round - back] / row[round]), earlier)
        return result, result


class Banded:
    """A lower-triangular C kept as its bands, `C[s+j, s]` in row s and column j: memory grows with rounds alone.

    >>> C = Banded(np.array([[1.0, 0.5], [1.0, 0.5], [1.0, 0.0]]))
    >>> C.matrix(3)
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """

    def __init__(self, columns_TB: NDArray[np.float64]) -> None:
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

    def column_squares(self, rounds: int) -> NDArray[np.float64]:
        squares = np.asarray((self.columns(rounds) ** 2).sum(axis=1))
        for s in range(max(0, rounds - self.memory), rounds):
            squares[s] = (self._columns[s, : rounds - s] ** 2).sum()
        return squares

    def columns(self, rounds: int) -> NDArray[np.float64]:
        """`C[s+j, s]` of the first rounds."""
        if rounds > len(self._columns):
            raise InputError(
                f"{rounds} rounds with a correlation matrix for {len(self._columns)}",
                "C needs a row for each round",
                "make a larger C or run fewer rounds",
            )
        return self._columns[:rounds]

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        columns = self.columns(rounds)
        C = np.zeros((rounds, rounds))
        for j in range(min(rounds, columns.shape[1])):
            C[np.arange(j, rounds), np.arange(rounds - j)] = columns[: rounds - j, j]
        return C

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        return np.asarray(linalg.solve_triangular(self.matrix(rounds), np.eye(rounds), lower=True))

    def numbers(self, rounds: int) -> NDArray[np.float64]:
        return self.columns(rounds)

    def next(self, round: int, fresh: Rows, past: Sequence[Rows]) -> tuple[Rows, Rows]:
        """Forward substitution, as for any C."""
        own = float(self.columns(round + 1)[round, 0])
        result = fresh * (1.0 / own)
        for back, earlier in enumerate(reversed(past), start=1):
            if self._columns[round - back, back]:
                arrays.add_(result, -float(self._columns[round - back, back] / own), earlier)
        return result, result


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
