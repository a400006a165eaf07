"""Local rules: what a node makes of its noisy gradient before it steps.

With g + z the noisy gradient of round t and x the point where it was taken, the step is along

    f_t c_u ( d + decay x ),    d = g + z                                              sgd
                                d = v,  v <- b v + g + z                               momentum (heavy ball)
                                d = m^ / (sqrt(s^) + 1e-8),  averages of g + z and its square    adam

where f_t is the factor of the schedule and c_u that of the node. A rule gets the sum of gradient and noise, and never a
gradient. All but adam are linear: they are traced as any other map, and figures know them. Of adam, whatever a node
sends is a function of all noisy gradients, and figures are those given all of these.

Where all see one sum of updates, the rule takes the place of that sum: whatever it is, it tells nobody more.

    >>> rule = parse_rule("momentum:0.9", "warmup:2,step:0.5x3", rounds=8)
    >>> [rule.factor(round) for round in range(8)], rule.linear
    ([0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5], True)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.encoded_sums import Encoding, Remembered
from sottovoce.core.noise import PerNode, checked_sizes
from sottovoce.errors import InputError

ADAM_DECAY, SMALL = 0.01, 1e-8

SHARE = r"0|0?\.\d+"
"""Numbers below 1, as settings write them."""


class Memory(NamedTuple):
    """What a rule keeps: averages of noisy gradients and of their squares, the average of iterates, encoded rounds."""

    velocity: Rows | None = None
    squares: Rows | None = None
    average: Rows | None = None
    encoded: Remembered | tuple[()] = ()


@dataclass(frozen=True)
class LocalRule:
    """A rule. With `average` a the final model is that of iterates: `x_ <- a x_ + (1 - a) x` after every round.

    `adam` are its two factors. One that is not `applied` gives noisy gradients as they are, and averages iterates.
    With an `encoding`, gradients enter sums encoded, and the rule gets what the sum is worth.
    """

    momentum: float = 0.0
    adam: tuple[float, float] | None = None
    decay: float = 0.0
    average: float = 0.0
    factors: tuple[float, ...] = ()
    node_factors: PerNode = 1.0
    applied: bool = True
    encoding: Encoding | None = None

    @property
    def linear(self) -> bool:
        """Whether its steps are linear in noisy gradients."""
        return self.adam is None or not self.applied

    @property
    def unapplied(self) -> LocalRule:
        """The same without a step of its own."""
        return self if self == PLAIN else replace(self, applied=False)

    def factor(self, round: int) -> float:
        """The factor of the schedule."""
        return self.factors[min(round, len(self.factors) - 1)] if self.factors else 1.0

    def init(self, x0: Rows) -> Memory | tuple[()]:
        """What it keeps before the first round."""
        if self == PLAIN:
            return ()
        zeros = 0.0 * x0
        adapts = self.applied and self.adam is not None
        keeps = self.applied and (adapts or self.momentum > 0)
        encoded = () if self.encoding is None else self.encoding.nothing(zeros if self.applied else None)
        return Memory(zeros if keeps else None, zeros if adapts else None, x0 if self.average else None, encoded)

    def enter(self, memory: Any, gradient: Rows, round: int) -> tuple[Rows, Any]:
        """What noise is added to, and what is kept: a gradient, encoded or as it is."""
        if self.encoding is None or not self.applied:
            return gradient, memory
        found, encoded = self.encoding.encode(memory.encoded, gradient, round)
        return found, memory._replace(encoded=encoded)

    def step(self, memory: Any, noisy: Rows, point: Rows, round: int) -> tuple[Rows, Any]:
        """The direction of a step, and what is kept."""
        if not self.applied:
            return noisy, memory
        if self.encoding is not None:
            noisy, encoded = self.encoding.decode(memory.encoded, noisy, round)
            memory = memory._replace(encoded=encoded)
        direction, count = noisy, round + 1
        if self.adam is not None:
            first, second = self.adam
            velocity = first * memory.velocity + (1 - first) * noisy
            squares = second * memory.squares + (1 - second) * (noisy * noisy)
            root = (squares * (1 / (1 - second**count))) ** 0.5
            direction = velocity * (1 / (1 - first**count)) / (root + SMALL)
            memory = memory._replace(velocity=velocity, squares=squares)
        elif self.momentum:
            direction = self.momentum * memory.velocity + noisy
            memory = memory._replace(velocity=direction)
        if self.decay:
            direction = direction + self.decay * point
        if self.node_factors != 1:
            each = self.node_factors
            direction = direction * (arrays.column(each, direction) if isinstance(each, tuple) else each)
        factor = self.factor(round)
        return direction if factor == 1 else direction * factor, memory

    def after(self, memory: Any, point: Rows) -> Any:
        """What is kept after a round that ended at a point."""
        return memory._replace(average=self.average * memory.average + (1 - self.average) * point)

    def model(self, memory: Any, point: Rows) -> Rows:
        """The model of every node that stands at a point."""
        return memory.average if self.average else point


PLAIN = LocalRule()


def parse_rule(
    optimizer: str = "sgd",
    schedule: str = "constant",
    *,
    rounds: int | None = None,
    weight_decay: float = 0.0,
    average: float = 0.0,
    step_factors: PerNode = 1.0,
) -> LocalRule:
    """A rule from the settings of an algorithm."""
    found = re.fullmatch(rf"(sgd|momentum:(?P<b>{SHARE})|adamw?(:(?P<b1>{SHARE}),(?P<b2>{SHARE}))?)", optimizer)
    if found is None:
        raise InputError(
            f"optimizer {optimizer!r:.40}", "known: sgd, momentum:B, adam, adam:B1,B2 and adamw, each B below 1",
            "write momentum:0.9, for example",
        )  # fmt: skip
    for key, value, most in (("weight_decay", weight_decay, math.inf), ("average", average, 1.0)):
        if not 0 <= value < most:
            raise InputError(f"{key} = {value}", f"it is at least 0 and below {most:g}", "leave it out")
    adam = (float(found["b1"] or 0.9), float(found["b2"] or 0.999)) if optimizer.startswith("adam") else None
    return LocalRule(
        momentum=float(found["b"] or 0), adam=adam,
        decay=weight_decay or (ADAM_DECAY if optimizer.startswith("adamw") else 0.0), average=average,
        factors=_factors(schedule, rounds), node_factors=checked_sizes("step_factors", step_factors, positive=True),
    )  # fmt: skip


def _factors(schedule: str, rounds: int | None) -> tuple[float, ...]:
    """The factor of every round, of as many as differ: the last holds for all that follow."""
    found = re.fullmatch(r"(?:warmup:(\d+),)?(constant|linear|cosine|step:(\d*\.?\d+)x([1-9]\d*))", schedule)
    if found is None:
        raise InputError(
            f"schedule {schedule!r:.40}", "known: constant, linear, cosine and step:FACTORxROUNDS, each after warmup:"
            "ROUNDS, if wanted", "write step:0.5x30, for example",
        )  # fmt: skip
    first, shape = int(found[1] or 0), found[2]
    if shape == "constant" and not first:
        return ()
    if rounds is None:
        raise InputError(f"schedule {schedule} without rounds", "it runs over all rounds", "give rounds")
    left = max(1, rounds - first)

    def after(t: int) -> float:
        if shape.startswith("step"):
            return float(found[3]) ** (t // int(found[4]))
        return {"constant": 1.0, "linear": 1 - t / left, "cosine": (1 + math.cos(math.pi * t / left)) / 2}[shape]

    return tuple((t + 1) / first if t < first else after(t - first) for t in range(rounds))
