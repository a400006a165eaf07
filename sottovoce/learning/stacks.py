"""Batches as numbers: the one place where rows of all batch rules are gathered for all engines.

What takes no part in a round is zeros from here on. A weight of zero would not do: zero times infinity is not zero.

Shapes: S local steps, N nodes, B examples, F inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class DrawnExamples(NamedTuple):
    """The batches of a round: rows of the training set, and their weights, both S x N x B.

    Weights are one over the divisor of the batch; zero marks padding.
    """

    rows: Tensor
    weights: Tensor


class Stack(NamedTuple):
    """A batch of every node: inputs N x B x F, targets N x B, and what each example's gradient is multiplied with.

    Weights are one over the divisor of the batch; zero marks padding.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


class Stacks:
    """Batches of training rows, in memory that was used before: new memory costs more than what is copied there."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets
        self._spare: list[Tensor] = []

    @contextmanager
    def gathered(self, rows: Tensor, weights: Tensor) -> Iterator[Stack]:
        """A batch of each node, N x B, with zeros in place of rows that take no part."""
        F, absent = self._inputs.shape[1], (weights == 0).flatten().nonzero().flatten()
        with self._memory(rows.numel() * F) as memory:
            inputs = torch.index_select(self._inputs, 0, rows.flatten(), out=memory.view(-1, F))
            inputs.index_fill_(0, absent, 0)
            targets = self._targets.take(rows.flatten()).index_fill_(0, absent, 0)
            yield Stack(inputs.view(*rows.shape, F), targets.view(rows.shape), weights)

    @contextmanager
    def _memory(self, numbers: int) -> Iterator[Tensor]:
        """So many numbers in a row, with whatever is in them; of several threads, each gets its own."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = self._inputs.new_empty(0)
        memory = memory if len(memory) >= numbers else self._inputs.new_empty(numbers)
        yield memory[:numbers]
        self._spare.append(memory)
