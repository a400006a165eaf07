"""Recording: what chosen nodes receive while a run goes on, as an attacker among them would record it.

Of the first gossip step of every few rounds, of the first and of the last: models with the noise that they carried on
that very edge. A round is one file, written whole or not at all, so that a run that is killed and goes on leaves the
same files; of a run over processes every rank writes one, with what its own attackers received.

    >>> from sottovoce import algorithm, metropolis, simulate
    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> from sottovoce.learning.tasks import task
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=8), model("softmax", digits))
    >>> record = RecordingSettings(attackers=[0], every=5)
    >>> run = simulate(algorithm("zip-dl", sigma=0.1), metropolis("ring:8"), job, rounds=12, record=record)
    >>> run.messages.rounds, run.messages.pairs
    ((0, 5, 10, 11), ((0, 1), (0, 7)))
    >>> run.messages.of(0, 7).shape
    (4, 650)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.arrays import Reals
from sottovoce.core.messages import PlayedRound
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.privacy.views import node_numbers
from sottovoce.run.layout import RunFiles, make_folder
from sottovoce.run.training_run import RunState, TrainingRun
from sottovoce.support.config import RecordingSettings
from sottovoce.support.files import write
from sottovoce.support.npz import read_checked_npz, write_npz

PER_FILE, PER_MESSAGE = 2000, 12
"""Bytes that a file and each message of it take besides the models themselves."""


class RecordedRound(NamedTuple):
    """What attackers received in a round: `receiver[i]` got `rows[row[i]]` from `sender[i]`; -1 is a sum over all."""

    sender: NDArray[np.int32]
    receiver: NDArray[np.int32]
    row: NDArray[np.int32]
    rows: Reals


class Messages:
    """All that was recorded of a run: in memory, or in the files of a folder, which are read one at a time."""

    def __init__(
        self,
        attackers: tuple[int, ...],
        recorded: Mapping[int, RecordedRound | list[Path]],
        shape: tuple[int, int] | None = None,
    ) -> None:
        self.attackers, self._recorded, self._shape = attackers, recorded, shape

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that were recorded, counted from 0."""
        return tuple(sorted(self._recorded))

    def at(self, round: int) -> RecordedRound:
        """What all attackers received in a round."""
        if round not in self._recorded:
            raise InputError(f"round {round}", f"the recorded rounds are {self.rounds}", "choose one of them")
        found = self._recorded[round]
        return found if isinstance(found, RecordedRound) else _joined([_read(path, self._shape) for path in found])

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Each (attacker, sender) of whom it received anything."""
        found = set()
        for round in self.rounds:
            sender, receiver, *_ = self.at(round)
            found |= set(zip(receiver.tolist(), sender.tolist(), strict=True))
        return tuple(sorted(found))

    def of(self, attacker: int, sender: int) -> Reals:
        """The models that an attacker received of a sender, one row for each round in which it did."""
        if (attacker, sender) not in self.pairs:
            raise InputError(
                f"models of {sender} at {attacker}", f"the recorded pairs are {self.pairs[:6]}...", "choose a pair"
            )
        found = []
        for round in self.rounds:
            one = self.at(round)
            found.append(one.rows[one.row[(one.receiver == attacker) & (one.sender == sender)]])
        return np.concatenate(found)


class Recorder:
    """A callback after each round that records what attackers received: in a folder, or in memory without one.

    Refuses beforehand nodes that are not there, and what would outgrow the limit. Of a run over processes each records
    what attackers among its own nodes received; `rank` tells their files apart.
    """

    def __init__(
        self, training_run: TrainingRun, record: RecordingSettings, folder: Path | None = None, rank: int = 0
    ) -> None:
        self._attackers: NDArray[np.intp] = np.array(_attackers(record, training_run.topology), dtype=np.intp)
        self._every, self._last, self._folder, self._rank = record.every, training_run.rounds - 1, folder, rank
        self._recorded: dict[int, RecordedRound | list[Path]] = {}
        needed = self._bytes(training_run) / 1e6
        if needed > record.limit_mb:
            raise InputError(
                f"recordings of {needed:,.0f} MB",
                f"record.limit_mb allows {record.limit_mb:g}",
                "give a larger record.every, fewer record.attackers, or a higher limit",
            )
        self._attackers = self._attackers[np.isin(self._attackers, training_run.transport.nodes)]

    @property
    def is_active(self) -> bool:
        """Whether there is an attacker whose messages are recorded here."""
        return len(self._attackers) > 0

    def __call__(self, played: PlayedRound, state: RunState) -> None:
        round = played.round
        if not self.is_active or (round % self._every and round != self._last):
            return
        received = played.steps[0].received_models(self._attackers)
        rows = np.ascontiguousarray(arrays.to_numpy(received.rows))
        sender, receiver, row = (part.astype(np.int32) for part in (received.sender, received.receiver, received.row))
        recorded = RecordedRound(sender, receiver, row, rows)
        if self._folder is None:
            self._recorded[round] = recorded
            return
        make_folder(self._folder)
        path = self._folder / (f"{round:07d}-{self._rank}.npz" if self._rank else f"{round:07d}.npz")
        write(path, lambda file: write_npz(file, recorded._asdict()), private=True)

    @property
    def messages(self) -> Messages:
        """What was recorded so far, of a recorder without a folder."""
        return Messages(tuple(self._attackers.tolist()), self._recorded)

    def _bytes(self, training_run: TrainingRun) -> float:
        """An upper bound for all files together."""
        if not len(self._attackers):
            return 0.0
        algorithm, topology = training_run.algorithm, training_run.topology
        model = training_run.task.model.layout.size * training_run.task.inputs.element_size()

        def of(round: int) -> int:
            mixing = topology.at(round, 0)
            sender, receiver, _ = mixing.edges
            reaches = np.isin(receiver, self._attackers) & (sender != receiver)
            messages = int(reaches.sum())
            rows = messages if algorithm.noise.edge(mixing) else len(np.unique(sender[reaches]))
            return PER_FILE + PER_MESSAGE * messages + model * (1 if algorithm.secure_sum else rows)

        rounds = [*range(0, self._last, self._every), self._last]
        return len(rounds) * of(0) if topology.static else sum(map(of, rounds))


def read_recording(folder: Path, training_run: TrainingRun, record: RecordingSettings) -> Messages:
    """What a finished run has recorded; refuses one that recorded nothing."""
    wanted = _attackers(record, training_run.topology)
    files = _files(folder)
    if not wanted or not files:
        raise InputError(
            f"{folder}: nothing was recorded",
            "attacks need what attackers received",
            'run again, in another folder, with --set record.attackers=[0] or "all"',
        )
    expected = {*range(0, training_run.rounds, record.every), training_run.rounds - 1}
    if expected - files.keys():
        missing = min(expected - files.keys())
        raise InputError(
            f"{folder}: no recording of round {missing}", f"{len(expected)} rounds were recorded", "run again"
        )
    shape = training_run.topology.n, training_run.task.model.layout.size
    return Messages(wanted, {round: files[round] for round in sorted(expected)}, shape)


def remove_recordings_after(folder: Path, rounds: int) -> None:
    """Remove recordings of rounds that will be played again, perhaps by other ranks."""
    for round, paths in _files(folder).items():
        for path in paths if round >= rounds else ():
            path.unlink()


def _files(folder: Path) -> dict[int, list[Path]]:
    """The files of each round, one of each rank that had an attacker."""
    found: dict[int, list[Path]] = {}
    for path in sorted(RunFiles(folder).messages.glob("*.npz")):
        if re.fullmatch(r"\d+(-\d+)?", path.stem):
            found.setdefault(int(path.stem.partition("-")[0]), []).append(path)
    return found


def _joined(parts: list[RecordedRound]) -> RecordedRound:
    """What several ranks recorded, in the order in which one would have."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.rows) for part in parts)])
    sender, receiver = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    row = np.concatenate([part.row + start for part, start in zip(parts, starts, strict=False)])
    order = np.lexsort((receiver, sender))
    return RecordedRound(sender[order], receiver[order], row[order], np.concatenate([part.rows for part in parts]))


def _attackers(record: RecordingSettings, topology: Topology) -> tuple[int, ...]:
    n = topology.n
    if isinstance(record.attackers, str):
        return tuple(range(n)) if record.attackers == "all" else ()
    named = node_numbers(record.attackers, topology.names)
    for node in named:
        if not 0 <= node < n:
            raise InputError(f"record.attackers: node {node}", f"nodes are 0..{n - 1}", "choose one of them")
    return tuple(named)


def _read(path: Path, shape: tuple[int, int] | None) -> RecordedRound:
    stored = read_checked_npz(path)
    if stored.keys() != set(RecordedRound._fields) or not _fits(RecordedRound(**stored), shape):
        raise InputError(f"{path}: no recording of a round of this run", "it is written by sotto run", "run again")
    return RecordedRound(**stored)


def _fits(recorded: RecordedRound, shape: tuple[int, int] | None) -> bool:
    """Whether all numbers are of nodes and models that are there; the shape is the number of nodes and parameters."""
    sender, receiver, row, rows = recorded
    if rows.ndim != 2 or rows.dtype.kind != "f" or any(part.dtype.kind != "i" for part in recorded[:3]):
        return False
    if not (sender.ndim == 1 and sender.shape == receiver.shape == row.shape):
        return False
    nodes, size = shape or (np.iinfo(np.int64).max, rows.shape[1])
    inside = ((sender, -1, nodes), (receiver, 0, nodes), (row, 0, len(rows)))
    return rows.shape[1] == size and all(bool(((low <= part) & (part < high)).all()) for part, low, high in inside)
