"""Losses: what an example costs, how its cost moves with the outputs, and what is reported beside it.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> LOSSES["cross-entropy"].each(logits, torch.tensor([0, 0])).round(decimals=3).tolist()
    [0.127, 1.313]

Shapes: ... any leading dimensions, K outputs. Squared error is halved, so that its curvature is 1.

`hazards`: the time to an event in K periods, each output the logit of its chance in one period for those who have come
so far. A record's loss is the sum over the periods that it went through, and is clipped as one: what protects records
protects people with all their periods. A target is twice the number of these periods, and one more if the last ended
with the event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

VECTOR = 16
"""Of fewer classes than a processor takes at once, torch's softmax takes one number at a time: four times as long."""


@dataclass(frozen=True)
class Loss:
    """`each(outputs, targets)` is the loss of every example, `errors` its derivative by the outputs.

    `largest_error` bounds the norm of that derivative over all outputs and targets: 1 for logistic loss, whose
    derivative is p - y with p and y from 0 to 1; sqrt(2) for cross-entropy, because ||p - e_y||^2 is
    (1 - p_y)^2 + sum_{k != y} p_k^2 <= 2 (1 - p_y)^2; infinite for squared error; 1 for each of the periods of hazards,
    so the root of their number: `error_of`. `score` is summed over examples and
    turned into the metric by `finish(total, examples)`. `largest_weight` is that of a class; curvature grows by it.
    """

    name: str
    metric: str
    largest_error: float
    each: Callable[[Tensor, Tensor], Tensor]
    errors: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[Tensor, int], Tensor]
    largest_weight: float = 1.0

    def error_of(self, outputs: int) -> float:
        """`largest_error` for so many outputs."""
        return self.largest_error * (math.sqrt(outputs) if self.name == "hazards" else 1.0)

    def weighted(self, of_classes: Sequence[float]) -> Loss:
        """The same with a weight for each class of examples: gradients have it before they are clipped."""
        weights, largest = torch.tensor(of_classes, dtype=torch.float64), max(of_classes)

        def of(targets: Tensor, like: Tensor) -> Tensor:
            return weights.to(like.device, like.dtype)[targets.long()]

        return replace(
            self, largest_error=largest * self.largest_error, largest_weight=largest,
            each=lambda outputs, targets: of(targets, outputs) * self.each(outputs, targets),
            errors=lambda outputs, targets: of(targets, outputs).unsqueeze(-1) * self.errors(outputs, targets),
        )  # fmt: skip


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.logsumexp(-1) - outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def _cross_entropy_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    place = targets.unsqueeze(-1)
    return _softmax(outputs).scatter_add_(-1, place, outputs.new_full((), -1.0).expand(place.shape))


def _softmax(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] >= VECTOR:
        return outputs.softmax(-1)
    grown = (outputs - outputs.amax(-1, keepdim=True)).exp_()
    return grown / grown.sum(-1, keepdim=True)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    logit = outputs.squeeze(-1)
    return functional.softplus(logit) - targets * logit


def _logistic_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sigmoid() - targets.unsqueeze(-1)


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).square() / 2


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs - targets.unsqueeze(-1)


def _hazards(outputs: Tensor, targets: Tensor) -> Tensor:
    there, ends = _periods(outputs, targets)
    return (functional.softplus(outputs) * there - outputs * ends).sum(-1)


def _hazard_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    there, ends = _periods(outputs, targets)
    return outputs.sigmoid() * there - ends


def _periods(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which periods a record went through, and which of them ended with the event, as zeros and ones."""
    number = torch.arange(1, outputs.shape[-1] + 1, device=outputs.device, dtype=outputs.dtype)
    through = (targets / 2).floor().unsqueeze(-1)
    event = targets.unsqueeze(-1) - 2 * through
    return (number <= through).to(outputs.dtype), (number == through).to(outputs.dtype) * event


def _share(total: Tensor, examples: int) -> Tensor:
    return total / examples


LOSSES = {
    "cross-entropy": Loss(
        "cross-entropy", "accuracy", math.sqrt(2), _cross_entropy, _cross_entropy_errors,
        lambda outputs, targets: outputs.argmax(-1) == targets, _share,
    ),
    "logistic": Loss(
        "logistic", "accuracy", 1.0, _logistic, _logistic_errors,
        lambda outputs, targets: (outputs.squeeze(-1) > 0) == (targets > 0), _share,
    ),
    "squared": Loss(
        "squared", "rmse", math.inf, _squared, _squared_errors,
        lambda outputs, targets: (outputs.squeeze(-1) - targets).square(),
        lambda total, examples: (total / examples).sqrt(),
    ),
    "hazards": Loss("hazards", "log_loss", 1.0, _hazards, _hazard_errors, _hazards, _share),
}  # fmt: skip
