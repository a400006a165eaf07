"""What is measured while a run goes on: how well nodes do on test rows, how far apart they are, what they sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.arrays import to_numpy
from sottovoce.distributed.coordinator import Coordinator, SingleProcess
from sottovoce.errors import Diverged
from sottovoce.run.training_run import RunState, TrainingRun
from sottovoce.support.json_numbers import JSON


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
    coordinator: Coordinator | None = None,
) -> Measurement:
    """Evaluate all models on the test rows, or on the first of them; each process those of its own nodes."""
    coordinator, models = coordinator or SingleProcess(), training_run.models(state)
    average = average_model(training_run, state, coordinator)
    evaluation = training_run.task.evaluate(models, test_rows, average)
    distances = to_numpy((models - average).double().square().sum(1))
    own = _Figures(
        training_run.transport.nodes, np.stack([evaluation.loss, evaluation.metric, distances]), state.wire_bytes
    )  # fmt: skip
    everyone = _Figures.joined([_Figures.unpacked(numbers) for numbers in coordinator.gather(own.packed())])
    if not (np.isfinite(everyone.figures).all() and math.isfinite(evaluation.average_loss)):
        raise Diverged(
            f"models or losses with nan or infinity after round {state.rounds}",
            "there is nothing to measure",
            "lower the step size, or the noise",
        )
    loss, metric, distances = everyone.figures
    return Measurement(
        state.rounds, evaluation.metric_name, NodeSummary.of(loss, evaluation.average_loss),
        NodeSummary.of(metric, evaluation.average_metric), math.sqrt(float(distances.mean())), state.sent.messages,
        -(-state.sent.bits // 8), seconds,
        everyone.wire_bytes if training_run.transport.networked or everyone.wire_bytes else None,
    )  # fmt: skip


def average_model(training_run: TrainingRun, state: RunState, coordinator: Coordinator | None = None) -> Tensor:
    """The average of all models, whichever processes hold them; added up in float64."""
    models = training_run.models(state)
    total = (coordinator or SingleProcess()).sum(models.sum(0, dtype=torch.float64))
    return (total / training_run.topology.n).to(models.dtype)


class _Figures(NamedTuple):
    """What processes measured: loss, metric and squared distance of `nodes`, 3 x n, and what they sent."""

    nodes: NDArray[np.intp]
    figures: NDArray[np.float64]
    wire_bytes: int

    def packed(self) -> Tensor:
        """All of it as numbers in one row: what was sent, then nodes and figures."""
        rows = np.vstack([self.nodes, self.figures])
        return torch.from_numpy(np.concatenate([[self.wire_bytes], rows.ravel()]))

    @classmethod
    def unpacked(cls, numbers: Tensor) -> _Figures:
        """What `packed` packed."""
        wire_bytes, rows = int(numbers[0]), numbers[1:].numpy().reshape(4, -1)
        return cls(rows[0].astype(np.intp), rows[1:], wire_bytes)

    @staticmethod
    def joined(parts: list[_Figures]) -> _Figures:
        """The figures of all nodes, in their order, and what all processes sent."""
        nodes = np.sort(np.concatenate([part.nodes for part in parts]))
        figures = np.empty((3, len(nodes)))
        for part in parts:
            figures[:, np.searchsorted(nodes, part.nodes)] = part.figures
        return _Figures(nodes, figures, sum(part.wire_bytes for part in parts))


def is_measured(rounds: int, every: int, last: int) -> bool:
    """Whether there are metrics after so many rounds: every so often, and at the end."""
    return rounds % every == 0 or rounds == last
