"""Unannounced dropout: what was sent to a node that takes no part still arrives at its machine.

A and B of the tests are made here, message by message, from the rules of the algorithms.
"""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import account, algorithm, dropout, trace
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import node


def exact_mu(A, B):
    """Of one value with these coefficients, told in messages `A x + B z`: infinite where noise does not cover it."""
    basis, sizes, _ = np.linalg.svd(B, full_matrices=False)
    kept = basis[:, sizes > 1e-12 * sizes[0]]
    inside = kept.T @ A
    if np.linalg.norm(A - kept @ inside) > 1e-9 * np.linalg.norm(A):
        return np.inf
    return float(np.linalg.norm(inside / sizes[sizes > 1e-12 * sizes[0]]))


def gossip_mus(net, rounds, members, sigma, gossip_steps=1):
    """mu of each victim whose gradients are fixed streams: A and B of all that left a neighbour for a member."""
    n = net.n
    state_g, state_z = np.zeros((n, rounds * n)), np.zeros((n, rounds * n))
    seen_g, seen_z = [], []
    for t, k in np.ndindex(rounds, gossip_steps):
        mixing = net.at(t, k)
        W = mixing.weights.toarray()
        planned = W if mixing.planned is None else mixing.planned.toarray()
        active = np.ones(n, dtype=bool) if mixing.active is None else mixing.active
        for v in np.flatnonzero(active) if k == 0 else ():
            state_g[v, t * n + v] -= 1.0
            state_z[v, t * n + v] -= sigma
        for v in np.flatnonzero(active):
            if v not in members and any(planned[a, v] != 0 for a in members):
                seen_g.append(state_g[v].copy())
                seen_z.append(state_z[v].copy())
        state_g, state_z = W @ state_g, W @ state_z
    G, Z = np.array(seen_g), np.array(seen_z)
    hidden = [column for column in range(rounds * n) if column % n not in members]
    found = {}
    for victim in set(range(n)) - set(members):
        A = G[:, victim::n]
        M = A.T @ np.linalg.pinv(Z[:, hidden] @ Z[:, hidden].T, rcond=1e-13) @ A
        found[victim] = float(np.sqrt(M.sum()))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("members", [(0,), (0, 3)])
def test_members_that_take_no_part_hear_what_was_sent_to_them(seed, members):
    net = dropout("ring:6", rate=0.4, seed=seed)
    system = trace(algorithm("dp-d-sgd", sigma=1.5, step_size=1.0), net, rounds=4)
    found = account(system, "coalition:" + ",".join(map(str, members)) if len(members) > 1 else "node:0")
    for victim, least in gossip_mus(net, 4, members, 1.5).items():
        assert least * (1 - 1e-9) <= found.of(victim, "fixed-streams").mu


def zip_dl_round(W, active, zeta):
    """Every message of ZIP-DL's first round from active nodes: (sender, receiver, coefficients of values, of Y)."""
    n = len(W)
    places = {(a, v): k for k, (a, v) in enumerate((a, v) for a in range(n) for v in range(n) if W[v, a] != 0)}
    messages = []
    for a in np.flatnonzero(active):
        around = [v for v in range(n) if W[v, a] != 0]
        for v in around:
            if v != a:
                noise = np.zeros(len(places))
                noise[places[a, v]] += zeta
                for j in around:
                    noise[places[a, j]] -= zeta * W[j, a] / (len(around) * W[v, a])
                messages.append((a, v, np.eye(n)[a], noise))
    return messages, places


@pytest.mark.parametrize("seed", range(8))
def test_zip_dl_messages_to_members_that_take_no_part_count(seed):
    net = dropout("complete:5", rate=0.4, seed=seed)
    mixing = net.at(0)
    members = (0, 1)
    system = trace(algorithm("zip-dl-averaging", sigma=2.0), net, rounds=1)
    found = account(system, "coalition:0,1")
    messages, places = zip_dl_round(mixing.planned.toarray(), mixing.active, 2.0)
    hidden = [k for (a, _), k in places.items() if a not in members]
    heard = [message for message in messages if message[1] in members and message[0] not in members]
    for victim in range(2, 5):
        if heard:
            A, B = np.array([g[victim] for _, _, g, _ in heard]), np.array([z for *_, z in heard])[:, hidden]
            assert found.of(victim, "fixed-streams").mu == pytest.approx(exact_mu(A, B), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_coalition_learns_less_than_its_members(seed):
    net = dropout("ring:7", rate=0.4, seed=seed)
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=5)
    both, one = account(system, "coalition:0,3", convex=True), account(system, "node:0", convex=True)
    for victim in (1, 2, 4, 5, 6):
        assert one.of(victim, "fixed-streams").mu <= both.of(victim, "fixed-streams").mu * (1 + 1e-9)
        assert both.of(victim, "fixed-streams").mu <= both.of(victim, "convex-training").mu * (1 + 1e-6)


@pytest.mark.parametrize("gossip_steps", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_are_silent_while_others_gossip_several_times(seed, gossip_steps):
    """What is heard in later gossip steps is made of first messages only where all nodes send them."""
    net = dropout("ring:6", rate=0.3, seed=seed, announced=True)
    system = trace(algorithm("muffliato-sgd", sigma=1.5, step_size=1.0, gossip_steps=gossip_steps), net, rounds=3)
    assert any(net.at(t, 0).active is not None and not net.at(t, 0).active.all() for t in range(3))
    M_VTT = routes.losses(observe(system, node(0)))
    for M, (_, exact) in zip(M_VTT, sorted(gossip_mus(net, 3, (0,), 1.5, gossip_steps).items()), strict=True):
        assert np.sqrt(M.sum()) == pytest.approx(exact, rel=1e-6, abs=1e-9)
