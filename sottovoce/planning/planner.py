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
from dataclasses import replace

import numpy as np

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.participation import SAMPLED
from sottovoce.core.sensitivity import largest
from sottovoce.core.topologies import Topology, weights_for
from sottovoce.errors import InputError, Unaccountable
from sottovoce.matrix_factorization.sampled_noise import numbers_of_parts
from sottovoce.planning.candidates import (
    FIRST_ROUNDS,
    PAIRED,
    Candidate,
    as_run,
    asks_first_rounds,
    candidates,
    require_first_rounds,
    settings_for,
    with_secrets,
)
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.planning.question import Question
from sottovoce.planning.ranking import Entry, Plan, PlannedSystem, Refused, rank
from sottovoce.privacy.amplification import SampledCalibration, calibrate_sampled, saves_noise
from sottovoce.privacy.calibration import (
    Calibrated,
    Target,
    accounts_at,
    calibrated_system,
    in_proportion,
    with_sigma,
)
from sottovoce.privacy.covering_views import stand_in_of
from sottovoce.privacy.views import with_final_models
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import ROUND_SECONDS, trace_coordinates, trace_possible

ENOUGH = 1000
"""Parameters with which a round is played to count its messages."""

NO_NOISE = "it adds no noise, so nothing is promised"
ONCE = "it averages values once and does not train"
OWN_C = "it takes a correlation of your own; mafalda finds the best one"


@one_thread()
def plan(
    question: Question,
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[Entry], None] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Plan:
    """Calibrate, trace and rank all algorithms, or those that are named.

    `found` gets each that meets the target as soon as it is known; `progress` hears how many are done, and how many
    there are.
    """
    ranked, refused = [], []
    every = candidates(algorithms)
    rounds = Cost(seconds=ROUND_SECONDS * question.rounds * len(every))
    check_cost(f"a plan of {question.rounds:,} rounds for {len(every)} algorithms", rounds, "take fewer rounds")
    if progress is not None:
        progress(0, len(every))
    for done, one in enumerate(every, start=1):
        try:
            best = _best(question, one)
            ranked.append(best.entry)
            if found is not None:
                found(best.entry)
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
    tried = (_entry(question, one, with_secrets(spec, given, times), secrets=times) for times in PAIRED)
    return min(tried, key=lambda found: found.error)


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


def _entry(
    question: Question, one: Candidate, build: Callable[[float], Algorithm], secrets: float | None = None
) -> PlannedSystem:
    weights = weights_for(build(1.0).requires, question.weights)
    net = question.topology(weights)

    built = as_run(build(1.0), net)
    if secrets is None:
        reference = trace_possible(with_sigma(built, 1.0), net, rounds=question.rounds)
        unsampled = _calibrated(question, reference)
        chance = _by_chance(question, reference, unsampled)
        paired: Mapping[str, object] = {}
    else:
        unsampled, chance = _scaled(question, build, net), None
        paired = one.spec.shared_noise(secrets * unsampled.sigma)
    sigma, found = unsampled
    ready = as_run(build(sigma), net) if chance is None else with_sigma(built, chance.sigma)
    system = found.system if chance is None else chance.system
    average, node, why = _predicted(question, ready, system)
    entry = Entry(
        one.name, {**one.settings, **paired}, weights, sigma if chance is None else chance.sigma, found.headline,
        None if chance is None else chance.figure, found.coverage,
        stand_in_of(found.view, found.system), average, node, why, _bytes_per_node(question, ready, net),
    )  # fmt: skip
    return PlannedSystem(entry, system)


def _by_chance(question: Question, reference: LinearSystem, unsampled: Calibrated) -> SampledCalibration | None:
    """The least sigma that counts on chance, where batches are drawn by it and that is less."""
    nodes = question.declared.sampled_nodes
    if nodes is None:
        return None
    view = with_final_models(question.adversary, question.final_models)
    found = calibrate_sampled(reference, view, nodes, Target(question.epsilon, question.delta))
    return found if found is not None and saves_noise(found.sigma, unsampled.sigma) else None


def _calibrated(question: Question, reference: LinearSystem) -> Calibrated:
    """The least sigma; the first rounds are asked first."""
    if asks_first_rounds(question, reference):
        require_first_rounds(question, reference.first_rounds(FIRST_ROUNDS))
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
