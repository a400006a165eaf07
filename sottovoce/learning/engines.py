"""Gradient engines: one sum of weighted gradients per node, each example's clipped or not. All give the same numbers.

An engine is chosen by the kinds of layers (`engine_for`):

- `stacked`: chains of linear layers and matrix factorisation, all nodes at once, by hand (`stacked_engines`);
- `loop`: node after node, for convolutions, where stacking gains nothing on a CPU;
- `functional`: anything else, by `torch.func`, nodes and examples in chunks.

Shapes: N nodes, B examples, F inputs, K outputs, D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.errors import InputError
from sottovoce.learning.clipping import Clipped, Clipping, sum_clipped
from sottovoce.learning.models import Model
from sottovoce.learning.stacked_engines import VALUES, stacked
from sottovoce.learning.stacks import Stack
from sottovoce.support.threads import chunks

EXAMPLES = 4
"""At least so many examples of a node are taken at once, however large the model."""


class Engine(Protocol):
    """Gradients and outputs of all nodes."""

    @property
    def name(self) -> str:
        """By which it is chosen."""

    @property
    def threaded(self) -> bool:
        """Whether several threads may ask at once, and small blocks of nodes take no longer than large ones."""

    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """`sum_i weight_i g_i` of each node, N x D."""

    def add_total_(self, rows: Tensor, points: Tensor, stack: Stack) -> None:
        """Add `total` to rows, in place."""

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """`sum_i weight_i clip(g_i)` of each node."""

    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """Outputs N x B x K for inputs N x B x F."""

    def examples_at_once(self, nodes: int, features: int) -> int:
        """How many examples per node `outputs` takes without outgrowing the memory."""


ENGINES = ("stacked", "loop", "functional")


@dataclass(frozen=True)
class Functional:
    """`torch.func` over nodes and over examples, in chunks."""

    model: Model
    name: str = "functional"
    threaded = False

    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """One backward pass for each node, a few nodes with equally many examples at a time."""
        rows, layout = torch.zeros_like(points), self.model.layout
        gradient = vmap(grad(partial(weighted_loss, self.model)))
        for alike in nodes_alike(stack):
            for nodes in torch.split(alike, max(1, VALUES // (4 * layout.size))):
                rows[nodes] = layout.flatten(gradient(layout.views(points[nodes]), *without_padding(stack, nodes)))
        return rows

    def add_total_(self, rows: Tensor, points: Tensor, stack: Stack) -> None:
        """In a second pass."""
        rows += self.total(points, stack)

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Every example's gradient by itself, a chunk at a time."""
        each = vmap(vmap(grad(partial(example_loss, self.model)), in_dims=(None, 0, 0)))
        layout, (N, B) = self.model.layout, stack.weights.shape
        rows, nonfinite = torch.zeros_like(points), 0
        some_nodes = max(1, VALUES // (B * layout.size))
        for nodes in chunks(N, some_nodes):
            some_examples = max(1, VALUES // ((nodes.stop - nodes.start) * layout.size))
            for examples in chunks(B, some_examples):
                inputs, targets, weights = (part[nodes, examples] for part in stack)
                gradients = layout.flatten(each(layout.views(points[nodes]), inputs, targets))
                added = sum_clipped(gradients, weights, clip)
                rows[nodes] += added.rows
                nonfinite += added.nonfinite
        return Clipped(rows, nonfinite)

    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """All nodes at once."""
        found: Tensor = vmap(self.model.outputs)(points, inputs)
        return found

    def examples_at_once(self, nodes: int, features: int) -> int:
        """Taking layers to be up to 64 times wider than the inputs."""
        return max(1, VALUES // (64 * nodes * features))


@dataclass(frozen=True)
class Loop:
    """One node at a time, examples by `torch.func` where each counts by itself."""

    model: Model
    name: str = "loop"
    threaded = False

    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """Plain backward passes."""
        rows, layout = torch.zeros_like(points), self.model.layout
        for alike in nodes_alike(stack):
            for node in torch.split(alike, 1):
                parameters = layout.views(points[node].squeeze(0))
                leaves = {name: part.detach().requires_grad_() for name, part in parameters.items()}
                with torch.enable_grad():
                    batch = (part.squeeze(0) for part in without_padding(stack, node))
                    found = torch.autograd.grad(weighted_loss(self.model, leaves, *batch), list(leaves.values()))
                rows[node] = layout.flatten(dict(zip(leaves, found, strict=True)))
        return rows

    def add_total_(self, rows: Tensor, points: Tensor, stack: Stack) -> None:
        """In a second pass."""
        rows += self.total(points, stack)

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Some examples at a time."""
        each = vmap(grad(partial(example_loss, self.model)), in_dims=(None, 0, 0))
        rows, nonfinite, layout = torch.zeros_like(points), 0, self.model.layout
        for node, row in enumerate(points):
            for some in chunks(stack.weights.shape[1], max(EXAMPLES, VALUES // layout.size)):
                inputs, targets, weights = (part[node, some] for part in stack)
                gradients = layout.flatten(each(layout.views(row), inputs, targets))
                added = sum_clipped(gradients.unsqueeze(0), weights.unsqueeze(0), clip)
                rows[node] += added.rows[0]
                nonfinite += added.nonfinite
        return Clipped(rows, nonfinite)

    @torch.no_grad()
    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """A forward pass for each node."""
        return torch.stack([self.model.outputs(row, own) for row, own in zip(points, inputs, strict=True)])

    def examples_at_once(self, nodes: int, features: int) -> int:
        """Whatever the number of nodes, taking layers to be up to 64 times wider than the inputs."""
        return max(1, VALUES // (64 * features))


def weighted_loss(
    model: Model, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """The weighted sum of a batch's losses."""
    return model.loss.each(model.outputs_of(parameters, inputs), targets) @ weights


def example_loss(model: Model, parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
    """The loss of one example."""
    outputs = model.outputs_of(parameters, features.unsqueeze(0))
    return model.loss.each(outputs, target.unsqueeze(0)).squeeze(0)


def nodes_alike(stack: Stack) -> list[Tensor]:
    """The nodes that have examples, those with equally many together."""
    counts = (stack.weights > 0).sum(1)
    return [(counts == count).nonzero().flatten() for count in torch.unique(counts) if count > 0]


def without_padding(stack: Stack, nodes: Tensor) -> Stack:
    """The batches of some nodes with equally many examples, and nothing else: a model may give no number for padding.

    Its loss would then be no number either, whatever its weight.
    """
    there = stack.weights[nodes] > 0
    return Stack(*(part[nodes][there].view(len(nodes), -1, *part.shape[2:]) for part in stack))


def engine_for(model: Model, name: str | None = None) -> Engine:
    """The fastest engine for a model's layers, or the named one."""
    if name not in (None, *ENGINES):
        raise InputError(f"engine {name!r}", f"known: {', '.join(ENGINES)}", "leave it out for the fastest")
    if name in (None, "stacked") and (found := stacked(model)) is not None:
        return found
    if name == "stacked":
        raise InputError(
            f"engine stacked for {model.name}",
            "this engine is for linear layers with relu, tanh or sigmoid, and for matrix factorisation",
            "leave it out for the fastest",
        )
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in model.module.modules())
    return Loop(model) if name == "loop" or (name is None and convolves) else Functional(model)
