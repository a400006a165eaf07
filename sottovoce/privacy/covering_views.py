"""Which adversaries a headline must hold for, and whom it covers then.

A figure about whoever hears every message covers every single node and any number of nodes together, unless neighbours
share secrets (DECOR): a node knows its own, and so can learn more than a stranger who hears everything. `account`,
`calibrate`, `plan` and runs all ask here, so that they agree.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("decor", sigma=1.0, sigma_pair=1.0), metropolis("ring:3"), rounds=2)
    >>> [str(view) for view in covering_views(views.everyone(), system)]
    ['everyone', 'node:0', 'node:1', 'node:2']
    >>> print(coverage(covering_views(views.everyone(), system), system))
    against whoever hears every message and every single node; larger coalitions are not covered
    >>> system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:3"), rounds=2)
    >>> [str(view) for view in covering_views(views.everyone(), system)]
    ['everyone']
    >>> print(coverage([views.everyone()], system))
    against everyone: whoever hears every message, and any number of nodes together
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.core.algorithm import sums_over_all
from sottovoce.errors import Unaccountable
from sottovoce.privacy import views
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.memo import once_for_each
from sottovoce.support.text import JSON
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

if TYPE_CHECKING:
    from sottovoce.support.config import Document

NODE_ROUNDS = 40_000
"""Adversaries times nodes times rounds that are accounted for unasked, whatever rounds are like: some seconds to a
minute."""

ALIKE_NODE_ROUNDS, FEW_ROUNDS = 1_000_000, 100
"""The same where rounds are alike, for up to so many rounds. More of them count by their squares, too: the exact losses
of single nodes, which runs report, take as much longer."""

HEARING_ALL = 200_000_000
"""Squares of nodes times rounds, added up over nodes that hear all others, that are accounted for unasked: the views of
such nodes are closed, and have exact losses."""

COALITIONS, COALITION_ROUNDS = 2_000, 2_000_000
"""Coalitions, and coalitions times nodes times rounds, that are accounted for one by one where any of a size is asked
for: some minutes."""

COUNTS = ("no", "single", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def shares_secrets(system: LinearSystem) -> bool:
    """Whether neighbours share noise in any round."""
    return any(
        sources.kind == "pair" and sources.size for step in dict.fromkeys(system.steps) for _, sources in step.sources
    )


@once_for_each
def hides_in_sums(system: LinearSystem) -> bool:
    """Whether nodes see nothing but one sum, to which they add noise of their own that they know."""
    return sums_over_all(system.algorithm) and any(
        sources.holders.nnz for step in dict.fromkeys(system.steps) for _, sources in step.sources
    )


def insiders_know_more(system: LinearSystem) -> bool:
    """Whether a node may learn more than whoever hears everything from outside: by its secrets, or by its noise."""
    return shares_secrets(system) or hides_in_sums(system)


def lacks_secrets(view: View, system: LinearSystem) -> bool:
    """Whether it hears from outside: some node knows what this adversary does not, and may learn more."""
    outside = view.kind in (ViewKind.EVERYONE, ViewKind.EAVESDROPPER) and not view.members
    if outside and hides_in_sums(system):
        return True
    return outside and len(view.secrets_of) < system.n and shares_secrets(system)


def as_sums(view: View, system: LinearSystem) -> View:
    """A view where nodes get sums over their neighbours, as the algorithm or the view says: wires carry but masks.

    Who hears these hears nothing: everyone stands for coalitions of as many nodes as the algorithm says may collude.
    Whoever knows secrets beside all messages hears the messages themselves: it stands for coalitions, who know their
    own, and no sums tell as much.
    """
    algorithm, hears_all = system.algorithm, view.kind is ViewKind.EVERYONE
    if sums_over_all(algorithm) or not (view.secure_sum or algorithm.secure_sum):
        return replace(view, secure_sum=False)
    if hears_all and not view.members and not view.secrets_of:
        colluding = views.any_coalition(algorithm.colluders, secure_sum=True)
        return replace(colluding, final_models=view.final_models)
    return replace(view, secure_sum=not hears_all)


def covering_views(view: View, system: LinearSystem) -> tuple[View, ...]:
    """The adversaries for which a headline about `view` must hold, itself first.

    Where neighbours share secrets, a headline about everyone must hold for each node. Each is an adversary of its own
    where so many are affordable; else one that hears everything and knows all secrets stands for them. Of secure sums,
    in which nodes hide by noise of their own, it must hold for every coalition of as many nodes as the algorithm says
    may collude.
    """
    if hides_in_sums(system) and not view.members and view.kind is not ViewKind.ANY_COALITION:
        colluding = views.any_coalition(system.algorithm.colluders)
        return (view, replace(colluding, final_models=view.final_models))
    if view.kind is not ViewKind.EVERYONE or view.secrets_of or not lacks_secrets(view, system):
        return (view,)
    n = system.n
    if _each_node_is_affordable(system):
        return (view, *(replace(views.node(node), final_models=view.final_models) for node in range(n)))
    return (view, _all_knowing(view, n))


@once_for_each
def _each_node_is_affordable(system: LinearSystem) -> bool:
    """Whether every node is accounted for unasked, as an adversary of its own."""
    n, rounds = system.n, system.rounds
    if n < 2:
        return False
    if n * n * rounds <= NODE_ROUNDS:
        return True
    if len(dict.fromkeys(system.steps)) > 1:
        return False
    hearing_all = sum(int((np.diff(mixing.weights.indptr) >= n - 1).sum()) for mixing in system.steps[0].mixings)
    longer = max(1.0, rounds / FEW_ROUNDS) ** 2
    return n * n * rounds * longer <= ALIKE_NODE_ROUNDS and hearing_all * (n * rounds) ** 2 <= HEARING_ALL


@dataclass(frozen=True)
class StandIn:
    """That all nodes together stand for coalitions of a size, which are too many to account for one by one."""

    size: int
    nodes: int
    rounds: int

    def __str__(self) -> str:
        those = f"{self.nodes:,} single nodes"
        if self.size > 1:
            those = f"{comb(self.nodes, self.size):,} coalitions of {self.size} among {self.nodes:,} nodes"
        return (
            f"{those} over {self.rounds:,} rounds are too many to account for one by one. The figure is that of all "
            "nodes together, which is never smaller, so it holds for any number of colluders. Smaller graphs and fewer "
            "rounds are accounted for one by one"
        )


def stand_in_of(view: View, system: LinearSystem) -> StandIn | None:
    """For whom all nodes together stand in a figure about `view` and whomever it must hold for; None for nobody."""
    whom = (view, *covering_views(view, system))
    sizes = [one.size for one in whom if one.kind is ViewKind.ANY_COALITION and not _affordable(one, system)]
    if not view.secrets_of and any(one.secrets_of for one in whom):
        sizes.append(1)
    return StandIn(max(sizes), system.n, system.rounds) if sizes else None


def knows_everything(view: View, system: LinearSystem) -> bool:
    """Whether it is all nodes together: it hears every message, and knows all secrets."""
    return view.kind is ViewKind.EVERYONE and len(view.secrets_of) == system.n


def coalitions(view: View, system: LinearSystem) -> tuple[View, ...]:
    """The adversaries that any coalition of a size stands for: each of them where so many are affordable.

    Else one that hears everything and knows all secrets: no coalition learns more. For other views, the view itself.
    Of one secure sum over all nodes, for each victim the coalition that knows most of the noise is enough.
    """
    view.check(system.n)
    if view.kind is ViewKind.ANY_COALITION and hides_in_sums(system):
        return tuple(_knowing_most(view, system))
    return tuple(view.coalitions(system.n)) if _affordable(view, system) else (_all_knowing(view, system.n),)


def _knowing_most(view: View, system: LinearSystem) -> Iterator[View]:
    """Those nodes that add most noise, and, for each of them as the victim, the next one in its place.

    Where other nodes add most in another round, all coalitions are tried. None stands for them: whoever hears every
    message hears only sums, and knows no noise.
    """
    chosen = {tuple(_noisiest(step, view.size + 1)) for step in dict.fromkeys(system.steps)}
    if len(chosen) > 1:
        count = comb(system.n, view.size)
        if count > COALITIONS:
            raise Unaccountable(
                f"{count:,} coalitions of {view.size} nodes, of whom others know most of the noise in other rounds; at "
                f"most {COALITIONS:,} are tried; take fewer colluders, or sizes of noise that do not change over rounds"
            )
        yield from view.coalitions(system.n)
        return
    most = chosen.pop()
    for left_out in reversed(most):
        members = sorted(node for node in most if node != left_out)
        yield replace(views.coalition(*members), final_models=view.final_models)


def _noisiest(step: StepMatrices, count: int) -> list[int]:
    noise = np.abs(step.split(step.sent[0].rows)[2].toarray()).ravel()
    sources = np.concatenate([sources.holders.tocoo().coords[1] for _, sources in step.sources])
    return [int(node) for node in sources[np.argsort(-noise, kind="stable")][:count]]


def _affordable(view: View, system: LinearSystem) -> bool:
    if hides_in_sums(system):
        return True
    count = comb(system.n, view.size) if view.kind is ViewKind.ANY_COALITION else 1
    return count == 1 or (count <= COALITIONS and count * system.n * system.rounds <= COALITION_ROUNDS)


def _all_knowing(view: View, n: int) -> View:
    return replace(views.everyone(secrets_of=tuple(range(n))), final_models=view.final_models)


@dataclass(frozen=True)
class Coverage:
    """Whom a headline covers: whoever hears every message, or not; and every coalition of up to so many nodes.

    `colluders` is None for any number of nodes, and 0 where the headline is about named adversaries only.
    """

    everyone: bool
    colluders: int | None

    def __str__(self) -> str:
        if self.colluders is None:
            return "against everyone: whoever hears every message, and any number of nodes together"
        strangers = "whoever hears every message"
        if not self.colluders:
            return f"against {strangers if self.everyone else 'the named adversary'} only"
        both = f"{strangers} and " if self.everyone else ""
        return f"against {both}{together(self.colluders)}; larger coalitions are not covered"

    @classmethod
    def common(cls, found: Iterable[Coverage]) -> Coverage:
        """Whom all of several figures cover, and so their joint one."""
        each = list(found)
        few = [one.colluders for one in each if one.colluders is not None]
        return cls(all(one.everyone for one in each), min(few, default=None))

    @property
    def count(self) -> str:
        """How many nodes together it covers."""
        return "any number" if self.colluders is None else str(self.colluders)

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        return {"everyone": self.everyone, "colluders": "any" if self.colluders is None else self.colluders}

    @classmethod
    def read(cls, document: Document) -> Coverage:
        """What `document` wrote."""
        return cls(document["everyone"], None if document["colluders"] == "any" else document["colluders"])


NAMED_ONLY = Coverage(everyone=False, colluders=0)
"""Of a figure that says of nobody else that it covers them."""


def together(colluders: int) -> str:
    """Every coalition of so many nodes, in words.

    >>> together(1), together(2), together(12)
    ('every single node', 'every two nodes together', 'every 12 nodes together')
    """
    count = COUNTS[colluders] if colluders < len(COUNTS) else str(colluders)
    return f"every {count} node" + ("" if colluders == 1 else "s together")


def coverage(adversaries: Sequence[View], system: LinearSystem) -> Coverage:
    """Whom a figure covers that holds against each of some adversaries."""
    whole = [view for view in adversaries if view.kind is ViewKind.EVERYONE]
    unaffordable = any(not _affordable(view, system) for view in adversaries)
    if unaffordable or any(not lacks_secrets(view, system) for view in whole):
        return Coverage(True, None)
    sizes = [0, *(view.size for view in adversaries if view.kind is ViewKind.ANY_COALITION)]
    single = {view.members[0] for view in adversaries if len(view.members) == 1}
    return Coverage(bool(whole), max(*sizes, 1 if len(single) == system.n else 0))
