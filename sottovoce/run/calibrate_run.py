"""The least noise with which a training run meets a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.core.noise import CombinedNoise
from sottovoce.core.threads import one_thread
from sottovoce.errors import Unaccountable
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.calibration import Calibrated, Target, least_sigma, with_sigma
from sottovoce.privacy.covering_views import covering_views
from sottovoce.privacy.views import View, ViewKind, parse_view
from sottovoce.run.attackers import choose_attackers
from sottovoce.run.run_accountant import UNCLIPPED, RunAccountant
from sottovoce.run.sampled_batches import sampled_sigma
from sottovoce.run.training_run import TrainingRun


@one_thread()
def calibrate_run(
    training_run: TrainingRun,
    *,
    epsilon: float,
    delta: float,
    view: str | View = "everyone",
    attackers: str | int | Sequence[int] = "auto",
) -> RunAccountant:
    """The run at the least sigma that meets a target, by the best kind that is proven for it, with its accountant.

    A view of nodes is met by the account of that view; for everyone, sampling counts too. Where neighbours share
    secrets, everyone's target is met for all views that the headline of `report_privacy` with these attackers is about.
    """
    if not training_run.clipped:
        raise Unaccountable(UNCLIPPED)
    target, adversary = Target(epsilon, delta), parse_view(view, labels=training_run.topology.names)
    reference = RunAccountant(replace(training_run, algorithm=with_sigma(training_run.algorithm, 1.0)))
    nodes = choose_attackers(training_run, attackers).nodes
    adversaries = covering_views(adversary, training_run.algorithm, training_run.topology, nodes=nodes)
    sampled = None
    if adversary.kind is ViewKind.EVERYONE and len(adversaries) == 1:
        sampled = sampled_sigma(reference, target)
    try:
        worst = max((_least_sigma(reference, one, target) for one in adversaries), key=lambda found: found.sigma)
    except Unaccountable:
        if sampled is None:
            raise
        return reference.at_sigma(sampled)
    if sampled is not None and sampled < worst.sigma:
        return reference.at_sigma(sampled)
    return reference.at_sigma(worst.sigma, worst.account)


def _least_sigma(reference: RunAccountant, view: View, target: Target) -> Calibrated:
    """For one adversary. A sigma that is found in proportion is accounted for in full, because it will be reported."""
    noise = reference.training_run.algorithm.noise
    searched = isinstance(noise, CombinedNoise)

    def at(sigma: float) -> Account:
        if sigma == 1.0:
            return reference.headline_account(view)
        tried = reference.at_sigma(sigma)
        return tried.headline_account(view) if searched else tried.account(view)

    return least_sigma(at, noise, target)
