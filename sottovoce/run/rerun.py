"""Reruns: a run again, from another seed, with some nodes on other rows, as shadow models and canaries need it.

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
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.config import RecordingSettings
from sottovoce.core.files import Arrays, read_npz, write
from sottovoce.core.json_numbers import JSON
from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.threads import WORKERS, threads
from sottovoce.learning.lazy_rows import Examples
from sottovoce.run.callbacks import Progress
from sottovoce.run.finished_run import FinishedRun, open_run
from sottovoce.run.lock import make_folder
from sottovoce.run.parallel import map_in_processes
from sottovoce.run.recording import Messages, Recorder
from sottovoce.run.training_run import TrainingRun


@lru_cache(maxsize=1)
def open_run_once(folder: Path, data: Path | None) -> FinishedRun:
    """A finished run, opened once in a process however often it is rerun: its noise may have to be calibrated."""
    return open_run(folder, data)


def with_other_rows(
    finished_run: FinishedRun, seed: int, rows: Mapping[int, NDArray[np.int64]], extra: Sequence[Tensor] = ()
) -> TrainingRun:
    """The run from another seed, with noise that follows from it. `rows` gives nodes new rows, as many as they had:
    positions among the training rows, followed by the test rows, followed by `extra` inputs and targets.
    """
    training_run, training = finished_run.training_run, finished_run.experiment.training
    job = training_run.task
    indices = list(job.shards.indices)
    for node, new in rows.items():
        assert len(new) == len(indices[node])
        indices[node] = np.asarray(new, dtype=np.int64)
    data, more = job.dataset, [part.numpy() for part in extra]
    inputs = np.concatenate([data.inputs, data.test_inputs, *more[:1]], dtype=np.float32)
    targets = np.concatenate([data.targets, data.test_targets, *more[1:]])
    bound = data.examples.norm_bound
    examples = Examples(inputs) if bound is None else Examples(inputs).clipped(bound)
    changed = dataclasses.replace(
        job, dataset=dataclasses.replace(data, examples=examples, targets=targets, groups=None),
        shards=dataclasses.replace(job.shards, indices=tuple(indices)),
    )  # fmt: skip
    gradients = changed.gradients(
        training.batch, training.clip, training.bound, local_steps=training_run.gradients.local_steps,
        step_size=training_run.gradients.step_size,
    )  # fmt: skip
    changed_run = dataclasses.replace(training_run, gradients=gradients, seed=seed)
    return changed_run.keyed(NoiseKey.of_seed(seed))


def record_rerun(training_run: TrainingRun, record: RecordingSettings, attackers: Sequence[int]) -> Messages:
    """Play a run and record what some attackers receive, as often as the run itself did."""
    recorder = Recorder(training_run, record.model_copy(update={"attackers": list(attackers)}))
    with threads():
        for played, state in training_run.play(training_run.before()):
            recorder(played, state)
    return recorder.messages


def load_or_compute(
    folder: Path, act: Callable[[int], Arrays], count: int, *, about: JSON, jobs: int | None, progress: Progress | None
) -> list[Arrays]:
    """`act(0)` to `act(count - 1)`, in processes of their own; finished ones are stored in the folder and only read.

    `about` tells calls apart whose arrays would not be the same.
    """
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    results = folder / digest
    make_folder(results)
    missing = [number for number in range(count) if not _file(results, number).exists()]
    if progress is not None:
        progress(count - len(missing), count)
    jobs = min(jobs or WORKERS, max(1, len(missing)))
    for done, (number, arrays) in enumerate(map_in_processes(act, missing, jobs), 1):
        _store(_file(results, number), arrays)
        if progress is not None:
            progress(count - len(missing) + done, count)
    return [read_npz(_file(results, number)) for number in range(count)]


def _file(results: Path, number: int) -> Path:
    return results / f"{number:04d}.npz"


def _store(path: Path, arrays: Arrays) -> None:
    def write_to(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]

    write(path, write_to)
