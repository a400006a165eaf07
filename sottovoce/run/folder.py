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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce.config import Document, Experiment
from sottovoce.errors import InputError
from sottovoce.files import write, write_text
from sottovoce.learning.data import Dataset
from sottovoce.run.build import build
from sottovoce.run.checkpoint import Saved, load, save
from sottovoce.run.files import Files
from sottovoce.run.guarantees import promise
from sottovoce.run.record import both, recorder_in
from sottovoce.run.simulate import Watch, measured_rounds
from sottovoce.run.trial import Trial
from sottovoce.threads import threads
from sottovoce.topology import Topology

Tell = Callable[[int, int], None]

PATIENCE = 20
"""Checkpoints are at least so many times further apart than one takes to write."""


def carry_out(
    experiment: Experiment,
    folder: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    tell: Tell | None = None,
    watch: Watch | None = None,
) -> Document:
    """Run an experiment in its folder and return its result; a finished run of the same settings is only read.

    An unfinished one goes on with `resume`, and is refused without.
    """
    files = Files(folder)
    finished = _same_run(files, experiment, resume)
    if finished is not None:
        return finished
    if files.lock.exists():
        with _locked(files.lock):  # refuse before any work; locked for good below, when all that can be wrong is known
            pass
    trial = build(experiment, data)
    watch = both(watch, recorder_in(folder, trial, experiment.record))
    mark = fingerprint(experiment, trial)
    privacy = _promised(files, experiment, trial, mark)
    _make(folder)
    with _locked(files.lock):
        finished = _same_run(files, experiment, resume)  # another process may have been here meanwhile
        if finished is not None:
            return finished
        now = _last_saved(files, trial, mark)
        _write_head(files, experiment, privacy)
        seconds = _train(experiment, trial, files, now, mark, tell, watch)
        result = _result(experiment, files, privacy, seconds)
        _write_json(files.result, result)
    return result


def _promised(files: Files, experiment: Experiment, trial: Trial, mark: str) -> Document:
    """What the run promises: read where it was written for this very run."""
    before, wanted = files.document(files.privacy), experiment.privacy
    if before is not None and before.get("fingerprint") == mark:
        return before
    found = promise(trial, delta=wanted.delta, attackers=wanted.attackers, target=wanted.view)
    return {**found.document(), "fingerprint": mark}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "a run needs a folder", "use another --out") from None


def _last_saved(files: Files, trial: Trial, mark: str) -> Saved:
    """Where the run goes on; metrics are cut back to that."""
    before = trial.before()
    now = load(files.checkpoint, before, mark) if files.checkpoint.exists() else Saved(before, 0, 0.0)
    _keep_lines(files.metrics, now.lines)
    return now


def _write_head(files: Files, experiment: Experiment, privacy: Document) -> None:
    """What is known before the first round, and nothing half-written beside it."""
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
    if _comparable(before) != _comparable(experiment.document()):
        key = _first_difference(_comparable(before), _comparable(experiment.document()))
        raise InputError(
            f"{files.folder} holds a run with another {key}",
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


def _first_difference(one: Any, other: Any) -> str:
    for key in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(key), other.get(key)
        if mine != theirs:
            deeper = isinstance(mine, dict) and isinstance(theirs, dict)
            return f"{key}.{_first_difference(mine, theirs)}" if deeper else str(key)
    return "value"


def _train(
    experiment: Experiment, trial: Trial, files: Files, now: Saved, mark: str, tell: Tell | None, watch: Watch | None
) -> float:
    """Play the rounds that are left, with metrics and checkpoints; returns the seconds of training in all."""
    begun, saved, took = time.monotonic() - now.seconds, time.monotonic(), 0.0
    metrics = experiment.metrics
    played = measured_rounds(
        trial, now.stage, every=metrics.every, test_rows=metrics.test_rows, seconds=now.seconds, start=now.lines == 0,
        watch=watch,
    )  # fmt: skip
    with threads(experiment.machine.threads), files.metrics.open("a") as lines:
        try:
            for stage, measured in played:
                count = now.lines + (measured is not None)
                if measured is not None:
                    lines.write(json.dumps(measured.document()) + "\n")
                    lines.flush()
                now = Saved(stage, count, time.monotonic() - begun)
                if tell is not None:
                    tell(stage.rounds, trial.rounds)
                wait = max(experiment.machine.checkpoint_seconds, PATIENCE * took)
                if stage.rounds == trial.rounds or time.monotonic() - saved >= wait:
                    started = time.monotonic()
                    os.fsync(lines.fileno())
                    save(files.checkpoint, now, mark)
                    saved = time.monotonic()
                    took = saved - started
        except KeyboardInterrupt:
            os.fsync(lines.fileno())
            save(files.checkpoint, now, mark)
            raise
    return now.seconds


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
    for part in (dataset.inputs, dataset.targets, dataset.test_inputs, dataset.test_targets, dataset.groups):
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
        file = path.open("w")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a run writes into its folder", "use another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path.parent}: another process is at it", "one run at a time", "wait for it") from None
        yield
