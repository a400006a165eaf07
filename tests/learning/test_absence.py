"""Laws: what takes no part changes no bit, a gradient leaves no trace, and hostile rows pass no bound.

Each runs over every model, engine, batch rule and kind of clipping.
"""

from __future__ import annotations

import random
import tempfile
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sottovoce import InputError, NoiseKey, algorithm, iterate_rounds, metropolis
from sottovoce.learning import models
from sottovoce.learning.clipping import clip_rows, parse_clipping
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.engines import Functional, Stack, engine_for
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.model_checks import what_a_gradient_changes
from sottovoce.learning.modules import state_of
from sottovoce.learning.partitioning import Partition
from sottovoce.learning.starts import adapt
from sottovoce.learning.tasks import task
from sottovoce.support.own_code import code_from
from sottovoce.support.threads import threads

SHARDS = tuple(np.split(np.arange(20), [7, 11]))
HOSTILE = np.array([3e38, np.nan, np.inf, -np.inf, 1e-42, -3e38, 0.0], dtype=np.float32)
BATCHES = (
    "full",
    "cycle:3x2",
    "shuffle:3",
    "poisson:0.4",
    "poisson:0.05",
    "cyclic-poisson:0.5x2",
    "fixed:2",
    "allocate:3x2",
)
CLIPS = (("none",), ("whole-gradient", 0.7), ("per-example", 0.7), ("bounded",))


@pytest.fixture(autouse=True)
def _one_thread():
    with threads():
        yield


class Attention(nn.Module):
    """A module that no engine knows, and whose gradient is not a number for rows of zeros."""

    def __init__(self):
        super().__init__()
        self.mixed, self.out = nn.Parameter(torch.full((4,), 0.3)), nn.Linear(64, 3)

    def forward(self, rows):
        words = (rows / rows.norm(dim=-1, keepdim=True)).view(-1, 16, 4) * self.mixed
        return self.out(((words @ words.transpose(1, 2)).softmax(-1) @ words).flatten(1))


class Stored(nn.Sequential):
    """Layers with a batch norm that has seen other rows."""

    def __init__(self):
        super().__init__(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for value in (*self.parameters(), *self.buffers()):
                if value.dtype.is_floating_point:
                    value.copy_(torch.rand(value.shape, generator=draw) + 0.1)


def begun(**settings):
    """A module from a file, trained in part."""
    with tempfile.TemporaryDirectory() as folder, code_from(folder):
        save_file(Stored().state_dict(), f"{folder}/start.safetensors")
        found = adapt(Stored(), {"start": "start.safetensors", **settings})
    return models.wrap_module(found.module, "cross-entropy", given=found.given)


MODELS = {
    "linear": (lambda: models.linear(64), "value"),
    "logistic": (lambda: models.logistic(64), "two"),
    "softmax": (lambda: models.softmax(64, 3), "classes"),
    "mlp": (lambda: models.mlp((64, 5, 3)), "classes"),
    "mlp of values": (lambda: models.mlp((64, 5, 1), loss="squared"), "value"),
    "cnn": (lambda: models.cnn((1, 8, 8), 3, filters=(4,), groups=2), "classes"),
    "standard cnn": (
        lambda: models.cnn((1, 8, 8), 3, filters=(4,), groups=2, standardise=True),
        "classes",
    ),
    "gn-resnet18": (lambda: models.gn_resnet18((1, 8, 8), 3, width=4, groups=2), "classes"),
    "matrix-factorisation": (lambda: models.matrix_factorisation(6, 9, rank=3), "ratings"),
    "own": (lambda: models.wrap_module(Attention(), "cross-entropy"), "classes"),
    "head": (lambda: begun(train=["4"]), "classes"),
    "low rank": (lambda: begun(train=["2", "lora:rank=2"]), "classes"),
}
LARGE = "gn-resnet18"
SLOW = ("cnn", "own")
"""What takes long meets few settings; other models meet the same code."""
ENGINES = [
    (name, engine) for name, (make, _) in MODELS.items() for engine in sorted({engine_for(make()).name, "functional"})
]
every_engine = pytest.mark.parametrize(("name", "engine"), ENGINES)


def made_up(kind, rows=20):
    """Rows of a kind, for whom public points give finite gradients."""
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((rows, 64)).astype(np.float32)
    targets = rng.standard_normal(rows).astype(np.float32)
    classes = {"two": ("a", "b"), "classes": ("a", "b", "c")}.get(kind, ())
    if classes:
        targets = rng.integers(0, len(classes), rows)
    if kind == "ratings":
        inputs = np.stack([rng.integers(0, 6, rows), rng.integers(0, 9, rows)], axis=1).astype(np.float32)
    return Dataset(
        name="made-up", kind="classes" if classes else kind, examples=Examples(inputs), targets=targets,
        test_inputs=inputs[:4], test_targets=targets[:4], shape=(1, 8, 8) if kind != "ratings" else (2,),
        classes=classes, groups=None, test_groups=None, entities=(6, 9) if kind == "ratings" else (), licence="",
        source="", notes=(),
    )  # fmt: skip


def job_of(name, engine, *, norm=False, shards=SHARDS, dtype=torch.float32):
    make, kind = MODELS[name]
    data = made_up(kind)
    data = data.max_norm(3.0) if norm else data
    return task(data, Partition(shards, "own", 0), make(), engine=engine, dtype=dtype)


def with_hostile(job, chosen):
    """The same job where some rows are hostile; positions of ratings stay positions."""
    data = job.dataset
    inputs, targets = data.examples[:].copy(), data.targets.copy()
    patterns = np.resize(HOSTILE, (len(HOSTILE), 64))
    patterns[:4] = HOSTILE[:4, None]
    if data.kind != "ratings":
        inputs[chosen] = np.resize(patterns, (len(chosen), 64))
    targets[chosen] = (targets[chosen] + 1) % len(data.classes) if data.classes else np.resize(HOSTILE, len(chosen))
    examples = Examples(inputs)
    bound = data.examples.norm_bound
    return replace(job, dataset=replace(data, examples=examples.clipped(bound) if bound else examples, targets=targets))


def clips_of(name):
    return CLIPS if name in ("logistic", "softmax") else CLIPS[:3]


@every_engine
def test_rows_that_take_no_part_change_no_bit(name, engine):
    """Neither a node's own rows that no batch of the round has, nor any row of other nodes."""
    for number, (batch, clip) in enumerate(product(BATCHES, clips_of(name))):
        if name == LARGE and batch != "cycle:3x2":
            continue
        job, round = job_of(name, engine, norm=clip == ("bounded",)), 1
        points = job.start(torch.Generator().manual_seed(1), same=False)
        for steps in (1,) if clip[0] in ("per-example", "bounded") else (1, 3):
            words = {"local_steps": steps, "step_size": 0.1} if steps > 1 else {}

            def gradients(job, batch=batch, clip=clip, words=words):
                return job.gradients(batch, *clip, noise_key=NoiseKey.of_seed(2), **words)

            drawn, plan = range(round * steps, (round + 1) * steps), gradients(job).batches
            used = [np.concatenate([plan.rows_of(node, t) for t in drawn]) for node in range(3)]
            clean, node = gradients(job)(round, points), number % 3
            assert clean.isfinite().all()
            absent = np.setdiff1d(np.arange(20), np.concatenate(used))
            assert torch.equal(gradients(with_hostile(job, absent))(round, points), clean), (batch, clip, steps)
            others = np.setdiff1d(np.arange(20), used[node])
            found = gradients(with_hostile(job, others))(round, points)
            assert torch.equal(found[node], clean[node]), (batch, clip, steps, node)


def hostile_rows(kind):
    """One row for each pattern, at every size that float32 has."""
    rng = np.random.default_rng(3)
    rows = [np.resize(HOSTILE, 64), *(np.full(64, value) for value in HOSTILE)]
    sizes = [10.0**power for power in (-44, -40, -20, -3, 15, 30, 34, 37)]
    rows += [size * rng.standard_normal(64) for size in sizes]
    rows += [np.where(np.arange(64) == 5, size, rng.standard_normal(64)) for size in (3e38, 1e30)]
    rows = np.clip(np.array(rows), -3.4e38, 3.4e38, where=np.isfinite(rows), out=np.array(rows)).astype(np.float32)
    targets = np.resize(np.array([1, 0, 2]), len(rows))
    if kind == "two":
        targets = targets % 2
    elif kind != "classes":
        targets = np.resize(np.concatenate([HOSTILE, [1e30, 1.0]]), len(rows)).astype(np.float32)
    if kind == "ratings":
        rows = np.stack([np.arange(len(rows)) % 6, np.arange(len(rows)) % 9], axis=1).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(targets)


@every_engine
def test_hostile_rows_pass_no_bound(name, engine):
    """One example a node: what it releases is one clipped gradient, times its weight."""
    make, kind = MODELS[name]
    net, (inputs, targets) = make(), hostile_rows(kind)
    built, draw = engine_for(net, engine), torch.Generator().manual_seed(0)
    weights, bounds = ((1e-6,), (1.0,)) if name == LARGE else ((1.0, 1e-6), (1e-6, 1.0))
    settings = [(torch.float64, 1.0, 1.0, 1.0), *product((torch.float32,), (1.0, 1e-20, 1e-37), weights, bounds)]
    settings += [(torch.float32, 1.0, weight, bound) for weight, bound in ((1e-2, 1e19), (1.0, 1e30))]
    for dtype, size, weight, bound in settings:
        points = size * net.start(len(inputs), draw, same=False, dtype=dtype)
        points[2:4] = 1e30
        wanted = targets if net.loss.name == "cross-entropy" else targets.to(dtype)
        each = torch.full((len(inputs), 1), weight, dtype=dtype)
        stack = Stack(inputs.to(dtype).unsqueeze(1), wanted.unsqueeze(1), each)
        found = built.clipped(points, stack, parse_clipping("per-example", bound)).rows
        assert found.isfinite().all()
        lengths = np.linalg.norm(found.numpy().astype(np.longdouble), axis=-1)
        assert (lengths <= np.longdouble(each[0, 0].item()) * bound).all(), (dtype, size, weight, bound)
        whole = clip_rows(built.total(points, stack), parse_clipping("whole-gradient", bound)).rows
        assert np.linalg.norm(whole.numpy().astype(np.longdouble), axis=-1).max() <= bound


SHORT = tuple(np.split(np.arange(20), [1, 3]))
"""One row, two, and many: in most rounds some of these nodes have no row, or fewer than others."""

RULES = (
    "full",
    "cycle:3x1",
    "shuffle:1",
    "poisson:0.4",
    "poisson:0.05",
    "cyclic-poisson:0.5x1",
    "fixed:1",
    "allocate:2x2",
)
"""All batch rules, for shards of one row; where shards have two rows or more, `BATCHES` are."""


def worlds(job, changed):
    """The same job with some rows as they were, and hostile in each way: rows of every pattern, and all at once."""
    yield job
    data = job.dataset
    for pattern in (*(np.full(64, value) for value in HOSTILE), np.resize(HOSTILE, 64), 1e30 * np.cos(np.arange(64))):
        inputs, targets = data.examples[:].copy(), data.targets.copy()
        if data.kind != "ratings":
            inputs[changed] = pattern
        targets[changed] = (targets[changed] + 1) % len(data.classes) if data.classes else pattern[1]
        examples = Examples(inputs)
        bound = data.examples.norm_bound
        examples = examples.clipped(bound) if bound else examples
        yield replace(job, dataset=replace(data, examples=examples, targets=targets))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_engine
def test_neighbouring_data_move_a_clipped_gradient_by_its_sensitivity_at_most(name, engine, dtype):
    """One record, or all of a node, whatever is in it; a row of nan is left out, which is to count as nothing."""
    cases = [*product(BATCHES, clips_of(name)[1:], [SHARDS]), *product(RULES, clips_of(name)[1:], [SHORT])]
    for number, (batch, clip, shards) in enumerate(
        cases[:: 14 if name == LARGE else 7 if name in SLOW else 3 if engine == "functional" else 1]
    ):
        job = job_of(name, engine, norm=clip == ("bounded",), shards=shards, dtype=dtype)
        points = job.start(torch.Generator().manual_seed(1), same=False) * (1e30 if number % 5 == 4 else 1)
        node, steps = number % 3, 3 if clip[0] == "whole-gradient" and number % 2 else 1
        words = {"noise_key": NoiseKey.of_seed(2), "weigh_nodes": ("equal", "size")[number // 2 % 2]}
        words |= {"local_steps": 3, "step_size": 0.1} if steps > 1 else {}
        gradients = job.gradients(batch, *clip, **words)
        used = np.concatenate([gradients.batches.rows_of(node, step) for step in range(steps)])
        for adjacency, changed in (("record", used[:1]), ("user", shards[node])):
            released = np.array([
                world.gradients(batch, *clip, **words)(0, points).double().numpy() for world in worlds(job, changed)
            ])  # fmt: skip
            case = batch, clip, shards is SHORT, words, adjacency
            assert np.isfinite(released).all(), case
            others = [one for one in range(3) if one != node]
            assert (released[:, others] == released[0, others]).all(), case
            moved = np.linalg.norm(released[:, None, node] - released[None, :, node], axis=-1)
            replaced, left_out = (
                np.broadcast_to(gradients.sensitivities(adjacency, change), 3)[node]
                for change in ("replace", "zero-out")
            )
            summed = torch.finfo(dtype).eps * len(used) * replaced  # of sums, which clipping does not cover
            assert moved.max() <= replaced + summed, case
            if clip != ("bounded",):  # there it is a row of zeros
                assert moved[2].max() <= left_out + summed, case


@pytest.mark.parametrize("clip", CLIPS[1:])
@pytest.mark.parametrize("batch", BATCHES)
def test_no_hostile_row_reaches_a_state(batch, clip):
    """In any round of a run all models, messages and noise that is remembered are finite."""
    for name in ("dp-d-sgd", "anti-pgd"):
        for world in worlds(job_of("softmax", "stacked", norm=True), np.arange(20)):
            gradients = world.gradients(batch, *clip, noise_key=NoiseKey.of_seed(2))
            built = algorithm(name, sigma=1.0, step_size=0.5, sensitivity=gradients.sensitivity())
            start = world.start(torch.Generator().manual_seed(1))
            for state in iterate_rounds(built, metropolis("ring:3"), start, gradients, rounds=4, noise_key=KEY):
                assert all(part.to_dense().isfinite().all() for part in tensors_in(state)), (name, batch, clip)


KEY = NoiseKey.of_seed(3)


def tensors_in(value):
    """All tensors that a state holds, at any depth."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = list(vars(value).values())
    return [part for one in value for part in tensors_in(one)] if isinstance(value, list | tuple) else []


# --- nothing is shared ---------------------------------------------------------------------------------------------


KEPT = []


class Keeping(nn.Module):
    """A linear layer after something that depends on what it was called with before."""

    count = 0

    def __init__(self, how):
        super().__init__()
        self.out, self.how, self.log, self.seen = nn.Linear(64, 3), how, [], torch.zeros(64)
        self.register_buffer("mean", torch.zeros(64))
        self.own = torch.Generator().manual_seed(0)
        self.inner = {"mean": {"of": torch.zeros(64)}}
        held = []
        self.closure = lambda rows: held.append(rows.detach().mean(0) + 1) or sum(held)

    def forward(self, rows):
        return self.out(rows if self.how == "none" or not self.training else rows - self.shift(rows))

    def shift(self, rows, cache=[]):  # noqa: B006
        mean = rows.detach().mean(0) + 1
        if self.how == "buffer":
            self.mean = 0.5 * self.mean + mean
            return self.mean
        if self.how == "buffer in place":
            return self.mean.mul_(0.5).add_(mean)
        if self.how == "tensor":
            self.seen = self.seen + mean
            return self.seen
        if self.how in ("list", "default", "global"):
            held = {"list": self.log, "default": cache, "global": KEPT}[self.how]
            held.append(mean)
            return sum(held)
        if self.how == "closure":
            return self.closure(rows)
        if self.how == "nested":
            return self.inner["mean"]["of"].add_(mean)
        if self.how == "class":
            type(self).count += 1
            return float(self.count)
        if self.how == "mode":
            self.eval()
            return mean
        if self.how == "frozen":
            self.bias_like.data.add_(mean)
            return self.bias_like
        draws = {"torch": torch.rand, "numpy": np.random.random_sample, "python": lambda _: [random.random()]}
        if self.how == "generator":
            return torch.rand(1, generator=self.own)
        return float(draws[self.how](1)[0])


OF_THE_MODULE = ("buffer", "buffer in place", "tensor", "list", "nested", "mode", "frozen", "generator")
OUTSIDE = ("default", "global", "closure", "class", "torch", "numpy", "python")


def keeping(how):
    module = Keeping(how)
    if how == "frozen":
        module.bias_like = nn.Parameter(torch.zeros(64), requires_grad=False)
    return models.wrap_module(module, "cross-entropy", name="keeping")


@pytest.fixture
def _forget():
    yield
    KEPT.clear()
    Keeping.count = 0
    Keeping.shift.__defaults__[0].clear()


@pytest.mark.usefixtures("_forget")
@pytest.mark.parametrize("how", [*OF_THE_MODULE, *OUTSIDE])
def test_a_module_that_keeps_something_is_refused(how):
    with pytest.raises(InputError, match="keeping: a gradient changes "):
        task(made_up("classes"), Partition(SHARDS, "own", 0), keeping(how))


@pytest.mark.parametrize("how", OF_THE_MODULE)
def test_each_node_begins_with_the_module_as_it_was(how):
    """Even if the module was not refused: nobody's rows move the gradients of others, in whatever order they come."""
    net, data = keeping(how), made_up("classes", rows=6)
    points = net.start(3, torch.Generator().manual_seed(0))
    inputs, targets = torch.from_numpy(data.inputs).view(3, 2, 64), torch.from_numpy(data.targets).view(3, 2)
    stack, before, built = Stack(inputs, targets, torch.full((3, 2), 0.5)), state_of(net.module), Functional(net)
    total = built.total(points, stack)
    outputs = built.outputs(points, inputs)
    alone = [built.total(points[u : u + 1], Stack(*(part[u : u + 1] for part in stack))) for u in (2, 0, 1)]
    assert torch.equal(total, torch.cat(alone)[[1, 2, 0]])
    assert torch.equal(outputs, torch.cat([built.outputs(points[u : u + 1], inputs[u : u + 1]) for u in range(3)]))
    assert state_of(net.module) == before


@every_engine
def test_a_gradient_leaves_no_trace(name, engine):
    """In the module, in random generators, in the rows, and at the points; and the second is the first."""
    for clip in CLIPS[: 2 if name == LARGE else 3]:
        job = job_of(name, engine)
        points = job.start(torch.Generator().manual_seed(1), same=False)
        gradient = job.gradients("cycle:3x2", *clip, noise_key=NoiseKey.of_seed(2))
        before = state_of(job.model.module)
        rows, kept, at = job.inputs.clone(), job.test_inputs.clone(), points.clone()
        first = gradient(0, points)
        job.evaluate(points)
        second = gradient(0, points)
        assert torch.equal(first, second)
        assert state_of(job.model.module) == before
        for now, then in ((job.inputs, rows), (job.test_inputs, kept), (points, at)):
            assert torch.equal(now, then)


def test_draws_of_other_threads_are_not_taken_for_the_model():
    """Threads take turns with the generators of torch, and a start is the same whatever others do meanwhile."""
    net, stop = models.mlp((64, 5, 3)), threading.Event()
    wanted = net.start(1, torch.Generator().manual_seed(0))

    def busy():
        while not stop.is_set():
            models.softmax(64, 3)

    other = threading.Thread(target=busy)
    other.start()
    try:
        for _ in range(20):
            assert what_a_gradient_changes(keeping("none"), torch.float32, 64) is None
            assert torch.equal(net.start(1, torch.Generator().manual_seed(0)), wanted)
    finally:
        stop.set()
        other.join()
