"""Checkpoints: all that a run needs to go on as if it had never stopped, in any number of processes.

A checkpoint is written whole or not at all, and carries a checksum of itself. Noise is keyed by round, so nothing about
generators has to be stored. Arrays lie in an npz file by number; beside them, as JSON, how they were nested. Of a run
over processes every rank writes the rows of its nodes into a part of its own; when all parts are there, rank 0 writes
its own, which names them, and removes those of the checkpoint before.

What is read back has to be a state that this run can be in: counts within its rounds, and finite numbers in arrays of
the shapes that it starts with.

When a run saves and when it stops, rank 0 decides by its clock, and all ranks do it after the same round.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypedDict

import numpy as np
import torch

from sottovoce.core import arrays
from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals, Rows
from sottovoce.core.messages import Traffic
from sottovoce.core.transport import Nodes, Transport
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.errors import Diverged, InputError
from sottovoce.run.layout import CHECKPOINT
from sottovoce.run.training_run import RunState, TrainingRun
from sottovoce.schemas.validation import problem_in
from sottovoce.support.config import Document
from sottovoce.support.files import write
from sottovoce.support.npz import Arrays, read_checked_npz, read_rows, write_npz
from sottovoce.support.processes import STOPPING_SIGNALS
from sottovoce.support.text import parse_json

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
    return {"array": len(leaves) - 1, "torch": is_torch, "split": partial}


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
        write_npz(file, named)

    write(path, write_to, private=True)


def load(path: Path, training_run: TrainingRun, fingerprint: str, coordinator: Coordinator | None = None) -> Checkpoint:
    """Read a checkpoint of a run: the rows of the nodes that live here. Rank 0 goes on counting what was counted."""
    transport = training_run.transport
    everyone = len(transport.nodes) == transport.n
    stored = read_checked_npz(path, None if everyone else ["about", "nodes"])
    about = _about(path, stored)
    if about["format"] != FORMAT:
        raise InputError(f"{path}: format {about['format']}", f"this version reads {FORMAT}", "start a new run")
    if about["fingerprint"] != fingerprint:
        raise InputError(
            f"{path}: a checkpoint of other settings, data or code", "a run can go on only as it began",
            "restore them, or start a new run in another folder",
        )  # fmt: skip
    if about["rounds"] > training_run.rounds or about["lines"] > about["rounds"] + 1:
        raise _unlike_a_run(path, f"{about['rounds']} rounds and {about['lines']} lines of metrics")
    before = training_run.before().loop_state
    try:
        files = _CheckpointFiles(path, about["parts"], stored, training_run.task.device)
        loop_state = _restored(about["carry"], files, transport, before)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise _unlike_a_run(path, "arrays that do not belong together") from None
    _check_state(path, loop_state, before, transport)
    counts = (about["nonfinite"], about["wire"]) if (coordinator or SingleProcess()).rank == 0 else (0, 0)
    state = RunState(about["rounds"], loop_state, Traffic(*about["sent"]), *counts)
    return Checkpoint(state, about["lines"], about["seconds"])


def _about(path: Path, stored: Arrays) -> Document:
    """What a checkpoint says of itself, as its schema has it."""
    try:
        about = parse_json(stored["about"].tobytes())
    except (KeyError, ValueError):
        raise _unlike_a_run(path, "nothing that says what it is") from None
    problem = problem_in(about, CHECKPOINT.name)
    if problem is not None:
        raise _unlike_a_run(path, problem)
    return dict(about)


def _check_state(path: Path, state: State, before: State, transport: Transport) -> None:
    """Refuse a state that this run cannot be in; `before` is the one that it starts with."""
    if isinstance(before, tuple) or isinstance(state, tuple):
        if not (isinstance(before, tuple) and isinstance(state, tuple) and len(before) == len(state)):
            raise _unlike_a_run(path, "arrays that are nested in another way")
        for part, place in zip(state, before, strict=True):
            _check_state(path, part, place, transport)
    elif state is not None and not isinstance(state, bool | int | float):
        _check_rows(path, state, before, transport)


def _check_rows(path: Path, rows: Rows, before: State, transport: Transport) -> None:
    values = _rows_of(rows, transport)
    if before is not None and not isinstance(before, bool | int | float):
        expected = _rows_of(before, transport)
        if (values.shape, values.dtype) != (expected.shape, expected.dtype):
            what = f"an array of {values.dtype} and shape {values.shape}, in place of {expected.dtype} {expected.shape}"
            raise _unlike_a_run(path, what)
    if not np.isfinite(values).all():
        raise Diverged(
            f"{path}: nan or infinity", "training diverged, or the file was changed",
            "lower the step size, or the noise, and start a new run in another folder",
        )  # fmt: skip


def _rows_of(rows: Rows, transport: Transport) -> Reals:
    """The rows that this process holds, as numbers."""
    return arrays.to_numpy(transport.local(rows) if transport.is_partial(rows) else rows)


def _unlike_a_run(path: Path, what: str) -> InputError:
    return InputError(f"{path}: no checkpoint of this run: {what}", "it is written by sotto run", "start a new run")


def _restored(nesting: Nesting, files: _CheckpointFiles, transport: Transport, before: State) -> State:
    """The state of a nesting; tuples are of the kind that was in their place before the first round."""
    if isinstance(nesting, list):
        places = before if isinstance(before, tuple) else [None] * len(nesting)
        parts = [_restored(part, files, transport, place) for part, place in zip(nesting, places, strict=True)]
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    if "array" not in nesting:
        return nesting["value"]
    stored = _StoredArray(files, str(nesting["array"]), nesting["torch"], nesting["split"])
    return transport.restore(stored, before)


class _CheckpointFiles:
    """The file of rank 0, and the parts of other ranks, each with the numbers of the nodes whose rows it holds.

    `device` is where tensors are to lie.
    """

    def __init__(self, path: Path, parts: list[str], stored: Arrays, device: torch.device) -> None:
        self.path, self._stored, self.device = path, stored, device
        self.nodes = {path: stored["nodes"]} if parts else {}
        for name in parts:
            part = path.with_name(Path(name).name)
            self.nodes[part] = read_checked_npz(part, ["nodes"])["nodes"]
        if parts and sorted(np.concatenate([*self.nodes.values()])) != list(range(self.n)):
            raise KeyError("nodes")

    @property
    def n(self) -> int:
        """Nodes of all parts together."""
        return sum(len(nodes) for nodes in self.nodes.values())

    def whole(self, name: str) -> Reals:
        """An array that is stored whole."""
        return self._stored[name] if name in self._stored else read_checked_npz(self.path, [name])[name]

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
        return torch.from_numpy(values).to(self.files.device) if self.is_torch else arrays.read_only(values)


WRITING_TIMES = 20
"""Checkpoints are at least so many times further apart than one takes to write."""

DECISION_SECONDS = 0.1
"""Ranks decide together about so many seconds apart whether to go on: after each round it would cost much where rounds
are short."""

DECISION_ROUNDS = 1000
"""They decide at least every so many rounds."""


class Action(IntEnum):
    """What to do after a round. Where ranks differ the largest counts."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2
    TERMINATE = 3


class CheckpointSchedule:
    """Asked after each round. An interrupt that reaches one rank stops all, after their next common decision."""

    def __init__(self, coordinator: Coordinator, seconds: float, rounds: int, first_round: int) -> None:
        self._coordinator, self._seconds, self._rounds = coordinator, seconds, rounds
        self._first_round, self._next_decision = first_round, 0
        self._begun = self._saved = time.monotonic()
        self._writing_seconds = 0.0
        self._wanted = Action.CONTINUE

    def after(self, rounds: int) -> Action:
        """What to do after so many rounds."""
        if rounds == self._rounds:
            return Action.SAVE
        if rounds < self._next_decision:
            return Action.CONTINUE
        interval = max(self._seconds, WRITING_TIMES * self._writing_seconds)
        own = Action.SAVE if time.monotonic() - self._saved >= interval else Action.CONTINUE
        return own if self._coordinator.size == 1 else self._decide(own, rounds, interval)

    def _decide(self, own: Action, rounds: int, interval: float) -> Action:
        """Rank 0 decides by its clock when to save and when to decide again; any rank may stop all."""
        skipped = 1
        if self._coordinator.rank == 0:
            skipped = self._rounds_until_decision(rounds, interval)
        else:
            own = Action.CONTINUE
        action, skipped = self._coordinator.maximum(max(self._wanted, own), skipped)
        self._next_decision = rounds + skipped
        return Action(action)

    def _rounds_until_decision(self, rounds: int, interval: float) -> int:
        seconds_a_round = (time.monotonic() - self._begun) / max(1, rounds - self._first_round)
        wanted = min(DECISION_SECONDS, interval / 10) / max(seconds_a_round, 1e-6)
        return int(min(DECISION_ROUNDS, max(1.0, wanted)))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A checkpoint is being written."""
        started = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._writing_seconds = self._saved - started

    @contextmanager
    def interrupts_deferred(self) -> Iterator[None]:
        """One of several ranks does not stop by itself when it is interrupted or terminated: all stop together."""
        if self._coordinator.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {kind: signal.signal(kind, self._note_interrupt) for kind in STOPPING_SIGNALS}
        try:
            yield
        finally:
            for kind, handler in handlers.items():
                signal.signal(kind, handler)

    def _note_interrupt(self, kind: int, _: object) -> None:
        self._wanted = max(self._wanted, Action.TERMINATE if kind == signal.SIGTERM else Action.STOP)
