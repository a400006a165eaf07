"""Checkpoints: all that a run needs to go on as if it had never stopped, in any number of processes.

A stage is written whole or not at all. Noise is keyed by round, so nothing about generators has to be kept.
Arrays lie in an npz file by number; beside them, as JSON, how they were nested. Of a run over processes every rank
writes the rows of its nodes into a part of its own; when all parts are there, rank 0 writes its own, which names them,
and removes those of the stage before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.files import read_npz, read_rows, write
from sottovoce.core.messages import Traffic
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.distributed.sharded_rows import Halo, ShardedRows
from sottovoce.errors import InputError
from sottovoce.run.training_run import RunState

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A stage, how many lines of metrics were written before it, and the seconds it took."""

    state: RunState
    lines: int
    seconds: float


def save(path: Path, saved: Checkpoint, fingerprint: str, coordinator: Coordinator | None = None) -> None:
    """Write a stage. `fingerprint` names the run, so that no other takes it up."""
    coordinator = coordinator or SingleProcess()
    found: list[Any] = []
    state, outline = saved.state, _outline(saved.state.loop_state, found)
    if coordinator.rank:
        _write(_part(path, state.rounds, coordinator.rank, coordinator.size), _rows(found))
    counted = coordinator.gathered((state.nonfinite, state.wire_bytes))
    if coordinator.rank:
        return
    parts = [_part(path, state.rounds, rank, coordinator.size).name for rank in range(1, coordinator.size)]
    about = {
        "format": FORMAT, "fingerprint": fingerprint, "rounds": state.rounds, "sent": list(state.sent),
        "nonfinite": sum(nonfinite for nonfinite, _ in counted), "wire": sum(wire for _, wire in counted),
        "lines": saved.lines, "seconds": saved.seconds, "carry": outline, "parts": parts,
    }  # fmt: skip
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    _write(path, {"about": text, **_rows(found), **_public(found)})
    for old in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        if old.name not in parts and re.fullmatch(r".+\.\d+\.\d+of\d+", old.stem):
            old.unlink()


def _part(path: Path, rounds: int, rank: int, size: int) -> Path:
    return path.with_name(f"{path.stem}.{rounds}.{rank}of{size}{path.suffix}")


def _rows(found: list[Any]) -> dict[str, NDArray[Any]]:
    """What is this rank's alone, with the numbers of its nodes."""
    mine = {str(number): rows for number, rows in enumerate(found) if isinstance(rows, ShardedRows)}
    named = {number: rows.own.numpy() for number, rows in mine.items()}
    return {"nodes": next(iter(mine.values())).shard.nodes, **named} if mine else {}


def _public(found: list[Any]) -> dict[str, NDArray[Any]]:
    """What every process has whole."""
    whole = {str(number): rows for number, rows in enumerate(found) if not isinstance(rows, ShardedRows)}
    return {number: rows.numpy() if arrays.is_torch(rows) else rows for number, rows in whole.items()}


def _write(path: Path, named: dict[str, NDArray[Any]]) -> None:
    def write_to(file: BinaryIO) -> None:
        np.savez(file, **named)  # type: ignore[arg-type]

    write(path, write_to)


def load(path: Path, before: RunState, fingerprint: str, shard: NodeShard | None = None) -> Checkpoint:
    """Read a stage of the run that began with `before`; with a `host` the rows of its nodes alone."""
    stored = read_npz(path) if shard is None else read_npz(path, ["about", "nodes"])
    try:
        about = json.loads(stored["about"].tobytes())
        if about["format"] != FORMAT:
            raise InputError(f"{path}: format {about['format']}", f"this version reads {FORMAT}", "start the run anew")
        if about["fingerprint"] != fingerprint:
            raise InputError(
                f"{path}: a checkpoint of other settings, data or code", "a run goes on as it began",
                "restore them, or start anew in another folder",
            )  # fmt: skip
        reader = _Reader(path, about.get("parts", []), stored, shard)
        loop_state = _rebuilt(about["carry"], reader, before.loop_state)
        counts = (about["nonfinite"], about.get("wire", 0)) if shard is None or shard.communicator.rank == 0 else (0, 0)
        return Checkpoint(
            RunState(about["rounds"], loop_state, Traffic(*about["sent"]), *counts), about["lines"], about["seconds"]
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: no checkpoint of a run", "it is written by sotto run", "start the run anew"
        ) from None


class _Reader:
    """Rows by number, from the parts that hold them: of all nodes, or of those that a host asks for."""

    def __init__(self, path: Path, parts: list[str], stored: dict[str, NDArray[Any]], shard: NodeShard | None) -> None:
        self.shard, self._path, self._stored = shard, path, stored
        self._nodes = {path: stored["nodes"]} if parts else {}
        for name in parts:
            part = path.with_name(Path(name).name)
            self._nodes[part] = read_npz(part, ["nodes"])["nodes"]
        if parts and sorted(np.concatenate([*self._nodes.values()])) != list(range(self._total)):
            raise KeyError("nodes")

    @property
    def _total(self) -> int:
        return sum(len(nodes) for nodes in self._nodes.values())

    def public(self, number: int) -> NDArray[Any]:
        """An array that is stored whole."""
        name = str(number)
        return self._stored[name] if name in self._stored else read_npz(self._path, [name])[name]

    def rows(self, number: int, wanted: NDArray[np.intp] | None, split: bool) -> NDArray[Any]:
        """The rows of some nodes, or of all, of an array that is stored whole or in parts."""
        name = str(number)
        if not split:
            return self.public(number) if wanted is None else read_rows(self._path, name, wanted)
        wanted = np.arange(self._total) if wanted is None else wanted
        found: NDArray[Any] | None = None
        for path, nodes in self._nodes.items():
            at = np.flatnonzero(np.isin(wanted, nodes))
            if len(at):
                rows = read_rows(path, name, np.searchsorted(nodes, wanted[at]))
                found = np.empty((len(wanted), *rows.shape[1:]), dtype=rows.dtype) if found is None else found
                found[at] = rows
        if found is None:
            raise KeyError(name)
        return found


def _outline(value: Any, found: list[Any]) -> Any:
    """How arrays are nested: a list for a tuple, a number in a list of one for an array, and numbers as they are."""
    if value is None or isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, tuple):
        return [_outline(part, found) for part in value]
    found.append(value)
    split = isinstance(value, ShardedRows)
    return {"array": len(found) - 1, "torch": split or arrays.is_torch(value), **({"split": True} if split else {})}


def _rebuilt(outline: Any, reader: _Reader, like: Any) -> Any:
    """The value of an outline; tuples are of the kind that `like` has in their place."""
    if isinstance(outline, list):
        models = like if isinstance(like, tuple) else [None] * len(outline)
        parts = [_rebuilt(part, reader, model) for part, model in zip(outline, models, strict=True)]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if "array" not in outline:
        return outline["value"]
    number, split = outline["array"], outline.get("split", False)
    if reader.shard is not None and (like is None or isinstance(like, ShardedRows)):
        return _hosted(reader, number, split, None if like is None else like.halo)
    values = reader.rows(number, None, split)
    return torch.from_numpy(values) if outline["torch"] else arrays.read_only(values)


def _hosted(reader: _Reader, number: int, split: bool, halo: Halo | None) -> ShardedRows:
    """The rows of a host's nodes, and of the nodes elsewhere of whom it has to know."""
    shard = reader.shard
    assert shard is not None
    own = torch.from_numpy(reader.rows(number, shard.nodes, split))
    if halo is None or not len(halo.nodes):
        return ShardedRows(shard, own, halo)
    order = np.argsort(halo.nodes)
    rows = np.empty((len(order), own.shape[1]), dtype=own.numpy().dtype)
    rows[order] = reader.rows(number, halo.nodes[order], split)
    return ShardedRows(shard, own, Halo(halo.nodes, torch.from_numpy(rows)))
