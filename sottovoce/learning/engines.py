"""Gradient engines: one sum of weighted gradients per node, each example's clipped or not. All give the same numbers.

An engine is chosen by the kinds of layers (`engine_for`):

- `stacked`: chains of linear layers, all nodes at once, by hand, and matrix factorisation;
- `ghost`: other nets of torch's layers, node after node, all examples in one pass (`ghost_norms`);
- `functional`: anything else, node after node, examples by `torch.func`.

For a linear layer an example's gradient is the outer product of the error at its outputs and of its inputs, so its
squared norm is `||error||^2 (||input||^2 + 1)`, the one for the bias. A rating's gradient lies in one user's and one
item's rows. In both, norms need no example's gradient, and clipping is a factor on the errors.

Shapes: N nodes, B examples, F inputs, K outputs, I and O a layer's inputs and outputs, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sottovoce.errors import InputError
from sottovoce.learning.clipping import Clipped, Clipping, count, norms, sum_clipped, without
from sottovoce.learning.ghost_norms import Tapped, has_known_layers
from sottovoce.learning.models import Factors, Model
from sottovoce.learning.modules import is_known, is_plain
from sottovoce.support.threads import chunks

VALUES = 1 << 24
"""About so many numbers of single examples' gradients, or of layers' outputs, are alive at once."""


class Stack(NamedTuple):
    """A batch of every node: inputs N x B x F, targets N x B, and what each example's gradient is multiplied with.

    Weights are one over the divisor of the batch; zero marks padding.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


def engine_for(model: Model, name: str | None = None) -> Engine:
    """The fastest engine for a model's layers, or the named one."""
    fits = is_plain(model.module)
    found: dict[str, Engine] = {}
    if fits and type(model.module) is Factors:
        found["stacked"] = Ratings(model)
    elif fits and (layers := _layers(model)) is not None:
        found["stacked"] = Chain(model, layers)
    if is_known(model.module) and has_known_layers(model.module, model.layout.names):
        found["ghost"] = Ghost(model)
    found["functional"] = Functional(model)
    if name is not None and name not in found:
        raise InputError(
            f"engine {name!r} for {model.name}", f"engines for its layers: {', '.join(found)}",
            "leave it out for the fastest",
        )  # fmt: skip
    return next(iter(found.values())) if name is None else found[name]


# --- any model -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Functional:
    """Node after node, so that what is taken at once changes no bit; single examples by `torch.func`, in chunks.

    Inputs of examples may be several `views`, one after the other, over which their losses are averaged.
    """

    model: Model
    name: str = "functional"
    views: int = 1
    threaded = False
    """Whether several threads may ask at once, and small blocks of nodes take no longer than large ones."""

    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """`sum_i weight_i g_i` of each node, N x D."""
        return self._pulled_back(points, stack, lambda outputs, *rest: self.model.loss.each(outputs, rest[0]) @ rest[1])

    def _pulled_back(self, points: Tensor, stack: Stack, value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """The gradient of a value of outputs, targets and weights, by a plain backward pass for each node.

        Examples of weight zero are left out: a model may give no number for padding, and zero times that is none.
        """
        rows, layout = torch.zeros_like(points), self.model.layout
        for node, row in enumerate(points):
            there = stack.weights[node] > 0
            if not there.any():
                continue
            inputs = stack.inputs[node][there].view(int(there.sum()) * self.views, -1)
            targets, weights = (part[node][there].repeat_interleave(self.views, 0) for part in stack[1:])
            leaves = {name: part.detach().requires_grad_() for name, part in layout.views(row).items()}
            with torch.enable_grad():
                total = value(self.model.outputs_of(leaves, inputs), targets, weights / self.views)
                found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
            rows[node] = layout.flatten(dict(zip(leaves, found, strict=True)))
        return rows

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """`sum_i weight_i clip(g_i)` of each node: every example's gradient by itself, some at a time."""
        rows, nonfinite = torch.zeros_like(points), 0
        for node, row in enumerate(points):
            for some in chunks(stack.weights.shape[1], max(1, VALUES // self.model.layout.size)):
                inputs, targets, weights = (part[node, some] for part in stack)
                added = sum_clipped(self.of_each(row, inputs, targets).unsqueeze(0), weights.unsqueeze(0), clip)
                rows[node] += added.rows[0]
                nonfinite += added.nonfinite
        return Clipped(rows, nonfinite)

    def of_each(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of every example at one point, B x D."""
        layout = self.model.layout

        def loss(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
            outputs = self.model.outputs_of(parameters, features.view(self.views, -1))
            return self.model.loss.each(outputs, target.expand(self.views)).mean(0)

        return layout.flatten(vmap(grad(loss), in_dims=(None, 0, 0))(layout.views(row), inputs, targets))

    @torch.no_grad()
    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """Outputs N x B x K for inputs N x B x F."""
        return torch.stack([self.model.outputs(row, own) for row, own in zip(points, inputs, strict=True)])

    def examples_at_once(self, nodes: int, features: int) -> int:
        """How many examples per node `outputs` takes, where layers are up to 64 times wider than the inputs."""
        return max(1, VALUES // (64 * features))


# --- nets of known layers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ghost(Functional):
    """Errors at the outputs of all layers by one pass; norms and weighted sums follow from them, layer by layer."""

    name: str = "ghost"

    @cached_property
    def _layers(self) -> Tapped:
        return Tapped(self.model.module, self.model.layout.names)

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Node after node, without padding; some examples at a time."""
        rows, nonfinite = torch.zeros_like(points), 0
        for node, row in enumerate(rows):
            there = (stack.weights[node] != 0).nonzero().flatten()
            for some in chunks(len(there), self.examples_at_once(1, stack.inputs.shape[2])):
                own = Stack(*(part[node][there[some]].unsqueeze(0) for part in stack))
                added = self._together(points[node], own, clip) or super().clipped(points[node : node + 1], own, clip)
                row += added.rows[0]
                nonfinite += added.nonfinite
        return Clipped(rows, nonfinite)

    def _together(self, point: Tensor, stack: Stack, clip: Clipping) -> Clipped | None:
        """All examples of a node in one pass; None where a layer is not used once, with its examples in order."""
        inputs, targets, weights = (part[0] for part in stack)
        layout, loss = self.model.layout, self.model.loss
        shaped = inputs if self.model.shape is None else inputs.view(-1, *self.model.shape)
        parts = self._layers.gradients(layout.views(point), shaped, lambda outputs: loss.each(outputs, targets).sum())
        if parts is None:
            return None
        lengths = [parts[name].lengths() for name in layout.names]
        squares = torch.stack([one.norms for one in lengths]).square().sum(0)
        reach = torch.stack([one.reach for one in lengths]).amax(0)
        factor, unfit = clip.factors(squares.sqrt(), reach, weights)
        rows = torch.cat([parts[name].summed(factor, unfit) for name in layout.names])
        return Clipped(rows.unsqueeze(0), count(unfit, weights))


# --- matrix factorisation ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratings(Functional):
    """Matrix factorisation: errors are clipped, and then passed back as they are.

    The slope of the loss would not do: autograd doubles an error before it multiplies with a small weight, and twice
    the largest numbers is infinite.
    """

    name: str = "stacked"

    @torch.no_grad()
    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Norms are `|error| sqrt(||user||^2 + ||item||^2 + 2)`, the two for the biases."""
        parts = self.model.layout.views(points)
        node = torch.arange(len(points), device=points.device).unsqueeze(1)
        user, item = stack.inputs.long().unbind(-1)
        squares = [norms(parts["users"][node, user]).square(), norms(parts["items"][node, item]).square()]
        spread = (squares[0] + squares[1] + 2).sqrt()
        errors = self.model.loss.errors(self.outputs(points, stack.inputs), stack.targets)
        factor, unfit = clip.factors(spread * norms(errors), spread, stack.weights)
        slopes = without(unfit, errors).squeeze(-1) * factor
        rows = self._pulled_back(
            points, Stack(stack.inputs, slopes, factor), lambda outputs, *rest: outputs.T @ rest[0]
        )
        return Clipped(rows, count(unfit, stack.weights))


# --- chains of linear layers ---------------------------------------------------------------------------------------

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
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


class Layer(NamedTuple):
    """Names of a layer's parameters, its widths, and the activation behind it."""

    weight: str
    bias: str | None
    widths: tuple[int, int]
    activation: type[nn.Module] | None


def _layers(model: Model) -> tuple[Layer, ...] | None:
    """The layers of a chain whose parameters are all trained, or None."""
    found: list[Layer] = []
    for path, part in model.module.named_modules(remove_duplicate=False):
        if type(part) is nn.Linear:
            prefix = f"{path}." if path else ""
            bias = None if part.bias is None else f"{prefix}bias"
            found.append(Layer(f"{prefix}weight", bias, (part.in_features, part.out_features), None))
        elif type(part) in ACTIVATIONS and found and found[-1].activation is None:
            found[-1] = found[-1]._replace(activation=type(part))
        elif type(part) is not nn.Sequential and not (
            type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1 and not found
        ):
            return None
    used = [name for layer in found for name in (layer.weight, layer.bias) if name is not None]
    return tuple(found) if found and sorted(used) == sorted(model.layout.names) else None


@dataclass(frozen=True)
class Chain:
    """Linear layers with activations, by hand."""

    model: Model
    layers: tuple[Layer, ...]
    name: str = "stacked"
    threaded = True

    @torch.no_grad()
    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """Forward, and backward from errors times weights."""
        parameters = self.model.layout.views(points)
        passed = self._forward(parameters, stack.inputs)
        errors = self.model.loss.errors(passed[-1], stack.targets).mul_(stack.weights.unsqueeze(-1))
        return self._summed(points, passed, self._backward(parameters, passed, errors))

    @torch.no_grad()
    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Errors of all layers first, then their norms, then sums of errors times factors."""
        parameters = self.model.layout.views(points)
        passed = self._forward(parameters, stack.inputs)
        errors = self._backward(parameters, passed, self.model.loss.errors(passed[-1], stack.targets))
        squares = reach = points.new_zeros((), dtype=torch.float64)
        for layer, inputs, error in zip(self.layers, passed, errors, strict=False):
            spread = (norms(inputs).square() + (0.0 if layer.bias is None else 1.0)).sqrt()
            squares = squares + (norms(error) * spread).square()
            reach = torch.maximum(reach, spread * math.sqrt(layer.widths[1]))
        factor, unfit = clip.factors(squares.sqrt(), reach, stack.weights)
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

    def _forward(self, parameters: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
        """The inputs of every layer, N x B x I, and the outputs of the last. Activations happen in place."""
        passed = [inputs]
        for layer in self.layers:
            weight = parameters[layer.weight].transpose(1, 2)
            if layer.bias is None:
                out = torch.bmm(passed[-1], weight)
            else:
                out = torch.baddbmm(parameters[layer.bias].unsqueeze(1), passed[-1], weight)
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

    def _summed(self, points: Tensor, passed: list[Tensor], errors: list[Tensor]) -> Tensor:
        rows = torch.empty_like(points)
        parts = self.model.layout.views(rows)
        for layer, inputs, error in zip(self.layers, passed, errors, strict=False):
            torch.bmm(error.transpose(1, 2), inputs, out=parts[layer.weight])
            if layer.bias is not None:
                torch.sum(error, dim=1, out=parts[layer.bias])
        return rows


Engine: TypeAlias = Functional | Chain
"""Gradients and outputs of all nodes."""
