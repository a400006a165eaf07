"""What an account of all adversaries that a headline covers takes, before it begins, and which kinds are quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sottovoce.privacy.account_cost import account_cost
from sottovoce.privacy.covering_views import as_sums, coalitions, covering_views
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.kind_bounds import may_apply
from sottovoce.privacy.terms import Terms
from sottovoce.privacy.views import View
from sottovoce.support.limits import Cost, duration_text, is_affordable
from sottovoce.tracing.linear_system import LinearSystem

QUICK_SECONDS, LONG_SECONDS = 20.0, 60.0
"""A kind that takes no longer than the first is quick; of what takes longer than the second users are told before."""


HOPS = (2, 1)
"""Distances from a view's own nodes that are tried, until an account of the nodes within takes little."""


@dataclass(frozen=True)
class AccountEstimate:
    """What is accounted for, what it takes, and which of the kinds that were asked for are quick."""

    what: str
    whole: Cost
    kinds: tuple[Kind, ...]
    cost_of: Callable[[Sequence[Kind]], Cost]
    applies: Callable[[Kind], bool]
    near: Callable[[int], Cost | None]
    """What nodes within so many hops of the view's own take; None where they are not fewer than were asked about."""

    @cached_property
    def quick(self) -> tuple[Kind, ...]:
        """The kinds that apply and take seconds, where others that apply take longer; computed where somebody is told.

        None where all that apply are quick, and still take long for all adversaries together.
        """
        offered = [kind for kind in self.kinds if self.applies(kind)]
        found = tuple(kind for kind in offered if self.cost_of([kind]).seconds <= QUICK_SECONDS)
        return found if len(found) < len(offered) and self.cost_of(found).seconds <= QUICK_SECONDS else ()

    def hops(self, suits: Callable[[Cost], bool]) -> int | None:
        """The most hops, of a few, within which nodes take no more than suits; None where even neighbours take more."""
        found = ((hops, self.near(hops)) for hops in HOPS)
        return next((hops for hops, cost in found if cost is not None and suits(cost)), None)

    def smaller_work(self) -> str:
        """What to type to take less."""
        return f"take {', '.join([*self._options(is_affordable), 'fewer rounds'])}, a smaller graph or one --victim"

    @property
    def notice(self) -> str:
        """A sentence for those who are about to wait for minutes; empty where nobody is."""
        if self.whole.seconds <= LONG_SECONDS:
            return ""
        quick = self._options(lambda cost: cost.seconds <= QUICK_SECONDS)
        less = f"{' or '.join(quick)} takes seconds" if quick else "fewer rounds or one --victim take less"
        return f"{self.what} takes about {duration_text(self.whole.seconds)} of one core; {less}"

    def _options(self, suits: Callable[[Cost], bool]) -> list[str]:
        """Options that take less: the kinds that are quick, and nodes near the view that take no more than suits."""
        hops = self.hops(suits)
        kinds = [" ".join(f"--kind {kind}" for kind in self.quick)] if self.quick else []
        return kinds + ([] if hops is None else [f"--within {hops}"])


def estimate_account(
    system: LinearSystem,
    view: View,
    kinds: Sequence[Kind],
    terms: Terms,
    victims: Sequence[int] | None = None,
    *,
    covering: bool = True,
) -> AccountEstimate:
    """What `account` takes, from sizes alone."""
    view = as_sums(view, system)
    every = covering_views(view, system) if covering else (view,)
    adversaries = [one for other in every for one in coalitions(other, system)]

    def cost_about(some: Sequence[Kind], whom: Sequence[int] | None) -> Cost:
        each = (account_cost(system, one, some, terms.scheme, whom, optimised=terms.optimised) for one in adversaries)
        return sum(each, Cost())

    def near(hops: int) -> Cost | None:
        if not view.members or system.topology.graph is None:
            return None
        around = system.topology.graph.reaching(view.members, hops)
        asked = system.n - len(view.members) if victims is None else len(victims)
        return cost_about(kinds, around) if 0 < len(around) < asked else None

    def cost_of(some: Sequence[Kind]) -> Cost:
        return cost_about(some, victims)

    def applies(kind: Kind) -> bool:
        return may_apply(kind, system, adversaries[0])

    what = f"the account of {system.algorithm.name} on {system.topology.name}, {system.rounds:,} rounds, for {view}"
    return AccountEstimate(what, cost_of(kinds), tuple(kinds), cost_of, applies, near)
