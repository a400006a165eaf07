"""Clipping: bounds that hold in float32, and sensitivities that are reached and never passed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sottovoce import InputError
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning import models
from sottovoce.learning.batches import parse_batches
from sottovoce.learning.clipping import clip_rows, norms, parse_clipping, sum_clipped
from sottovoce.learning.datasets import from_arrays
from sottovoce.learning.engines import Stack, engine_for
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.support.threads import threads


@pytest.fixture(autouse=True)
def _one_thread():
    with threads():
        yield


def exact_norms(rows):
    return np.linalg.norm(rows.numpy().astype(np.longdouble), axis=-1)


SCALES = [10.0**power for power in range(-30, 31, 4)]


# --- the bound -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [1e-6, 1.0, 3e4])
def test_no_clipped_gradient_is_longer_than_the_bound(bound, dtype):
    draw = torch.Generator().manual_seed(0)
    for shape in ((64, 3), (40, 1000), (2, 300_000)):
        near = bound * (1 + 1e-6 * torch.randn(shape[0], 1, generator=draw, dtype=torch.float64))
        unit = torch.randn(shape, generator=draw, dtype=torch.float64)
        unit /= unit.norm(dim=-1, keepdim=True)
        flat = torch.full(shape, shape[1] ** -0.5, dtype=torch.float64)
        for rows in (*(unit * scale for scale in SCALES), unit * near, flat * near, flat * 1e30):
            clipped = clip_rows(rows.to(dtype), parse_clipping("whole-gradient", bound))
            assert exact_norms(clipped.rows).max() <= bound
            assert clipped.nonfinite == 0


@pytest.mark.parametrize("scale", SCALES)
def test_clipping_keeps_directions_and_short_gradients(scale):
    rows = scale * torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    clipped = clip_rows(rows, parse_clipping("whole-gradient", 1.0)).rows
    lengths = exact_norms(rows)
    kept = exact_norms(clipped) / np.minimum(lengths, 1.0)
    assert (kept > 1 - 1e-5).all()
    if lengths.max() < 0.99:
        assert torch.equal(clipped, rows)


def test_mixed_magnitudes_and_subnormal_factors_stay_below_the_bound():
    rows = torch.tensor([[1e30, 1e-30, 1.0], [3e38, 3e38, 3e38], [1e-42, 1e-44, 0.0], [0.0, 0.0, 0.0]])
    for bound in (1e-30, 1e-8, 1.0, 1e30):
        assert exact_norms(clip_rows(rows, parse_clipping("whole-gradient", bound)).rows).max() <= bound


def test_norms_are_right_where_torch_falls_short():
    rows = torch.full((1, 3_000_000), 0.1)
    assert float(norms(rows)[0]) == pytest.approx(exact_norms(rows)[0], rel=1e-6)
    huge = torch.full((1, 4), 1e200, dtype=torch.float64)
    assert float(norms(huge)[0]) == pytest.approx(2e200)
    assert norms(torch.zeros(2, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e6, 1e14])
@pytest.mark.parametrize("name", ["mlp", "cnn", "factors"])
def test_the_bound_holds_for_what_engines_release(name, scale):
    """One example a node, so that what is released is one clipped gradient."""
    draw = torch.Generator().manual_seed(0)
    if name == "factors":
        net = models.matrix_factorisation(5, 5, rank=4)
        inputs = torch.randint(5, (6, 1, 2), generator=draw).float()
        targets = scale * torch.randn(6, 1, generator=draw)
    else:
        net = models.mlp((64, 8, 3)) if name == "mlp" else models.cnn((1, 8, 8), 3)
        inputs = scale * torch.randn(6, 1, 64, generator=draw)
        targets = torch.randint(3, (6, 1), generator=draw)
    stack, points = Stack(inputs, targets, torch.ones(6, 1)), net.start(6, draw, same=False)
    for engine in {engine_for(net).name, "functional"}:
        for bound in (1e-3, 1.0):
            clipped = engine_for(net, engine).clipped(points, stack, parse_clipping("per-example", bound))
            assert exact_norms(clipped.rows).max() <= bound
            assert clipped.rows.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["stacked", "functional"])
@pytest.mark.parametrize("name", ["softmax", "logistic"])
def test_a_bound_from_the_declared_norm_is_reached_and_never_acts(name, engine, dtype):
    """Rows of the largest norm and models that are certain of the wrong class: all that such rows can give."""
    rng = np.random.default_rng(0)
    labels, classes = rng.integers(0, 2, 40), 4 if name == "softmax" else 2
    labels[:classes] = range(classes)
    rows = 100 * rng.standard_normal((40, 6))
    data = from_arrays(rows, labels, test=(rows, labels)).max_norm(3.0)
    job = task(data, partition(data, 4), models.model(name, data), engine=engine, dtype=dtype)
    gradients = job.gradients("full", "bounded")
    inputs, targets = job.inputs.unsqueeze(1), job.targets.unsqueeze(1)
    points = torch.cat([1e3 * job.start(torch.Generator().manual_seed(seed), nodes=range(10)) for seed in range(4)])
    stack = Stack(inputs, targets, torch.ones(40, 1, dtype=dtype))
    kept = job.engine.clipped(points, stack, gradients.clipping).rows
    free = job.engine.clipped(points, stack, parse_clipping("per-example", 1e9)).rows
    assert torch.equal(kept, free)
    largest = math.sqrt((2 if name == "softmax" else 1) * (3.0**2 + 1))
    assert gradients.clipping.bound == pytest.approx(largest, rel=1e-4)
    assert gradients.clipping.bound > largest
    assert exact_norms(free).max() == pytest.approx(largest, rel=1e-3)
    assert gradients.sensitivity() == pytest.approx(2 * gradients.clipping.bound / 10)
    assert job.gradients("poisson:0.5", "bounded").sampling(0) is not None


def test_bounded_clipping_needs_what_its_bound_follows_from():
    plain = from_arrays(np.eye(10), [0, 1] * 5)
    values = from_arrays(np.eye(10), np.linspace(0, 1, 10)).max_norm(1.0)
    clipped = plain.max_norm(1.0)
    for data, name, bound, reason in (
        (plain, "softmax", None, r"set data\.unit_norm = true, or data\.max_norm"),
        (clipped, "mlp", None, "linear models only"),
        (values, "linear", None, "grows with the error"),
        (clipped, "softmax", 1.0, "leave the bound out"),
    ):
        job = task(data, partition(data, 2), models.model(name, data))
        with pytest.raises(InputError, match=reason):
            job.gradients("full", "bounded", bound)
    with pytest.raises(InputError, match="2 local steps with bounded clipping"):
        job.gradients("full", "bounded", local_steps=2, step_size=0.1)
    with pytest.raises(InputError, match=r"use task\.gradients"):
        parse_clipping("bounded")


# --- gradients that are not finite ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "functional", "factors"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
def test_gradients_that_are_not_finite_count_as_zero(name, poison):
    draw = torch.Generator().manual_seed(0)
    net = {"mlp": models.mlp((64, 8, 3)), "functional": models.mlp((64, 8, 3)), "cnn": models.cnn((1, 8, 8), 3),
           "factors": models.matrix_factorisation(5, 5, rank=4)}[name]  # fmt: skip
    engine = engine_for(net, "functional" if name == "functional" else None)
    targets = torch.randint(3, (2, 4), generator=draw)
    inputs = torch.randn(2, 4, 64, generator=draw)
    if name == "factors":
        inputs, targets = torch.randint(5, (2, 4, 2), generator=draw).float(), targets.float()
    points, weights = net.start(2, draw), torch.full((2, 4), 0.25)
    weights[1, 3] = 0
    clip = parse_clipping("per-example", 1.0)
    without = weights.clone()
    without[0, 2] = 0
    wanted = engine.clipped(points, Stack(inputs, targets, without), clip)
    if name == "factors":
        targets = targets.clone()
        targets[0, 2] = targets[1, 3] = poison if poison > 1e38 else float("nan")
    else:
        inputs[0, 2] = inputs[1, 3] = poison
    found = engine.clipped(points, Stack(inputs, targets, weights), clip)
    assert found.rows.isfinite().all()
    if poison == 1e38 and name != "factors":  # finite or not, depending on the net: at most one clipped gradient
        assert float((found.rows - wanted.rows).norm(dim=1).max()) <= 0.25
    else:
        assert (found.nonfinite, wanted.nonfinite) == (1, 0)  # padding is not counted
        torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-6, atol=1e-7)


def test_a_whole_gradient_that_is_not_finite_becomes_zero():
    rows = torch.tensor([[1.0, float("nan")], [3.0, 4.0], [float("-inf"), 0.0]])
    found = clip_rows(rows, parse_clipping("whole-gradient", 1.0))
    assert found.nonfinite == 2
    np.testing.assert_allclose(found.rows, [[0, 0], [0.6, 0.8], [0, 0]], rtol=1e-5)


# --- sensitivity ---------------------------------------------------------------------------------------------------


def released(gradients, plan, round, clip):
    """What each node releases from these gradients of its records, by the batches of a round."""
    drawn = plan.draw(round)
    weights = torch.from_numpy(drawn.present / plan.divisors[:, None])
    chosen = gradients[torch.from_numpy(drawn.rows)]
    if clip.kind == "per-example":
        return sum_clipped(chosen, weights, clip).rows
    return clip_rows((chosen * weights.unsqueeze(-1)).sum(1), clip).rows


SPECS = ("full", "cycle:3x4", "poisson:0.3", "fixed:5", "allocate:3x4")


@pytest.mark.parametrize("kind", ["per-example", "whole-gradient"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("adjacency", ["record", "user"])
@pytest.mark.parametrize("change", ["replace", "zero-out"])
def test_sensitivity_is_reached_and_never_passed(kind, spec, adjacency, change):
    """Brute force: random and worst changes of one record, or of all of node 1's, in every round."""
    plan, clip = parse_batches(spec, [9, 14], key=NoiseKey.of_seed(2)), parse_clipping(kind, 0.7)
    claimed = clip.sensitivities(plan, adjacency, change)
    changed = torch.arange(9, 23) if adjacency == "user" else torch.tensor([12])
    turned = 0.0 if change == "zero-out" else -1.0
    worst_before = torch.tensor([[-10.0, 0.0, 0.0]], dtype=torch.float64).repeat(23, 1)
    worst_before[changed] = torch.tensor([1e6, 0.0, 0.0], dtype=torch.float64)
    worst = 0.0
    for round in range(12):
        drawn = 2 * torch.randn(23, 3, generator=torch.Generator().manual_seed(round), dtype=torch.float64)
        for before in (drawn, worst_before):
            after = before.clone()
            after[changed] *= turned
            moved = (released(before, plan, round, clip) - released(after, plan, round, clip)).norm(dim=1)
            assert moved[0] == 0
            worst = max(worst, float(moved[1]))
    share = 1.0
    rarely_all = spec in ("poisson:0.3", "allocate:3x4")
    if rarely_all and adjacency == "user" and kind == "per-example":
        share = max(plan.draw(round).present[1].sum() for round in range(12)) / plan.largest[1]
    assert share * claimed[1] * (1 - 1e-9) <= worst <= claimed[1]
    assert clip.sensitivity(plan, adjacency, change) == claimed.max()


def test_sensitivities_as_stated():
    clip, whole = parse_clipping("per-example", 2.0), parse_clipping("whole-gradient", 2.0)
    plan = parse_batches("full", [10, 20])
    assert clip.sensitivities(plan).tolist() == [0.4, 0.2]
    assert clip.sensitivities(plan, "record", "zero-out").tolist() == [0.2, 0.1]
    assert clip.sensitivity(parse_batches("poisson:0.1", [50])) == pytest.approx(0.8)
    assert clip.sensitivity(parse_batches("poisson:0.1", [50]), "user", "zero-out") == pytest.approx(20.0)
    assert [whole.sensitivity(plan, "user", change) for change in ("replace", "zero-out")] == [4.0, 2.0]
    assert whole.sensitivity(plan, "record", "zero-out") == 4.0
    assert parse_clipping("none").sensitivity(plan) == np.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hard", 1.0), "clipping 'hard'; known: none, per-example, bounded, whole-gradient"),
        (("per-example", None), "clipping bound None"),
        (("per-example", 0.0), "clipping bound 0.0"),
        (("per-example", float("nan")), "clipping bound nan"),
        (("whole-gradient", float("inf")), "clipping bound inf"),
        (("none", 1.0), "clipping none with bound 1.0"),
    ],
)
def test_wrong_clipping_is_refused(words, message):
    with pytest.raises(InputError, match=message):
        parse_clipping(*words)


def test_wrong_adjacency_is_refused():
    for words, message in ((("people",), "adjacency 'people'"), (("record", "remove"), "change 'remove'")):
        with pytest.raises(InputError, match=message):
            parse_clipping("per-example", 1.0).sensitivity(parse_batches("full", [3]), *words)


@pytest.mark.parametrize("weight", [1.0, 1e-3, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_with_the_weight_of_a_batch_do_not_lift_a_factor_that_is_not_exact(dtype, weight):
    """A divisor far below one makes a normal number of a denormal factor, rounding and all."""
    powers = range(30, 46) if dtype is torch.float32 else range(300, 309)
    lengths = torch.tensor([10.0**power for power in powers], dtype=torch.float64)
    weights = torch.full((len(lengths),), 1 / weight, dtype=dtype)
    found = parse_clipping("per-example", 1.0).factors(lengths, 0.0, weights)
    assert (found.factor.double() * lengths <= weights.double()).all()
