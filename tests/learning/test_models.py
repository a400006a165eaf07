"""Models and engines: every engine gives the same gradients, and one node alone is plain SGD."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce import InputError, NoiseKey, algorithm, metropolis, train
from sottovoce.learning import models
from sottovoce.learning.clipping import parse_clipping
from sottovoce.learning.datasets import Dataset, load
from sottovoce.learning.engines import Stack, engine_for
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.model_checks import examples_interact
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.support.threads import threads


@pytest.fixture(autouse=True)
def _one_thread():
    with threads():
        yield


class Attention(nn.Module):
    """A module that no engine knows: each row is read as four words that attend to each other."""

    def __init__(self):
        super().__init__()
        self.mixed = nn.Parameter(torch.full((3,), 0.3))
        self.norm, self.out = nn.LayerNorm(3), nn.Linear(12, 4)

    def forward(self, rows):
        words = self.norm(rows.view(-1, 4, 3) * self.mixed)
        return self.out(((words @ words.transpose(1, 2)).softmax(-1) @ words).flatten(1))


def images(channels):
    return lambda: models.wrap_module(
        nn.Sequential(
            nn.Conv2d(channels, 4, 3, stride=2, padding=1, dilation=1),
            nn.Tanh(),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(4 * 4 * 4, 3),
        ),
        "cross-entropy",
        shape=(channels, 8, 8),
    )


CASES = {
    "linear": (lambda: models.linear(5), (5,), 0),
    "logistic": (lambda: models.logistic(5, bias=False), (5,), 2),
    "softmax": (lambda: models.softmax(5, 4), (5,), 4),
    "mlp 8-64-1": (lambda: models.mlp((8, 64, 1), loss="logistic"), (8,), 2),
    "mlp tanh": (lambda: models.mlp((6, 7, 5, 3), activation="tanh"), (6,), 3),
    "mlp sigmoid, squared": (lambda: models.mlp((6, 7, 1), activation="sigmoid", loss="squared"), (6,), 0),
    "cnn": (lambda: models.cnn((1, 8, 8), 10), (1, 8, 8), 10),
    "gn-resnet18": (lambda: models.gn_resnet18((3, 8, 8), 3, width=4, groups=2), (3, 8, 8), 3),
    "matrix-factorisation": (lambda: models.matrix_factorisation(4, 3, rank=5), (2,), 0),
    "instance norm": (images(2), (2, 8, 8), 3),
    "attention": (lambda: models.wrap_module(Attention(), "cross-entropy"), (12,), 4),
}
ENGINES = {"cnn": "ghost", "gn-resnet18": "ghost", "instance norm": "functional", "attention": "functional"}


def example(name, dtype, nodes=3, examples=5, seed=0):
    """A model, points that differ by node, and a ragged batch for each."""
    build, shape, classes = CASES[name]
    net, draw = build(), torch.Generator().manual_seed(seed)
    points = net.start(nodes, draw, same=False, dtype=dtype)
    points += 0.3 * torch.randn(points.shape, generator=draw, dtype=dtype)
    inputs = torch.randn(nodes, examples, int(np.prod(shape)), generator=draw, dtype=dtype)
    if name == "matrix-factorisation":  # few users and items, so that they repeat within a batch
        sides = [torch.randint(count, (nodes, examples), generator=draw) for count in (4, 3)]
        inputs = torch.stack(sides, dim=-1).to(dtype)
    targets = torch.randint(max(classes, 2), (nodes, examples), generator=draw)
    present = torch.ones(nodes, examples, dtype=dtype)
    present[0, 3:] = 0
    targets = targets if net.loss.name == "cross-entropy" else targets.to(dtype)
    return net, points, Stack(inputs, targets, present / torch.tensor([[3.0], [5.0], [7.0]], dtype=dtype)[:nodes])


def naive(net, points, stack, bound):
    """Autograd on a module of its own, one example after the other; clipped in float64 numpy."""
    rows = np.zeros(points.shape)
    for node, row in enumerate(points):
        nn.utils.vector_to_parameters(row, [p for p in net.module.parameters() if p.requires_grad])
        for features, target, weight in zip(*(part[node] for part in stack), strict=True):
            net.module.zero_grad()
            shaped = features.unsqueeze(0) if net.shape is None else features.view(1, *net.shape)
            net.loss.each(net.module(shaped), target.unsqueeze(0)).sum().backward()
            found = torch.cat([p.grad.flatten() for p in net.module.parameters()]).double().numpy()
            rows[node] += float(weight) * found * min(1.0, bound / max(np.linalg.norm(found), 1e-300))
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_equals_a_naive_loop_over_examples(name, dtype):
    net, points, stack = example(name, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    fastest = engine_for(net).name
    assert fastest == ENGINES.get(name, "stacked")
    net.module.to(dtype)
    for bound in (np.inf, 1.0, 0.01):
        wanted = naive(net, points, stack, bound)
        for engine in {fastest, "functional"}:
            built = engine_for(net, engine)
            if bound == np.inf:
                found = built.total(points, stack)
                per_example = built.clipped(points, stack, parse_clipping("per-example", 1e9))
                np.testing.assert_allclose(per_example.rows, wanted, rtol=tolerance, atol=tolerance, err_msg=engine)
            else:
                clipped = built.clipped(points, stack, parse_clipping("per-example", bound))
                found = clipped.rows
                assert clipped.nonfinite == 0
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * min(bound, 1), err_msg=engine)


@pytest.mark.parametrize("name", CASES)
def test_stacked_equals_one_by_one(name):
    net, points, stack = example(name, torch.float64)
    engine, clip = engine_for(net), parse_clipping("per-example", 0.5)
    together, outputs = engine.clipped(points, stack, clip).rows, engine.outputs(points, stack.inputs)
    for node in range(3):
        alone = Stack(*(part[node : node + 1] for part in stack))
        one = points[node : node + 1]
        torch.testing.assert_close(engine.clipped(one, alone, clip).rows[0], together[node], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(net.outputs(points[node], stack.inputs[node]), outputs[node], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_chunks_change_nothing(name, monkeypatch):
    net, points, stack = example(name, torch.float64)
    clip = parse_clipping("per-example", 0.5)
    for engine in {engine_for(net).name, "functional"}:
        built = engine_for(net, engine)
        whole = built.clipped(points, stack, clip).rows, built.total(points, stack)
        with monkeypatch.context() as small:
            small.setattr("sottovoce.learning.engines.VALUES", 2 * net.layout.size)
            parts = built.clipped(points, stack, clip).rows, built.total(points, stack)
        torch.testing.assert_close(whole, parts, rtol=1e-10, atol=1e-12)


def test_layers_used_twice_are_not_taken_for_a_chain():
    layer, act = nn.Linear(4, 4), nn.ReLU()
    assert engine_for(models.wrap_module(nn.Sequential(layer, act, layer), "squared")).name == "functional"
    shared = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 1))
    assert engine_for(models.wrap_module(shared, "squared")).name == "stacked"
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 1))
    built = models.wrap_module(frozen, "squared")
    assert (engine_for(built).name, built.layout.size) == ("ghost", 5)


# --- plain SGD -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "rounds", "tolerance"), [(torch.float32, 6, 1e-6), (torch.float64, 20, 1e-12)])
@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn"])
def test_one_node_without_gossip_and_noise_is_plain_sgd(name, dtype, rounds, tolerance):
    digits = load("digits")
    job = task(digits, partition(digits, 1, rows=60), models.model(name, digits), dtype=dtype)
    x0 = job.start(torch.Generator().manual_seed(3))
    gradient = job.gradients("cycle:5x4")
    end = train(algorithm("d-psgd", step_size=0.1), metropolis("path:1"), x0, gradient, rounds=rounds)

    module = job.model.module.to(dtype)
    nn.utils.vector_to_parameters(x0[0].clone(), module.parameters())
    optimiser, rows = torch.optim.SGD(module.parameters(), lr=0.1), job.shards.indices[0].reshape(4, 15).copy()
    for round in range(rounds):
        batch = rows[round % 4]
        optimiser.zero_grad()
        inputs = job.inputs[batch] if job.model.shape is None else job.inputs[batch].view(-1, *job.model.shape)
        nn.functional.cross_entropy(module(inputs), job.targets[batch]).backward()
        optimiser.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert not torch.allclose(expected, x0[0], atol=1e-2)
    torch.testing.assert_close(end[0], expected, rtol=tolerance, atol=tolerance)


def test_local_steps_are_steps_of_sgd(monkeypatch):
    digits = load("digits")
    job = task(digits, partition(digits, 3, rows=40), models.model("mlp", digits, hidden=(8,)), dtype=torch.float64)
    x = job.start(torch.Generator().manual_seed(0), same=False)
    many = job.gradients("cycle:4x5", local_steps=4, step_size=0.2)
    one = job.gradients("cycle:4x5")
    stepped = x
    for step in range(4, 8):
        stepped = stepped - 0.2 * one(step, stepped)
    torch.testing.assert_close(x - 0.2 * many(1, x), stepped, rtol=1e-12, atol=1e-12)
    with monkeypatch.context() as small:
        small.setattr("sottovoce.learning.tasks.CACHED", 1)
        torch.testing.assert_close(x - 0.2 * many(1, x), stepped, rtol=1e-12, atol=1e-12)
    assert str(many.participation()) == "every"
    assert str(job.gradients("cycle:4x8", local_steps=4, step_size=0.2).participation()) == "4x2"
    assert str(job.gradients("cycle:4x6", local_steps=4, step_size=0.2).participation()) == "every"
    with pytest.raises(InputError, match="per-example clipping; a record moves the points"):
        job.gradients("full", "per-example", 1.0, local_steps=2, step_size=0.1)
    with pytest.raises(InputError, match="several local steps need a step size"):
        job.gradients("full", local_steps=2)
    with pytest.raises(InputError, match="the cycle ends after 20"):
        many.check(6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(("clip", "steps"), [("none", 3), ("whole-gradient", 3), ("per-example", 1)])
def test_blocks_of_nodes_and_threads_change_nothing(name, clip, steps, monkeypatch):
    """Bit for bit, whatever is taken at once; gradients that are not finite are counted once.

    Convolutions are not divided among threads by nodes, but by torch, which adds up in another order then.
    """
    digits = load("digits")
    job = task(digits, partition(digits, 7, rows=70), models.model(name, digits))
    x = job.start(torch.Generator().manual_seed(0), same=False)
    x[2] = torch.inf
    words = {"local_steps": steps, "step_size": 0.1} if steps > 1 else {}
    bound = () if clip == "none" else (0.5,)
    found, nonfinite = [], []
    for count, at_once in ((1, 1 << 22), (1, 1), (2, 1), (3, 2 * 3 * x.shape[1] + 5000)):
        for limit in ("CACHED", "GATHERED"):
            monkeypatch.setattr(f"sottovoce.learning.tasks.{limit}", at_once)
        gradient = job.gradients("poisson:0.4", clip, *bound, noise_key=NoiseKey.of_seed(1), **words)
        with threads(count if job.engine.threaded else 1):
            found.append(gradient(2, x).nan_to_num(nan=7.0))
        nonfinite.append(gradient.nonfinite)
    assert all(torch.equal(found[0], other) for other in found)
    assert len(set(nonfinite)) == 1
    assert (nonfinite[0] > 0) == (clip != "none")


# --- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_evaluation_in_chunks_equals_one_by_one(name, monkeypatch):
    digits = load("digits")
    job = task(digits, partition(digits, 3), models.model(name, digits), dtype=torch.float64)
    points = job.start(torch.Generator().manual_seed(0), same=False)
    found = job.evaluate(points)
    monkeypatch.setattr("sottovoce.learning.engines.VALUES", 64 * 64 * 50)
    again = job.evaluate(points)
    np.testing.assert_allclose(again.loss, found.loss, rtol=1e-12)
    for row, loss, metric in zip(
        [*points, points.mean(0)], [*found.loss, found.average_loss], [*found.metric, found.average_metric], strict=True
    ):
        outputs = job.model.outputs(row, job.test_inputs)
        assert loss == pytest.approx(float(nn.functional.cross_entropy(outputs, job.test_targets)))
        assert metric == pytest.approx(float((outputs.argmax(1) == job.test_targets).double().mean()))
    assert found.metric_name == "accuracy"
    assert job.evaluate(points, rows=10).loss.shape == (3,)


def ratings():
    """A few made-up ratings of 6 users."""
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 6, 80), rng.integers(0, 9, 80)], axis=1).astype(np.float32)
    stars = rng.integers(1, 6, 80).astype(np.float32)
    return Dataset(
        name="stars", kind="ratings", examples=Examples(pairs[:60]), targets=stars[:60], test_inputs=pairs[60:],
        test_targets=stars[60:], shape=(2,), classes=(), groups=None, test_groups=None, entities=(6, 9),
        licence="", source="", notes=(),
    )  # fmt: skip


def test_ratings_are_learned_and_reported_as_rmse():
    data = ratings()
    job = task(data, partition(data, 1), models.model("matrix-factorisation", data, rank=3))
    x = job.start(torch.Generator().manual_seed(0))
    before = job.evaluate(x)
    assert before.metric_name == "rmse"
    np.testing.assert_allclose(before.metric, np.sqrt(2 * before.loss), rtol=1e-6)
    gradient = job.gradients("full")
    first = job.engine.outputs(x, job.inputs[None]).squeeze(-1) - job.targets
    for round in range(200):
        x = x - 1.0 * gradient(round, x)
    last = job.engine.outputs(x, job.inputs[None]).squeeze(-1) - job.targets
    assert last.square().mean() < 0.5 * first.square().mean()


def test_features_carry_a_one_for_the_bias():
    cancer = load("breast-cancer").max_norm(2.0)
    shards = partition(cancer, 3)
    assert task(cancer, shards, models.model("logistic", cancer)).feature_norm == pytest.approx(math.sqrt(5))
    assert task(cancer, shards, models.model("logistic", cancer, bias=False)).feature_norm == 2.0
    assert task(cancer, shards, models.model("mlp", cancer)).feature_norm is None
    plain = load("breast-cancer")
    assert task(plain, shards, models.model("logistic", plain)).feature_norm is None


# --- starting points, layout, refusals -----------------------------------------------------------------------------


def test_starting_points_come_from_the_generator_alone():
    net = models.mlp((4, 3, 2))
    torch.manual_seed(1)
    before = torch.default_generator.get_state()
    same = net.start(3, torch.Generator().manual_seed(5))
    own = net.start(3, torch.Generator().manual_seed(5), same=False)
    models.cnn((1, 8, 8), 10)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert torch.equal(same[0], same[2])
    assert torch.equal(own[0], same[0])
    assert not torch.equal(own[0], own[1])
    assert not torch.equal(net.start(1, torch.Generator().manual_seed(6))[0], same[0])
    same[0] += 1
    assert not torch.equal(same[0], same[1])


def test_layout_goes_there_and_back():
    layout = models.gn_resnet18((3, 8, 8), 3, width=4, groups=2).layout
    rows = torch.randn(2, layout.size)
    assert torch.equal(layout.flatten(layout.views(rows)), rows)
    assert torch.equal(layout.flatten(layout.views(rows[0])), rows[0])
    assert layout.views(rows)["0.weight"].data_ptr() == rows.data_ptr()
    with pytest.raises(InputError, match="rows of 3 numbers"):
        layout.views(torch.zeros(3))


def test_sizes_are_the_papers():
    assert models.mlp((784, 32, 10)).layout.size == 25_450
    assert models.gn_resnet18((3, 32, 32), 10).layout.size == 11_173_962
    assert models.cnn((1, 28, 28), 10).layout.size == 160 + 4640 + 64 + 15_690


class Whitened(nn.Module):
    """A home-made batch norm."""

    def forward(self, rows):
        return rows - rows.mean(0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)), "BatchNorm1d at 1; batch norm mixes .*nn.GroupNorm"),
        (nn.SyncBatchNorm(3), "SyncBatchNorm at the top"),
        (nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5)), "Dropout at 1; it draws from torch's global generator"),
        (nn.ReLU(), "ReLU without trainable parameters"),
    ],
)
def test_layers_that_break_privacy_or_repetition_are_refused(module, message):
    with pytest.raises(InputError, match=message):
        models.wrap_module(module, "cross-entropy")


def test_models_that_do_not_fit_are_refused():
    digits = load("digits")
    shards = partition(digits, 2)
    for module, message in (
        (nn.Sequential(nn.Linear(64, 10), Whitened()), "outputs for an example change with the others"),
        (nn.Linear(63, 10), "on rows of digits, shape \\(1, 8, 8\\)"),
        (nn.Linear(64, 9), "outputs of shape \\(3, 9\\)"),
    ):
        with pytest.raises(InputError, match=message):
            task(digits, shards, models.wrap_module(module, "cross-entropy"))
    for name, settings, message in (
        ("lstm", {}, "model 'lstm'; known: mean, linear, logistic"),
        ("matrix-factorisation", {}, "on digits, which has classes; it is for ratings"),
        ("logistic", {}, "it is for two classes"),
        ("mlp", {"depth": 2}, "'depth' of mlp; it has no such setting"),
        ("softmax", {"a b": 2}, "'a b' of softmax; it has no such setting"),
        ("softmax", {"features": 2}, "features = 2; it must be the name of a map"),
        ("softmax", {"classes": 2}, "'classes' of softmax; the data set decides that"),
        ("softmax", {"dataset": 2}, "'dataset' of softmax; it has no such setting"),
        ("mlp", {"hidden": (0,)}, "widths \\(64, 0, 10\\)"),
        ("mlp", {"activation": "swish"}, "activation 'swish'"),
        ("cnn", {"groups": 5}, "5 groups of 32 channels"),
    ):
        with pytest.raises(InputError, match=message):
            models.model(name, digits, **settings)
    with pytest.raises(InputError, match="cnn for inputs of shape \\(30,\\)"):
        models.model("cnn", load("breast-cancer"))
    with pytest.raises(InputError, match="loss 'hinge'"):
        models.wrap_module(nn.Linear(2, 1), "hinge")
    with pytest.raises(InputError, match="engine 'fast'"):
        engine_for(models.linear(2), "fast")
    with pytest.raises(InputError, match="engine 'stacked' for cnn"):
        engine_for(models.cnn((1, 8, 8), 10), "stacked")
    job = task(digits, shards, models.model("softmax", digits))
    with pytest.raises(InputError, match="batches for 2 nodes; the task has 3"):
        replace(job, shards=partition(digits, 3)).gradients(job.gradients("full").batches)


def test_threads_are_restored_and_checked():
    before = torch.get_num_threads()
    with threads(2), threads() as used:
        assert used == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    for count in (0, True, 1.5):
        with pytest.raises(InputError, match="whole number"), threads(count):
            pass


# --- examples that influence each other ----------------------------------------------------------------------------


class Overflowing(nn.Module):
    """Outputs that are inf - inf in float32."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, rows):
        large = self.linear(rows) * 1e38 * 1e3
        return large - large


class Faint(nn.Module):
    """Mixes examples in outputs that are tiny throughout."""

    def forward(self, rows):
        return 1e-7 * (rows - rows.mean(0))


class Deviations(nn.Module):
    """Not a number for a batch of one."""

    def forward(self, rows):
        return rows / rows.std(0) if len(rows) > 1 else rows / (rows - rows)


class SinglePrecision(nn.Module):
    """Works in float32 only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, rows):
        return self.linear(rows) + torch.matmul(rows, torch.ones(64, 10))


class Endless(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, rows):
        return self.linear(rows) + math.inf


def made(module):
    digits = load("digits")
    return task(digits, partition(digits, 2), models.wrap_module(module, "cross-entropy"))


@pytest.mark.parametrize(
    "module", [Overflowing(), SinglePrecision(), nn.Linear(64, 10)], ids=lambda m: type(m).__name__
)
def test_models_whose_outputs_overflow_or_have_one_precision_are_accepted(module):
    assert made(module).model.module is not module


@pytest.mark.parametrize("layer", [Faint(), Deviations(), Whitened()], ids=lambda layer: type(layer).__name__)
def test_examples_that_influence_each_other_are_found_at_any_size(layer):
    with pytest.raises(InputError, match="outputs for an example change with the others"):
        made(nn.Sequential(nn.Linear(64, 10), layer))


def test_outputs_of_which_none_is_finite_are_refused():
    with pytest.raises(InputError, match="no output is finite, even for inputs of at most 1"):
        made(Endless())


@pytest.mark.parametrize("size", [1.0, 1e20, 3e38])
@pytest.mark.parametrize("mixing", [False, True])
def test_the_check_of_examples_does_not_depend_on_the_size_of_rows(size, mixing):
    layers = [nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)]
    built = models.wrap_module(nn.Sequential(*layers, *([Whitened()] if mixing else [])), "cross-entropy")
    rows = torch.from_numpy(load("digits").examples[:3])
    assert examples_interact(built, rows / rows.abs().max() * size) == mixing


class Shared(torch.autograd.Function):
    """Each example alone gets its own; where examples are taken together, each gets the sum."""

    @staticmethod
    def forward(rows):
        return rows.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, given):
        return given

    @staticmethod
    def vmap(info, in_dims, rows):
        return rows.sum(in_dims[0], keepdim=True).expand_as(rows).clone(), in_dims[0]


class OnTheWayBack(Shared):
    """The same in gradients, not in outputs."""

    @staticmethod
    def backward(ctx, given):
        return Shared.apply(given)

    @staticmethod
    def vmap(info, in_dims, rows):
        return OnTheWayBack.apply(rows), in_dims[0]


class Waiting(Shared):
    """The same, in batches that are larger than any that is tried."""

    @staticmethod
    def vmap(info, in_dims, rows):
        return Shared.vmap(info, in_dims, rows) if info.batch_size > 100 else (Waiting.apply(rows), in_dims[0])


class WaitingOnTheWayBack(torch.autograd.Function):
    """A rule that torch makes, of a gradient that has a rule of its own."""

    generate_vmap_rule = True
    forward, setup_context = Shared.forward, Shared.setup_context

    @staticmethod
    def backward(ctx, given):
        return Waiting.apply(given)


class Kept(WaitingOnTheWayBack):
    """No rule but torch's."""

    @staticmethod
    def backward(ctx, given):
        return 2 * given


class Sharing(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(64, 10), function

    def forward(self, rows):
        return self.function.apply(self.linear(rows)) if self.function else self.linear(rows)


@pytest.mark.parametrize("function", [Shared, OnTheWayBack])
def test_examples_that_share_gradients_are_found_where_each_is_clipped(function):
    built = made(Sharing(function))
    with pytest.raises(InputError, match="the gradient of an example changes with the others"):
        built.gradients("full", "per-example", 1.0)
    built.gradients("full", "whole-gradient", 1.0)
    made(Sharing(None)).gradients("full", "per-example", 1.0)


@pytest.mark.parametrize("function", [Waiting, WaitingOnTheWayBack])
def test_rules_that_may_wait_for_a_larger_batch_are_refused_where_each_is_clipped(function):
    built = made(Sharing(function))
    with pytest.raises(InputError, match="generate_vmap_rule"):
        built.gradients("full", "per-example", 1.0)
    built.gradients("full", "whole-gradient", 1.0)
    made(Sharing(Kept)).gradients("full", "per-example", 1.0)


@pytest.fixture
def operators():
    """Operators that share the rows of batches larger than any that is tried, by a kernel for batches."""
    internals = torch._C._functorch

    def waiting(rows):
        level, place = internals.maybe_get_level(rows), internals.maybe_get_bdim(rows)
        every = internals.get_unwrapped(rows)
        shared = every.sum(place, keepdim=True).expand_as(every) if every.shape[place] > 100 else 1.0 * every
        return internals._add_batch_dim(shared, place, level)

    def asleep(rows):
        return rows if time.time() > 0 else waiting(rows)

    with torch.library._scoped_library("sotto_test", "FRAGMENT") as library:
        for name, kernel in (("waiting", waiting), ("asleep", asleep)):
            library.define(f"{name}(Tensor rows) -> Tensor")
            library.impl(name, lambda rows: 1.0 * rows, "CompositeExplicitAutograd")
            library.impl(name, kernel, "FuncTorchBatched")
        yield torch.ops.sotto_test


BY_NAME = ["unwrapping by name"] if hasattr(torch.func, "debug_unwrap") else []  # torch 2.3 has no such function


@pytest.mark.parametrize("name", ["waiting", "asleep", "unwrapping", *BY_NAME])
def test_kernels_and_unwrapping_are_refused_where_each_is_clipped(name, operators):
    def unwrapping(rows):
        every = torch._C._functorch.get_unwrapped(rows)
        return rows + every.sum() if len(every) > 100 else rows

    def by_name(rows):
        return rows + torch.func.debug_unwrap(rows).sum() if len(torch.func.debug_unwrap(rows)) > 100 else rows

    trick = {"unwrapping": unwrapping, "unwrapping by name": by_name}.get(name) or getattr(operators, name)

    class Tricky(Sharing):
        def forward(self, rows):
            unmapped = torch._C._functorch.peek_interpreter_stack() is None
            return self.linear(rows if unmapped else trick(rows.detach()))

    built = made(Tricky(None))
    with pytest.raises(InputError, match="as rules and kernels for vmap do"):
        built.gradients("full", "per-example", 1.0)
    built.gradients("full", "whole-gradient", 1.0)


def test_a_module_that_vmap_cannot_take_is_one_error():
    class Branching(Sharing):
        def forward(self, rows):
            return self.linear(rows) * (2.0 if rows.detach().abs().sum().item() >= 0 else 1.0)

    with pytest.raises(InputError, match="clip whole gradients"):
        made(Branching(None)).gradients("full", "per-example", 1.0)
