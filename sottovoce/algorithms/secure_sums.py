"""Algorithms with secure sums, in which nobody sees a single message.

Secure averaging is DP-FedAvg without a server: all nodes sum their noisy updates. With noise that is correlated over
rounds it is MAFALDA with the accuracy of a trusted server. Secure gossip is DP-D-SGD in which a node learns the
weighted sum of what its neighbours send.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from sottovoce.algorithms.mafalda import C_SOURCES, CorrelationSource, PendingCorrelation, noise_for, read_correlation
from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings, Role
from sottovoce.core import arrays
from sottovoce.core.algorithm import Gossip, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.correlation import ClassCorrelation, Correlation, Triangular
from sottovoce.core.encoded_sums import Encoding
from sottovoce.core.integer_sums import check_sum_sets
from sottovoce.core.noise import Independent, Temporal
from sottovoce.core.participation import Participation, parse_participation
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


class EncodedAverage(SecureAverage):
    """The same with noise that is correlated over rounds: gradients enter sums encoded, and sums are decoded by all.

    With real numbers in place of whole steps, nodes add correlated noise to what they sum, which comes to the same.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        C = self.noise.correlation
        encoding = Encoding(C) if self.exact_noise and C is not None else None
        object.__setattr__(self, "rule", replace(self.rule, encoding=encoding))

    def on(self, topology: Topology) -> Gossip:
        """With the C that is best for the graph, unless it is given."""
        return super(EncodedAverage, replace(self, noise=noise_for(topology, self.noise))).on(topology)


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


@dataclass(frozen=True, kw_only=True)
class EncodedSumSettings(SecureSumSettings):
    """The same, and what decides the C by which gradients are encoded."""

    correlation: Annotated[
        CorrelationSource | None,
        Meaning(
            f"{C_SOURCES}; found for participation unless given, with as many bands as it allows", Role.CORRELATION
        ),
    ] = None
    participation: Annotated[
        str | Participation,
        Meaning("rounds in which the same data shows", Role.FROM_RUN, "it follows from training.batch"),
    ] = "every"


def encoded_average(settings: EncodedSumSettings) -> Gossip:
    """Secure averages of encoded gradients: MAFALDA's noise, of which each node adds its share."""
    if settings.correlation is not None:
        correlation = _checked(read_correlation(settings.correlation), parse_participation(settings.participation))
    elif settings.rounds is None:
        raise InputError(
            "secure-mafalda without correlation or rounds", "C is made for a given number of rounds", "give rounds"
        )
    else:
        correlation = PendingCorrelation(settings.rounds, str(settings.participation), banded=True)
    return EncodedAverage(
        name="secure-mafalda",
        noise=Temporal(settings.sigma, correlation),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="complete average",
        secure_sum=True,
        colluders=settings.colluders,
    )


def _checked(correlation: Correlation, scheme: Participation) -> Correlation:
    """Refused where a sum that fails could cost: what a record told before then is not taken back by later rows."""
    if isinstance(correlation, ClassCorrelation):
        raise InputError(
            "a C for each class of nodes", "all nodes encode by one C, by which sums are decoded", "give one"
        )
    apart = 1 if scheme.shuffled else scheme.apart
    if correlation.memory >= apart and not (isinstance(correlation, Triangular) and correlation.is_nonnegative):
        raise InputError(
            f"C that looks {correlation.memory} rounds back, with negative entries",
            f"rows of a failed sum are left out, which costs nothing where C looks back less than {apart} rounds, as "
            "often as a record shows, or has no negative entry",
            "leave correlation out, or give such a C",
        )
    return correlation


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
        "secure-mafalda",
        EncodedSumSettings,
        encoded_average,
        examples=(
            Example({"sigma": 1.5, "correlation": Triangular(np.eye(12) + 0.4 * np.eye(12, k=-1))}),
            Example({"sigma": 1.5, "rounds": 12, "participation": "2x6"}),
        ),
        references=REFERENCES,
        sums_of="mafalda",
        written="secure MAFALDA",
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
