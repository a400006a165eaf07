"""Which algorithms a plan tries, with which settings, and what their first rounds tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Role
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.topologies import Topology
from sottovoce.planning.question import Question
from sottovoce.privacy.accountant import account
from sottovoce.privacy.calibration import require_protection
from sottovoce.tracing.linear_system import LinearSystem

PAIRED = (1.0, 4.0)
"""Secrets that neighbours share are tried at so many times a node's own noise."""

FIRST_ROUNDS = 3
"""So many show whether anything is proven at all."""


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


def asks_first_rounds(question: Question, system: LinearSystem) -> bool:
    """Whether the first rounds of a system tell something about all of them: not where its noise is correlated."""
    return system.correlation is None and question.rounds > FIRST_ROUNDS


def require_first_rounds(question: Question, first: LinearSystem) -> None:
    """Refuse an algorithm of which nothing is proven even for its first rounds: more are refused too, much later."""
    require_protection(account(first, question.view, **question.terms(first.rounds)))
