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

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from sottovoce import __version__
from sottovoce.config import Document, Experiment, difference
from sottovoce.errors import InputError
from sottovoce.files import write, write_text
from sottovoce.learning.data import Dataset
from sottovoce.run.build import build
from sottovoce.run.checkpoint import Saved, load, save
from sottovoce.run.files import Files
from sottovoce.run.guarantees import promise
from sottovoce.run.pace import SAVE, STOP, Pace
from sottovoce.run.record import both, forget_after, recorder_in
from sottovoce.run.simulate import Watch, measured_rounds
from sottovoce.run.team import Alone, Team
from sottovoce.run.trial import Trial
from sottovoce.threads import threads
from sottovoce.topology import Topology

Tell = Callable[[int, int], None]


def carry_out(
    experiment: Experiment,
    folder: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    tell: Tell | None = None,
    watch: Watch | None = None,
    team: Team | None = None,
) -> Document:
    """Run an experiment in its folder and return its result; a finished run of the same settings is only read.

    An unfinished one goes on with `resume`, and is refused without. One of several ranks does its part in the `team`.
    """
    files, team = Files(folder), team or Alone()
    team.agree({**_versions(), "settings": _comparable(experiment.document()), "resume": resume})
    finished = team.first(lambda: _not_busy(files, experiment, resume))
    if finished is not None:
        return finished
    trial = team.each(lambda: build(experiment, data))
    mark = team.each(lambda: fingerprint(experiment, trial))
    team.agree({"data, graph or noise": mark})
    placed = team.place(trial)
    team.each(lambda: recorder_in(folder, trial, experiment.record))  # refuses what would be too much
    privacy = team.first(lambda: _promised(files, experiment, trial, mark))
    with ExitStack() as held:
        finished = team.first(lambda: _taken(held, files, experiment, resume))
        if finished is not None:
            return finished
        word = team.first(lambda: _signed(files))
        team.each(lambda: _seen(files, word))
        trial = team.share(trial, placed)
        now = team.each(lambda: _last_saved(files, trial, mark))
        team.agree({"checkpoint": now.stage.rounds})
        team.first(lambda: _write_head(files, experiment, privacy, now))
        watch = both(watch, recorder_in(folder, trial, experiment.record))
        with team.failing():
            seconds = _train(experiment, trial, files, now, mark, tell, watch, team)
        return team.first(lambda: _finished(experiment, files, privacy, seconds))


def _versions() -> Document:
    """What has to be the same wherever a run is carried out."""
    return {"sottovoce": __version__, "torch": torch.__version__, "numpy": np.__version__}


def _not_busy(files: Files, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run; refuses one that another process is at, before any work."""
    finished = _same_run(files, experiment, resume)
    if finished is None and files.lock.exists():
        with _locked(files.lock):  # for good when all that can be wrong is known
            pass
    return finished


def _taken(held: ExitStack, files: Files, experiment: Experiment, resume: bool) -> Document | None:
    """Make and lock the folder; another process may have been here meanwhile."""
    _make(files.folder)
    held.enter_context(_locked(files.lock))
    return _same_run(files, experiment, resume)


def _signed(files: Files) -> str:
    """A word left in the lock: a folder of the same name that another machine has for itself lacks it."""
    word = secrets.token_hex(8)
    try:
        with files.lock.open("w") as file:
            file.write(word)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(files.lock, error) from None
    return word


def _seen(files: Files, word: str) -> None:
    """Whether this rank sees the folder that rank 0 has made."""
    if not files.lock.exists() or files.lock.read_text() != word:
        raise InputError(f"{files.folder}: not there for all ranks", "they write into one folder", "share it as --out")


def _finished(experiment: Experiment, files: Files, privacy: Document, seconds: float) -> Document:
    result = _result(experiment, files, privacy, seconds)
    _write_json(files.result, result)
    return result


def _promised(files: Files, experiment: Experiment, trial: Trial, mark: str) -> Document:
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
    found = promise(trial, delta=wanted.delta, attackers=wanted.attackers, target=wanted.view)
    return {**found.document(), "fingerprint": mark}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "a run needs a folder", "use another --out") from None


def _last_saved(files: Files, trial: Trial, mark: str) -> Saved:
    """Where the run goes on."""
    before = trial.before()
    if files.checkpoint.exists():
        return load(files.checkpoint, before, mark, trial.host)
    return Saved(before, 0, 0.0)


def _write_head(files: Files, experiment: Experiment, privacy: Document, now: Saved) -> None:
    """What is known before the first round, and nothing half-written or later beside it."""
    _keep_lines(files.metrics, now.lines)
    forget_after(files.folder, now.stage.rounds)
    for part in (*files.folder.glob("*.part"), *files.folder.glob("messages/*.part")):
        if part.is_file():
            part.unlink()
    if not files.config.exists():
        _write_json(files.config, experiment.document())
    if files.document(files.privacy) != privacy:
        _write_json(files.privacy, privacy)


def _same_run(files: Files, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run; refuses a folder that holds something else."""
    if files.folder.exists() and not files.folder.is_dir():
        raise InputError(f"{files.folder} is no folder", "a run needs one", "move that file away")
    before = files.document(files.config)
    if before is None:
        if files.folder.exists() and any(files.folder.glob("checkpoint.npz")):
            raise InputError(f"{files.folder}: a checkpoint without settings", "a run has both", "remove the folder")
        return None
    other = difference(_comparable(before), _comparable(experiment.document()))
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


def _comparable(document: Document) -> Document:
    """What decides the numbers of a run, and what it records if it does."""
    silent = document.get("record", {}).get("attackers") == "none"
    kept = {key: value for key, value in document.items() if key != "about" and not (silent and key == "record")}
    return {**kept, "machine": {**document.get("machine", {}), "checkpoint_seconds": None}}


def _train(
    experiment: Experiment,
    trial: Trial,
    files: Files,
    now: Saved,
    mark: str,
    tell: Tell | None,
    watch: Watch | None,
    team: Team,
) -> float:
    """Play the rounds that are left, with metrics and checkpoints; returns the seconds of training in all."""
    begun, metrics = time.monotonic() - now.seconds, experiment.metrics
    pace = Pace(team, experiment.machine.checkpoint_seconds, trial.rounds, now.stage.rounds)
    played = measured_rounds(
        trial, now.stage, every=metrics.every, test_rows=metrics.test_rows, seconds=now.seconds, start=now.lines == 0,
        watch=watch,
    )  # fmt: skip
    path = files.metrics if team.rank == 0 else Path(os.devnull)
    with threads(experiment.machine.threads), _appending(path) as lines, pace.undisturbed():
        try:
            for stage, measured in played:
                count = now.lines + (measured is not None)
                if measured is not None:
                    lines.write(json.dumps(measured.document()) + "\n")
                    lines.flush()
                now = Saved(stage, count, time.monotonic() - begun)
                if tell is not None:
                    tell(stage.rounds, trial.rounds)
                act = pace.after(stage.rounds)
                if act == STOP:
                    raise KeyboardInterrupt
                if act == SAVE:
                    with pace.saving():
                        _sync(lines)
                        save(files.checkpoint, now, mark, team)
        except KeyboardInterrupt:
            _sync(lines)
            save(files.checkpoint, now, mark, team)
            raise
    return now.seconds


@contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    """A file that grows; closing it may fail as well, where the disk is full."""
    try:
        with path.open("a") as lines:
            yield lines
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: {error.strerror}", "a run writes into its folder", "make room, or use another --out")


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


def _result(experiment: Experiment, files: Files, privacy: Document, seconds: float) -> Document:
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


def fingerprint(experiment: Experiment, trial: Trial) -> str:
    """A digest of all that decides the numbers: settings, data, graph, noise and this version."""
    digest = hashlib.sha256(json.dumps([__version__, _comparable(experiment.document())], sort_keys=True).encode())
    digest.update(_of_data(trial.task.dataset))
    digest.update(_of_graph(trial.topology))
    noise = trial.algorithm.noise
    digest.update(repr(noise).encode())
    if noise.correlation is not None:
        digest.update(noise.correlation.matrix(trial.rounds).tobytes())
    return digest.hexdigest()


def _of_data(dataset: Dataset) -> bytes:
    digest = hashlib.blake2b()
    rest = (dataset.targets, dataset.test_inputs, dataset.test_targets, dataset.groups)
    for part in (*dataset.examples.pieces(), *rest):
        digest.update(b"" if part is None else part.tobytes())
    return digest.digest()


def _of_graph(topology: Topology) -> bytes:
    """Of the graph that may come from a file, and of the first round's weights; how they change is in the settings."""
    digest = hashlib.blake2b()
    for matrix in (topology.at(0).weights, *([] if topology.graph is None else [topology.graph.adjacency])):
        for part in (matrix.data, matrix.indices, matrix.indptr):
            digest.update(part.tobytes())
    return digest.digest()


def _write_json(path: Path, document: Document) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock dies with its process."""
    try:
        file = path.open("a")  # what is written there stays, for the run that another process is at
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a run writes into its folder", "use another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path.parent}: another process is at it", "one run at a time", "wait for it") from None
        yield
