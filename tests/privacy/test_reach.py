"""Which gradients reach a view: against runs whose nodes react, and against clipped growth where noise is alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce import account, algorithm, dropout, fresh_erdos_renyi, iterate_rounds, metropolis, trace, views
from sottovoce.core.noise import Independent
from sottovoce.core.participation import parse_participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.topologies import Changing
from sottovoce.privacy.absorption import couple
from sottovoce.privacy.absorption_policy import UNBOUNDED, late_cost, may_gain
from sottovoce.privacy.exact.deflation import deflated
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import observe
from sottovoce.privacy.reactions import reaching_gradients
from sottovoce.privacy.views import with_final_models

ROUNDS = 5
EVERY = parse_participation("every")


def heard_in_a_run(built, net, attacker, changed):
    """What a node receives in a run whose nodes react to all they know, with one gradient changed; or none."""

    def gradient(round, x):
        grad = np.tanh(3 * x + np.arange(net.n)[:, None])
        if changed is not None and round == changed[0]:
            grad[changed[1]] += 0.7
        return grad

    heard = []
    start = np.zeros((net.n, 1))
    for played in iterate_rounds(built, net, start, gradient, rounds=ROUNDS, noise_key=NoiseKey.of_seed(1)):
        for step in played.steps:
            senders = np.flatnonzero(step.gossip_step.mixing.weights[[attacker]].toarray()[0])
            heard += [np.asarray(step.sent)[sender] for sender in senders if sender != attacker]
    return np.concatenate(heard)


@pytest.mark.parametrize(
    "net", [metropolis("grid:2x5"), dropout("ring:7", rate=0.3, seed=3), fresh_erdos_renyi(7, 0.25, seed=1)]
)
def test_what_does_not_reach_a_view_changes_no_message_whatever_nodes_do(net):
    built = algorithm("dp-d-sgd", sigma=1.0, step_size=0.3)
    observation = observe(trace(built, net, rounds=ROUNDS), views.node(0))
    reaching, plain = reaching_gradients(observation), heard_in_a_run(built, net, 0, None)
    assert not reaching.all()
    for round in range(ROUNDS):
        for number, victim in enumerate(observation.victims):
            changed = heard_in_a_run(built, net, 0, (round, victim))
            assert reaching[round, number] == (not np.array_equal(changed, plain)), (round, victim)


def test_equal_rounds_are_followed_until_nothing_changes_any_more():
    """On a path of nine, k hops take k rounds to the view, and from then on every round is reached."""
    observation = observe(trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:9"), rounds=40), views.node(0))
    hops = np.arange(1, 9)
    last = 40 - np.maximum(hops, 1)  # the last round whose gradient arrives
    np.testing.assert_array_equal(reaching_gradients(observation), np.arange(40)[:, None] <= last)


@pytest.mark.parametrize("spec", ["ring:12", "florentine", "star:6", "grid:3x4"])
@pytest.mark.parametrize("growth", [2.0, 1e100])
def test_clipped_growth_gains_nothing_where_noise_and_rounds_are_alike(spec, growth):
    net = metropolis(spec)
    system = trace(algorithm("dp-d-sgd", sigma=1.5), net, rounds=6)
    rounds, victims = couple(system, views.node(0)), np.arange(1, net.n)
    assert not may_gain(rounds, net.n - 1, growth)
    result = account(system, "node:0", kinds=["any-training"])
    found = [result.of(int(victim)).mu ** 2 for victim in victims]
    np.testing.assert_allclose(found, late_cost(rounds, victims, EVERY, growth), rtol=1e-12)


@pytest.mark.parametrize(
    "net", [metropolis("grid:3x4"), metropolis("path:9"), fresh_erdos_renyi(7, 0.25, seed=1)], ids=str
)
@pytest.mark.parametrize("final", ["none", "all"])
@pytest.mark.parametrize("participation", ["every", "2x3"])
def test_growth_without_bound_gains_nothing_where_all_who_are_heard_step(net, final, participation):
    """So it is not computed for single records. No node's noise is as large as another's here."""
    scheme = parse_participation(participation)
    system = trace(algorithm("dp-d-sgd", sigma=np.linspace(3.0, 0.5, net.n)), net, rounds=6)
    view, victims = with_final_models(views.node(0), final), np.arange(1, net.n)
    rounds, reaching = couple(system, view), reaching_gradients(observe(system, view))
    assert final == "all" or not reaching.all()
    assert not may_gain(rounds, len(victims), UNBOUNDED)
    given = loss_given_noisy_gradients(system, view, victims, scheme, reaching)
    np.testing.assert_allclose(late_cost(rounds, victims, scheme, UNBOUNDED), given, rtol=1e-12)


def test_growth_without_bound_may_gain_where_somebody_who_is_heard_takes_no_step():
    dropped = trace(algorithm("dp-d-sgd", sigma=1.0), dropout("ring:7", rate=0.3, seed=3), rounds=6)
    assert may_gain(couple(dropped, views.node(0)), 6, UNBOUNDED)
    system = trace(algorithm("dp-d-sgd", sigma=np.array([1.0, 9.0, 1.0])), metropolis("path:3"), rounds=3)
    still = [replace(one, jump=np.array([0.0, 0.0, 1.0])) for one in couple(system, views.node(0))]
    assert may_gain(tuple(still), 2, UNBOUNDED)
    assert late_cost(tuple(still), np.array([2]), EVERY, UNBOUNDED)[0] < 3


def test_clipped_growth_helps_behind_a_neighbour_with_much_noise():
    sigma = np.array([1.0, 100.0, 1.0, 1.0])
    system = trace(algorithm("dp-d-sgd", sigma=sigma), metropolis("path:4"), rounds=4)
    result = account(system, "node:0")
    assert result.of(2, "any-training").mu < 0.2
    assert may_gain(couple(system, views.node(0)), 3, 2.0)
    assert not may_gain(couple(system, views.node(0)), 10**7, 2.0)


def test_all_nodes_react_those_that_are_not_asked_about_too():
    system = trace(algorithm("dp2sgd", sigma=1.0), metropolis("path:6"), rounds=6)
    whole = account(system, "node:0", kinds=["any-training"])
    for victim in range(1, 6):
        alone = account(system, "node:0", kinds=["any-training"], victims=[victim])
        assert alone.of(victim).mu == whole.of(victim).mu


def test_victims_far_away_have_more_than_two_dozen_last_rounds_for_nothing():
    result = account(trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:60"), rounds=60), "node:0", victims=[50])
    assert result.of(50, "any-training").mu ** 2 == pytest.approx(60 - 49)


def test_a_gradient_without_noise_in_one_round_is_a_loss_that_is_infinite():
    quiet, loud = (metropolis(net).at(0) for net in ("path:3", "complete:3"))

    @dataclass(frozen=True)
    class Sometimes(Independent):
        def local(self, mixing):
            return Independent(0.0 if mixing is quiet else 1.0).local(mixing)

    net = Changing(lambda round, step: quiet if round == 1 else loud, n=3)
    built = replace(algorithm("dp-d-sgd", sigma=1.0), noise=Sometimes(1.0))
    M_VTT = deflated(observe(trace(built, net, rounds=3), views.node(0))).losses
    assert np.isinf(M_VTT).all(axis=(1, 2)).tolist() == [True, False]  # node 2 is not heard in that round
    assert np.isfinite(M_VTT[1]).all()
