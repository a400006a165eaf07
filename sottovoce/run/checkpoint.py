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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypedDict

import numpy as np
import torch

from sottovoce.core import arrays
from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals, Rows
from sottovoce.core.messages import Traffic
from sottovoce.core.transport import Nodes, Transport
from sottovoce.distributed.coordinator import ALONE, Coordinator
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
    coordinator: Coordinator = ALONE,
) -> None:
    """Write a checkpoint. `fingerprint` names the run, so that no other goes on from it."""
    leaves: list[Rows] = []
    state, nesting = checkpoint.state, _nesting(checkpoint.state.loop_state, transport, leaves)
    named = {str(number): arrays.to_numpy(_rows_here(rows, transport)) for number, rows in enumerate(leaves)}
    split = {number: named.pop(number) for number in list(named) if transport.is_partial(leaves[int(number)])}
    here = {"nodes": transport.nodes, **split} if split else {}
    parts = [_part(path, state.rounds, rank, coordinator.size) for rank in range(1, coordinator.size)]
    if coordinator.rank:
        _write(parts[coordinator.rank - 1], here)
    counts = coordinator.gather(torch.tensor([state.nonfinite, state.wire_bytes]))
    if coordinator.rank:
        return
    nonfinite, wire = torch.stack(counts).sum(0).tolist()
    about = {
        "format": FORMAT, "fingerprint": fingerprint, "rounds": state.rounds, "sent": list(state.sent),
        "nonfinite": nonfinite, "wire": wire, "lines": checkpoint.lines, "seconds": checkpoint.seconds,
        "carry": nesting, "parts": [part.name for part in parts],
    }  # fmt: skip
    _write(path, {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **here, **named})
    for old in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        if old not in parts and re.fullmatch(r".+\.\d+\.\d+of\d+", old.stem):
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
    is_torch = arrays.is_torch(_rows_here(value, transport))
    return {"array": len(leaves) - 1, "torch": is_torch, "split": transport.is_partial(value)}


def _rows_here(rows: Rows, transport: Transport) -> Rows:
    """What this process holds of some rows, as a plain array."""
    return transport.local(rows) if transport.is_partial(rows) else rows


def _write(path: Path, named: Arrays) -> None:
    write(path, lambda file: write_npz(file, named), private=True)


def load(path: Path, training_run: TrainingRun, fingerprint: str, coordinator: Coordinator = ALONE) -> Checkpoint:
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
        held = _nodes_in(path, about["parts"], stored)

        def array(leaf: _Leaf, nodes: Nodes | None) -> Rows:
            name, split = str(leaf["array"]), leaf["split"]
            if nodes is None and not split:
                values = stored[name] if name in stored else read_checked_npz(path, [name])[name]
            else:
                every = np.arange(transport.n)
                values = _rows_of(held if split else {path: every}, name, every if nodes is None else nodes)
            device = training_run.task.device
            return torch.from_numpy(values).to(device) if leaf["torch"] else arrays.read_only(values)

        loop_state = _restored(about["carry"], array, transport, before)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise _unlike_a_run(path, "arrays that do not belong together") from None
    _check_state(path, loop_state, before, transport)
    counts = (about["nonfinite"], about["wire"]) if coordinator.rank == 0 else (0, 0)
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


def _nodes_in(path: Path, parts: list[str], stored: Arrays) -> dict[Path, Nodes]:
    """The nodes whose rows lie in each file of a checkpoint that is divided among ranks; nodes ascend in each."""
    held = {path: stored["nodes"]} if parts else {}
    for name in parts:
        part = path.with_name(Path(name).name)
        held[part] = read_checked_npz(part, ["nodes"])["nodes"]
    if parts and sorted(np.concatenate([*held.values()])) != list(range(sum(map(len, held.values())))):
        raise KeyError("nodes")
    return held


def _rows_of(held: Mapping[Path, Nodes], name: str, nodes: Nodes) -> Reals:
    """The rows of some nodes of an array, from the files that hold them; others are never all in memory."""
    at = {path: np.flatnonzero(np.isin(nodes, here)) for path, here in held.items()}
    found = [read_rows(path, name, np.searchsorted(held[path], nodes[some])) for path, some in at.items() if len(some)]
    return np.concatenate(found)[np.argsort(np.concatenate([*at.values()]))]


def _restored(
    nesting: Nesting, array: Callable[[_Leaf, Nodes | None], Rows], transport: Transport, before: State
) -> State:
    """The state of a nesting; tuples are of the kind that was in their place before the first round."""
    if isinstance(nesting, list):
        places = before if isinstance(before, tuple) else [None] * len(nesting)
        parts = [_restored(part, array, transport, place) for part, place in zip(nesting, places, strict=True)]
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    return transport.restore(partial(array, nesting), before) if "array" in nesting else nesting["value"]


def _check_state(path: Path, state: State, before: State, transport: Transport) -> None:
    """Refuse a state that this run cannot be in; `before` is the one that it starts with."""
    if isinstance(before, tuple) or isinstance(state, tuple):
        if not (isinstance(before, tuple) and isinstance(state, tuple) and len(before) == len(state)):
            raise _unlike_a_run(path, "arrays that are nested in another way")
        for part, place in zip(state, before, strict=True):
            _check_state(path, part, place, transport)
        return
    found, expected = (
        None if one is None or isinstance(one, bool | int | float) else arrays.to_numpy(_rows_here(one, transport))
        for one in (state, before)
    )
    if found is None:
        return
    if expected is not None and (found.shape, found.dtype) != (expected.shape, expected.dtype):
        what = f"an array of {found.dtype} and shape {found.shape}, in place of {expected.dtype} {expected.shape}"
        raise _unlike_a_run(path, what)
    if not np.isfinite(found).all():
        raise Diverged(
            f"{path}: nan or infinity", "training diverged, or the file was changed",
            "lower the step size, or the noise, and start a new run in another folder",
        )  # fmt: skip


def _unlike_a_run(path: Path, what: str) -> InputError:
    return InputError(f"{path}: no checkpoint of this run: {what}", "it is written by sotto run", "start a new run")


WRITING_TIMES = 20
"""Checkpoints are at least so many times further apart than one takes to write."""


class Action(IntEnum):
    """What to do after a round. Where ranks differ the largest counts."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2
    TERMINATE = 3


class CheckpointSchedule:
    """Asked after each round. An interrupt that reaches one rank stops all, after the same round."""

    def __init__(self, coordinator: Coordinator, seconds: float, rounds: int) -> None:
        self._coordinator, self._seconds, self._rounds = coordinator, seconds, rounds
        self._saved = time.monotonic()
        self._writing_seconds = 0.0
        self._wanted = Action.CONTINUE

    def after(self, rounds: int) -> Action:
        """What to do after so many rounds: rank 0 decides by its clock when to save, and any rank may stop all."""
        if rounds == self._rounds:
            return Action.SAVE
        interval = max(self._seconds, WRITING_TIMES * self._writing_seconds)
        is_due = self._coordinator.rank == 0 and time.monotonic() - self._saved >= interval
        own = Action.SAVE if is_due else Action.CONTINUE
        return Action(self._coordinator.maximum(max(self._wanted, own))[0])

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
