"""Figures that were beaten once, each with the attack or the calculation by hand that beat it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from scipy import sparse

from sottovoce import Unaccountable, account, algorithm, calibrate, from_matrix, graph, metropolis, trace, weigh
from sottovoce.algorithms.registry import algorithm_spec, examples
from sottovoce.core.graphs import Graph
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.mixing import Mixing
from sottovoce.core.topologies import Changing, weights_for
from sottovoce.learning import models
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.planning.planner import plan
from sottovoce.planning.question import Question
from sottovoce.privacy import covering_views, views
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.rounding import round_up
from sottovoce.run.privacy_report import report_privacy, sigma_of
from sottovoce.run.run_accountant import calibrate_run
from sottovoce.run.training_run import prepare_run
from sottovoce.tracing.policy import trace_possible
from tests.selection import in_turn

DELTA = 1e-5


# --- whom a headline covers ----------------------------------------------------------------------------------------

LATE = [Mixing(sparse.csr_array(np.eye(2))), metropolis("path:2").at(0)]
MEETING_LATE = Changing(lambda round, step: LATE[min(round, 1)], n=2, name="path that begins without its edge")


def test_secrets_of_later_rounds_count():
    """Two nodes that are linked from round 1 on, four rounds, sigma 1: the neighbour subtracts the secrets, and has the
    sum of two noisy gradients, then two single ones: mu^2 = 2^2/2 + 1 + 1. A stranger has less.
    """
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=5.0), MEETING_LATE, rounds=4)
    found = account(system)
    assert found.mu**2 == pytest.approx(4.0)
    assert found.headline.view in (views.node(0), views.node(1))
    assert found.of(0).mu ** 2 < 3.0
    promised = report_privacy(training_run(system.algorithm, MEETING_LATE, rounds=4), delta=DELTA)
    assert promised.headline.mu**2 == pytest.approx(4.0)


def training_run(built, net, *, rounds, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((6 * net.n, 3)).astype(np.float32)
    labels = rng.integers(0, 2, len(rows))
    data = Dataset(
        name="random", kind="classes", examples=Examples(rows), targets=labels, test_inputs=rows[:4],
        test_targets=labels[:4], shape=(3,), classes=("a", "b"), groups=None, test_groups=None, entities=(), licence="",
        source="", notes=(),
    )  # fmt: skip
    work = task(data, partition(data, net.n), models.model("mlp", data))
    return prepare_run(built, net, work.gradients("full", "per-example", 1.0), rounds=rounds, adjacency="user")


def test_calibrate_and_run_give_the_same_sigma_where_neighbours_share_secrets():
    built, net = algorithm("decor", sigma=1.0, sigma_pair=4.0), metropolis("ring:6")
    ours = calibrate(built, net, rounds=4, epsilon=2.0, delta=DELTA)
    theirs = sigma_of(
        calibrate_run(training_run(built, net, rounds=4), epsilon=2.0, delta=DELTA).training_run.algorithm.noise
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert 2.8 < ours < 2.85


GRAPHS = ("ring:4", "complete:4", "star:5", "path:3")
ASKED = (
    ("everyone", "none"), ("node:0", "none"), ("coalition:0,1", "none"), ("coalition:any-2", "none"),
    ("node:0", "average"), ("everyone", "all"),
)  # fmt: skip
"""Views, and the final models that they see as well."""


def trains_with_noise(example) -> bool:
    built = algorithm(example.name, **example.settings)
    return not built.averaging and sigma_of(built.noise) is not None


TRAINED = [example for example in examples() if trains_with_noise(example)]


def admitted(example, place):
    built = algorithm(example.name, **example.settings)
    return built, weigh(place, weights_for(built.requires, None))


def combinations() -> Iterator[object]:
    """Every algorithm on every graph for every view that it admits; five views in six with the slow tests."""
    for number, example in enumerate(TRAINED):
        built = algorithm(example.name, **example.settings)
        some = GRAPHS[:2] if built.secure_sum else GRAPHS  # sums take two neighbours and more
        for place in GRAPHS[1:2] if built.requires in ("complete average", "one aggregator") else some:
            for turn, (view, seen) in enumerate(ASKED):
                often = (number + GRAPHS.index(place) + turn) % len(ASKED) == 0
                marks = () if often else pytest.mark.slow
                name = f"{example} on {place} for {view} and {seen} of the final models"
                yield pytest.param(example, place, view, {"final_models": seen}, marks=marks, id=name)


@pytest.mark.parametrize(("example", "place", "view", "seen"), list(combinations()))
def test_account_calibrate_and_run_agree(example, place, view, seen):
    built, net = admitted(example, place)
    built = with_exact_noise(built, net)  # as runs have it: in secure sums it adds to figures
    found = account(trace_possible(built, net, rounds=3), view, **seen)
    run = training_run(built, net, rounds=3)
    report = report_privacy(run, delta=DELTA, target=view, **seen)
    own = next(one for one in report.accounts if one.view == found.view)
    if found.headline.proves_nothing:
        assert own.headline.proves_nothing
        return
    if view == "everyone":
        assert report.headline.mu == pytest.approx(found.mu, rel=1e-9)
        assert (report.headline.view, report.coverage) == (found.headline.view, found.coverage)
    else:
        assert own.mu == pytest.approx(found.mu, rel=1e-9)
        assert (own.headline.view, own.coverage) == (found.headline.view, found.coverage)
    if np.isinf(found.mu):
        with pytest.raises(Unaccountable, match="no sigma protects everybody"):
            calibrate(built, net, view, rounds=3, epsilon=2.0, delta=DELTA, **seen)
        with pytest.raises(Unaccountable, match="no sigma protects everybody"):
            calibrate_run(run, epsilon=2.0, delta=DELTA, view=view, **seen)
        return
    sigma = calibrate(built, net, view, rounds=3, epsilon=2.0, delta=DELTA, **seen)
    assert account(trace_possible(with_sigma(built, sigma), net, rounds=3), view, **seen).epsilon(DELTA) <= 2.0
    met = calibrate_run(run, epsilon=2.0, delta=DELTA, view=view, **seen).training_run
    assert sigma_of(met.algorithm.noise) == pytest.approx(sigma, rel=1e-5)


@pytest.mark.parametrize(("place", "asked"), in_turn(GRAPHS, ASKED))
def test_account_at_the_sigma_of_a_plan_meets_the_target(place, asked):
    view, seen = asked
    question = Question(
        graph=graph(place), rounds=3, epsilon=2.0, delta=DELTA, records=10, dimension=4, view=view, adjacency="user",
        final_models=seen,
    )  # fmt: skip
    for entry in plan(question).ranked:
        spec, settings = algorithm_spec(entry.algorithm), dict(entry.settings)
        built = spec.build_at(entry.sigma, settings | spec.from_run(settings, rounds=3, participation="every"))
        found = account(trace_possible(built, weigh(place, entry.weights), rounds=3), view, final_models=seen)
        assert found.coverage == entry.covers
        assert 1.99 < found.epsilon(DELTA) <= 2.0, entry.algorithm


def test_the_command_names_the_adversary_of_its_headline(sotto):
    line = "account --graph ring:6 --algorithm decor --sigma-pair 4 --rounds 4 --sigma 2.82"
    document = json.loads(sotto(line + " --json")[1])
    assert document["view"] == "everyone"
    assert document["headline"]["view"].startswith("node:")
    assert all("shares no secret" in " ".join(one["assumptions"]) for one in document["guarantees"])
    assert max(one["mu"] for one in document["guarantees"]) < document["headline"]["mu"]
    words = sotto(line)[1]
    assert f"against {document['headline']['view']}, who knows the secrets that it shares" in words
    assert "The table is about an outsider, who hears every message and shares no secret." in words


def test_a_table_alone_has_the_headline_of_another_adversary(sotto):
    line = "account --graph ring:6 --algorithm decor --sigma-pair 4 --rounds 4 --sigma 2.82"
    headline = json.loads(sotto(line + " --json")[1])["headline"]
    last = sotto("--csv " + line)[1].splitlines()[-1].split(",")
    assert last[0] == f"headline: any-training against {headline['view']}"
    assert last[1:4] == [headline["figure"], str(headline["distance"]), "1"]
    assert last[4:] == [round_up(headline["mu"])] * 3 + [round_up(headline["epsilon"])] * 3
    for view in ("node:0", "coalition:any-1"):
        assert "headline" not in sotto(f"--csv {line} --view {view}")[1], "its table has the headline's figure anyway"


def test_coalitions_for_which_all_nodes_stand_are_named(sotto, monkeypatch):
    line = "account --graph ring:6 --rounds 2 --view coalition:any-2"
    assert "too many" not in sotto(line)[1]
    monkeypatch.setattr(covering_views, "COALITIONS", 10)
    words = sotto(line)[1]
    assert "15 coalitions of 2 among 6 nodes over 2 rounds are too many to account for one by one." in words
    assert "against all nodes together" in words


# --- small weights -------------------------------------------------------------------------------------------------


def relay_scores(weight, changed, *, rounds=12, runs=4000):
    """What node 2 makes of the messages of relay 1, which takes in node 0's messages by a tiny weight.

    Node 0 starts each round from the relay's last message, which node 2 has, and its gradient is 1/2 or -1/2: a change
    of one. The relay's gradient, `sin(x / weight) / 2`, is bounded by 1/2 and amplifies what the weight makes small.
    """
    rng = np.random.default_rng(int(changed))
    victim, relay, score = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    last, phase = np.zeros(runs), np.zeros(runs)
    for round in range(rounds):
        from_victim = victim - (0.5 if changed else -0.5) + rng.standard_normal(runs)
        from_relay = relay - np.sin(relay / weight) / 2 + rng.standard_normal(runs)
        if round:
            score -= np.cos(phase) * (from_relay - (1 - weight) * last)
        phase = (1 - weight) * from_relay / weight + victim
        victim, relay, last = from_relay, weight * from_victim + (1 - weight) * from_relay, from_relay
    return score


@pytest.mark.parametrize("weight", [1e-8, 1e-10])
def test_a_relay_that_amplifies_a_tiny_weight_does_not_beat_the_figure(weight):
    net = from_matrix([[0.0, 1.0, 0.0], [weight, 1 - weight, 0.0], [0.0, 0.5, 0.5]])
    system = trace(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), net, rounds=12)
    one, other = relay_scores(weight, False), relay_scores(weight, True)
    shown = abs(one.mean() - other.mean()) / np.sqrt((one.var() + other.var()) / 2)
    assert shown > 0.4
    assert account(system, "node:2", victims=[0]).of(0, "any-training").mu > shown


@pytest.mark.parametrize("weight", [1e-12, 1e-17, 1e-100])
def test_no_weight_is_too_small_to_open_a_view(weight):
    net = from_matrix([[0.0, 1.0, 0.0], [weight, 1 - weight, 0.0], [0.0, 0.5, 0.5]])
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=4)
    assert account(system, "node:2", victims=[0]).of(0, "any-training").mu > 0.5


# --- nodes of which nothing is observed ----------------------------------------------------------------------------


def test_a_single_node_is_not_promised_that_nobody_is_worse_off(sotto):
    code, out, _ = sotto("account --graph complete:1 --rounds 3")
    assert code == 0
    assert "no observed message depends on this data, and final models are not covered" in " ".join(out.split())
    assert "nobody is worse off" not in out
    document = json.loads(sotto("account --graph complete:1 --rounds 3 --json")[1])
    assert document["headline"]["epsilon"] == 0
    assert "its model, if it is published" in document["headline"]["assumptions"][-1]


def test_an_isolated_node_is_named_beside_the_headline_of_others():
    """Its model is its own noisy average: whoever gets it learns as much as of any other node."""
    net = from_matrix([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    found = account(trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=3))
    assert {g.victim for g in found.guarantees if not g.observed} == {2}
    assert found.headline.observed
    assert not PrivacyFigure.of(found.of(2), DELTA).covers_final_models
    assert all(g.mu == 0 for g in found.guarantees if not g.observed)


@pytest.mark.parametrize("example", TRAINED, ids=str)
def test_whoever_is_observed_is_never_said_not_to_be(example):
    built, net = admitted(example, "complete:4")
    found = account(trace_possible(built, net, rounds=3))
    assert all(g.observed for g in found.guarantees)


# --- averaging on trees --------------------------------------------------------------------------------------------


def shares_of_noise(W, listener, rounds):
    """mu^2 of every other node for unit noise, in 250 digits: squared projections of unit vectors on what is heard.

    With the weights that are meant, 1 / (1 + d) and what is left of one: arithmetic is said to be exact.
    """
    n = len(W)
    with mpmath.workdps(250):
        weights, values, basis = mpmath.zeros(n), mpmath.eye(n), []
        for one, other in zip(*np.nonzero(W - np.diag(np.diag(W))), strict=True):
            weights[int(one), int(other)] = 1 / mpmath.mpf(round(1 / W[one, other]))
        for node in range(n):
            weights[node, node] = 1 - mpmath.fsum(weights[node, :])
        for _ in range(rounds):
            for sender in np.flatnonzero(W[listener]):
                row = [values[int(sender), node] for node in range(n) if node != listener]
                size = mpmath.norm(row)
                for _ in range(2):
                    for known in basis:
                        share = mpmath.fdot(row, known)
                        row = [x - share * y for x, y in zip(row, known, strict=True)]
                if sender != listener and mpmath.norm(row) > size * mpmath.mpf(10) ** -150:
                    basis.append([x / mpmath.norm(row) for x in row])
            values = weights * values
        return np.array([float(mpmath.fsum(known[k] ** 2 for known in basis)) for k in range(n - 1)])


@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 50))])
def test_averaging_on_random_trees_is_never_above_what_noisy_values_tell(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 16))
    edges = np.array([[rng.integers(max(0, node - 3), node), node] for node in range(1, n)])
    net = metropolis(Graph.from_edges(edges, name="tree", nodes=n, directed=False))
    listener, rounds = int(rng.integers(n)), int(rng.integers(n, 2 * n))
    truth = shares_of_noise(net.at(0).weights.toarray(), listener, rounds)
    found = account(trace(algorithm("muffliato", sigma=1.0), net, rounds=rounds), views.node(listener))
    squares = np.array([found.of(victim).mu ** 2 for victim in range(n) if victim != listener])
    assert np.all(squares >= truth - 1e-12)
    for victim in np.delete(np.arange(n), listener)[(truth > 0) & (truth < 1 - 1e-9)]:
        assert AssumptionKind.MEANT_WEIGHTS in {one.kind for one in found.of(victim).assumptions}
    assert np.all(squares <= 1 + 1e-9)
