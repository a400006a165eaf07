"""Finished runs as TensorBoard and MLflow read them, in local files: the extra `track`.

Both get what `metrics.jsonl`, `config.json` and `privacy.json` say, and nothing else: what may be handed on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from sottovoce.config import Document
from sottovoce.core.extras import require_extra
from sottovoce.errors import InputError
from sottovoce.run.run_documents import RunDocuments


class Tracker(StrEnum):
    """Programs that show runs."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


def parse_tracker(word: str) -> Tracker:
    """The program of that name; refused where it is not installed."""
    if word not in Tracker.__members__.values():
        raise InputError(f"--track {word}", f"known: {', '.join(Tracker)}", "choose one of them")
    require_extra("track", word)
    return Tracker(word)


def track(runs: Sequence[RunDocuments], trackers: Sequence[Tracker], out: Path) -> list[Path]:
    """Write runs for each program below a folder; returns where each of them looks.

    Runs of the same name that were written before are replaced.
    """
    writers = {Tracker.TENSORBOARD: write_tensorboard, Tracker.MLFLOW: write_mlflow}
    return [writers[one](runs, out) for one in trackers]


def write_tensorboard(runs: Sequence[RunDocuments], out: Path) -> Path:
    """Event files, in a folder for each run: `tensorboard --logdir OUT/tensorboard` shows them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    place = out / "tensorboard"
    for run in runs:
        folder = place / run.name
        shutil.rmtree(folder, ignore_errors=True)
        writer = EventFileWriter(str(folder))
        for line in run.lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in figures_of(line)]
            seconds = float(line.get("seconds", 0.0))
            writer.add_event(Event(wall_time=seconds, step=line["round"], summary=Summary(value=values)))
        writer.close()
    return place


def write_mlflow(runs: Sequence[RunDocuments], out: Path) -> Path:
    """MLflow's own files: an experiment for each sweep or single run, with metrics, settings and the headline.

    Sottovoce writes the file format, which MLflow has in maintenance: `MLFLOW_ALLOW_FILE_STORE=true mlflow ui
    --backend-store-uri OUT/mlruns` shows it, and `mlflow migrate-filestore` takes it into a database.
    """
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    place = out / "mlruns"
    client = MlflowClient(tracking_uri=place.resolve().as_uri())
    for run in runs:
        group, _, label = run.name.rpartition("/")
        found = client.get_experiment_by_name(group or label)
        experiment = client.create_experiment(group or label) if found is None else found.experiment_id
        for before in client.search_runs([experiment], filter_string=f"tags.sottovoce = '{run.name}'"):
            client.delete_run(before.info.run_id)
        begun = client.create_run(experiment, run_name=label, tags={"sottovoce": run.name}).info.run_id
        metrics = [
            Metric(_allowed(name), value, int(1000 * line.get("seconds", 0.0)), line["round"])
            for line in run.lines
            for name, value in figures_of(line)
        ]
        settings = [Param(key, text[:6000]) for key, text in _settings(run)]
        client.log_batch(begun, metrics=metrics, params=settings, tags=[RunTag("guarantee", _headline(run))])
        client.set_terminated(begun)
    return place


def figures_of(line: Document, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line of metrics, with tables within it as `accuracy/average`; what is not finite is left out."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from figures_of(dict(value), f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key not in ("round", "seconds"):
            yield f"{prefix}{key}", float(value)


def _settings(run: RunDocuments) -> Iterator[tuple[str, str]]:
    """All settings by their dotted keys, as `--set` takes them."""
    for section, value in run.experiment.document().items():
        if isinstance(value, Mapping):
            yield from ((f"{section}.{key}", _text(inner)) for key, inner in value.items() if inner not in (None, ""))
        elif value is not None and section != "noise_key":
            yield section, _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _headline(run: RunDocuments) -> str:
    headline = run.privacy.headline
    return "none is proven" if headline is None else json.dumps(headline.document())


def _allowed(name: str) -> str:
    return name.replace("(", "").replace(")", "")
