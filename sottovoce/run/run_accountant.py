"""The accountant of one training run: it traces the run once, accounts for each adversary once, and finds its noise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sottovoce.core.final_models import FinalModels, parse_final_models
from sottovoce.core.noise import CombinedNoise, NoNoise, PerNode
from sottovoce.core.participation import Participation
from sottovoce.core.transport import WithLiars
from sottovoce.errors import Unaccountable
from sottovoce.privacy.accountant import Account, AccountSettings, account
from sottovoce.privacy.amplification import sampled_figure, sampled_sigma, saves_noise
from sottovoce.privacy.calibration import Calibrated, Target, accounts_at, least_sigma, with_sigma
from sottovoce.privacy.convexity import least_weight, non_expansive, taken_step_size
from sottovoce.privacy.covering_views import covering_views, insiders_know_more
from sottovoce.privacy.exact.routes import loss_cost
from sottovoce.privacy.guarantee import KINDS, Kind, PrivacyFigure
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import View, everyone, parse_view, with_final_models
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.progress import counted, next_counted, report_stage
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import affordable_extent, trace_affordable, trace_noisy_gradients, trace_with_noise

UNCLIPPED = "gradients are not clipped: nothing bounds what a change of data does, so no guarantee holds"


class Convexity(NamedTuple):
    """Whether local steps are non-expansive, with the sentence that says so or why not.

    Both follow from settings, declared bounds and the number of records of each node, which is public: sigma depends on
    this, so no value of a record may.
    """

    established: bool
    sentence: str


class RunAccountant:
    """What is known about the privacy of a training run, computed when it is first asked for."""

    def __init__(self, training_run: TrainingRun) -> None:
        self.training_run = training_run
        self._accounts: dict[View, Account] = {}
        self._earlier: dict[tuple[int, View], Account] = {}

    @cached_property
    def system(self) -> LinearSystem:
        """The linear system of what runs."""
        run = self.training_run
        return _traced(run, run.rounds)

    @cached_property
    def convexity(self) -> Convexity:
        """Whether local steps are non-expansive, so that `convex-training` counts."""
        return _convexity(self.training_run, self.system)

    @property
    def proven_kinds(self) -> tuple[Kind, ...]:
        """The kinds that can be proven for this run."""
        return (Kind.ANY_TRAINING, Kind.CONVEX_TRAINING) if self.convexity.established else (Kind.ANY_TRAINING,)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that are reported: those that can be proven, and the idealisation."""
        return tuple(kind for kind in KINDS if kind in self.proven_kinds or kind is Kind.FIXED_STREAMS)

    def account(self, view: View) -> Account:
        """All kinds of guarantees against a view; of each view once."""
        return self.accounts([view])[0]

    @one_thread()
    def accounts(self, views: Sequence[View]) -> tuple[Account, ...]:
        """All kinds of guarantees against each of some views; of each view once, and what views share once."""
        missing = [view for view in dict.fromkeys(views) if view not in self._accounts]
        self._check_cost(missing)
        with counted("accounts of adversaries", len(missing)) if len(missing) > 1 else nullcontext():
            for view in missing:
                with next_counted():
                    self._accounts[view] = self._account(self.system, view, self.kinds)
        return tuple(self._accounts[view] for view in views)

    def _check_cost(self, views: Sequence[View]) -> None:
        """Refuse more adversaries than limits allow; the one that hears most stands for each of them."""
        for view in views:
            view.check(self.system.n)
        heard = np.diff(self.system.topology.at(0).weights.indptr)
        nodes = sorted((view for view in views if view.members), key=lambda view: heard[list(view.members)].sum())
        if nodes and not self.system.only_gradients:
            each = loss_cost(observe(self.system, nodes[-1]), self._participation(self.system))
            whole = Cost(memory=each.memory, seconds=len(nodes) * each.seconds)
            what = f"accounting for {len(nodes)} adversaries on {self.training_run.topology.name}"
            check_cost(what, whole, 'take fewer privacy.attackers, or none with privacy.attackers = "none"')

    def headline_after(self, rounds: int, view: View) -> Account:
        """What the headline would rest on if the run had ended after so many rounds; of each end and view once."""
        if (rounds, view) not in self._earlier:
            system = self.first_rounds(rounds)
            self._earlier[rounds, view] = self._account(system, view, self.proven_kinds)
        return self._earlier[rounds, view]

    def first_rounds(self, rounds: int) -> LinearSystem:
        """The system of the first rounds; traced anew where more of it is affordable than of the whole run."""
        if self.traces_less_than_first_rounds(rounds):
            return _traced(self.training_run, rounds)
        return self.system.first_rounds(rounds)

    def traces_less_than_first_rounds(self, rounds: int = 1) -> bool:
        """Whether the whole run is too large to trace as much of it as of its first rounds."""
        run = self.training_run
        return len({affordable_extent(run.algorithm, run.topology, rounds=count) for count in (rounds, run.rounds)}) > 1

    def at_sigma(self, sigma: PerNode, known: Account | None = None) -> RunAccountant:
        """The accountant of the same run with another sigma, or with one for each node.

        Convexity, which does not depend on sigma, is not checked again. Nor is a `known` account at that size computed
        again.
        """
        run = replace(self.training_run, algorithm=with_sigma(self.training_run.algorithm, sigma))
        found = RunAccountant(run)
        found.convexity = self.convexity
        if known is not None:
            found.system = known.system
            if set(known.kinds) == set(self.kinds):
                found._accounts[known.view] = known
        else:
            found.system = trace_with_noise(self.system, self.system.algorithm.noise.with_sigma(sigma))
        return found

    def sampled(self, view: View, delta: float, rounds: int | None = None) -> PrivacyFigure | None:
        """The figure that counts on batches drawn by chance, also after so many rounds; None where none are drawn."""
        nodes = self.training_run.sampled_nodes
        if nodes is None:
            return None
        return sampled_figure(self.system if rounds is None else self.first_rounds(rounds), view, nodes, delta)

    def _account(self, system: LinearSystem, view: View, kinds: Sequence[Kind]) -> Account:
        return account(system, view, **self.settings(system, kinds))

    def settings(self, system: LinearSystem, kinds: Sequence[Kind]) -> AccountSettings:
        """What is asked of an account of this run."""
        return {
            "adjacency": self.training_run.adjacency, "participation": self._participation(system),
            "convex": self.convexity.established, "kinds": kinds, "covering": False,
        }  # fmt: skip

    def _participation(self, system: LinearSystem) -> Participation:
        run = self.training_run
        return run.gradients.participation(run.adjacency).within(system.rounds)


def _convexity(training_run: TrainingRun, system: LinearSystem) -> Convexity:
    gradients, batches = training_run.gradients, training_run.gradients.batches
    try:
        if gradients.local_steps > 1:
            raise Unaccountable("several local steps in each round; convex-training covers single steps")
        if isinstance(training_run.algorithm.noise, NoNoise):
            raise Unaccountable("no noise")
        if gradients.views is not None:
            raise Unaccountable("clipping the mean of several views of a record can move models apart")
        model = training_run.task.convex_model
        if model is None:
            raise Unaccountable(f"{training_run.task.model.name} is not known to be convex, as linear models are")
        sentence = non_expansive(
            model,
            training_run.task.feature_norm,
            step_size=taken_step_size(system),
            clipping=gradients.clipping.kind,
            weight=least_weight(system),
            loss_weight=training_run.task.model.loss.largest_weight,
            excess=float((gradients.node_weights * batches.largest / batches.divisors).max()),
        )
        return Convexity(True, sentence)
    except Unaccountable as refusal:
        return Convexity(False, f"convex-training is not offered: {refusal}")


def published_models(training_run: TrainingRun, wanted: str) -> FinalModels:
    """Which final models adversaries see: those that are wanted; of a node by itself, which sends nothing, its own."""
    return FinalModels.ALL if training_run.topology.n == 1 else parse_final_models(wanted)


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
    well, and the model of a node by itself in any case.
    """
    if not training_run.clipped:
        raise Unaccountable(UNCLIPPED)
    report_stage(f"finding the noise for epsilon {epsilon:g}")
    target = Target(epsilon, delta)
    models = published_models(training_run, final_models)
    adversary = with_final_models(parse_view(view, labels=training_run.topology.names), models)
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
    noise, system = reference.training_run.algorithm.noise, reference.system
    kinds = reference.proven_kinds if isinstance(noise, CombinedNoise) else reference.kinds
    one = accounts_at(system, system.algorithm.noise.with_sigma, **reference.settings(system, kinds))

    def at(sigma: float) -> Account:
        accounts = [one(sigma, view) for view in adversaries]
        unproven = next((found for found in accounts if found.headline.proves_nothing), None)
        return unproven if unproven is not None else max(accounts, key=lambda found: found.mu)

    return least_sigma(at, noise, target)


def _traced(run: TrainingRun, rounds: int) -> LinearSystem:
    """What messages are made of; where some nodes lie, what is proven is proven given all noisy gradients."""
    if isinstance(run.transport, WithLiars):
        reason = "some nodes send what they like"
        return trace_noisy_gradients(run.algorithm, run.topology, rounds=rounds, reason=reason)
    return trace_affordable(run.algorithm, run.topology, rounds=rounds)
