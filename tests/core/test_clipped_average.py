"""Averages that withstand liars: what they compute, what they cost in figures, and where they are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sottovoce import NoiseKey, account, algorithm, from_matrix, metropolis, parse_experiment, trace, train
from sottovoce.core.algorithm import Gossip
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.mixing import clipped_average
from sottovoce.core.topologies import Changing
from sottovoce.core.transport import InProcess, WithLiars
from sottovoce.errors import InputError, Unaccountable
from sottovoce.ledger.payloads import Place
from sottovoce.privacy.views import everyone, parse_view
from sottovoce.run.build import build_accountant
from sottovoce.tracing.policy import trace_possible
from tests.federation.members import Federation
from tests.federation.memory_links import Faults, MemoryNetwork

RING = metropolis("ring:6")
CLIPPED = {"sigma": 2.0, "aggregation": "clipped:0.3"}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_within_the_radius_it_is_the_average(kind):
    rows = np.random.default_rng(0).standard_normal((6, 50)).astype(kind)
    W = RING.at(0).weights
    found = clipped_average(W, rows, rows, radius=100.0)
    assert found.dtype == kind
    np.testing.assert_allclose(found, W @ rows, rtol=0, atol=1e-5 if kind is np.float32 else 1e-14)


@pytest.mark.parametrize("lie", [1e30, -1e30, np.inf, np.nan])
def test_nobody_moves_a_node_further_than_its_weight_times_the_radius(lie):
    rows = np.random.default_rng(0).standard_normal((6, 50))
    honest = clipped_average(RING.at(0).weights, rows, rows, radius=0.5)
    told = rows.copy()
    told[3] = lie
    moved = np.linalg.norm(clipped_average(RING.at(0).weights, rows, told, radius=0.5) - honest, axis=1)
    weight = RING.at(0).weights.toarray()[:, 3]
    assert (moved <= 2 * 0.5 * weight + 1e-12).all()
    assert moved[0] == 0


def figures(system, view, victim):
    """What is claimed about a victim, by kind."""
    return {str(one.kind): one.mu for one in account(system, view).guarantees if one.victim == victim}


UNHEARD, HEARD = (
    from_matrix(W).at(0)
    for W in ([[0, 0, 1], [0, 0.5, 0.5], [0, 0.5, 0.5]], [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
)


def test_a_node_without_weight_for_itself_still_stands_on_its_own_noisy_step():
    """It ends a radius away from a neighbour, on its own side. Nobody hears it in the first round."""
    net = Changing(lambda round, step: HEARD if round else UNHEARD, n=3)
    built = algorithm("dp-d-sgd", sigma=1.0, step_size=1e4, aggregation="clipped:1.0")

    def side(value):
        given = np.zeros((3, 4000))
        given[0] = value
        end = train(built, net, 0 * given, lambda round, x: given, rounds=1, noise_key=NoiseKey.of_seed(3))
        return np.sign(end[0] - end[1]).mean()

    assert abs(side(10.0) - side(0.0)) > 0.5
    assert account(trace_possible(built, net, rounds=1), final_models="all").of(0).mu == pytest.approx(1.0)
    assert account(trace_possible(built, net, rounds=2)).of(0).mu == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("name", ["dp-d-sgd", "muffliato-sgd"])
def test_figures_given_all_noisy_gradients_stand_and_others_are_refused(name):
    clipped, plain = (
        trace_possible(algorithm(name, **settings), RING, rounds=10) for settings in (CLIPPED, {"sigma": 2.0})
    )
    for view in (everyone(), parse_view("node:0")):
        assert figures(clipped, view, 3) == {
            "any-training": pytest.approx(figures(plain, everyone(), 3)["any-training"])
        }
    assert figures(plain, parse_view("node:0"), 3).keys() > {"any-training"}, "exact and convex kinds are left out"
    with pytest.raises(Unaccountable, match="not linear"):
        trace(algorithm(name, **CLIPPED), RING, rounds=10)


@pytest.mark.parametrize("aggregation", ["median", "clipped", "clipped:0", "clipped:-1", "clipped:nan", "clipped:inf"])
def test_what_is_no_rule_is_refused(aggregation):
    with pytest.raises(InputError):
        algorithm("dp-d-sgd", sigma=1.0, aggregation=aggregation)


def test_messages_that_are_noisy_only_on_their_way_are_refused():
    """One's own value has no such noise, and whoever compares with it would tell what it is."""
    on_edges = algorithm("zip-dl", sigma=1.0)
    lossy = Gossip(name="mine", noise=on_edges.on(RING).noise, radius=1.0)
    with pytest.raises(Unaccountable, match="noisy before it is sent"):
        list(iterate_rounds(lossy, RING, np.zeros((6, 2)), lambda round, x: x, rounds=1))


@pytest.mark.parametrize("name", ["dp-d-sgd", "muffliato-sgd"])
def test_members_compute_what_a_simulation_does(name):
    more = {"gossip_steps": 2} if name == "muffliato-sgd" else {}
    members = Federation(algorithm(name, **CLIPPED, step_size=0.1, **more), RING, 4)
    ends = members.run()
    assert torch.equal(torch.cat([ends[one] for one in range(6)]), members.simulated())
    plain = Federation(algorithm(name, sigma=2.0, step_size=0.1, **more), RING, 4)
    assert (plain.simulated() - members.simulated()).abs().max() > 1e-3


def test_who_is_missing_moves_nobody():
    method = algorithm("dp-d-sgd", **CLIPPED, step_size=0.1)
    members = Federation(method, RING, 2, network=MemoryNetwork(Faults().drop(2, 3, Place(1, 0))))
    ends = members.run()
    whole = members.simulated()
    assert [torch.equal(ends[one][0], whole[one]) for one in range(6)] == [True] * 3 + [False] + [True] * 2
    assert (ends[3][0] - whole[3]).norm() <= 0.3 / 3 + 1e-12


# --- liars -----------------------------------------------------------------------------------------------------------


def ends(method, transport):
    """Where nodes end that all want to be at 1."""
    *_, last = iterate_rounds(
        method, metropolis("complete:8"), np.zeros((8, 20)), lambda round, x: x - 1.0, rounds=60, transport=transport
    )
    return last.models


@pytest.mark.parametrize("lie", [{"factor": 1000.0}, {"constant": 50.0}, {"factor": -5.0}])
def test_liars_ruin_an_average_and_move_a_clipped_one_a_little(lie):
    liars = WithLiars(8, liars=(2, 5), **lie)
    plain, clipped = (Gossip(name="mine", step_size=0.2, radius=radius) for radius in (np.inf, 0.1))
    true = ends(plain, InProcess(8))
    assert np.abs(ends(clipped, InProcess(8)) - true).max() < 0.01
    assert np.abs(ends(plain, liars) - true).max() > 0.5
    assert np.abs(ends(clipped, liars) - true).max() < 0.15


def experiment(**adversaries):
    return parse_experiment({
        "name": "lied-to", "topology": {"graph": "ring:6"},
        "training": {"rounds": 3, "clip": "per-example", "bound": 1.0},
        "algorithm": {"name": "dp-d-sgd", "sigma": 2.0}, "model": {"name": "softmax"}, "adversaries": adversaries,
    })  # fmt: skip


def test_with_liars_only_what_holds_whatever_is_heard_is_claimed():
    accountant = build_accountant(experiment(nodes=[4], poison="scale:1000"))
    for view in (everyone(), parse_view("node:0")):
        assert figures(accountant.system, view, 2) == {"any-training": pytest.approx(np.sqrt(3) / 2.0, rel=1e-6)}


@pytest.mark.parametrize(
    "adversaries",
    [{"nodes": [6]}, {"nodes": ["Hill"]}, {"nodes": [1], "poison": "sign-flip"}],
)
def test_liars_that_are_not_there_or_lies_that_are_not_known_are_refused(adversaries):
    with pytest.raises(InputError):
        build_accountant(experiment(**adversaries))
