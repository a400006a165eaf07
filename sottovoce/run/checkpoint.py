"""Checkpoints: all that a run needs to go on as if it had never stopped.

A stage is written whole or not at all. Noise is keyed by round, so nothing about generators has to be kept.
Arrays lie in an npz file by number; beside them, as JSON, how they were nested.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sottovoce import arrays
from sottovoce.errors import InputError
from sottovoce.files import read_npz, write
from sottovoce.loop import Traffic
from sottovoce.run.trial import Stage

FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """A stage, how many lines of metrics were written before it, and the seconds it took."""

    stage: Stage
    lines: int
    seconds: float


def save(path: Path, saved: Saved, fingerprint: str) -> None:
    """Write a stage. `fingerprint` names the run, so that no other takes it up."""
    found: list[Any] = []
    stage = saved.stage
    about = {
        "format": FORMAT, "fingerprint": fingerprint, "rounds": stage.rounds, "sent": list(stage.sent),
        "broken": stage.broken, "lines": saved.lines, "seconds": saved.seconds, "carry": _outline(stage.carry, found),
    }  # fmt: skip
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    named = {str(number): values for number, values in enumerate(found)}

    def write_to(file: BinaryIO) -> None:
        np.savez(file, about=text, **named)

    write(path, write_to)


def load(path: Path, before: Stage, fingerprint: str) -> Saved:
    """Read a stage of the run that began with `before`."""
    stored = read_npz(path)
    try:
        about = json.loads(stored.pop("about").tobytes())
        if about["format"] != FORMAT:
            raise InputError(f"{path}: format {about['format']}", f"this version reads {FORMAT}", "start the run anew")
        if about["fingerprint"] != fingerprint:
            raise InputError(
                f"{path}: a checkpoint of other settings, data or code", "a run goes on as it began",
                "restore them, or start anew in another folder",
            )  # fmt: skip
        carry = _rebuilt(about["carry"], stored, before.carry)
        stage = Stage(about["rounds"], carry, Traffic(*about["sent"]), about["broken"])
        return Saved(stage, about["lines"], about["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: no checkpoint of a run", "it is written by sotto run", "start the run anew"
        ) from None


def _outline(value: Any, found: list[Any]) -> Any:
    """How arrays are nested: a list for a tuple, a number in a list of one for an array, and numbers as they are."""
    if value is None or isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, tuple):
        return [_outline(part, found) for part in value]
    found.append(value.numpy() if arrays.is_torch(value) else value)
    return {"array": len(found) - 1, "torch": arrays.is_torch(value)}


def _rebuilt(outline: Any, stored: dict[str, Any], like: Any) -> Any:
    """The value of an outline; tuples are of the kind that `like` has in their place."""
    if isinstance(outline, list):
        models = like if isinstance(like, tuple) else [None] * len(outline)
        parts = [_rebuilt(part, stored, model) for part, model in zip(outline, models, strict=True)]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if "array" not in outline:
        return outline["value"]
    values = stored[str(outline["array"])]
    if not outline["torch"]:
        return arrays.read_only(values)
    import torch

    return torch.from_numpy(values)
