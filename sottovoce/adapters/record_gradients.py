"""The gradients of a site's records at a torch module, each taken by itself, for `Guard.stepped`.

    gradients = ModuleGradients(module, nn.functional.cross_entropy, inputs, targets)
    model = guard.stepped(round, model, gradients)

`torch.func` keeps examples apart. Opacus serves as well: with its GradSampleModule, return each `grad_sample` by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sottovoce.adapters.guard import Model
from sottovoce.errors import InputError
from sottovoce.learning.model_checks import seeing_batches


class ModuleGradients:
    """`loss(outputs, targets)` is that of a batch, here of one record. Refused where examples cannot be kept apart."""

    def __init__(
        self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
    ) -> None:
        self._module, self._loss, self._inputs, self._targets = module, loss, inputs, targets
        zeros = {name: np.zeros(tuple(part.shape), np.float32) for name, part in module.named_parameters()}
        trial = zeros, torch.zeros_like(inputs[:2]), torch.zeros_like(targets[:2])
        try:
            self._each(*trial)  # torch loads modules of its own meanwhile
            with seeing_batches() as seeing:
                self._each(*trial)
        except RuntimeError as error:
            seeing = str(error).splitlines()
        if seeing:
            raise InputError(
                f"{type(module).__name__}: {seeing[0]}", "the gradient of each record is taken by itself",
                "replace what mixes records or sees a batch of them, such as batch norm by group norm",
            )  # fmt: skip

    def __call__(self, model: Model, rows: NDArray[np.int64]) -> Model:
        """Those of records with these numbers, at a model that has all parameters of the module."""
        which = torch.from_numpy(rows)
        return self._each(model, self._inputs[which], self._targets[which])

    def _each(self, model: Model, inputs: Tensor, targets: Tensor) -> dict[str, NDArray[Any]]:
        def loss(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
            return self._loss(functional_call(self._module, parameters, (features[None],)), target[None])

        parameters = {name: torch.from_numpy(np.array(model[name])) for name, _ in self._module.named_parameters()}
        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
        return {name: part.numpy() for name, part in found.items()}
