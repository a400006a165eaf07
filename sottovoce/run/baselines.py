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

from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import Diverged
from sottovoce.learning.prediction_scores import leading_figure
from sottovoce.learning.tables import Table
from sottovoce.run.build import build_accountant
from sottovoce.run.layout import RunFiles
from sottovoce.run.protocol import local_step_size
from sottovoce.run.sweep import FinishedSweepRun
from sottovoce.run.training_run import NodeSummary, TrainingRun
from sottovoce.support.config import AlgorithmChoice, Document, Experiment
from sottovoce.support.processes import map_in_processes
from sottovoce.support.progress import Progress
from sottovoce.support.threads import threads

PLAIN = "d-psgd"
"""Gossip training without noise."""

DECIDING = ("seed", "topology", "data", "model", "algorithm", "training", "machine")
"""Sections and keys of settings on which baselines depend."""


def write_baselines(
    files: RunFiles,
    experiment: Experiment,
    data: Path | None = None,
    *,
    tables: Mapping[str, Table] | None = None,
    own: str | None = None,
) -> Document:
    """Compute the baselines of a finished run, and write `baselines.json`; what is there already is only read."""
    found = files.document(files.baselines)
    if found is None:
        found = compute_baselines(experiment, data, tables=tables, own=own)
        files.write_document(files.baselines, found)
    return found


def compute_baselines(
    experiment: Experiment,
    data: Path | None = None,
    *,
    tables: Mapping[str, Table] | None = None,
    own: str | None = None,
) -> Document:
    """Test figures of the same rounds, steps, batches and clipping without noise: all together, and each node alone.

    Batches follow from the seed, so that an audit draws the same. With a node of its `own`, whose table is among
    `tables`, only what that comes to alone, on its own held-out rows: of the others nothing is known.
    """
    plain = build_accountant(_without_noise(experiment), data, tables=tables).training_run
    plain = plain.keyed(NoiseKey.of_seed(experiment.seed))
    names = plain.topology.names or tuple(map(str, range(plain.topology.n)))
    nodes = np.array([node for node, name in enumerate(names) if own in (None, name)])
    task, rows = plain.task if own is None else plain.task.hosted(nodes), experiment.metrics.test_rows
    with threads(experiment.machine.threads):
        together = None if own is not None else _together(plain)
        joint = None if together is None else plain.task.evaluate(together, rows)
        singles = _alone(plain, local_step_size(experiment), nodes)
        alone = task.evaluate(singles, rows)
        scores = None if together is None else plain.task.score(together.mean(0), rows)
        each = [task.score(point, rows) for point in singles]
    if not all(np.isfinite(one.loss).all() for one in (alone, joint) if one is not None):
        raise Diverged("baselines with nan or infinity", "there is nothing to measure", "lower the step size")
    summary = vars(NodeSummary.of(alone.metric, 0.0))
    return {
        "metric": alone.metric_name,
        "without_noise": None if joint is None else vars(NodeSummary.of(joint.metric, joint.average_metric)),
        "alone": {key: value for key, value in summary.items() if key != "average"},
        "held_out": {"without_noise": scores, "alone": _mean_scores(each)},
        "nodes": [
            {
                "node": names[node], "alone": float(alone.metric[at]),
                "without_noise": None if joint is None else float(joint.metric[at]),
            }
            for at, node in enumerate(nodes)
        ],
    }  # fmt: skip


def _mean_scores(each: Sequence[Document]) -> Document:
    """The leading figure in the mean over nodes, with the mean of the intervals: as if all erred the same way."""
    found = [one for one in map(leading_figure, each) if one is not None]
    values = [one.value for one in found if one.value is not None]
    ends = [one.interval for one in found if one.interval is not None]
    return {
        "figure": found[0].figure, "value": float(np.mean(values)) if len(values) == len(each) else None,
        "interval": np.mean(ends, axis=0).tolist() if len(ends) == len(each) else None,
        "constant": sum(one.get("constant") is not None for one in each),
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
    files = [RunFiles(out / one.run.experiment.name) for one in finished]
    alike: dict[str, list[tuple[RunFiles, Experiment]]] = {}
    for place, one in zip(files, finished, strict=True):
        if not one.diverged:
            alike.setdefault(_deciding(one.run.experiment), []).append((place, one.run.experiment))
    wanted = [group[0][1] for group in alike.values() if not all(place.baselines.exists() for place, _ in group)]
    answers = map_in_processes(partial(_attempt, data=data), wanted, jobs)
    for done, (experiment, found) in enumerate(answers, len(alike) - len(wanted) + 1):
        if found is not None:
            for place, _ in alike[_deciding(experiment)]:
                place.write_document(place.baselines, found)
        if progress is not None:
            progress(done, len(alike))
    return [replace(one, baselines=place.document(place.baselines)) for place, one in zip(files, finished, strict=True)]


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
