"""Decentralised gradient descent: D-PSGD, DP-D-SGD and DP2SGD.

`Gossip` is the plain pattern that most algorithms here are compositions of:

    x <- sum_v W[u,v] ( x_v - eta (g_v + noise_v) )

Its fields say which noise, which compression, how many gossip steps; its five maps are the pattern itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sottovoce.algorithms.registry import Example
from sottovoce.core.arrays import Rows
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import Independent, PerNode
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
            raise InputError(f"{self.gossip_steps} gossip steps", "a step waits for one mix", "use one")

    def init(self, x0: Rows) -> Any:
        return Delayed(x0, None)

    def local(self, state: Any, grad: Rows, noise: Rows | float) -> Any:
        return Delayed(state.x, self.step_size * (grad + noise))

    def absorb(self, state: Any, mixed: Any) -> Any:
        return Delayed(mixed - state.step, None)


ORDERS = {"step-then-speak": Gossip, "while-speaking": StepDuringGossip}


def d_psgd(*, step_size: float = 0.1, order: str = "step-then-speak") -> Gossip:
    """D-PSGD: no noise, no guarantee. In either order of local step and averaging; Lian et al. give both."""
    if order not in ORDERS:
        raise InputError(f"order {order!r}", f"known: {', '.join(ORDERS)}", "choose one of them")
    return ORDERS[order](name="d-psgd", step_size=step_size)


def dp_d_sgd(*, sigma: PerNode, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DP-D-SGD: D-PSGD with fresh independent noise on every gradient."""
    return Gossip(name="dp-d-sgd", noise=Independent(sigma), step_size=step_size, sensitivity=sensitivity)


def dp2sgd(*, sigma: PerNode, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DP2SGD: noise on every gradient, the step taken while models travel."""
    return StepDuringGossip(name="dp2sgd", noise=Independent(sigma), step_size=step_size, sensitivity=sensitivity)


EXAMPLES = (
    Example("d-psgd", d_psgd),
    Example("d-psgd", d_psgd, {"order": "while-speaking"}),
    Example("dp-d-sgd", dp_d_sgd, {"sigma": 1.5}),
    Example("dp2sgd", dp2sgd, {"sigma": 1.5}),
)

CITE = (
    "Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, Algorithm 1 (D-PSGD)",
    "Cheng et al., Towards decentralized deep learning with differential privacy, CLOUD 2019 (noise on D-PSGD)",
    "Yu et al., Decentralized parallel SGD with privacy preservation (DP2SGD), as cited by DP-CSGP [22]",
)
