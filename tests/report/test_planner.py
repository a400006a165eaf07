"""The planner in the page: at once, from disk, and never below what the accountant computes."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from sottovoce.algorithms.registry import algorithm_spec
from sottovoce.core.graphs import graph
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.topologies import weigh
from sottovoce.planning.asked_plan import DELTA, participation_of
from sottovoce.planning.plan_grid import ALGORITHMS, BATCHES, EPSILONS, GRAPHS, ROUNDS, plan_point, planned_graphs
from sottovoce.planning.planner import plan_one
from sottovoce.planning.question import Question
from sottovoce.privacy.accountant import account
from sottovoce.privacy.gaussian_dp import epsilon_of, mu_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.report.page import asset, write_page
from sottovoce.run.execute import run_experiment
from sottovoce.support.config import parse_experiment
from sottovoce.tracing.tracer import trace

GRID = json.loads(asset("plans.json"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_stored_points_are_those_of_the_accountant(algorithm):
    rng = random.Random(algorithm)
    for name in planned_graphs(algorithm)[:2]:
        batches, at = rng.choice(BATCHES), rng.randrange(3)
        stored = GRID["points"][name][algorithm][str(batches)][at]
        fresh = plan_point(name, algorithm, batches, ROUNDS[at])
        for key in ("mu", "average", "node", "by_distance"):
            assert stored[key] == pytest.approx(fresh[key], rel=1e-6, abs=2e-7)


def test_chords_of_the_table_are_on_the_safe_side():
    """mu is concave in epsilon: between any two entries it lies above their chord, and epsilon below."""
    assert GRID["epsilons"] == list(EPSILONS)
    rng = random.Random(0)
    for _ in range(200):
        at, share = rng.randrange(len(EPSILONS) - 1), rng.random()
        (low, high), mus = EPSILONS[at : at + 2], GRID["mus"][at : at + 2]
        assert mus[0] + share * (mus[1] - mus[0]) <= mu_of(low + share * (high - low), DELTA) * (1 + 1e-12)
        assert low + share * (high - low) >= epsilon_of(mus[0] + share * (mus[1] - mus[0]), DELTA) * (1 - 1e-12)


@pytest.mark.parametrize("nodes", [8, 16])
def test_integer_noise_of_sums_costs_no_more_than_the_table_says(nodes):
    """By the accountant itself, at any sensitivity and at every size of noise that the table answers with."""
    rng, name = random.Random(nodes), f"complete:{nodes}"
    net, spec = weigh(name, "uniform"), algorithm_spec("secure-average")
    points = GRID["points"][name]["secure-average"]["5"]
    stored = {rounds: points[at]["mu"] for at, rounds in enumerate(ROUNDS)}
    ends = (stored[ROUNDS[0]] / GRID["mus"][-1], stored[ROUNDS[-1]] / GRID["mus"][0])
    for sigma in (*ends, *(math.exp(rng.uniform(*map(math.log, ends))) for _ in range(6))):
        sensitivity, rounds = 2.0 ** rng.uniform(-8, 1), rng.choice(ROUNDS[:3])
        built = with_exact_noise(spec.build_at(sigma, {"sensitivity": sensitivity, "colluders": 1}), net)
        scheme = participation_of(rounds, 5)
        found = account(
            trace(built, net, rounds=rounds), "everyone", adjacency="record", participation=scheme,
            kinds=(Kind.ANY_TRAINING,),
        ).headline  # fmt: skip
        assert stored[rounds] / sigma * (1 - 1e-4) < found.mu <= stored[rounds] / sigma


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planner")
    settings = {"name": "small", "topology": {"graph": "ring:4"}, "training": {"rounds": 2}, "data": {"rows": 4}}
    settings |= {"algorithm": {"name": "d-psgd"}}
    run_experiment(parse_experiment(settings), folder / "run")
    return write_page(folder / "page.html", [folder / "run"])


def asked(shown, **choices: object) -> tuple[dict[str, float], list[float]]:
    """What the planner answers: sigma and the two distances, and epsilon by hops."""
    for name, value in choices.items():
        control = shown.locator(f"#plan-{name}")
        control.select_option(str(value)) if name in ("graph", "algorithm", "batches") else control.fill(str(value))
    words = shown.inner_text("#plan-answer")
    found = re.fullmatch(r".*σ = (\S+) times.*average model by (\S+) and the model of a node by (\S+), for s.*", words)
    rows = shown.locator("#plan details tbody tr").evaluate_all("all => all.map(one => one.lastChild.textContent)")
    assert found, words
    return dict(zip(("sigma", "average", "node"), map(float, found.groups()), strict=True)), [
        float(one) for one in rows
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_answer_is_below_the_accountants(algorithm, page, opened):
    """At random points between those of the grid."""
    shown, rng = opened(page), random.Random(f"planner {algorithm}")
    for name in planned_graphs(algorithm)[:3]:
        rounds, batches = rng.randrange(21, 80), rng.choice(BATCHES)
        epsilon, records = round(math.exp(rng.uniform(-1, 3)), 3), 20 * rng.randrange(1, 10)
        sizes = {"rounds": rounds, "epsilon": epsilon, "records": records}
        answer, leaks = asked(shown, graph=name, algorithm=algorithm, batches=batches, parameters=50, **sizes)
        question = Question(
            graph=graph(name), delta=DELTA, dimension=50, participation=participation_of(rounds, batches), **sizes
        )
        entry = plan_one(question, algorithm).entry
        assert entry.sigma <= answer["sigma"] <= 1.6 * entry.sigma
        for key, square in (("average", entry.error_average), ("node", entry.error_node)):
            assert math.sqrt(square) <= answer[key] * (1 + 1e-9)
        point = plan_point(name, algorithm, batches, rounds)
        exact = [min(epsilon, epsilon_of(mu / answer["sigma"], DELTA)) for mu in point["by_distance"]]
        assert len(exact) == len(leaks)
        assert all(one <= told for one, told in zip(exact, leaks, strict=True)), (exact, leaks)


def test_the_ends_of_the_table_are_told_upwards(page, opened):
    """Whatever the last bit of a quotient is: a neighbour learns the whole target, and nobody less than the least."""
    shown = opened(page)
    for name in GRAPHS:
        for rounds in ROUNDS:
            assert asked(shown, graph=name, rounds=rounds, epsilon=EPSILONS[-1])[1][0] >= 0.999 * EPSILONS[-1]
            assert min(asked(shown, epsilon=EPSILONS[0])[1]) >= EPSILONS[0]


def test_rounds_between_those_of_the_table_are_answered_by_name(page, opened):
    shown = opened(page)
    exact, _ = asked(shown, graph="ring:16", algorithm="dp-d-sgd", batches=20, rounds=60)
    assert "rounds" not in shown.inner_text("#plan-answer")
    between, _ = asked(shown, rounds=44)
    assert between == exact
    assert "This is for 60 rounds, the next number above 44 that was computed" in shown.inner_text("#plan-answer")
    assert "in 60 rounds" in shown.inner_text("#plan figcaption")


def test_secure_sums_are_answered_on_complete_graphs_and_say_against_whom_they_hold(page, opened):
    shown = opened(page)
    shown.select_option("#plan-graph", "ring:16")
    shown.select_option("#plan-algorithm", "secure-average")
    assert "choose a complete graph" in shown.inner_text("#plan-answer")
    sums, _ = asked(shown, graph="complete:16", rounds=100, epsilon=8)
    words = shown.inner_text("#plan .plain")
    assert "ε = 8 about every node" in words
    assert "every single node; larger coalitions are not covered" in words
    assert sums["sigma"] < asked(shown, algorithm="dp-d-sgd")[0]["sigma"]


def test_controls_answer_at_once_by_keyboard_and_say_what_was_not_computed(page, opened):
    shown = opened(page, width=390, height=800)
    before, _ = asked(shown, epsilon=4)
    shown.locator("#plan-epsilon").press("Control+a")
    shown.keyboard.type("2")
    after, leaks = asked(shown)
    assert after["sigma"] > before["sigma"]
    assert leaks == sorted(leaks, reverse=True)
    shown.locator("#plan-rounds").fill("5000")
    assert "For more, ask sotto plan" in shown.inner_text("#plan-answer")
    assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
