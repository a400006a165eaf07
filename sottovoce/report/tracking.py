"""Runs as TensorBoard and MLflow read them, in local files: the extra `track`.

Both get what `metrics.jsonl`, `config.json` and `privacy.json` say, and nothing else: what may be handed on; and
of runs that were only read, what of these nothing was compared with.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sottovoce.errors import InputError, require_extra
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.config import Document, Experiment, parse_experiment


class Tracker(StrEnum):
    """Programs that show runs."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


PLACES = {Tracker.TENSORBOARD: "tensorboard", Tracker.MLFLOW: "mlruns"}
"""The folder that each program is shown, below that of runs."""

NOT_CHECKED, DT_STRING = "not_checked", 7
"""What is written where figures were only read, and the number of texts among TensorBoard's types."""


def parse_tracker(word: str) -> Tracker:
    """The program of that name; refused where it is not installed."""
    if word not in Tracker.__members__.values():
        raise InputError(f"--track {word}", f"known: {', '.join(Tracker)}", "choose one of them")
    require_extra("track", word)
    return Tracker(word)


def track(runs: Sequence[RunDocuments], trackers: Sequence[str], out: Path) -> str:
    """Write finished runs for each program below a folder; returns where each of them looks.

    Runs of the same name that were written before are replaced.
    """
    for run in runs:
        LiveTracking(run.folder, trackers, out, run.check.lines()).close(finished=True)
    return places_of(trackers, out)


def places_of(trackers: Sequence[str], out: Path) -> str:
    """Where each program looks for runs below a folder, as a sentence."""
    return f"Written for {', '.join(trackers)}: {', '.join(str(out / PLACES[Tracker(word)]) for word in trackers)}"


class LiveTracking:
    """A run that is written for each program as its metrics grow: `write` is called after each round.

    A run that goes on is written anew from its first line, with what of it was `not_checked`.
    """

    def __init__(self, folder: Path, trackers: Sequence[str], out: Path, not_checked: Sequence[str] = ()) -> None:
        self._files, self._trackers, self._out = RunFiles(folder), trackers, out
        self._not_checked = "; ".join(not_checked)
        self._written: list[TrackedRun] = []
        self._size = 0

    def write(self) -> None:
        """Write what was measured since."""
        files = self._files
        size = files.metrics.stat().st_size if files.metrics.exists() else 0
        if size == self._size:
            return
        lines = [files.last_line()] if self._written else files.lines()
        if not self._written:
            experiment = parse_experiment(files.document(files.config) or {}, str(files.config))
            privacy = PrivacyDocument.read(files.document(files.privacy) or {})
            self._written = [_begun(Tracker(word), experiment, privacy, self._out) for word in self._trackers]
            for run in self._written if self._not_checked else ():
                run.note_not_checked(self._not_checked)
        for run in self._written:
            run.add(lines)
        self._size = size

    def close(self, *, finished: bool) -> None:
        """Nothing more comes; of a run that is finished, what was not written yet is."""
        if finished:
            self.write()
        for run in self._written:
            run.close(finished=finished)


class TrackedRun(Protocol):
    """A run as one program reads it."""

    def note_not_checked(self, text: str) -> None:
        """What of the run nothing was compared with, beside its figures."""

    def add(self, lines: Sequence[Document]) -> None:
        """What was measured, one line after the other; readers see it at once."""

    def close(self, *, finished: bool) -> None:
        """Nothing more comes: the run is finished, or was stopped."""


def _begun(tracker: Tracker, experiment: Experiment, privacy: PrivacyDocument, out: Path) -> TrackedRun:
    place = out / PLACES[tracker]
    if tracker is Tracker.TENSORBOARD:
        return TensorBoardRun(place / experiment.name)
    return MlflowRun(place, experiment, privacy)


class TensorBoardRun:
    """Event files, in a folder for each run: `tensorboard --logdir OUT/tensorboard` shows them."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder, ignore_errors=True)
        self._writer = EventFileWriter(str(folder))

    def note_not_checked(self, text: str) -> None:
        """A text beside the figures."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        shown = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        about = create_summary_metadata(display_name=NOT_CHECKED, description="")
        value = Summary.Value(tag=NOT_CHECKED, tensor=shown, metadata=about)
        self._writer.add_event(Event(summary=Summary(value=[value])))

    def add(self, lines: Sequence[Document]) -> None:
        """One event for each line."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for line in lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in figures_of(line)]
            seconds = float(line.get("seconds", 0.0))
            self._writer.add_event(Event(wall_time=seconds, step=line["round"], summary=Summary(value=values)))
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Event files do not say whether a run has ended."""
        self._writer.close()


class MlflowRun:
    """MLflow's own files: an experiment for each sweep or single run, with metrics, settings and the headline.

    Sottovoce writes the file format, which MLflow has in maintenance: `MLFLOW_ALLOW_FILE_STORE=true mlflow ui
    --backend-store-uri OUT/mlruns` shows it, and `mlflow migrate-filestore` takes it into a database.
    """

    def __init__(self, place: Path, experiment: Experiment, privacy: PrivacyDocument) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param, RunTag
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=place.resolve().as_uri())
        group, _, label = experiment.name.rpartition("/")
        found = self._client.get_experiment_by_name(group or label)
        number = self._client.create_experiment(group or label) if found is None else found.experiment_id
        for before in self._client.search_runs([number], filter_string=f"tags.sottovoce = '{experiment.name}'"):
            self._client.delete_run(before.info.run_id)
        self._run = self._client.create_run(number, run_name=label, tags={"sottovoce": experiment.name}).info.run_id
        settings = [Param(key, text[:6000]) for key, text in _settings(experiment)]
        self._client.log_batch(self._run, params=settings, tags=[RunTag("guarantee", _headline(privacy))])

    def note_not_checked(self, text: str) -> None:
        """A tag beside the headline."""
        self._client.set_tag(self._run, NOT_CHECKED, text[:5000])

    def add(self, lines: Sequence[Document]) -> None:
        """The figures of each line."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_allowed(name), value, int(1000 * line.get("seconds", 0.0)), line["round"])
            for line in lines
            for name, value in figures_of(line)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        """The run has ended."""
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


def figures_of(line: Document, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line of metrics, with tables within it as `accuracy/average`; what is not finite is left out."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from figures_of(dict(value), f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key not in ("round", "seconds"):
            yield f"{prefix}{key}", float(value)


def _settings(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """All settings by their dotted keys, as `--set` takes them."""
    for section, value in experiment.document().items():
        if isinstance(value, Mapping):
            yield from ((f"{section}.{key}", _text(inner)) for key, inner in value.items() if inner not in (None, ""))
        elif value is not None and section != "noise_key":
            yield section, _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _headline(privacy: PrivacyDocument) -> str:
    return json.dumps(privacy.headline.document())


def _allowed(name: str) -> str:
    return name.replace("(", "").replace(")", "")
