"""Whether torch modules compute what their types say: no hooks, no parametrisations, no methods of their own.

A hook can square the outputs of a linear layer, so a model is known by the types of its layers only if all of them,
and the containers around them, are plain.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps the hooks of a module; those of all modules are kept under the same names after `_global`."""


def is_plain(module: nn.Module) -> bool:
    """Whether neither this module nor any inside it has hooks, parametrisations or attributes in place of methods.

    A parametrised module has a type of its own, so whoever compares exact types sees it too.
    """
    if any(getattr(torch_module, f"_global{name}") for name in HOOKS):
        return False
    return not any(_altered(part) for part in module.modules())


def _altered(module: nn.Module) -> bool:
    overrides = any(hasattr(type(module), name) for name in vars(module))
    return overrides or "parametrizations" in module._modules or any(getattr(module, name) for name in HOOKS)


def only_linear_layer(module: nn.Module) -> nn.Linear | None:
    """The layer of a plain model that is one linear layer, all of it trained; None for any other model."""
    if not is_plain(module):
        return None
    inner = module
    while type(inner) is nn.Sequential and len(inner) == 1:
        inner = inner[0]
    trained = all(parameter.requires_grad for parameter in inner.parameters())
    return inner if type(inner) is nn.Linear and trained else None
