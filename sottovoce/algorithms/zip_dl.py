"""ZIP-DL: a different noise to each neighbour, zero in sum; and the masks of earlier work it is compared with.

RSS-NB and RSS-LB are baselines without guarantees: with RSS-NB the masks cancel over the network, so whoever hears
all messages knows the sum; with RSS-LB a node of degree one adds nothing at all.
"""

from __future__ import annotations

from sottovoce.algorithms.registry import Example
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import Pairwise, PerNode, ZeroSum
from sottovoce.errors import InputError


def _zero_sum(sigma: PerNode | None, message_sigma: PerNode | None, *, closed: bool = True) -> ZeroSum:
    if (sigma is None) == (message_sigma is None):
        raise InputError(
            f"zip-dl with sigma={sigma} and message_sigma={message_sigma}",
            "exactly one is given",
            "give sigma=1.0, say",
        )
    return ZeroSum(zeta=sigma, message_sigma=message_sigma, closed=closed)


def zip_dl(
    *,
    sigma: PerNode | None = None,
    message_sigma: PerNode | None = None,
    step_size: float = 0.1,
    sensitivity: float = 1.0,
) -> Gossip:
    """ZIP-DL (Algorithm 2). `sigma` is zeta, the size of the initial noise; `message_sigma` what messages carry."""
    return Gossip(
        name="zip-dl",
        noise=_zero_sum(sigma, message_sigma),
        step_size=step_size,
        sensitivity=sensitivity,
        requires="symmetric",
    )


def zip_dl_averaging(
    *, sigma: PerNode | None = None, message_sigma: PerNode | None = None, sensitivity: float = 1.0
) -> Gossip:
    """ZIP-DL averaging (Algorithm 1, repeated): values enter once, every round has fresh zero-sum noise."""
    return Gossip(
        name="zip-dl-averaging",
        noise=_zero_sum(sigma, message_sigma),
        sensitivity=sensitivity,
        step_size=-1.0,
        averaging=True,
        requires="symmetric",
    )


def rss_nb(*, sigma: float, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """Masks that each pair of neighbours agrees on, balanced over the network (RSS-NB); Gaussian here."""
    return Gossip(
        name="rss-nb", noise=Pairwise(sigma), step_size=step_size, sensitivity=sensitivity, requires="symmetric"
    )


def rss_lb(*, sigma: PerNode, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """Masks that each node balances over its open neighbourhood (RSS-LB); Gaussian here."""
    return Gossip(
        name="rss-lb",
        noise=_zero_sum(sigma, None, closed=False),
        step_size=step_size,
        sensitivity=sensitivity,
        requires="symmetric",
    )


EXAMPLES = (
    Example("zip-dl", zip_dl, {"sigma": 1.5}),
    Example("zip-dl", zip_dl, {"message_sigma": 1.5}),
    Example("zip-dl-averaging", zip_dl_averaging, {"sigma": 1.5}),
    Example("rss-nb", rss_nb, {"sigma": 1.5}),
    Example("rss-lb", rss_lb, {"sigma": 1.5}),
)

CITE = (
    "Biswas et al., Low-cost privacy-preserving decentralized learning (ZIP-DL), PoPETs 2025, Algorithms 1 and 2",
    "Gade, Vaidya, Private optimization on networks, ACC 2018 (RSS-NB, RSS-LB)",
)
