"""The privacy guarantees of a run: figures of its algorithm, clipping, batches and data, known before it starts.

The headline is what whoever hears every message can learn at most, by the best kind of proof that holds for this run
(docs/guarantees.md). Beside it stand the other kinds, and the views of single nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np

from sottovoce.core.final_models import FinalModels
from sottovoce.core.grid import released_step
from sottovoce.core.noise import CombinedNoise, Noise, NoNoise, PerNode, ZeroSum
from sottovoce.core.random_streams import public_seed
from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.datasets import ELSEWHERE
from sottovoce.privacy import views
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.amplification import better_figure, sampled_loss
from sottovoce.privacy.assumptions import Assumption, AssumptionKind, NotCovered
from sottovoce.privacy.composition import GaussianLoss, Loss, SampledLoss, StatedLoss
from sottovoce.privacy.covering_views import (
    NODE_ROUNDS,
    Coverage,
    coverage,
    covering_views,
    hides_in_sums,
    insiders_know_more,
)
from sottovoce.privacy.gaussian_dp import epsilons_of
from sottovoce.privacy.guarantee import PrivacyFigure, figures_at
from sottovoce.privacy.views import View, node_numbers, parse_view, read_view, with_final_models
from sottovoce.run.fingerprint import origin
from sottovoce.run.privacy_document import EarlierEnd, PrivacyDocument, StoredView
from sottovoce.run.run_accountant import UNCLIPPED, RunAccountant, published_models
from sottovoce.run.training_run import TrainingRun, is_measured
from sottovoce.support.config import Document, Experiment
from sottovoce.support.progress import counted, next_counted
from sottovoce.support.text import JSON
from sottovoce.support.threads import one_thread
from sottovoce.tracing.certificate import what_is_checked

STAGES = 20
"""At so many rounds at most epsilon is reported."""

NOT_COMPARED = "no round was compared with the trace: another framework trained, and only what the site sent is known"
"""What is said of rounds that are played elsewhere."""

LARGEST, STAGE_NODE_ROUNDS = 20_000_000, 2_000_000
"""Of larger runs, in nodes times rounds, epsilon is told for the end only. Where several adversaries are asked, so many
accounts are made in all, or more while adversaries times nodes times rounds of all of them are within the second."""


@dataclass(frozen=True, eq=False)
class PrivacyReport:
    """The guarantees of a run at one delta: for everyone as the adversary, and for single nodes.

    `sampled` is the figure that counts on batches drawn by chance. `attackers` says which nodes were taken as
    adversaries; `convexity` which check established that local steps are non-expansive, or why none did.
    `final_models` are those that every adversary of the headline sees; of single nodes there are figures with and
    without them. Epsilon is told after every few rounds, as metrics are: `every`. Rounds are `compared` with the trace
    where this package plays them.
    """

    accountant: RunAccountant
    delta: float
    accounts: tuple[Account, ...]
    sampled: PrivacyFigure | None
    attackers: str
    convexity: str
    refusals: tuple[str, ...]
    final_models: FinalModels = FinalModels.NONE
    every: int = 10
    compared: bool = True

    @cached_property
    def headline(self) -> PrivacyFigure:
        """The least epsilon that is proven for the everyone view, with its kind, and the change that it is about.

        Data is replaced by other data; with Poisson batches it may be one record that is made to count as nothing, a
        change half as large. `change` says which. Where neighbours share secrets (DECOR), the headline is the worst of
        all views, among which are those that it must hold for (`covering_views`). Where nothing is proven it is
        infinite, and assumes why.
        """
        best = self._proven()
        return replace(best, assumptions=(*best.assumptions, *self._assumptions()))

    def _assumptions(self) -> Iterator[Assumption]:
        """What is assumed about this run, whatever the proof."""
        if not isinstance(self._run.algorithm.noise, NoNoise):
            if self._run.reproducible:
                yield AssumptionKind.REPRODUCIBLE_RUN.of()
            if not self._run.noise_key.repeatable:
                yield AssumptionKind.SECRET_NOISE.of()
        if self._run.task.public_statistics:
            yield AssumptionKind.PUBLIC_STATISTICS.of(statistics="; ".join(self._run.task.public_statistics))

    def _proven(self) -> PrivacyFigure:
        if not self.accounts:
            return self.sampled or PrivacyFigure.nothing_proven(views.everyone(), self.refusals)
        if insiders_know_more(self.accountant.system):
            worst = max(self._counted, key=lambda found: (found.headline.proves_nothing, found.mu))
            return PrivacyFigure.of(worst.headline, self.delta)
        return better_figure(self.sampled, PrivacyFigure.of(self.accounts[0].headline, self.delta))

    @property
    def coverage(self) -> Coverage | None:
        """Whom the headline covers; None where nothing is proven."""
        if self.headline.proves_nothing:
            return None
        held = self._counted if insiders_know_more(self.accountant.system) else self._counted[:1]
        return coverage([found.view for found in held] or [self.headline.view], self.accountant.system)

    @property
    def _counted(self) -> list[Account]:
        """The accounts of adversaries that see what the headline is about."""
        return [found for found in self.accounts if found.view.final_models is self.final_models]

    @property
    def _run(self) -> TrainingRun:
        return self.accountant.training_run

    @property
    def epsilon(self) -> float:
        """Epsilon of the headline; infinite where nothing is proven."""
        return self.headline.epsilon

    def over_rounds(self) -> tuple[EarlierEnd, ...]:
        """The headline, as it would be if the run had ended earlier; empty where none is proven, or it takes long.

        Neither mu nor epsilon can decrease with rounds, so each figure is capped by the next. Rounds are those with
        metrics, of many some, and the first. Where the headline is the worst of several adversaries, another one may
        have been the worst before, so all of them are asked.
        """
        last, total = self.headline, self._run.rounds
        most = 0 if last.proves_nothing else self._most_stages(last)
        if not most:
            return ()
        earlier = _stages(total, self.every, most)[-2::-1]
        mus: list[float | None]
        with counted("epsilon over rounds", len(earlier)):
            if last.mu is None:
                mus, epsilons = [None] * len(earlier), [self._sampled_after(rounds, last.view) for rounds in earlier]
            else:
                each = (self._mu_after(rounds, last) for rounds in earlier)
                capped = list(accumulate(each, min, initial=last.mu))[1:]
                mus, epsilons = [*capped], epsilons_of(capped, self.delta).tolist()
        found = zip((total, *earlier), (last.mu, *mus), accumulate(epsilons, min, initial=last.epsilon), strict=True)
        return tuple(EarlierEnd(at, epsilon, mu) for at, mu, epsilon in found)[::-1]

    @property
    def loss(self) -> Loss | None:
        """What the headline is made of, so that it can be composed with those of other runs."""
        last = self.headline
        if last.proves_nothing:
            return None
        if last.mu is not None:
            return GaussianLoss(last.mu)
        nodes = self._run.sampled_nodes
        found = None if nodes is None else sampled_loss(self.accountant.system, last.view, nodes)
        return StatedLoss(last.epsilon, self.delta, last.change) if found is None else found

    def loss_after(self, rounds: int) -> Loss:
        """What the headline would be made of, by the same proof, if the run had so many rounds."""
        last, loss = self.headline, self.loss
        if loss is None:
            return StatedLoss(math.inf, self.delta)
        if isinstance(loss, GaussianLoss):
            return GaussianLoss(min(self._mu_after(rounds, last), loss.mu))
        if isinstance(loss, SampledLoss):
            nodes = self._run.sampled_nodes
            assert nodes is not None
            return sampled_loss(self.accountant.first_rounds(rounds), last.view, nodes) or loss
        return replace(loss, epsilon=self._sampled_after(rounds, last.view))

    def _held_against(self, last: PrivacyFigure) -> list[View]:
        """The adversaries of whom the headline is the worst: its own alone, unless neighbours share secrets.

        Of one secure sum over all, any coalition of a size is among them, which stands for each single node.
        """
        system = self.accountant.system
        if not insiders_know_more(system):
            return [last.view]
        held = [found.view for found in self._counted]
        return [view for view in held if len(view.members) != 1] if hides_in_sums(system) else held

    def _most_stages(self, last: PrivacyFigure) -> int:
        """At how many rounds epsilon is reported at most."""
        held, size = self._held_against(last), self._run.topology.n * self._run.rounds
        is_large = size > NODE_ROUNDS
        if is_large and self.accountant.traces_less_than_first_rounds():
            return 0
        if len(held) == 1:
            return STAGES if size <= LARGEST else 0
        return max(0 if is_large else STAGES // len(held), min(STAGES, STAGE_NODE_ROUNDS // (size * len(held))))

    @one_thread()
    def _mu_after(self, rounds: int, last: PrivacyFigure) -> float:
        """The headline's mu, by the same proof and for the same adversaries, after the first rounds."""
        try:
            with next_counted():
                return max(self.accountant.headline_after(rounds, view).mu for view in self._held_against(last))
        except Unaccountable:
            return math.inf

    @one_thread()
    def _sampled_after(self, rounds: int, view: View) -> float:
        """Epsilon that counts on chance, after the first rounds."""
        try:
            with next_counted():
                sampled = self.accountant.sampled(view, self.delta, rounds)
        except Unaccountable:
            return math.inf
        return math.inf if sampled is None else sampled.epsilon

    def document(self) -> dict[str, JSON]:
        """As JSON: `privacy.json` of a run."""
        return self.stated.document()

    @cached_property
    def views(self) -> tuple[StoredView, ...]:
        """The figures of every view that was accounted for, as they are read back: views are what their names say."""
        named = cache(lambda view: read_view(str(view)))
        every = figures_at([one for found in self.accounts for one in (*found.guarantees, found.headline)], self.delta)
        figures = (replace(one, view=named(one.view)) for one in every)
        return tuple(
            StoredView(
                view=named(found.view), guarantees=tuple(islice(figures, len(found.guarantees))),
                headline=next(figures), refusals=tuple(found.refusals),
            )
            for found in self.accounts
        )  # fmt: skip

    @cached_property
    def stated(self) -> PrivacyDocument:
        """What `privacy.json` of a run says."""
        run = self._run
        return PrivacyDocument(
            algorithm=run.algorithm.name, topology=run.topology.name, rounds=run.rounds,
            sigma=listed(sigma_of(run.algorithm.noise)),
            sensitivity=listed(run.gradients.sensitivities(run.adjacency)) if run.clipped else math.inf,
            clipping=run.gradients.clipping.kind, adjacency=run.adjacency.value, participation=str(run.participation),
            delta=self.delta, headline=_as_named(self.headline),
            grid_step=released_step(run.algorithm, run.topology.at(0)),
            not_covered=tuple(NotCovered), covers=self.coverage, and_final_models=self.final_models, loss=self.loss,
            over_rounds=self.over_rounds(),
            sampled=None if self.sampled is None else _as_named(self.sampled), convexity=self.convexity,
            certificate=what_is_checked(run.algorithm.compression, run.rounds) if self.compared else NOT_COMPARED,
            refusals=self.refusals, attackers=self.attackers, stored_views=self.views,
        )  # fmt: skip


def _stages(total: int, every: int, most: int) -> list[int]:
    """The rounds after which epsilon is told: the first, and those with metrics, evenly thinned where they are many."""
    measured = [rounds for rounds in range(1, total + 1) if is_measured(rounds, every, total)]
    chosen = np.linspace(0, len(measured) - 1, max(1, min(len(measured), most))).round().astype(int)
    return sorted({1, total, *(measured[at] for at in chosen)})


def _as_named(figure: PrivacyFigure) -> PrivacyFigure:
    """With the view that its name says, as it is read back."""
    return replace(figure, view=read_view(str(figure.view)))


def sigma_of(noise: Noise) -> PerNode | None:
    """The setting that decides how large a noise is, where there is one: of a node's own noise beside pair secrets."""
    if isinstance(noise, CombinedNoise):
        return sigma_of(noise.parts[0])
    if isinstance(noise, ZeroSum):
        return noise.message_sigma if noise.zeta is None else noise.zeta
    return getattr(noise, "sigma", None)


def listed(values: PerNode | None) -> Any:
    """One number for all nodes, or a list of each node's."""
    return list(values) if isinstance(values, tuple) else values


@one_thread()
def report_privacy(
    run: TrainingRun | RunAccountant,
    *,
    delta: float = 1e-5,
    attackers: str | int | Sequence[int | str] = "auto",
    target: str | View = "everyone",
    final_models: str = FinalModels.NONE,
    every: int = 10,
) -> PrivacyReport:
    """Account for a run. `attackers` are nodes, a number to sample, `all`, `none`, or `auto`: about a minute's worth.

    The view `target`, for which noise may have been chosen, is always accounted for. With `final_models`, adversaries
    also see these models, and that of a node by itself in any case. For single nodes there are always figures with and
    without them: with the average, unless `final_models` says otherwise. If the run's accountant is given, what it
    knows already is not computed again. Epsilon is reported over rounds.
    """
    accountant = run if isinstance(run, RunAccountant) else RunAccountant(run)
    training_run, noisy = accountant.training_run, not isinstance(accountant.training_run.algorithm.noise, NoNoise)
    models = published_models(training_run, final_models)
    target = with_final_models(parse_view(target, labels=training_run.topology.names), models)
    if noisy and not training_run.clipped:
        return PrivacyReport(accountant, delta, (), None, "none", UNCLIPPED, (UNCLIPPED,))
    chosen, which = choose_attackers(accountant, attackers), target.final_models
    everyone = with_final_models(views.everyone(), which)
    other = FinalModels.AVERAGE if which is FinalModels.NONE else FinalModels.NONE
    nodes, again = ([with_final_models(views.node(node), one) for node in chosen.nodes] for one in (which, other))
    adversaries = dict.fromkeys((everyone, *nodes, *covering_views(everyone, accountant.system), target, *again))
    accounts = accountant.accounts(list(adversaries))
    refusals: tuple[str, ...] = ()
    try:
        sampled = accountant.sampled(everyone, delta)
    except Unaccountable as refusal:
        sampled, refusals = None, (str(refusal),)
    return PrivacyReport(
        accountant, delta, accounts, sampled, chosen.description, accountant.convexity.sentence, refusals, which, every
    )


def report_wanted(accountant: RunAccountant, experiment: Experiment) -> PrivacyReport:
    """Account for a run as its settings ask for it."""
    wanted = experiment.privacy
    found = report_privacy(
        accountant, delta=wanted.delta, attackers=wanted.attackers, target=wanted.view,
        final_models=wanted.and_final_models, every=experiment.metrics.every,
    )  # fmt: skip
    return replace(found, compared=experiment.data.columns != ELSEWHERE)


def stated_again(accountant: RunAccountant, experiment: Experiment) -> Document:
    """The `privacy.json` of a run, computed anew."""
    return report_wanted(accountant, experiment).document() | origin(experiment, accountant.training_run)


# --- which nodes are accounted for as adversaries, besides whoever hears every message --------------------------------

MOST_ATTACKED = 10 * NODE_ROUNDS
"""Runs with more nodes times rounds than this get no attacker unasked."""

WORK = 1e12
"""Multiplications, roughly, of all attackers that nobody asked for: sizes decide on their number, and no machine."""


LEFT_OUT = ": all would take long; the headline, if there is one, covers those left out as well"


class Attackers(NamedTuple):
    """Nodes as adversaries, one at a time, and how they were chosen."""

    nodes: list[int]
    description: str


def choose_attackers(accountant: RunAccountant, wanted: str | int | Sequence[int | str]) -> Attackers:
    """`wanted` are nodes by number or name, how many to sample, `all`, `none`, or `auto`: as many as sizes allow."""
    training_run = accountant.training_run
    n, size, left_out = training_run.topology.n, training_run.topology.n * training_run.rounds, ""
    if n == 1 and wanted in ("all", "auto"):
        return Attackers([], "none")
    if wanted == "auto":
        wanted = 0
        if not isinstance(training_run.algorithm.noise, NoNoise):
            left_out = LEFT_OUT
            if size <= MOST_ATTACKED:
                wanted = min(n, max(1, NODE_ROUNDS // size), int(WORK / _work_of_each(accountant)))
    elif isinstance(wanted, str):
        if wanted not in ("all", "none"):
            raise InputError(f"attackers {wanted!r}", "known: auto, all, none, a number, a list of nodes", "choose one")
        wanted = n if wanted == "all" else 0
    if not isinstance(wanted, int):
        named = node_numbers(wanted, training_run.topology.names)
        return Attackers(named, f"nodes {', '.join(map(str, named))}" if named else "none")
    if not 0 <= wanted <= n:
        raise InputError(f"{wanted} attackers", f"there are {n} nodes", "sample at most that many")
    if wanted == n:
        return Attackers(list(range(n)), f"all {n} nodes")
    rng = np.random.default_rng(public_seed(training_run.seed, "attackers"))
    sample = sorted(rng.choice(n, wanted, replace=False).tolist())
    described = f"a sample of {wanted} of {n} nodes, drawn with the run's seed" if wanted else "none"
    return Attackers(sample, described + left_out)


def _work_of_each(accountant: RunAccountant) -> float:
    """What one attacker takes, with final models and without: the exact loss of the node that hears most, and what
    weights carry to every other node."""
    system = accountant.system
    n, T = system.n, system.rounds
    heard = T * max(sum(int(np.diff(mixing.weights.indptr).max()) for mixing in step.mixings) for step in system.steps)
    links = max(int(step.split(step.state_out)[0].nnz) for step in system.steps)
    return 2.0 * heard**3 + 60.0 * T * n * (links + 15 * n)
