"""Local steps of a round in dual form: the wide rows of a node are read twice a round, not twice a step.

Let W be the weights of the first layer before the steps of a round, eta the step size, X_b the inputs of batch b, and
D_b the errors at the layer's outputs on them, times their weights. After the batches before b the weights are
W - eta sum_j D_j^T X_j, so that before its activation the layer gives

    X_b W^T - eta sum_{j < b} (X_b X_j^T) D_j

on batch b. So X W^T is one product for all rows of a node, where they lie. Steps take rows of X X^T, which is made once
and kept, and the sum of the gradients is one product D^T X. A bias is an input that is always one: it adds 1 to X X^T.
Later layers take their steps as usual. The numbers are those of plain steps, up to rounding.

X X^T is as private as the rows, and stays where they are.

Shapes: N nodes, R rows of the largest shard, B examples, F inputs, O outputs of the first layer, D parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.learning.batches import Rows
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.local_steps import DrawnExamples, SpareMemory
from sottovoce.learning.stacked_engines import Chain, add_products_, affine, write_products_
from sottovoce.support.threads import physical_memory

COPIED = 24
"""Copying a number takes about as long as so many multiplications within a large product."""

ROUNDS = 20
"""Products of rows are worth their time if they have saved it after so many rounds."""

SHARE = 1 / 16
"""Rows that lie together, and their products, take at most this share of the machine's memory."""


LINE = 16
"""Stacks have multiples of so many rows: each node's begin with a line of the cache, whatever lies before them.

Last digits of products depend on that, and blocks of nodes must not change any.
"""


class Work(NamedTuple):
    """What decides which form of steps takes less time: public numbers, alike for all nodes and in every process."""

    nodes: int
    largest_shard: int
    steps: int
    batch: float
    inputs: int
    outputs: int

    @property
    def rows(self) -> int:
        """Of a stack, for each node."""
        return -(-self.largest_shard // LINE) * LINE

    @property
    def plain(self) -> float:
        """Of a node in a round, in multiplications: both products, rows gathered, weights moved after each step."""
        used = self.steps * self.batch
        weights = self.inputs * self.outputs
        return 2 * used * weights + COPIED * (used * self.inputs + (self.steps - 1) * weights)

    @property
    def dual(self) -> float:
        """The same in dual form, with a part of what products of rows take once."""
        used = self.steps * self.batch
        products = 2 * self.rows * self.inputs * self.outputs + used * self.rows * self.outputs
        return products + self.rows**2 * self.inputs / ROUNDS + COPIED * used * (self.rows + 2 * self.outputs)

    def pays(self, itemsize: int) -> bool:
        """Whether the dual form takes less time, and no more memory than it may."""
        numbers = self.nodes * self.rows * (self.inputs + self.rows)
        return self.steps > 1 and self.dual < self.plain and numbers * itemsize <= SHARE * physical_memory()


class Workspace(NamedTuple):
    """What steps of some nodes are computed in: for all rows, and for those of a batch.

    `outputs` is X W^T with the bias. `errors` has the D of all batches so far, where a batch that has not come has
    zeros. `products` has the rows of X X^T of a batch.
    """

    outputs_NRO: Tensor
    errors_NRO: Tensor
    taken_NBO: Tensor
    taken_errors_NBO: Tensor
    products_NBR: Tensor

    @staticmethod
    def numbers(R: int, B: int, O: int) -> int:
        """How many there are for each node."""
        return 2 * R * O + 2 * B * O + B * R

    @classmethod
    def within(cls, memory: Tensor, N: int, R: int, B: int, O: int) -> Workspace:
        """In memory for as many numbers as that is."""
        shapes = ((R, O), (R, O), (B, O), (B, O), (B, R))
        parts = torch.split(memory, [N * rows * width for rows, width in shapes])
        return cls(*(part.view(N, *shape) for part, shape in zip(parts, shapes, strict=True)))


@dataclass(frozen=True, eq=False)
class DualSteps:
    """The shards of some nodes, shorter ones padded with zeros, and the place of each training row in its shard."""

    engine: Chain
    step_size: float
    inputs_NRF: Tensor
    places: Tensor
    spare: SpareMemory = field(default_factory=SpareMemory)

    @cached_property
    def products_NRR(self) -> Tensor:
        """Products of each node's rows with each other, with a one for the bias."""
        found = torch.bmm(self.inputs_NRF, self.inputs_NRF.transpose(1, 2))
        return found if self.engine.layers[0].bias is None else found.add_(1.0)

    @torch.no_grad()
    def total(self, points: Tensor, nodes: slice, drawn: DrawnExamples) -> Tensor:
        """One large product before the steps, and one after them."""
        layout, layer, rows = self.engine.model.layout, self.engine.layers[0], torch.empty_like(points)
        inputs, start, found = self.inputs_NRF[nodes], layout.views(points), layout.views(rows)
        N, R, B, O = len(points), inputs.shape[1], drawn.rows.shape[2], layer.widths[1]
        later = LaterLayers(self.engine, self.step_size, start)
        with self.spare.lent(points, N * Workspace.numbers(R, B, O)) as memory:
            work = Workspace.within(memory, N, R, B, O)
            affine(start, layer, inputs, out=work.outputs_NRO)
            work.errors_NRO.zero_()
            self._steps_(work, later, self.products_NRR[nodes], drawn.of(nodes))
            write_products_(found, layer, inputs, work.errors_NRO)
        later.write_(found)
        return rows

    def numbers(self, drawn: DrawnExamples) -> int:
        """What steps are computed in; shards are read by large products alone, which no cache has to hold."""
        return Workspace.numbers(self.inputs_NRF.shape[1], drawn.rows.shape[2], self.engine.layers[0].widths[1])

    def _steps_(self, work: Workspace, later: LaterLayers, products_NRR: Tensor, drawn: DrawnExamples) -> None:
        """Collect the errors of all batches, and the gradients of later layers."""
        outputs, errors, taken, products = (
            part.flatten(0, 1) for part in (work.outputs_NRO, work.errors_NRO, work.taken_NBO, work.products_NBR)
        )
        first_rows = products_NRR.shape[1] * torch.arange(len(products_NRR)).unsqueeze(1)
        rows_SK = (self.places.take(drawn.rows) + first_rows).flatten(1)  # in one dimension, rows are taken much faster
        for number, (rows_K, batch) in enumerate(zip(rows_SK, drawn.steps, strict=True)):
            torch.index_select(outputs, 0, rows_K, out=taken)
            if number:
                torch.index_select(products_NRR.flatten(0, 1), 0, rows_K, out=products)
                work.taken_NBO.baddbmm_(work.products_NBR, work.errors_NRO, alpha=-self.step_size)
            error = later.step_(work.taken_NBO, batch, work.taken_errors_NBO)
            errors.index_add_(0, rows_K, error.flatten(0, 1))


class LaterLayers:
    """The layers after the first, of some nodes: where they stand, and the sums of their gradients so far.

    Each parameter of all nodes lies together: only then are small products of many nodes one call of the library.
    """

    def __init__(self, engine: Chain, step_size: float, start: dict[str, Tensor]) -> None:
        self._engine, self._step_size = engine, step_size
        names = [name for layer in engine.layers[1:] for name in (layer.weight, layer.bias) if name is not None]
        sizes = [start[name].numel() for name in names]
        self._whole = start[engine.layers[0].weight].new_zeros(3, sum(sizes))
        before, self._sums, self._parameters = (
            {name: part.view(start[name].shape) for name, part in zip(names, torch.split(whole, sizes), strict=True)}
            for whole in self._whole
        )
        for name, part in before.items():
            part.copy_(start[name])

    def step_(self, out: Tensor, batch: DrawnExamples, memory: Tensor) -> Tensor:
        """Add the gradients of a batch, given what the first layer gives, and return the errors there."""
        before, sums, at = self._whole
        torch.add(before, sums, alpha=-self._step_size, out=at)
        passed = self._engine.forward_from(self._parameters, out, out)
        errors = self._engine.weighted_errors(self._parameters, passed, batch.targets, batch.weights, memory)
        for layer, inputs, error in zip(self._engine.layers[1:], passed[1:], errors[1:], strict=False):
            add_products_(self._sums, layer, inputs, error)
        return errors[0]

    def write_(self, found: dict[str, Tensor]) -> None:
        """The sums, where they belong."""
        for name, part in self._sums.items():
            found[name].copy_(part)


def dual_steps(
    engine: Chain, step_size: float, examples: Examples, shards: Sequence[Rows], rows: int, dtype: torch.dtype
) -> DualSteps | None:
    """The dual form on these shards, in stacks of so many rows.

    None where a row is in two shards, or where products of rows leave the range of numbers though rows do not.
    """
    own = np.concatenate(shards)
    if np.unique(own).size < own.size:
        return None
    places = np.zeros(len(examples), dtype=np.int64)
    places[own] = np.concatenate([np.arange(len(shard)) for shard in shards])
    inputs = torch.zeros(len(shards), rows, examples.width, dtype=dtype)
    for stacked, shard in zip(inputs, shards, strict=True):
        stacked[: len(shard)] = torch.from_numpy(examples[shard])
    found = DualSteps(engine, step_size, inputs, torch.from_numpy(places))
    return found if arrays.all_finite(found.products_NRR) else None
