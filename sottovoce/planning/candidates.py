"""Which algorithms a plan tries, with which settings, and their first rounds, traced to estimate the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Role
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.topologies import Topology, weights_for
from sottovoce.errors import InputError, Unaccountable
from sottovoce.planning.question import Question
from sottovoce.privacy.accountant import account
from sottovoce.privacy.calibration import require_protection
from sottovoce.support.limits import Cost
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import trace_cost, trace_possible

PAIRED = (1.0, 4.0)
"""Secrets that neighbours share are tried at so many times a node's own noise."""

FIRST_ROUNDS = 3
"""So many show whether anything is proven at all."""

BRIEF_SECONDS = 15.0
"""What takes longer to trace, by an estimate that is rather too high, is not traced to estimate the rest."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm with those of its settings that neither the target nor the graph nor the batches decide."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def spec(self) -> AlgorithmSpec[AlgorithmSettings]:
        """What is known of the algorithm before it is built."""
        return algorithm_spec(self.name)


def candidates(algorithms: Sequence[str] | None = None) -> list[Candidate]:
    """Every discovered algorithm, once for each of the settings that its examples show besides the size of noise.

    Or those that are named.
    """
    found: list[Candidate] = []
    for spec in algorithm_specs().values() if algorithms is None else map(algorithm_spec, dict.fromkeys(algorithms)):
        plain = {setting.name for setting in spec.settings if setting.role is Role.PLAIN}
        for example in spec.examples:
            one = Candidate(spec.name, {name: value for name, value in example.settings.items() if name in plain})
            if one not in found:
                found.append(one)
    return found


def settings_for(question: Question, one: Candidate, rounds: int) -> dict[str, object]:
    """All settings but the size of noise, for so many rounds."""
    spec = one.spec
    return {
        **one.settings,
        **spec.from_run(
            one.settings, rounds=rounds, participation=str(question.scheme(rounds)),
            colluders=question.colluders if spec.setting("colluders") is not None else None,
        ),
        **({} if spec.setting("sensitivity") is None else {"sensitivity": question.sensitivity}),
    }  # fmt: skip


def with_secrets(
    spec: AlgorithmSpec[AlgorithmSettings], given: Mapping[str, object], times: float
) -> Callable[[float], Algorithm]:
    """How to build it at any sigma, with secrets of neighbours so many times as large."""
    return lambda sigma: spec.build_at(sigma, {**given, **spec.shared_noise(times * sigma)})


def as_run(built: Algorithm, net: Topology) -> Algorithm:
    """With the noise that runs have: integers, where sums are secure."""
    return with_exact_noise(built, net) if built.secure_sum else built


class Brief(NamedTuple):
    """The first rounds of an algorithm that may be planned: what it takes to trace all, and with how many sizes of
    secrets it is; traced, where that takes seconds."""

    tracing: Cost
    times: int
    system: LinearSystem | None


def brief_trace(question: Question, one: Candidate) -> Brief | None:
    """The first rounds of an algorithm; None where it is refused before anything is traced."""
    spec, rounds = one.spec, min(question.rounds, FIRST_ROUNDS)
    if not spec.adds_noise or spec.needs_own_correlation or spec.averaging:
        return None
    try:
        given = settings_for(question, one, rounds)
        built = with_secrets(spec, given, 1.0)(1.0) if spec.shares_noise else spec.build_at(1.0, given)
        net = question.topology(weights_for(built.requires, question.weights))
        built = as_run(built, net)
        cost = trace_cost(built, net, rounds=question.rounds)
        traced = trace_possible(built, net, rounds=rounds) if cost.seconds <= BRIEF_SECONDS else None
    except (InputError, Unaccountable):  # the plan itself says why
        return None
    return Brief(cost, len(PAIRED) if spec.shares_noise else 1, traced)


def asks_first_rounds(question: Question, system: LinearSystem) -> bool:
    """Whether the first rounds of a system tell something about all of them: not where its noise is correlated."""
    return system.correlation is None and question.rounds > FIRST_ROUNDS


def require_first_rounds(question: Question, one: Candidate, first: LinearSystem) -> None:
    """Refuse an algorithm of which nothing is proven even for its first rounds: more are refused too, and much later.

    Asked once of each question: by the estimate of a plan, or by the plan.
    """
    key = repr(one)
    if key not in question.first_refusals:
        question.first_refusals[key] = None
        try:
            require_protection(account(first, question.view, **question.terms(first.rounds)))
        except (InputError, Unaccountable) as refusal:
            question.first_refusals[key] = refusal
    if (refused := question.first_refusals[key]) is not None:
        raise refused
