"""Gradients of single examples, layer by layer, from a layer's inputs and the errors at its outputs.

At T places (pixels of a convolution, words) a linear layer adds up outer products of errors and inputs. An example's
gradient is kept as it is, or as these T pairs, whichever is smaller (Bu et al. 2022, mixed ghost clipping). The norm of
the sum of pairs is `sum_ts (a_t . a_s) (e_t . e_s)`: no gradient is made (Goodfellow 2015; Li et al. 2022).

Shapes: B examples, T places, I inputs, O outputs, P numbers of a parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from sottovoce.learning.clipping import norms, without

ROUNDING = 64
"""So many units of rounding, of the largest value that errors and inputs allow, are added to squares of norms."""


class Lengths(NamedTuple):
    """Norms of the gradients of examples, never too small, and how much rounding can grow behind a factor: `reach`."""

    norms: Tensor
    reach: Tensor


@dataclass(frozen=True)
class Whole:
    """The gradients of a parameter, B x P."""

    rows: Tensor

    def lengths(self) -> Lengths:
        """Norms of what is there."""
        found = norms(self.rows)
        return Lengths(found, torch.ones_like(found))

    def summed(self, factor: Tensor, unfit: Tensor) -> Tensor:
        """Weighted over examples."""
        return factor @ without(unfit, self.rows)


@dataclass(frozen=True)
class Pairs:
    """Sums over places of outer products of errors, B x T x O, and inputs, B x T x I."""

    errors: Tensor
    inputs: Tensor

    def lengths(self) -> Lengths:
        """In float64, where numbers cancel."""
        parts = norms(self.errors), norms(self.inputs)
        reach = parts[1].square().sum(1).sqrt() * self.errors[0].numel() ** 0.5
        if self.errors.shape[1] == 1:
            return Lengths((parts[0] * parts[1]).squeeze(1), reach)
        products = [part @ part.transpose(1, 2) for part in (self.errors.double(), self.inputs.double())]
        squares = products[0].mul_(products[1])
        largest = (parts[0] * parts[1]).sum(1).square()
        added = ROUNDING * torch.finfo(torch.float64).eps * largest
        return Lengths((squares.sum((1, 2)).clamp(min=0) + added).sqrt(), reach)

    def summed(self, factor: Tensor, unfit: Tensor) -> Tensor:
        """Errors times factors, and one product for all examples and places; in float64, as norms are."""
        errors, inputs = (without(unfit, part).double() for part in (self.errors, self.inputs))
        found = (errors * factor.view(-1, 1, 1)).flatten(0, 1).T @ inputs.flatten(0, 1)
        return found.flatten().to(factor.dtype)


Part = Whole | Pairs


def _product(errors: Tensor, inputs: Tensor) -> Part:
    """The smaller of both, of errors B x T x O and inputs B x T x I."""
    _, places, outputs = errors.shape
    if outputs * inputs.shape[2] <= places * (outputs + inputs.shape[2]):
        return Whole(torch.bmm(errors.transpose(1, 2), inputs).flatten(1))
    return Pairs(errors, inputs)


def _linear(layer: nn.Linear, inputs: Tensor, errors: Tensor) -> Iterator[tuple[str, Part]]:
    errors, inputs = (part.reshape(len(part), -1, part.shape[-1]) for part in (errors, inputs))
    yield "weight", _product(errors, inputs)
    yield "bias", Whole(errors.sum(1))


def _convolution(layer: nn.Conv2d, inputs: Tensor, errors: Tensor) -> Iterator[tuple[str, Part]]:
    patches = _patches(layer, inputs, errors.shape[2:])
    errors = errors.flatten(2)
    yield "weight", _product(errors.transpose(1, 2), patches.transpose(1, 2))
    yield "bias", Whole(errors.sum(2))


def _patches(layer: nn.Conv2d, images: Tensor, places: Sequence[int]) -> Tensor:
    """What each output is computed from, B x I x T: copied by strides, which takes a third of `functional.unfold`."""
    assert not isinstance(layer.padding, str)
    down, across = layer.padding
    padded = functional.pad(images, (across, across, down, down))
    along, steps = padded.stride(), padded.stride()[2:]
    inner = [step * apart for step, apart in zip(steps, layer.dilation, strict=True)]
    outer = [step * apart for step, apart in zip(steps, layer.stride, strict=True)]
    shape = (*padded.shape[:2], *layer.kernel_size, *places)
    return padded.as_strided(shape, (*along[:2], *inner, *outer)).reshape(len(images), -1, places[0] * places[1])


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, errors: Tensor) -> Iterator[tuple[str, Part]]:
    scaled = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    yield "weight", Whole((errors * scaled).flatten(2).sum(2) if errors.dim() > 2 else errors * scaled)
    yield "bias", Whole(errors.flatten(2).sum(2) if errors.dim() > 2 else errors)


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor, errors: Tensor) -> Iterator[tuple[str, Part]]:
    scaled = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    for name, part in (("weight", errors * scaled), ("bias", errors)):
        yield name, Whole(part.reshape(len(part), -1, *layer.normalized_shape).sum(1).flatten(1))


def _embedding(layer: nn.Embedding, inputs: Tensor, errors: Tensor) -> Iterator[tuple[str, Part]]:
    chosen = functional.one_hot(inputs.flatten(1), layer.num_embeddings).to(errors)
    yield "weight", _product(chosen, errors.reshape(len(errors), -1, errors.shape[-1]))


LAYERS: dict[type[nn.Module], tuple[Callable[..., Iterator[tuple[str, Part]]], dict[str, Any]]] = {
    nn.Linear: (_linear, {}),
    nn.Conv2d: (_convolution, {"groups": 1, "padding_mode": "zeros"}),
    nn.GroupNorm: (_group_norm, {}),
    nn.LayerNorm: (_layer_norm, {}),
    nn.Embedding: (_embedding, {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False}),
}
"""How a layer's gradients follow, and with which settings it does nothing else."""


def _owners(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """The layers that hold trained parameters, by path."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return {path: module.get_submodule(path) for path in paths}


def has_known_layers(module: nn.Module, names: Sequence[str]) -> bool:
    """Whether gradients of these parameters follow from inputs and errors of plain layers of a module.

    Nothing may change a layer's outputs in place, or fold examples into places.
    """
    for part in module.modules():
        first = {nn.Flatten: "start_dim", nn.Unflatten: "dim"}.get(type(part))
        if getattr(part, "inplace", False) or (first is not None and getattr(part, first) < 1):
            return False
    for layer in _owners(module, names).values():
        known = LAYERS.get(type(layer))
        if known is None or any(getattr(layer, key) != value for key, value in known[1].items()):
            return False
        if isinstance(getattr(layer, "padding", None), str):
            return False
    return True


class Tapped:
    """A copy of a module that keeps what goes into its trained layers, and what comes out."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._module, self._names = copy.deepcopy(module), names
        self._layers = _owners(self._module, names)
        self._seen: list[tuple[str, Tensor, Tensor]] = []
        for path, layer in self._layers.items():
            layer.register_forward_hook(partial(self._keep, path))

    def _keep(self, path: str, layer: nn.Module, given: tuple[Tensor, ...], outputs: Tensor) -> None:
        self._seen.append((path, given[0].detach(), outputs if outputs.requires_grad else outputs.requires_grad_()))

    def gradients(
        self, parameters: dict[str, Tensor], inputs: Tensor, value: Callable[[Tensor], Tensor]
    ) -> dict[str, Part] | None:
        """Those of each example of a sum over examples, by parameter; None where layers are not used once each."""
        self._seen.clear()
        with torch.enable_grad():
            outputs = functional_call(self._module, parameters, (inputs,))
            total = value(outputs.unsqueeze(-1) if outputs.dim() == 1 else outputs)
            paths = [path for path, _, _ in self._seen]
            by_example = all(len(part) == len(inputs) for _, *both in self._seen for part in both)
            if sorted(paths) != sorted(self._layers) or not by_example:
                return None
            errors = torch.autograd.grad(total, [out for _, _, out in self._seen], materialize_grads=True)
        found = {}
        for (path, given, _), error in zip(self._seen, errors, strict=True):
            for name, part in LAYERS[type(self._layers[path])][0](self._layers[path], given, error):
                found[f"{path}.{name}" if path else name] = part
        self._seen.clear()
        return found
