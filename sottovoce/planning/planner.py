"""Planning: which algorithm meets a target with the least noise in its models, before anything is trained.

Each discovered algorithm is calibrated to the target and traced; how its noise adds up in the models after the last
round is read from the traced system (`noise_in_models`). What training does is left out: see docs/plan.md.

    >>> from sottovoce.core.graphs import graph
    >>> from sottovoce.planning.question import Question
    >>> found = plan(Question(graph=graph("complete:4"), rounds=4, epsilon=1.0, delta=1e-5, records=10, dimension=5))
    >>> found.ranked[0].algorithm, found.recommended is found.ranked[0]
    ('dp-fedavg', False)
    >>> [(one.algorithm, one.reason) for one in found.refused][:1]
    [('d-psgd', 'it adds no noise, so nothing is promised')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Role
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.participation import SAMPLED
from sottovoce.core.sensitivity import largest
from sottovoce.core.topologies import Topology, weights_for
from sottovoce.errors import InputError, Unaccountable
from sottovoce.matrix_factorization.sampled_noise import numbers_of_parts
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.planning.question import Question
from sottovoce.planning.ranking import Entry, Plan, PlannedSystem, Refused, rank
from sottovoce.privacy.accountant import account
from sottovoce.privacy.amplification import calibrate_sampled
from sottovoce.privacy.calibration import (
    Calibrated,
    Target,
    accounts_at,
    calibrated_system,
    in_proportion,
    require_protection,
    with_sigma,
)
from sottovoce.privacy.covering_views import stand_in_of
from sottovoce.privacy.views import with_final_models
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import ROUND_SECONDS, trace_coordinates, trace_possible

PAIRED = (1.0, 4.0)
"""Secrets that neighbours share are tried at so many times a node's own noise."""

FIRST_ROUNDS = 3
"""So many show whether anything is proven at all."""

ENOUGH = 1000
"""Parameters with which a round is played to count its messages."""

NO_NOISE = "it adds no noise, so nothing is promised"
ONCE = "it averages values once and does not train"
OWN_C = "it takes a correlation of your own; mafalda finds the best one"


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
    rule = {name: value for name, value in question.local_rule.items() if spec.setting(name) is not None}
    return {
        **one.settings,
        **rule,
        **spec.from_run(
            one.settings, rounds=rounds, participation=str(question.scheme(rounds)),
            colluders=question.colluders if spec.setting("colluders") is not None else None,
        ),
        **({} if spec.setting("sensitivity") is None else {"sensitivity": question.sensitivity}),
    }  # fmt: skip


@one_thread()
def plan(
    question: Question,
    progress: Callable[[int, int], None] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Plan:
    """Calibrate, trace and rank all algorithms, or those that are named.

    `progress` hears how many are done, and how many there are.
    """
    ranked, refused = [], []
    every = candidates(algorithms)
    rounds = Cost(seconds=ROUND_SECONDS * question.rounds * len(every))
    check_cost(f"a plan of {question.rounds:,} rounds for {len(every)} algorithms", rounds, "take fewer rounds")
    if progress is not None:
        progress(0, len(every))
    for done, one in enumerate(every, start=1):
        try:
            ranked.append(_best(question, one).entry)
        except (InputError, Unaccountable) as error:
            refused.append(Refused(one.name, one.settings, str(error)))
        if progress is not None:
            progress(done, len(every))
    ranked.sort(key=rank)
    return Plan(question, tuple(ranked), tuple(refused))


def plan_one(question: Question, algorithm: str) -> PlannedSystem:
    """One algorithm with its own settings at the sigma that meets the target."""
    return _best(question, Candidate(algorithm))


def _best(question: Question, one: Candidate) -> PlannedSystem:
    """The algorithm at the sigma that meets the target; of several sizes of secrets the one that does best."""
    spec = one.spec
    if not spec.adds_noise:
        raise Unaccountable(NO_NOISE)
    if spec.needs_own_correlation:
        raise Unaccountable(OWN_C)
    if spec.averaging:
        raise Unaccountable(ONCE)
    given = settings_for(question, one, question.rounds)
    if spec.setting("participation") is not None and question.share is not None:
        return _best_batches(question, one)
    if not spec.shares_noise:
        return _entry(question, one, lambda sigma: spec.build_at(sigma, given))

    def with_secrets(times: float) -> PlannedSystem:
        def build(sigma: float) -> Algorithm:
            return spec.build_at(sigma, {**given, **spec.shared_noise(times * sigma)})

        return _entry(question, one, build, secrets=times)

    return min(map(with_secrets, PAIRED), key=lambda found: found.error)


def _best_batches(question: Question, one: Candidate) -> PlannedSystem:
    """Poisson batches dealt into parts, for an algorithm that correlates noise: the number of parts with least error.

    More parts are tried until error rises twice. The entry names the batches.
    """
    assert question.share is not None
    tried: list[PlannedSystem] = []
    for parts in numbers_of_parts(question.share, min(question.rounds, *question.declared.records)):
        batches = f"{SAMPLED}:{min(1.0, parts * question.share)!r}x{parts}"
        entry, system = _best(replace(question, participation=batches), one)
        tried.append(PlannedSystem(replace(entry, settings={**entry.settings, "batches": batches}), system))
        errors = [found.error for found in tried]
        if len(errors) > 2 and errors[-3] <= errors[-2] <= errors[-1]:
            break
    return min(tried, key=lambda found: found.error)


def _as_run(built: Algorithm, net: Topology) -> Algorithm:
    """With the noise that runs have: integers, where sums are secure."""
    return with_exact_noise(built, net) if built.secure_sum else built


def _entry(
    question: Question, one: Candidate, build: Callable[[float], Algorithm], secrets: float | None = None
) -> PlannedSystem:
    weights = weights_for(build(1.0).requires, question.weights)
    net = question.topology(weights)

    built = _as_run(build(1.0), net)
    if secrets is None:
        reference = trace_possible(with_sigma(built, 1.0), net, rounds=question.rounds)
        unsampled = _calibrated(question, reference)
        view = with_final_models(question.adversary, question.final_models)
        target, nodes = Target(question.epsilon, question.delta), question.declared.sampled_nodes
        chance = calibrate_sampled(reference, view, nodes, target, unsampled.sigma)
        paired: Mapping[str, object] = {}
    else:
        unsampled, chance = _scaled(question, build, net), None
        paired = one.spec.shared_noise(secrets * unsampled.sigma)
    sigma, found = unsampled
    ready = _as_run(build(sigma), net) if chance is None else with_sigma(built, chance.sigma)
    system = found.system
    if chance is not None:
        system = chance.system
        found = account(system, question.view, **question.terms(question.rounds))
    average, node, why = _predicted(question, ready, system)
    entry = Entry(
        one.name, {**one.settings, **paired}, weights, sigma if chance is None else chance.sigma, found.headline,
        None if chance is None else chance.figure, found.coverage,
        stand_in_of(found.view, found.system), average, node, why, _bytes_per_node(question, ready, net),
    )  # fmt: skip
    return PlannedSystem(entry, system)


def _calibrated(question: Question, reference: LinearSystem) -> Calibrated:
    """The least sigma. An algorithm of which nothing is proven even for its first rounds is refused early: these tell
    something about all rounds, unless noise is correlated."""
    if reference.correlation is None and question.rounds > FIRST_ROUNDS:
        first = reference.first_rounds(FIRST_ROUNDS)
        require_protection(account(first, question.view, **question.terms(first.rounds)))
    target = Target(question.epsilon, question.delta)
    return calibrated_system(reference, question.view, target, **question.terms(question.rounds))


def _scaled(question: Question, build: Callable[[float], Algorithm], net: Topology) -> Calibrated:
    """The least sigma where secrets that neighbours share grow with it: mu falls as one over both."""
    target = Target(question.epsilon, question.delta)
    traced = trace_possible(build(1.0), net, rounds=question.rounds)
    view = question.adversary
    at = accounts_at(traced, lambda sigma: build(sigma).noise, **question.terms(question.rounds))
    reference = at(1.0, view)
    if reference.mu == 0:
        return Calibrated(0.0, reference)
    return in_proportion(lambda sigma: at(sigma, view), reference, target, margin=1e-9)


def _predicted(question: Question, ready: Algorithm, system: LinearSystem) -> tuple[float | None, float | None, str]:
    """Errors of the average model and of a node over all coordinates, or why there are none."""
    systems: Iterable[LinearSystem] = (system,)
    try:
        if system.only_gradients:
            systems = trace_coordinates(ready, system.topology, rounds=question.rounds, dimension=question.dimension)
        found = [noise_in_models(system) for system in systems]
    except Unaccountable as refusal:
        return None, None, str(refusal)
    average, node = np.mean(found, axis=0) * largest(question.sensitivity) ** 2 * question.dimension
    return float(average), float(node), ""


def _bytes_per_node(question: Question, ready: Algorithm, net: Topology) -> float:
    """What a node sends over the run, on average over nodes: rounds of a fixed graph are alike."""
    start = np.zeros((net.n, min(question.dimension, ENOUGH)))
    first = next(iter(iterate_rounds(ready, net, start, lambda round, x: np.zeros_like(x), rounds=question.rounds)))
    return first.traffic_of(question.dimension).bits / 8 * question.rounds / net.n
