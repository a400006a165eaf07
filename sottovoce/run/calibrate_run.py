"""The least noise with which a training run meets a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.core.final_models import FinalModels
from sottovoce.core.noise import CombinedNoise
from sottovoce.errors import Unaccountable
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.calibration import Calibrated, Target, least_sigma, least_sigma_against, with_sigma
from sottovoce.privacy.covering_views import covering_views, insiders_know_more
from sottovoce.privacy.sampled_batches import sampled_sigma, saves_noise
from sottovoce.privacy.views import View, everyone, parse_view, with_final_models
from sottovoce.run.run_accountant import UNCLIPPED, RunAccountant
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.progress import report_stage
from sottovoce.support.threads import one_thread


@one_thread()
def calibrate_run(
    training_run: TrainingRun,
    *,
    epsilon: float,
    delta: float,
    view: str | View = "everyone",
    final_models: str = FinalModels.NONE,
) -> RunAccountant:
    """The run at the least sigma that meets a target, by the best kind that is proven for it, with its accountant.

    A view of nodes is met by the account of that view or, where that takes less noise, by the figure of everyone that
    counts on sampling: no node learns more, unless it knows secrets or noise of others. Where neighbours share secrets,
    everyone's target is met for all views that a headline has to cover. With `final_models`, adversaries see these as
    well.
    """
    if not training_run.clipped:
        raise Unaccountable(UNCLIPPED)
    report_stage(f"finding the noise for epsilon {epsilon:g}")
    target = Target(epsilon, delta)
    adversary = with_final_models(parse_view(view, labels=training_run.topology.names), final_models)
    reference = RunAccountant(replace(training_run, algorithm=with_sigma(training_run.algorithm, 1.0)))
    adversaries = covering_views(adversary, reference.system)
    sampled, nodes = None, training_run.sampled_nodes
    if nodes is not None and not insiders_know_more(reference.system):
        whole = with_final_models(everyone(), adversary.final_models)
        sampled = sampled_sigma(lambda sigma: reference.at_sigma(sigma).system, nodes, target, whole)
    try:
        found = _least_sigma(reference, adversaries, target)
    except Unaccountable:
        if sampled is None:
            raise
        return reference.at_sigma(sampled)
    if sampled is not None and saves_noise(sampled, found.sigma):
        return reference.at_sigma(sampled)
    return reference.at_sigma(found.sigma, found.account)


def _least_sigma(reference: RunAccountant, adversaries: Sequence[View], target: Target) -> Calibrated:
    """Against all of them. A sigma found in proportion is accounted for with all kinds, for it will be reported."""
    noise = reference.training_run.algorithm.noise
    one = reference.accounts_at(reference.proven_kinds if isinstance(noise, CombinedNoise) else reference.kinds)

    def at(sigma: float) -> Account:
        accounts = [one(sigma, view) for view in adversaries]
        unproven = next((found for found in accounts if found.headline is None), None)
        return unproven if unproven is not None else max(accounts, key=lambda found: found.mu)

    if len(adversaries) == 1:
        return least_sigma_against(one, adversaries[0], noise, target)
    return least_sigma(at, noise, target)
