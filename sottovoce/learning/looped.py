"""Node after node, for convolutions.

Where all layers are known, one backward pass gives the error at every layer's outputs, and from it and the layer's
inputs each example's gradient follows by one product; that is several times faster than `torch.func` over examples.
These gradients are the ones that are measured, clipped and added up: for convolutions a norm without a gradient
(from products of all pairs of positions) would lose digits, and with them the bound.

Shapes: B examples, P positions, I and O a layer's inputs and outputs, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from sottovoce.learning.clipping import Clipping
from sottovoce.learning.engines import VALUES, Clipped, Functional, Stack, pieces, sum_clipped
from sottovoce.learning.models import Model
from sottovoce.learning.networks import Block

EXAMPLES = 4
"""At least so many examples at once, however large the model."""


def _convolution(layer: nn.Conv2d, inputs: Tensor, errors: Tensor) -> dict[str, Tensor]:
    seen_BIP = functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    errors_BOP = errors.flatten(2)
    weight = torch.bmm(errors_BOP, seen_BIP.transpose(1, 2))
    return {"weight": weight.view(-1, *layer.weight.shape), "bias": errors_BOP.sum(-1)}


def _linear(layer: nn.Linear, inputs: Tensor, errors: Tensor) -> dict[str, Tensor]:
    errors_BPO, inputs_BPI = (part.flatten(1, -2) if part.dim() > 2 else part.unsqueeze(1) for part in (errors, inputs))
    return {"weight": torch.bmm(errors_BPO.transpose(1, 2), inputs_BPI), "bias": errors_BPO.sum(1)}


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, errors: Tensor) -> dict[str, Tensor]:
    plain = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    return {"weight": (errors * plain).flatten(2).sum(-1), "bias": errors.flatten(2).sum(-1)}


BY_LAYER: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], dict[str, Tensor]]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
}
"""Each example's gradient of a layer from its inputs and the errors at its outputs."""

PASSED = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.ReLU, nn.Tanh, nn.Sigmoid),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, Block),
)
"""What may stand between such layers: nothing that changes their outputs in place."""


def layers_of(model: Model) -> dict[str, nn.Module] | None:
    """The layers with parameters, by path, where all kinds are known and each is used once; else None."""
    found: dict[str, nn.Module] = {}
    for path, part in model.module.named_modules(remove_duplicate=False):
        if type(part) in BY_LAYER:
            found[path] = part
        elif type(part) not in PASSED or getattr(part, "inplace", False):
            return None
    plain = all(
        part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
        for part in found.values()
        if isinstance(part, nn.Conv2d)
    )
    owned = {f"{path}.{name}" for path, part in found.items() for name, _ in part.named_parameters()}
    return found if plain and owned == set(model.layout.names) else None


@dataclass(frozen=True)
class Loop:
    """One node at a time."""

    model: Model
    name: str = "loop"

    @cached_property
    def _layers(self) -> dict[str, nn.Module] | None:
        return layers_of(self.model)

    def total(self, points: Tensor, stack: Stack) -> Tensor:
        """Plain backward passes."""
        rows = torch.empty_like(points)
        for node, row in enumerate(points):
            parameters = self._parameters(row)
            inputs, targets, weights = (part[node] for part in stack)
            with torch.enable_grad():
                loss = self.model.loss.each(self.model.outputs_of(parameters, inputs), targets) @ weights
                found = torch.autograd.grad(loss, list(parameters.values()))
            rows[node] = self.model.layout.flatten(dict(zip(parameters, found, strict=True)))
        return rows

    def clipped(self, points: Tensor, stack: Stack, clip: Clipping) -> Clipped:
        """Each example's gradient by itself, some examples at a time."""
        rows, broken = torch.zeros_like(points), 0
        at_once = max(EXAMPLES, VALUES // self.model.layout.size)
        each = self._by_function if self._layers is None else self._by_layer
        for node in range(len(points)):
            for some in pieces(stack.weights.shape[1], at_once):
                inputs, targets, weights = (part[node, some] for part in stack)
                added = sum_clipped(each(points[node], inputs, targets).unsqueeze(0), weights.unsqueeze(0), clip)
                rows[node] += added.rows[0]
                broken += added.broken
        return Clipped(rows, broken)

    @torch.no_grad()
    def outputs(self, points: Tensor, inputs: Tensor) -> Tensor:
        """Forward passes."""
        return torch.stack([self.model.outputs(row, own) for row, own in zip(points, inputs, strict=True)])

    def examples_at_once(self, nodes: int, features: int) -> int:
        """Whatever the number of nodes, taking layers to be up to 64 times wider than the inputs."""
        return max(1, VALUES // (64 * features))

    def _parameters(self, row: Tensor) -> dict[str, Tensor]:
        return {name: part.detach().requires_grad_() for name, part in self.model.layout.views(row).items()}

    def _by_function(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        each = vmap(grad(Functional(self.model).one), in_dims=(None, 0, 0))
        return self.model.layout.flatten(each(self.model.layout.views(row), inputs, targets))

    def _by_layer(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        assert self._layers is not None
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def keep(path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def hook(layer: nn.Module, entered: tuple[Tensor, ...], left: Tensor) -> None:
                seen[path] = entered[0].detach(), left

            return hook

        hooks = [layer.register_forward_hook(keep(path)) for path, layer in self._layers.items()]
        try:
            with torch.enable_grad():
                loss = self.model.loss.each(self.model.outputs_of(self._parameters(row), inputs), targets).sum()
                errors = torch.autograd.grad(loss, [left for _, left in seen.values()])
        finally:
            for hook in hooks:
                hook.remove()
        parts: dict[str, Tensor] = {}
        for (path, (entered, _)), error in zip(seen.items(), errors, strict=True):
            layer = self._layers[path]
            parts |= {f"{path}.{name}": part for name, part in BY_LAYER[type(layer)](layer, entered, error).items()}
        return self.model.layout.flatten(parts)
