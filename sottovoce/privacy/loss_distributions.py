"""Distributions of the privacy loss of Gaussian releases, plain or on batches drawn by chance, for `dp-accounting`.

Poisson batches and plain releases have theirs in `dp-accounting`. For batches of a fixed size, drawn without
replacement, where a record is replaced by another, it is made here. Take a batch of which one record is not looked at
yet: with probability q = size over records it is the one that may change, else any other. All records lie within Delta
of each other, so for every order 1 + q (a - 1), a >= 1, advanced joint convexity (Balle, Barthe and Gaboardi, 2018,
arXiv 1807.01647, Theorem 2) bounds the hockey-stick divergence by q times that of order a of one Gaussian: the
divergence of Poisson batches where the record is there. That holds in both directions, which gives the orders below 1.
A profile with these values at all orders has a pair of distributions, and pairs compose, also adaptively (Zhu, Dong and
Wang, 2022, arXiv 2106.08567, Proposition 8 and Theorem 10). docs/guarantees.md has the proof.

    >>> one = fixed_size_distribution(noise=2.0, share=0.01)
    >>> round(one.self_compose(1000).get_epsilon_for_delta(1e-5), 3)
    0.719
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

STEP = 1e-4
"""Losses are multiples of this; what lies between is counted so that no divergence is less."""


@lru_cache(maxsize=16)
def fixed_size_distribution(*, noise: float, share: float) -> PrivacyLossDistribution:
    """One Gaussian release on a batch that has this share of all records; `noise` is for replacing a record."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

    poisson = privacy_loss_mechanism.GaussianPrivacyLoss(
        noise, sampling_prob=share, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
    )
    most = math.ceil(poisson.connect_dots_bounds().epsilon_upper / STEP)
    losses = STEP * np.arange(most + 1)
    above = np.asarray(poisson.get_delta_for_epsilon(losses))
    below = (-np.expm1(-losses) + np.exp(-losses) * above)[:0:-1]  # H_a(P, Q) = 1 - a + a H_(1/a)(Q, P)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(STEP, -most, most, np.concatenate([below, above]))
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def poisson_distribution(*, noise: float, share: float) -> PrivacyLossDistribution:
    """One Gaussian release on a Poisson batch; with a share of 1, a plain one."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=share, value_discretization_interval=STEP
    )


def composed(parts: Iterable[tuple[PrivacyLossDistribution, int]]) -> PrivacyLossDistribution:
    """All together, each so many times."""
    from dp_accounting.pld import privacy_loss_distribution

    total = privacy_loss_distribution.identity(value_discretization_interval=STEP)
    for part, times in parts:
        total = total.compose(part.self_compose(times))
    return total
