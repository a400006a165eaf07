"""Views of records: what they are, when they are drawn, and that a record moves no more than without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce import InputError, NoiseKey, algorithm, load, metropolis, model, partition, task
from sottovoce.learning.augmentation import parse_views
from sottovoce.learning.lazy_rows import Examples
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import prepare_run

DIGITS = load("digits")
KEY = NoiseKey.of_seed(3)


def job_of(name="mlp", data=DIGITS, **settings):
    return task(data, partition(data, 4), model(name, data, **settings))


def gradients(job, batch="full", clip="per-example", bound=0.3, **more):
    return job.gradients(batch, clip, bound, noise_key=KEY, augment="shift:1,flip", views=3, **more)


def starts(job):
    return job.start(torch.Generator().manual_seed(1))


def test_views_are_shifted_and_mirrored():
    views = parse_views("shift:1,flip", 2, (1, 3, 3))
    image = torch.arange(1.0, 10.0)
    seen = {tuple(views.of(image, torch.tensor([which])).tolist()) for which in range(views.variants)}
    expected = set()
    for y in (0, 1, 2):
        for x in (0, 1, 2):
            moved = np.pad(image.reshape(3, 3).numpy(), 1)[y : y + 3, x : x + 3]
            expected |= {tuple(moved.ravel().tolist()), tuple(moved[:, ::-1].ravel().tolist())}
    assert (views.variants, seen) == (18, expected)


@pytest.mark.parametrize(
    ("name", "settings"), [("mlp", {"hidden": (5,)}), ("cnn", {"filters": (4,), "groups": 2}), ("softmax", {})]
)
def test_gradients_are_means_over_views_and_then_clipped(name, settings):
    job = job_of(name, **settings)
    found, points = gradients(job, "cycle:1x40"), starts(job)
    released = found(2, points)
    for node in range(4):
        rows = torch.from_numpy(found.batches.rows_of(node, 2).copy())
        coins = found.views.coins(KEY, node, 2, len(found.batches.draw(2).rows[node]))[: len(rows)]
        stack = found.views.of(job.inputs[rows], coins)
        total = torch.zeros(job.model.layout.size)
        for views, target in zip(stack.view(len(rows), 3, 64), job.targets[rows], strict=True):
            point = points[node].clone().requires_grad_()
            outputs = job.model.outputs(point, views)
            (each,) = torch.autograd.grad(job.model.loss.each(outputs, target.repeat(3)).mean(), point)
            total += each * min(1.0, 0.3 / float(each.norm()))
        np.testing.assert_allclose(released[node], total / found.batches.divisors[node], atol=2e-6)


def test_without_clipping_too():
    job = job_of(hidden=(5,))
    points = starts(job)
    free, clipped = (gradients(job, clip=clip, bound=bound) for clip, bound in (("none", None), ("per-example", 1e6)))
    np.testing.assert_allclose(free(1, points), clipped(1, points), atol=1e-6)


def test_coins_are_fresh_in_each_round_and_depend_on_no_row_and_no_process():
    job = job_of(hidden=(5,))
    points = starts(job)
    found = gradients(job, "poisson:0.3")
    assert not torch.equal(gradients(job)(0, points), gradients(job)(1, points))
    assert torch.equal(found(5, points), gradients(job, "poisson:0.3")(5, points))
    part = found.hosted(np.array([1, 3]))
    np.testing.assert_allclose(part(5, points[[1, 3]]), found(5, points)[[1, 3]], atol=1e-7)
    other = replace(job, dataset=replace(DIGITS, examples=Examples(DIGITS.examples[:] * 0)))
    a, b = (gradients(one, "poisson:0.3")._examples(5).coins for one in (job, other))
    assert torch.equal(a, b)


@pytest.mark.parametrize("pixel", [3e38, np.nan, np.inf, 1e30, 1e-42])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_hostile_pixels_pass_no_bound(name, pixel):
    rows = DIGITS.examples[:].copy()
    rows[::2], rows[::3, :9] = pixel, -pixel
    job = job_of(name, replace(DIGITS, examples=Examples(rows)))
    for batch in ("full", "cycle:1x350"):
        drawn = gradients(job, batch, bound=0.7)
        found = drawn(0, starts(job))
        most = 0.7 * drawn.batches.largest / drawn.batches.divisors
        assert found.isfinite().all()
        assert (np.linalg.norm(found.numpy().astype(np.longdouble), axis=1) <= most * (1 + 1e-6)).all()


def test_figures_are_those_without_views_but_no_convex_ones():
    unit = DIGITS.unit_norm()
    job = task(unit, partition(unit, 4), model("softmax", unit))
    plain = job.gradients("full", "bounded")
    seen = job.gradients("full", "bounded", augment="flip", views=2)
    assert seen.sensitivities() == plain.sensitivities()
    assert seen.participation() == plain.participation()
    built = algorithm("dp-d-sgd", sigma=1.0, step_size=0.5)
    known = [RunAccountant(prepare_run(built, metropolis("ring:4"), one, rounds=2)) for one in (plain, seen)]
    assert [one.convexity.established for one in known] == [True, False]


@pytest.mark.parametrize(
    "settings", [{"views": 2}, {"augment": "blur:2"}, {"augment": "shift:8"}, {"augment": ","}, {"augment": "shift:-1"}]
)
def test_other_views_are_refused(settings):
    with pytest.raises(InputError, match="augment"):
        job_of().gradients("full", "per-example", 1.0, **settings)


def test_views_are_of_images_and_of_one_step():
    with pytest.raises(InputError, match="images"):
        parse_views("flip", 2, (30,))
    with pytest.raises(InputError, match="local steps"):
        job_of().gradients("full", "whole-gradient", 1.0, local_steps=2, step_size=0.1, augment="flip", views=2)
