"""What joining buys, and what noise costs: the same training without noise, and by each node alone.

Both are computed from the rows without any noise, so they are results that stay where the rows may be seen: no figure
covers them, and nobody else needs them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.errors import Diverged
from sottovoce.learning.tables import Table
from sottovoce.learning.tasks import Evaluation
from sottovoce.run.build import build_accountant, build_run
from sottovoce.run.layout import RunFiles
from sottovoce.run.parallel import map_in_processes
from sottovoce.run.protocol import local_step_size
from sottovoce.run.sweep import FinishedSweepRun
from sottovoce.run.training_run import NodeSummary, TrainingRun
from sottovoce.support.config import AlgorithmChoice, Document, Experiment
from sottovoce.support.progress import Progress
from sottovoce.support.threads import WORKERS, threads

PLAIN = "d-psgd"
"""Gossip training without noise."""

DECIDING = ("seed", "noise_key", "topology", "data", "model", "algorithm", "training", "machine")
"""Sections and keys of settings on which baselines depend."""


def write_baselines(files: RunFiles, experiment: Experiment, data: Path | None = None) -> Document:
    """Compute the baselines of a finished run, and write `baselines.json`; what is there already is only read."""
    before = files.document(files.baselines)
    if before is not None:
        return before
    found = compute_baselines(experiment, data)
    files.write_document(files.baselines, found)
    return found


def write_own_baseline(files: RunFiles, experiment: Experiment, tables: Mapping[str, Table], name: str) -> Document:
    """Compute what one node's own training comes to, and write `baselines.json`, as `write_baselines` does."""
    before = files.document(files.baselines)
    if before is not None:
        return before
    found = compute_own_baseline(experiment, tables, name)
    files.write_document(files.baselines, found)
    return found


def compute_baselines(experiment: Experiment, data: Path | None = None) -> Document:
    """Test figures of the same rounds, steps, batches and clipping without noise: all together, and each node alone."""
    plain = build_run(_without_noise(experiment), data)
    with threads(experiment.machine.threads):
        nodes = np.arange(plain.topology.n)
        together, alone = _together(plain), _alone(plain, local_step_size(experiment), nodes)
        rows = experiment.metrics.test_rows
        joint, single = (plain.task.evaluate(models, rows) for models in (together, alone))
    _require_finite(joint, single)
    names = plain.topology.names
    return {
        "metric": joint.metric_name,
        "without_noise": vars(NodeSummary.of(joint.metric, joint.average_metric)),
        "alone": _over_nodes(single),
        "nodes": [
            {"node": str(at) if names is None else names[at], "alone": float(one), "without_noise": float(other)}
            for at, (one, other) in enumerate(zip(single.metric, joint.metric, strict=True))
        ],
    }


def compute_own_baseline(experiment: Experiment, tables: Mapping[str, Table], name: str) -> Document:
    """Test figures of one node alone, whose table is here, on its own held-out rows; of the others nothing is known."""
    plain = build_accountant(_without_noise(experiment), tables=tables).training_run
    assert plain.topology.names is not None
    nodes = np.array([plain.topology.names.index(name)])
    with threads(experiment.machine.threads):
        models = _alone(plain, local_step_size(experiment), nodes)
        found = plain.task.hosted(nodes).evaluate(models, experiment.metrics.test_rows)
    _require_finite(found)
    return {
        "metric": found.metric_name, "without_noise": None, "alone": _over_nodes(found),
        "nodes": [{"node": name, "alone": float(found.metric[0]), "without_noise": None}],
    }  # fmt: skip


def with_baselines(
    finished: Sequence[FinishedSweepRun],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[FinishedSweepRun]:
    """Runs of a sweep with their baselines, which are written into their folders.

    They are computed once for all runs that differ in noise and target only.
    """
    alike: dict[str, list[Experiment]] = {}
    for one in finished:
        if not one.diverged:
            alike.setdefault(_deciding(one.run.experiment), []).append(one.run.experiment)
    open_groups = [group for group in alike.values() if any(not _files(each, out).baselines.exists() for each in group)]
    first, done = [group[0] for group in open_groups], len(alike) - len(open_groups)
    processes = max(1, min(jobs or WORKERS, len(first)))
    for experiment, found in map_in_processes(partial(_attempt, data=data), first, processes):
        if found is not None:
            for each in alike[_deciding(experiment)]:
                of_each = _files(each, out)
                of_each.write_document(of_each.baselines, found)
        done += 1
        if progress is not None:
            progress(done, len(alike))
    return [replace(one, baselines=_stored(one, out)) for one in finished]


def _stored(one: FinishedSweepRun, out: Path) -> Document | None:
    files = _files(one.run.experiment, out)
    return files.document(files.baselines)


def _files(experiment: Experiment, out: Path) -> RunFiles:
    return RunFiles(out / experiment.name)


def _attempt(experiment: Experiment, data: Path | None) -> Document | None:
    """The baselines, or None where training without noise diverges."""
    try:
        return compute_baselines(experiment, data)
    except Diverged:
        return None


def _deciding(experiment: Experiment) -> str:
    """The settings that baselines follow from."""
    plain = _without_noise(experiment).document()
    return json.dumps({key: plain[key] for key in DECIDING} | {"rows": experiment.metrics.test_rows}, sort_keys=True)


def _require_finite(*figures: Evaluation) -> None:
    if not all(np.isfinite(one.loss).all() for one in figures):
        raise Diverged("baselines with nan or infinity", "there is nothing to measure", "lower the step size")


def _over_nodes(found: Evaluation) -> Document:
    return {key: value for key, value in vars(NodeSummary.of(found.metric, 0.0)).items() if key != "average"}


def _without_noise(experiment: Experiment) -> Experiment:
    plain = AlgorithmChoice(name=PLAIN, step_size=local_step_size(experiment))  # type: ignore[call-arg]
    privacy = experiment.privacy.model_copy(update={"epsilon": None, "exact_noise": "auto"})
    return experiment.model_copy(update={"algorithm": plain, "privacy": privacy})


def _together(plain: TrainingRun) -> torch.Tensor:
    *_, (_, last) = plain.play(plain.before())
    return plain.models(last)


def _alone(plain: TrainingRun, step_size: float, nodes: NDArray[np.intp]) -> torch.Tensor:
    """Each of these nodes by itself: no message is sent, and nobody is weighed against others."""
    points, own = plain.starting_models(nodes), plain.gradients.unweighed().hosted(nodes)
    for round in range(plain.rounds):
        points = torch.add(points, own(round, points), alpha=-step_size)
    return points
