"""DP-CSGP: push-sum on directed graphs, with noise on gradients and compressed messages.

The paper sends first and steps after; here a round begins with the step. That is the same run without its first,
empty exchange: all nodes start from the same public point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sottovoce import arrays
from sottovoce.algorithms import Example
from sottovoce.algorithms.dsgd import Gossip
from sottovoce.arrays import Rows
from sottovoce.compression import Compression
from sottovoce.compression import compression as named_compression
from sottovoce.loop import Weighted
from sottovoce.noise import Independent, PerNode


class Pushed(NamedTuple):
    """State: the biased model, and the push-sum weight that corrects it. The weight depends on W alone."""

    x: Rows
    weight: Rows


class PushSum(Gossip):
    """Column-stochastic mixing; gradients are taken at `x / weight`."""

    def init(self, x0: Rows) -> Any:
        return Pushed(x0, arrays.column(np.ones(x0.shape[0]), x0))

    def point(self, state: Any) -> Rows:
        return state.x / state.weight

    def local(self, state: Any, grad: Rows, noise: Rows | float) -> Any:
        return Pushed(state.x - self.step_size * (grad + noise), state.weight)

    def message(self, state: Any) -> Any:
        return Weighted(state.x, state.weight)

    def absorb(self, state: Any, mixed: Any) -> Any:
        return Pushed(mixed.value, mixed.weight)


def dp_csgp(
    *,
    sigma: PerNode,
    compression: str | Compression = "identity",
    step_size: float = 0.1,
    sensitivity: float = 1.0,
) -> PushSum:
    """DP-CSGP (Algorithm 1); with `compression="identity"` its uncompressed form."""
    return PushSum(
        name="dp-csgp",
        noise=Independent(sigma),
        compression=named_compression(compression),
        step_size=step_size,
        sensitivity=sensitivity,
        requires="column-stochastic",
    )


EXAMPLES = (
    Example("dp-csgp", dp_csgp, {"sigma": 1.5}, weights="push"),
    Example("dp-csgp", dp_csgp, {"sigma": 1.5, "compression": "rand:0.5"}, weights="push"),
    Example("dp-csgp", dp_csgp, {"sigma": 1.5, "compression": "gsgd:8"}, weights="push"),
    Example("dp-csgp", dp_csgp, {"sigma": 1.5, "compression": "top:0.5"}, weights="push"),
)

CITE = (
    "Zhu et al., DP-CSGP: differentially private stochastic gradient push with compressed communication, Algorithm 1",
    "Assran et al., Stochastic gradient push for distributed deep learning, ICML 2019 (push-sum)",
)
