"""Checkpoints: all that a run needs to go on as if it had never stopped, in any number of processes.

A checkpoint is written whole or not at all, and carries a checksum of itself. Noise is keyed by round, so nothing about
generators has to be stored. The leaves of a state lie in an npz file by number, its arrays, and beside them as JSON;
how they are nested is known from the state before the first round. Of a run over processes every rank writes the rows
of its nodes into a part of its own; when all parts are there, rank 0 writes its own, which names them, and removes
those of the checkpoint before.

What is read back has to be a state that this run can be in: counts within its rounds, and finite numbers in arrays of
the shapes that it starts with.

When a run saves and when it stops, rank 0 decides by its clock, and all ranks do it after the same round.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

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
from sottovoce.support.npz import Arrays, read_checked_npz, write_npz
from sottovoce.support.processes import signals_heard
from sottovoce.support.text import parse_json

FORMAT = 2


class _Leaf(TypedDict, total=False):
    """A leaf of a state: a value, or an array, whether it is torch's, and whether its rows lie in several parts."""

    value: float | None
    torch: bool
    split: bool


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
    state, leaves = checkpoint.state, _leaves(checkpoint.state.loop_state)
    rows = {str(number): leaf for number, leaf in enumerate(leaves) if not _is_value(leaf)}
    named = {number: arrays.to_numpy(_rows_here(one, transport)) for number, one in rows.items()}
    split = {number: named.pop(number) for number in list(named) if transport.is_partial(rows[number])}
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
        "carry": [_about_leaf(leaf, transport) for leaf in leaves], "parts": [part.name for part in parts],
    }  # fmt: skip
    _write(path, {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **here, **named})
    for old in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        if old not in parts and re.fullmatch(r".+\.\d+\.\d+of\d+", old.stem):
            old.unlink()


def _part(path: Path, rounds: int, rank: int, size: int) -> Path:
    return path.with_name(f"{path.stem}.{rounds}.{rank}of{size}{path.suffix}")


def _is_value(leaf: object) -> bool:
    return leaf is None or isinstance(leaf, bool | int | float)


def _leaves(state: State) -> list[Any]:
    """The arrays and values of a state, in order."""
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, tuple) else [state]


def _nested_like(before: State, leaves: Iterator[Any]) -> State:
    """Leaves nested as in another state, in tuples of the same kinds."""
    if not isinstance(before, tuple):
        return next(leaves)
    parts = [_nested_like(part, leaves) for part in before]
    return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)


def _about_leaf(leaf: Any, transport: Transport) -> _Leaf:
    if _is_value(leaf):
        return {"value": leaf}
    return {"torch": arrays.is_torch(_rows_here(leaf, transport)), "split": transport.is_partial(leaf)}


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
    if about["fingerprint"] != fingerprint:
        raise InputError(
            f"{path}: a checkpoint of other settings, data or code", "a run can go on only as it began",
            "restore them, or start a new run in another folder",
        )  # fmt: skip
    if about["rounds"] > training_run.rounds or about["lines"] > about["rounds"] + 1:
        raise _unlike_a_run(path, f"{about['rounds']} rounds and {about['lines']} lines of metrics")
    before = training_run.before().loop_state
    places = _leaves(before)
    if len(about["carry"]) != len(places):
        raise _unlike_a_run(path, f"a state of {len(about['carry'])} parts, in place of {len(places)}")
    try:
        held = _nodes_in(path, about["parts"], stored)

        def array(name: str, leaf: _Leaf, nodes: Nodes | None) -> Rows:
            if nodes is None and not leaf["split"]:
                values = stored[name] if name in stored else read_checked_npz(path, [name])[name]
            else:
                every = np.arange(transport.n)
                values = _rows_of(held if leaf["split"] else {path: every}, name, every if nodes is None else nodes)
            device = training_run.task.device
            return torch.from_numpy(values).to(device) if leaf["torch"] else arrays.read_only(values)

        leaves = [
            leaf["value"] if "value" in leaf else transport.restore(partial(array, str(number), leaf), place)
            for number, (leaf, place) in enumerate(zip(about["carry"], places, strict=True))
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise _unlike_a_run(path, "arrays that do not belong together") from None
    for leaf, place in zip(leaves, places, strict=True):
        _check_leaf(path, leaf, place, transport)
    loop_state = _nested_like(before, iter(leaves))
    counts = (about["nonfinite"], about["wire"]) if coordinator.rank == 0 else (0, 0)
    state = RunState(about["rounds"], loop_state, Traffic(*about["sent"]), *counts)
    return Checkpoint(state, about["lines"], about["seconds"])


def _about(path: Path, stored: Arrays) -> Document:
    """What a checkpoint says of itself, as its schema has it."""
    try:
        about = parse_json(stored["about"].tobytes())
    except (KeyError, ValueError):
        raise _unlike_a_run(path, "nothing that says what it is") from None
    if isinstance(about, dict) and about.get("format", FORMAT) != FORMAT:
        raise InputError(f"{path}: format {about['format']}", f"this version reads {FORMAT}", "start a new run")
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
    """The rows of some nodes of an array, from the files that hold them."""
    at = {path: np.flatnonzero(np.isin(nodes, here)) for path, here in held.items()}
    found = [
        read_checked_npz(path, [name])[name][np.searchsorted(held[path], nodes[some])]
        for path, some in at.items()
        if len(some)
    ]
    return np.concatenate(found)[np.argsort(np.concatenate([*at.values()]))]


def _check_leaf(path: Path, leaf: Any, place: Any, transport: Transport) -> None:
    """Refuse a part of a state that this run cannot be in; `place` is what is there before the first round."""
    if _is_value(leaf):
        return
    found, expected = (None if _is_value(one) else arrays.to_numpy(_rows_here(one, transport)) for one in (leaf, place))
    assert found is not None
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
        with nullcontext() if self._coordinator.size == 1 else signals_heard(self._note_interrupt):
            yield

    def _note_interrupt(self, kind: int, _: object) -> None:
        self._wanted = max(self._wanted, Action.TERMINATE if kind == signal.SIGTERM else Action.STOP)
