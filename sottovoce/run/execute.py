"""A run on disk: `runs/<name>/` with its settings, metrics, guarantees, checkpoint and result.

    config.json      all settings, defaults included; `sotto run config.json` repeats the run
    graph.json       the graph, where it came from a file
    noise.key        the key of noise and batches, for the owner alone
    privacy.json     the privacy guarantees of the run, written before the first round
    private.json     what depends on the data itself; not to be handed on, and readable by its owner only
    metrics.jsonl    one line for each evaluation
    messages/        what attackers received, one file for each round that is recorded
    checkpoint.npz   where the run stood when it was last saved; at the end, where it ended
    result.json      written last: a run that has it is finished
    report.html      the page about it, by `sotto run`

All are readable by their owner only; `sottovoce.run.layout` says which may be handed on. A run that is killed at any
moment goes on from its checkpoint and ends with the same bits.

A folder holds one run. It goes on only with the settings, data, code and versions that it began with, and only while
its files agree with each other and with the settings: rounds may have been played without a checkpoint to show for it,
and their noise must not be drawn again with other data. Who saw both would see the difference without noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TextIO

import torch

from sottovoce.core.random_streams import NoiseKey, RandomSource
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import Transport, WithLiars
from sottovoce.distributed.coordinator import ALONE, Coordinator
from sottovoce.errors import InputError
from sottovoce.privacy.composition import Loss
from sottovoce.run.build import build_accountant, forget_data, with_table_facts
from sottovoce.run.checkpoint import Action, Checkpoint, CheckpointSchedule, load, save
from sottovoce.run.fingerprint import (
    check_own_code,
    check_versions,
    comparable,
    fingerprint,
    origin,
    public_fingerprint,
    versions,
)
from sottovoce.run.folder_check import FolderCheck
from sottovoce.run.layout import (
    PrivateFacts,
    RunFiles,
    check_token,
    locked,
    make_folder,
    planned_source,
    public_settings,
    read_noise_key,
    read_private_facts,
    write_noise_key,
    write_private_facts,
    write_token,
    writing_into_run,
)
from sottovoce.run.privacy_document import PrivacyDocument, epsilon_in_line
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.public_check import COPIED, check_privacy, with_check
from sottovoce.run.recording import Recorder, remove_recordings_after
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import RunDocuments, read_runs, record_graph, recorded_graph
from sottovoce.run.run_ledger import (
    LedgerFile,
    RunLedger,
    check_entered,
    check_same_choice,
    planned_run,
    run_identity,
)
from sottovoce.run.training_run import (
    RoundCallback,
    TrainingRun,
    average_model,
    measured_rounds,
)
from sottovoce.support.config import Document, Experiment, first_difference, parse_experiment
from sottovoce.support.files import open_to_append, read_bytes, sweep_parts, write
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.processes import Terminated
from sottovoce.support.progress import Progress, report_stage
from sottovoce.support.threads import threads

COPIES = 6
"""Rows of parameters for each node that a round holds at least: models, states, gradients, noise and messages."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_round: RoundCallback | None = None,
    coordinator: Coordinator = ALONE,
    ledger: LedgerFile | None = None,
    on_end: Callable[[RunDocuments], None] | None = None,
) -> Document:
    """Run an experiment in its folder and return its result; a finished run of the same settings is only read.

    An unfinished run goes on with `resume`, and is refused without it. One of several processes plays its part of the
    run, and its `coordinator` keeps it in step with the others. With a `ledger`, the cost of the run is reserved first.
    `on_end` is called with what the folder holds at the end, by the process that wrote it or only read it.
    """
    files = RunFiles(folder)
    if experiment.member is not None:
        raise InputError(
            f"settings of {experiment.member}, a member of a federation", "a member takes part with its own program",
            "type sotto peer join, or simulate the agreement with sotto run agreement.toml",
        )  # fmt: skip
    experiment = coordinator.on_every_rank(partial(with_table_facts, experiment, data))
    coordinator.require_equal({**versions(), "settings": _shown_settings(experiment), "resume": resume})

    def told(run: RunDocuments | None) -> Document | None:
        """The result of a finished run, of which the caller is told."""
        if run is not None and on_end is not None:
            on_end(run)
        return None if run is None else run.result

    result = coordinator.on_rank_zero(lambda: told(_finished_unless_locked(files, experiment, resume, data, ledger)))
    if result is not None:
        return result
    with ExitStack() as locks:
        training = _begin(experiment, files, data, resume, ledger, coordinator, locks, told)
        if isinstance(training, dict):
            return training
        with coordinator.propagate_errors():
            end = training.play(progress, on_round)
            private, scores = training.found_at(end)
        coordinator.on_rank_zero(lambda: write_private_facts(files, private))
        result = coordinator.on_rank_zero(lambda: training.write_result(scores, end.seconds))
    if on_end is not None and coordinator.rank == 0:
        public = parse_experiment(public_settings(experiment))
        graph = recorded_graph(files, public)
        stated, privacy, lines = training.privacy, training.guarantees, files.lines()
        on_end(RunDocuments(folder, public, stated, privacy, result, lines, {}, {}, graph, check=FolderCheck()))
    return result


def _shown_settings(experiment: Experiment) -> Document:
    """The settings as ranks show them to each other: a key that they name stays with whoever has the file."""
    named = experiment.noise_key
    digest = None if named is None else hashlib.sha256(named.encode()).hexdigest()
    return comparable(public_settings(experiment)) | {"noise_key": digest}


# --- what the folder holds already -----------------------------------------------------------------------------------


def _finished_run(files: RunFiles, experiment: Experiment, resume: bool, data: Path | None) -> RunDocuments | None:
    """A finished run of these settings, if there is one; refuses a folder that holds something else."""
    folder = files.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "a run needs one", "move that file away")
    before = files.document(files.config)
    if before is None:
        if files.checkpoint.exists():
            raise InputError(f"{folder}: a checkpoint without settings", "a run has both", "remove the folder")
        return None
    stored = parse_experiment(before, str(files.config)).document()
    other = first_difference(comparable(stored), comparable(public_settings(experiment)))
    if other is not None:
        raise InputError(
            f"{folder} holds a run with another {other[0]}", "a folder holds one run", "use another --out, or remove it"
        )
    if not files.result.exists():
        if not resume:
            raise InputError(f"{folder} holds an unfinished run", "nothing is overwritten", "go on with --resume")
        return None
    finished = read_runs([folder])[0]
    check_own_code(finished.stated, experiment, folder)
    finished = with_check(finished, lambda: build_accountant(experiment, data))
    _refuse(files, finished.check.findings)
    return finished


def _refuse(files: RunFiles, found: list[str]) -> None:
    if found:
        raise InputError(
            f"{files.folder}: {found[0]}", "guarantees follow from the settings",
            "restore the file, or start a new run in another folder",
        )  # fmt: skip


def _finished_unless_locked(
    files: RunFiles, experiment: Experiment, resume: bool, data: Path | None, ledger: LedgerFile | None
) -> RunDocuments | None:
    """A finished run; refuses a folder that another process has locked, before any work."""
    finished, begun = _finished_run(files, experiment, resume, data), read_private_facts(files)
    ended = finished is not None
    if begun is not None:
        check_same_choice(files.folder, entered=begun.in_ledger, wanted=ledger is not None, finished=ended)
        if begun.in_ledger and ledger is not None and files.noise_key.exists():
            key = read_noise_key(files, experiment, begun.fingerprint)
            assert isinstance(key, NoiseKey), "runs with secret noise are in no ledger"
            played = experiment.training.rounds if ended else 0
            check_entered(ledger, run=run_identity(begun.fingerprint, key), name=experiment.name, played=played)
    if not ended and files.lock.exists():
        with locked(files.lock):  # only a test; `_begin` takes the lock for good
            pass
    return finished


def _stated_privacy(files: RunFiles, experiment: Experiment, accountant: RunAccountant, digest: str) -> Document | None:
    """`privacy.json` of a run that has begun; `private.json` has to say that it began with the data of this one."""
    stated, begun = files.document(files.privacy), read_private_facts(files)
    if stated is not None:
        check_versions(stated, files.folder)
        check_own_code(stated, experiment, files.folder)
    if stated is None and begun is None:
        return None
    public = public_fingerprint(experiment, accountant.training_run)
    if begun is None or begun.fingerprint != digest or (stated is not None and stated.get("fingerprint") != public):
        raise InputError(
            f"{files.privacy}: guarantees for other settings, data or code", "a run can go on only as it began",
            "restore them, or start a new run in another folder",
        )  # fmt: skip
    if stated is not None:
        _refuse(files, check_privacy(stated, accountant, experiment).findings)
    return stated


# --- before the first round ------------------------------------------------------------------------------------------


def _begin(
    experiment: Experiment,
    files: RunFiles,
    data: Path | None,
    resume: bool,
    ledger: LedgerFile | None,
    coordinator: Coordinator,
    locks: ExitStack,
    told: Callable[[RunDocuments | None], Document | None],
) -> _Training | Document:
    """Account for a run, lock its folder, enter it in a ledger, and find where it goes on.

    Gives the result if another process has finished the run meanwhile. What was traced is let go at the end: it takes
    memory that training may need.
    """
    each, zero = coordinator.on_every_rank, coordinator.on_rank_zero
    accountant = each(lambda: build_accountant(experiment, data))
    training_run = accountant.training_run
    each(lambda: _check_memory(training_run, coordinator.size))
    report_stage("fingerprint of data and settings")
    digest = each(lambda: fingerprint(experiment, training_run))
    coordinator.require_equal({"data, graph or noise": digest})
    recorder = each(lambda: Recorder(training_run, experiment.record, files.messages))
    transport = coordinator.transport(training_run.topology, keep_received=recorder.is_active)
    if isinstance(training_run.transport, WithLiars):
        if coordinator.size > 1:
            raise InputError("liars in several processes", "they are simulated in one", "leave out --processes")
        transport = training_run.transport
    report_stage("privacy guarantees")
    report = cache(partial(report_wanted, accountant, experiment))
    privacy = zero(
        lambda: (
            _stated_privacy(files, experiment, accountant, digest)
            or {**report().document(), **origin(experiment, training_run)}
        )
    )
    is_new = report.cache_info().currsize  # what was computed here is not read back
    guarantees = report().stated if is_new else PrivacyDocument.read(privacy)

    def loss_after(rounds: int) -> Loss:
        return report().loss_after(rounds)

    def entry(key: RandomSource) -> RunLedger | None:
        """The run's entry in a ledger, if there is one."""
        if ledger is None:
            return None
        if not isinstance(key, NoiseKey):
            raise InputError(
                "secret noise with a ledger",
                "a run that is resumed draws the noise of some rounds again, which costs more",
                "leave noise = 'secret' out: the run has a key of its own",
            )
        run = run_identity(digest, key)
        planned = planned_run(guarantees, run=run, name=experiment.name, data=digest, noise=key.check)
        return RunLedger(ledger, planned)

    if ledger is not None and not zero(files.private.exists):
        planned = entry(each(lambda: planned_source(files, experiment, digest)))
        if planned is not None:
            zero(lambda: planned.check(loss_after))
    zero(lambda: _lock_folder(locks, files))
    result = zero(lambda: told(_finished_run(files, experiment, resume, data)))
    if result is not None:
        return result
    token = zero(lambda: write_token(files))
    each(lambda: check_token(files, token))
    zero(lambda: write_noise_key(files, experiment, digest))
    key = each(lambda: read_noise_key(files, experiment, digest))
    entered = entry(key)
    if entered is not None:
        zero(lambda: locks.enter_context(entered.reserved(loss_after)))
    part = _part_of(training_run.keyed(key), transport)
    checkpoint = each(
        lambda: (
            load(files.checkpoint, part, digest, coordinator)
            if files.checkpoint.exists()
            else Checkpoint(part.before(), 0, 0.0)
        )
    )
    played = checkpoint.state.rounds
    coordinator.require_equal({"checkpoint": played})
    if entered is not None:
        zero(lambda: entered.require_recorded(played))
    begun = PrivateFacts(digest, in_ledger=ledger is not None)
    zero(lambda: _prepare_folder(files, experiment, part.topology, privacy, checkpoint, begun))
    return _Training(experiment, part, files, coordinator, privacy, guarantees, entered, begun, checkpoint)


def _check_memory(training_run: TrainingRun, processes: int) -> None:
    """Refuse models, gradients, noise and messages that take more memory than there is, before anything is written."""
    algorithm, task, first = training_run.algorithm, training_run.task, training_run.topology.at(0)
    rows = COPIES * first.n + (first.weights.nnz if algorithm.noise.edge(first) else 0)
    memory = rows * task.model.layout.size * task.dtype.itemsize / processes
    what = f"training {first.n:,} nodes with {task.model.layout.size:,} parameters each"
    check_cost(what, Cost(memory=memory), "take fewer nodes or a smaller model")


def _lock_folder(locks: ExitStack, files: RunFiles) -> None:
    """Make and lock the folder."""
    make_folder(files.folder)
    locks.enter_context(locked(files.lock))


def _part_of(training_run: TrainingRun, transport: Transport) -> TrainingRun:
    """The part of a run that this process plays; data of nodes that live elsewhere is let go."""
    part = training_run.hosted_by(transport)
    if len(transport.nodes) < transport.n:
        forget_data()
    return part


def _prepare_folder(
    files: RunFiles,
    experiment: Experiment,
    topology: Topology,
    privacy: Document,
    checkpoint: Checkpoint,
    begun: PrivateFacts,
) -> None:
    """Write what is known before the first round; remove what is half-written, or later than the checkpoint.

    `private.json` comes before `privacy.json`: where there are guarantees, it is known for which data.
    """
    with writing_into_run(files.folder):
        _truncate_metrics(files.metrics, checkpoint.lines)
        remove_recordings_after(files.folder, checkpoint.state.rounds)
        for folder in (files.folder, files.messages):
            sweep_parts(folder)
    record_graph(files, experiment, topology)
    if not files.config.exists():
        files.write_document(files.config, public_settings(experiment))
    if read_private_facts(files) != begun:
        write_private_facts(files, begun)
    if files.document(files.privacy) != privacy:
        files.write_document(files.privacy, privacy)


def _truncate_metrics(path: Path, count: int) -> None:
    """Leave the metrics up to a checkpoint; what came after it will be measured again."""
    content = read_bytes(path) if path.exists() else b""
    lines = content.splitlines(keepends=True)[: content.count(b"\n")]
    if len(lines) < count:
        raise InputError(f"{path}: {len(lines)} lines", f"the checkpoint has {count}", "remove the run's folder")
    if b"".join(lines[:count]) != content:
        write(path, lambda file: file.writelines(lines[:count]), private=True)


# --- the rounds, and the end -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Training:
    """The part of a run that this process plays in its folder, from a checkpoint on, with metrics and checkpoints."""

    experiment: Experiment
    training_run: TrainingRun
    files: RunFiles
    coordinator: Coordinator
    privacy: Document
    guarantees: PrivacyDocument
    ledger: RunLedger | None
    begun: PrivateFacts
    checkpoint: Checkpoint

    def play(self, progress: Progress | None, on_round: RoundCallback | None) -> Checkpoint:
        """Play the rounds after the checkpoint; returns where the run ends."""
        now, total, rank = self.checkpoint, self.training_run.rounds, self.coordinator.rank
        begun, covered, metrics = time.monotonic() - now.seconds, now.state.rounds, self.experiment.metrics
        schedule = CheckpointSchedule(self.coordinator, self.experiment.machine.checkpoint_seconds, total)
        recorder = Recorder(self.training_run, self.experiment.record, self.files.messages, rank)
        rounds = measured_rounds(
            self.training_run, now.state, every=metrics.every, test_rows=metrics.test_rows, seconds=now.seconds,
            start=now.lines == 0, callbacks=(on_round, recorder), coordinator=self.coordinator,
        )  # fmt: skip
        report_stage("the first round")
        with (
            threads(self.experiment.machine.threads),
            _appending(self.files.metrics, rank) as lines,
            schedule.interrupts_deferred(),
        ):
            try:
                covered = self._covered(now.state.rounds + 1, covered)
                for state, measurement in rounds:
                    if measurement is not None:
                        epsilon = epsilon_in_line(self.guarantees, measurement.round)
                        lines.write(json.dumps({**measurement.document(), "epsilon": epsilon}) + "\n")
                        lines.flush()
                    now = Checkpoint(state, now.lines + (measurement is not None), time.monotonic() - begun)
                    if progress is not None:
                        progress(state.rounds, total)
                    action = schedule.after(state.rounds)
                    if action >= Action.STOP:
                        raise Terminated if action == Action.TERMINATE else KeyboardInterrupt
                    if action == Action.SAVE:
                        with schedule.saving():
                            self._save(now, lines)
                    covered = self._covered(state.rounds + 1, covered)
            except KeyboardInterrupt:
                self._save(now, lines)
                raise
        return now

    def _covered(self, round: int, covered: int) -> int:
        """The last round whose cost is recorded in the ledger, where there is one: this one at least, if it is left."""
        if self.ledger is None or not covered < round <= self.training_run.rounds:
            return covered
        ledger = self.ledger
        return self.coordinator.on_rank_zero(lambda: ledger.spend(round))

    def _save(self, checkpoint: Checkpoint, lines: TextIO) -> None:
        if self.coordinator.rank == 0:
            os.fsync(lines.fileno())
        digest, transport = self.begun.fingerprint, self.training_run.transport
        save(self.files.checkpoint, checkpoint, digest, transport, self.coordinator)

    def found_at(self, end: Checkpoint) -> tuple[PrivateFacts, Document]:
        """What depends on the data itself, and how well the average model does on held-out rows."""
        average = average_model(self.training_run, end.state, self.coordinator)
        scores = self.training_run.task.score(average, self.experiment.metrics.test_rows)
        nonfinite = int(self.coordinator.sum(torch.tensor(end.state.nonfinite)))
        return replace(self.begun, nonfinite=nonfinite), scores

    def write_result(self, scores: Document, seconds: float) -> Document:
        """Write `result.json`, which makes the run a finished one."""
        result = {
            "name": self.experiment.name, "seed": self.experiment.seed, "adjacency": self.privacy["adjacency"],
            **{key: self.privacy[key] for key in COPIED},
            "metrics": self.files.last_line(), "held_out": scores, "seconds": round(seconds, 3),
            "folder": str(self.files.folder),
            **({} if self.ledger is None else {"spent_in_all": self.ledger.spent_in_all(self.privacy["delta"])}),
        }  # fmt: skip
        self.files.write_document(self.files.result, result)
        return result


@contextmanager
def _appending(path: Path, rank: int) -> Iterator[TextIO]:
    """A file that grows, at rank 0; closing it may fail as well, where the disk is full."""
    with writing_into_run(path), open(os.devnull, "a") if rank else open_to_append(path) as lines:
        yield lines
