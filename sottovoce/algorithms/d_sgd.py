"""Decentralised gradient descent: D-PSGD, DP-D-SGD and DP2SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from sottovoce.algorithms.spec import (
    AlgorithmSpec,
    AveragingSettings,
    Example,
    Meaning,
    NoisyStepSettings,
    StepSettings,
)
from sottovoce.core.algorithm import Gossip, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.noise import Independent
from sottovoce.errors import InputError


class Delayed(NamedTuple):
    """State: the model, and the local step that waits for the mix (None between rounds)."""

    x: Rows
    step: Rows | None


class StepDuringGossip(Gossip):
    """Speak and step at the same time: `x <- W x - eta (g(x) + noise)`. A step is heard one round later."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gossip_steps != 1:
            raise InputError(
                f"{self.gossip_steps} gossip steps", "nodes step while one gossip step is under way", "use one"
            )

    def init(self, x0: Rows) -> Delayed:
        return Delayed(x0, None)

    def local(self, state: Delayed, grad: Rows, noise: Rows | float) -> Delayed:
        return Delayed(state.x, self.step_size * with_noise(grad, noise))

    def absorb(self, state: Delayed, mixed: Rows) -> Delayed:
        return Delayed(mixed - state.step, None)


ORDERS = {"step-then-speak": Gossip, "while-speaking": StepDuringGossip}


@dataclass(frozen=True, kw_only=True)
class DPsgdSettings(StepSettings):
    """D-PSGD adds no noise."""

    order: Annotated[str, Meaning(f"order of local step and averaging: {' or '.join(ORDERS)}")] = "step-then-speak"


def d_psgd(settings: DPsgdSettings) -> Gossip:
    """D-PSGD: no noise, no guarantee. In either order of local step and averaging; Lian et al. give both."""
    if settings.order not in ORDERS:
        raise InputError(f"order {settings.order!r}", f"known: {', '.join(ORDERS)}", "choose one of them")
    return ORDERS[settings.order](name="d-psgd", step_size=settings.step_size)


def dp_d_sgd(settings: AveragingSettings) -> Gossip:
    """DP-D-SGD: D-PSGD with fresh independent noise on every gradient."""
    return Gossip(
        name="dp-d-sgd",
        radius=settings.radius,
        noise=Independent(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
    )


def dp2sgd(settings: NoisyStepSettings) -> Gossip:
    """DP2SGD: noise on every gradient, the step taken while models travel."""
    return StepDuringGossip(
        name="dp2sgd",
        noise=Independent(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
    )


REFERENCES = (
    "Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, Algorithm 1 (D-PSGD)",
    "Cheng et al., Towards decentralized deep learning with differential privacy, CLOUD 2019 (noise on D-PSGD)",
    "Yu et al., Decentralized parallel SGD with privacy preservation (DP2SGD), as cited by DP-CSGP [22]",
)

ALGORITHMS = (
    AlgorithmSpec(
        "d-psgd", DPsgdSettings, d_psgd, (Example(), Example({"order": "while-speaking"})), references=REFERENCES
    ),
    AlgorithmSpec(
        "dp-d-sgd",
        AveragingSettings,
        dp_d_sgd,
        examples=(
            Example({"sigma": 1.5}),
            Example(
                {"sigma": 1.5, "optimizer": "momentum:0.5", "schedule": "linear", "weight_decay": 0.1, "rounds": 6},
                unlike_d_psgd="it has momentum",
            ),
        ),
        references=REFERENCES,
    ),
    AlgorithmSpec("dp2sgd", NoisyStepSettings, dp2sgd, (Example({"sigma": 1.5}),), references=REFERENCES),
)
