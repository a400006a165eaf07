"""A run on disk: `runs/<name>/` with its settings, metrics, guarantees, checkpoint and result.

    config.json      all settings, defaults included; `sotto run config.json` repeats the run
    privacy.json     what the run promises, written before the first round
    metrics.jsonl    one line for each evaluation
    messages/        what attackers received, one file for each round that is recorded
    checkpoint.npz   the last stage that was saved; at the end, the end
    result.json      written last: a run that has it is finished
    report.html      the page about it, by `sotto run`

A run that is killed at any moment goes on from its checkpoint and ends with the same bits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from sottovoce.config import Document, Experiment, first_difference
from sottovoce.core.files import write, write_text
from sottovoce.core.threads import threads
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.errors import InputError
from sottovoce.run.build import build
from sottovoce.run.checkpoint import Checkpoint, load, save
from sottovoce.run.checkpoint_schedule import SAVE, STOP, CheckpointSchedule
from sottovoce.run.fingerprint import comparable, fingerprint, versions
from sottovoce.run.layout import RunFiles
from sottovoce.run.lock import check_signed, locked, make_folder, sign, unwritable
from sottovoce.run.privacy_report import report_privacy
from sottovoce.run.recording import both, forget_after, recorder_in
from sottovoce.run.simulation import Watch, measured_rounds
from sottovoce.run.training_run import TrainingRun

Tell = Callable[[int, int], None]


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    tell: Tell | None = None,
    watch: Watch | None = None,
    coordinator: Coordinator | None = None,
) -> Document:
    """Run an experiment in its folder and return its result; a finished run of the same settings is only read.

    An unfinished one goes on with `resume`, and is refused without. One of several ranks does its part in the `team`.
    """
    files, coordinator = RunFiles(folder), coordinator or SingleProcess()
    coordinator.agree({**versions(), "settings": comparable(experiment.document()), "resume": resume})
    finished = coordinator.first(lambda: _not_busy(files, experiment, resume))
    if finished is not None:
        return finished
    training_run = coordinator.each(lambda: build(experiment, data))
    mark = coordinator.each(lambda: fingerprint(experiment, training_run))
    coordinator.agree({"data, graph or noise": mark})
    placed = coordinator.place(training_run)
    coordinator.each(lambda: recorder_in(folder, training_run, experiment.record))  # refuses what would be too much
    privacy = coordinator.first(lambda: _promised(files, experiment, training_run, mark))
    with ExitStack() as held:
        finished = coordinator.first(lambda: _taken(held, files, experiment, resume))
        if finished is not None:
            return finished
        word = coordinator.first(lambda: sign(files))
        coordinator.each(lambda: check_signed(files, word))
        training_run = coordinator.share(training_run, placed)
        now = coordinator.each(lambda: _last_saved(files, training_run, mark))
        coordinator.agree({"checkpoint": now.state.rounds})
        coordinator.first(lambda: _write_head(files, experiment, privacy, now))
        watch = both(watch, recorder_in(folder, training_run, experiment.record))
        with coordinator.failing():
            seconds = _train(experiment, training_run, files, now, mark, tell, watch, coordinator)
        return coordinator.first(lambda: _finished(experiment, files, privacy, seconds))


def _not_busy(files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run; refuses one that another process is at, before any work."""
    finished = _same_run(files, experiment, resume)
    if finished is None and files.lock.exists():
        with locked(files.lock):  # for good when all that can be wrong is known
            pass
    return finished


def _taken(held: ExitStack, files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """Make and lock the folder; another process may have been here meanwhile."""
    make_folder(files.folder)
    held.enter_context(locked(files.lock))
    return _same_run(files, experiment, resume)


def _finished(experiment: Experiment, files: RunFiles, privacy: Document, seconds: float) -> Document:
    result = _result(experiment, files, privacy, seconds)
    _write_json(files.result, result)
    return result


def _promised(files: RunFiles, experiment: Experiment, training_run: TrainingRun, mark: str) -> Document:
    """What the run promises: read where it was written for this very run.

    It is written before the first round, so rounds may have been played without a checkpoint to show for it. Their
    noise must not be drawn again with other data: who saw both would see the difference without noise.
    """
    before, wanted = files.document(files.privacy), experiment.privacy
    if before is not None:
        if before.get("fingerprint") != mark:
            raise InputError(
                f"{files.privacy}: a promise for other settings, data or code", "a run goes on as it began",
                "restore them, or start anew in another folder with another seed",
            )  # fmt: skip
        return before
    found = report_privacy(training_run, delta=wanted.delta, attackers=wanted.attackers, target=wanted.view)
    return {**found.document(), "fingerprint": mark}


def _last_saved(files: RunFiles, training_run: TrainingRun, mark: str) -> Checkpoint:
    """Where the run goes on."""
    before = training_run.before()
    if files.checkpoint.exists():
        return load(files.checkpoint, before, mark, training_run.shard)
    return Checkpoint(before, 0, 0.0)


def _write_head(files: RunFiles, experiment: Experiment, privacy: Document, now: Checkpoint) -> None:
    """What is known before the first round, and nothing half-written or later beside it."""
    _keep_lines(files.metrics, now.lines)
    forget_after(files.folder, now.state.rounds)
    for part in (*files.folder.glob("*.part"), *files.folder.glob("messages/*.part")):
        if part.is_file():
            part.unlink()
    if not files.config.exists():
        _write_json(files.config, experiment.document())
    if files.document(files.privacy) != privacy:
        _write_json(files.privacy, privacy)


def _same_run(files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run; refuses a folder that holds something else."""
    if files.folder.exists() and not files.folder.is_dir():
        raise InputError(f"{files.folder} is no folder", "a run needs one", "move that file away")
    before = files.document(files.config)
    if before is None:
        if files.folder.exists() and any(files.folder.glob("checkpoint.npz")):
            raise InputError(f"{files.folder}: a checkpoint without settings", "a run has both", "remove the folder")
        return None
    other = first_difference(comparable(before), comparable(experiment.document()))
    if other is not None:
        raise InputError(
            f"{files.folder} holds a run with another {other[0]}",
            "a folder holds one run",
            "use another --out, or remove it",
        )
    result = files.document(files.result)
    if result is None and not resume:
        raise InputError(f"{files.folder} holds an unfinished run", "nothing is overwritten", "go on with --resume")
    return result


def _train(
    experiment: Experiment,
    training_run: TrainingRun,
    files: RunFiles,
    now: Checkpoint,
    mark: str,
    tell: Tell | None,
    watch: Watch | None,
    coordinator: Coordinator,
) -> float:
    """Play the rounds that are left, with metrics and checkpoints; returns the seconds of training in all."""
    begun, metrics = time.monotonic() - now.seconds, experiment.metrics
    pace = CheckpointSchedule(coordinator, experiment.machine.checkpoint_seconds, training_run.rounds, now.state.rounds)
    played = measured_rounds(
        training_run, now.state, every=metrics.every, test_rows=metrics.test_rows, seconds=now.seconds, start=now.lines == 0,
        watch=watch,
    )  # fmt: skip
    path = files.metrics if coordinator.rank == 0 else Path(os.devnull)
    with threads(experiment.machine.threads), _appending(path) as lines, pace.undisturbed():
        try:
            for state, measured in played:
                count = now.lines + (measured is not None)
                if measured is not None:
                    lines.write(json.dumps(measured.document()) + "\n")
                    lines.flush()
                now = Checkpoint(state, count, time.monotonic() - begun)
                if tell is not None:
                    tell(state.rounds, training_run.rounds)
                act = pace.after(state.rounds)
                if act == STOP:
                    raise KeyboardInterrupt
                if act == SAVE:
                    with pace.saving():
                        _sync(lines)
                        save(files.checkpoint, now, mark, coordinator)
        except KeyboardInterrupt:
            _sync(lines)
            save(files.checkpoint, now, mark, coordinator)
            raise
    return now.seconds


@contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    """A file that grows; closing it may fail as well, where the disk is full."""
    try:
        with path.open("a") as lines:
            yield lines
    except OSError as error:
        raise unwritable(path, error) from None


def _sync(lines: TextIO) -> None:
    if lines.name != os.devnull:
        os.fsync(lines.fileno())


def _keep_lines(path: Path, count: int) -> None:
    """Metrics up to a checkpoint; what came after it will be measured again."""
    there = path.read_bytes() if path.exists() else b""
    whole = there.splitlines(keepends=True)[: there.count(b"\n")]
    if len(whole) < count:
        raise InputError(f"{path}: {len(whole)} lines", f"the checkpoint knows {count}", "remove the run's folder")
    if b"".join(whole[:count]) != there:
        write(path, lambda file: file.writelines(whole[:count]))


def _result(experiment: Experiment, files: RunFiles, privacy: Document, seconds: float) -> Document:
    return {
        "name": experiment.name,
        "seed": experiment.seed,
        "algorithm": privacy["algorithm"],
        "topology": privacy["topology"],
        "rounds": experiment.training.rounds,
        "sigma": privacy["sigma"],
        "adjacency": experiment.privacy.adjacency,
        "delta": experiment.privacy.delta,
        "headline": privacy["headline"],
        "metrics": files.lines()[-1],
        "seconds": round(seconds, 3),
        "folder": str(files.folder),
    }


def _write_json(path: Path, document: Document) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")
