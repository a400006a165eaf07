"""Gradient inversion: pictures of a neighbour's batch from its first message. A demonstration, for small models.

All nodes begin at the same public model, so the first message of a victim is its gradient, with its noise. The attacker
looks for inputs whose gradient points the same way: labels from the gradient of the last bias, inputs by descent. Only
directions count, so clipping does not hinder it; noise does.

    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> from sottovoce.learning.tasks import task
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=4), model("mlp", digits, hidden=(32,)))
    >>> start = job.start(torch.Generator().manual_seed(0))
    >>> one_row = job.gradients("fixed:1", seed=0)
    >>> found = invert(job, start[0], one_row(0, start)[0], rows=1)
    >>> likeness(found, job.inputs[one_row.batches.rows_of(0, 0)]).round(decimals=2)
    tensor([1.])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sottovoce.config import Document
from sottovoce.core.threads import threads
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Task
from sottovoce.run.finished_run import FinishedRun

MOST = 4
"""So many rows of a batch can be told apart at most."""

STEPS = 150
STRANGERS = 200


def invert(job: Task, start: Tensor, gradient: Tensor, *, rows: int, steps: int = STEPS, seed: int = 0) -> Tensor:
    """Inputs, one for each row of the batch, whose mean gradient at `start` has the direction of `gradient`."""
    if job.model.loss.name != "cross-entropy" or not job.inputs.is_floating_point():
        raise InputError(f"inversion of {job.model.name}", "it is for classifiers of numbers", "attack with threshold")
    labels = _labels(job, start, gradient, rows)
    point = start.detach().clone().requires_grad_(True)
    wanted = torch.nn.functional.normalize(gradient.detach(), dim=0)
    generator = torch.Generator().manual_seed(seed)
    shown = 0.1 * torch.rand(rows, job.inputs.shape[1], generator=generator, dtype=start.dtype)
    shown = shown.requires_grad_(True)
    descent = torch.optim.LBFGS([shown], max_iter=steps, history_size=50, line_search_fn="strong_wolfe")

    def away() -> Tensor:
        descent.zero_grad()
        loss = job.model.loss.each(job.model.outputs(point, shown), labels).mean()
        (made,) = torch.autograd.grad(loss, point, create_graph=True)
        apart = 1 - torch.nn.functional.normalize(made, dim=0) @ wanted
        apart.backward()  # type: ignore[no-untyped-call]
        return apart.detach()

    descent.step(away)  # type: ignore[no-untyped-call]
    return shown.detach()


def _labels(job: Task, start: Tensor, gradient: Tensor, rows: int) -> Tensor:
    """By the bias of the last layer, whose gradient is the mean of predictions less the shares of labels."""
    classes = len(job.dataset.classes)
    biases = [part for name, part in job.model.layout.views(gradient).items() if name.endswith("bias")]
    if not biases or biases[-1].numel() != classes:
        raise InputError(f"inversion of {job.model.name}", "labels are read from the last bias", "give it a bias")
    with torch.no_grad():
        said = job.model.outputs(start, torch.zeros(1, job.inputs.shape[1], dtype=start.dtype)).softmax(-1)[0]
    bias = biases[-1].flatten()
    # it comes scaled by step size and clipping: where no row has the label, it is the scale times the prediction
    scale = (bias / said)[bias > 0].median() if (bias > 0).any() else torch.ones(())
    left = said - bias / scale
    found = []
    for _ in range(rows):
        found.append(int(left.argmax()))
        left[found[-1]] -= 1 / rows
    return torch.tensor(found)


def likeness(found: Tensor, rows: Tensor) -> Tensor:
    """For each row its largest correlation with anything that was found; 1 is the same up to brightness."""
    one, other = (torch.nn.functional.normalize(part - part.mean(1, keepdim=True), dim=1) for part in (rows, found))
    return (one @ other.T).max(dim=1).values


def inverted(
    finished_run: FinishedRun, attacker: int, *, seed: int = 0
) -> tuple[Document, Sequence[tuple[Tensor, Tensor]]]:
    """The attack of one node on all whom it hears in the first round: what it found, and pictures beside the truth."""
    training_run, job = finished_run.training_run, finished_run.training_run.task
    if not 0 <= attacker < training_run.topology.n:
        raise InputError(f"attacker {attacker}", f"nodes are 0..{training_run.topology.n - 1}", "choose one of them")
    if not training_run.same_start:
        raise InputError(
            "nodes that begin apart", "inversion needs a public beginning", "attack a run with training.same_start=true"
        )
    got, start = finished_run.messages.at(0), training_run.starting_models(np.array([0]))[0]
    strangers = job.test_inputs[torch.randperm(len(job.test_inputs), generator=_seeded(seed))[:STRANGERS]]
    victims, pictures = [], []
    for place in np.flatnonzero((got.receiver == attacker) & (got.sender >= 0)):
        victim = int(got.sender[place])
        truth = job.inputs[torch.tensor(training_run.gradients.batches.rows_of(victim, 0))]
        _check(len(truth), victim)
        moved = start - torch.from_numpy(got.rows[got.row[place]]).to(start.dtype)
        if not moved.any():
            raise InputError(
                f"the first message of node {victim} is the starting point", "inversion needs a gradient in it",
                f"attack another algorithm than {training_run.algorithm.name}",
            )  # fmt: skip
        with threads():
            found = invert(job, start, moved, rows=len(truth), seed=seed)
        alike = likeness(found, truth)
        victims.append({
            "victim": victim, "rows": len(truth), "likeness": [round(float(one), 4) for one in alike],
            "strangers": round(float(likeness(found, strangers).mean()), 4),
        })  # fmt: skip
        pictures.append((truth, found))
    if not victims:
        raise InputError(
            f"attacker {attacker}: no neighbour's model of the first round", "there is nothing to invert",
            "record it, or choose another",
        )  # fmt: skip
    return {"attack": "inversion", "attacker": attacker, "victims": victims}, pictures


def _check(rows: int, victim: int) -> None:
    if not 0 < rows <= MOST:
        raise InputError(
            f"a batch of {rows} rows at node {victim}", f"from 1 to {MOST} can be told apart",
            "attack a run with training.batch=fixed:1",
        )  # fmt: skip


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
