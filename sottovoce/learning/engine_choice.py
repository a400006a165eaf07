"""Which gradient engine suits a model: the quickest that gives its gradients."""

from __future__ import annotations

from torch import nn

from sottovoce.errors import InputError
from sottovoce.learning.engines import ENGINES, Engine, Functional, Loop
from sottovoce.learning.models import Model
from sottovoce.learning.stacked_engines import stacked


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
