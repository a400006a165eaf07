"""What is measured while a run goes on: how well nodes do on test rows, how far apart they are, what they sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    `messages` and `bytes` count what all nodes have sent so far; `broken` gradients were not finite and left out.
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

    def document(self) -> dict[str, Any]:
        """As JSON, the metric under its own name."""
        return {
            "round": self.round, "loss": vars(self.loss), self.metric_name: vars(self.metric),
            "consensus": self.consensus, "messages": self.messages, "bytes": self.bytes, "broken": self.broken,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


def measure(trial: Trial, stage: Stage, seconds: float, rows: int | None = None) -> Measured:
    """Evaluate all models on the test rows, or on the first `rows` of them."""
    models = trial.models(stage)
    found = trial.task.evaluate(models, rows)
    apart = (models - models.mean(0)).double().square().sum(1).mean().sqrt()
    return Measured(
        stage.rounds, found.metric_name, Nodes.of(found.loss, found.average_loss),
        Nodes.of(found.metric, found.average_metric), float(apart), stage.sent.messages, -(-stage.sent.bits // 8),
        stage.broken, seconds,
    )  # fmt: skip


def due(rounds: int, every: int, last: int) -> bool:
    """Whether figures are wanted after so many rounds: every so often, and at the end."""
    return rounds % every == 0 or rounds == last
