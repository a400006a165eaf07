"""The planner in the page: at once, from disk, and never below what the accountant computes."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from sottovoce.config import parse_experiment
from sottovoce.core.graphs import graph
from sottovoce.planning.asked_plan import DELTA, participation_of
from sottovoce.planning.plan_grid import ALGORITHMS, BATCHES, EPSILONS, GRAPHS, ROUNDS, plan_point
from sottovoce.planning.planner import Question, plan_one
from sottovoce.privacy.gaussian_dp import epsilon_of, mu_of
from sottovoce.report.page import asset, write_page
from sottovoce.run.execute import run_experiment

GRID = json.loads(asset("plans.json"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_stored_points_are_those_of_the_accountant(algorithm):
    rng = random.Random(algorithm)
    for name in GRAPHS[:2]:
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
    found = re.fullmatch(r".*σ = (\S+) times.*average model by (\S+) and the model of a node by (\S+), for.*", words)
    rows = shown.locator("#plan details tbody tr").evaluate_all("all => all.map(one => one.lastChild.textContent)")
    assert found, words
    return dict(zip(("sigma", "average", "node"), map(float, found.groups()), strict=True)), [
        float(one) for one in rows
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_answer_is_below_the_accountants(algorithm, page, opened):
    """At random points between those of the grid."""
    shown, rng = opened(page), random.Random(f"planner {algorithm}")
    for name in GRAPHS[:3]:
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
