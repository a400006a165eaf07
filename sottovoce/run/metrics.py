"""What is measured while a run goes on: how well nodes do on test rows, how far apart they are, what they sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.errors import Diverged
from sottovoce.run.training_run import RunState, TrainingRun


@dataclass(frozen=True)
class Nodes:
    """One figure over the nodes' models, and of the average of all models."""

    mean: float
    min: float
    max: float
    average: float

    @staticmethod
    def of(each: NDArray[np.float64], average: float) -> Nodes:
        """Summed up."""
        return Nodes(float(each.mean()), float(each.min()), float(each.max()), average)


@dataclass(frozen=True)
class Measured:
    """Figures after `round` rounds. `consensus` is the root mean square distance of models from their average.

    `messages` and `bytes` count what all nodes have sent so far; `broken` gradients were not finite and left out. Of a
    run over processes `wire` is what they handed to the wire, where only messages between ranks go; else None.
    """

    round: int
    metric_name: str
    loss: Nodes
    metric: Nodes
    consensus: float
    messages: int
    bytes: int
    nonfinite: int
    seconds: float
    wire_bytes: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON, the metric under its own name."""
        wired = {} if self.wire_bytes is None else {"wire_bytes": self.wire_bytes}
        return {
            "round": self.round, "loss": vars(self.loss), self.metric_name: vars(self.metric),
            "consensus": self.consensus, "messages": self.messages, "bytes": self.bytes, "nonfinite": self.nonfinite,
            **wired, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def measure(training_run: TrainingRun, state: RunState, seconds: float, rows: int | None = None) -> Measured:
    """Evaluate all models on the test rows, or on the first `rows` of them; each rank those of its own nodes."""
    models, shard = training_run.models(state), training_run.shard
    own = models if shard is None else models.own
    total = own.sum(0, dtype=torch.float64)
    if shard is not None:
        shard.communicator.sum_(total, counted=False)
    average = (total / training_run.topology.n).to(own.dtype)
    found = training_run.task.evaluate(own, rows, average)
    apart = (own - average).double().square().sum(1).numpy()
    all_of = _gathered(shard, np.stack([found.loss, found.metric, apart]), state.nonfinite, state.wire_bytes)
    loss, metric, apart = all_of.figures
    if not (np.isfinite(all_of.figures).all() and math.isfinite(found.average_loss)):
        raise Diverged(
            f"models or losses with nan or infinity after round {state.rounds}",
            "there is nothing to measure",
            "lower the step size, or the noise",
        )
    return Measured(
        state.rounds, found.metric_name, Nodes.of(loss, found.average_loss), Nodes.of(metric, found.average_metric),
        math.sqrt(float(apart.mean())), state.sent.messages, -(-state.sent.bits // 8), all_of.nonfinite, seconds,
        None if shard is None and not all_of.wire_bytes else all_of.wire_bytes,
    )  # fmt: skip


class _Everyones(NamedTuple):
    """Figures of all nodes, and what their ranks counted."""

    figures: NDArray[np.float64]
    nonfinite: int
    wire_bytes: int


def _gathered(shard: NodeShard | None, figures: NDArray[np.float64], nonfinite: int, wire: int) -> _Everyones:
    if shard is None:
        return _Everyones(figures, nonfinite, wire)
    whole = np.empty((len(figures), shard.n))
    parts = shard.communicator.gathered((figures, nonfinite, wire))
    for nodes, (part, _, _) in zip(shard.blocks, parts, strict=True):
        whole[:, nodes] = part
    return _Everyones(whole, sum(part[1] for part in parts), sum(part[2] for part in parts))


def due(rounds: int, every: int, last: int) -> bool:
    """Whether figures are wanted after so many rounds: every so often, and at the end."""
    return rounds % every == 0 or rounds == last
