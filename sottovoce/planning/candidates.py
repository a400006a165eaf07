"""Which algorithms a plan tries, with which settings, and their first rounds, traced to estimate the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Role
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.limits import Cost
from sottovoce.core.topologies import weights_for
from sottovoce.errors import InputError, Unaccountable
from sottovoce.planning.question import Question
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


class Brief(NamedTuple):
    """The first rounds of an algorithm that may be planned: what it takes to trace all, and with how many sizes of
    secrets it is; traced, where that takes seconds."""

    algorithm: str
    tracing: Cost
    times: int
    system: LinearSystem | None


def brief_traces(question: Question, algorithms: Sequence[str] | None = None) -> Iterator[Brief]:
    """Each algorithm that may be planned, by its first rounds."""
    rounds = min(question.rounds, FIRST_ROUNDS)
    for one in candidates(algorithms):
        spec = one.spec
        if not spec.adds_noise or spec.needs_own_correlation or spec.averaging:
            continue
        try:
            given = settings_for(question, one, rounds)
            built = with_secrets(spec, given, 1.0)(1.0) if spec.shares_noise else spec.build_at(1.0, given)
            net = question.topology(weights_for(built.requires, question.weights))
            cost = trace_cost(built, net, rounds=question.rounds)
            traced = trace_possible(built, net, rounds=rounds) if cost.seconds <= BRIEF_SECONDS else None
        except (InputError, Unaccountable):  # the plan itself says why
            continue
        yield Brief(one.name, cost, len(PAIRED) if spec.shares_noise else 1, traced)
