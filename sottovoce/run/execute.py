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

from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import Transport
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.errors import InputError
from sottovoce.privacy.composition import Loss
from sottovoce.run.build import build_accountant, forget_data, with_table_facts
from sottovoce.run.checkpoint import Action, Checkpoint, CheckpointSchedule, load, save
from sottovoce.run.fingerprint import (
    check_own_code,
    check_versions,
    comparable,
    fingerprint,
    own_code,
    public_fingerprint,
    versions,
)
from sottovoce.run.layout import (
    PrivateFacts,
    RunFiles,
    check_token,
    locked,
    make_folder,
    read_private_facts,
    write_private_facts,
    write_token,
    writing_into_run,
)
from sottovoce.run.metrics import Measurement, average_model
from sottovoce.run.noise_key_file import planned_source, public_settings, read_noise_key, write_noise_key
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import PrivacyReport, report_wanted
from sottovoce.run.recording import recorder_in, remove_recordings_after
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import RunDocuments, record_graph, recorded_graph
from sottovoce.run.run_ledger import (
    LedgerFile,
    RunLedger,
    check_entered,
    check_same_choice,
    planned_run,
    run_identity,
)
from sottovoce.run.simulation import measured_rounds
from sottovoce.run.stated_guarantees import contradictions, result_contradictions, unlike_settings
from sottovoce.run.training_run import RoundCallback, RunState, TrainingRun, call_all
from sottovoce.support.config import Document, Experiment, first_difference, parse_experiment
from sottovoce.support.files import open_to_append, sweep_parts, write
from sottovoce.support.json_numbers import to_json
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.processes import Terminated
from sottovoce.support.progress import Progress, report_stage
from sottovoce.support.regular_files import read_bytes
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
    coordinator: Coordinator | None = None,
    ledger: LedgerFile | None = None,
    on_end: Callable[[RunDocuments], None] | None = None,
) -> Document:
    """Run an experiment in its folder and return its result; a finished run of the same settings is only read.

    An unfinished run goes on with `resume`, and is refused without it. One of several processes plays its part of the
    run, and its `coordinator` keeps it in step with the others. With a `ledger`, the cost of the run is reserved first.
    `on_end` is called with what the folder of a run that ended here holds, by the process that wrote it.
    """
    files, coordinator = RunFiles(folder), coordinator or SingleProcess()
    experiment = coordinator.on_every_rank(partial(with_table_facts, experiment, data))
    coordinator.require_equal({**versions(), "settings": _shown_settings(experiment), "resume": resume})
    result = coordinator.on_rank_zero(lambda: _result_unless_locked(files, experiment, resume, ledger))
    if result is not None:
        return result
    accountant = coordinator.on_every_rank(lambda: build_accountant(experiment, data))
    training_run = accountant.training_run
    coordinator.on_every_rank(lambda: _check_memory(training_run, coordinator.size))
    report_stage("fingerprint of data and settings")
    digest = coordinator.on_every_rank(lambda: fingerprint(experiment, training_run))
    coordinator.require_equal({"data, graph or noise": digest})
    recorder = coordinator.on_every_rank(lambda: recorder_in(folder, training_run, experiment.record))
    transport = coordinator.transport(training_run.topology, training_run.seed, keep_received=recorder.is_active)
    report_stage("privacy guarantees")
    report = cache(partial(report_wanted, accountant, experiment))
    privacy = coordinator.on_rank_zero(partial(_privacy_document, files, experiment, accountant, report, digest))
    guarantees = PrivacyDocument.read(privacy)
    if report.cache_info().currsize:  # figures that were computed here are not read back
        guarantees = replace(guarantees, stored_views=report().views)
    loss_after = _loss_after(report)
    if ledger is not None and not coordinator.on_rank_zero(files.private.exists):
        planned = coordinator.on_every_rank(lambda: planned_source(files, experiment, digest))
        _entry(ledger, experiment, guarantees, digest, planned, coordinator).check(loss_after)
    with ExitStack() as locks:
        result = coordinator.on_rank_zero(lambda: _lock_folder(locks, files, experiment, resume))
        if result is not None:
            return result
        token = coordinator.on_rank_zero(lambda: write_token(files))
        coordinator.on_every_rank(lambda: check_token(files, token))
        coordinator.on_rank_zero(lambda: write_noise_key(files, experiment, digest))
        key = coordinator.on_every_rank(lambda: read_noise_key(files, experiment, digest))
        entry = None
        if ledger is not None:
            entry = _entry(ledger, experiment, guarantees, digest, key, coordinator)
            entry.open(locks, loss_after)
        del accountant, report, loss_after  # what was traced takes memory that training may need
        part = _part_of(training_run.keyed(key), transport)
        checkpoint = coordinator.on_every_rank(lambda: _last_checkpoint(files, part, digest, coordinator))
        coordinator.require_equal({"checkpoint": checkpoint.state.rounds})
        if entry is not None:
            entry.require_recorded(checkpoint.state.rounds)
        begun = PrivateFacts(digest, in_ledger=ledger is not None)
        coordinator.on_rank_zero(lambda: _prepare_folder(files, experiment, part.topology, privacy, checkpoint, begun))
        recorder = recorder_in(folder, part, experiment.record, coordinator.rank)
        with coordinator.propagate_errors():
            training = _Training(experiment, part, files, digest, coordinator, guarantees, entry)
            report_stage("the first round")
            end = training.play(checkpoint, progress, call_all(on_round, recorder))
            average = average_model(part, end.state, coordinator)
            scores = part.task.score(average, experiment.metrics.test_rows)
            private = replace(begun, nonfinite=int(coordinator.sum(torch.tensor(end.state.nonfinite))))
        coordinator.on_rank_zero(lambda: write_private_facts(files, private))
        result = coordinator.on_rank_zero(lambda: _write_result(experiment, files, privacy, scores, end.seconds))
    if on_end is not None and coordinator.rank == 0:
        public = parse_experiment(public_settings(experiment))
        on_end(RunDocuments(folder, public, guarantees, result, files.lines(), {}, {}, recorded_graph(files, public)))
    return result


def _check_memory(training_run: TrainingRun, processes: int) -> None:
    """Refuse models, gradients, noise and messages that take more memory than there is, before anything is written."""
    algorithm, task, first = training_run.algorithm, training_run.task, training_run.topology.at(0)
    rows = COPIES * first.n + (first.weights.nnz if algorithm.noise.edge(first) else 0)
    memory = rows * task.model.layout.size * task.dtype.itemsize / processes
    what = f"training {first.n:,} nodes with {task.model.layout.size:,} parameters each"
    check_cost(what, Cost(memory=memory), "take fewer nodes or a smaller model")


def _shown_settings(experiment: Experiment) -> Document:
    """The settings as ranks show them to each other: a key that they name stays with whoever has the file."""
    named = experiment.noise_key
    digest = None if named is None else hashlib.sha256(named.encode()).hexdigest()
    return comparable(public_settings(experiment)) | {"noise_key": digest}


def _part_of(training_run: TrainingRun, transport: Transport) -> TrainingRun:
    """The part of a run that this process plays; data of nodes that live elsewhere is let go."""
    part = training_run.hosted_by(transport)
    if len(transport.nodes) < transport.n:
        forget_data()
    return part


def _entry(
    ledger: LedgerFile,
    experiment: Experiment,
    privacy: PrivacyDocument,
    digest: str,
    key: RandomSource,
    coordinator: Coordinator,
) -> RunLedger:
    """The run's entry in a ledger."""
    if not isinstance(key, NoiseKey):
        raise InputError(
            "secret noise with a ledger",
            "a run that is resumed draws the noise of some rounds again, which costs more",
            "leave noise = 'secret' out: the run has a key of its own",
        )  # fmt: skip
    planned = planned_run(
        privacy, run=run_identity(digest, key), name=experiment.name, data=digest, noise=key.check,
    )  # fmt: skip
    return RunLedger(ledger, planned, coordinator)


def _result_unless_locked(
    files: RunFiles, experiment: Experiment, resume: bool, ledger: LedgerFile | None
) -> Document | None:
    """The result of a finished run; refuses a folder that another process has locked, before any work."""
    result, begun = _finished_result(files, experiment, resume), read_private_facts(files)
    if begun is not None:
        check_same_choice(files.folder, entered=begun.in_ledger, wanted=ledger is not None, finished=result is not None)
        if begun.in_ledger and ledger is not None and files.noise_key.exists():
            key = read_noise_key(files, experiment, begun.fingerprint)
            assert isinstance(key, NoiseKey), "runs with secret noise are in no ledger"
            played = 0 if result is None else experiment.training.rounds
            check_entered(ledger, run=run_identity(begun.fingerprint, key), name=experiment.name, played=played)
    if result is None and files.lock.exists():
        with locked(files.lock):  # only a test; `_lock_folder` takes the lock for good
            pass
    return result


def _lock_folder(locks: ExitStack, files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """Make and lock the folder; the result if another process has finished the run meanwhile."""
    make_folder(files.folder)
    locks.enter_context(locked(files.lock))
    return _finished_result(files, experiment, resume)


def _loss_after(report: Callable[[], PrivacyReport]) -> Callable[[int], Loss]:
    """What the run would cost with other numbers of rounds; accounted for when it is first asked."""
    return lambda rounds: report().loss_after(rounds)


def _privacy_document(
    files: RunFiles,
    experiment: Experiment,
    accountant: RunAccountant,
    report: Callable[[], PrivacyReport],
    digest: str,
) -> Document:
    """The privacy guarantees: read from `privacy.json` if the folder is of this run, otherwise those of the report.

    They are written before the first round, so rounds may have been played without a checkpoint to show for it. Their
    noise must not be drawn again with other data: who saw both would see the difference without noise. The data is that
    of the run if `private.json` says so.
    """
    before, begun = files.document(files.privacy), read_private_facts(files)
    public = public_fingerprint(experiment, accountant.training_run)
    if before is not None:
        check_versions(before, files.folder)
        check_own_code(before, experiment, files.folder)
    if before is not None or begun is not None:
        same = begun is not None and begun.fingerprint == digest
        if not same or (before is not None and before.get("fingerprint") != public):
            raise InputError(
                f"{files.privacy}: guarantees for other settings, data or code", "a run can go on only as it began",
                "restore them, or start a new run in another folder",
            )  # fmt: skip
    if before is not None:
        _check_guarantees(files, experiment, before, accountant)
        return before
    code = own_code(experiment)
    return {**report().document(), "versions": versions(), "fingerprint": public, **({"code": code} if code else {})}


def _check_guarantees(files: RunFiles, experiment: Experiment, stated: Document, accountant: RunAccountant) -> None:
    """Refuse to go on with guarantees that contradict themselves, or that the settings do not give."""
    found = contradictions(experiment, PrivacyDocument.read(stated))
    found = found or unlike_settings(stated, accountant, experiment)
    if found:
        raise _contradictory(files, found[0])


def _contradictory(files: RunFiles, finding: str) -> InputError:
    return InputError(
        f"{files.folder}: {finding}", "guarantees follow from the settings",
        "restore the file, or start a new run in another folder",
    )  # fmt: skip


def _last_checkpoint(files: RunFiles, part: TrainingRun, digest: str, coordinator: Coordinator) -> Checkpoint:
    """Where the run goes on: at its checkpoint, or at its start."""
    if files.checkpoint.exists():
        return load(files.checkpoint, part, digest, coordinator)
    return Checkpoint(part.before(), 0, 0.0)


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


def _finished_result(files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run of these settings, if there is one; refuses a folder that holds something else."""
    if files.folder.exists() and not files.folder.is_dir():
        raise InputError(f"{files.folder} is not a folder", "a run needs one", "move that file away")
    before = files.document(files.config)
    if before is None:
        if files.folder.exists() and any(files.folder.glob("checkpoint.npz")):
            raise InputError(f"{files.folder}: a checkpoint without settings", "a run has both", "remove the folder")
        return None
    stored = parse_experiment(before, str(files.config)).document()
    other = first_difference(comparable(stored), comparable(public_settings(experiment)))
    if other is not None:
        raise InputError(
            f"{files.folder} holds a run with another {other[0]}",
            "a folder holds one run",
            "use another --out, or remove it",
        )
    result = files.document(files.result)
    if result is None and not resume:
        raise InputError(f"{files.folder} holds an unfinished run", "nothing is overwritten", "go on with --resume")
    if result is not None:
        _check_result(files, experiment, result)
    return result


def _check_result(files: RunFiles, experiment: Experiment, result: Document) -> None:
    """Refuse the result of a finished run that its other files contradict."""
    stated = files.document(files.privacy)
    if stated is None:
        raise InputError(f"{files.privacy}: not there", "a finished run has guarantees", "remove the run's folder")
    check_own_code(stated, experiment, files.folder)
    privacy = PrivacyDocument.read(stated)
    found = contradictions(experiment, privacy)
    found = found or result_contradictions(experiment, privacy, result, files.lines())
    if found:
        raise _contradictory(files, found[0])


@dataclass(frozen=True)
class _Training:
    """The rounds of a run in its folder, with metrics and checkpoints."""

    experiment: Experiment
    training_run: TrainingRun
    files: RunFiles
    digest: str
    coordinator: Coordinator
    privacy: PrivacyDocument
    ledger: RunLedger | None

    def play(self, checkpoint: Checkpoint, progress: Progress | None, on_round: RoundCallback) -> Checkpoint:
        """Play the rounds after a checkpoint; returns where the run ends."""
        begun, total, now = time.monotonic() - checkpoint.seconds, self.training_run.rounds, checkpoint
        schedule = CheckpointSchedule(
            self.coordinator, self.experiment.machine.checkpoint_seconds, total, checkpoint.state.rounds
        )
        with self._metrics_file() as lines, schedule.interrupts_deferred():
            try:
                self._before(checkpoint.state.rounds + 1)
                for state, measurement in self._rounds_after(checkpoint, on_round):
                    if measurement is not None:
                        line = json.dumps(self._line(measurement))

                        lines.write(line + "\n")
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
                    self._before(state.rounds + 1)
            except KeyboardInterrupt:
                self._save(now, lines)
                raise
        return now

    def _rounds_after(
        self, checkpoint: Checkpoint, on_round: RoundCallback
    ) -> Iterator[tuple[RunState, Measurement | None]]:
        metrics = self.experiment.metrics
        return measured_rounds(
            self.training_run, checkpoint.state, every=metrics.every, test_rows=metrics.test_rows,
            seconds=checkpoint.seconds, start=checkpoint.lines == 0, on_round=on_round, coordinator=self.coordinator,
        )  # fmt: skip

    def _before(self, round: int) -> None:
        if self.ledger is not None:
            self.ledger.before(round)

    def _line(self, measurement: Measurement) -> Document:
        """What was measured, with what has been spent by then and what will have been at the planned end."""
        spent, planned = (self.privacy.epsilon_after(at) for at in (measurement.round, self.training_run.rounds))
        epsilon = None if spent is None else {"spent": to_json(spent), "planned": to_json(planned)}
        return {**measurement.document(), "epsilon": epsilon}

    @contextmanager
    def _metrics_file(self) -> Iterator[TextIO]:
        """Rank 0 writes the metrics. All compute with as many threads as the settings say."""
        with threads(self.experiment.machine.threads), _appending(self.files.metrics, self.coordinator.rank) as lines:
            yield lines

    def _save(self, checkpoint: Checkpoint, lines: TextIO) -> None:
        if self.coordinator.rank == 0:
            os.fsync(lines.fileno())
        save(self.files.checkpoint, checkpoint, self.digest, self.training_run.transport, self.coordinator)


@contextmanager
def _appending(path: Path, rank: int) -> Iterator[TextIO]:
    """A file that grows, at rank 0; closing it may fail as well, where the disk is full."""
    with writing_into_run(path), open(os.devnull, "a") if rank else open_to_append(path) as lines:
        yield lines


def _truncate_metrics(path: Path, count: int) -> None:
    """Leave the metrics up to a checkpoint; what came after it will be measured again."""
    content = read_bytes(path) if path.exists() else b""
    lines = content.splitlines(keepends=True)[: content.count(b"\n")]
    if len(lines) < count:
        raise InputError(f"{path}: {len(lines)} lines", f"the checkpoint has {count}", "remove the run's folder")
    if b"".join(lines[:count]) != content:
        write(path, lambda file: file.writelines(lines[:count]), private=True)


def _write_result(
    experiment: Experiment, files: RunFiles, privacy: Document, scores: Document, seconds: float
) -> Document:
    """Write `result.json`, which makes the run a finished one."""
    result = {
        "name": experiment.name,
        "seed": experiment.seed,
        "algorithm": privacy["algorithm"],
        "topology": privacy["topology"],
        "rounds": experiment.training.rounds,
        "sigma": privacy["sigma"],
        "adjacency": experiment.privacy.adjacency,
        "delta": experiment.privacy.delta,
        "headline": privacy["headline"],
        "metrics": files.last_line(),
        "held_out": scores,
        "seconds": round(seconds, 3),
        "folder": str(files.folder),
    }
    files.write_document(files.result, result)
    return result
