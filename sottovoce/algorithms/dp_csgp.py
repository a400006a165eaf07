"""DP-CSGP: push-sum on directed graphs, with noise on gradients and compressed messages.

The paper sends first and steps after; here a round begins with the step. Its first exchange is of equal, public
starting points, so that only the weights change by it: they start at `W 1`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings
from sottovoce.core import arrays
from sottovoce.core.algorithm import Gossip, Weighted, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, parse_compression
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import Independent
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError


class PushSumState(NamedTuple):
    """State: the biased model, and the push-sum weight that corrects it. The weight depends on W alone."""

    x: Rows
    weight: Rows


@dataclass(frozen=True, kw_only=True)
class PushSum(Gossip):
    """Column-stochastic mixing; gradients are taken at `x / weight`."""

    first: Mixing | None = None

    def on(self, topology: Topology) -> Gossip:
        """Takes the weights after the first exchange from the topology."""
        super().on(topology)
        return replace(self, first=topology.at(0))

    def init(self, x0: Rows) -> PushSumState:
        assert self.first is not None
        weight = arrays.column(self.first.weights @ np.ones(self.first.n), x0)
        return PushSumState(x0 * weight, weight)

    def point(self, state: PushSumState) -> Rows:
        return state.x / state.weight

    def local(self, state: PushSumState, grad: Rows, noise: Rows | float) -> PushSumState:
        return PushSumState(state.x - self.step_size * with_noise(grad, noise), state.weight)

    def message(self, state: PushSumState) -> Weighted:
        return Weighted(state.x, state.weight)

    def absorb(self, state: PushSumState, mixed: Weighted) -> PushSumState:
        weight = arrays.to_numpy(mixed.weight)
        if not (weight > 0).all():
            node = int(np.argmin(weight))
            raise InputError(
                f"node {node} is left without weight", "push-sum divides by this weight", "give it a self-weight"
            )
        return PushSumState(mixed.value, mixed.weight)


@dataclass(frozen=True, kw_only=True)
class DpCsgpSettings(NoisyStepSettings):
    """Noise on gradients, and what messages lose."""

    compression: Annotated[str | Compression, Meaning("what messages lose: identity, rand:0.5, gsgd:8 or top:0.1")] = (
        "identity"
    )


def dp_csgp(settings: DpCsgpSettings) -> Gossip:
    """DP-CSGP (Algorithm 1); with `compression="identity"` its uncompressed form."""
    return PushSum(
        name="dp-csgp",
        noise=Independent(settings.sigma),
        compression=parse_compression(settings.compression),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="column-stochastic",
    )


ALGORITHMS = (
    AlgorithmSpec(
        "dp-csgp",
        DpCsgpSettings,
        dp_csgp,
        examples=(
            Example({"sigma": 1.5}, weights="push"),
            Example({"sigma": 1.5, "compression": "rand:0.5"}, weights="push"),
            Example({"sigma": 1.5, "compression": "gsgd:8"}, weights="push"),
            Example({"sigma": 1.5, "compression": "top:0.5"}, weights="push"),
        ),
        references=(
            "Zhu et al., DP-CSGP: differentially private stochastic gradient push with compressed communication, "
            "Algorithm 1",
            "Assran et al., Stochastic gradient push for distributed deep learning, ICML 2019 (push-sum)",
        ),
    ),
)
