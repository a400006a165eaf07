"""A training run: all that decides its numbers, its rounds one after the other, and what is measured of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.algorithm import Algorithm, rule_of
from sottovoce.core.arrays import Rows, to_numpy
from sottovoce.core.compression import Identity
from sottovoce.core.grid import ExactNoiseChoice, with_exact_noise
from sottovoce.core.loop import check_arguments, iterate_rounds, start_run
from sottovoce.core.messages import LoopState, PlayedRound, Traffic
from sottovoce.core.noise import NoNoise
from sottovoce.core.participation import Adjacency, parse_adjacency
from sottovoce.core.random_streams import NoiseKey, RandomSource, check_seed, public_seed
from sottovoce.core.sensitivity import largest
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import InProcess, Nodes, Transport
from sottovoce.distributed.coordinator import ALONE, Coordinator
from sottovoce.errors import Diverged, InputError
from sottovoce.learning.batches import Batches
from sottovoce.learning.models import Mean
from sottovoce.learning.partitioning import check_names
from sottovoce.learning.tasks import CPU, Gradients, Task
from sottovoce.privacy.amplification import SampledNodes
from sottovoce.support.text import JSON
from sottovoce.tracing.certificate import Certificate
from sottovoce.tracing.round_maps import ClassMaps
from sottovoce.tracing.tracer import trace_all_maps

if TYPE_CHECKING:
    from sottovoce.core.participation import Participation


class RunState(NamedTuple):
    """Where a run stands after `rounds` rounds: the state of the loop, and what was sent so far.

    `nonfinite` gradients and `wire_bytes` are counted by each process for itself.
    """

    rounds: int
    loop_state: LoopState
    sent: Traffic
    nonfinite: int
    wire_bytes: int = 0


RoundCallback: TypeAlias = Callable[[PlayedRound, RunState], None]
"""Called after each round with the round as it was played, and where the run stands after it."""


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """An algorithm on a topology, learning a task for so many rounds.

    The algorithm's sensitivity is that of the clipped gradients, of each node its own: noise, which is in units of it,
    follows. `transport` says which nodes live in this process and how their messages travel; gradients are those of
    these nodes. Starting points follow from `seed`, which is public; noise and batches from `noise_key`. The run is
    `reproducible` if whoever started it named the key: others may know it too.
    """

    algorithm: Algorithm
    topology: Topology
    gradients: Gradients
    rounds: int
    seed: int
    noise_key: RandomSource
    adjacency: Adjacency
    same_start: bool
    transport: Transport
    reproducible: bool = False

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.gradients.task

    @property
    def clipped(self) -> bool:
        """Whether anything bounds what a change of data does."""
        return self.gradients.clipping.kind != "none"

    @property
    def participation(self) -> Participation:
        """In which of its rounds a change can show."""
        return self.gradients.participation(self.adjacency).within(self.rounds)

    @property
    def sampled_nodes(self) -> SampledNodes | None:
        """How nodes draw their records, where all do so by chance and one record is what may change."""
        found = [self.gradients.sampling(node) for node in range(self.topology.n)]
        samplings = tuple(how for how in found if how is not None)
        if self.adjacency is not Adjacency.RECORD or len(samplings) < len(found):
            return None
        return SampledNodes(samplings, self.gradients.sensitivities("record", samplings[0].change))

    def hosted_by(self, transport: Transport) -> TrainingRun:
        """The part of this run that one process plays: the nodes of `transport`, with their data alone."""
        everyone = len(transport.nodes) == self.topology.n
        if not everyone and not self.noise_key.shared_alike and self._shares_noise():
            raise InputError(
                f"secret noise of {self.algorithm.name} over processes",
                "nodes share some of it, but each process draws for its own nodes only",
                "use one process, or leave noise out",
            )  # fmt: skip
        if not everyone and self.task.device != CPU:
            raise InputError(
                f'machine.device "{self.task.device}" over processes', "processes exchange only what is in main memory",
                'use one process, or device "cpu"',
            )  # fmt: skip
        gradients = self.gradients if everyone else self.gradients.hosted(transport.nodes)
        return replace(self, transport=transport, gradients=gradients)

    def _shares_noise(self) -> bool:
        """Whether some noise is known to more than one node, or to none of them."""
        noise, mixing = self.algorithm.noise, self.topology.at(0)
        holders = [term.sources.holders for term in (*noise.local(mixing), *noise.edge(mixing))]
        return any((found.sum(axis=1) != 1).any() for found in holders)

    def keyed(self, key: RandomSource) -> TrainingRun:
        """This run with noise and batches from another key."""
        return replace(self, noise_key=key, gradients=self.gradients.keyed(key))

    def starting_models(self, nodes: Nodes) -> Tensor:
        """The models with which some nodes start: public, and the same wherever they are made."""
        generator = torch.Generator().manual_seed(public_seed(self.seed, "starting point"))
        return self.task.start(generator, same=self.same_start, nodes=nodes.tolist())

    def start(self) -> Rows:
        """The loop rows before the first round."""
        compressed = not isinstance(self.algorithm.compression, Identity)
        return self.transport.start(self.starting_models, self.topology.at(0) if compressed else None)

    def before(self) -> RunState:
        """The state before the first round."""
        _, loop_state = start_run(self.algorithm, self.topology, self.start(), self.rounds)
        return RunState(0, loop_state, Traffic(0, 0), 0)

    def models(self, state: RunState) -> Tensor:
        """The models of the nodes that live here, compared with what was accounted for whenever they are asked for."""
        before, _, memory = state.loop_state
        stands = arrays.checked_kind(self.algorithm.point(before))
        self._certificate().compare_models(state.rounds, (before, memory), stands)
        models = self.transport.local(rule_of(self.algorithm).model(memory, stands))
        assert isinstance(models, Tensor)
        return models

    @cached_property
    def maps(self) -> tuple[ClassMaps, ...]:
        """What the maps of the algorithm are, in every round: what is accounted for, and what the run keeps to."""
        return trace_all_maps(self.algorithm, self.topology, rounds=self.rounds)

    def _certificate(self) -> Certificate:
        return Certificate(self.maps, self.algorithm.name, self.transport.nodes, self.transport.local)

    def play(self, state: RunState) -> Iterator[tuple[PlayedRound, RunState]]:
        """The rounds after a state, each with the state that it leads to."""
        self.gradients.nonfinite = state.nonfinite
        played = iterate_rounds(
            self.algorithm, self.topology, self.start(), self.gradients, rounds=self.rounds, seed=self.seed,
            noise_key=self.noise_key, after=(state.rounds, state.loop_state), transport=self.transport,
            watch=self._certificate(),
        )  # fmt: skip
        messages, bits = state.sent
        earlier_bytes = state.wire_bytes - self.transport.wire_bytes
        for now in played:
            traffic = now.traffic
            messages, bits = messages + traffic.messages, bits + traffic.bits
            wire_bytes = earlier_bytes + self.transport.wire_bytes
            yield (
                now,
                RunState(now.round + 1, now.loop_state, Traffic(messages, bits), self.gradients.nonfinite, wire_bytes),
            )


def prepare_run(
    algorithm: Algorithm,
    topology: Topology,
    task: Task | Gradients,
    *,
    rounds: int,
    seed: int = 0,
    noise_key: RandomSource | None = None,
    adjacency: str = "record",
    same_start: bool = True,
    exact_noise: ExactNoiseChoice = "auto",
) -> TrainingRun:
    """Put the parts together, and refuse what does not fit. A bare task is learned with full, unclipped gradients.

    A `noise_key` that is given decides noise and batches; otherwise noise has a fresh one, and batches keep theirs.
    """
    protected = parse_adjacency(adjacency)
    gradients = task.gradients("full") if isinstance(task, Task) else task
    if not isinstance(gradients, Gradients):
        raise InputError(f"a {type(task).__name__} instead of a task", "there is nothing to learn", "build task(...)")
    check_arguments(algorithm, topology, rounds)
    check_seed(seed)
    if algorithm.averaging:
        algorithm = _on_means(algorithm, gradients)
    nodes = len(gradients.task.shards.indices)
    if nodes != topology.n:
        raise InputError(f"a task on {nodes} nodes", f"{topology.name} has {topology.n}", "partition for that many")
    if topology.graph is not None:
        check_names(gradients.task.dataset, gradients.task.shards, topology.graph.labels)
    gradients.check(rounds)
    sensitivity = gradients.sensitivities(protected)
    if math.isfinite(largest(sensitivity)) and not isinstance(algorithm.noise, NoNoise):
        algorithm = replace(algorithm, sensitivity=sensitivity)  # type: ignore[type-var]
    dtype = gradients.task.dtype
    algorithm = with_exact_noise(algorithm, topology, exact_noise, in_float64=dtype == torch.float64)
    topology.require_connected()
    like_start = torch.linspace(0.0, float(not same_start), topology.n, dtype=dtype)[:, None]
    start_run(algorithm, topology, like_start, rounds)  # refuses what does not fit; models come later
    transport = InProcess(topology.n)
    key = NoiseKey.given_or_fresh(noise_key)
    run = TrainingRun(
        algorithm.on(topology), topology, gradients, rounds, seed, key, protected, same_start, transport,
        reproducible=noise_key is not None and noise_key.repeatable,
    )  # fmt: skip
    return run if noise_key is None else run.keyed(key)


def _on_means(algorithm: Algorithm, gradients: Gradients) -> Algorithm:
    """Averaging for which values are the mean targets of nodes: one step down from zero, of all rows, leads there."""
    whole = type(gradients.batches) is Batches and gradients.local_steps == 1
    if type(gradients.task.model.module) is not Mean or not whole:
        raise InputError(
            f"{algorithm.name} on the model {gradients.task.model.name}",
            "it averages values once, the mean target of all rows of each node, and does not train",
            "use the model mean with full batches, or muffliato-sgd or zip-dl, for example",
        )
    return replace(algorithm, step_size=1.0)  # type: ignore[type-var]


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeSummary:
    """One figure of the nodes' models, summarised, and of the average of all models."""

    mean: float
    min: float
    max: float
    average: float

    @staticmethod
    def of(each: NDArray[np.float64], average: float) -> NodeSummary:
        """The summary of one figure per node."""
        return NodeSummary(float(each.mean()), float(each.min()), float(each.max()), average)


@dataclass(frozen=True)
class Measurement:
    """Figures after `round` rounds. `consensus` is the root mean square distance of models from their average.

    `messages` and `bytes` count what all nodes have sent so far. `wire_bytes` is what processes handed to the wire, for
    messages between them; None where all nodes live in one process.
    """

    round: int
    metric_name: str
    loss: NodeSummary
    metric: NodeSummary
    consensus: float
    messages: int
    bytes: int
    seconds: float
    wire_bytes: int | None = None

    def document(self) -> dict[str, JSON]:
        """As JSON, the metric under its own name."""
        wire_bytes = {} if self.wire_bytes is None else {"wire_bytes": self.wire_bytes}
        return {
            "round": self.round, "loss": vars(self.loss), self.metric_name: vars(self.metric),
            "consensus": self.consensus, "messages": self.messages, "bytes": self.bytes,
            **wire_bytes, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def measure(
    training_run: TrainingRun,
    state: RunState,
    seconds: float,
    test_rows: int | None = None,
    coordinator: Coordinator = ALONE,
) -> Measurement:
    """Evaluate all models on the test rows, or on the first of them; each process those of its own nodes."""
    models = training_run.models(state)
    average = average_model(training_run, state, coordinator)
    evaluation = training_run.task.evaluate(models, test_rows, average)
    distances = to_numpy((models - average).double().square().sum(1))
    own = torch.from_numpy(np.stack([training_run.transport.nodes, evaluation.loss, evaluation.metric, distances]))
    everyone = np.concatenate([part.numpy().reshape(4, -1) for part in coordinator.gather(own.ravel())], axis=1)
    loss, metric, distances = everyone[1:, np.argsort(everyone[0])]
    if not (np.isfinite(everyone).all() and math.isfinite(evaluation.average_loss)):
        raise Diverged(
            f"models or losses with nan or infinity after round {state.rounds}",
            "there is nothing to measure",
            "lower the step size, or the noise",
        )
    wire_bytes = int(coordinator.sum(torch.tensor(state.wire_bytes)))
    return Measurement(
        state.rounds, evaluation.metric_name, NodeSummary.of(loss, evaluation.average_loss),
        NodeSummary.of(metric, evaluation.average_metric), math.sqrt(float(distances.mean())), state.sent.messages,
        -(-state.sent.bits // 8), seconds,
        wire_bytes if training_run.transport.networked or wire_bytes else None,
    )  # fmt: skip


def average_model(training_run: TrainingRun, state: RunState, coordinator: Coordinator = ALONE) -> Tensor:
    """The average of all models, whichever processes hold them; added up in float64."""
    models = training_run.models(state)
    total = coordinator.sum(models.sum(0, dtype=torch.float64))
    return (total / training_run.topology.n).to(models.dtype)


def is_measured(rounds: int, every: int, last: int) -> bool:
    """Whether there are metrics after so many rounds: every so often, and at the end."""
    return rounds % every == 0 or rounds == last


def measured_rounds(
    training_run: TrainingRun,
    state: RunState,
    *,
    every: int,
    test_rows: int | None = None,
    seconds: float = 0.0,
    start: bool = True,
    callbacks: Sequence[RoundCallback | None] = (),
    coordinator: Coordinator = ALONE,
) -> Iterator[tuple[RunState, Measurement | None]]:
    """Each state after `state`, with metrics every few rounds, the starting point among them unless not `start`.

    `seconds` is what the run has taken before; `callbacks` are called after each round. The `coordinator` gathers the
    metrics of a run over several processes.
    """
    begun = time.perf_counter() - seconds
    if state.rounds == 0 and start:
        yield state, measure(training_run, state, 0.0, test_rows, coordinator)
    for played, now in training_run.play(state):
        for callback in filter(None, callbacks):
            callback(played, now)
        measurement = None
        if is_measured(now.rounds, every, training_run.rounds):
            measurement = measure(training_run, now, time.perf_counter() - begun, test_rows, coordinator)
        yield now, measurement
