"""DECOR: independent noise, and noise that neighbours share and that cancels over the network.

Secrets are fresh every round and are not scaled by W (the published code draws them once and scales them).
"""

from __future__ import annotations

from sottovoce.algorithms.registry import Example
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import CombinedNoise, Independent, Pairwise, PerNode


def decor(*, sigma: PerNode, sigma_pair: float, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DECOR: `sigma` is a node's own noise, `sigma_pair` that of each secret it shares with a neighbour."""
    return Gossip(
        name="decor",
        noise=CombinedNoise((Independent(sigma), Pairwise(sigma_pair))),
        step_size=step_size,
        sensitivity=sensitivity,
        requires="undirected",
    )


EXAMPLES = (Example("decor", decor, {"sigma": 1.5, "sigma_pair": 4.0}),)

CITE = (
    "Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui, The privacy power of correlated noise in decentralized "
    "learning, ICML 2024",
)
