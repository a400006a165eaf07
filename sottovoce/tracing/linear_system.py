"""The linear system of a run: step matrices of its rounds, and A and B of `O = A G + B Z` for small ones.

`sottovoce.trace` makes it; the accountant reads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from sottovoce.core.correlation import Correlation, unrolled_inverse
from sottovoce.core.final_models import FinalModels
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import PerNode
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.sensitivity import largest, relative
from sottovoce.core.sparsity import submatrix
from sottovoce.core.topologies import Topology
from sottovoce.tracing.round_maps import RoundMaps

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm
    from sottovoce.core.arrays import Reals


Step = TypeVar("Step", bound=Hashable)
Result = TypeVar("Result")
Entry = TypeVar("Entry", bound=np.generic)


def map_equal_steps(function: Callable[[Step], Result], steps: Iterable[Step]) -> tuple[Result, ...]:
    """A function of every step, in their order; equal steps are one object, and it is computed once for them."""
    every = tuple(steps)
    results = {step: function(step) for step in dict.fromkeys(every)}
    return tuple(results[step] for step in every)


def stack_equal_steps(function: Callable[[Step], NDArray[Entry]], steps: Iterable[Step]) -> NDArray[Entry]:
    """`map_equal_steps` of a function whose results are arrays of one shape, one row for each step."""
    every = tuple(steps)
    place = {step: number for number, step in enumerate(dict.fromkeys(every))}
    return np.array([function(step) for step in place])[np.array([place[step] for step in every], dtype=np.intp)]


class TracedMessages(NamedTuple):
    """`SentMessages` whose rows are linear forms, as a matrix over the inputs of their round.

    Of published models, which all get, the sender is -1 and the receiver the node whose model it is (-1: the average).
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    rows: sparse.csr_array


@dataclass(frozen=True, eq=False)
class StepMatrices:
    """One round as sparse matrices over its inputs, columns `[state | gradients | noise]`.

    - `state_out`: the state after the round, one row per node and slot;
    - `point`: where gradients are taken (None when none are);
    - `models`: where nodes stand after the round;
    - `sent`: for each gossip step its messages, with senders and receivers;
    - `sources`: which noise the last block of columns stands for, as (gossip step, sources);
    - `step_size` and `sensitivity`, one for all nodes or one for each: by which the algorithm scales what enters;
    - `maps`: what the algorithm's maps make of each node's own values.
    """

    state_size: int
    gradients: int
    sources: tuple[tuple[int, Sources], ...]
    state_out: sparse.csr_array
    point: sparse.csr_array | None
    models: sparse.csr_array
    sent: tuple[TracedMessages, ...]
    mixings: tuple[Mixing, ...]
    step_size: float
    sensitivity: PerNode
    maps: RoundMaps

    @property
    def noise_size(self) -> int:
        """Number of noise sources."""
        return sum(sources.size for _, sources in self.sources)

    def split(self, matrix: sparse.csr_array) -> tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array]:
        """A matrix of this round by its inputs: state, gradients, noise; must not be changed.

        In units: a node's gradients of its own `sensitivity`, and everything that enters of `step_size` times the
        largest, so that privacy figures are about a change of one whatever these are. Every view asks for the same of
        the step's own matrices, so that these are split once.
        """
        if not any(matrix is own for own in self.matrices):
            return self._split(matrix)
        if id(matrix) not in self._own_parts:
            self._own_parts[id(matrix)] = self._split(matrix)
        return self._own_parts[id(matrix)]

    @cached_property
    def matrices(self) -> tuple[sparse.csr_array | None, ...]:
        """All of them."""
        return (self.state_out, self.point, self.models, *(messages.rows for messages in self.sent))

    @cached_property
    def _own_parts(self) -> dict[int, tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array]]:
        return {}

    def _split(self, matrix: sparse.csr_array) -> tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array]:
        if not matrix.has_sorted_indices:
            matrix = matrix.sorted_indices()
        column = np.arange(matrix.shape[1])
        a, b = self.state_size, self.state_size + self.gradients
        state, gradient, noise = (
            submatrix(matrix, None, (begin <= column) & (column < end))
            for begin, end in ((0, a), (a, b), (b, matrix.shape[1]))
        )
        gradient, noise = gradient / self.step_size, noise / (self.step_size * largest(self.sensitivity))
        shares = relative(self.sensitivity)
        if shares is not None and self.gradients:
            gradient = sparse.csr_array(gradient @ sparse.diags_array(shares))
        return state, gradient, noise


class Labels(NamedTuple):
    """Which message a row of A and B is: round, gossip step, sender, receiver (-1: see `SentMessages`)."""

    round: NDArray[np.intp]
    step: NDArray[np.intp]
    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class LinearSystem:
    """What a run sends, as step matrices. Equal rounds share one object.

    If `only_gradients` gives a reason, messages were not traced as they are sent: the system only says how noise is
    added to gradients. `final_models` says whether its last messages are these models, published to all. `classes` are
    those of coordinates that it stands for: see `tracing.coordinate_classes`.
    """

    n: int
    steps: tuple[StepMatrices, ...]
    correlation: Correlation | None
    algorithm: Algorithm
    topology: Topology
    only_gradients: str = ""
    final_models: FinalModels = FinalModels.NONE
    classes: int = 1

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.steps)

    def first_rounds(self, rounds: int) -> LinearSystem:
        """The system of a run that ends after this many rounds: no round depends on later ones."""
        return replace(self, steps=self.steps[:rounds])

    def publishing(self, which: FinalModels) -> LinearSystem:
        """The system of a run whose final models are published: messages to everybody, after all others."""
        if which not in self._publishing:
            before = self._publishing[FinalModels.NONE]
            last = _with_published_models(before.steps[-1], self.n, which)
            found = replace(before, steps=(*before.steps[:-1], last), final_models=which)
            found.__dict__["_publishing"] = self._publishing
            self._publishing[which] = found
        return self._publishing[which]

    @cached_property
    def _publishing(self) -> dict[FinalModels, LinearSystem]:
        """The system by what is published of it, shared by all of them."""
        return {self.final_models: self}

    def dense(self) -> tuple[NDArray[np.float64], NDArray[np.float64], Labels]:
        """A, B and the labels of their rows, by unrolling the step matrices; for small systems."""
        G_total = sum(step.gradients for step in self.steps)
        Z_total = sum(step.noise_size for step in self.steps)
        state = np.zeros((self.steps[0].state_size, G_total + Z_total))
        rows, labels = [], []
        g, z = 0, G_total
        for round, step in enumerate(self.steps):
            inputs = np.zeros((step.gradients + step.noise_size, G_total + Z_total))
            inputs[: step.gradients, g : g + step.gradients] = np.eye(step.gradients)
            inputs[step.gradients :, z : z + step.noise_size] = np.eye(step.noise_size)
            g, z = g + step.gradients, z + step.noise_size
            everything = np.concatenate([state, inputs])
            for number, sent in enumerate(step.sent):
                rows.append(sent.rows @ everything)
                labels.append((round, number, sent))
            state = step.state_out @ everything
        O = np.concatenate(rows)
        A, B = O[:, :G_total], O[:, G_total:]
        if self.correlation is not None:
            B = B @ unrolled_inverse(self.correlation, self.rounds, np.arange(self.steps[0].noise_size))
        return A, B, labelled(labels)

    def __repr__(self) -> str:
        return f"LinearSystem({self.algorithm.name} on {self.topology.name}, {self.n} nodes, {self.rounds} rounds)"

    def draw(self, key: RandomSource, dimension: int, dtype: DTypeLike = np.float64) -> Reals:
        """Z of a run with this noise key and precision: its rows are the columns of B."""
        blocks = [
            rows
            for round, step in enumerate(self.steps)
            for number, sources in step.sources
            for _, rows in sources.draw(key, round, number, dimension, dtype)
        ]
        return np.concatenate(blocks) if blocks else np.zeros((0, dimension), dtype=dtype)


def _with_published_models(step: StepMatrices, n: int, which: FinalModels) -> StepMatrices:
    rows = step.models
    if which is FinalModels.AVERAGE:
        rows = sparse.csr_array(sparse.csr_array(np.full((1, rows.shape[0]), 1 / rows.shape[0])) @ rows)
    whose = np.arange(n) if which is FinalModels.ALL else np.array([-1])
    published = TracedMessages(np.full(len(whose), -1), whose, rows)
    nowhere = Mixing(sparse.csr_array(sparse.eye_array(n)))
    return replace(step, sent=(*step.sent, published), mixings=(*step.mixings, nowhere))


def labelled(labels: list[tuple[int, int, TracedMessages]]) -> Labels:
    """Which message each row is, of messages by round and gossip step."""
    columns = [
        (np.full(len(sent.sender), round), np.full(len(sent.sender), step), sent.sender, sent.receiver)
        for round, step, sent in labels
    ]
    return Labels(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))
