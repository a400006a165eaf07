"""Simulation: all nodes in one process, with metrics as it goes and the privacy guarantees of the run; of a model of
ours (`simulate`), or of a torch module with torch loaders (`make_private`).

    >>> from sottovoce import algorithm, metropolis
    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> from sottovoce.learning.tasks import task
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=8), model("softmax", digits))
    >>> clipped = job.gradients("cycle:10x5", "per-example", 1.0)
    >>> run = simulate(algorithm("dp-d-sgd", sigma=2.0, step_size=0.5), metropolis("ring:8"), clipped, rounds=50)
    >>> run.metrics[-1].metric.average > 0.7, run.metrics[-1].messages
    (True, 800)
    >>> round(run.guarantees.headline.mu, 3), str(run.guarantees.headline.kind)
    (1.581, 'any-training')

Noise and batches are drawn from a key of 128 secret bits, a fresh one for each run. With the same seed and the same
`noise_key` models are the same after every round, however often a run is interrupted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data import Dataset as TorchDataset

from sottovoce.algorithms.registry import algorithm as named_algorithm
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.graphs import Graph
from sottovoce.core.grid import ExactNoiseChoice
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.topologies import Topology, metropolis
from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset, few, from_arrays
from sottovoce.learning.models import Model, wrap_module
from sottovoce.learning.partitioning import Partition
from sottovoce.learning.tasks import Gradients, Task
from sottovoce.learning.tasks import task as task_of
from sottovoce.run.privacy_report import PrivacyReport, report_privacy
from sottovoce.run.recording import Messages, Recorder
from sottovoce.run.run_accountant import calibrate_run
from sottovoce.run.training_run import (
    Measurement,
    RoundCallback,
    TrainingRun,
    measure,
    measured_rounds,
    prepare_run,
)
from sottovoce.support.config import RecordingSettings
from sottovoce.support.threads import threads as torch_threads


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run: where every node ended (N x D), what was measured, and, when asked, its privacy guarantees.

    `nonfinite` is the number of gradients that were left out; it depends on the data itself, and no figure covers it.
    """

    training_run: TrainingRun
    models: Tensor
    metrics: tuple[Measurement, ...]
    delta: float
    nonfinite: int
    messages: Messages | None = None

    def __repr__(self) -> str:
        run, last = self.training_run, self.metrics[-1]
        measured = f"{last.metric_name} {last.metric.average:.4f} of the average model"
        return f"Run({run.algorithm.name} on {run.topology.name}, {run.rounds} rounds: {measured})"

    @cached_property
    def guarantees(self) -> PrivacyReport:
        """The account of this run, for everyone as the adversary and for nodes where that is cheap."""
        return report_privacy(self.training_run, delta=self.delta)


def simulate(
    algorithm: Algorithm,
    topology: Topology,
    task: Task | Gradients,
    *,
    rounds: int,
    seed: int = 0,
    noise_key: RandomSource | None = None,
    adjacency: str = "record",
    epsilon: float | None = None,
    delta: float = 1e-5,
    view: str = "everyone",
    same_start: bool = True,
    exact_noise: ExactNoiseChoice = "auto",
    every: int = 10,
    test_rows: int | None = None,
    threads: int | None = None,
    on_round: RoundCallback | None = None,
    record: RecordingSettings | None = None,
) -> Run:
    """Train, and measure every few rounds. `task.gradients(...)` says which batches are drawn and how they are clipped.

    The algorithm's sensitivity is set to that of the clipped gradients under `adjacency`; its noise is in units of it.
    With `epsilon`, sigma is replaced by the smallest that meets it at `delta` against `view`, as with `privacy.epsilon`
    in a run file: sampling is counted. `exact_noise` says whether nodes release values on a grid, so that guarantees
    cover rounding; by default `with_exact_noise` decides. `threads` says how many threads train, one by default.
    `on_round` is called after each round. `record` says which nodes keep the models they receive, in `run.messages`.
    With a `noise_key` the run can be repeated, and whoever knows the key knows the noise; with a `SecretSource()` in
    its place nobody can repeat it.
    """
    if every < 1:
        raise InputError(
            f"metrics every {every} rounds", "it must be a whole number, 1 or more", "give 10, for example"
        )
    training_run = prepare_run(
        algorithm, topology, task, rounds=rounds, seed=seed, noise_key=noise_key, adjacency=adjacency,
        same_start=same_start, exact_noise=exact_noise,
    )  # fmt: skip
    if epsilon is not None:
        training_run = calibrate_run(training_run, epsilon=epsilon, delta=delta, view=view).training_run
    recorder = None if record is None else Recorder(training_run, record)
    metrics = []
    with torch_threads(threads):
        played = measured_rounds(
            training_run, training_run.before(), every=every, test_rows=test_rows, callbacks=(on_round, recorder)
        )
        for state, measurement in played:
            last = state
            if measurement is not None:
                metrics.append(measurement)
    messages = None if recorder is None else recorder.messages
    return Run(training_run, training_run.models(last), tuple(metrics), delta, last.nonfinite, messages)


# --- a torch module ---------------------------------------------------------------------------------------------------


class PrivateTraining:
    """Training of a module at every node, round by round, in a loop of yours: `for played in private`.

    The loop may end early. Whoever decides that looks at models that depend on rows, so that `guarantees` are about all
    rounds that were planned.
    """

    def __init__(self, training_run: TrainingRun, model: Model, delta: float) -> None:
        self.training_run, self.model, self.delta = training_run, model, delta
        self.state = training_run.before()

    def __repr__(self) -> str:
        return f"PrivateTraining({self.model.name}, {self.state.rounds} of {self.training_run.rounds} rounds)"

    def __iter__(self) -> Iterator[int]:
        """Play the rounds that are left; says after each how many were played."""
        for _, state in self.training_run.play(self.state):
            self.state = state
            yield state.rounds

    @cached_property
    def guarantees(self) -> PrivacyReport:
        """The account of all rounds, as of a `Run`."""
        return report_privacy(self.training_run, delta=self.delta)

    @property
    def models(self) -> Tensor:
        """Where every node stands, N x D."""
        return self.training_run.models(self.state)

    def measure(self) -> Measurement:
        """Loss and metric of every node's model on the test rows."""
        return measure(self.training_run, self.state, 0.0)

    def of(self, node: int) -> nn.Module:
        """The module of one node."""
        models = self.models
        if not 0 <= node < len(models):
            raise InputError(f"node {node}", f"there are {len(models)}, from 0", "choose one of them")
        return self._with(models[node])

    @property
    def average(self) -> nn.Module:
        """The module whose parameters are the means over all nodes."""
        return self._with(self.models.mean(0))

    def _with(self, row: Tensor) -> nn.Module:
        trained = copy.deepcopy(self.model.module)
        trained.load_state_dict(self.model.layout.views(row), strict=False)
        return trained


def make_private(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loaders: Sequence[DataLoader[Any]],
    *,
    graph: str | Graph,
    loss: str,
    test: TorchDataset[Any],
    rounds: int,
    max_grad_norm: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    schedule: str = "constant",
    seed: int = 0,
) -> PrivateTraining:
    """Train a module by DP-D-SGD: Poisson batches, gradients clipped per example, Gaussian noise, gossip.

    There is a loader for each node, whose data set gives pairs of an input and a target, and is read once. Loaders that
    shuffle become Poisson batches of the same expected size, as in Opacus. All nodes begin with the module's weights,
    which are public. `loss` is cross-entropy, logistic or squared. Give exactly one of `noise_multiplier` (noise over
    `max_grad_norm`, as in Opacus) and `epsilon`; both are about a record that is added or removed, and an adversary
    that sees every message. `test` is public.
    """
    if (noise_multiplier is None) == (epsilon is None):
        raise InputError(
            "both or neither of noise_multiplier and epsilon", "exactly one of them decides the noise", "give one"
        )
    batch, settings = _batch_rule(loaders), _step_settings(optimizer, module)
    data, shards = _joined([loader.dataset for loader in loaders], test)
    net = metropolis(graph)
    if net.n != len(loaders):
        raise InputError(f"{len(loaders)} loaders", f"the graph has {net.n} nodes", "give one for each node")
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    wrapped = wrap_module(module, loss, shape=data.shape if len(data.shape) > 1 else None, given=trained)
    clipped = task_of(data, shards, wrapped).gradients(batch, "per-example", max_grad_norm)
    sigma = 1.0 if noise_multiplier is None else noise_multiplier / 2  # ours is over the change of a replaced record
    private = named_algorithm("dp-d-sgd", sigma=sigma, schedule=schedule, rounds=rounds, **settings)
    run = prepare_run(private, net, clipped, rounds=rounds, seed=seed)
    if epsilon is not None:
        run = calibrate_run(run, epsilon=epsilon, delta=delta).training_run
    return PrivateTraining(run, wrapped, delta)


def _batch_rule(loaders: Sequence[DataLoader[Any]]) -> str:
    """The batches of all loaders; refused where there is no account of how they draw."""
    found = {}
    for node, loader in enumerate(loaders):
        if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, Sized) or not len(loader.dataset):
            raise InputError(
                f"loader {node} is no DataLoader, or its data set has no length, or no rows",
                "the number of records of a node must be known", "give DataLoader(map_style_data, batch_size=...)",
            )  # fmt: skip
        rows, size, sampler = len(loader.dataset), loader.batch_size, loader.sampler
        if size is not None and size >= rows and isinstance(sampler, SequentialSampler | RandomSampler):
            found["full"] = node
        elif size is None or not isinstance(sampler, RandomSampler) or sampler.replacement:
            raise InputError(
                f"loader {node} draws by {type(sampler).__name__}, {size or 'no'} rows at once",
                "there is no account of such batches", "use DataLoader(data, batch_size=B, shuffle=True)",
            )  # fmt: skip
        else:
            found[f"poisson:{size / rows:.6g}"] = node
    if len(found) != 1:
        raise InputError(
            f"loaders draw {few(sorted(found))}", "all nodes draw the same share of their rows",
            "choose batch sizes in proportion to data sets",
        )  # fmt: skip
    return next(iter(found))


def _step_settings(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """What an optimiser is here, as settings of an algorithm; refused where it is nothing."""
    kind, groups = type(optimizer), optimizer.param_groups
    group = groups[0]
    known: dict[str, Any] = {"step_size": float(group["lr"])}
    plain = not any(group.get(name) for name in ("nesterov", "dampening", "amsgrad", "maximize"))
    if kind is torch.optim.SGD and plain and not (group["momentum"] and group["weight_decay"]):
        if group["momentum"]:
            known["optimizer"] = f"momentum:{group['momentum']}"
    elif kind is torch.optim.AdamW or (kind is torch.optim.Adam and not group["weight_decay"]):
        plain = plain and group["eps"] == 1e-8
        known["optimizer"] = "adam:{},{}".format(*group["betas"])
    else:
        plain = False
    trained = {id(value) for value in module.parameters() if value.requires_grad}
    if not plain or len(groups) > 1 or {id(value) for value in group["params"]} != trained:
        raise InputError(
            f"optimizer {kind.__name__} with these settings",
            "steps here are those of SGD with momentum or weight decay, Adam without weight decay, or AdamW, "
            "for all trained parameters alike",
            "use torch.optim.AdamW(module.parameters()), for example",
        )
    return {**known, "weight_decay": float(group["weight_decay"])}


def _joined(datasets: Sequence[TorchDataset[Any]], test: TorchDataset[Any]) -> tuple[Dataset, Partition]:
    """All rows one after the other, and which node holds which."""
    parts = [_arrays(one, f"data set {node}") for node, one in enumerate(datasets)]
    if not parts:
        raise InputError("no data sets", "every node has one", "give a list of torch data sets")
    inputs, targets = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    found = from_arrays(inputs, targets, test=_arrays(test, "test"))
    stops = np.cumsum([len(part[1]) for part in parts])
    held = tuple(np.arange(stop - len(part[1]), stop) for part, stop in zip(parts, stops, strict=True))
    return found, Partition(held, "own data sets", 0)


def _arrays(rows: TorchDataset[Any], what: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    if not isinstance(rows, Sized) or not len(rows):
        raise InputError(
            f"{what} has no length, or no rows",
            "the number of records of a node must be known",
            "give a map-style data set",
        )
    pairs = [rows[number] for number in range(len(rows))]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{what} does not return pairs", "a record is an input and a target", "return (input, target)")
    inputs = np.stack([torch.as_tensor(one).numpy() for one, _ in pairs])
    return inputs, np.array([torch.as_tensor(target).item() for _, target in pairs])
