"""What is measured while a run goes on: how well nodes do on test rows, how far apart they are, what they sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.errors import Diverged
from sottovoce.run.hosting import Host
from sottovoce.run.trial import Stage, Trial


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
    broken: int
    seconds: float
    wire: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON, the metric under its own name."""
        wired = {} if self.wire is None else {"wire_bytes": self.wire}
        return {
            "round": self.round, "loss": vars(self.loss), self.metric_name: vars(self.metric),
            "consensus": self.consensus, "messages": self.messages, "bytes": self.bytes, "broken": self.broken,
            **wired, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def measure(trial: Trial, stage: Stage, seconds: float, rows: int | None = None) -> Measured:
    """Evaluate all models on the test rows, or on the first `rows` of them; each rank those of its own nodes."""
    models, host = trial.models(stage), trial.host
    own = models if host is None else models.own
    total = own.sum(0, dtype=torch.float64)
    if host is not None:
        host.wire.sum_(total, counted=False)
    average = (total / trial.topology.n).to(own.dtype)
    found = trial.task.evaluate(own, rows, average)
    apart = (own - average).double().square().sum(1).numpy()
    all_of = _gathered(host, np.stack([found.loss, found.metric, apart]), stage.broken, stage.wire)
    loss, metric, apart = all_of.figures
    if not (np.isfinite(all_of.figures).all() and math.isfinite(found.average_loss)):
        raise Diverged(
            f"models or losses with nan or infinity after round {stage.rounds}",
            "there is nothing to measure",
            "lower the step size, or the noise",
        )
    return Measured(
        stage.rounds, found.metric_name, Nodes.of(loss, found.average_loss), Nodes.of(metric, found.average_metric),
        math.sqrt(float(apart.mean())), stage.sent.messages, -(-stage.sent.bits // 8), all_of.broken, seconds,
        None if host is None and not all_of.wire else all_of.wire,
    )  # fmt: skip


class _Everyones(NamedTuple):
    """Figures of all nodes, and what their ranks counted."""

    figures: NDArray[np.float64]
    broken: int
    wire: int


def _gathered(host: Host | None, figures: NDArray[np.float64], broken: int, wire: int) -> _Everyones:
    if host is None:
        return _Everyones(figures, broken, wire)
    whole = np.empty((len(figures), host.n))
    parts = host.wire.gathered((figures, broken, wire))
    for nodes, (part, _, _) in zip(host.blocks, parts, strict=True):
        whole[:, nodes] = part
    return _Everyones(whole, sum(part[1] for part in parts), sum(part[2] for part in parts))


def due(rounds: int, every: int, last: int) -> bool:
    """Whether figures are wanted after so many rounds: every so often, and at the end."""
    return rounds % every == 0 or rounds == last
