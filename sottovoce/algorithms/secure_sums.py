"""Algorithms with secure sums, in which nobody sees a single message.

Secure averaging is DP-FedAvg without a server: all nodes sum their noisy updates. Secure gossip is DP-D-SGD in which a
node learns the weighted sum of what its neighbours send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings, Role
from sottovoce.core import arrays
from sottovoce.core.algorithm import Gossip, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.integer_sums import check_sum_sets
from sottovoce.core.noise import Independent
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError


class CommonModel(NamedTuple):
    """State: the model that all hold, and the update that waits to be summed (None between rounds)."""

    x: Rows
    update: Rows | None


class SecureAverage(Gossip):
    """`x <- x - eta sum_v (g_v(x) + noise_v) / n`: what is sent are updates, relative to a model that all know."""

    sums_updates: ClassVar[bool] = True

    def on(self, topology: Topology) -> Gossip:
        check_sum_sets(topology, self.colluders)
        return super().on(topology)

    def init(self, x0: Rows) -> CommonModel:
        if arrays.is_plain(x0) and np.ptp(arrays.to_numpy(x0), axis=0).any():
            raise InputError(
                "nodes with different starting points", "secure-average sums updates of one model that all nodes hold",
                "give all nodes the same row (training.same_start = true)",
            )  # fmt: skip
        return CommonModel(x0, None)

    def local(self, state: CommonModel, grad: Rows, noise: Rows | float) -> CommonModel:
        return CommonModel(state.x, with_noise(grad, noise))

    def message(self, state: CommonModel) -> Rows:
        return state.x if state.update is None else state.update

    def absorb(self, state: CommonModel, mixed: Rows) -> CommonModel:
        return CommonModel(state.x - self.step_size * mixed, None)


@dataclass(frozen=True, kw_only=True)
class SecureSumSettings(NoisyStepSettings):
    """Noise of each node's own; how many nodes may collude."""

    colluders: Annotated[
        int,
        Meaning(
            "how many nodes may collude, each with its own noise and what it receives",
            Role.FROM_RUN,
            "it is a setting of privacy: privacy.colluders",
        ),
    ] = 1


def secure_average(settings: SecureSumSettings) -> Gossip:
    """DP-FedAvg with one local step, distributed noise and secure sums. Needs the complete average as mixing."""
    return SecureAverage(
        name="secure-average",
        noise=Independent(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="complete average",
        secure_sum=True,
        colluders=settings.colluders,
    )


class SecureGossip(Gossip):
    """`x <- sum_v W[u,v] (x_v - eta (g_v + noise_v))`, of which each node sees its own model and one sum."""

    def on(self, topology: Topology) -> Gossip:
        check_sum_sets(topology, self.colluders)
        return super().on(topology)


def secure_gossip(settings: SecureSumSettings) -> Gossip:
    """DP-D-SGD with secure sums over neighbours."""
    return SecureGossip(
        name="secure-gossip",
        noise=Independent(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        secure_sum=True,
        colluders=settings.colluders,
    )


REFERENCES = (
    "Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017 (masks)",
    "Kairouz, Liu, Steinke, The distributed discrete Gaussian mechanism for federated learning with secure "
    "aggregation, ICML 2021",
)

ALGORITHMS = (
    AlgorithmSpec(
        "secure-average",
        SecureSumSettings,
        secure_average,
        examples=(Example({"sigma": 1.5}),),
        references=REFERENCES,
        sums_of="dp-fedavg",
        written="secure average",
    ),
    AlgorithmSpec(
        "secure-gossip",
        SecureSumSettings,
        secure_gossip,
        examples=(Example({"sigma": 1.5}),),
        references=REFERENCES,
        sums_of="dp-d-sgd",
        written="secure gossip",
    ),
)
