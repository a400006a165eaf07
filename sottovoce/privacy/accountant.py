"""`account`: what each victim of a view can lose, kind by kind, and the headline that is proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency, parse_adjacency
from sottovoce.core.final_models import FinalModels
from sottovoce.core.json_numbers import JSON
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.absorption import Coupling, couple, late_cost, least_cost
from sottovoce.privacy.assumptions import Assumption, AssumptionKind, rounding
from sottovoce.privacy.closedness import closedness, reaching_gradients
from sottovoce.privacy.convexity import least_weight
from sottovoce.privacy.covering_views import Coverage, coalitions, coverage, covering_views, lacks_secrets
from sottovoce.privacy.exact import routes
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.guarantee import KINDS, Guarantee, Kind, TrainingProof, parse_kind
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, ViewKind, parse_view, with_final_models
from sottovoce.tracing.linear_system import LinearSystem

UNBOUNDED = 1e100
"""Clipped growth in units of a record's sensitivity, which is smaller than Clip by the unknown size of a batch."""


@dataclass(frozen=True)
class Account:
    """All guarantees of a view. Its own mu, epsilon, kind and assumptions are those of the headline.

    The headline is, for the victim that is worst off, the best figure of a kind that is proven for what runs. Its own
    view is the one that was asked for, or one that the headline has to cover and that learns more; `coverage` says whom
    it covers. `kinds` were asked for; `refusals` says which of them were not offered, and why.
    """

    system: LinearSystem
    view: View
    guarantees: tuple[Guarantee, ...]
    headline: Guarantee | None
    refusals: tuple[str, ...]
    kinds: tuple[Kind, ...]
    coverage: Coverage

    def _best(self) -> Guarantee:
        if self.headline is None:
            raise Unaccountable("; ".join(self.refusals) or "no kind of guarantee is proven here")
        return self.headline

    @property
    def mu(self) -> float:
        """mu of the headline."""
        return self._best().mu

    @property
    def kind(self) -> Kind:
        """Kind of the headline."""
        return self._best().kind

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the headline assumes."""
        return self._best().assumptions

    def epsilon(self, delta: float) -> float:
        """Epsilon of the headline."""
        return self._best().epsilon(delta)

    def rdp(self, alpha: float) -> float:
        """Renyi divergence of the headline."""
        return self._best().rdp(alpha)

    def of(self, victim: int, kind: str | None = None) -> Guarantee:
        """The guarantee of one victim: of the given kind, or the best that is proven."""
        wanted = None if kind is None else parse_kind(kind)
        candidates = [g for g in self.guarantees if g.victim == victim and wanted in (None, g.kind)]
        averaging = self.system.algorithm.averaging
        proven = [g for g in candidates if wanted is not None or _is_proven(g, averaging, self._convex)]
        if not proven:
            there = sorted({g.kind for g in self.guarantees if g.victim == victim})
            known = f"there are: {', '.join(there)}" if there else "it is not a victim of this view"
            raise InputError(f"no {kind or 'proven'} guarantee for victim {victim}", known, "choose another")
        return min(proven, key=lambda g: g.mu)

    @property
    def _convex(self) -> bool:
        return self.headline is not None and self.headline.kind is Kind.CONVEX_TRAINING

    def document(self, delta: float) -> dict[str, JSON]:
        """As JSON, in the form of the command line's contract."""
        return {
            "algorithm": self.system.algorithm.name,
            "graph": self.system.topology.graph.name if self.system.topology.graph else self.system.topology.name,
            "topology": self.system.topology.name,
            "view": str(self.view),
            "final_models": self.view.final_models.value,
            "secure_sum": self.view.secure_sum,
            "rounds": self.system.rounds,
            "delta": delta,
            "guarantees": [guarantee.document(delta) for guarantee in self.guarantees],
            "headline": None if self.headline is None else self.headline.document(delta),
            "covers": None if self.headline is None else self.coverage.document(),
            "refusals": list(self.refusals),
        }


def account(
    system: LinearSystem,
    adversary: str | View = "everyone",
    *,
    adjacency: str = "user",
    participation: str | Participation = "every",
    convex: bool = False,
    kinds: Sequence[str] = KINDS,
    lipschitz: float | None = None,
    victims: Sequence[int] | None = None,
    final_models: str = FinalModels.NONE,
    covering: bool = True,
) -> Account:
    """Guarantees for every victim of a view.

    - `adversary`: who listens, a `View` or its name: `everyone`, `node:3`, `coalition:3,5`, `eavesdropper:0>1`, or
      `coalition:any-2` for the worst of all coalitions of two nodes;
    - `adjacency`: what may change, all data of a `user` (a node) or one `record`;
    - `participation`: in which rounds the change can show, `every`, or `KxB`: K times, B rounds apart;
    - `convex`: whether local steps are known to be non-expansive, so that `convex-training` counts for the headline;
    - `kinds`: which to compute; `as-published` is not among them unless named, and takes `lipschitz` for ZIP-DL;
    - `victims`: about whom (None: every node that is not a member of the view);
    - `final_models`: which models after the last round it sees as well: `none`, their `average`, or `all`;
    - `covering`: whether the headline holds for all of `covering_views`; a report that accounts for each of them by
      itself asks for this view alone.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:10"), rounds=16)
    >>> account(system).mu
    2.0
    >>> round(account(system, "node:0").of(5, "fixed-streams").mu, 3)
    0.25
    """
    view = with_final_models(parse_view(adversary, labels=system.topology.names), final_models)
    wanted = tuple(parse_kind(kind) for kind in kinds)
    terms = _Terms(parse_adjacency(adjacency), parse_participation(participation), convex, lipschitz)
    found = _account_for(system, view, terms, wanted, victims)
    if not covering or found.headline is None:
        return found
    every = covering_views(view, system)
    others = [_headline_account(found, other, terms, victims) for other in every if other != view]
    return replace(_with_worst_headline(found, others), coverage=coverage((view, *every), system))


class _Terms(NamedTuple):
    """What may change, in which rounds it shows, and what is known of local steps."""

    adjacency: Adjacency
    scheme: Participation
    convex: bool
    lipschitz: float | None


def _account_for(
    system: LinearSystem, view: View, terms: _Terms, kinds: Sequence[Kind], victims: Sequence[int] | None
) -> Account:
    """The account of one adversary, or of any coalition of a size, whoever else the headline has to cover."""
    if view.kind is ViewKind.ANY_COALITION:
        return _account_for_coalitions(system, view, terms, kinds, victims)
    observation = observe(system, view, victims=victims)
    terms.scheme.check(observation.gradient_rounds)
    work = _Accounting(system, view, observation, terms)
    found: list[Guarantee] = []
    refusals: list[str] = []
    for kind in kinds:
        try:
            found += work.guarantees(kind)
        except Unaccountable as refusal:
            refusals.append(f"{kind}: {refusal}")
    order = list(Kind)
    found.sort(key=lambda guarantee: (guarantee.victim, order.index(guarantee.kind)))
    headline = _headline(found, system.algorithm.averaging, terms.convex)
    return Account(system, view, tuple(found), headline, tuple(refusals), tuple(kinds), coverage([view], system))


def _account_for_coalitions(
    system: LinearSystem, view: View, terms: _Terms, kinds: Sequence[Kind], victims: Sequence[int] | None
) -> Account:
    """For each victim and kind the worst of all coalitions; the headline is that of the coalition that learns most."""
    asked = [kind for kind in kinds if kind is not Kind.AS_PUBLISHED]
    accounts = []
    for one in coalitions(view, system):
        others = None if victims is None else [victim for victim in victims if victim not in one.members]
        if others != []:
            accounts.append(_account_for(system, one, terms, asked, others))
    if not accounts:
        raise InputError(f"view {view}", "every such coalition has all the victims", "name more victims")
    refusals = dict.fromkeys(refusal for found in accounts for refusal in found.refusals)
    found = replace(
        accounts[0], view=view, guarantees=tuple(_worst_guarantees(accounts)), refusals=tuple(refusals)[:len(kinds)],
        kinds=tuple(kinds), coverage=coverage([view], system),
    )  # fmt: skip
    return _with_worst_headline(found, accounts)


def _worst_guarantees(accounts: Sequence[Account]) -> Iterator[Guarantee]:
    """For each victim and kind the figure of the adversary that learns most; none where some adversary has no such."""
    found: dict[tuple[int | None, Kind], list[Guarantee]] = {}
    for guarantee in (one for account in accounts for one in account.guarantees):
        found.setdefault((guarantee.victim, guarantee.kind), []).append(guarantee)
    for victim, kind in sorted(found, key=lambda key: (key[0], list(Kind).index(key[1]))):
        adversaries = sum(victim not in account.view.members for account in accounts)
        if len(found[victim, kind]) == adversaries:
            yield max(found[victim, kind], key=lambda guarantee: guarantee.mu)


def _headline_account(found: Account, view: View, terms: _Terms, victims: Sequence[int] | None) -> Account | None:
    """The account of another adversary by those kinds that can be a headline; None if all victims are its members."""
    averaging = found.system.algorithm.averaging
    kinds = [kind for kind in found.kinds if kind in KINDS and (averaging or kind is not Kind.FIXED_STREAMS)]
    others = None if victims is None else [victim for victim in victims if victim not in view.members]
    return None if others == [] else _account_for(found.system, view, terms, kinds, others)


def _with_worst_headline(found: Account, others: Sequence[Account | None]) -> Account:
    """The account with the headline of the adversary that learns most; without one where nothing is proven for some."""
    accounts = [found, *(other for other in others if other is not None)]
    for other in accounts:
        if other.headline is None:
            refusals = (*found.refusals, *(f"{other.view}: {refusal}" for refusal in other.refusals))
            return replace(found, headline=None, refusals=refusals)
    worst = max(accounts, key=lambda one: one.mu)
    return replace(found, headline=worst.headline)


def _is_proven(guarantee: Guarantee, averaging: bool, convex: bool) -> bool:
    """Whether a guarantee is proven for what runs: any kind for averaging, for training those that say so."""
    if guarantee.kind is Kind.AS_PUBLISHED:
        return False
    return averaging or guarantee.proven_for_training.holds(convex=convex)


def _headline(found: list[Guarantee], averaging: bool, convex: bool) -> Guarantee | None:
    """For each victim the best proven figure; of those the worst."""
    best: dict[int | None, Guarantee] = {}
    for guarantee in found:
        if _is_proven(guarantee, averaging, convex):
            now = best.get(guarantee.victim)
            best[guarantee.victim] = guarantee if now is None or guarantee.mu < now.mu else now
    return max(best.values(), key=lambda guarantee: guarantee.mu) if best else None


NEAR = 1e-6
"""A figure this close to one that covers rounding is rounded up to it."""


class _Bound(NamedTuple):
    """mu^2 of every victim, whether it is proven for training, and what it assumes."""

    squares: NDArray[np.float64]
    proof: TrainingProof
    assumptions: tuple[Assumption, ...]


class _Accounting:
    """One accounting: what the kinds share is computed once."""

    def __init__(self, system: LinearSystem, view: View, observation: Observation, terms: _Terms) -> None:
        self.system, self.view, self.observation = system, view, observation
        self.scheme, self.adjacency, self.lipschitz = terms.scheme, terms.adjacency, terms.lipschitz
        self._exact: dict[View, NDArray[np.float64]] = {}
        self._couplings: dict[View, tuple[Coupling, ...]] = {}

    def guarantees(self, kind: Kind) -> list[Guarantee]:
        """The guarantees of one kind for every victim; refused where it does not apply."""
        if kind is Kind.AS_PUBLISHED:
            return self._as_published()
        bounds: dict[Kind, Callable[[], _Bound]] = {
            Kind.ANY_TRAINING: self._any_training,
            Kind.CONVEX_TRAINING: self._convex_training,
            Kind.FIXED_STREAMS: self._fixed_streams,
        }
        squares, proof, assumptions = bounds[kind]()
        squares, covered = self._rounded_up(squares)
        if lacks_secrets(self.view, self.system):
            assumptions = (*assumptions, AssumptionKind.NO_SHARED_SECRETS.of())
        final_models = covered_final_models(self.system, self.view)
        each = zip(self.observation.victims, self.observation.distances(), np.sqrt(squares), covered, strict=True)
        found = []
        for number, (victim, distance, mu, is_covered) in enumerate(each):
            unobserved = mu == 0 and not self._observed[number]
            last = AssumptionKind.NOTHING_OBSERVED.of() if unobserved else rounding(self.system, covered=is_covered)
            assumed = (*assumptions, last)
            found.append(Guarantee(int(victim), distance, kind, float(mu), proof, assumed, self.view, final_models))
        return found

    def _rounded_up(self, squares: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """mu^2, and for which victims it covers rounding: where it is not below what all noisy gradients tell.

        With exact noise everything that is sent is a function of the noisy gradients on their grid, in any arithmetic.
        Smaller figures count on sums of several nodes' noise, which on grids, and in floating point, tell more.
        """
        if not self.system.algorithm.exact_noise:
            return squares, np.zeros(len(squares), dtype=bool)
        enough = self._given_noisy_gradients()
        covered = squares >= (1 - NEAR) * enough
        return np.where(covered, np.maximum(squares, enough), squares), covered

    @cached_property
    def _observed(self) -> NDArray[np.bool_]:
        """Which victims' gradients reach the view, directly or through the reactions of others."""
        return np.asarray(reaching_gradients(self.observation).any(axis=0))

    def _exact_losses(self, view: View) -> NDArray[np.float64]:
        """mu^2 of every victim, exact for fixed streams; of each view once."""
        if view not in self._exact:
            seen = self.observation
            if view != self.view:
                seen = observe(self.system, view, victims=self.observation.victims.tolist())
            self._exact[view] = routes.squared(seen, self.scheme)
        return self._exact[view]

    def _require_messages(self) -> None:
        if self.system.only_gradients:
            raise Unaccountable(self.system.only_gradients)

    def _require_training(self) -> None:
        if self.system.algorithm.averaging:
            raise Unaccountable(f"{self.system.algorithm.name} does not train: fixed-streams is its proof")

    def _fixed_streams(self) -> _Bound:
        """The exact loss of fixed streams."""
        self._require_messages()
        if self.system.algorithm.averaging:
            assumed: tuple[AssumptionKind, ...] = (AssumptionKind.BOUNDED_VALUES,)
        else:
            assumed = (AssumptionKind.BOUNDED_GRADIENTS, AssumptionKind.FIXED_STREAMS)
        return _Bound(self._exact_losses(self.view), TrainingProof.NOT_PROVEN, tuple(kind.of() for kind in assumed))

    def _any_training(self) -> _Bound:
        """The best of: the view given all noisy gradients, clipped growth, the exact loss where the view is closed."""
        self._require_training()
        options, reasons = [], []
        for bound in (self._given_noisy_gradients, self._clipped_growth):
            try:
                options.append(bound())
            except Unaccountable as refusal:
                reasons.append(str(refusal))
        closed, open_because = self._closed_view(or_all_messages=not options)
        if closed is not None:
            options.append(self._exact_losses(closed))
        if not options:
            raise Unaccountable("; ".join([*reasons, *open_because]))
        return _Bound(np.min(options, axis=0), TrainingProof.PROVEN, (AssumptionKind.BOUNDED_GRADIENTS.of(),))

    def _given_noisy_gradients(self) -> NDArray[np.float64]:
        return self._noisy_gradient_losses

    @cached_property
    def _noisy_gradient_losses(self) -> NDArray[np.float64]:
        return loss_given_noisy_gradients(self.system, self.view, self.observation.victims, self.scheme)

    def _clipped_growth(self) -> NDArray[np.float64]:
        self._require_messages()
        growth = 2.0 if self.adjacency is Adjacency.USER else UNBOUNDED
        published = self.view.final_models is not FinalModels.NONE
        hearing_more = replace(  # sums and averages are made of what it would hear and see
            self.view, secure_sum=False, final_models=FinalModels.ALL if published else FinalModels.NONE
        )
        return late_cost(self._coupled(hearing_more), self.observation.victims, self.scheme, growth)

    def _coupled(self, view: View) -> tuple[Coupling, ...]:
        """The rounds as the coupling sees them; of each view once."""
        if view not in self._couplings:
            self._couplings[view] = couple(self.system, view)
        return self._couplings[view]

    def _closed_view(self, *, or_all_messages: bool) -> tuple[View | None, list[str]]:
        """The view if it is closed; else, if asked for, all messages with what it knows; and why others are open."""
        tried = [] if self.system.only_gradients else [self.view]
        if tried and self.view.kind is not ViewKind.EVERYONE and or_all_messages:
            tried.append(replace(self.view, kind=ViewKind.EVERYONE, edges=(), secure_sum=False))
        reasons: list[str] = []
        for view in tried:
            status = closedness(self.system, view, self.observation if view == self.view else None)
            if status.closed and not (status.user_level_only and not self._reacts_freely()):
                return view, reasons
            reasons.append(status.reason or "closed only where a user's data may change in every round")
        return None, reasons

    def _reacts_freely(self) -> bool:
        """Whether Delta bounds the difference of a victim's gradients in every round, whatever it reacts to."""
        return self.adjacency is Adjacency.USER and self.scheme.times is None

    def _convex_training(self) -> _Bound:
        """The absorption bound."""
        self._require_training()
        self._require_messages()
        views = dict.fromkeys([self.view, replace(self.view, secure_sum=False)])
        costs = [least_cost(self._coupled(option), self.observation.victims, self.scheme) for option in views]
        weight = least_weight(self.system)
        largest_step = "2/L" if weight >= 1 else f"{2 * weight:.6g}/L (2 w/L with the least push-sum weight w)"
        assumptions = (
            AssumptionKind.BOUNDED_GRADIENTS.of(),
            AssumptionKind.NON_EXPANSIVE_STEPS.of(largest_step=largest_step),
        )
        return _Bound(np.min(costs, axis=0), TrainingProof.IF_CONVEX, assumptions)

    def _as_published(self) -> list[Guarantee]:
        """Every formula of the papers that applies, with a word where it is below the exact loss."""
        from sottovoce.privacy.published_bounds import published

        self._require_messages()
        found = published(self.system, self.view, lipschitz=self.lipschitz, victims=self.observation.victims.tolist())
        if not found:
            raise Unaccountable(f"no paper has a formula for {self.system.algorithm.name} and the view {self.view}")
        return [guarantee for figure in found for guarantee in figure.guarantees]
