"""`account`: what each victim of a view can lose, kind by kind, and the headline that is proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import ADJACENCIES
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.absorption import couple, late_cost, least_cost
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.convexity import least_weight
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import KINDS, PUBLISHED, Guarantee
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, parse_view
from sottovoce.tracing.linear_system import LinearSystem

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm


UNBOUNDED = 1e100
"""Clipped growth in units of a record's sensitivity, which is smaller than Clip by the unknown size of a batch."""

CLIPPED = "a change of data moves a node's gradient by at most Delta in each round of its participation"
BOUNDED = "a change of data moves a node's value by at most Delta"
CONVEX = (
    "local steps are non-expansive: convex losses, L-smooth, with step size at most {most}; clipping, if any, per "
    "example and of scalar-output linear models only; no momentum"
)
IDEAL = "what a node contributes does not depend on what it heard (averaging, statistics); an idealisation for training"
SECRETS = "whoever hears everything shares no secret with a node; a neighbour, who does, can learn more"


@dataclass(frozen=True)
class Account:
    """All guarantees of a view. Its own mu, epsilon, kind and assumptions are those of the headline.

    The headline is, for the victim that is worst off, the best figure of a kind that is proven for what runs.
    `refusals` says which kinds were not offered, and why.
    """

    system: LinearSystem
    view: View
    guarantees: tuple[Guarantee, ...]
    headline: Guarantee | None
    refusals: tuple[str, ...]

    def _best(self) -> Guarantee:
        if self.headline is None:
            raise Unaccountable("; ".join(self.refusals) or "no kind of guarantee is proven here")
        return self.headline

    @property
    def mu(self) -> float:
        """mu of the headline."""
        return self._best().mu

    @property
    def kind(self) -> str:
        """Kind of the headline."""
        return self._best().kind

    @property
    def assumptions(self) -> tuple[str, ...]:
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
        mine = [g for g in self.guarantees if g.victim == victim and kind in (None, g.kind)]
        proven = [g for g in mine if kind is not None or _counts(g, self.system.algorithm.averaging, self._convex)]
        if not proven:
            there = sorted({g.kind for g in self.guarantees if g.victim == victim})
            known = f"there are: {', '.join(there)}" if there else "it is not a victim of this view"
            raise InputError(f"no {kind or 'proven'} guarantee for victim {victim}", known, "choose another")
        return min(proven, key=lambda g: g.mu)

    @property
    def _convex(self) -> bool:
        return self.headline is not None and self.headline.kind == "convex-training"

    def document(self, delta: float) -> dict[str, Any]:
        """As JSON, in the form of the command line's contract."""
        return {
            "algorithm": self.system.algorithm.name,
            "graph": self.system.topology.graph.name if self.system.topology.graph else self.system.topology.name,
            "topology": self.system.topology.name,
            "view": str(self.view),
            "secure_sum": self.view.secure_sum,
            "rounds": self.system.rounds,
            "delta": delta,
            "guarantees": [guarantee.document(delta) for guarantee in self.guarantees],
            "headline": None if self.headline is None else self.headline.document(delta),
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
) -> Account:
    """Guarantees for every victim of a view.

    - `adversary`: who listens, a `View` or its name: `everyone`, `node:3`, `coalition:3,5`, `eavesdropper:0>1`;
    - `adjacency`: what may change, all data of a `user` (a node) or one `record`;
    - `parse_participation`: in which rounds the change can show, `every`, or `KxB`: K times, B rounds apart;
    - `convex`: whether local steps are known to be non-expansive, so that `convex-training` counts for the headline;
    - `kinds`: which to compute; `as-published` is not among them unless named, and takes `lipschitz` for ZIP-DL;
    - `victims`: about whom (None: all whom the view does not know).

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:10"), rounds=16)
    >>> account(system).mu
    2.0
    >>> round(account(system, "node:0").of(5, "fixed-streams").mu, 3)
    0.25
    """
    scheme = _participation(participation)
    adversary = parse_view(adversary)
    if adjacency not in ADJACENCIES:
        raise InputError(f"adjacency {adjacency!r}", f"known: {', '.join(ADJACENCIES)}", "choose one of them")
    observation = observe(system, adversary, victims=victims)
    outsider = shares_secrets(system.algorithm, system.topology)
    rounds = observation.gradient_rounds
    scheme.check(rounds)
    work = _Work(system, adversary, observation, scheme, adjacency)
    found: list[Guarantee] = []
    refusals: list[str] = []
    unknown = set(kinds) - {*KINDS, PUBLISHED}
    if unknown:
        raise InputError(f"kind {unknown.pop()!r}", f"known: {', '.join((*KINDS, PUBLISHED))}", "choose among them")
    for kind in kinds:
        try:
            if kind == PUBLISHED:
                found += work.as_published(lipschitz)
                continue
            squares, proven, assumptions = getattr(work, kind.replace("-", "_"))()
        except Unaccountable as refusal:
            refusals.append(f"{kind}: {refusal}")
            continue
        if len(adversary.secrets_of) < system.n and not adversary.members and outsider:
            assumptions = (*assumptions, SECRETS)
        mus = np.sqrt(squares)
        found += [
            Guarantee(int(victim), distance, kind, float(mu), proven, assumptions)
            for victim, distance, mu in zip(observation.victims, observation.distances(), mus, strict=True)
        ]
    order = (*KINDS, PUBLISHED)
    found.sort(key=lambda guarantee: (guarantee.victim, order.index(guarantee.kind)))
    return Account(
        system, adversary, tuple(found), _headline(found, system.algorithm.averaging, convex), tuple(refusals)
    )


def shares_secrets(algorithm: Algorithm, topology: Topology) -> bool:
    """Whether neighbours share noise: then a node can learn more than a stranger who hears everything."""
    return any(part.sources.kind == "pair" for part in algorithm.noise.local(topology.at(0)))


def _participation(spec: str | Participation) -> Participation:
    return parse_participation(spec)


def _counts(guarantee: Guarantee, averaging: bool, convex: bool) -> bool:
    """Whether a guarantee is proven for what runs: any kind for averaging, for training those that say so."""
    proven = guarantee.proven_for_training
    if guarantee.kind == PUBLISHED:
        return False
    return averaging or proven is True or (convex and proven == "convex")


def _headline(found: list[Guarantee], averaging: bool, convex: bool) -> Guarantee | None:
    """For each victim the best proven figure; of those the worst."""
    best: dict[int | None, Guarantee] = {}
    for guarantee in found:
        if _counts(guarantee, averaging, convex):
            now = best.get(guarantee.victim)
            best[guarantee.victim] = guarantee if now is None or guarantee.mu < now.mu else now
    return max(best.values(), key=lambda guarantee: guarantee.mu) if best else None


class _Work:
    """One accounting: what the kinds share is computed once."""

    def __init__(
        self, system: LinearSystem, adversary: View, observation: Observation, scheme: Participation, adjacency: str
    ) -> None:
        self.system, self.view, self.observed, self.scheme, self.adjacency = (
            system,
            adversary,
            observation,
            scheme,
            adjacency,
        )
        self._exact: NDArray[np.float64] | None = None

    def _losses(self) -> NDArray[np.float64]:
        if self._exact is None:
            self._exact = routes.squared(self.observed, self.scheme)
        return self._exact

    def _need_messages(self) -> None:
        if self.system.only_gradients:
            raise Unaccountable(self.system.only_gradients)

    def _reacts_freely(self) -> bool:
        """Whether Delta bounds the difference of a victim's gradients in every round, whatever it reacts to."""
        return self.adjacency == "user" and self.scheme.times is None

    def fixed_streams(self) -> tuple[NDArray[np.float64], bool | str, tuple[str, ...]]:
        """Section 2: the exact loss."""
        self._need_messages()
        return self._losses(), False, (BOUNDED,) if self.system.algorithm.averaging else (CLIPPED, IDEAL)

    def any_training(self) -> tuple[NDArray[np.float64], bool | str, tuple[str, ...]]:
        """The best of: the exact loss where the view is closed, the view given all noisy gradients, all messages."""
        if self.system.algorithm.averaging:
            raise Unaccountable(f"{self.system.algorithm.name} does not train: fixed-streams is its proof")
        options, reasons = [], []
        try:
            options.append(loss_given_noisy_gradients(self.system, self.view, self.observed.victims, self.scheme))
        except Unaccountable as refusal:
            reasons.append(str(refusal))
        try:
            self._need_messages()
            growth = 2.0 if self.adjacency == "user" else UNBOUNDED
            hearing_more = replace(self.view, secure_sum=False)  # sums are made of what it would hear
            options.append(late_cost(couple(self.system, hearing_more), self.observed.victims, self.scheme, growth))
        except Unaccountable as refusal:
            reasons.append(str(refusal))
        tried = [self.view]
        if self.view.kind != "everyone" and not options:
            tried.append(View("everyone", self.view.members, secrets_of=self.view.secrets_of))
        for option in tried:
            if self.system.only_gradients:
                break
            status = closedness(self.system, option)
            if status.closed and not (status.user_level_only and not self._reacts_freely()):
                if option is self.view:
                    options.append(self._losses())
                else:
                    outer = observe(self.system, option, victims=self.observed.victims.tolist())
                    options.append(routes.squared(outer, self.scheme))
                break
            reasons.append(status.reason or "closed only where a user's data may change in every round")
        if not options:
            raise Unaccountable("; ".join(reasons))
        return np.min(options, axis=0), True, (CLIPPED,)

    def convex_training(self) -> tuple[NDArray[np.float64], bool | str, tuple[str, ...]]:
        """The absorption bound."""
        if self.system.algorithm.averaging:
            raise Unaccountable(f"{self.system.algorithm.name} does not train: fixed-streams is its proof")
        self._need_messages()
        views = dict.fromkeys([self.view, replace(self.view, secure_sum=False)])
        costs = [least_cost(couple(self.system, option), self.observed.victims, self.scheme) for option in views]
        weight = least_weight(self.system)
        most = "2/L" if weight >= 1 else f"{2 * weight:.6g}/L (2 w/L with the least push-sum weight w)"
        return np.min(costs, axis=0), "convex", (CLIPPED, CONVEX.format(most=most))

    def as_published(self, lipschitz: float | None) -> list[Guarantee]:
        """Every formula of the papers that applies, with a word where it is below the exact loss."""
        from sottovoce.privacy.published_bounds import published

        self._need_messages()
        found = published(self.system, self.view, lipschitz=lipschitz, victims=self.observed.victims.tolist())
        if not found:
            raise Unaccountable(f"no paper has a formula for {self.system.algorithm.name} and the view {self.view}")
        return [guarantee for figure in found for guarantee in figure.guarantees]
