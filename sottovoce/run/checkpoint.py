"""Checkpoints: all that a run needs to go on as if it had never stopped, in any number of processes.

A checkpoint is written whole or not at all. Noise is keyed by round, so nothing about generators has to be stored.
Arrays lie in an npz file by number; beside them, as JSON, how they were nested. Of a run over processes every rank
writes the rows of its nodes into a part of its own; when all parts are there, rank 0 writes its own, which names them,
and removes those of the checkpoint before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypedDict

import numpy as np
import torch

from sottovoce.core import arrays
from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals, Rows
from sottovoce.core.files import Arrays, read_npz, read_rows, write
from sottovoce.core.messages import Traffic
from sottovoce.core.transport import Nodes, Transport
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.errors import InputError
from sottovoce.run.training_run import RunState, TrainingRun
from sottovoce.text import parse_json

FORMAT = 1


class _Leaf(TypedDict, total=False):
    """A leaf of a state: a value, or which array it is, of what kind, and whether its rows lie in several parts."""

    value: float | None
    array: int
    torch: bool
    split: bool


Nesting: TypeAlias = "list[Nesting] | _Leaf"
"""How the leaves of a state are nested: a list stands for a tuple."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands, how many lines of metrics were written before, and the seconds it took."""

    state: RunState
    lines: int
    seconds: float


def save(
    path: Path,
    checkpoint: Checkpoint,
    fingerprint: str,
    transport: Transport,
    coordinator: Coordinator | None = None,
) -> None:
    """Write a checkpoint. `fingerprint` names the run, so that no other goes on from it."""
    coordinator = coordinator or SingleProcess()
    leaves: list[Rows] = []
    state, nesting = checkpoint.state, _nesting(checkpoint.state.loop_state, transport, leaves)
    if coordinator.rank:
        _write(_part(path, state.rounds, coordinator.rank, coordinator.size), _rows_here(leaves, transport))
    counts = [part.tolist() for part in coordinator.gather(torch.tensor([state.nonfinite, state.wire_bytes]))]
    if coordinator.rank:
        return
    parts = [_part(path, state.rounds, rank, coordinator.size).name for rank in range(1, coordinator.size)]
    about = {
        "format": FORMAT, "fingerprint": fingerprint, "rounds": state.rounds, "sent": list(state.sent),
        "nonfinite": sum(nonfinite for nonfinite, _ in counts), "wire": sum(wire for _, wire in counts),
        "lines": checkpoint.lines, "seconds": checkpoint.seconds, "carry": nesting, "parts": parts,
    }  # fmt: skip
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    _write(path, {"about": text, **_rows_here(leaves, transport), **_whole_arrays(leaves, transport)})
    for old in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        if old.name not in parts and re.fullmatch(r".+\.\d+\.\d+of\d+", old.stem):
            old.unlink()


def _part(path: Path, rounds: int, rank: int, size: int) -> Path:
    return path.with_name(f"{path.stem}.{rounds}.{rank}of{size}{path.suffix}")


def _nesting(value: State, transport: Transport, leaves: list[Rows]) -> Nesting:
    """How arrays are nested in a state: a list for a tuple, the number of a leaf for an array, numbers as they are."""
    if value is None or isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, tuple):
        return [_nesting(part, transport, leaves) for part in value]
    leaves.append(value)
    partial = transport.is_partial(value)
    is_torch = arrays.is_torch(transport.local(value) if partial else value)
    leaf: _Leaf = {"array": len(leaves) - 1, "torch": is_torch}
    if partial:
        leaf["split"] = True
    return leaf


def _rows_here(leaves: list[Rows], transport: Transport) -> Arrays:
    """The rows of the nodes here where other processes hold the rest, with the numbers of these nodes."""
    partial = {str(number): rows for number, rows in enumerate(leaves) if transport.is_partial(rows)}
    named = {number: arrays.to_numpy(transport.local(rows)) for number, rows in partial.items()}
    return {"nodes": transport.nodes, **named} if named else {}


def _whole_arrays(leaves: list[Rows], transport: Transport) -> Arrays:
    """What every process has whole."""
    whole = {str(number): rows for number, rows in enumerate(leaves) if not transport.is_partial(rows)}
    return {number: arrays.to_numpy(rows) for number, rows in whole.items()}


def _write(path: Path, named: Arrays) -> None:
    def write_to(file: BinaryIO) -> None:
        np.savez(file, **named)  # type: ignore[arg-type]

    write(path, write_to, private=True)


def load(path: Path, training_run: TrainingRun, fingerprint: str, coordinator: Coordinator | None = None) -> Checkpoint:
    """Read a checkpoint of a run: the rows of the nodes that live here. Rank 0 goes on counting what was counted."""
    transport = training_run.transport
    everyone = len(transport.nodes) == transport.n
    stored = read_npz(path, None if everyone else ["about", "nodes"])
    try:
        about = parse_json(stored["about"].tobytes())
        if about["format"] != FORMAT:
            raise InputError(f"{path}: format {about['format']}", f"this version reads {FORMAT}", "start the run anew")
        if about["fingerprint"] != fingerprint:
            raise InputError(
                f"{path}: a checkpoint of other settings, data or code", "a run goes on as it began",
                "restore them, or start anew in another folder",
            )  # fmt: skip
        files = _CheckpointFiles(path, about.get("parts", []), stored)
        loop_state = _restored(about["carry"], files, transport, training_run.before().loop_state)
        counts = (about["nonfinite"], about.get("wire", 0)) if (coordinator or SingleProcess()).rank == 0 else (0, 0)
        state = RunState(about["rounds"], loop_state, Traffic(*about["sent"]), *counts)
        return Checkpoint(state, about["lines"], about["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: no checkpoint of a run", "it is written by sotto run", "start the run anew"
        ) from None


def _restored(nesting: Nesting, files: _CheckpointFiles, transport: Transport, before: State) -> State:
    """The state of a nesting; tuples are of the kind that was in their place before the first round."""
    if isinstance(nesting, list):
        places = before if isinstance(before, tuple) else [None] * len(nesting)
        parts = [_restored(part, files, transport, place) for part, place in zip(nesting, places, strict=True)]
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    if "array" not in nesting:
        return nesting["value"]
    stored = _StoredArray(files, str(nesting["array"]), nesting["torch"], nesting.get("split", False))
    return transport.restore(stored, before)


class _CheckpointFiles:
    """The file of rank 0, and the parts of other ranks, each with the numbers of the nodes whose rows it holds."""

    def __init__(self, path: Path, parts: list[str], stored: Arrays) -> None:
        self.path, self._stored = path, stored
        self.nodes = {path: stored["nodes"]} if parts else {}
        for name in parts:
            part = path.with_name(Path(name).name)
            self.nodes[part] = read_npz(part, ["nodes"])["nodes"]
        if parts and sorted(np.concatenate([*self.nodes.values()])) != list(range(self.n)):
            raise KeyError("nodes")

    @property
    def n(self) -> int:
        """Nodes of all parts together."""
        return sum(len(nodes) for nodes in self.nodes.values())

    def whole(self, name: str) -> Reals:
        """An array that is stored whole."""
        return self._stored[name] if name in self._stored else read_npz(self.path, [name])[name]

    def split_rows(self, name: str, nodes: Nodes) -> Reals:
        """The rows of some nodes of an array that is stored in parts."""
        found: Reals | None = None
        for path, held in self.nodes.items():
            at = np.flatnonzero(np.isin(nodes, held))
            if len(at):
                rows = read_rows(path, name, np.searchsorted(held, nodes[at]))
                found = np.empty((len(nodes), *rows.shape[1:]), dtype=rows.dtype) if found is None else found
                found[at] = rows
        if found is None:
            raise KeyError(name)
        return found


@dataclass(frozen=True)
class _StoredArray:
    """One array of a checkpoint, by its name, stored whole or split into parts."""

    files: _CheckpointFiles
    name: str
    is_torch: bool
    is_split: bool

    def whole(self) -> Rows:
        if self.is_split:
            return self._kind(self.files.split_rows(self.name, np.arange(self.files.n)))
        return self._kind(self.files.whole(self.name))

    def of(self, nodes: Nodes) -> Rows:
        if self.is_split:
            return self._kind(self.files.split_rows(self.name, nodes))
        return self._kind(read_rows(self.files.path, self.name, nodes))

    def _kind(self, values: Reals) -> Rows:
        return torch.from_numpy(values) if self.is_torch else arrays.read_only(values)
