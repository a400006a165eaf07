"""Gradient inversion: pictures of a neighbour's batch from its first message. A demonstration, for small models.

All nodes begin at the same public model, so the first message of a victim is its gradient, with its noise. The attacker
looks for inputs whose gradient points the same way: labels from the gradient of the last bias, inputs by least squares.
Only directions count, so clipping does not hinder it; noise does.

    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> from sottovoce.learning.tasks import task
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=4), model("mlp", digits, hidden=(32,)))
    >>> start = job.start(torch.Generator().manual_seed(0))
    >>> one_row = job.gradients("fixed:1")
    >>> found = invert(job, start[0], one_row(0, start)[0], rows=1)
    >>> closest_correlation(found, job.inputs[one_row.batches.rows_of(0, 0)]).round(decimals=2)
    tensor([1.])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.attacks.registry import AttackOptions
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Task
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document
from sottovoce.support.threads import threads

MOST = 8
"""So many rows of a batch can be told apart at most: the gradient of softmax regression on digits holds no more."""

LARGEST_JACOBIAN = 2_000_000
"""Derivatives of all residuals by all pixels, up to which Gauss-Newton steps are taken; L-BFGS needs none of them."""

GAUSS_NEWTON_STEPS, LBFGS_STEPS = 40, 150
UNRELATED = 200
"""So many test rows are compared with what was found, besides the batch."""


def invert(job: Task, start: Tensor, gradient: Tensor, *, rows: int, seed: int = 0) -> Tensor:
    """Inputs, one for each row of the batch, whose mean gradient at `start` has the direction of `gradient`."""
    if job.model.loss.name != "cross-entropy" or not job.inputs.is_floating_point():
        raise InputError(
            f"inversion of {job.model.name}", "inversion works for classifiers of numeric rows", "attack with threshold"
        )
    labels = _labels(job, start, gradient, rows)
    # in double precision and to the last step: rows of one label differ by their predictions alone, which is little
    point, wanted = start.detach().double(), torch.nn.functional.normalize(gradient.detach().double(), dim=0)

    def residual(pixels: Tensor) -> Tensor:
        def mean_loss(model: Tensor) -> Tensor:
            return job.model.loss.each(job.model.outputs(model, pixels.view(rows, -1)), labels).mean()

        return torch.nn.functional.normalize(torch.func.grad(mean_loss)(point), dim=0) - wanted

    generator = torch.Generator().manual_seed(seed)
    first = 0.1 * torch.rand(rows * job.inputs.shape[1], generator=generator, dtype=torch.float64)
    small = len(first) * len(point) <= LARGEST_JACOBIAN
    found = _gauss_newton(residual, first) if small else _lbfgs(residual, first)
    return found.view(rows, -1).to(start.dtype)


def _gauss_newton(residual: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Least squares by damped steps (Levenberg, Marquardt): damping falls after a step that helps, and else grows."""
    identity = torch.eye(len(pixels), dtype=pixels.dtype)
    left, damping = residual(pixels), 1e-4
    for _ in range(GAUSS_NEWTON_STEPS):
        jacobian = _derivatives(residual, pixels)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ left
        while damping < 1e3:
            moved = pixels - torch.linalg.solve(normal + damping * identity, slope)
            if (after := residual(moved)).square().sum() < left.square().sum():
                pixels, left, damping = moved, after, max(damping / 5, 1e-16)
                break
            damping *= 4
        else:
            break
    return pixels


def _derivatives(residual: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Residuals by pixels, a column for each of these, of which there are fewer: backward through the backward pass."""
    backward = torch.func.vjp(residual, pixels)[1]
    forward = torch.func.vjp(lambda weights: backward(weights)[0], torch.zeros_like(residual(pixels)))[1]
    columns: Tensor = torch.func.vmap(lambda direction: forward(direction)[0])(torch.eye(len(pixels)).to(pixels))
    return columns.T


def _lbfgs(residual: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    shown = pixels.clone().requires_grad_(True)
    descent = torch.optim.LBFGS(
        [shown], max_iter=LBFGS_STEPS, history_size=50, tolerance_grad=1e-14, tolerance_change=1e-18,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def mismatch() -> Tensor:
        descent.zero_grad()
        difference = residual(shown).square().sum()
        difference.backward()  # type: ignore[no-untyped-call]
        return difference.detach()

    descent.step(mismatch)  # type: ignore[no-untyped-call]
    return shown.detach()


def _labels(job: Task, start: Tensor, gradient: Tensor, rows: int) -> Tensor:
    """By the bias of the last layer, whose gradient is the mean of predictions less the shares of labels."""
    classes = len(job.dataset.classes)
    biases = [part for name, part in job.model.layout.views(gradient).items() if name.endswith("bias")]
    if not biases or biases[-1].numel() != classes:
        raise InputError(
            f"inversion of {job.model.name}", "labels are read from the last bias", "give the model a bias"
        )
    with torch.no_grad():
        prediction = job.model.outputs(start, torch.zeros(1, job.inputs.shape[1], dtype=start.dtype)).softmax(-1)[0]
    bias = biases[-1].flatten()
    # it comes scaled by step size and clipping: where no row has the label, it is the scale times the prediction
    scale = (bias / prediction)[bias > 0].median() if (bias > 0).any() else torch.ones(())
    left = prediction - bias / scale
    found = []
    for _ in range(rows):
        found.append(int(left.argmax()))
        left[found[-1]] -= 1 / rows
    return torch.tensor(found)


def closest_correlation(found: Tensor, rows: Tensor) -> Tensor:
    """For each row its largest correlation with anything that was found; 1 is the same up to brightness."""
    return _correlations(found, rows).max(dim=1).values


def _correlations(found: Tensor, rows: Tensor) -> Tensor:
    """Of each row with each picture that was found."""
    one, other = (torch.nn.functional.normalize(part - part.mean(1, keepdim=True), dim=1) for part in (rows, found))
    return one @ other.T


@dataclass(frozen=True, eq=False)
class InvertedBatch:
    """A victim's first batch beside what was found, and the correlation of unrelated rows with it, for comparison."""

    victim: int
    batch: Tensor
    found: Tensor
    unrelated_correlation: float

    @property
    def correlations(self) -> list[float]:
        """For each row of the batch its correlation with the closest picture found."""
        return [round(float(one), 4) for one in closest_correlation(self.found, self.batch)]

    @property
    def closest(self) -> Tensor:
        """For each row of the batch the picture found that is most like it."""
        return self.found[_correlations(self.found, self.batch).argmax(dim=1)]

    def document(self) -> Document:
        """As JSON."""
        return {
            "victim": self.victim, "rows": len(self.batch), "likeness": self.correlations,
            "strangers": self.unrelated_correlation,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Inversion:
    """What one attacker found about all nodes that it hears in the first round."""

    attacker: int
    batches: tuple[InvertedBatch, ...]
    picture_shape: tuple[int, ...]

    def document(self) -> Document:
        """As JSON."""
        victims = [batch.document() for batch in self.batches]
        return {"attack": "inversion", "attacker": self.attacker, "victims": victims}

    def table(self) -> list[list[str]]:
        """A row for each victim."""
        heading = [f"node seen by {self.attacker}", "rows", "correlation of its rows", "of unrelated rows"]
        rows = [
            [
                str(batch.victim), str(len(batch.batch)), ", ".join(f"{one:.2f}" for one in batch.correlations),
                f"{batch.unrelated_correlation:.2f}",
            ]
            for batch in self.batches
        ]  # fmt: skip
        return [heading, *rows]

    def notes(self) -> list[str]:
        """What is correlated with what."""
        return ["Each row is correlated with the closest picture that was found: 1 is the same picture."]

    def pictures(self) -> dict[str, list[Tensor]]:
        """The rows of all batches, and below each what was found that is closest to it."""
        return {
            "batches": [row for batch in self.batches for row in batch.batch],
            "found": [row for batch in self.batches for row in batch.closest],
        }


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> Inversion:
    """The attack of one node, node 0 unless given, on all that it hears in the first round of one run."""
    finished_run, attacker = finished_runs[0], options.attacker or 0
    training_run, job = finished_run.training_run, finished_run.training_run.task
    if not 0 <= attacker < training_run.topology.n:
        raise InputError(f"attacker {attacker}", f"nodes are 0..{training_run.topology.n - 1}", "choose one of them")
    if not training_run.same_start:
        raise InputError(
            "nodes with different starting points",
            "inversion needs a public starting point",
            "attack a run with training.same_start=true",
        )
    if not finished_run.has_key and training_run.gradients.batches.sampling(0) is not None:
        raise InputError(
            f"{finished_run.folder}: no noise.key",
            "it says which rows were in the first batch, with which results are compared",
            "put it back, or attack a run on full or cyclic batches",
        )  # fmt: skip
    order = torch.randperm(len(job.test_inputs), generator=torch.Generator().manual_seed(options.seed))
    unrelated = job.test_inputs[order[:UNRELATED]]
    delivery, start = finished_run.messages.at(0), training_run.starting_models(np.array([0]))[0]
    batches = []
    for place in np.flatnonzero((delivery.receiver == attacker) & (delivery.sender >= 0)):
        victim, model = int(delivery.sender[place]), torch.from_numpy(delivery.rows[delivery.row[place]])
        batches.append(
            _invert_batch(training_run, victim, start, start - model.to(start.dtype), unrelated, options.seed)
        )
    if not batches:
        raise InputError(
            f"attacker {attacker}: no neighbour's model of the first round", "there is nothing to invert",
            "record it, or choose another",
        )  # fmt: skip
    return Inversion(attacker, tuple(batches), job.dataset.shape if job.model.features is None else unrelated.shape[1:])


def _invert_batch(
    training_run: TrainingRun, victim: int, start: Tensor, step: Tensor, unrelated: Tensor, seed: int
) -> InvertedBatch:
    """The first batch of a victim from the step that its first message took away from the start."""
    job = training_run.task
    batch = job.inputs[torch.tensor(training_run.gradients.batches.rows_of(victim, 0))]
    if not 0 < len(batch) <= MOST:
        raise InputError(
            f"a batch of {len(batch)} rows at node {victim}", f"inversion can separate from 1 to {MOST} rows",
            "attack a run with training.batch=fixed:1",
        )  # fmt: skip
    if not step.any():
        raise InputError(
            f"the first message of node {victim} is the starting point",
            "inversion needs a message that contains a gradient",
            f"attack another algorithm than {training_run.algorithm.name}",
        )  # fmt: skip
    with threads():
        found = invert(job, start, step, rows=len(batch), seed=seed)
    return InvertedBatch(victim, batch, found, round(float(closest_correlation(found, unrelated).mean()), 4))
