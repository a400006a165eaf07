"""DECOR: independent noise, and noise that neighbours share and that cancels over the network.

Secrets are fresh every round and are not scaled by W (the published code draws them once and scales them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings, Role
from sottovoce.core.algorithm import Gossip
from sottovoce.core.noise import CombinedNoise, Independent, Pairwise


@dataclass(frozen=True, kw_only=True)
class DecorSettings(NoisyStepSettings):
    """A node's own noise, and the noise it shares."""

    sigma_pair: Annotated[
        float, Meaning("standard deviation of each secret that a node shares with a neighbour", Role.SHARED_NOISE)
    ]


def decor(settings: DecorSettings) -> Gossip:
    """DECOR: `sigma` is a node's own noise, `sigma_pair` that of each secret it shares with a neighbour."""
    return Gossip(
        name="decor",
        noise=CombinedNoise((Independent(settings.sigma), Pairwise(settings.sigma_pair))),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="undirected",
    )


ALGORITHMS = (
    AlgorithmSpec(
        "decor",
        DecorSettings,
        decor,
        examples=(Example({"sigma": 1.5, "sigma_pair": 4.0}),),
        references=(
            "Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui, The privacy power of correlated noise in "
            "decentralized learning, ICML 2024",
        ),
    ),
)
