"""Sums over neighbours: the integers by hand, and figures against all coalitions by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce import InputError, NoiseKey, account, algorithm, iterate_rounds, metropolis, trace, train, uniform
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.topologies import from_matrix


def exact(net, **settings):
    return with_exact_noise(algorithm("secure-gossip", **settings), net)


def pull(round, x):
    return 0.25 * (x - np.arange(len(x))[:, None])


# --- integers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", [uniform("ring:5"), metropolis("grid:3x3"), uniform("complete:4")])
def test_a_round_is_the_weighted_average_of_integers_by_hand(net):
    key, n, D = NoiseKey.of_seed(1), net.n, 6
    ready = exact(net, sigma=1.0, step_size=0.5)
    for played in iterate_rounds(ready, net, np.ones((n, D)), pull, rounds=2, noise_key=key):
        step = played.steps[0]
        grid, W = step.gossip_step.grid, net.at(0).weights.toarray()
        for v in range(n):
            senders = np.flatnonzero(W[v]).tolist()
            common = grid.weights.denominators[v]
            for i in range(D):
                total = sum(round(W[v, u] * common) * round(float(step.sent[u, i]) / grid.step) for u in senders)
                assert step.mixed[v, i] == total * grid.step / common


def test_it_trains_as_gossip_does_up_to_the_grid():
    net, key = uniform("ring:6"), NoiseKey.of_seed(2)
    plain = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0), net)
    x0 = np.zeros((6, 20))
    ours, theirs = (train(it, net, x0, pull, rounds=20, noise_key=key) for it in (exact(net, sigma=1.0), plain))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_receivers_hold_the_average_of_their_neighbours_and_no_single_model():
    net = uniform("ring:5")
    played = next(iterate_rounds(exact(net, sigma=1.0), net, np.zeros((5, 3)), pull, rounds=1))
    step = played.steps[0]
    found = step.received_models(np.array([0, 2]))
    assert found.sender.tolist() == [-1, -1]
    np.testing.assert_allclose(found.rows[0], (step.sent[1] + step.sent[4]) / 2, atol=1e-9)
    np.testing.assert_allclose(found.rows[1], (step.sent[1] + step.sent[3]) / 2, atol=1e-9)


def test_sets_that_are_too_small_are_refused_by_name():
    with pytest.raises(InputError, match="Acciaiuoli gets a sum over Medici; with 1 colluder"):
        trace(algorithm("secure-gossip", sigma=1.0), metropolis("florentine"), rounds=2)
    with pytest.raises(InputError, match="node 0 gets a sum over nodes 1, 4; with 2 colluders"):
        trace(algorithm("secure-gossip", sigma=1.0, colluders=2), uniform("ring:5"), rounds=2)


# --- figures -------------------------------------------------------------------------------------------------------


def brute_force(W, coalition, rounds, *, failed=(), keeps_step=False):
    """mu^2 of every victim for all-ones changes and better, from A and B of a coalition's sums, built by hand.

    `failed` are (round, node) whose set got nothing: the node discards its step, or keeps it, which is the mistake.
    The worst change is bounded from below by signs tried one by one.
    """
    n = len(W)
    G = n * rounds
    rows, x = [], np.zeros((n, 2 * G))
    for t in range(rounds):
        fresh = np.zeros((n, 2 * G))
        for u in range(n):
            fresh[u, t * n + u] = fresh[u, G + t * n + u] = 1.0
        sent = x - fresh
        for v in coalition:
            rows.append(sum(W[v, u] * sent[u] for u in range(n) if u != v))
        after = W @ sent
        for v in range(n):
            if (t, v) in failed:
                after[v] = sent[v] if keeps_step else x[v]
        x = after
    O = np.array(rows)
    hidden = [t * n + u for t in range(rounds) for u in range(n) if u not in coalition]
    A, B = O[:, :G], O[:, G:][:, hidden]
    inverse = np.linalg.pinv(B @ B.T, rcond=1e-11)
    found = {}
    for u in set(range(n)) - set(coalition):
        columns = A[:, [t * n + u for t in range(rounds)]]
        M = columns.T @ inverse @ columns
        alike = (-1e-12 * np.abs(M).max() <= M).all()  # then equal signs are the worst
        signs = [np.ones(rounds)] if alike else itertools.product((1.0, -1.0), repeat=rounds)
        found[u] = max(float(np.array(s) @ M @ np.array(s)) for s in signs)
    return found


GRAPHS = [uniform("ring:6"), uniform("regular:8,d=3,seed=1"), metropolis("grid:3x3"), uniform("complete:5")]


@pytest.mark.parametrize("net", GRAPHS, ids=lambda net: net.name)
def test_figures_are_those_of_brute_force_over_all_receivers(net):
    W, rounds = net.at(0).weights.toarray(), 3
    system = trace(exact(net, sigma=1.0), net, rounds=rounds)
    found = account(system, convex=True)
    for victim in range(net.n):
        worst = max(brute_force(W, (v,), rounds)[victim] for v in range(net.n) if v != victim)
        stated = found.of(victim, "fixed-streams").mu ** 2
        assert worst * (1 - 1e-9) <= stated <= 1.3 * worst
        proven = min(found.of(victim, kind).mu ** 2 for kind in ("any-training", "convex-training"))
        assert proven >= stated * (1 - 1e-9)
    assert (found.coverage.colluders, str(found.view)) == (1, "coalition:any-1")


LARGER = [
    (uniform("erdos-renyi:40,p=0.3,seed=2"), 12),
    (uniform("regular:60,d=4,seed=0"), 10),
    (metropolis("grid:7x7"), 8),
]


@pytest.mark.parametrize(("net", "rounds"), LARGER, ids=str)
def test_figures_on_larger_graphs_are_those_of_dense_matrices(net, rounds):
    """Every victim of one receiver and of two, over more rounds than all signs could be tried for."""
    W = net.at(0).weights.toarray()
    system = trace(exact(net, sigma=1.0), net, rounds=rounds)
    for coalition in ((0,), (3, 5)):
        stated = account(system, f"coalition:{','.join(map(str, coalition))}")
        for victim, wanted in brute_force(W, coalition, rounds).items():
            found = stated.of(victim, "fixed-streams").mu ** 2
            assert wanted * (1 - 1e-7) <= found <= wanted * 1.05 + 1e-9, (victim, coalition)


def test_the_difference_of_two_receivers_sets_is_covered():
    """Receiver 0 gets {2, 3, 4}, receiver 1 gets {2, 3} (and itself to nobody): together they have what 4 sent."""
    W = np.zeros((5, 5))
    W[0, [0, 2, 3, 4]] = 0.25
    W[1, [1, 2, 3]] = 1 / 3
    for v in (2, 3, 4):
        W[v] = 0.2
    net = from_matrix(W, name="overlapping")
    system = trace(exact(net, sigma=1.0), net, rounds=1)
    together = account(system, "coalition:0,1").of(4).mu ** 2
    alone = account(system, "node:0").of(4, "fixed-streams").mu ** 2
    assert together == pytest.approx(1.0, rel=1e-9)  # all of what 4 sent, with its own noise alone
    assert alone == pytest.approx(1 / 3, rel=1e-9)
    assert brute_force(W, (0, 1), 1)[4] <= together * (1 + 1e-9)
    reconstructed = 4 * W[0] - 3 * W[1]
    np.testing.assert_allclose(np.delete(reconstructed, [0, 1]), [0, 0, 1], atol=1e-12)


def test_overlapping_sums_over_rounds_are_priced_for_every_two_receivers():
    net, rounds = uniform("regular:8,d=4,seed=3"), 2
    W = net.at(0).weights.toarray()
    found = account(trace(exact(net, sigma=1.0, colluders=2), net, rounds=rounds))
    for pair in itertools.combinations(range(8), 2):
        for victim, loss in brute_force(W, pair, rounds).items():
            assert loss <= found.of(victim, "fixed-streams").mu ** 2 * (1 + 1e-9)
    assert found.coverage.colluders == 2


def test_who_stands_for_coalitions_that_are_too_many_hears_messages_and_not_their_sums():
    """Between two camps of seven, all sums tell little; a receiver with five of the other camp hears one of two."""
    camp, colluders = 7, 6
    W = np.eye(2 * camp) / (camp + 1)
    W[:camp, camp:] = W[camp:, :camp] = 1 / (camp + 1)
    system = trace(exact(from_matrix(W), sigma=1.0, colluders=colluders), from_matrix(W), rounds=1)
    worst = brute_force(W, (camp, *range(colluders - 1)), 1)[camp - 1]
    assert worst == pytest.approx(1 / 2)
    assert account(system).mu ** 2 >= worst
    assert brute_force(W, range(2 * camp), 1) == {}


def test_starving_a_node_gains_nothing_where_it_discards_its_step():
    """Sets of the victim fail in all rounds but the last. A node that kept its steps would show them all at once."""
    net, rounds = uniform("complete:5"), 6
    W = net.at(0).weights.toarray()
    stated = account(trace(exact(net, sigma=1.0), net, rounds=rounds), "node:0").of(1).mu ** 2
    for length in range(1, rounds):
        starved = [(t, 1) for t in range(length)]
        assert brute_force(W, (0,), rounds, failed=starved)[1] <= stated * (1 + 1e-9)
    starved = [(t, 1) for t in range(rounds - 1)]
    assert brute_force(W, (0,), rounds, failed=starved, keeps_step=True)[1] > 1.5 * stated


def test_on_the_complete_graph_the_figure_is_a_proof_and_below_that_of_gossip():
    net = uniform("complete:6")
    found = account(trace(exact(net, sigma=1.0), net, rounds=4))
    assert (found.kind.value, found.mu**2) == ("any-training", pytest.approx(4 / 5, rel=1e-9))
    assert "rounding of floating-point numbers is not covered" in str([str(one) for one in found.assumptions])


def test_elsewhere_any_training_has_the_figure_of_gossip():
    net = uniform("ring:6")
    found = account(trace(exact(net, sigma=1.0), net, rounds=4))
    assert (found.kind.value, found.mu**2) == ("any-training", pytest.approx(4.0, rel=1e-9))
    assert account(trace(exact(net, sigma=1.0), net, rounds=4), convex=True).mu ** 2 < 3.3
