"""Whether a model fits its data, leaves no trace, and keeps the examples of a batch apart.

Clipping per example bounds what one record does only if neither its outputs nor its gradient depend on the other
records: code of one's own may mix them on the way back alone.

Shapes: B examples, F inputs, K outputs.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import DispatchKey, _dispatch_tls_is_dispatch_key_included
from torch._functorch.autograd_function import VmapInfo

from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.engines import Functional
from sottovoce.learning.models import Model
from sottovoce.learning.modules import generators_kept, is_known, state_of

PROBES = 3
"""So many examples are put through a model together and one by one."""

DRAWN = 16
"""So many secretly chosen examples have their gradients taken together and one by one."""

TRIALS = 5
"""So often a gradient must change something before a module is refused for it."""

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far outputs for an example, together and alone, may differ, as a share of the largest.

Batches of different sizes take different routines, whose rounding differs from processor to processor.
"""


UNWRAPPING = getattr(getattr(torch.func, "debug_unwrap", None), "__code__", None)
"""Older versions of torch have no function that unwraps tensors for reading."""

KERNELS = DispatchKey.FuncTorchVmapMode
"""Of a thread within a kernel for batches; not within what vmap is given."""


def check_model(dataset: Dataset, model: Model, dtype: torch.dtype) -> None:
    """Refuse a model that does not take the rows of a data set, or whose examples influence each other."""
    rows = model.inputs(dataset.examples)
    probes_BF = torch.from_numpy(rows[:PROBES]).to(dtype)
    try:
        shape = tuple(_outputs_together(model, probes_BF).shape)
        _outputs_alone(model, probes_BF)
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{model.name} on rows of {dataset.name}, shape {dataset.shape}: {reason}",
            "a model must accept the rows of its data",
            "build it with model(name, dataset), or give wrap_module(..., shape=dataset.shape)",
        ) from None  # fmt: skip
    several = {"cross-entropy": len(dataset.classes), "hazards": len(dataset.periods)}
    wanted = several.get(model.loss.name, 1)
    if shape != (len(probes_BF), wanted):
        raise InputError(
            f"{model.name} gives outputs of shape {shape} for {len(probes_BF)} examples of {dataset.name}",
            f"{model.loss.name} needs {wanted} each",
            "change the last layer or the loss",
        )
    left = what_a_gradient_changes(model, dtype, rows.width)
    if left is not None:
        raise InputError(
            f"{model.name}: a gradient changes {left}",
            "all nodes have one module, and what a call leaves there would carry one node's data to the others",
            "compute it afresh in every call, or in __init__",
        )
    if examples_interact(model, probes_BF):
        raise InputError(
            f"{model.name}: outputs for an example change with the others of its batch",
            "clipping per example needs examples that do not influence each other",
            "replace the layer that mixes them, such as batch norm by group norm",
        )


def check_gradients(dataset: Dataset, model: Model, dtype: torch.dtype) -> None:
    """Refuse a model in which the gradient of an example depends on others, taken as clipping per example takes it."""
    if is_known(model.module):
        return
    rows = model.inputs(dataset.examples)
    chosen = np.random.default_rng().integers(len(rows), size=DRAWN)
    rows_BF = torch.from_numpy(np.concatenate([rows[row : row + 1] for row in chosen.tolist()])).to(dtype)
    try:
        with seeing_batches() as seeing:
            mixed = _differ(*_in_float64(model, rows_BF, _gradients_together, _gradients_alone))
    except RuntimeError as error:
        raise InputError(
            f"{model.name}: {str(error).splitlines()[0]}",
            "clipping per example takes the gradient of each example by torch.func",
            "leave out what vmap cannot do, or clip whole gradients",
        ) from None
    if mixed:
        raise InputError(
            f"{model.name}: the gradient of an example changes with the others of its batch",
            "clipping per example needs examples that do not influence each other",
            "leave out what mixes them on the way back",
        )
    if seeing:
        raise InputError(
            f"{model.name} has all examples of a batch in {seeing[0]}, as rules and kernels for vmap do",
            "clipping per example needs examples that do not influence each other",
            "leave vmap to torch, with generate_vmap_rule = True, or clip whole gradients",
        )


@contextmanager
def seeing_batches() -> Iterator[list[str]]:
    """The functions outside of torch that have whole batches meanwhile, where vmap has one example at a time.

    Those of torch keep examples apart. Any other can wait for a size of batches, or a value, that no example tried
    here has. So it is known by how it gets them: as a rule, as a kernel of an operator, or by unwrapping tensors.
    """
    found: list[str] = []

    def note(frame: FrameType, event: str, called: object) -> None:
        of_torch, given = _is_of_torch(frame), list(frame.f_locals.values())
        if event == "c_call":
            sees = not of_torch and getattr(called, "__module__", None) == torch._C._functorch.__name__
        elif event != "call" or of_torch:
            sees = frame.f_code is UNWRAPPING and event == "call"
        else:
            given += [one for some in given if isinstance(some, tuple) for one in some]
            sees = any(isinstance(one, VmapInfo) for one in given) or _dispatch_tls_is_dispatch_key_included(KERNELS)
        if sees:
            found.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _is_of_torch(frame: FrameType) -> bool:
    """Or of what torch uses within its own kernels: Python itself, and tuples that namedtuple makes."""
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name in {"torch", *sys.stdlib_module_names} or name.startswith("namedtuple_")


def what_a_gradient_changes(model: Model, dtype: torch.dtype, features: int) -> str | None:
    """Where a module, in the mode it is in, holds something else after a gradient on public rows; None if nowhere.

    Other threads may draw from the generators of numpy and Python meanwhile, but not every time.
    """
    tried = (_changed_by_a_gradient(model, dtype, features, 10.0 ** (30 + trial)) for trial in range(TRIALS))
    found: str | None = None
    for found in tried:
        if found is None:
            break
    return found


def _changed_by_a_gradient(model: Model, dtype: torch.dtype, features: int, size: float) -> str | None:
    """On rows that grow from trial to trial, beyond all data: the largest value that a class keeps moves in each."""
    with generators_kept():
        module = copy.deepcopy(model.module).to(dtype)
        # Rows of which gradients are asked for, so that torch does not warn of backward hooks.
        shape = model.shape or (features,)
        rows = torch.stack([torch.zeros(shape, dtype=dtype), torch.full(shape, size, dtype=dtype)]).requires_grad_()
        before = state_of(module)
        try:
            first = _outputs_and_gradient(module, rows)
        except (IndexError, RuntimeError):  # rows are positions
            rows = torch.zeros(1, *shape, dtype=dtype, requires_grad=True)
            first = _outputs_and_gradient(module, rows)
        after = state_of(module)
        second = _outputs_and_gradient(module, rows)
    places = [place for place in {**before, **after} if before.get(place) != after.get(place)]
    if places:
        return min(places, key=len)
    return None if torch.allclose(first, second, rtol=0, atol=0, equal_nan=True) else "outputs for the same rows"


def _outputs_and_gradient(module: nn.Module, rows: Tensor) -> Tensor:
    """Called as it is, so that what it changes is seen."""
    with torch.enable_grad():
        outputs: Tensor = module(rows)
        torch.autograd.grad(outputs.sum(), [one for one in module.parameters() if one.requires_grad], allow_unused=True)
    return outputs.detach()


def examples_interact(model: Model, inputs_BF: Tensor) -> bool:
    """Whether outputs for an example depend on the other examples of its batch.

    Decided in float64, where rounding is far below the tolerance and overflow is rare. Outputs that overflow all the
    same say nothing: then inputs are scaled to at most 1 and asked again.
    """
    found = _in_float64(model, inputs_BF, _outputs_together, _outputs_alone)
    if not all(bool(part.isfinite().all()) for part in found):
        found = _in_float64(model, _at_most_one(inputs_BF), _outputs_together, _outputs_alone)
    if not any(bool(part.isfinite().any()) for part in found):
        raise InputError(
            f"{model.name}: no output is finite, even for inputs of at most 1",
            "outputs must be finite to check that examples do not influence each other",
            "check its parameters and layers",
        )
    return _differ(*found)


def _differ(together_BK: Tensor, alone_BK: Tensor) -> bool:
    """Whether numbers of an example differ by more than rounding, or are finite only together or only alone."""
    finite_BK = together_BK.isfinite()
    if not torch.equal(finite_BK, alone_BK.isfinite()):
        return True
    together_BK, alone_BK = (part.masked_fill(~finite_BK, 0.0) for part in (together_BK, alone_BK))
    return bool((abs(together_BK - alone_BK) > _allowed(together_BK, alone_BK)).any())


def _allowed(together_BK: Tensor, alone_BK: Tensor) -> Tensor:
    """How far outputs may differ: a share of the largest of the same example, and rounding of the largest of all."""
    largest_B1 = torch.maximum(together_BK.abs(), alone_BK.abs()).amax(-1, keepdim=True)
    rounding = 100 * torch.finfo(together_BK.dtype).eps
    return TOLERANCE[together_BK.dtype] * largest_B1 + rounding * largest_B1.max()


def _in_float64(model: Model, inputs_BF: Tensor, *ways: Callable[[Model, Tensor], Tensor]) -> list[Tensor]:
    """What comes of each way; in the precision of the inputs for a module that works in no other."""
    precise = replace(model, module=copy.deepcopy(model.module).double())
    try:
        return [way(precise, inputs_BF.double()) for way in ways]
    except RuntimeError:
        return [way(model, inputs_BF) for way in ways]


def _at_most_one(inputs_BF: Tensor) -> Tensor:
    largest_B1 = inputs_BF.abs().amax(-1, keepdim=True)
    return inputs_BF / largest_B1.clamp(min=1.0)


@torch.no_grad()
def _outputs_together(model: Model, inputs_BF: Tensor) -> Tensor:
    return model.outputs(_start(model, inputs_BF.dtype), inputs_BF)


@torch.no_grad()
def _outputs_alone(model: Model, inputs_BF: Tensor) -> Tensor:
    row_D = _start(model, inputs_BF.dtype)
    return torch.cat([model.outputs(row_D, own_F.unsqueeze(0)) for own_F in inputs_BF])


def _gradients_together(model: Model, inputs_BF: Tensor) -> Tensor:
    """For targets of zero, a class or a number that is public."""
    targets_B = torch.zeros(len(inputs_BF), dtype=torch.long if model.loss.name == "cross-entropy" else inputs_BF.dtype)
    return Functional(model).of_each(_start(model, inputs_BF.dtype), inputs_BF, targets_B)


def _gradients_alone(model: Model, inputs_BF: Tensor) -> Tensor:
    return torch.cat([_gradients_together(model, own_F.unsqueeze(0)) for own_F in inputs_BF])


def _start(model: Model, dtype: torch.dtype) -> Tensor:
    return model.start(1, torch.Generator().manual_seed(0), dtype=dtype)[0]
