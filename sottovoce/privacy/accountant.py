"""`account`: what each victim of a view can lose, kind by kind, and the headline that is proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from sottovoce.core.algorithm import is_linear
from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import Participation, parse_adjacency, parse_participation
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.absorption_policy import Policy
from sottovoce.privacy.assumptions import Assumption, at_other_noise
from sottovoce.privacy.covering_views import Coverage, as_sums, coalitions, coverage, covering_views, knows_everything
from sottovoce.privacy.gaussian_dp import epsilons_of
from sottovoce.privacy.guarantee import KINDS, Figure, Guarantee, Kind, guarantee_documents, parse_kind, weakest
from sottovoce.privacy.kind_bounds import KindBounds, Terms
from sottovoce.privacy.observation import observe
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import View, ViewKind, parse_view, with_final_models
from sottovoce.support.progress import counted
from sottovoce.support.text import JSON
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm

IN_TURN = (Kind.AS_PUBLISHED, Kind.ANY_TRAINING, Kind.FIXED_STREAMS, Kind.CONVEX_TRAINING)
"""The order in which kinds are computed: what takes longest comes last."""

DELTA = 1e-5
"""At which epsilon is shown where nothing says another delta."""

NOISE_ROUNDING = 1e-13
"""Share by which figures that follow from another size of noise are made larger."""


@dataclass(frozen=True, repr=False)
class Account:
    """All guarantees of a view. Its own mu, epsilon, kind and assumptions are those of the headline.

    The headline is, for the victim that is worst off, the best figure of a kind that is proven for what runs. Its own
    view is the one that was asked for, or one that the headline has to cover and that learns more; `coverage` says whom
    it covers. Where nothing is proven it is infinite, and assumes why. `kinds` were asked for; `refusals` says which of
    them do not apply, and why. `absorption_policy` is the policy behind `convex-training`, if there is any.
    """

    system: LinearSystem
    view: View
    guarantees: tuple[Guarantee, ...]
    headline: Guarantee
    refusals: tuple[str, ...]
    kinds: tuple[Kind, ...]
    coverage: Coverage
    absorption_policy: Policy | None = None

    def __repr__(self) -> str:
        best = self.headline
        figure = f"{best.kind}, epsilon {round_up(best.epsilon(DELTA))} at {DELTA:g}"
        figure = "nothing proven" if best.proves_nothing else figure
        return f"Account({self.system.algorithm.name} on {self.system.topology.name}, {self.view}: {figure})"

    @property
    def mu(self) -> float:
        """mu of the headline."""
        return self.headline.mu

    @property
    def kind(self) -> Kind:
        """Kind of the headline."""
        return self.headline.kind

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the headline assumes."""
        return self.headline.assumptions

    @property
    def headline_of_another(self) -> Guarantee | None:
        """The headline, where it is about an adversary whom no other guarantee is about; else None.

        So it is where a member learns more than the outsider that was asked about. Of any coalition of a size, the
        guarantees themselves are about those that learn most.
        """
        best = self.headline
        asked = best.proves_nothing or best.view == self.view or self.view.kind is ViewKind.ANY_COALITION
        return None if asked else best

    def table(self, delta: float) -> list[list[str]]:
        """Epsilon by kind and by distance from the view, least, mean and largest over victims, for reading.

        A headline that is about another adversary has a row of its own, the last one, which names that adversary.
        """
        table = [["kind", "figure", "distance", "victims", "mu min", "mean", "max", "epsilon min", "mean", "max"]]
        groups: dict[tuple[str, int], list[Guarantee]] = {}
        for one in self.guarantees:
            if one.kind is not Kind.AS_PUBLISHED:
                groups.setdefault((one.kind, -1 if one.distance is None else one.distance), []).append(one)
        table += [_row(kind, found, delta) for (kind, _), found in sorted(groups.items())]
        best = self.headline_of_another
        return table if best is None else [*table, _row(f"headline: {best.kind} against {best.view}", [best], delta)]

    def epsilon(self, delta: float) -> float:
        """Epsilon of the headline."""
        return self.headline.epsilon(delta)

    def rdp(self, alpha: float) -> float:
        """Renyi divergence of the headline."""
        return self.headline.rdp(alpha)

    def of(self, victim: int, kind: str | None = None) -> Guarantee:
        """The guarantee of one victim: of the given kind, or the best that is proven."""
        wanted = None if kind is None else parse_kind(kind)
        candidates = [g for g in self.guarantees if g.victim == victim and wanted in (None, g.kind)]
        averaging, convex = self.system.algorithm.averaging, self.headline.kind is Kind.CONVEX_TRAINING
        proven = [g for g in candidates if wanted is not None or _is_proven(g, averaging, convex)]
        if not proven:
            there = sorted({g.kind for g in self.guarantees if g.victim == victim})
            known = f"there are: {', '.join(there)}" if there else "it is not a victim of this view"
            raise InputError(f"no {kind or 'proven'} guarantee for victim {victim}", known, "choose another")
        return min(proven, key=lambda g: g.mu)

    def with_noise_times(self, factor: float, system: LinearSystem) -> Account:
        """The account of the same system with all of its noise so many times as large: every mu is as much smaller.

        Rounded up. Not for sums of integers, whose noise also has a size in steps of their grid.
        """
        smaller = (1 + NOISE_ROUNDING) / factor

        def scaled(guarantee: Guarantee) -> Guarantee:
            assumed = tuple(at_other_noise(one, system) for one in guarantee.assumptions)
            return replace(guarantee, mu=guarantee.mu * smaller, assumptions=assumed)

        return replace(
            self, system=system, guarantees=tuple(map(scaled, self.guarantees)), headline=scaled(self.headline)
        )

    def document(self, delta: float) -> dict[str, JSON]:
        """As JSON, in the form of the command line's contract."""
        *guarantees, headline = guarantee_documents([*self.guarantees, self.headline], delta)
        topology = self.system.topology
        return {
            "algorithm": self.system.algorithm.name,
            "graph": topology.graph.name if topology.graph else topology.name,
            "topology": topology.name,
            "view": str(self.view),
            "final_models": self.view.final_models.value,
            "secure_sum": self.view.secure_sum,
            "rounds": self.system.rounds,
            "delta": delta,
            "guarantees": list[JSON](guarantees),
            "headline": headline,
            "covers": self.coverage.document(),
            "refusals": list(self.refusals),
            "absorption_policy": None if self.absorption_policy is None else self.absorption_policy.value,
        }


def _row(name: str, found: Sequence[Guarantee], delta: float) -> list[str]:
    columns, mus = [], [guarantee.mu for guarantee in found]
    for values in (mus, epsilons_of(mus, delta).tolist()):
        columns += [round_up(x) for x in (min(values), sum(values) / len(values), max(values))]
    distance = found[0].distance
    far = ("out of reach" if found[0].view.members else "-") if distance is None else str(distance)
    return [name, weakest(one.figure for one in found).value, far, str(len(found)), *columns]


class AccountSettings(TypedDict, total=False):
    """The settings of `account` besides the system and the adversary, as many as are given; `account` explains them."""

    adjacency: str
    participation: str | Participation
    convex: bool
    kinds: Sequence[str]
    lipschitz: float | None
    victims: Sequence[int] | None
    final_models: str
    covering: bool
    optimised: bool


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
    optimised: bool = False,
) -> Account:
    """Guarantees for every victim of a view.

    - `adversary`: a `View` or its name: `everyone`, `node:3`, `coalition:3,5`, `eavesdropper:0>1`, or
      `coalition:any-2` for the worst coalition of two nodes;
    - `adjacency`: what may change, all data of a `user` (a node) or one `record`;
    - `participation`: in which rounds the change can show, `every`, or `KxB`: K times, B rounds apart;
    - `convex`: whether local steps are known to be non-expansive, so that `convex-training` counts for the headline;
    - `kinds`: which to compute; `as-published` only if it is named, and for ZIP-DL it needs `lipschitz`;
    - `victims`: about which nodes (None: every node that is not a member of the view);
    - `final_models`: which models after the last round the adversary also sees: `none`, their `average`, or `all`;
    - `covering`: whether the headline holds for all of `covering_views`; a report that accounts for each of them
      separately asks for this view alone;
    - `optimised`: optimise the policies of the absorption bound, however long that takes; otherwise they are optimised
      for small systems and few victims, and swept for others.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:10"), rounds=16)
    >>> account(system).mu
    2.0
    >>> round(account(system, "node:0").of(5, "fixed-streams").mu, 3)
    0.25
    """
    if not (system.only_gradients or is_linear(system.algorithm)):
        raise Unaccountable(
            f"{system!r} is about one coordinate, as {system.algorithm.compression.name} keeps it, and says nothing of "
            "the others; account for trace_possible(...), which covers all of them"
        )
    named = with_final_models(parse_view(adversary, labels=system.topology.names), final_models)
    view = as_sums(named, system)
    wanted = tuple(parse_kind(kind) for kind in kinds)
    terms = Terms(parse_adjacency(adjacency), parse_participation(participation), convex, lipschitz, optimised)
    found = _account_for(system, view, terms, wanted, victims)
    if not covering or found.headline.proves_nothing:
        return found
    every = covering_views(view, system)
    others = [_headline_account(found, other, terms, victims) for other in every if other != view]
    return replace(_with_worst_headline(found, others), coverage=coverage((view, *every), system))


@one_thread()
def _account_for(
    system: LinearSystem, view: View, terms: Terms, kinds: Sequence[Kind], victims: Sequence[int] | None
) -> Account:
    """The account of one adversary, or of any coalition of a size, whoever else the headline has to cover."""
    if view.kind is ViewKind.ANY_COALITION:
        return _account_for_coalitions(system, view, terms, kinds, victims)
    observation = observe(system, view, victims=victims)
    terms.scheme.check(observation.gradient_rounds)
    work = KindBounds(system, view, observation, terms)
    work.check(kinds)
    found: list[Guarantee] = []
    refusals: dict[Kind, str] = {}
    for kind in sorted(kinds, key=IN_TURN.index):
        try:
            with counted(kind.value, len(observation.victims)):
                found += work.guarantees(kind)
        except Unaccountable as refusal:
            refusals[kind] = f"{kind}: {refusal}"
    order = list(Kind)
    found.sort(key=lambda guarantee: (guarantee.victim, order.index(guarantee.kind)))
    refused = tuple(refusals[kind] for kind in kinds if kind in refusals)
    proven = _headline(found, system.algorithm.averaging, terms.convex)
    headline = proven or Guarantee.nothing_proven(view, refused)
    return Account(system, view, tuple(found), headline, refused, tuple(kinds), coverage([view], system), work.policy)


def _account_for_coalitions(
    system: LinearSystem, view: View, terms: Terms, kinds: Sequence[Kind], victims: Sequence[int] | None
) -> Account:
    """For each victim and kind the worst of all coalitions; the headline is that of the coalition that learns most."""
    asked = [kind for kind in kinds if kind is not Kind.AS_PUBLISHED]
    accounts = []
    for one in coalitions(view, system):
        others = None if victims is None else [victim for victim in victims if victim not in one.members]
        if others != []:
            found = _account_for(system, one, terms, asked, others)
            accounts.append(_as_bounds(found) if knows_everything(one, system) else found)
    if not accounts:
        raise InputError(f"view {view}", "each such coalition contains all the victims", "name more victims")
    refusals = dict.fromkeys(refusal for found in accounts for refusal in found.refusals)
    found = replace(
        accounts[0], view=view, guarantees=tuple(_worst_guarantees(accounts)), refusals=tuple(refusals)[:len(kinds)],
        kinds=tuple(kinds), coverage=coverage([view], system),
    )  # fmt: skip
    return _with_worst_headline(found, accounts)


def _as_bounds(found: Account) -> Account:
    """Of the adversaries that it stands for: none of them learns more."""
    bounds = tuple(replace(one, figure=Figure.BOUND) for one in found.guarantees)
    return replace(found, guarantees=bounds, headline=replace(found.headline, figure=Figure.BOUND))


def _worst_guarantees(accounts: Sequence[Account]) -> Iterator[Guarantee]:
    """For each victim and kind the figure of the adversary that learns most; none where some adversary has no such."""
    found: dict[tuple[int | None, Kind], list[Guarantee]] = {}
    for guarantee in (one for account in accounts for one in account.guarantees):
        found.setdefault((guarantee.victim, guarantee.kind), []).append(guarantee)
    for victim, kind in sorted(found, key=lambda key: (key[0], list(Kind).index(key[1]))):
        adversaries = sum(victim not in account.view.members for account in accounts)
        if len(found[victim, kind]) == adversaries:
            yield max(found[victim, kind], key=lambda guarantee: guarantee.mu)


def _headline_account(found: Account, view: View, terms: Terms, victims: Sequence[int] | None) -> Account | None:
    """The account of another adversary by those kinds that can be a headline; None if all victims are its members."""
    averaging = found.system.algorithm.averaging
    kinds = [kind for kind in found.kinds if kind in KINDS and (averaging or kind is not Kind.FIXED_STREAMS)]
    others = None if victims is None else [victim for victim in victims if victim not in view.members]
    return None if others == [] else _account_for(found.system, view, terms, kinds, others)


def _with_worst_headline(found: Account, others: Sequence[Account | None]) -> Account:
    """The account with the headline of the adversary that learns most: of one for which nothing is proven, if any."""
    accounts = [found, *(other for other in others if other is not None)]
    for other in accounts:
        if other.headline.proves_nothing:
            more = [refusal for refusal in other.refusals if refusal not in found.refusals]
            refusals = (*found.refusals, *(f"{other.view}: {refusal}" for refusal in more))
            return replace(found, headline=other.headline, refusals=refusals)
    return replace(found, headline=_worst([one.headline for one in accounts]))


def headline_kinds(algorithm: Algorithm, *, convex: bool) -> tuple[Kind, ...]:
    """The kinds that can be a headline: of training those that are proven for it, of averaging its exact loss."""
    if algorithm.averaging:
        return KINDS
    return tuple(kind for kind in KINDS if kind is Kind.ANY_TRAINING or (convex and kind is Kind.CONVEX_TRAINING))


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
            best[guarantee.victim] = guarantee if now is None or guarantee.mu < now.mu * (1 - TIE) else now
    return _worst(list(best.values())) if best else None


TIE = 4e-15
"""Share by which rounding alone makes equal figures differ: of these the first is taken, on every machine."""


def _worst(figures: Sequence[Guarantee]) -> Guarantee:
    """The largest figure, of equal ones the first."""
    largest = max(one.mu for one in figures)
    return next(one for one in figures if one.mu >= largest * (1 - TIE))
