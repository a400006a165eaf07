"""The steps that a node takes by itself in a round, one batch each, on rows that are gathered for each step.

Shapes: S steps, N nodes, B examples, F inputs, D parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sottovoce.learning.engines import Engine, Stack


class DrawnExamples(NamedTuple):
    """The batches of a round: rows of the training set, their targets and weights, all S x N x B.

    Weights are one over the divisor of the batch; zero marks padding.
    """

    rows: Tensor
    targets: Tensor
    weights: Tensor

    def of(self, nodes: slice) -> DrawnExamples:
        """Those of some nodes."""
        return DrawnExamples(*(part[:, nodes] for part in self))

    @property
    def steps(self) -> Iterator[DrawnExamples]:
        """Those of each step, N x B."""
        return map(DrawnExamples, *self)


class LocalSteps(Protocol):
    """Sums of gradients along the steps of a round. All forms give the same numbers, up to rounding."""

    def total(self, points: Tensor, nodes: slice, drawn: DrawnExamples) -> Tensor:
        """The sums of some nodes, which start from these points, N x D; `drawn` has the batches of all nodes."""

    def numbers(self, drawn: DrawnExamples) -> int:
        """How many numbers of each node's rows are in use at once."""


class SpareMemory:
    """Memory that was used before: new memory costs more than what is copied there."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    @contextmanager
    def lent(self, like: Tensor, numbers: int) -> Iterator[Tensor]:
        """So many numbers in a row, with whatever is in them; of several threads, each gets its own."""
        try:
            memory = self._tensors.pop()
        except IndexError:
            memory = like.new_empty(0)
        memory = memory if len(memory) >= numbers else like.new_empty(numbers)
        yield memory[:numbers]
        self._tensors.append(memory)


class GatheredSteps:
    """Steps of any engine. `step_size` is None where there is one step."""

    def __init__(self, engine: Engine, inputs: Tensor, step_size: float | None) -> None:
        self.engine, self.inputs, self.step_size = engine, inputs, step_size
        self._spare = SpareMemory()

    def total(self, points: Tensor, nodes: slice, drawn: DrawnExamples) -> Tensor:
        """Each step from the point to which those before it lead."""
        first, *others = drawn.of(nodes).steps
        with self.stack(first) as stack:
            found = self.engine.total(points, stack)
        at: Tensor | None = None
        for batch in others:
            assert self.step_size is not None
            at = torch.add(points, found, alpha=-self.step_size, out=at)
            with self.stack(batch) as stack:
                self.engine.add_total_(found, at, stack)
        return found

    def numbers(self, drawn: DrawnExamples) -> int:
        """A batch."""
        return drawn.rows.shape[2] * self.inputs.shape[1]

    @contextmanager
    def stack(self, drawn: DrawnExamples) -> Iterator[Stack]:
        """The batches of one step, with their inputs gathered."""
        rows, F = drawn.rows, self.inputs.shape[1]
        with self._spare.lent(self.inputs, rows.numel() * F) as memory:
            found = torch.index_select(self.inputs, 0, rows.flatten(), out=memory.view(-1, F))
            yield Stack(found.view(*rows.shape, F), drawn.targets, drawn.weights)
