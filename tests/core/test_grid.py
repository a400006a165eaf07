"""Noise on single messages on a grid: what is sent, what a node keeps, and how far a change of data can move it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce import InputError, NoiseKey, algorithm, dropout, iterate_rounds, metropolis, train, uniform
from sottovoce.core.algorithm import Gossip, Model
from sottovoce.core.exact_gaussians import fine_
from sottovoce.core.grid import message_grid, why_not_exact, with_exact_noise
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.noise import ZeroSum

GRAPHS = ("ring:6", "star:5", "path:4")


def on_grid(net, **settings):
    built = with_exact_noise(algorithm("zip-dl", **{"sigma": 1.5, "step_size": 0.1, **settings}), net, True)
    return built, message_grid(built, net.at(0))


def sources_of(node, degree, D, seed, round):
    """Y of a node's closed neighbourhood, in the order of its receivers."""
    drawn = np.empty((degree, D))
    fine_(NoiseKey.of_seed(seed).stream("edge", [node], round, 0), drawn)
    return drawn


@pytest.mark.parametrize("graph", GRAPHS)
def test_messages_are_the_nearest_multiples_of_model_plus_zero_sum_noise(graph):
    """Noise by the formula of zip-dl's Algorithm 1, from the numbers of the stream in float64."""
    net, D, seed = metropolis(graph), 400, 3
    built, grid = on_grid(net)
    W, start = net.at(0).weights.toarray(), np.random.default_rng(0).standard_normal((net.n, D))
    played = next(
        iterate_rounds(built, net, start, lambda t, x: np.tanh(x), rounds=1, noise_key=NoiseKey.of_seed(seed))
    )
    models = start - 0.1 * np.tanh(start)
    sent = played.steps[0].sent_messages()
    np.testing.assert_array_equal(sent.rows, np.rint(sent.rows / grid.step) * grid.step)
    for node in range(net.n):
        receivers = np.flatnonzero(W[:, node])
        Y, weights = sources_of(node, len(receivers), D, seed, 0), W[receivers, node]
        for place, receiver in enumerate(receivers):
            if receiver != node:
                noise = 0.15 * (Y[place] - weights @ Y / (len(receivers) * W[receiver, node]))
                (message,) = sent.rows[(sent.sender == node) & (sent.receiver == receiver)]
                apart = np.abs(message - models[node] - noise)
                assert apart.max() <= grid.step / 2 + grid.model_step
                assert apart.max() > 0.4 * grid.step


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_a_node_keeps_is_its_model_and_shares_of_messages(graph):
    """The average over the network does not move by a bit, and models are what real arithmetic gives, nearly."""
    net = metropolis(graph)
    built, grid = on_grid(net)
    W, before = net.at(0).weights.toarray(), np.zeros((net.n, 50))
    gradient = np.random.default_rng(1).standard_normal((net.n, 50))
    for played in iterate_rounds(built, net, before, lambda t, x: gradient, rounds=5, noise_key=NoiseKey.of_seed(4)):
        step, models = played.steps[0], played.models
        after_step = np.asarray(step.sent)
        assert np.abs(after_step - (before - 0.1 * gradient)).max() <= 0.51 * grid.model_step
        np.testing.assert_array_equal(models.sum(axis=0), after_step.sum(axis=0))
        sent, expected = step.sent_messages(), after_step.copy()
        for sender, receiver, message in zip(sent.sender, sent.receiver, sent.rows, strict=True):
            expected[receiver] += W[receiver, sender] * message
            expected[sender] -= W[receiver, sender] * message
        assert np.abs(models - expected).max() <= net.n * grid.model_step
        before = models


def test_messages_are_made_some_at_a_time_with_the_same_bits(monkeypatch):
    net = metropolis("erdos-renyi:9,p=0.5,seed=1")
    built, grid = on_grid(net)

    def end():
        return train(built, net, np.zeros((9, 30)), lambda t, x: np.cos(x), rounds=4, noise_key=NoiseKey.of_seed(5))

    whole = end()
    monkeypatch.setattr("sottovoce.core.grid.AT_ONCE", 200)
    assert len(list(grid.blocks(30))) > 4
    edges = np.concatenate([np.stack(block) for block in grid.blocks(30)], axis=1)
    assert edges.shape[1] == len(set(map(tuple, edges.T.tolist()))) == net.at(0).weights.nnz - 9
    np.testing.assert_array_equal(end(), whole)


# --- how far a change can move it ----------------------------------------------------------------------------------


@dataclass
class SameMessages:
    """Inputs of a world in which everybody sees messages that were fixed beforehand."""

    gradients: list[np.ndarray]
    seed: int

    def gradient(self, round, point):
        return self.gradients[round]

    def released(self, rows, noise, round):
        return np.random.default_rng([self.seed, round]).normal(0, 30.0, rows.shape)


def worst_pair(rng, T, n, D):
    """Two streams of gradients of norm 1 that differ at node 0, opposite or nearly so, with all sorts of last bits."""
    towards = rng.standard_normal(D)
    one = [rng.standard_normal((n, D)) for _ in range(T)]
    other = [rows.copy() for rows in one]
    for a, b in zip(one, other, strict=True):
        a[0] = towards + 1e-9 * rng.standard_normal(D)
        b[0] = -towards + 1e-9 * rng.standard_normal(D)
    for rows in (*one, *other):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return one, other


def apart(built, net, T, D, seed):
    """How far two worlds are apart before each round's messages, at node 0 and elsewhere, where both see the same."""
    one, other = worst_pair(np.random.default_rng(seed), T, net.n, D)
    found = []
    loop_states = [start_run(built, net, np.full((net.n, D), 0.3), T)[1] for _ in range(2)]
    for t in range(T):
        played = [
            play_round(built, net, state, SameMessages(stream, seed), t)
            for state, stream in zip(loop_states, (one, other), strict=True)
        ]
        found.append(np.linalg.norm(played[0].steps[0].sent - played[1].steps[0].sent, axis=1))
        loop_states = [now.loop_state for now in played]
    return np.array(found)


@pytest.mark.parametrize("D", [1, 3000])
def test_a_change_of_data_moves_models_by_no_more_than_the_sensitivity_with_rounding(D):
    """Delta is 2: gradients have norm 1. Given the same messages, no other node's model moves at all."""
    net, T = metropolis("star:4"), 40
    built, grid = on_grid(net, sensitivity=2.0, step_size=0.01)
    share = 1.25 * grid.model_step * math.sqrt(D) / 0.02
    assert share <= grid.extra(T)
    for seed in range(3):
        distances = apart(built, net, T, D, seed)
        limits = 0.02 * np.arange(1, T + 1) * (1 + share)
        assert (distances[:, 0] <= limits).all()
        assert (distances[:, 0] > 0.98 * limits).all()
        assert not distances[:, 1:].any()


def test_on_a_coarser_grid_models_pass_that_sensitivity(monkeypatch):
    """The check above can fail."""
    net, T, D = metropolis("star:4"), 10, 3000
    built, grid = on_grid(net, sensitivity=2.0, step_size=0.01)
    limits = 0.02 * np.arange(1, T + 1) * (1 + 1.25 * grid.model_step * math.sqrt(D) / 0.02)
    coarse = replace(grid, model_step=grid.model_step * 2**16)
    monkeypatch.setattr("sottovoce.core.release.message_grid", lambda *_: coarse)
    assert any((apart(built, net, T, D, seed)[:, 0] > limits).any() for seed in range(3))


@pytest.mark.parametrize("sensitivity", [1e-6, 0.3, 2.0, (0.01, 0.5, 2.0, 0.02)])
@pytest.mark.parametrize("step_size", [1e-4, 0.7])
def test_rounding_adds_less_than_a_hundredth_for_a_billion_parameters_and_ten_thousand_rounds(sensitivity, step_size):
    _, grid = on_grid(metropolis("path:4"), sensitivity=sensitivity, step_size=step_size)
    added = 1.25 * grid.model_step * math.sqrt(10**9) / (step_size * np.min(sensitivity))
    assert added < grid.extra(10_000) < 0.005
    assert math.frexp(grid.model_step)[0] == math.frexp(grid.step)[0] == 0.5
    assert 16 <= np.min(sensitivity) * step_size * 1.5 / grid.step < 64


def test_models_stay_where_float64_has_every_multiple():
    net = metropolis("ring:4")
    built, grid = on_grid(net)
    end = train(built, net, np.zeros((4, 1)), lambda t, x: np.full((4, 1), 1e300), rounds=2)
    assert np.abs(end).max() <= grid.largest_model
    multiples = np.array([1.0, 2.0**49 - 1, 2.0**52]) * grid.model_step
    np.testing.assert_array_equal(multiples / grid.model_step, np.rint(multiples / grid.model_step))


# --- who may -------------------------------------------------------------------------------------------------------


class Momentum(Gossip):
    """What a node keeps is not what it had, less what it sent, plus what it got."""

    def absorb(self, state, mixed):
        return Model(1.1 * mixed)


def test_only_what_the_proof_is_about_is_offered_it():
    net, plain = metropolis("ring:6"), algorithm("zip-dl", sigma=1.0)
    assert why_not_exact(plain, net) is None
    assert not with_exact_noise(plain, net).exact_noise, "by default as before"
    assert with_exact_noise(plain, net, "where-possible").exact_noise
    assert not with_exact_noise(plain, net, "where-possible", in_float64=False).exact_noise
    own = Momentum(name="own", noise=plain.noise, requires="symmetric")
    for built, place, reason in (
        (own, net, "on single messages"),
        (replace(plain, gossip_steps=2), net, "on single messages"),
        (algorithm("rss-lb", sigma=1.0), net, "on single messages"),
        (plain, dropout("ring:6", rate=0.3), "receivers may be missing"),
        (algorithm("zip-dl", sigma=(1.0, 0.0, 1.0, 1.0, 1.0, 1.0)), net, "not every node adds noise"),
    ):
        with pytest.raises(InputError, match=reason):
            with_exact_noise(built, place, True)
    with pytest.raises(InputError, match=r'more bits than float32 has; set machine\.precision = "float64"'):
        with_exact_noise(plain, net, True, in_float64=False)


def test_models_that_the_grid_does_not_hold_are_refused():
    net = metropolis("ring:4")
    built, grid = on_grid(net)
    with pytest.raises(InputError, match="models of float32; on its grid they take more bits"):
        train(built, net, np.zeros((4, 2), dtype=np.float32), lambda t, x: x, rounds=1)
    with pytest.raises(InputError, match=r"models that start at .*; its grid reaches to"):
        train(built, net, np.full((4, 2), 2 * grid.largest_model), lambda t, x: x, rounds=1)


def test_weights_that_do_not_cancel_at_the_sender_are_refused():
    net = uniform("star:6")
    own = Gossip(name="own", noise=ZeroSum(zeta=5.0))
    assert "weights that do not sum to 1" in why_not_exact(own, net)
