"""`sotto plan`: predicted errors against the loop itself on pure noise, and what is ranked or refused."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from sottovoce import (
    Unaccountable,
    account,
    algorithm,
    algorithm_names,
    iterate_rounds,
    metropolis,
    trace,
    train,
    weigh,
)
from sottovoce.core.graphs import graph
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.participation import Participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import InputError
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.planning.planner import candidates, plan, plan_one
from sottovoce.planning.question import Question
from sottovoce.privacy import views
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import TrainingProof
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case

ROUNDS, DRAWS = 8, 4000

NOISY = [
    ("dp-d-sgd", {}, "metropolis"),
    ("dp2sgd", {}, "metropolis"),
    ("anti-pgd", {}, "metropolis"),
    ("mafalda", {"rounds": ROUNDS, "participation": "2x4"}, "metropolis"),
    ("muffliato-sgd", {"gossip_steps": 3, "chebyshev": True}, "metropolis"),
    ("decor", {"sigma_pair": 2.0}, "metropolis"),
    ("zip-dl", {}, "metropolis"),
    ("dp-csgp", {}, "push"),
    ("dp-fedavg", {}, "uniform"),
]
"""Every kind of noise, mixing and memory."""


def _silent(round, x):
    return np.zeros_like(x)


def _simulated(built, net):
    """Squares of noise in the models of the real loop without gradients: of their average, and the mean over nodes.

    Each coordinate is a run of its own. In units of step size and sensitivity.
    """
    models = train(built, net, np.zeros((net.n, DRAWS)), _silent, rounds=ROUNDS, noise_key=NoiseKey.of_seed(3))
    models = models / (built.step_size * built.sensitivity)
    return np.mean(models.mean(axis=0) ** 2), np.mean(models**2)


@pytest.mark.parametrize(("name", "settings", "weights"), NOISY)
def test_predicted_noise_is_that_of_the_loop_and_not_a_tenth_more_or_less(name, settings, weights):
    net = weigh("complete:5" if name == "dp-fedavg" else "erdos-renyi:6,p=0.5,seed=2", weights)
    built = algorithm(name, sigma=1.3, step_size=0.5, sensitivity=0.25, **settings)
    average, node = _simulated(built, net)
    width = 4.5 * math.sqrt(2 / DRAWS)

    def agrees(scale):
        found = noise_in_models(trace(built, net, rounds=ROUNDS))
        cancels = name == "zip-dl" or found.average < 1e-20
        of_average = average < 1e-20 if cancels else abs(average / (scale * found.average) - 1) < width
        return of_average and abs(node / (scale * found.node) - 1) < width

    assert agrees(1.0)
    assert not agrees(0.9**2)
    assert not agrees(1.1**2)


def test_predicted_noise_has_its_closed_form_where_there_is_one():
    found = noise_in_models(trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("complete:4"), rounds=3))
    assert found.average == pytest.approx(3 * 4 / 4)
    assert found.node == pytest.approx(3 * 4 / 4)  # all nodes hold the average after a round of gossip
    ring = noise_in_models(trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:9"), rounds=3))
    W = metropolis("ring:9").at(0).weights.toarray()
    powers = [np.linalg.matrix_power(W, k) for k in (1, 2, 3)]
    assert ring.node == pytest.approx(4 * sum((power**2).sum() for power in powers) / 9)


def test_a_few_nodes_stand_for_the_others_of_a_large_graph(monkeypatch):
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:30"), rounds=4)
    whole = noise_in_models(system)
    monkeypatch.setattr("sottovoce.planning.noise_accumulation.ENTRIES", 100)
    assert noise_in_models(system) == pytest.approx(whole)


SMALL = {"rounds": 8, "epsilon": 2.0, "delta": 1e-5, "records": 20, "dimension": 30, "participation": "2x4"}


@pytest.fixture(scope="module")
def small():
    return plan(Question(graph=graph("ring:5"), **SMALL))


def test_every_algorithm_is_ranked_or_refused_with_a_reason(small):
    assert {one.algorithm for one in (*small.ranked, *small.refused)} == set(algorithm_names())
    assert len(small.ranked) + len(small.refused) == len(candidates())
    assert all(one.reason for one in small.refused)
    refused = {one.algorithm: one.reason for one in small.refused}
    assert "no noise" in refused["d-psgd"]
    assert "does not train" in refused["muffliato"]
    assert "correlation of your own" in refused["mf-d-sgd"]
    assert "one sum over everyone" in refused["dp-fedavg"]
    assert "no sigma protects" in refused["rss-nb"]
    assert any("user" in one.reason for one in small.refused if one.algorithm == "zip-dl")


def test_what_is_ranked_meets_the_target_and_is_in_order(small):
    for one, other in itertools.pairwise(small.ranked):
        error, larger = (math.inf if each.error_node is None else each.error_node for each in (one, other))
        assert error <= larger * (1 + 1e-8)
        if error > larger * (1 - 1e-12):  # equal up to rounding
            assert one.bytes_per_node <= other.bytes_per_node
    assert small.recommended is small.ranked[0]
    assert small.recommended.label in small.reason
    for one in small.ranked:
        assert one.guarantee.epsilon(1e-5) <= 2.0
        assert one.guarantee.proven_for_training is TrainingProof.PROVEN
    dp = next(one for one in small.ranked if one.algorithm == "dp-d-sgd")
    again = account(
        trace(algorithm("dp-d-sgd", sigma=dp.sigma), metropolis("ring:5"), rounds=8), participation="2x4",
        adjacency="record",
    )  # fmt: skip
    assert 1.999 < again.epsilon(1e-5) <= 2.0
    assert small.question.sensitivity == pytest.approx(2 / 5)  # 20 records in 4 batches, one of 5 replaced
    assert dp.error_average == pytest.approx(8 * dp.sigma**2 / 5 * (2 / 5) ** 2 * 30)


def test_secrets_are_no_excuse(small):
    """A neighbour in DECOR learns more than whoever hears everything: it must not learn more than the target."""
    decor = next(one for one in small.ranked if one.algorithm == "decor")
    built = algorithm("decor", sigma=decor.sigma, **decor.settings)
    system = trace(built, metropolis("ring:5"), rounds=8)
    figures = [
        account(system, f"node:{node}", participation="2x4", adjacency="record", kinds=("any-training",)).epsilon(1e-5)
        for node in range(5)
    ]
    assert 1.99 < max(figures) <= 2.0
    whole = account(system, participation="2x4", adjacency="record")
    assert whole.epsilon(1e-5) == pytest.approx(max(figures), rel=1e-13)
    assert whole.of(0).epsilon(1e-5) < 1.9


def test_secure_sums_are_planned_with_the_integers_that_runs_have():
    """Integer noise loses a little more than real numbers, for which the same sigma would be too small."""
    question = Question(graph=graph("complete:5"), **SMALL)
    found, net = plan_one(question, "secure-average").entry, weigh("complete:5", "uniform")
    as_run = with_exact_noise(
        algorithm("secure-average", sigma=found.sigma, colluders=1, sensitivity=question.sensitivity), net
    )
    again = account(trace(as_run, net, rounds=8), participation="2x4", adjacency="record")
    assert 1.9999 < again.epsilon(1e-5) <= 2.0
    assert AssumptionKind.DISCRETE_SUMS in {one.kind for one in found.guarantee.assumptions}


def test_bytes_are_those_of_the_loop(small):
    for one in small.ranked:
        if one.algorithm not in ("dp-d-sgd", "dp-csgp", "muffliato-sgd"):
            continue
        net, built = weigh("ring:5", one.weights), algorithm(one.algorithm, sigma=1.0, **one.settings)
        sent = sum(played.traffic.bits for played in iterate_rounds(built, net, np.zeros((5, 30)), _silent, rounds=8))
        assert one.bytes_per_node == pytest.approx(sent / 8 / 5)


def test_directed_graphs_leave_what_takes_them():
    found = plan(Question(graph=graph("exponential:6"), **SMALL))
    assert {one.algorithm for one in found.ranked} == {"dp-csgp"}
    assert sum("directed" in one.reason for one in found.refused) > 3


def test_user_level_admits_zero_sum_noise():
    found = plan(Question(graph=graph("ring:5"), **{**SMALL, "participation": "every"}, adjacency="user"))
    zip_dl = next(one for one in found.ranked if one.algorithm == "zip-dl")
    assert zip_dl.error_average < 1e-12 < zip_dl.error_node


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 0}, {"records": 0}, {"dimension": 0}, {"epsilon": -1.0}, {"delta": 2.0}, {"view": "node:7"},
     {"participation": "9x9"}, {"adjacency": "odd"}, {"weights": "odd"}],
)  # fmt: skip
def test_questions_that_make_no_sense_are_refused(wrong):
    with pytest.raises((InputError, Unaccountable)):
        Question(graph=graph("ring:5"), **{**SMALL, **wrong})


def test_the_command_prints_a_table_and_a_document(small, sotto, monkeypatch):
    asked = []

    def planned(question, progress, algorithms):
        asked.append(question)
        return small

    monkeypatch.setattr("sottovoce.planning.planner.plan", planned)
    line = (
        "plan --graph ring:5 --records 20 --rounds 8 --epsilon 2 --participation 2x4 --adjacency record --dimension 30"
    )
    code, out, err = sotto(line)
    assert (code, err) == (0, "")
    assert "Recommended: mafalda has the least predicted error" in out
    assert "The target is met against whoever hears every message and every single node; larger" in out
    assert "Not applicable: d-psgd: it adds no noise" in out
    document = json.loads(sotto(line + " --json")[1])
    assert [replace(question, graph=small.question.graph) for question in asked] == [small.question] * 2
    assert [question.graph.name for question in asked] == ["ring:5"] * 2
    assert document["recommendation"]["algorithm"].startswith(document["ranked"][0]["algorithm"])


def test_more_noise_is_more_error():
    built, net = algorithm("decor", sigma=1.0, sigma_pair=1.0), metropolis("ring:5")
    one, two = (noise_in_models(trace(with_sigma(built, sigma), net, rounds=4)) for sigma in (1.0, 2.0))
    assert two.average == pytest.approx(4 * one.average)
    assert one.node < two.node < 4 * one.node


def test_poisson_batches_are_dealt_into_the_parts_that_suit_correlated_noise_best():
    """Never worse than independent noise, which is one part; the entry says which batches it is about."""
    question = Question(
        graph=graph("complete:3"), rounds=6, epsilon=1.0, delta=1e-5, records=8, dimension=5, adjacency="record",
        participation="poisson:0.5",
    )  # fmt: skip
    plain, dealt = (plan_one(question, name).entry for name in ("dp-d-sgd", "mafalda"))
    assert dealt.settings["batches"] in ("cyclic-poisson:0.5x1", "cyclic-poisson:1.0x2")
    assert dealt.error_node <= plain.error_node * (1 + 1e-6)
    assert dealt.epsilon(1e-5) <= 1.0


def test_sums_that_can_be_solved_for_all_noise_are_accounted_for_in_closed_form(monkeypatch):
    """An exact loss of all sums together takes minutes on hundreds of nodes, and is that of the noisy gradients."""

    def slow(*_):
        raise AssertionError("the sums were accounted for one by one")

    net = metropolis("regular:30,d=4,seed=0")
    system = trace(with_exact_noise(algorithm("secure-gossip", sigma=1.0), net), net, rounds=4)
    seen = observe(system, views.everyone(secrets_of=tuple(range(30))))
    by_filter = worst_case(routes.losses(seen), Participation(), 4)
    monkeypatch.setattr(routes, "_by_matrices", slow)
    assert routes.squared(seen, Participation()) == pytest.approx(by_filter, rel=1e-6)
