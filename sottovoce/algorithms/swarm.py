"""Swarm learning: a rotating aggregator averages all noisy models, and all go on from the mean.

Everybody overwrites its model with what is sent to all, so every gradient is taken at a point that a member knows. That
makes the exact loss of single members and of coalitions a proof for any training: docs/guarantees.md.
"""

from __future__ import annotations

from sottovoce.algorithms.spec import AlgorithmSpec, Example, NoisyStepSettings
from sottovoce.core.algorithm import Gossip
from sottovoce.core.noise import Independent


def swarm(settings: NoisyStepSettings) -> Gossip:
    """Fresh independent noise on every gradient, then two steps: all to the aggregator, the mean to all."""
    return Gossip(
        name="swarm",
        noise=Independent(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        gossip_steps=2,
        requires="one aggregator",
    )


ALGORITHMS = (
    AlgorithmSpec(
        "swarm",
        NoisyStepSettings,
        swarm,
        examples=(Example({"sigma": 1.5}, weights="rotating"),),
        written="swarm learning",
        references=(
            "Warnat-Herresthal et al., Swarm learning for decentralized and confidential clinical machine learning, "
            "Nature 2021 (a rotating aggregator, without noise)",
        ),
    ),
)
