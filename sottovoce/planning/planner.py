"""Planning: which algorithm meets a target with the least noise in its models, before anything is trained.

Each discovered algorithm is calibrated to the target and traced; how its noise adds up in the models after the last
round is read from the traced system (`noise_in_models`). What training does is left out: see docs/plan.md.

    >>> from sottovoce.core.graphs import graph
    >>> found = plan(Question(graph=graph("complete:4"), rounds=4, epsilon=1.0, delta=1e-5, records=10, dimension=5))
    >>> found.ranked[0].algorithm, found.recommended is found.ranked[0]
    ('dp-fedavg', False)
    >>> [(one.algorithm, one.reason) for one in found.refused][:1]
    [('d-psgd', 'it adds no noise, so nothing is promised')]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec, Role
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.final_models import parse_final_models
from sottovoce.core.graphs import Graph
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.limits import Cost, check_cost, size_text
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.noise import PerNode
from sottovoce.core.notebook_html import html_table
from sottovoce.core.participation import SAMPLED, Participation, draws_by_chance, parse_participation
from sottovoce.core.sensitivity import largest
from sottovoce.core.threads import one_thread
from sottovoce.core.topologies import Topology, weigh, weights_for
from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.declared_records import DeclaredRecords, declare_records
from sottovoce.matrix_factorization.sampled_noise import numbers_of_parts
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.account_settings import AccountSettings
from sottovoce.privacy.accountant import account
from sottovoce.privacy.calibration import (
    Calibrated,
    Target,
    accounts_at,
    calibrated_system,
    in_proportion,
    require_protection,
    with_sigma,
)
from sottovoce.privacy.covering_views import Coverage
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import Guarantee, Kind, PrivacyFigure
from sottovoce.privacy.rounding import round_up, sigma_text
from sottovoce.privacy.sampled_batches import SampledCalibration, calibrate_sampled, saves_noise
from sottovoce.privacy.views import View, parse_view, with_final_models
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import ROUND_SECONDS, trace_coordinates, trace_cost, trace_possible

Progress = Callable[[int, int], None]

MOST = {"rounds": 10**7, "dimension": 10**12}

PAIRED = (1.0, 4.0)
"""Secrets that neighbours share are tried at so many times a node's own noise."""

FIRST_ROUNDS = 3
"""So many show whether anything is proven at all."""

BRIEF_SECONDS = 15.0
"""What takes longer to trace, by an estimate that is rather too high, is not traced to estimate the rest."""

ENOUGH = 1000
"""Parameters with which a round is played to count its messages."""

NO_NOISE = "it adds no noise, so nothing is promised"
ONCE = "it averages values once and does not train"
OWN_C = "it takes a correlation of your own; mafalda finds the best one"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, and the target: epsilon and delta against a view.

    `records` of all nodes or of each, `dimension` parameters of the model; gradients are clipped per example. They take
    part `every` round, `KxB`, or in batches that are drawn by chance: `poisson:SHARE`, `fixed:SIZE`. `weights` is what
    each algorithm needs unless given; `convex` says that local steps are non-expansive. With `final_models`, the
    adversary sees these models after the last round as well. `colluders` nodes may work together where algorithms have
    secure sums. Nodes count alike in the average, or with `weigh_nodes="size"` by their records.
    """

    graph: Graph
    rounds: int
    epsilon: float
    delta: float
    records: int | tuple[int, ...]
    dimension: int
    view: str = "everyone"
    final_models: str = "none"
    adjacency: str = "record"
    participation: str = "every"
    weights: str | None = None
    convex: bool = False
    colluders: int = 1
    weigh_nodes: str = "equal"

    def __post_init__(self) -> None:
        """Refuses what is wrong for every algorithm."""
        for name in ("rounds", "dimension"):
            if not 1 <= getattr(self, name) <= MOST[name]:
                raise InputError(
                    f"{name} {getattr(self, name)}", f"it lies between 1 and {MOST[name]:,}", "give 100, say"
                )
        mu_of(self.epsilon, self.delta)
        self.adversary.check(self.graph.n)
        object.__setattr__(self, "view", str(self.adversary))
        object.__setattr__(self, "final_models", parse_final_models(self.final_models))
        if not draws_by_chance(self.participation):
            parse_participation(self.participation).check(self.rounds)
        self.declared.batches.check(self.rounds)
        if self.weights is not None:
            weigh(self.graph, self.weights)

    @cached_property
    def adversary(self) -> View:
        """Whom the plan protects against: the view, parsed."""
        return parse_view(self.view, labels=self.graph.names)

    @cached_property
    def declared(self) -> DeclaredRecords:
        """The records of nodes, and how they take part."""
        records = self.records if isinstance(self.records, tuple) else (self.records,)
        return declare_records(
            self.participation, nodes=self.graph.n, records=records, adjacency=self.adjacency,
            weigh_nodes=self.weigh_nodes,
        )  # fmt: skip

    @property
    def sensitivity(self) -> PerNode:
        """How far a change of data moves a node's gradient, where gradients are clipped per example to norm one."""
        return self.declared.sensitivity

    @property
    def share(self) -> float | None:
        """The share of Poisson batches that protect single records, where chance may count; else None."""
        nodes = self.declared.sampled_nodes
        by_chance = self.participation.startswith("poisson:") and nodes is not None and self.view == "everyone"
        return nodes.samplings[0].share if by_chance and nodes is not None else None

    def scheme(self, rounds: int) -> Participation:
        """In which of so many rounds a change can show, whatever chance does."""
        return self.declared.participation.within(rounds)

    def terms(self, rounds: int) -> AccountSettings:
        """What is proven of so many rounds: settings of `account`."""
        kinds = (Kind.ANY_TRAINING, Kind.CONVEX_TRAINING) if self.convex else (Kind.ANY_TRAINING,)
        return {
            "adjacency": self.adjacency, "participation": self.scheme(rounds), "convex": self.convex, "kinds": kinds,
            "final_models": self.final_models,
        }  # fmt: skip

    @cached_property
    def _nets(self) -> dict[str, Topology]:
        return {}

    def topology(self, kind: str) -> Topology:
        """The graph with weights of this kind, connected; made once."""
        if kind not in self._nets:
            self._nets[kind] = weigh(self.graph, kind)
            self._nets[kind].require_connected()
        return self._nets[kind]


@dataclass(frozen=True)
class Entry:
    """An algorithm that meets the target: the sigma it takes, the proof, whom that covers, and what it costs.

    Where `sampled` is there, the target is met by counting on chance, and `guarantee` is what holds without.
    Errors are expected squared distances by which noise moves a model until the end, for steps of size one: of the
    average over all nodes' models, and of a node's own, on average over nodes. None, with `unpredicted` saying why,
    where messages are not linear.
    """

    algorithm: str
    settings: Mapping[str, object]
    weights: str
    sigma: PerNode
    guarantee: Guarantee
    sampled: PrivacyFigure | None
    covers: Coverage
    error_average: float | None
    error_node: float | None
    unpredicted: str
    bytes_per_node: float

    def epsilon(self, delta: float) -> float:
        """What is proven."""
        return self.guarantee.epsilon(delta) if self.sampled is None else self.sampled.epsilon

    @property
    def label(self) -> str:
        """Its name and settings."""
        shown = ",".join(f"{key}={_short(value)}" for key, value in self.settings.items())
        return f"{self.algorithm}({shown})" if shown else self.algorithm


def noise_text(square: float | None) -> str:
    """The root of an expected squared distance, for reading."""
    return "not predicted" if square is None else f"{math.sqrt(square):.4g}"


class PlannedSystem(NamedTuple):
    """An algorithm that meets the target, and what it sends at that sigma."""

    entry: Entry
    system: LinearSystem

    @property
    def error(self) -> float:
        """Of a node's model; infinite where it is not predicted."""
        return math.inf if self.entry.error_node is None else self.entry.error_node


class Refused(NamedTuple):
    """An algorithm that does not apply, and why."""

    algorithm: str
    settings: Mapping[str, object]
    reason: str


@dataclass(frozen=True, repr=False)
class Plan:
    """All algorithms: those that meet the target, least error of a node first, and those that do not apply."""

    question: Question
    ranked: tuple[Entry, ...]
    refused: tuple[Refused, ...]

    def __repr__(self) -> str:
        best = "none is recommended" if self.recommended is None else f"{self.recommended.label} is recommended"
        return f"Plan({self.question.graph.name}, epsilon {self.question.epsilon:g}, {len(self.ranked)} ranked, {best})"

    def _repr_html_(self) -> str:
        """For notebooks: the table, and what is recommended."""
        return html_table(self.table(), f"Recommended: {self.reason}.")

    def table(self) -> list[list[str]]:
        """All that are ranked, with what they take and give, for reading."""
        table = [
            [
                "algorithm",
                "sigma",
                "noise in average model",
                "in a node",
                "sent per node",
                "epsilon",
                "kind",
                "colluders",
            ]
        ]
        for entry in self.ranked:
            errors = (entry.error_average, entry.error_node)
            noise = [noise_text(square) for square in errors]
            epsilon = round_up(entry.epsilon(self.question.delta))
            table.append([
                entry.label, sigma_text(entry.sigma, 4), *noise, size_text(entry.bytes_per_node), epsilon,
                entry.guarantee.kind, entry.covers.count,
            ])  # fmt: skip
        return table

    @property
    def recommended(self) -> Entry | None:
        """The first of them that needs no party whom all trust, if its error is predicted."""
        found = next((one for one in self.ranked if not algorithm_spec(one.algorithm).needs_trust), None)
        return None if found is None or found.error_node is None else found

    @property
    def reason(self) -> str:
        """Why that one, in a sentence."""
        best = self.recommended
        if best is None or best.error_node is None or best.error_average is None:
            return "no algorithm meets the target with an error that can be predicted"
        sentence = f"{best.label} has the least predicted error of a typical node"
        if best is not self.ranked[0]:
            sentence += f" without a party whom all trust, which {self.ranked[0].label} needs"
        plain = next((one for one in self.ranked if one.algorithm == "dp-d-sgd"), None)
        if plain is not None and plain is not best and plain.error_node and best.error_node > 0:
            sentence += (
                f", {math.sqrt(plain.error_node / best.error_node):.3g} times less (root mean square) than dp-d-sgd"
            )
        other = min((one for one in self.ranked if one.error_average is not None), key=_of_average)
        if _of_average(other) < 0.95 * best.error_average:
            sentence += f"; for the average model {other.label} has less"
        return sentence


@dataclass(frozen=True)
class _Candidate:
    """An algorithm with those of its settings that neither the target nor the graph nor the batches decide."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def spec(self) -> AlgorithmSpec[AlgorithmSettings]:
        """What is known of the algorithm before it is built."""
        return algorithm_spec(self.name)


def candidates(algorithms: Sequence[str] | None = None) -> list[_Candidate]:
    """Every discovered algorithm, once for each of the settings that its examples show besides the size of noise.

    Or those that are named.
    """
    found: list[_Candidate] = []
    for spec in algorithm_specs().values() if algorithms is None else map(algorithm_spec, dict.fromkeys(algorithms)):
        plain = {setting.name for setting in spec.settings if setting.role is Role.PLAIN}
        for example in spec.examples:
            one = _Candidate(spec.name, {name: value for name, value in example.settings.items() if name in plain})
            if one not in found:
                found.append(one)
    return found


@one_thread()
def plan(
    question: Question,
    progress: Progress | None = None,
    found: Callable[[Entry], None] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Plan:
    """Calibrate, trace and rank all algorithms, or those that are named.

    `found` gets each that meets the target as soon as it is known.
    """
    ranked, refused = [], []
    every = candidates(algorithms)
    rounds = Cost(seconds=ROUND_SECONDS * question.rounds * len(every))
    check_cost(f"a plan of {question.rounds:,} rounds for {len(every)} algorithms", rounds, "take fewer rounds")
    for number, one in enumerate(every):
        try:
            ranked.append(_best(question, one).entry)
            if found is not None:
                found(ranked[-1])
        except (InputError, Unaccountable) as error:
            refused.append(Refused(one.name, one.settings, str(error)))
        if progress is not None:
            progress(number + 1, len(every))
    ranked.sort(key=_rank)
    return Plan(question, tuple(ranked), tuple(refused))


def plan_one(question: Question, algorithm: str) -> PlannedSystem:
    """One algorithm with its own settings at the sigma that meets the target."""
    return _best(question, _Candidate(algorithm))


def _best(question: Question, one: _Candidate) -> PlannedSystem:
    """The algorithm at the sigma that meets the target; of several sizes of secrets the one that does best."""
    spec = one.spec
    if not spec.adds_noise:
        raise Unaccountable(NO_NOISE)
    if spec.needs_own_correlation:
        raise Unaccountable(OWN_C)
    if spec.averaging:
        raise Unaccountable(ONCE)
    given = _settings(question, one, question.rounds)
    if spec.setting("participation") is not None and question.share is not None:
        return _best_batches(question, one)
    if not spec.shares_noise:
        return _entry(question, one, lambda sigma: spec.build_at(sigma, given))
    tried = [_entry(question, one, _with_secrets(spec, given, times), secrets=times) for times in PAIRED]
    return min(tried, key=lambda found: found.error)


def _settings(question: Question, one: _Candidate, rounds: int) -> dict[str, object]:
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
            given = _settings(question, one, rounds)
            built = _with_secrets(spec, given, 1.0)(1.0) if spec.shares_noise else spec.build_at(1.0, given)
            net = question.topology(weights_for(built.requires, question.weights))
            cost = trace_cost(built, net, rounds=question.rounds)
            traced = trace_possible(built, net, rounds=rounds) if cost.seconds <= BRIEF_SECONDS else None
        except (InputError, Unaccountable):  # the plan itself says why
            continue
        yield Brief(one.name, cost, len(PAIRED) if spec.shares_noise else 1, traced)


def _best_batches(question: Question, one: _Candidate) -> PlannedSystem:
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


def _with_secrets(
    spec: AlgorithmSpec[AlgorithmSettings], given: Mapping[str, object], times: float
) -> Callable[[float], Algorithm]:
    return lambda sigma: spec.build_at(sigma, {**given, **spec.shared_noise(times * sigma)})


def _entry(
    question: Question, one: _Candidate, build: Callable[[float], Algorithm], secrets: float | None = None
) -> PlannedSystem:
    weights = weights_for(build(1.0).requires, question.weights)
    net = question.topology(weights)

    def as_run(sigma: float) -> Algorithm:
        made = build(sigma)
        return with_exact_noise(made, net) if made.secure_sum else made

    built = as_run(1.0)
    if secrets is None:
        reference = trace_possible(with_sigma(built, 1.0), net, rounds=question.rounds)
        unsampled = _calibrated(question, built, reference)
        chance = _by_chance(question, reference, unsampled)
        paired: Mapping[str, object] = {}
    else:
        unsampled, chance = _scaled(question, build, net), None
        paired = one.spec.shared_noise(secrets * unsampled.sigma)
    sigma, found = unsampled
    assert found.headline is not None
    ready = as_run(sigma) if chance is None else with_sigma(built, chance.sigma)
    system = found.system if chance is None else chance.system
    average, node, why = _predicted(question, ready, system)
    entry = Entry(
        one.name, {**one.settings, **paired}, weights, sigma if chance is None else chance.sigma, found.headline,
        None if chance is None else chance.figure, found.coverage,
        average, node, why, _bytes_per_node(question, ready, net),
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


def _calibrated(question: Question, built: Algorithm, reference: LinearSystem) -> Calibrated:
    """The least sigma. What the first rounds refuse, more of them refuse too, and much later: they are asked first."""
    if built.noise.correlation is None and question.rounds > FIRST_ROUNDS:
        first = reference.first_rounds(FIRST_ROUNDS)
        require_protection(account(first, question.view, **question.terms(FIRST_ROUNDS)))
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


def _rank(entry: Entry) -> tuple[float, float]:
    """Least error first; where errors differ by rounding alone, fewest bytes."""
    return math.inf if entry.error_node is None else float(f"{entry.error_node:.9g}"), entry.bytes_per_node


def _of_average(entry: Entry) -> float:
    return math.inf if entry.error_average is None else entry.error_average


def _short(value: object) -> str:
    """Sizes of noise are rounded up, as sigma is: with less of it the target is missed."""
    from sottovoce.privacy.rounding import round_up

    return round_up(value) if isinstance(value, float) else str(value)
