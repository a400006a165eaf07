"""What joining buys, and what noise costs: the same training without noise, and by each node alone.

Both are computed from the rows without any noise, so they are results that stay where the rows may be seen: no figure
covers them, and nobody else needs them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from sottovoce.config import AlgorithmChoice, Document, Experiment
from sottovoce.core.files import write_text
from sottovoce.core.threads import threads
from sottovoce.errors import Diverged
from sottovoce.run.build import build_run
from sottovoce.run.build_algorithm import local_step_size
from sottovoce.run.layout import RunFiles
from sottovoce.run.metrics import NodeSummary
from sottovoce.run.training_run import TrainingRun

PLAIN = "d-psgd"
"""Gossip training without noise."""


def write_baselines(files: RunFiles, experiment: Experiment, data: Path | None = None) -> Document:
    """Compute the baselines of a finished run, and write `baselines.json`; what is there already is only read."""
    before = files.document(files.baselines)
    if before is not None:
        return before
    found = compute_baselines(experiment, data)
    write_text(files.baselines, json.dumps(found, indent=1) + "\n", private=True)
    return found


def compute_baselines(experiment: Experiment, data: Path | None = None) -> Document:
    """Test figures of the same rounds, steps, batches and clipping without noise: all together, and each node alone."""
    plain = build_run(_without_noise(experiment), data)
    with threads(experiment.machine.threads):
        together, alone = _together(plain), _alone(plain, local_step_size(experiment))
        rows = experiment.metrics.test_rows
        joint, single = (plain.task.evaluate(models, rows) for models in (together, alone))
    if not (np.isfinite(joint.loss).all() and np.isfinite(single.loss).all()):
        raise Diverged("baselines with nan or infinity", "there is nothing to measure", "lower the step size")
    names = plain.topology.names
    return {
        "metric": joint.metric_name,
        "without_noise": vars(NodeSummary.of(joint.metric, joint.average_metric)),
        "alone": {key: value for key, value in vars(NodeSummary.of(single.metric, 0.0)).items() if key != "average"},
        "nodes": [
            {"node": str(at) if names is None else names[at], "alone": float(one), "without_noise": float(other)}
            for at, (one, other) in enumerate(zip(single.metric, joint.metric, strict=True))
        ],
    }


def _without_noise(experiment: Experiment) -> Experiment:
    plain = AlgorithmChoice(name=PLAIN, step_size=local_step_size(experiment))  # type: ignore[call-arg]
    privacy = experiment.privacy.model_copy(update={"epsilon": None, "exact_noise": "auto"})
    return experiment.model_copy(update={"algorithm": plain, "privacy": privacy})


def _together(plain: TrainingRun) -> torch.Tensor:
    *_, (_, last) = plain.play(plain.before())
    return plain.models(last)


def _alone(plain: TrainingRun, step_size: float) -> torch.Tensor:
    """Every node by itself: no message is sent, and nobody is weighed against others."""
    shared, points = plain.gradients, plain.starting_models(np.arange(plain.topology.n))
    own = plain.task.gradients(
        shared.batches, shared.clipping, local_steps=shared.local_steps, step_size=shared.step_size
    )
    for round in range(plain.rounds):
        points = torch.add(points, own(round, points), alpha=-step_size)
    return points
