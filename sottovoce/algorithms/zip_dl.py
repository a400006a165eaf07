"""ZIP-DL: a different noise to each neighbour, zero in sum; and the masks of earlier work it is compared with.

RSS-NB and RSS-LB are baselines without guarantees: with RSS-NB the masks cancel over the network, so whoever hears
all messages knows the sum; with RSS-LB a node of degree one adds nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sottovoce.algorithms.spec import (
    AlgorithmSpec,
    Example,
    GossipSteps,
    Meaning,
    NoisyStepSettings,
    Role,
    SensitivitySettings,
    StepSettings,
)
from sottovoce.core.algorithm import Gossip
from sottovoce.core.noise import Pairwise, PerNode, ZeroSum
from sottovoce.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ZipDlAveragingSettings(SensitivitySettings):
    """How large the noise is, in one of two measures."""

    sigma: Annotated[PerNode | None, Meaning("zeta, standard deviation of the initial noise", Role.NOISE)] = None
    message_sigma: Annotated[
        PerNode | None, Meaning("least standard deviation of the noise on any message of a node", Role.NOISE)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ZipDlSettings(StepSettings, ZipDlAveragingSettings):
    """ZIP-DL with zero-sum noise, for training."""

    gossip_steps: GossipSteps = 1


@dataclass(frozen=True, kw_only=True)
class RssNbSettings(StepSettings, SensitivitySettings):
    """How large the masks are."""

    sigma: Annotated[float, Meaning("standard deviation of the mask that two neighbours share", Role.NOISE)]


def _zero_sum(settings: ZipDlAveragingSettings) -> ZeroSum:
    if (settings.sigma is None) == (settings.message_sigma is None):
        raise InputError(
            f"zip-dl with sigma={settings.sigma} and message_sigma={settings.message_sigma}",
            "exactly one of them must be given",
            "give sigma=1.0, for example",
        )
    return ZeroSum(zeta=settings.sigma, message_sigma=settings.message_sigma)


def zip_dl(settings: ZipDlSettings) -> Gossip:
    """ZIP-DL (Algorithm 2). `sigma` is zeta, the size of the initial noise; `message_sigma` what messages carry.

    Of several gossip steps the first one has the noise, as in section 6.2.
    """
    return Gossip(
        name="zip-dl",
        noise=_zero_sum(settings),
        gossip_steps=settings.gossip_steps,
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="symmetric",
    )


def zip_dl_averaging(settings: ZipDlAveragingSettings) -> Gossip:
    """ZIP-DL averaging (Algorithm 1, repeated): values enter once, every round has fresh zero-sum noise."""
    return Gossip(
        name="zip-dl-averaging",
        noise=_zero_sum(settings),
        sensitivity=settings.sensitivity,
        step_size=-1.0,
        averaging=True,
        requires="symmetric",
    )


def rss_nb(settings: RssNbSettings) -> Gossip:
    """Masks that each pair of neighbours agrees on, balanced over the network (RSS-NB); Gaussian here."""
    return Gossip(
        name="rss-nb",
        noise=Pairwise(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="symmetric",
    )


def rss_lb(settings: NoisyStepSettings) -> Gossip:
    """Masks that each node balances over its open neighbourhood (RSS-LB); Gaussian here."""
    return Gossip(
        name="rss-lb",
        noise=ZeroSum(zeta=settings.sigma, closed=False),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="symmetric",
    )


REFERENCES = (
    "Biswas et al., Low-cost privacy-preserving decentralized learning (ZIP-DL), PoPETs 2025, Algorithms 1 and 2",
    "Gade, Vaidya, Private optimization on networks, ACC 2018 (RSS-NB, RSS-LB)",
)

ALGORITHMS = (
    AlgorithmSpec(
        "zip-dl",
        ZipDlSettings,
        zip_dl,
        examples=(Example({"sigma": 1.5}), Example({"message_sigma": 1.5}), Example({"sigma": 1.5, "gossip_steps": 2})),
        references=REFERENCES,
    ),
    AlgorithmSpec(
        "zip-dl-averaging", ZipDlAveragingSettings, zip_dl_averaging, (Example({"sigma": 1.5}),), references=REFERENCES
    ),
    AlgorithmSpec("rss-nb", RssNbSettings, rss_nb, (Example({"sigma": 1.5}),), references=REFERENCES),
    AlgorithmSpec("rss-lb", NoisyStepSettings, rss_lb, (Example({"sigma": 1.5}),), references=REFERENCES),
)
