"""What it is worth that batches are drawn by chance: epsilon against whoever hears every message, and sigma for it."""

from __future__ import annotations

import math

from sottovoce.core.adjacency import Adjacency, Change
from sottovoce.core.noise import CombinedNoise
from sottovoce.errors import Unaccountable
from sottovoce.learning.batches import Sampling
from sottovoce.privacy.amplification import noise_for, noise_multiplier, releases, sampled_epsilon
from sottovoce.privacy.assumptions import CHANGED_RECORD, AssumptionKind, rounding
from sottovoce.privacy.bisection import least_noise
from sottovoce.privacy.calibration import Target
from sottovoce.privacy.composition import SampledLoss
from sottovoce.privacy.covering_views import lacks_secrets
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import Kind, PrivacyFigure, TrainingProof
from sottovoce.privacy.views import View
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import TrainingRun
from sottovoce.tracing.linear_system import LinearSystem


def sampled_headline(training_run: TrainingRun, system: LinearSystem, delta: float, view: View) -> PrivacyFigure | None:
    """The figure that counts on chance, for the node with the least noise; None where batches are not drawn by chance.

    `view` is everyone, with final models or without. Refused where sampling has no proof for this system.
    """
    samplings = _samplings(training_run)
    if not samplings:
        return None
    epsilon = max(
        sampled_epsilon(
            system, view, share=how.share, size=how.size, apart=how.apart, delta=delta, sensitivity=sensitivity
        )
        for how, sensitivity in samplings.items()
    )
    change = _change(next(iter(samplings)))
    assumptions = [AssumptionKind.SAMPLED_BATCHES.of(changed=CHANGED_RECORD[change])]
    if lacks_secrets(view, system):
        assumptions.append(AssumptionKind.NO_SHARED_SECRETS.of())
    assumptions.append(rounding(system, covered=system.algorithm.exact_noise))  # it counts on noisy gradients alone
    return PrivacyFigure(
        view=view, change=change, victim=None, distance=None, kind=Kind.ANY_TRAINING, mu=None, epsilon=epsilon,
        proven_for_training=TrainingProof.PROVEN, assumptions=tuple(assumptions),
        final_models=covered_final_models(system, view),
    )  # fmt: skip


def sampled_loss(training_run: TrainingRun, system: LinearSystem, view: View) -> SampledLoss | None:
    """What the sampled figure is made of, so that it can be composed with others; None where it has no such form.

    Of Poisson batches that differ between nodes, the largest share with the least noise: no node's record loses more.
    Batches of a fixed size that differ have no such worst case.
    """
    samplings = _samplings(training_run)
    if len({how.size for how in samplings}) != 1 or (len(samplings) > 1 and next(iter(samplings)).size is not None):
        return None
    one = next(iter(samplings))  # all nodes share settings, so that shares and sizes alone can differ
    noise = (noise_multiplier(system, view, most, apart=one.apart, certain=one.certain) for most in samplings.values())
    return SampledLoss(
        noise=min(noise),
        share=max(how.share for how in samplings),
        rounds=releases(system.rounds, apart=one.apart, certain=one.certain),
        size=one.size,
    )


def sampled_sigma(reference: RunAccountant, target: Target, view: View) -> float | None:
    """The sigma at which every node's sampling meets a target, from the accountant at sigma 1.

    `view` is everyone, with final models or without. None where sampling counts for nothing.
    """
    run = reference.training_run

    def excess(accountant: RunAccountant) -> float:
        """The noise there is over what is needed, for the node that has least of it."""
        return min(
            noise_multiplier(accountant.system, view, most, apart=how.apart, certain=how.certain) / needed[how]
            for how, most in samplings.items()
        )

    samplings = _samplings(run)
    try:
        needed = {how: _needed(how, run.rounds, target) for how in samplings}
        if not needed or (over := excess(reference)) in (0.0, math.inf):
            return None
    except Unaccountable:
        return None
    sigma = (1 + 1e-12) / over
    if not isinstance(run.algorithm.noise, CombinedNoise):
        return sigma
    return least_noise(lambda tried: excess(reference.at_sigma(tried)) >= 1, sigma, tolerance=1e-3, smallest=1e-9)


def _needed(how: Sampling, rounds: int, target: Target) -> float:
    """The noise multiplier of each release that a target takes."""
    if how.certain:
        return 1 / mu_of(target.epsilon, target.delta)
    count = releases(rounds, apart=how.apart)
    return noise_for(target.epsilon, share=how.share, size=how.size, rounds=count, delta=target.delta)


def _samplings(training_run: TrainingRun) -> dict[Sampling, float]:
    """How records are sampled, with how far the change that this is about moves what a node releases.

    Empty unless every node samples.
    """
    if training_run.adjacency is not Adjacency.RECORD:
        return {}
    gradients = training_run.gradients
    samplings = {gradients.sampling(node) for node in range(training_run.topology.n)}
    if None in samplings:
        return {}
    return {how: gradients.sensitivity("record", _change(how)) for how in samplings if how is not None}


def _change(how: Sampling) -> Change:
    """What amplification by this sampling is about."""
    return Change.ZERO_OUT if how.size is None else Change.REPLACE
