"""Public starts: a model begins from weights in a file, and a part of it is trained.

    start = "net.safetensors"             parameters and buffers by the names that the module gives them
    train = ["head"]                      what these names begin with; all else stays as it is in the file
    train = ["head", "lora:rank=8"]       and beside every other linear layer W a product U V of that rank: W + U V

Only what is trained is sent, clipped and noised. Weights must not come from private rows: no figure covers them. Batch
norms stay as they are stored, so that no example moves another.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from sottovoce.errors import InputError
from sottovoce.learning.datasets import few
from sottovoce.support.config import Document
from sottovoce.support.files import explaining, read_bytes
from sottovoce.support.own_code import code_folder

RULE, REMEDY = "a start is a safetensors file of public weights", "check the path, beside the run file or here"

SETTINGS = ("start", "start_sha256", "train")
"""What any model may be given besides its own settings."""


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a product of two trained matrices beside it, which begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.requires_grad_(False), layer.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.empty(layer.out_features, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The inner matrix as torch begins linear layers."""
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        nn.init.zeros_(self.up)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs, and those of the product."""
        inner = functional.linear(functional.linear(inputs, self.down), self.up)
        return functional.linear(inputs, self.weight, self.bias) + inner


class StoredNorm(nn.Module):
    """A batch norm by the mean and variance that it has stored: a factor and a shift for each channel."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = (norm.running_var + norm.eps) ** -0.5
        scale = scale if norm.weight is None else scale * norm.weight.detach()
        shift = -norm.running_mean * scale
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.shift = nn.Parameter(shift if norm.bias is None else shift + norm.bias.detach(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Channel by channel."""
        shape = (1, -1, *[1] * (inputs.dim() - 2))
        return inputs * self.scale.view(shape) + self.shift.view(shape)


def start_file(name: str) -> Path:
    """Where the file of a start is: beside the code or run file, or here."""
    folder = code_folder()
    return Path(name) if folder is None or not (folder / name).is_file() else folder / name


def start_digest(settings: Document) -> str | None:
    """The fingerprint of the file that the settings of a model begin from; None where they name none."""
    name = settings.get("start")
    return None if name is None else hashlib.sha256(_content(name)).hexdigest()


def _content(name: object) -> bytes:
    if not isinstance(name, str):
        raise InputError(f"start = {name!r:.60}", RULE, 'write start = "net.safetensors"')
    path = start_file(name)
    with explaining(path, RULE, REMEDY):
        return read_bytes(path, follow_links=True)


class Adapted(NamedTuple):
    """A module that is ready to be trained from a start, and the parameters that begin as they are in it."""

    module: nn.Module
    given: frozenset[str] = frozenset()


def adapt(module: nn.Module, settings: Document) -> Adapted:
    """The module with the weights of a start, trained in part, as these of its settings say."""
    if not settings:
        return Adapted(module)
    module, train, wanted = copy.deepcopy(module), settings.get("train"), settings.get("start_sha256")
    chosen = [train] if isinstance(train, str) else train
    if chosen is not None and not (isinstance(chosen, list | tuple) and all(isinstance(one, str) for one in chosen)):
        raise InputError(f"train = {train!r:.60}", "it lists names of parts, or lora:rank=R", 'write train = ["head"]')
    found = start_digest(settings)
    if found is None:
        raise InputError(
            "train or start_sha256 without start", "the rest has to come from somewhere", "give start, too"
        )
    if wanted not in (None, found):
        raise InputError(
            f"start {settings['start']}: SHA-256 {found}", f"start_sha256 is {wanted!r:.80}", "use that file"
        )
    ranks = [int(one[1]) for one in (re.fullmatch(r"lora:rank=([1-9]\d*)", part) for part in chosen or ()) if one]
    _freeze(module, None if chosen is None else [part for part in chosen if not part.startswith("lora:rank=")])
    stored = _load_(module, _content(settings["start"]), str(settings["start"]))
    _replace_(module, nn.modules.batchnorm._BatchNorm, _stored_norm)
    if ranks:
        _replace_(module, nn.Linear, lambda layer: layer if layer.weight.requires_grad else LowRank(layer, ranks[0]))
    return Adapted(module, stored)


def _freeze(module: nn.Module, parts: list[str] | None) -> None:
    """Train what begins with these names alone; None trains all but batch norms."""
    names = [name for name, _ in module.named_parameters()]
    for part in parts or ():
        if not any(is_of(name, part) for name in names):
            raise InputError(f"train {part!r:.60}", f"parameters are {few(names)}", "name one, or what it begins with")
    for name, value in module.named_parameters():
        value.requires_grad_(parts is None or any(is_of(name, part) for part in parts))
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.requires_grad_(False)


def is_of(name: str, part: str) -> bool:
    """Whether a parameter is a part of a module, or that part itself."""
    return name == part or name.startswith(f"{part}.")


def _load_(module: nn.Module, content: bytes, where: str) -> frozenset[str]:
    """Put weights from a file into a module. What is trained may be missing there, and begins afresh."""
    try:
        stored = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{where}: damaged ({type(error).__name__})", RULE, "make it again") from None
    held = {name: value for name, value in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    stored = {name: value for name, value in stored.items() if not name.endswith("num_batches_tracked")}
    odd = sorted(stored.keys() - held.keys()) or sorted(held.keys() - stored.keys() - trained)
    if odd:
        what = "is no part of the model" if odd[0] in stored else "is not in the file, and is not trained"
        raise InputError(f"{where}: {odd[0]} {what}", f"the model has {few(tuple(held))}", "use weights of this model")
    for name, value in stored.items():
        if value.shape != held[name].shape or not value.isfinite().all():
            raise InputError(
                f"{where}: {name} has shape {tuple(value.shape)}", f"{tuple(held[name].shape)}, of finite numbers, "
                "is needed", "use weights of this model, or leave this part out of the file and train it",
            )  # fmt: skip
    module.load_state_dict(stored, strict=False)
    return frozenset(stored.keys() & trained)


def _stored_norm(norm: nn.Module) -> nn.Module:
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    if norm.running_mean is None:
        raise InputError("a batch norm that stores no statistics", "it mixes examples", "use nn.GroupNorm instead")
    return StoredNorm(norm)


def _replace_(module: nn.Module, kind: type[nn.Module], made: object) -> None:
    """Put something else in the place of every layer of a kind."""
    for name, part in list(module.named_children()):
        if isinstance(part, kind):
            setattr(module, name, made(part))  # type: ignore[operator]
        else:
            _replace_(part, kind, made)


def merged(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state in which products of low rank are added to their layers, by the names of the module that was given."""
    out = dict(state)
    for path, part in module.named_modules():
        if isinstance(part, LowRank):
            up, down = out.pop(f"{path}.up"), out.pop(f"{path}.down")
            out[f"{path}.weight"] = out[f"{path}.weight"].to(up) + up @ down
    return out
