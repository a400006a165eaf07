"""What a torch module is and what it leaves behind: plain layers, calls that share nothing, and all that it holds.

A hook can square the outputs of a linear layer, so a model is known by the types of its layers only if all of them,
and the containers around them, are plain.

A module of one's own may keep more than parameters: a running mean, a list, a counter. All nodes have one module, so
what a call leaves there would carry the data of one node into the gradients of others. Therefore nothing outlives a
call: `call_alone`. A module that means to keep something is refused when a task is made: `state_of` sees it.
"""

from __future__ import annotations

import copy
import inspect
import random
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as torch_module

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps the hooks of a module; those of all modules are kept under the same names after `_global`."""

KEEP_NOTHING = ("torch.nn.modules.", "sottovoce.learning.models", "sottovoce.learning.starts")
"""Plain modules from here change nothing when they are called. Those of torch that do are refused: see `models`."""

LIBRARIES = ("builtins", "torch", "numpy")
"""Their functions and classes are no state of a model."""


def is_plain(module: nn.Module) -> bool:
    """Whether neither this module nor any inside it has hooks, parametrisations or attributes in place of methods.

    A parametrised module has a type of its own, so whoever compares exact types sees it too. Nor has it a parameter in
    two places: after a functional call torch puts one back in the first place only, and leaves the call's in the other.
    """
    if any(getattr(torch_module, f"_global{name}") for name in HOOKS):
        return False
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        return False
    return not any(_altered(part) for part in module.modules())


def is_known(module: nn.Module) -> bool:
    """Whether nobody else's code runs in it."""
    return is_plain(module) and all(type(part).__module__.startswith(KEEP_NOTHING) for part in module.modules())


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


# --- calls that share nothing --------------------------------------------------------------------------------------


def call_alone(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """What a module gives for parameters by name; nothing that it changes outlives the call.

    A module that is not known to keep nothing is copied, with all that it holds, and works on copies of parameters and
    inputs; random generators end as they began.
    """
    if is_known(module):
        return cast("Tensor", functional_call(module, parameters, (inputs.clone(),)))
    replaced = {id(own): own for name, own in module.named_parameters() if name in parameters}
    with generators_kept():
        alone = copy.deepcopy(module, replaced)
        own_parameters = {name: value.clone() for name, value in parameters.items()}
        return cast("Tensor", functional_call(alone, own_parameters, (inputs.clone(),)))


_TURN = threading.RLock()


@contextmanager
def generators_kept() -> Iterator[None]:
    """The global random generators of torch, numpy and Python end as they began.

    A process has one of each, so threads take turns.
    """
    with _TURN, torch.random.fork_rng():
        pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is meant
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002


# --- what a module holds -------------------------------------------------------------------------------------------


def state_of(module: nn.Module) -> dict[str, object]:
    """All that a module holds, and the global random generators, by where it is.

    Also what its functions and classes hold: defaults, closures, class attributes, and the globals that they name.
    """
    outside = {
        "its class": type(module),
        "torch's random generator": torch.default_generator,
        "numpy's random generator": np.random.get_state(),  # noqa: NPY002
        "Python's random generator": random.getstate(),
    }
    return dict(_values(vars(module) | outside, "", {}))


def _values(value: object, where: str, seen: dict[int, object]) -> Iterator[tuple[str, object]]:
    """Every value that has no parts, with its place, and what kind of thing each other one is."""
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(value, np.ndarray):
        yield where, (value.dtype, value.shape, hash(value.tobytes()))
        return
    parts = _parts(value)
    if parts is None:
        yield where, repr(value)
    elif id(value) not in seen:
        seen[id(value)] = value
        yield where, type(value)
        for name, part in parts.items():
            yield from _values(part, f"{where}.{name}".lstrip("."), seen)


def _parts(value: object) -> Mapping[Any, object] | None:
    """What a value is made of; None where it has no parts."""
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return None
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple | deque | set | frozenset):
        return dict(enumerate(value))
    if isinstance(value, type | FunctionType) and value.__module__.partition(".")[0] in LIBRARIES:
        return None
    if isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        return {"defaults": value.__defaults__, **used.nonlocals, **used.globals}
    if isinstance(value, type):
        held = {name: part for base in reversed(value.__mro__[:-1]) for name, part in vars(base).items()}
        return {name: part for name, part in held.items() if name != "__slotnames__"}  # copying makes that one
    try:
        made = value.__reduce_ex__(4)
    except (RuntimeError, TypeError):
        return None
    if isinstance(made, str):
        return None
    return dict(enumerate(list(part) if isinstance(part, Iterator) else part for part in made[1:]))
