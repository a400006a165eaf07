"""What a plan takes, estimated before it begins, and which of its algorithms are quick.

Each algorithm is traced for a few rounds; what more of them take follows from sizes, unless the first ones are
refused. The search for correlated noise is left out, which has a limit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce.core.adjacency import parse_adjacency
from sottovoce.core.compression import RandomK
from sottovoce.errors import InputError, Unaccountable
from sottovoce.planning.candidates import (
    Brief,
    Candidate,
    asks_first_rounds,
    brief_trace,
    candidates,
    require_first_rounds,
)
from sottovoce.planning.noise_accumulation import ENTRIES, picked_nodes
from sottovoce.planning.question import Question
from sottovoce.privacy.absorption import all_step_with_noise
from sottovoce.privacy.account_estimate import LONG_SECONDS, estimate_account
from sottovoce.privacy.covering_views import as_sums
from sottovoce.privacy.guarantee import parse_kind
from sottovoce.privacy.terms import Terms
from sottovoce.privacy.views import with_final_models
from sottovoce.support.limits import Cost, duration_text, is_affordable, limits_are_lifted
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import COORDINATES, REACHED_BYTES

RESPONSES = 3e9
"""Responses of models to noise that are multiplied by a weight in a second."""

SHARED_SECONDS = 1e-10
"""For each triple of nodes, where neighbours share secrets: the covariance of all noise in a round is inverted."""

DRAWN_SECONDS, DRAWN_LINK_SECONDS = 2e-3, 1.2e-6
"""For each round, and each weight in it, of a coordinate of which compression keeps a part: rounds differ."""

ASKED_SECONDS = 5.0
"""Of what takes longer by its sizes, the first rounds are asked whether anything is proven."""


@dataclass(frozen=True)
class PlanCost:
    """What is planned, and the seconds that each candidate takes: its name, and None where it is not begun unasked."""

    what: str
    each: tuple[tuple[str, float | None], ...]
    sought: frozenset[str]
    """Those whose correlation is sought first, which takes longer."""

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each algorithm takes, all of its settings together."""
        found: dict[str, float] = {}
        for name, one in self.each:
            if one:
                found[name] = found.get(name, 0.0) + one
        return found

    @property
    def whole(self) -> Cost:
        """All that is begun."""
        return Cost(seconds=sum(self.seconds.values()))

    @property
    def quick(self) -> tuple[str, ...]:
        """The algorithms that take a minute together, the quickest first; empty where these are none or all."""
        found, whole, seconds = [], 0.0, self.seconds
        for name in sorted(seconds.keys() - self.sought, key=lambda name: (seconds[name], name)):
            whole += seconds[name]
            if whole > LONG_SECONDS:
                break
            found.append(name)
        return tuple(found) if len(found) < len(seconds) else ()

    def smaller_work(self) -> str:
        """What to type to take less."""
        options = [self._options] if self.quick else []
        return f"take {', '.join([*options, 'fewer rounds'])} or a smaller graph"

    @property
    def notice(self) -> str:
        """A sentence for those who are about to wait for minutes; empty where nobody is."""
        whole, each = self.whole.seconds, self.seconds
        if whole <= LONG_SECONDS:
            return ""
        longest = max(each, key=lambda name: each[name])
        most = f", {longest} alone {duration_text(each[longest])}" if len(each) > 1 else ""
        seconds = duration_text(sum(each[name] for name in self.quick))
        less = f"{self._options} takes about {seconds}" if self.quick else "fewer rounds take less"
        return f"{self.what} takes about {duration_text(whole)} of one core{most}; {less}"

    @property
    def _options(self) -> str:
        return " ".join(f"--algorithm {name}" for name in self.quick)


@one_thread()
def plan_cost(question: Question, algorithms: Sequence[str] | None = None) -> PlanCost:
    """What a plan takes, from sizes, and from the first rounds of what would take long.

    Where users are told what is quick, those are asked too: none is named that is refused.
    """
    briefs = [(one, brief_trace(question, one)) for one in candidates(algorithms)]
    seconds = [0.0 if brief is None else _of_candidate(question, one, brief) for one, brief in briefs]
    sought = frozenset(
        one.name for one, brief in briefs if brief and brief.system and brief.system.correlation is not None
    )
    what = f"a plan for {question.graph.name}, {question.rounds:,} rounds,"

    def cost() -> PlanCost:
        each = tuple((one.name, taken) for (one, _), taken in zip(briefs, seconds, strict=True))
        return PlanCost(what, each, sought)

    found = cost()
    if found.whole.seconds <= LONG_SECONDS:
        return found
    for number, (one, brief) in enumerate(briefs):
        if one.name in found.quick and brief is not None and _is_refused(question, one, brief):
            seconds[number] = 0.0
    return cost()


def _of_candidate(question: Question, one: Candidate, brief: Brief) -> float | None:
    """Seconds; 0 where its first rounds are refused, None where it is refused for its size."""
    found = _untraced(question, brief.tracing) if brief.system is None else _seconds(question, brief.system)
    if (found is None or found > ASKED_SECONDS) and _is_refused(question, one, brief):
        return 0.0
    if found is None:
        return None
    shared = SHARED_SECONDS * question.graph.n**3 if brief.times > 1 else 0.0
    return brief.times * (found + shared)


def _is_refused(question: Question, one: Candidate, brief: Brief) -> bool:
    """Whether nothing is proven of the first rounds; not asked where they would take long themselves, nor where every
    gradient has noise of its own, which protects it."""
    first = brief.system
    if first is None or brief.times > 1 or not asks_first_rounds(question, first) or all_step_with_noise(first):
        return False
    if _account(question, first).seconds > ASKED_SECONDS:
        return False
    try:
        require_first_rounds(question, one, first)
    except (InputError, Unaccountable):
        return True
    return False


def _account(question: Question, system: LinearSystem) -> Cost:
    """What the account of a system takes, by those kinds and against those adversaries that a plan asks about."""
    asked = question.terms(system.rounds)
    terms = Terms(parse_adjacency(question.adjacency), question.scheme(system.rounds))
    view = as_sums(with_final_models(question.adversary, question.final_models), system)
    kinds = [parse_kind(kind) for kind in asked["kinds"]]
    return estimate_account(system, view, kinds, terms).whole


def _untraced(question: Question, tracing: Cost) -> float | None:
    """For an algorithm that mixes often in a round: it is traced, and noise goes through all pairs that it joins."""
    if not (is_affordable(tracing) or limits_are_lifted()):
        return None
    entries, n = tracing.memory / REACHED_BYTES, question.graph.n
    return tracing.seconds + question.rounds * min(n, ENTRIES / n) * 2 * entries / RESPONSES


def _seconds(question: Question, traced: LinearSystem) -> float | None:
    """For an algorithm of which some rounds are traced; None where its account would be refused for its size."""
    first, *_, last = (*traced.steps, traced.steps[-1])
    system = replace(traced, steps=(first, *(last,) * (question.rounds - 1)))
    account = _account(question, system)
    if not (is_affordable(account) or limits_are_lifted()):
        return None
    weights = sum(part.nnz for part in last.split(last.state_out)[::2])
    drawn = 0.0
    if isinstance(system.algorithm.compression, RandomK):
        drawn = COORDINATES * question.rounds * (DRAWN_SECONDS + DRAWN_LINK_SECONDS * weights)
    return account.seconds + drawn + question.rounds * picked_nodes(system) * weights / RESPONSES
