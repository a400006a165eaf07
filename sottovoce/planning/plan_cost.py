"""What a plan takes, estimated before it begins, and which of its algorithms are quick.

Each algorithm is traced for a few rounds; what more of them take follows from sizes. The search for correlated noise is
left out, which has a limit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce.core.adjacency import parse_adjacency
from sottovoce.core.limits import Cost, duration_text, is_affordable
from sottovoce.planning.candidates import brief_traces
from sottovoce.planning.noise_accumulation import ENTRIES, picked_nodes
from sottovoce.planning.question import Question
from sottovoce.privacy.account_estimate import LONG_SECONDS, estimate_account
from sottovoce.privacy.guarantee import parse_kind
from sottovoce.privacy.terms import Terms
from sottovoce.privacy.views import with_final_models
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import REACHED_BYTES

RESPONSES = 1e9
"""Responses of models to noise that are multiplied by a weight in a second."""

SHARED_SECONDS = 1e-10
"""For each triple of nodes, where neighbours share secrets: the covariance of all noise in a round is inverted."""

LARGE = 50_000
"""Nodes times rounds from which on a plan is estimated. Below, estimates from sizes are far too high for those that
are refused before their account is made; plans took less than a minute, but for secure sums on hundreds of nodes."""


@dataclass(frozen=True)
class PlanCost:
    """What is planned, and the seconds that each algorithm takes, all of its settings together."""

    what: str
    seconds: dict[str, float]
    sought: frozenset[str]
    """Those whose correlation is sought first, which takes longer."""

    @property
    def quick(self) -> tuple[str, ...]:
        """The algorithms that take a minute together, the quickest first; empty where these are none or all."""
        found, whole = [], 0.0
        for name in sorted(self.seconds.keys() - self.sought, key=lambda name: (self.seconds[name], name)):
            whole += self.seconds[name]
            if whole > LONG_SECONDS:
                break
            found.append(name)
        return tuple(found) if len(found) < len(self.seconds) else ()

    @property
    def notice(self) -> str:
        """A sentence for those who are about to wait for minutes; empty where nobody is."""
        whole = sum(self.seconds.values())
        if whole <= LONG_SECONDS:
            return ""
        longest = max(self.seconds, key=lambda name: self.seconds[name])
        most = f", {longest} alone {duration_text(self.seconds[longest])}"
        options = " ".join(f"--algorithm {name}" for name in self.quick)
        seconds = duration_text(sum(self.seconds[name] for name in self.quick))
        less = f"{options} takes about {seconds}" if options else "fewer rounds take less"
        return f"{self.what} takes about {duration_text(whole)} of one core{most}; {less}"


def plan_cost(question: Question, algorithms: Sequence[str] | None = None) -> PlanCost | None:
    """What a plan takes, from sizes; None where that is seconds anyway."""
    if question.graph.n * question.rounds < LARGE:
        return None
    seconds: dict[str, float] = {}
    sought: set[str] = set()
    for one in brief_traces(question, algorithms):
        found = _untraced(question, one.tracing) if one.system is None else _seconds(question, one.system)
        if found is not None:
            shared = SHARED_SECONDS * question.graph.n**3 if one.times > 1 else 0.0
            seconds[one.algorithm] = seconds.get(one.algorithm, 0.0) + one.times * (found + shared)
        if one.system is not None and one.system.correlation is not None:
            sought.add(one.algorithm)
    what = f"a plan for {question.graph.name}, {question.rounds:,} rounds,"
    return PlanCost(what, seconds, frozenset(sought)) if seconds else None


def _untraced(question: Question, tracing: Cost) -> float | None:
    """For an algorithm that mixes often in a round: it is traced, and noise goes through all pairs that it joins."""
    if not is_affordable(tracing):
        return None
    entries, n = tracing.memory / REACHED_BYTES, question.graph.n
    return tracing.seconds + question.rounds * min(n, ENTRIES / n) * 2 * entries / RESPONSES


def _seconds(question: Question, traced: LinearSystem) -> float | None:
    """For an algorithm of which some rounds are traced; None where its account would be refused for its size."""
    first, *_, last = (*traced.steps, traced.steps[-1])
    system = replace(traced, steps=(first, *(last,) * (question.rounds - 1)))
    asked = question.terms(question.rounds)
    terms = Terms(parse_adjacency(question.adjacency), question.scheme(question.rounds))
    view = with_final_models(question.adversary, question.final_models)
    account = estimate_account(system, view, [parse_kind(kind) for kind in asked["kinds"]], terms).whole
    if not is_affordable(account):
        return None
    weights = sum(part.nnz for part in last.split(last.state_out)[::2])
    return account.seconds + question.rounds * picked_nodes(system) * weights / RESPONSES
