"""DP-FedAvg: a trusted sum over all nodes, noised once; the central reference."""

from __future__ import annotations

from sottovoce.algorithms.registry import Example
from sottovoce.core.gossip import Gossip
from sottovoce.core.noise import Central


def dp_fedavg(*, sigma: float, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DP-FedAvg with one local step: only the noisy average is ever seen. Needs the complete average as mixing."""
    return Gossip(
        name="dp-fedavg",
        noise=Central(sigma),
        step_size=step_size,
        sensitivity=sensitivity,
        requires="complete average",
        secure_sum=True,
    )


EXAMPLES = (Example("dp-fedavg", dp_fedavg, {"sigma": 1.5}),)

CITE = ("McMahan, Ramage, Talwar, Zhang, Learning differentially private recurrent language models, ICLR 2018",)
