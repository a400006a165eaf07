"""What it is worth that batches are drawn by chance: epsilon of a view, and sigma for it.

Each node is accounted for by its own sampling and its own noise. The figure is that of the node that is worst off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.core.adjacency import Change
from sottovoce.core.noise import CombinedNoise, Independent, PerNode, Temporal
from sottovoce.core.participation import Sampling
from sottovoce.core.sensitivity import per_node
from sottovoce.errors import Unaccountable
from sottovoce.privacy.amplification import epsilon_of_batches, noise_for, noise_multipliers, releases
from sottovoce.privacy.assumptions import CHANGED_RECORD, AssumptionKind, rounding
from sottovoce.privacy.calibration import LARGEST, Target, least_noise
from sottovoce.privacy.composition import SampledLoss
from sottovoce.privacy.covering_views import covering_views, lacks_secrets
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.guarantee import Figure, Kind, PrivacyFigure, TrainingProof
from sottovoce.privacy.views import View
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import trace_with_noise

ROUNDING = 1e-9
"""Sizes of noise and figures that differ by less, relatively, are the same."""


@dataclass(frozen=True)
class SampledNodes:
    """How each node draws its records. `sensitivity` is how far the change that this sampling is about moves what a
    node releases, in the units of the algorithm's own sensitivity.
    """

    samplings: tuple[Sampling, ...]
    sensitivity: PerNode

    @property
    def change(self) -> Change:
        """What may change: the same at all nodes."""
        return self.samplings[0].change

    @property
    def differ(self) -> bool:
        """Whether some nodes sample unlike others."""
        return len(set(self.samplings)) > 1

    def least_noise(self, system: LinearSystem, view: View) -> dict[Sampling, float]:
        """For each sampling the least noise multiplier of the nodes that sample so."""
        own, change = np.asarray(system.algorithm.sensitivity), np.asarray(self.sensitivity)
        one = self.samplings[0]  # nodes share settings, so that shares and sizes alone can differ
        noises = noise_multipliers(system, view, apart=one.apart, certain=one.certain) * (own / change)
        found: dict[Sampling, float] = {}
        for how, noise in zip(self.samplings, noises, strict=True):
            found[how] = min(float(noise), found.get(how, math.inf))
        return found


def sampled_figure(system: LinearSystem, view: View, nodes: SampledNodes, delta: float) -> PrivacyFigure:
    """The figure that counts on chance, for the node that is worst off.

    What a node or a coalition sees is a function of all noisy gradients, so that this figure holds for it as well.
    Refused where sampling has no proof for this system.
    """
    epsilon = max(
        _epsilon(how, noise, system.rounds, delta, or_unsampled=nodes.differ)
        for how, noise in nodes.least_noise(system, view).items()
    )
    assumptions = [AssumptionKind.SAMPLED_BATCHES.of(changed=CHANGED_RECORD[nodes.change])]
    if lacks_secrets(view, system):
        assumptions.append(AssumptionKind.NO_SHARED_SECRETS.of())
    assumptions.append(rounding(system, covered=bool(system.algorithm.exact_noise)))  # noisy gradients alone
    return PrivacyFigure(
        view=view, change=nodes.change, victim=None, distance=None, kind=Kind.ANY_TRAINING, mu=None, epsilon=epsilon,
        proven_for_training=TrainingProof.PROVEN, assumptions=tuple(assumptions),
        final_models=covered_final_models(system, view), figure=Figure.BOUND,
    )  # fmt: skip


def _epsilon(how: Sampling, noise: float, rounds: int, delta: float, *, or_unsampled: bool) -> float:
    """Epsilon of one sampling; or, if that is less, of the same noise in every round, where nodes differ in that."""
    count = releases(rounds, apart=how.apart, certain=how.certain)
    unsampled = epsilon_of(count**0.5 / noise, delta) if noise > 0 else math.inf
    if how.certain:
        return unsampled
    found = epsilon_of_batches(noise=noise, share=how.share, size=how.size, rounds=count, delta=delta)
    return min(found, unsampled) if or_unsampled else found


def better_figure(sampled: PrivacyFigure | None, unsampled: PrivacyFigure) -> PrivacyFigure:
    """The one with less epsilon. Where chance is worth nothing, the one without: its loss is Gaussian."""
    if sampled is None:
        return unsampled
    return sampled if sampled.epsilon < unsampled.epsilon * (1 - ROUNDING) else unsampled


def sampled_loss(system: LinearSystem, view: View, nodes: SampledNodes) -> SampledLoss | None:
    """What the sampled figure is made of, so that it can be composed with others; None where it has no such form.

    Of Poisson batches that differ between nodes, the largest share with the least noise: no node's record loses more.
    Batches of a fixed size that differ have no such worst case.
    """
    sizes = {how.size for how in nodes.samplings}
    if len(sizes) > 1 or (nodes.differ and None not in sizes):
        return None
    noise, one = min(nodes.least_noise(system, view).values()), nodes.samplings[0]
    count = releases(system.rounds, apart=one.apart, certain=one.certain)
    return SampledLoss(noise, max(how.share for how in nodes.samplings), count, sizes.pop())


def sampled_sigma(
    at: Callable[[float], LinearSystem], nodes: SampledNodes, target: Target, view: View
) -> PerNode | None:
    """The least sigma with which every node's sampling meets a target, where `at` gives the system of a sigma.

    Noise of each node's own is chosen node by node. None where sampling counts for nothing.
    """
    reference = at(1.0)
    try:
        there = nodes.least_noise(reference, view)
        needed = {how: _needed(how, reference.rounds, target, or_unsampled=nodes.differ) for how in there}
    except Unaccountable:
        return None
    if min(there.values()) == 0 or max(there.values()) == math.inf:
        return None
    sigmas = {how: (1 + 1e-12) * needed[how] / noise for how, noise in there.items()}
    noise, most = reference.algorithm.noise, max(sigmas.values())
    if isinstance(noise, Independent | Temporal):
        return per_node([sigmas[how] for how in nodes.samplings])
    if not isinstance(noise, CombinedNoise):
        return most

    def enough(sigma: float) -> bool:
        found = nodes.least_noise(at(noise.nearest_sigma(sigma)), view)
        return all(least >= needed[how] for how, least in found.items())

    return noise.nearest_sigma(least_noise(enough, most, tolerance=1e-3, smallest=1e-9, largest=LARGEST))


class SampledCalibration(NamedTuple):
    """A sigma, for all nodes or for each, the system there, and the figure that shows it meets the target."""

    sigma: PerNode
    system: LinearSystem
    figure: PrivacyFigure


def calibrate_sampled(
    reference: LinearSystem, view: View, nodes: SampledNodes, target: Target
) -> SampledCalibration | None:
    """The least sigma that meets a target by chance, from the system at sigma 1; None where chance counts for nothing.

    That is so where somebody who shares secrets learns more than everyone.
    """
    if len(covering_views(view, reference)) > 1:
        return None

    def at(sigma: PerNode) -> LinearSystem:
        return trace_with_noise(reference, reference.algorithm.noise.with_sigma(sigma))

    sigma = sampled_sigma(at, nodes, target, view)
    if sigma is None:
        return None
    system = at(sigma)
    return SampledCalibration(sigma, system, sampled_figure(system, view, nodes, target.delta))


def saves_noise(sampled: PerNode, unsampled: float) -> bool:
    """Whether the sigma that counts on chance is smaller for some node, and larger for none."""
    each = np.atleast_1d(sampled)
    return bool(each.max() <= unsampled * (1 + ROUNDING) and each.min() < unsampled * (1 - ROUNDING))


def _needed(how: Sampling, rounds: int, target: Target, *, or_unsampled: bool) -> float:
    """The noise multiplier that a sampling needs; or, if that is less, the one that needs no sampling."""
    count = releases(rounds, apart=how.apart, certain=how.certain)
    unsampled = count**0.5 / target.mu * (1 + 1e-12)
    if how.certain:
        return unsampled
    found = noise_for(target.epsilon, share=how.share, size=how.size, rounds=count, delta=target.delta)
    return min(found, unsampled) if or_unsampled else found
