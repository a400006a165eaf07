"""Training speed against code written by hand, as ratios within one run: `python -m benchmarks.learning`."""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.loop import peak_gigabytes, seconds, settings
from sottovoce import NoiseKey, SecretSource, algorithm, iterate_rounds, metropolis, simulate
from sottovoce.core.exact_gaussians import guess_
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.noise_sources import Fill, Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.learning import models
from sottovoce.learning.clipping import parse_clipping
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.engines import Stack, engine_for
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import Task, task
from sottovoce.support.threads import threads

STEP_SIZE = 0.05

PAUSE = 0.2
"""Seconds between two actions."""


def made_up(rows: int, shape: tuple[int, ...], classes: int = 10) -> Dataset:
    """Random rows: speed does not depend on what is learned."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, int(np.prod(shape))), dtype=np.float32)
    targets = rng.integers(0, classes, rows)
    return Dataset(
        name="made-up", kind="classes", examples=Examples(inputs), targets=targets, test_inputs=inputs[:100],
        test_targets=targets[:100], shape=shape, classes=tuple(map(str, range(classes))), groups=None,
        test_groups=None, entities=(), licence="", source="", notes=(),
    )  # fmt: skip


def job_of(nodes: int, rows: int, shape: tuple[int, ...], name: str, **words: object) -> Task:
    """A made-up task."""
    data = made_up(nodes * rows, shape)
    return task(data, partition(data, nodes), models.model(name, data, **words))


def rounds(
    job: Task,
    name: str,
    batch: str,
    clip: tuple[str, float | None] = ("none", None),
    *,
    exact_noise: bool = False,
    secret: bool = False,
    **words: object,
) -> Callable:
    """An action that plays one round of an algorithm on a 4-regular graph."""
    source = SecretSource() if secret else NoiseKey.fresh()
    gradient = job.gradients(batch, *clip, noise_key=source, **words)
    extra = {} if clip[0] == "none" else {"sigma": 1.0, "sensitivity": gradient.sensitivity()}
    net = metropolis(f"regular:{len(job.shards.indices)},d=4,seed=0")
    x0 = job.start(torch.Generator().manual_seed(0))
    built = with_exact_noise(algorithm(name, step_size=STEP_SIZE, **extra), net, exact_noise)
    played = iterate_rounds(built, net, x0, gradient, rounds=10**4, noise_key=source)
    return lambda: next(played)


def by_hand(job: Task, steps: int, batch: int = 32) -> Callable[[], None]:
    """The same training of a two-layer net, written out for this one case: the yardstick."""
    N, rows = len(job.shards.indices), len(job.shards.indices[0])
    node = torch.arange(N).unsqueeze(1)
    held = torch.from_numpy(np.stack(job.shards.indices))
    x_NRF, y_NR = job.inputs[held], job.targets[held]
    X = job.start(torch.Generator().manual_seed(0))
    W = metropolis(f"regular:{N},d=4,seed=0").at(0).weights
    mix = torch.sparse_csr_tensor(
        *(torch.from_numpy(part) for part in (W.indptr, W.indices, W.data.astype(np.float32)))
    )
    F, H, K = job.inputs.shape[1], job.model.layout.shapes[1][0], 10

    def one_round() -> None:
        nonlocal X
        W1, b1, W2, b2 = X.split([F * H, H, H * K, K], dim=1)
        W1, W2 = W1.view(N, H, F), W2.view(N, K, H)
        for _ in range(steps):
            chosen = torch.randint(rows, (N, batch))
            a, y = x_NRF[node, chosen], y_NR[node, chosen]
            h = torch.baddbmm(b1.unsqueeze(1), a, W1.transpose(1, 2)).relu_()
            d2 = torch.baddbmm(b2.unsqueeze(1), h, W2.transpose(1, 2)).softmax(-1)
            d2.scatter_add_(2, y.unsqueeze(2), torch.full((N, batch, 1), -1.0))
            d2 *= STEP_SIZE / batch
            d1 = torch.bmm(d2, W2).mul_(h > 0)
            W2.baddbmm_(d2.transpose(1, 2), h, alpha=-1)
            W1.baddbmm_(d1.transpose(1, 2), a, alpha=-1)
            b2 -= d2.sum(1)
            b1 -= d1.sum(1)
        X = mix @ X

    return one_round


def node_by_node(job: Task, batch: int = 32, epochs: int = 1) -> Callable[[], None]:
    """The same training as simulators of whole nodes do it: a module, a loader and an optimiser for each node.

    In a round every node trains for some epochs, and then averages the state dicts of its neighbours with its own.
    """
    W = metropolis(f"regular:{len(job.shards.indices)},d=4,seed=0").at(0).weights
    start = job.start(torch.Generator().manual_seed(0))
    nets = [copy.deepcopy(job.model.module) for _ in start]
    for net, row in zip(nets, start, strict=True):
        nn.utils.vector_to_parameters(row.clone(), net.parameters())
    loaders = [
        DataLoader(TensorDataset(job.inputs[rows], job.targets[rows]), batch_size=batch, shuffle=True)
        for rows in map(torch.from_numpy, job.shards.indices)
    ]
    steps = [torch.optim.SGD(net.parameters(), lr=STEP_SIZE) for net in nets]
    loss = nn.CrossEntropyLoss()

    def one_round() -> None:
        for net, loader, step in zip(nets, loaders, steps, strict=True):
            for inputs, targets in (batch for _ in range(epochs) for batch in loader):
                step.zero_grad()
                loss(net(inputs), targets).backward()
                step.step()
        sent = [{name: part.clone() for name, part in net.state_dict().items()} for net in nets]
        for node, net in enumerate(nets):
            heard = W.indices[W.indptr[node] : W.indptr[node + 1]]
            weights = W.data[W.indptr[node] : W.indptr[node + 1]]
            net.load_state_dict({
                name: sum(float(weight) * sent[other][name] for other, weight in zip(heard, weights, strict=True))
                for name in sent[node]
            })  # fmt: skip

    return one_round


def compare(title: str, actions: dict[str, Callable[[], object]], repeat: int = 10, turns: int = 5) -> dict[str, float]:
    """Medians in milliseconds, all in turn so that a slow moment of the machine hits all alike; the first is 1."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(turns):
        for name, action in actions.items():
            times[name] += seconds(action, repeat)
            time.sleep(PAUSE)
    middle = {name: 1e3 * statistics.median(took) for name, took in times.items()}
    first = next(iter(middle.values()))
    print(title)
    for name, took in middle.items():
        spread = f"{1e3 * min(times[name]):.2f} to {1e3 * max(times[name]):.2f}"
        print(f"  {name:46} {took:8.2f} ms   {took / first:6.2f}   ({spread})")
    return middle


def processor(actions: dict[str, Callable[[], object]], repeat: int = 50) -> None:
    """Medians of processor time: of the asking thread, the least a round takes with another core free; and of all."""
    print("  processor time of the asking thread, and of all")
    first = None
    for name, action in actions.items():
        taken = []
        for _ in range(repeat):
            before = np.array([time.thread_time(), time.process_time()])
            action()
            taken.append(np.array([time.thread_time(), time.process_time()]) - before)
        middle = 1e3 * np.median(taken, axis=0)
        first = middle if first is None else first
        own, total = (f"{took:8.2f} ms   {took / of:6.2f}" for took, of in zip(middle, first, strict=True))
        print(f"  {name:46} {own} {total}")
        time.sleep(PAUSE)


def simulators(count: int = 1) -> None:
    """What published simulators do: 32 nodes, 784-32-10, 224 rows a node, 7 minibatches of 32 a round, no noise."""
    job = job_of(32, 224, (784,), "mlp", hidden=(32,))
    with threads(count):
        played = {
            "by hand": by_hand(job, 7),
            "d-psgd, fixed:32": rounds(job, "d-psgd", "fixed:32", local_steps=7, step_size=STEP_SIZE),
            "d-psgd, shuffle:7": rounds(job, "d-psgd", "shuffle:7", local_steps=7, step_size=STEP_SIZE),
            "d-psgd, cycle of 7": rounds(job, "d-psgd", "cycle:1000000x7", local_steps=7, step_size=STEP_SIZE),
            "node by node: modules, loaders, optimisers": node_by_node(job),
        }
        title = f"32 nodes, 4-regular, 784-32-10, 7 minibatches a round, {count} thread(s)"
        middle = compare(title, played, repeat=5)
        processor(played, repeat=15)
    print(f"  rounds a second: {', '.join(f'{1e3 / took:.0f}' for took in middle.values())}", end="")
    print(f"; peak memory {peak_gigabytes():.2f} GB")


def private(count: int = 1) -> None:
    """One minibatch a round, with clipping and noise against without."""
    job = job_of(32, 200, (784,), "mlp", hidden=(32,))
    x, clip = job.start(torch.Generator().manual_seed(0)), ("per-example", 1.0)
    plain, clipped = job.gradients("fixed:32"), job.gradients("fixed:32", *clip)
    with threads(count):
        played = {
            "round of d-psgd, not clipped": rounds(job, "d-psgd", "fixed:32"),
            "round of dp-d-sgd, clipped, with noise": rounds(job, "dp-d-sgd", "fixed:32", clip),
            "the same, exact noise": rounds(job, "dp-d-sgd", "fixed:32", clip, exact_noise=True),
            "the same, exact and secret noise": rounds(
                job, "dp-d-sgd", "fixed:32", clip, exact_noise=True, secret=True
            ),
            "round of anti-pgd, clipped, with noise": rounds(job, "anti-pgd", "fixed:32", clip),
            "the same, exact noise ": rounds(job, "anti-pgd", "fixed:32", clip, exact_noise=True),
        }
        compare(f"32 nodes, 4-regular, 784-32-10, one minibatch of 32 a round, {count} thread(s)", played)
        processor(played)
        compare("  of which", {"gradient": lambda: plain(0, x), "clipped gradient": lambda: clipped(0, x)})
    print(f"  peak memory {peak_gigabytes():.2f} GB")
    if find_spec("opacus") is not None:
        beside_opacus(count)


class Words(nn.Module):
    """A small transformer on patches of 7 x 7 pixels, of one's own: examples are taken one by one by `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mixed, self.out = nn.Linear(49, 96), nn.Linear(96, 96), nn.Linear(96, 10)
        self.norm = nn.LayerNorm(96)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Patches attend to each other once."""
        patches = images.unfold(2, 7, 7).unfold(3, 7, 7).flatten(1, 3).flatten(2)
        words = self.into(patches)
        mixed = (words @ words.transpose(1, 2) / 96**0.5).softmax(-1) @ words
        return self.out(self.norm(words + self.mixed(mixed)).mean(1))


def beside_opacus(count: int = 1) -> None:
    """A private round of 16 nodes, 32 examples each, beside Opacus and training without privacy: processor time."""
    image, small = (1, 28, 28), (3, 16, 16)
    nets = {
        "linear on 3,969 features": (models.linear(3969, 10, loss="cross-entropy"), (3969,)),
        "mlp 784-32-10": (models.mlp((784, 32, 10)), (784,)),
        "cnn": (models.cnn(image, 10), image),
        "gn-resnet18, width 16": (models.gn_resnet18(small, 10, width=16, groups=8), small),
        "one's own transformer": (models.wrap_module(Words(), "cross-entropy", shape=image), image),
    }
    with threads(count):
        for name, (net, shape) in nets.items():
            data = made_up(16 * 32, shape)
            job = task(data, partition(data, 16), net)
            print(f"{name}, {net.layout.size:,} parameters, engine {job.engine.name}, {count} thread(s)")
            processor(
                {
                    "ours": rounds(job, "dp-d-sgd", "full", ("per-example", 1.0)),
                    "Opacus": module_by_module(job, shape, private=True),
                    "without privacy": module_by_module(job, shape, private=False),
                },
                repeat=9,
            )


def module_by_module(job: Task, shape: tuple[int, ...], *, private: bool) -> Callable[[], None]:
    """One step of each node with a module and an optimiser of its own, clipped and with noise by Opacus or neither."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    nets = [copy.deepcopy(job.model.module) for _ in job.shards.indices]
    nets = [GradSampleModule(net) for net in nets] if private else nets
    steps = [torch.optim.SGD(net.parameters(), lr=STEP_SIZE) for net in nets]
    if private:
        words = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 32}
        steps = [DPOptimizer(step, **words) for step in steps]
    rows = [torch.from_numpy(held) for held in job.shards.indices]
    batches = [(job.inputs[held].view(-1, *shape), job.targets[held]) for held in rows]
    loss = nn.CrossEntropyLoss()

    def one_round() -> None:
        for net, step, (inputs, targets) in zip(nets, steps, batches, strict=True):
            step.zero_grad()
            loss(net(inputs), targets).backward()
            step.step()

    return one_round


def draws(repeat: int = 15) -> None:
    """Secret noise against keyed noise: processor time for each number."""
    for nodes, dimension in ((32, 25_450), (1000, 650)):
        (term,) = algorithm("dp-d-sgd", sigma=1.0).noise.local(metropolis(f"ring:{nodes}").at(0))
        sources, D = term.sources, dimension
        print(f"{nodes} streams of {D:,} numbers, nanoseconds for each number")
        for name, drawn in {
            "exact noise": partial(draw, sources, D, np.float32, guess_),
            "float32": partial(draw, sources, D, np.float32, None),
            "float64": partial(draw, sources, D, np.float64, None),
        }.items():
            kinds: dict[str, RandomSource] = {"keyed": NoiseKey.fresh(), "secret": SecretSource()}
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for t in range(repeat):
                for kind, source in kinds.items():
                    before = time.thread_time()
                    drawn(source, t)
                    times[kind].append(1e9 * (time.thread_time() - before) / (nodes * D))
                    source.erase(t)
            keyed, secret = (statistics.median(took) for took in times.values())
            print(f"  {name:20} keyed {keyed:6.1f}   secret {secret:6.1f}   {secret / keyed:5.2f}")


def draw(sources: Sources, D: int, dtype: type, fill_: Fill | None, source: RandomSource, t: int) -> None:
    """All numbers of a round."""
    list(sources.draw(source, t, 0, D, dtype, fill_=fill_))


def whole(count: int = 1) -> None:
    """Gradients of all rows of 100 nodes, softmax 784-10, against the same by hand on rows that lie in order."""
    job = job_of(100, 600, (784,), "softmax")
    x = job.start(torch.Generator().manual_seed(0))
    plain, clipped = job.gradients("full"), job.gradients("full", "per-example", 1.0)
    rows = torch.from_numpy(np.concatenate(job.shards.indices))
    x_NRF, y_NR, weight = job.inputs[rows].view(100, 600, -1), job.targets[rows].view(100, 600), x[:, :7840]

    def by_hand() -> torch.Tensor:
        errors = torch.bmm(x_NRF, weight.view(100, 10, 784).transpose(1, 2)).softmax(-1)
        errors.scatter_add_(2, y_NR.unsqueeze(-1), torch.full((100, 600, 1), -1.0))
        return torch.bmm(errors.transpose(1, 2), x_NRF) / 600

    with threads(count):
        actions = {"by hand": by_hand, "gradient": lambda: plain(0, x), "clipped": lambda: clipped(0, x)}
        compare(f"100 nodes, softmax 784-10, all 600 rows of each, {count} thread(s)", actions, repeat=3)
    print(f"  peak memory {peak_gigabytes():.2f} GB")


def scale(count: int = 1) -> None:
    """Cost per node and round of 4,810 parameters, from 32 to 1,000 nodes."""
    sizes, clip = (32, 100, 320, 1000), ("per-example", 1.0)
    jobs = {nodes: job_of(nodes, 64, (64,), "mlp", hidden=(64,)) for nodes in sizes}
    with threads(count):
        for name, kind in (("d-psgd", ("none", None)), ("dp-d-sgd", clip)):
            actions = {f"{nodes} nodes": rounds(job, name, "fixed:32", kind) for nodes, job in jobs.items()}
            middle = compare(f"{name}, 64-64-10, one minibatch of 32, clipping {kind[0]}", actions, repeat=6)
            each = [1e3 * took / nodes for nodes, took in zip(sizes, middle.values(), strict=True)]
            print(f"  microseconds per node and round: {', '.join(f'{part:.0f}' for part in each)}")
    print(f"  peak memory {peak_gigabytes():.2f} GB")


def simulation(nodes: int = 10_000, rounds: int = 6, count: int = 1) -> None:
    """`simulate` on a 10-regular graph: 4,810 parameters a node, minibatches of 32 clipped per example, exact noise."""
    job, ends = job_of(nodes, 64, (64,), "mlp", hidden=(64,)), list[tuple[float, float]]()
    simulate(
        algorithm("dp-d-sgd", sigma=1.0, step_size=STEP_SIZE), metropolis(f"regular:{nodes},d=10,seed=0"),
        job.gradients("fixed:32", "per-example", 1.0), rounds=rounds, every=rounds, threads=count,
        on_round=lambda *_: ends.append((time.perf_counter(), time.process_time())),
    )  # fmt: skip
    wall, processor = np.median(np.diff(ends, axis=0), axis=0)
    print(f"{nodes:,} nodes, {count} thread(s): {wall:.3f} s a round, {1 / wall:.2f} rounds a second;")
    print(
        f"  processor time of all threads {processor:.3f} s a round, {1e6 * processor / nodes:.0f} microseconds a node"
    )
    print(f"  peak memory {peak_gigabytes():.2f} GB, {1e6 * peak_gigabytes() / nodes:.0f} kB a node")


def engines(count: int = 1) -> None:
    """Clipped gradients by each engine: 100 MLPs 64-64-10, batch 64; and 8 of the small convolutional net, batch 32."""
    with threads(count):
        for net, nodes, batch in ((models.mlp((64, 64, 10)), 100, 64), (models.cnn((1, 28, 28), 10), 8, 32)):
            title = f"{nodes} x {net}, batch {batch}, {count} thread(s)"
            compare(title, engine_actions(net, nodes, batch), repeat=2, turns=3)


def engine_actions(net: models.Model, nodes: int, batch: int) -> dict[str, Callable[[], object]]:
    """Gradients of one batch, clipped and not, by every engine that takes the model; the chosen one first."""
    draw = torch.Generator().manual_seed(0)
    x, clip = net.start(nodes, draw), parse_clipping("per-example", 1.0)
    inputs = torch.randn(nodes, batch, int(np.prod(net.shape or (net.layout.shapes[0][1],))), generator=draw)
    targets = torch.randint(10, (nodes, batch), generator=draw)
    stack = Stack(inputs, targets, torch.full((nodes, batch), 1 / batch))
    found: dict[str, Callable[[], object]] = {}
    for name in dict.fromkeys((engine_for(net).name, "functional")):
        engine = engine_for(net, name)
        found[f"{name}, clipped"] = partial(engine.clipped, x, stack, clip)
        found[f"{name}, not clipped"] = partial(engine.total, x, stack)
    return found


if __name__ == "__main__":
    parts = {
        "simulators": simulators,
        "private": private,
        "draws": draws,
        "whole": whole,
        "scale": scale,
        "engines": engines,
        "simulation": simulation,
    }
    if len(sys.argv) > 1:
        parts[sys.argv[1]](**settings(sys.argv[2:]))
    else:  # each in its own process, so that its peak memory is its own
        for words in (
            ["simulators"],
            ["simulators", "count=2"],
            ["private"],
            ["draws"],
            ["whole"],
            ["scale"],
            ["engines"],
            ["engines", "count=2"],
            ["simulation", "nodes=1000"],
            ["simulation", "nodes=10000"],
        ):
            subprocess.run([sys.executable, "-m", "benchmarks.learning", *words], check=True)
