"""A device that is nowhere but in tests: tensors on it are those of the processor, and never meet these.

Whatever torch computes with tensors of both kinds fails, as it does between a graphics card and main memory, and so
does reading one as a numpy array. So a run on it shows what a machine with one processor cannot show otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sottovoce.core import arrays

NAME = "lazy"
"""A device that torch can name and that no build has."""


class Elsewhere(Tensor):
    """A tensor on that device; `here` is the one that holds its numbers."""

    __module__ = "torch.elsewhere"
    __torch_function__ = torch._C._disabled_torch_function_impl
    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        is_dense = here.layout is torch.strided
        strides = {"strides": here.stride(), "storage_offset": here.storage_offset()} if is_dense else {}
        made = torch.Tensor._make_wrapper_subclass(cls, here.shape, dtype=here.dtype, device=NAME, **strides)
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, given=(), named=None):
        return computed(operation, given, named or {})


def computed(operation: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What an operation gives, on the device of its tensors or on the one that it is asked for."""
    tensors = [one for one in tree_leaves((given, named)) if isinstance(one, Tensor)]
    there, device = any(isinstance(one, Elsewhere) for one in tensors), named.get("device")
    moves = device is not None or operation._schema.name == "aten::copy_"
    if there and not moves and any(not isinstance(one, Elsewhere) and one.dim() for one in tensors):
        raise RuntimeError(f"{operation}: tensors on two devices")
    ends_there = there if device is None else torch.device(device).type == NAME
    arguments, options = tree_map(_here, (given, named))
    found = operation(*arguments, **(options if device is None else {**options, "device": "cpu"}))
    known = {id(_here(one)): one for one in tensors}
    return tree_map(lambda one: known.get(id(one), _there(one) if ends_there else one), found)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, Elsewhere) else value


def _there(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, Tensor) else value


class _Everywhere(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, given=(), named=None):
        return computed(operation, given, named or {})


@contextmanager
def elsewhere() -> Iterator[str]:
    """The name of the device, which is there within the block. Its tensors are of a kind of their own here."""
    with _Everywhere(), mock.patch.object(arrays, "checked_kind", lambda rows: rows):
        yield NAME
