"""Models that nodes adapt at home: what changes there, what it brings, and that nothing of it is sent."""

import numpy as np
import pytest
import torch

from sottovoce import InputError, NoiseKey, algorithm, load, metropolis, model, partition, simulate, task

DIGITS = load("digits")


@pytest.fixture(scope="module")
def trained():
    """A run over nodes that have some of the classes each."""
    job = task(DIGITS, partition(DIGITS, 6, "dirichlet:0.2"), model("mlp", DIGITS, hidden=(16,)))
    clipped = job.gradients("full", "per-example", 1.0)
    built = algorithm("dp-d-sgd", sigma=0.02, step_size=1.0, optimizer="momentum:0.5")
    run = simulate(built, metropolis("complete:6"), clipped, rounds=40, noise_key=NoiseKey.of_seed(1))
    return job, run.models


def test_steps_at_home_help_uneven_nodes_and_change_named_parts_alone(trained):
    job, models = trained
    own = job.fine_tuned(models, steps=60, step_size=0.5, parts=["2"])
    before, after = (job.model.layout.views(rows) for rows in (models, own))
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])
    shared, at_home = (job.accuracy_at_home(rows) for rows in (models, own))
    assert shared.shape == (6,)
    assert at_home.mean() > shared.mean()
    assert job.accuracy_at_home(job.fine_tuned(models, steps=60, step_size=0.5)).mean() > shared.mean()


def test_accuracy_at_home_is_that_of_the_classes_a_node_has(trained):
    job, models = trained
    with torch.no_grad():
        answers = [job.model.outputs(row, job.test_inputs).argmax(1).numpy() for row in models]
    for node, (rows, answer) in enumerate(zip(job.shards.indices, answers, strict=True)):
        classes = DIGITS.targets[rows]
        each = [np.mean(answer[DIGITS.test_targets == one] == one) for one in classes]
        assert job.accuracy_at_home(models)[node] == pytest.approx(np.mean(each))


def test_a_node_adapts_to_its_own_rows_alone(trained):
    job, models = trained
    together = job.fine_tuned(models, steps=3, step_size=0.1)[2]
    rows = job.shards.indices[2].copy()
    point = models[2].clone()
    for _ in range(3):
        asked = point.clone().requires_grad_()
        outputs = job.model.outputs(asked, job.inputs[rows])
        (slope,) = torch.autograd.grad(job.model.loss.each(outputs, job.targets[rows]).mean(), asked)
        point = point - 0.1 * slope
    torch.testing.assert_close(together, point, atol=1e-5, rtol=1e-4)


def test_gradients_under_autocast_are_refused(trained):
    job, models = trained
    gradient = job.gradients("full", "per-example", 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InputError, match="autocast"):
        gradient(0, models)
    wide = task(DIGITS, job.shards, job.model, dtype=torch.float64).gradients("full", "per-example", 1.0)
    expected = wide(0, models.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(wide(0, models.double()), expected)
