"""Public weights of classes: losses have them, gradients have them before they are clipped, and constants follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from sottovoce import InputError
from sottovoce.learning import models
from sottovoce.learning.datasets import from_arrays
from sottovoce.learning.losses import LOSSES
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.privacy.convexity import smoothness
from sottovoce.run.build import build_accountant
from sottovoce.support.config import TrainingSettings, parse_experiment

WEIGHTS = {"no": 0.5, "yes": 9.0}


def data_of_two(rows=40, norm=None):
    rng = np.random.default_rng(0)
    ill = np.arange(rows) % 4 == 0
    inputs = rng.normal(size=(rows, 5)) + ill[:, None]
    found = from_arrays(inputs, np.where(ill, "yes", "no"), test=(inputs, np.where(ill, "yes", "no")))
    return found if norm is None else found.max_norm(norm)


def job_of(name, data, **settings):
    job = task(data, partition(data, 2), models.model(name, data), dtype=torch.float64, **settings)
    return job, job.start(torch.Generator().manual_seed(1), same=False)


def by_hand(job, points, node, clip):
    """Each example's gradient of its weighted loss by autograd, clipped, and the mean of all."""
    rows = job.shards.indices[node].copy()
    inputs, targets = job.inputs[rows], torch.from_numpy(job.dataset.targets[rows])
    weights = torch.tensor(list(WEIGHTS.values()), dtype=torch.float64)[targets]
    each = []
    for example, target, weight in zip(inputs, targets, weights, strict=True):
        point = points[node].clone().requires_grad_()
        outputs = job.model.outputs(point, example[None])
        if job.model.loss.name == "logistic":
            loss = functional.binary_cross_entropy_with_logits(outputs[:, 0], target[None].double())
        else:
            loss = functional.cross_entropy(outputs, target[None])
        (found,) = torch.autograd.grad(weight * loss, point)
        each.append(found * min(1.0, clip / float(found.norm())))
    return torch.stack(each).mean(0)


@pytest.mark.parametrize("engine", ["stacked", "functional"])
@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp"])
@pytest.mark.parametrize("bound", [0.7, 1e6])
def test_gradients_are_weighted_and_then_clipped(name, engine, bound):
    job, points = job_of(name, data_of_two(), engine=engine, class_weights=WEIGHTS)
    found = job.gradients("full", "per-example", bound)(0, points)
    wanted = torch.stack([by_hand(job, points, node, bound) for node in range(2)])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    if bound == 1e6:
        plain, _ = job_of(name, data_of_two(), engine=engine)
        assert not torch.allclose(plain.gradients("full", "per-example", bound)(0, points), wanted, rtol=0.1)


def test_a_heavy_record_moves_no_more_than_is_claimed():
    """Node 0 has one record, of the heavy class, the model is certain of the other: it is clipped like any other."""
    data = from_arrays(1e3 * np.ones((2, 3)), ["no", "yes"], test=(np.ones((2, 3)), ["no", "yes"]))
    job = task(data, partition(data, 2), models.model("logistic", data), class_weights=WEIGHTS)
    gradients = job.gradients("full", "per-example", 1.0)
    moved = gradients(0, -job.start(torch.Generator()).abs() - 1).norm(dim=1)
    assert float(moved.max()) <= 1.0
    assert gradients.sensitivity() == 2.0
    whole = job.gradients("full", "whole-gradient", 1.0)(0, job.start(torch.Generator()))
    assert float(whole.norm(dim=1).max()) <= 1.0


@pytest.mark.parametrize(("name", "largest"), [("logistic", 9.0), ("softmax", 9 * 2**0.5)])
def test_bounded_clipping_has_the_bound_of_the_heaviest_class(name, largest):
    job, points = job_of(name, data_of_two(norm=2.0), class_weights=WEIGHTS)
    assert job.largest_gradient() == pytest.approx(largest * 5**0.5)
    certain = 1e3 * points
    bounded, free = (job.gradients("full", *clip)(0, certain) for clip in [("bounded",), ("none",)])
    torch.testing.assert_close(bounded, free)


@pytest.mark.parametrize(("name", "model"), [("logistic", "logistic"), ("softmax", "softmax")])
def test_curvature_is_that_of_the_heaviest_class_and_is_reached(name, model):
    row = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    loss = LOSSES["logistic" if name == "logistic" else "cross-entropy"].weighted(list(WEIGHTS.values()))
    outputs = 1 if name == "logistic" else 2

    def of(point):
        return loss.each(row @ point.view(2, outputs), torch.tensor([1]))[0]

    at_even_odds = torch.zeros(2 * outputs, dtype=torch.float64)
    curved = torch.linalg.eigvalsh(torch.autograd.functional.hessian(of, at_even_odds))[-1]
    assert float(curved) == pytest.approx(smoothness(model, 5.0, loss_weight=loss.largest_weight), rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "step_size", "offered"), [(None, 3.0, True), (WEIGHTS, 3.0, False), (WEIGHTS, 0.3, True)]
)
def test_convex_training_asks_for_smaller_steps(weights, step_size, offered):
    named = None if weights is None else {"malignant": 9.0, "benign": 0.5}
    run = parse_experiment({
        "name": "w", "topology": {"graph": "ring:4"}, "data": {"name": "breast-cancer", "unit_norm": True, "rows": 20},
        "model": {"name": "logistic"}, "algorithm": {"name": "dp-d-sgd", "sigma": 1.0, "step_size": step_size},
        "training": {"rounds": 2, "clip": "per-example", "bound": 1.0, "class_weights": named},
    })  # fmt: skip
    assert build_accountant(run).convexity.established == offered


@pytest.mark.parametrize(
    ("weights", "told"),
    [("balanced", "private"), ({"no": 0.0}, "class_weights.no"), ({"yes": float("inf")}, "class_weights.yes")],
)
def test_weights_that_are_not_public_are_refused(weights, told):
    run = {"name": "w", "topology": {"graph": "ring:4"}, "training": {"rounds": 2, "class_weights": weights}}
    with pytest.raises(InputError, match=told):
        parse_experiment(run)


@pytest.mark.parametrize(
    ("clip", "weights", "told"),
    [
        ("per-example", {"no": 1.0, "yes": 9.0}, True), ("per-example", {"no": 0.1, "yes": 1.0}, False),
        ("none", {"no": 1.0, "yes": 9.0}, False), ("per-example", None, False),
    ],
)  # fmt: skip
def test_weights_that_clipping_takes_back_are_told(clip, weights, told):
    """Where gradients reach the bound with a weight of 1, 9 changes nothing, and 1/9 for the other class does."""
    training = TrainingSettings(rounds=1, clip=clip, bound=0.3, class_weights=weights)
    assert (training.undone_by_clipping() is not None) == told
    if told:
        data = data_of_two()
        each = [dict.fromkeys(weights, 1.0), weights, {"no": 1 / 9, "yes": 1.0}]
        jobs = [job_of("logistic", data, class_weights=one) for one in each]
        same, heavy, light = (job.gradients("full", clip, training.bound)(0, 0 * points) for job, points in jobs)
        torch.testing.assert_close(same, heavy)
        assert not torch.allclose(heavy, light, rtol=0.1)


@pytest.mark.parametrize("weights", [{"no": 1.0}, {"no": 1.0, "yes": 2.0, "maybe": 1.0}])
def test_every_class_has_a_weight(weights):
    with pytest.raises(InputError, match="no, yes"):
        job_of("logistic", data_of_two(), class_weights=weights)


def test_values_have_no_classes_to_weigh():
    data = from_arrays(np.eye(4), [0.5, 1.5, 2.5, 3.5], test=(np.eye(4), [0.5, 1.5, 2.5, 3.5]))
    with pytest.raises(InputError, match="no classes"):
        job_of("linear", data, class_weights={"a": 1.0})
