"""Secure gossip: DP-D-SGD in which a node learns the weighted sum of what its neighbours send, and nothing else."""

from __future__ import annotations

from sottovoce.algorithms.secure_average import REFERENCES, SecureSumSettings
from sottovoce.algorithms.spec import AlgorithmSpec, Example
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import Independent
from sottovoce.core.sum_sets import check_sum_sets
from sottovoce.core.topologies import Topology


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


ALGORITHMS = (
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
