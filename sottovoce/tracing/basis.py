"""What the loop is given while it is traced: a basis row for every state, gradient and noise source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, RandomK
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import public_stream
from sottovoce.core.release import GossipStep, LoopInputs
from sottovoce.core.transport import Delivered, InProcess, mixed_weight
from sottovoce.errors import InputError, Unaccountable
from sottovoce.tracing.linear_forms import OTHER_ROUND, LinearRows, as_linear, slots

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm, Message, State

Result = TypeVar("Result")


@dataclass(frozen=True)
class Coordinate:
    """Which coordinate is traced, of how many; they differ if compression keeps some of them, or factors differ."""

    index: int
    dimension: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.dimension:
            raise InputError(
                f"coordinate {self.index} of {self.dimension}", "coordinates count from 0", "choose a smaller one"
            )


FIRST = Coordinate(0, 1)
"""The only coordinate of a one-dimensional run."""


class Coordinates:
    """Which coordinate is traced, and which others are treated like it: those with the same factors throughout.

    `labels` has the class of every coordinate, as far as factors that differ by coordinate were met.
    """

    def __init__(self, traced: Coordinate) -> None:
        self.traced = traced
        self.labels: NDArray[np.intp] | None = None if traced is FIRST else np.zeros(traced.dimension, dtype=np.intp)
        self._known: dict[bytes, NDArray[np.float64]] = {}

    def note(self, factors: NDArray[np.float64]) -> None:
        """Tell coordinates apart by these factors, K x D."""
        if self.labels is None:
            self.labels = np.zeros(factors.shape[1], dtype=np.intp)
        if factors.shape[1] != len(self.labels):
            raise Unaccountable(
                f"factors for {factors.shape[1]} and for {len(self.labels)} parameters; give one for each parameter"
            )
        key = factors.tobytes()
        if key not in self._known:
            self._known[key] = factors
            _, labels = np.unique(np.vstack([self.labels, factors]), axis=1, return_inverse=True)
            self.labels = labels.reshape(-1)

    @property
    def others(self) -> list[Coordinate]:
        """One coordinate of every class but that of the traced one."""
        if self.labels is None:
            return []
        labels, first = np.unique(self.labels, return_index=True)
        mine = self.labels[self.traced.index]
        return [Coordinate(int(at), len(self.labels)) for label, at in zip(labels, first, strict=True) if label != mine]


class Basis:
    """A feed that answers with basis rows: every gradient and every noise source gets a column of its own."""

    def __init__(self, n: int, seed: int, coordinates: Coordinates) -> None:
        self.n, self._seed, self._coordinates = n, seed, coordinates
        self.sources: list[tuple[int, int, Sources]] = []
        self._blocks: list[tuple[str, int]] = []
        self._starts: list[int] = []

    @property
    def width(self) -> int:
        """Columns so far."""
        return sum(size for _, size in self._blocks)

    def columns(self, kind: str) -> NDArray[np.intp]:
        """The columns of one kind: state, gradient or noise."""
        return np.flatnonzero(np.repeat([name == kind for name, _ in self._blocks], [s for _, s in self._blocks]))

    def fresh(self, kind: str, size: int) -> LinearRows:
        """New columns, and the identity on them."""
        return self._place(sparse.eye_array(size, format="csr"), self._open(kind, size))

    def _open(self, kind: str, size: int) -> int:
        start = self.width
        self._blocks.append((kind, size))
        return start

    def _place(self, matrix: sparse.csr_array, start: int) -> LinearRows:
        shape = (matrix.shape[0], start + matrix.shape[1])
        return LinearRows(sparse.csr_array((matrix.data, matrix.indices + start, matrix.indptr), shape=shape), self)

    def _start(self, sources: Sources, round: int, step: int) -> int:
        """Where the columns of these sources in this step begin; opened when first asked for."""
        for (number, at, known), start in zip(self.sources, self._starts, strict=True):
            if known is sources and (number, at) == (round, step):
                return start
        self.sources.append((round, step, sources))
        self._starts.append(self._open("noise", sources.size))
        return self._starts[-1]

    def at_coordinate(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """The factors of the coordinate that is traced."""
        self._coordinates.note(factors)
        return factors[:, self._coordinates.traced.index]

    def gradient(self, round: int, point: Rows) -> LinearRows:
        """A basis row for each node; what the gradient depends on does not matter."""
        return self.fresh("gradient", self.n)

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> LinearRows:
        """`matrix` itself, on the columns of its sources."""
        return self._place(matrix.whole(), self._start(sources, round, step))

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> LinearRows:
        """One round does not see the others: the system holds C beside its steps."""
        return self.noise(sources, matrix, round, 0)

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> LinearRows:
        """The sum: rounding is a function of it. What whole numbers cost is counted in `privacy.discrete_noise`."""
        total = as_linear(values)
        for term in noise.in_units:
            if noise.correlation is None:
                total = total + self.noise(term.sources, term.matrix, round, 0)
            else:
                total = total + self.correlated(noise.correlation, term.sources, term.matrix, round)
        return total

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> LinearRows:
        """Kept or not, for the coordinate that is traced."""
        return as_linear(rows) * self._kept(self._linear(operator), round, step)

    def _linear(self, operator: Compression) -> RandomK:
        """The operator, if it is linear and it is said which coordinate is traced."""
        if not isinstance(operator, RandomK):
            raise Unaccountable(
                f"{operator.name} is not linear, so single messages cannot be traced; "
                "use rand:A or identity compression, or the view given all noisy gradients"
            )
        if self._coordinates.traced is FIRST:
            raise InputError(
                f"{operator.name} traced without a coordinate",
                "which coordinates it keeps depends on their number",
                "give coordinate=Coordinate(0, D), D the number of parameters",
            )
        return operator

    def _kept(self, operator: RandomK, round: int, step: int) -> NDArray[np.float64]:
        """One for each node that sends the coordinate, zero for the others."""
        streams = [public_stream(self._seed, "compression", [node], round, step) for node in range(self.n)]
        traced = self._coordinates.traced
        return operator.mask(traced.dimension, streams)[:, [traced.index]].astype(float)


class MapInputs(Basis):
    """Columns for the inputs of every map: of noise, for the sum that is added, whatever its sources are."""

    def __init__(self, n: int, coordinates: Coordinates) -> None:
        super().__init__(n, 0, coordinates)

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> LinearRows:
        """Columns for the first term; of others, which are added to it, there is nothing more to say."""
        return LinearRows((self.n, 0)) if self.columns("noise").size else self.fresh("noise", self.n)

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> LinearRows:
        """What is released has the columns of the gradient."""
        return as_linear(values)


# --- around the maps of an algorithm ------------------------------------------------------------------------------


class Unmixed(InProcess):
    """Receivers get rows of their own, whatever is sent."""

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        assert isinstance(inputs, MapInputs)
        return Delivered(inputs.fresh("mixed", self.n), rows, mixed_weight(gossip_step, weight))


class RowLocal:
    """An algorithm whose maps are watched: what a node holds may only come from what that node was given."""

    def __init__(self, inner: Algorithm, basis: object) -> None:
        self._inner, self._basis = inner, basis

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def point(self, state: State) -> Rows:
        return self._watched("point", self._inner.point(state), state)

    def local(self, state: State, grad: Rows, noise: Rows | float) -> State:
        return self._watched("local", self._inner.local(state, grad, noise), (state, grad, noise))

    def message(self, state: State) -> Message:
        return self._watched("message", self._inner.message(state), state)

    def absorb(self, state: State, mixed: Message) -> State:
        return self._watched("absorb", self._inner.absorb(state, mixed), (state, mixed))

    def _watched(self, name: str, result: Result, given: State) -> Result:
        sources, found = slots(given), slots(result)
        width = max((rows.matrix.shape[1] for rows in sources), default=0)
        if name in ("point", "message") and not found:
            raise Unaccountable(
                f"{name} of {self._inner.name} gives a {type(result).__name__} in place of nodes' values; make it of "
                "what the state holds, as in 0 * state.x for zeros"
            )
        for rows in found:
            if rows.basis is not None and rows.basis is not self._basis:
                raise Unaccountable(f"{name} of {self._inner.name}: {OTHER_ROUND}")
            if rows.matrix.shape[1] > width or any(rows is source for source in sources):
                allowed = rows.matrix.shape[1] <= width
            else:
                held = np.concatenate([_places(source, width) for source in sources])
                allowed = bool(np.isin(_places(rows, width), held).all())
            if not allowed:
                raise Unaccountable(
                    f"{name} of {self._inner.name} moves values from node to node, and only messages may; "
                    "send what neighbours are to receive"
                )
        return result


def _places(rows: LinearRows, width: int) -> NDArray[np.int64]:
    """Where entries are that are not zero: row times width, plus column."""
    matrix = rows.matrix
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return np.asarray((row * width + matrix.indices)[matrix.data != 0])
