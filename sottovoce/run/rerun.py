"""Reruns: a run again, from another seed, with some nodes on other rows, as shadow models and canaries need it.

All else stays as it was: algorithm, noise, topology, batches by their rule, and the number of rows of every node, so
that the sensitivity and with it the size of the noise stay the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import InputError
from sottovoce.learning.lazy_rows import Examples
from sottovoce.run.finished_run import FinishedRun, open_run
from sottovoce.run.layout import make_folder
from sottovoce.run.recording import Messages, Recorder
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import RecordingSettings
from sottovoce.support.files import check_no_link, is_signed, read_bytes, sign, write_bytes, write_text
from sottovoce.support.npz import Arrays, read_checked_npz, write_npz
from sottovoce.support.processes import map_in_processes
from sottovoce.support.progress import Note, Progress
from sottovoce.support.text import JSON
from sottovoce.support.threads import threads


@lru_cache(maxsize=1)
def open_run_once(folder: Path, data: Path | None, own: bool) -> FinishedRun:
    """A finished run, opened once in a process however often it is rerun: its noise may have to be calibrated."""
    return open_run(folder, data, own=own)


def with_other_rows(
    finished_run: FinishedRun, seed: int, rows: Mapping[int, NDArray[np.int64]], extra: Sequence[Tensor] = ()
) -> TrainingRun:
    """The run from another seed, with noise that follows from it. `rows` gives nodes new rows, as many as they had:
    positions among the training rows, followed by the test rows, followed by `extra` inputs and targets.
    """
    run = finished_run.training_run
    job, indices, more = run.task, list(run.task.shards.indices), [part.numpy() for part in extra]
    for node, new in rows.items():
        assert len(new) == len(indices[node])
        indices[node] = np.asarray(new, dtype=np.int64)
    data = job.dataset
    inputs = np.concatenate([data.inputs, data.test_inputs, *more[:1]], dtype=np.float32)
    targets = np.concatenate([data.targets, data.test_targets, *more[1:]])
    bound = data.examples.norm_bound
    examples = Examples(inputs) if bound is None else Examples(inputs).clipped(bound)
    shards = tuple(indices)
    job = replace(
        job, dataset=replace(data, examples=examples, targets=targets, groups=None),
        shards=replace(job.shards, indices=shards),
    )  # fmt: skip
    gradients = replace(run.gradients, task=job, batches=replace(run.gradients.batches, shards=shards))
    return replace(run, gradients=gradients, seed=seed).keyed(NoiseKey.of_seed(seed))


def record_rerun(training_run: TrainingRun, record: RecordingSettings, attackers: Sequence[int]) -> Messages:
    """Play a run and record what some attackers receive, as often as the run itself did."""
    recorder = Recorder(training_run, record.model_copy(update={"attackers": list(attackers)}))
    with threads():
        for played, state in training_run.play(training_run.before()):
            recorder(played, state)
    return recorder.messages


def load_or_compute(
    finished_run: FinishedRun,
    folder: Path,
    act: Callable[[int], Arrays],
    count: int,
    *,
    about: JSON,
    jobs: int | None,
    progress: Progress | None,
    note: Note | None = None,
) -> list[Arrays]:
    """`act(0)` to `act(count - 1)`, in processes of their own; those that this user has made before are only read.

    They are stored in the folder, each with a signature of this user's over what it holds and what it is about: the
    run with its data, and `about`, which tells calls apart whose arrays would not be the same. Others are made again,
    which a `note` says.
    """
    named = json.dumps(["rerun", folder.name, finished_run.fingerprint, about], sort_keys=True)
    results = check_no_link(folder / hashlib.sha256(named.encode()).hexdigest()[:12])
    for place in (folder, results):
        make_folder(place)
    stored = [_StoredRerun(results / f"{number:04d}.npz", f"{named} {number}") for number in range(count)]
    found = {number: arrays for number, one in enumerate(stored) if (arrays := one.read()) is not None}
    missing = [number for number in range(count) if number not in found]
    foreign = sum(stored[number].path.exists() for number in missing)
    if foreign and note is not None:
        note(f"{foreign} of the reruns in {results} were not made by you, or were changed: they are made again")
    if progress is not None:
        progress(len(found), count)
    with closing(map_in_processes(act, missing, jobs)) as answers:
        for number, arrays in answers:
            stored[number].write(arrays)
            found[number] = arrays
            if progress is not None:
                progress(len(found), count)
    return [found[number] for number in range(count)]


class _StoredRerun(NamedTuple):
    """A file of a rerun, `about` which the signature beside it is as well."""

    path: Path
    about: str

    def read(self) -> Arrays | None:
        """What it holds, if this user has signed it; None where it is not there or anybody else's."""
        try:
            signature = read_bytes(self.path.with_suffix(".signature")).decode()
            return read_checked_npz(self.path) if is_signed(self._signed(read_bytes(self.path)), signature) else None
        except (OSError, InputError, UnicodeDecodeError):
            return None

    def write(self, arrays: Arrays) -> None:
        """Store what was computed here, and sign it."""
        written = BytesIO()
        write_npz(written, arrays)
        content = written.getvalue()
        write_bytes(self.path, content, private=True)
        write_text(self.path.with_suffix(".signature"), sign(self._signed(content)), private=True)

    def _signed(self, content: bytes) -> bytes:
        return f"{self.about} {hashlib.sha256(content).hexdigest()}".encode()
