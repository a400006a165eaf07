"""Tasks: a data set, who holds which rows of it, and the model to learn from them.

    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=16), model("softmax", digits))
    >>> job
    Task(digits on 16 nodes, Model('softmax', 650 parameters, cross-entropy))
    >>> gradient = job.gradients("cycle:10x5", "per-example", 1.0)
    >>> round(gradient.sensitivity(), 6), gradient.participation()
    (0.11236, Participation(times=10, apart=5, share=1.0, shuffled=False))

`gradient` is what the loop calls; it also tells the accountant how much and how often a record counts.

Shapes: S local steps, N nodes, B examples, F inputs, D parameters.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.noise import PerNode
from sottovoce.core.participation import Participation, Sampling
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.sensitivity import largest, per_node
from sottovoce.errors import InputError
from sottovoce.learning.augmentation import Views, parse_views
from sottovoce.learning.batches import Batches, parse_batches
from sottovoce.learning.catalogue import PublicStatistic, Targets
from sottovoce.learning.clipping import Clipped, Clipping, clip_rows, parse_clipping
from sottovoce.learning.datasets import Dataset, few
from sottovoce.learning.engines import Engine, Functional, Stack, engine_for
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.model_checks import check_gradients, check_model
from sottovoce.learning.models import Model
from sottovoce.learning.modules import only_linear_layer
from sottovoce.learning.partitioning import Partition
from sottovoce.learning.prediction_scores import score_predictions
from sottovoce.learning.starts import is_of
from sottovoce.learning.survival import score_times
from sottovoce.privacy.convexity import DECLARE_NORM
from sottovoce.support.text import JSON
from sottovoce.support.threads import chunks, for_each, torch_divides, workers

GATHERED = 1 << 22
"""About so many numbers of a batch are copied together at once: 64 MB at a time took twice as long as 16."""

CACHED = 1 << 22
"""About so many numbers of models and batches are in use at once, where a block of nodes may be as small as that."""

CPU = torch.device("cpu")
"""Noise, batches and starting points are always drawn by the processor, wherever models, rows and gradients lie."""

UNMOVED = 0.5
"""The threshold at which the likelier of two classes is decided for."""

CONVEX = {"squared": "linear", "logistic": "logistic", "cross-entropy": "softmax", "hazards": "hazards"}
"""What one linear layer with a loss is called."""


@dataclass(frozen=True)
class Evaluation:
    """Loss and metric (accuracy, rmse or log_loss) on the test rows: of every node's model, and of the average."""

    metric_name: str
    loss: NDArray[np.float64]
    metric: NDArray[np.float64]
    average_loss: float
    average_metric: float


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Training and test rows as tensors, with the model and its engine."""

    dataset: Dataset
    shards: Partition
    model: Model
    engine: Engine
    dtype: torch.dtype
    device: torch.device = CPU
    threshold: float = UNMOVED

    def __repr__(self) -> str:
        return f"Task({self.dataset.name} on {len(self.shards.indices)} nodes, {self.model})"

    @cached_property
    def inputs(self) -> Tensor:
        """All training rows; made when they are first needed, for a task that hosts few nodes needs few."""
        return self._inputs(self.dataset.examples)

    @cached_property
    def test_inputs(self) -> Tensor:
        """The test rows."""
        return self._inputs(Examples(self.dataset.test_inputs))

    def _inputs(self, examples: Examples) -> Tensor:
        features = self.model.features
        rows = examples[:] if features is None else features.rows(examples)
        return torch.from_numpy(rows).to(self.device, self.dtype)

    @cached_property
    def targets(self) -> Tensor:
        """What the training rows are to give."""
        return self._targets(self.dataset.targets)

    @cached_property
    def test_targets(self) -> Tensor:
        """What the test rows are to give."""
        return self._targets(self.dataset.test_targets)

    def _targets(self, given: Targets) -> Tensor:
        found = torch.from_numpy(given).to(self.device)
        return found if self.model.loss.name == "cross-entropy" else found.to(self.dtype)

    def start(self, generator: torch.Generator, *, same: bool = True, nodes: Sequence[int] | None = None) -> Tensor:
        """A starting point for every node, N x D, or for some of them."""
        which = len(self.shards.indices) if nodes is None else nodes
        return self.model.start(which, generator, same=same, dtype=self.dtype).to(self.device)

    def hosted(self, nodes: NDArray[np.intp]) -> Task:
        """The same with the training rows of some nodes alone; shards of the others are left without their rows."""
        held = [self.shards.indices[node] for node in nodes]
        stops = np.cumsum([len(rows) for rows in held])
        indices = list(self.shards.indices)
        for node, rows, stop in zip(nodes, held, stops, strict=True):
            indices[node] = np.arange(stop - len(rows), stop)
        kept = self.dataset.only(np.concatenate(held))
        return replace(self, dataset=kept, shards=replace(self.shards, indices=tuple(indices)))

    def gradients(
        self,
        batch: str | Batches,
        clip: str | Clipping = "none",
        bound: float | None = None,
        *,
        noise_key: RandomSource | None = None,
        local_steps: int = 1,
        step_size: float | None = None,
        weigh_nodes: str = "equal",
        augment: str = "",
        views: int = 1,
    ) -> Gradients:
        """The gradient that the loop calls, from batches and clipping by name or as objects."""
        drawn = parse_batches(batch, self.shards, noise_key) if isinstance(batch, str) else batch
        clipped = self._clipping(clip, bound) if isinstance(clip, str) else clip
        if clipped.by_example:
            check_gradients(self.dataset, self.model, self.dtype)
        seen = parse_views(augment, views, self.dataset.shape if self.model.features is None else ())
        return Gradients(self, drawn, clipped, local_steps, step_size, weigh_nodes, views=seen)

    def _clipping(self, kind: str, bound: float | None) -> Clipping:
        return parse_clipping(kind, bound, self.largest_gradient() if kind == "bounded" else None)

    def evaluate(self, points: Tensor, rows: int | None = None, average: Tensor | None = None) -> Evaluation:
        """On all test rows, or on the first of them; in chunks that fit into memory.

        `average` is that of all models, where `points` are not all of them.
        """
        loss, metric = self._evaluated(points, rows)
        middle = points.mean(0) if average is None else average
        average_loss, average_metric = self._evaluated(middle.unsqueeze(0), rows)
        return Evaluation(
            self.model.loss.metric, loss.cpu().numpy(), metric.cpu().numpy(), float(average_loss), float(average_metric)
        )

    def _evaluated(self, points: Tensor, rows: int | None) -> tuple[Tensor, Tensor]:
        inputs, targets, kind = self.test_inputs[:rows], self.test_targets[:rows], self.model.loss
        loss, score = torch.zeros(2, len(points), dtype=torch.float64, device=self.device)
        for some in chunks(len(inputs), self.engine.examples_at_once(len(points), inputs.shape[1])):
            shown, wanted = (part[some].expand(len(points), *part[some].shape) for part in (inputs, targets))
            outputs = self.engine.outputs(points, shown)
            loss += kind.each(outputs, wanted).sum(-1, dtype=torch.float64)
            score += kind.score(self._at_threshold(outputs), wanted).sum(-1, dtype=torch.float64)
        return loss / len(inputs), kind.finish(score, len(inputs))

    def _at_threshold(self, outputs: Tensor) -> Tensor:
        """Outputs that decide for the second of two classes where its probability is above the threshold."""
        if self.threshold == UNMOVED:
            return outputs
        moved = outputs.clone()
        moved[..., -1] -= math.log(self.threshold / (1 - self.threshold))
        return moved

    def fine_tuned(self, models: Tensor, *, steps: int, step_size: float, parts: Sequence[str] | None = None) -> Tensor:
        """The model of every node after steps on all rows of its own, of parameters whose names begin with `parts`.

        Nothing of it is noised, and no figure covers it: it stays at home.
        """
        moves = {
            name: torch.full(shape, parts is None or any(is_of(name, part) for part in parts), dtype=self.dtype)
            for name, shape in zip(self.model.layout.names, self.model.layout.shapes, strict=True)
        }
        own, factor = models.clone(), step_size * self.model.layout.flatten(moves).to(models)
        gradient = self.gradients("full")
        for step in range(steps):
            own -= factor * gradient(step, own)
        return own

    def accuracy_at_home(self, models: Tensor) -> NDArray[np.float64]:
        """How often each node's model is right, on test rows weighed by the classes that the node has: it stays there.

        nan where it has classes that no test row has.
        """
        targets, classes = self.dataset.test_targets, len(self.dataset.classes)
        if not classes:
            raise InputError(f"accuracy on {self.dataset.name}", "it has no classes", "use evaluate")
        shown = [part.expand(len(models), *part.shape) for part in (self.test_inputs, self.test_targets)]
        outputs = self.engine.outputs(models, shown[0])
        right = self.model.loss.score(outputs, shown[1]).double().cpu().numpy()
        there = np.bincount(targets.astype(int), minlength=classes)
        with np.errstate(invalid="ignore"):
            each = np.stack([right[:, targets == one].sum(1) for one in range(classes)], axis=1) / there
        held = [np.bincount(self.dataset.targets[rows].astype(int), minlength=classes) for rows in self.shards.indices]
        shares = np.stack(held) / np.sum(held, axis=1, keepdims=True)
        return np.where(shares > 0, shares * each, 0.0).sum(axis=1)

    def score(self, point: Tensor, rows: int | None = None) -> dict[str, JSON]:
        """What `score_predictions` says of one model on the test rows, or on the first of them."""
        inputs = self.test_inputs[:rows]
        parts = chunks(len(inputs), self.engine.examples_at_once(1, inputs.shape[1]))
        outputs = torch.cat([self.model.outputs(point, inputs[some]) for some in parts]).double().cpu().numpy()
        data, targets = self.dataset, self.dataset.test_targets[:rows].astype(np.float64)
        if data.periods:
            return score_times(outputs, targets, data.periods)
        if self.model.loss.name == "squared":
            outputs, targets = data.in_own_unit(outputs), data.in_own_unit(targets)
        return score_predictions(self.model.loss.name, outputs, targets, data.classes, threshold=self.threshold)

    @property
    def convex_model(self) -> str | None:
        """Which convex model this is, for `non_expansive`: decided by its layers and loss, whatever its name."""
        return None if only_linear_layer(self.model.module) is None else CONVEX[self.model.loss.name]

    @property
    def public_statistics(self) -> tuple[PublicStatistic, ...]:
        """What of the rows is used before a run begins, and is covered by no privacy figure."""
        return (*self.dataset.public_statistics, *self.shards.public_statistics)

    @property
    def feature_norm(self) -> float | None:
        """The declared bound on the norm of what a linear model sees of a row, a one for the bias; None without one."""
        layer, bound = only_linear_layer(self.model.module), self.model.inputs(self.dataset.examples).norm_bound
        if layer is None or bound is None:
            return None
        return bound if layer.bias is None else math.hypot(bound, 1.0)

    def largest_gradient(self) -> float:
        """The largest norm of one example's gradient, at any point, for rows of the declared norm.

        The gradient of a linear model is the outer product of `Loss.errors` and the row, so norms multiply.
        """
        wanted = "clipping bounded"
        layer = only_linear_layer(self.model.module)
        if layer is None:
            raise InputError(
                f"{wanted} of {self.model.name}", "the norm of rows bounds gradients of linear models only",
                "use clipping per-example with a bound",
            )  # fmt: skip
        if math.isinf(self.model.loss.largest_error):
            raise InputError(
                f"{wanted} with {self.model.loss.name} loss",
                "its gradient grows with the error, whatever the rows are",
                "use clipping per-example with a bound",
            )  # fmt: skip
        if self.feature_norm is None:
            raise InputError(
                f"{wanted} without a declared norm", "its bound follows from the norm of rows", DECLARE_NORM
            )
        return self.model.loss.error_of(layer.out_features) * self.feature_norm


def task(
    dataset: Dataset,
    shards: Partition,
    model: Model,
    *,
    engine: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = CPU.type,
    threshold: float = UNMOVED,
    class_weights: Mapping[str, float] | None = None,
) -> Task:
    """Combine data, partition and model; a model that does not fit, or that mixes examples, is refused.

    Of two classes, the second is decided for where its probability is above the `threshold`. The loss of an example is
    multiplied with the weight of its class. Both are public.
    """
    if class_weights is not None:
        model = replace(model, loss=model.loss.weighted(_of_each_class(class_weights, dataset)))
    dataset = dataset if model.features is None else dataset.with_plain_pixels()
    check_model(dataset, model, dtype)
    if threshold != UNMOVED and len(dataset.classes) != 2:
        raise InputError(
            f"threshold {threshold:g} on {dataset.name}, which has {len(dataset.classes)} classes",
            "it is for two classes: the second is decided for above it", "leave it out",
        )  # fmt: skip
    where = find_device(device)
    moved = model if where == CPU else replace(model, module=copy.deepcopy(model.module).to(where))
    return Task(dataset, shards, moved, engine_for(moved, engine), dtype, where, threshold)


def _of_each_class(weights: Mapping[str, float], dataset: Dataset) -> list[float]:
    if set(weights) != set(dataset.classes):
        known = f"classes are {few(dataset.classes)}" if dataset.classes else f"{dataset.name} has no classes"
        raise InputError(f"class_weights of {few(tuple(weights))}", known, "give one for each class, or none")
    return [weights[name] for name in dataset.classes]


def find_device(name: str) -> torch.device:
    """A device by torch's name for it, if it is here: `cpu`, `cuda`, `cuda:1`, `mps`."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(
            f"machine.device {name!r:.40}", f"torch {torch.__version__} finds no such device here", 'use "cpu"'
        ) from None
    return device


class DrawnExamples(NamedTuple):
    """The batches of a round: rows of the training set, and their weights, both S x N x B.

    Weights are one over the divisor of the batch; zero marks padding. `coins` are those of views, N x B x K.
    """

    rows: Tensor
    weights: Tensor
    coins: Tensor | None = None


@dataclass(eq=False, repr=False)
class Gradients:
    """What the loop calls in each round, and what the accountant needs to know about it.

    With `local_steps` a node takes so many steps of `step_size` by itself, one batch each, and releases the sum of
    their gradients, which is clipped as a whole or not at all. `nonfinite` counts gradients left out so far because
    they were not finite. Where nodes are weighed by size, each releases its gradient times the number of its records
    over their mean, as FedAvg weighs its clients: the average over nodes is that over records. Rows are those of some
    `nodes`, or of all.
    """

    task: Task
    batches: Batches
    clipping: Clipping
    local_steps: int = 1
    step_size: float | None = None
    weigh_nodes: str = "equal"
    nodes: NDArray[np.intp] | None = None
    views: Views | None = None
    nonfinite: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.batches.node_weights(self.weigh_nodes)  # refuses other words
        there = len(self.task.shards.indices)
        if self.batches.nodes != there:
            raise InputError(f"batches for {self.batches.nodes} nodes", f"the task has {there}", "use its shards")
        if self.local_steps < 1 or (self.local_steps > 1) != (self.step_size is not None):
            raise InputError(
                f"{self.local_steps} local steps with step size {self.step_size}",
                "several local steps need a step size",
                "give both",
            )
        if self.local_steps > 1 and self.clipping.by_example:
            raise InputError(
                f"{self.local_steps} local steps with {self.clipping.kind} clipping",
                "a record moves the points of later steps, and with them the gradients of all records",
                "use one local step, or whole-gradient clipping",
            )
        if self.views is not None and self.local_steps > 1:
            raise InputError(
                f"views of records with {self.local_steps} local steps",
                "they are for gradients of one step",
                "take one",
            )
        self._engine = self.task.engine
        if self.views is not None:
            self._engine = Functional(self.task.model, views=self.views.count)
        self._nodes = np.arange(there) if self.nodes is None else self.nodes
        self._memory = threading.local()

    def hosted(self, nodes: NDArray[np.intp]) -> Gradients:
        """The gradients of some nodes alone, with their data alone: the same batches, by the same keys."""
        job = self.task.hosted(nodes)
        return replace(self, task=job, batches=replace(self.batches, shards=job.shards.indices), nodes=nodes)

    def keyed(self, key: RandomSource) -> Gradients:
        """The same with batches that are drawn from this key."""
        return replace(self, batches=replace(self.batches, key=key))

    def unweighed(self) -> Gradients:
        """The same with nodes that count alike."""
        return replace(self, weigh_nodes="equal")

    @property
    def node_weights(self) -> NDArray[np.float64]:
        """What each node multiplies its gradient with."""
        return self.batches.node_weights(self.weigh_nodes)

    def __call__(self, round: int, points: Tensor) -> Tensor:
        """Every node's released gradient at its own point."""
        one = points.new_ones(1, 1)
        if (one @ one).dtype != one.dtype:
            raise InputError(
                "gradients under torch.autocast", "clipped gradients would be rounded above their bound",
                "leave autocast out; machine.precision is float32 or float64",
            )  # fmt: skip
        found = self._unweighted(round, points)
        if self.weigh_nodes == "equal":
            return found
        return found * torch.from_numpy(self.node_weights[self._nodes]).to(found).unsqueeze(1)

    def _unweighted(self, round: int, points: Tensor) -> Tensor:
        """The same before nodes are weighed: blocks of nodes, each through all steps while it is in the cache."""
        drawn = self._examples(round)
        blocks = list(chunks(len(points), self._at_once(points, drawn)))
        if len(blocks) == 1:
            with torch_divides():
                rows, nonfinite = self._released(drawn, points, blocks[0])
            self.nonfinite += nonfinite
            return rows
        rows, counts = torch.empty_like(points), list[int]()

        def act(nodes: slice) -> None:
            rows[nodes], nonfinite = self._released(drawn, points[nodes], nodes)
            counts.append(nonfinite)

        for_each(act, blocks, alone=not self._engine.threaded)
        self.nonfinite += sum(counts)
        return rows

    def _examples(self, round: int) -> DrawnExamples:
        """The batches of all nodes here, in all steps of a round."""
        first, device = round * self.local_steps, self.task.device
        drawn = self.batches.draw_several(range(first, first + self.local_steps), self._nodes.tolist())
        weights = torch.from_numpy(drawn.present / self.batches.divisors[self._nodes, None])
        coins = None
        if self.views is not None:
            key, examples = self.batches.key, drawn.rows.shape[2]
            coins = torch.stack([self.views.coins(key, node, round, examples) for node in self._nodes.tolist()])
        return DrawnExamples(torch.from_numpy(drawn.rows).to(device), weights.to(device, self.task.dtype), coins)

    def _at_once(self, points: Tensor, drawn: DrawnExamples) -> int:
        """So many nodes that their models and inputs stay in the cache, and that every thread has a block."""
        inputs = drawn.rows.shape[2] * self.task.inputs.shape[1] * (1 if self.views is None else self.views.count)
        if self._engine.threaded and points.device == CPU:
            return max(1, min(CACHED // (3 * points.shape[1] + inputs), -(-len(points) // workers())))
        return max(1, GATHERED // inputs)

    def _released(self, drawn: DrawnExamples, points: Tensor, nodes: slice) -> Clipped:
        """What some nodes release, which stand at these points: sums along their steps."""
        engine, clip, step_size = self._engine, self.clipping, self.step_size or 0.0
        first, *others = zip(drawn.rows[:, nodes], drawn.weights[:, nodes], strict=True)
        stack = self._gathered(*first)
        if self.views is not None and drawn.coins is not None:
            stack = stack._replace(inputs=self.views.of(stack.inputs, drawn.coins[nodes]))
        if clip.by_example:
            return engine.clipped(points, stack, clip)
        found = engine.total(points, stack)
        for rows, weights in others:
            found += engine.total(torch.add(points, found, alpha=-step_size), self._gathered(rows, weights))
        return Clipped(found, 0) if clip.kind == "none" else clip_rows(found, clip)

    def _gathered(self, rows: Tensor, weights: Tensor) -> Stack:
        """A batch of each node, N x B, with zeros in place of rows that take no part.

        A weight of zero would not do: zero times infinity is not zero. Each thread has memory that it uses again: new
        memory costs more than what is copied there.
        """
        inputs, absent = self.task.inputs, (weights == 0).flatten().nonzero().flatten()
        numbers = rows.numel() * inputs.shape[1]
        if len(held := getattr(self._memory, "held", inputs.new_empty(0))) < numbers:
            held = self._memory.held = inputs.new_empty(numbers)
        memory = held[:numbers].view(-1, inputs.shape[1])
        chosen = torch.index_select(inputs, 0, rows.flatten(), out=memory).index_fill_(0, absent, 0)
        targets = self.task.targets.take(rows.flatten()).index_fill_(0, absent, 0)
        return Stack(chosen.view(*rows.shape, inputs.shape[1]), targets.view(rows.shape), weights)

    def check(self, rounds: int) -> None:
        """Refuse a run for which not enough batches are planned."""
        self.batches.check(rounds * self.local_steps)

    def sensitivity(self, adjacency: str = "record", change: str = "replace") -> float:
        """How far what a node releases in one round can move: the largest over nodes."""
        return largest(self.sensitivities(adjacency, change))

    def sensitivities(self, adjacency: str = "record", change: str = "replace") -> PerNode:
        """The same for each node, one number where they are alike: see `Clipping.sensitivities`."""
        return per_node(self.node_weights * self.clipping.sensitivities(self.batches, adjacency, change))

    def participation(self, adjacency: str = "record") -> Participation:
        """In which rounds a change can show. Local steps bring the batches of a cycle closer together."""
        scheme = self.batches.participation(adjacency)
        if scheme == Participation() or self.local_steps == 1:
            return scheme
        apart, rest = divmod(scheme.apart, self.local_steps)
        return Participation(scheme.times, apart, shuffled=scheme.shuffled) if not rest else Participation()

    def sampling(self, node: int) -> Sampling | None:
        """How this node's records are sampled; with local steps, and for whole gradients, sampling does not count."""
        return self.batches.sampling(node) if self.clipping.by_example else None
