"""A run again, from another seed, with some nodes on other rows: for shadow runs and for runs with canaries.

All else stays as it was: algorithm, noise, topology, batches by their rule, and the number of rows of every node, so
that the sensitivity and with it the size of the noise stay the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.config import Record
from sottovoce.core.files import read_npz, write
from sottovoce.core.threads import WORKERS, threads
from sottovoce.learning.lazy_rows import Examples
from sottovoce.run.finished_run import FinishedRun, open_run
from sottovoce.run.parallel import map_in_processes
from sottovoce.run.recording import Messages, Recorder
from sottovoce.run.training_run import TrainingRun

Tell = Callable[[int, int], None]
Arrays = dict[str, NDArray[Any]]


@lru_cache(maxsize=1)
def open_again(folder: Path, data: Path | None) -> FinishedRun:
    """A run that is opened once in a process, however often it is run again: its noise may have to be calibrated."""
    return open_run(folder, data)


def altered(
    finished_run: FinishedRun, seed: int, rows: Mapping[int, NDArray[Any]], extra: Sequence[Tensor] = ()
) -> TrainingRun:
    """The trial of a run from another seed. `rows` gives nodes new rows, as many as they had: positions among the
    training rows, followed by the test rows, followed by `extra` inputs and targets.
    """
    training_run, training = finished_run.training_run, finished_run.experiment.training
    job = training_run.task
    held = list(job.shards.indices)
    for node, new in rows.items():
        assert len(new) == len(held[node])
        held[node] = np.asarray(new, dtype=np.int64)
    data, more = job.dataset, [part.numpy() for part in extra]
    inputs = np.concatenate([data.inputs, data.test_inputs, *more[:1]], dtype=np.float32)
    targets = np.concatenate([data.targets, data.test_targets, *more[1:]])
    changed = dataclasses.replace(
        job, dataset=dataclasses.replace(data, examples=Examples(inputs), targets=targets, groups=None),
        shards=dataclasses.replace(job.shards, indices=tuple(held)),
    )  # fmt: skip
    gradients = changed.gradients(
        training.batch, training.clip, training.bound, seed=seed,
        local_steps=training_run.gradients.local_steps, step_size=training_run.gradients.step_size,
    )  # fmt: skip
    return dataclasses.replace(training_run, gradients=gradients, seed=seed)


def rerun_received(training_run: TrainingRun, record: Record, attackers: Sequence[int]) -> Messages:
    """Play a trial and keep what some attackers receive, as often as the run itself did."""
    recorder = Recorder(training_run, record.model_copy(update={"attackers": list(attackers)}))
    with threads():
        for played, state in training_run.play(training_run.before()):
            recorder(played, state)
    return recorder.messages


def load_or_compute(
    folder: Path, act: Callable[[int], Arrays], count: int, *, about: Any, jobs: int | None, tell: Tell | None
) -> list[Arrays]:
    """`act(0)` to `act(count - 1)`, in processes of their own; finished ones are stored in the folder and only read.

    `about` tells calls apart whose arrays would not be the same.
    """
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    place = folder / mark
    place.mkdir(parents=True, exist_ok=True)
    left = [number for number in range(count) if not _file(place, number).exists()]
    if tell is not None:
        tell(count - len(left), count)
    for done, (number, arrays) in enumerate(map_in_processes(act, left, min(jobs or WORKERS, max(1, len(left)))), 1):
        _store(_file(place, number), arrays)
        if tell is not None:
            tell(count - len(left) + done, count)
    return [read_npz(_file(place, number)) for number in range(count)]


def _file(place: Path, number: int) -> Path:
    return place / f"{number:04d}.npz"


def _store(path: Path, arrays: Arrays) -> None:
    def write_to(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]

    write(path, write_to)
