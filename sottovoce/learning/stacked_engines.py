"""All nodes at once, by hand: chains of linear layers, and matrix factorisation.

For a linear layer an example's gradient is the outer product of the error at its outputs and of its inputs, so its
squared norm is `||error||^2 (||input||^2 + 1)`, the one for the bias. Norms need no example's gradient, and clipping
is a factor on the errors.

Shapes: N nodes, B examples, I and O a layer's inputs and outputs, R factors, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sottovoce.learning.clipping import Clipped, Clipping, count, norms, without
from sottovoce.learning.models import Model
from sottovoce.learning.modules import is_plain
from sottovoce.learning.networks import Factors
from sottovoce.learning.stacks import Stack

Slope = Callable[[Tensor, Tensor], Tensor]

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Slope]] = {
    nn.ReLU: (
        torch.relu_,
        lambda error, out: torch.ops.aten.threshold_backward.grad_input(error, out, 0, grad_input=error),
    ),
    nn.Tanh: (torch.tanh_, lambda error, out: torch.ops.aten.tanh_backward.grad_input(error, out, grad_input=error)),
    nn.Sigmoid: (
        torch.sigmoid_,
        lambda error, out: torch.ops.aten.sigmoid_backward.grad_input(error, out, grad_input=error),
    ),
}
"""The activation, and how an error passes back through it, given its output; both in place."""


VALUES = 1 << 24
"""About so many numbers of single examples' gradients, or of layers' outputs, are alive at once."""

SMALL = 1 << 12
"""Up to so many weights, sums are made for all nodes at once and then added, instead of node by node."""


class Layer(NamedTuple):
    """Names of a layer's parameters, its widths, and the activation behind it."""

    weight: str
    bias: str | None
    widths: tuple[int, int]
    activation: type[nn.Module] | None


def stacked(model: Model) -> Chain | FactorEngine | None:
    """The engine by hand for a model whose modules are plain, where there is one."""
    if not is_plain(model.module):
        return None
    if type(model.module) is Factors:
        return FactorEngine(model)
    layers = _layers(model)
    return None if layers is None else Chain(model, layers)


def _layers(model: Model) -> tuple[Layer, ...] | None:
    """The layers of a chain whose parameters are all trained, or None."""
    found: list[Layer] = []
    leaves = [
        (path, part)
        for path, part in model.module.named_modules(remove_duplicate=False)
        if type(part) is not nn.Sequential
    ]
    for path, part in leaves:
        if type(part) is nn.Linear:
            prefix = f"{path}." if path else ""
            bias = None if part.bias is None else f"{prefix}bias"
            found.append(Layer(f"{prefix}weight", bias, (part.in_features, part.out_features), None))
        elif type(part) in ACTIVATIONS and found and found[-1].activation is None:
            found[-1] = found[-1]._replace(activation=type(part))
        elif not (type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1 and not found):
            return None
    used = [name for layer in found for name in (layer.weight, layer.bias) if name is not None]
    return tuple(found) if found and sorted(used) == sorted(model.layout.names) else None


class Norms(NamedTuple):
    """Norms of gradients, and by how much rounding of what errors are multiplied with can grow in their products."""

    lengths: Tensor
    reach: Tensor


@dataclass(frozen=True)
class Chain:
    """Linear layers with activations."""

    model: Model
    layers: tuple[Layer, ...]
    name: str = "stacked"
    threaded = True

    @torch.no_grad()
    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """Forward, and backward from errors times weights."""
        return self._summed(points, *self._weighted(points, stack))

    @torch.no_grad()
    def add_total_(self, rows: Tensor, points: Tensor, stack: Stack) -> None:
        """Products are added where they belong: no rows of their own are written and read again."""
        parts = self.model.layout.views(rows)
        for layer, inputs, error in zip(self.layers, *self._weighted(points, stack), strict=False):
            add_products_(parts, layer, inputs, error)

    @torch.no_grad()
    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Errors of all layers first, then their norms, then sums of errors times factors."""
        parameters = self.model.layout.views(points)
        passed = self._forward(parameters, stack.inputs)
        errors = self._backward(parameters, passed, self.model.loss.errors(passed[-1], stack.targets))
        factor, unfit = clip.factors(*self._norms(passed, errors), stack.weights)
        passed, errors = ([without(unfit, part) for part in parts] for parts in (passed, errors))
        rows = self._summed(points, passed, [error * factor.unsqueeze(-1) for error in errors])
        return Clipped(rows, count(unfit, stack.weights))

    @torch.no_grad()
    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """The forward pass."""
        return self._forward(self.model.layout.views(points), inputs)[-1]

    def examples_at_once(self, nodes: int, features: int) -> int:
        """By the widest layer."""
        return max(1, VALUES // (nodes * max(max(layer.widths) for layer in self.layers)))

    def _weighted(self, points: Tensor, stack: Stack) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs of every layer, and its errors times weights."""
        parameters = self.model.layout.views(points)
        passed = self._forward(parameters, stack.inputs)
        errors = self.model.loss.errors(passed[-1], stack.targets).mul_(stack.weights.unsqueeze(-1))
        return passed, self._backward(parameters, passed, errors)

    def _forward(self, parameters: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
        """The inputs of every layer, N x B x I, and the outputs of the last. Activations happen in place."""
        passed = [inputs]
        for layer in self.layers:
            out = affine(parameters, layer, passed[-1])
            passed.append(out if layer.activation is None else ACTIVATIONS[layer.activation][0](out))
        return passed

    def _backward(self, parameters: dict[str, Tensor], passed: list[Tensor], errors: Tensor) -> list[Tensor]:
        """Errors at the outputs of every layer, before its activation, N x B x O."""
        found: list[Tensor] = []
        for layer, out in zip(reversed(self.layers), reversed(passed[1:]), strict=True):
            if layer.activation is not None:
                errors = ACTIVATIONS[layer.activation][1](errors, out)
            found.append(errors)
            if len(found) < len(self.layers):
                errors = torch.bmm(errors, parameters[layer.weight])
        return found[::-1]

    def _norms(self, passed: list[Tensor], errors: list[Tensor]) -> Norms:
        """Of the gradient of every example."""
        squares = reach = errors[0].new_zeros((), dtype=torch.float64)
        for layer, inputs, error in zip(self.layers, passed, errors, strict=False):
            spread = (norms(inputs).square() + (0.0 if layer.bias is None else 1.0)).sqrt()
            squares = squares + (norms(error) * spread).square()
            reach = torch.maximum(reach, spread * math.sqrt(layer.widths[1]))
        return Norms(squares.sqrt(), reach)

    def _summed(self, points: Tensor, passed: list[Tensor], errors: list[Tensor]) -> Tensor:
        rows = torch.empty_like(points)
        parts = self.model.layout.views(rows)
        for layer, inputs, error in zip(self.layers, passed, errors, strict=False):
            write_products_(parts, layer, inputs, error)
        return rows


def affine(parameters: dict[str, Tensor], layer: Layer, inputs: Tensor) -> Tensor:
    """What a layer gives before its activation."""
    weight = parameters[layer.weight].transpose(1, 2)
    if layer.bias is None:
        return torch.bmm(inputs, weight)
    return torch.baddbmm(parameters[layer.bias].unsqueeze(1), inputs, weight)


def add_products_(parts: dict[str, Tensor], layer: Layer, inputs: Tensor, error: Tensor) -> None:
    """Add the sums of a layer's gradients to those that are there.

    Into rows of whole models the library writes one product at a time, which takes longer than small products do.
    """
    weight, turned = parts[layer.weight], error.transpose(1, 2)
    if layer.widths[0] * layer.widths[1] > SMALL:
        weight.baddbmm_(turned, inputs)
    else:
        weight.add_(torch.bmm(turned, inputs))
    if layer.bias is not None:
        parts[layer.bias].add_(error.sum(1))


def write_products_(parts: dict[str, Tensor], layer: Layer, inputs: Tensor, error: Tensor) -> None:
    """The same where nothing is there yet."""
    torch.bmm(error.transpose(1, 2), inputs, out=parts[layer.weight])
    if layer.bias is not None:
        torch.sum(error, dim=1, out=parts[layer.bias])


class PairLookup(NamedTuple):
    """What a batch of pairs looks up: positions N x B, factors N x B x R, and the predicted ratings N x B x 1."""

    user: Tensor
    item: Tensor
    user_factors: Tensor
    item_factors: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class FactorEngine:
    """Matrix factorisation. A rating's gradient lies in one user's and one item's rows: its norm is quick to say.

    In the sum, ratings of the same user or item add up.
    """

    model: Model
    name: str = "stacked"
    threaded = True

    @torch.no_grad()
    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """Errors times weights, scattered."""
        lookup = self._look_up(points, stack.inputs)
        return self._scattered(points, lookup, self._errors(lookup, stack) * stack.weights.unsqueeze(-1))

    def add_total_(self, rows: Tensor, points: Tensor, stack: Stack) -> None:
        """In a second pass."""
        rows += self.total(points, stack)

    @torch.no_grad()
    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Norms are `|error| sqrt(||user||^2 + ||item||^2 + 2)`, the two for the biases."""
        lookup = self._look_up(points, stack.inputs)
        errors = self._errors(lookup, stack)
        spread = (norms(lookup.user_factors).square() + norms(lookup.item_factors).square() + 2).sqrt()
        factor, unfit = clip.factors(spread * norms(errors), spread, stack.weights)
        lookup = PairLookup(*(without(unfit, part) for part in lookup))
        rows = self._scattered(points, lookup, without(unfit, errors) * factor.unsqueeze(-1))
        return Clipped(rows, count(unfit, stack.weights))

    @torch.no_grad()
    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """Predicted ratings."""
        return self._look_up(points, inputs).outputs

    def examples_at_once(self, nodes: int, features: int) -> int:
        """As many as the rank of the factors admits."""
        return max(1, VALUES // (nodes * 4 * self.model.layout.shapes[0][1]))

    def _errors(self, lookup: PairLookup, stack: Stack) -> Tensor:
        return self.model.loss.errors(lookup.outputs, stack.targets)

    def _look_up(self, points: Tensor, pairs: Tensor) -> PairLookup:
        parts = self.model.layout.views(points)
        node = torch.arange(len(points), device=points.device).unsqueeze(1)
        user, item = pairs.long().unbind(-1)
        user_factors, item_factors = parts["users"][node, user], parts["items"][node, item]
        bias = parts["user_bias"].gather(1, user) + parts["item_bias"].gather(1, item)
        assert isinstance(self.model.module, Factors)
        outputs = self.model.module.offset + bias + (user_factors * item_factors).sum(-1)
        return PairLookup(user, item, user_factors, item_factors, outputs.unsqueeze(-1))

    def _scattered(self, points: Tensor, lookup: PairLookup, errors: Tensor) -> Tensor:
        rows = torch.zeros_like(points)
        start = dict(zip(self.model.layout.names, self.model.layout.offsets, strict=False))
        rank = lookup.user_factors.shape[-1]
        within = torch.arange(rank, device=points.device)
        for name, position, other in (
            ("users", lookup.user, lookup.item_factors),
            ("items", lookup.item, lookup.user_factors),
        ):
            places = start[name] + position.unsqueeze(-1) * rank + within
            rows.scatter_add_(1, places.flatten(1), (errors * other).flatten(1))
        for name, position in (("user_bias", lookup.user), ("item_bias", lookup.item)):
            rows.scatter_add_(1, start[name] + position, errors.squeeze(-1))
        return rows
