"""DP-FedAvg: a trusted sum over all nodes, noised once; the central reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, Role, SensitivitySettings, StepSettings
from sottovoce.core.algorithm import Gossip
from sottovoce.core.noise import Central


@dataclass(frozen=True, kw_only=True)
class DpFedAvgSettings(StepSettings, SensitivitySettings):
    """One noise on the sum over all nodes."""

    sigma: Annotated[float, Meaning("standard deviation of the noise on the sum over all nodes", Role.NOISE)]


def dp_fedavg(settings: DpFedAvgSettings) -> Gossip:
    """DP-FedAvg with one local step: only the noisy average is ever seen. Needs the complete average as mixing."""
    return Gossip(
        name="dp-fedavg",
        noise=Central(settings.sigma),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="complete average",
        secure_sum=True,
    )


ALGORITHMS = (
    AlgorithmSpec(
        "dp-fedavg",
        DpFedAvgSettings,
        dp_fedavg,
        written="DP-FedAvg",
        examples=(Example({"sigma": 1.5}),),
        references=(
            "McMahan, Ramage, Talwar, Zhang, Learning differentially private recurrent language models, ICLR 2018",
        ),
    ),
)
