"""A token that walks: figures by hand, and a walk that is a chain of Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce import account, algorithm, graph, trace, train, walking
from sottovoce.core.walks import Walk
from sottovoce.errors import InputError


def figures(net, rounds, view, kind):
    found = account(trace(algorithm("dp-d-sgd", sigma=2.0), net, rounds=rounds), view, convex=True)
    return [found.of(victim, kind).mu for victim in range(net.n) if str(victim) not in view]


def test_each_step_on_the_way_hides_those_before():
    """A victim k steps before node 0 is hidden by k draws of noise, of sizes that all do the same."""
    net = walking("ring:6", "walking,route=1--2--3--4--5--0")
    hidden = [1 / (2 * math.sqrt(k)) for k in (5, 4, 3, 2, 1)]
    assert figures(net, 5, "node:0", "convex-training") == pytest.approx(hidden, rel=2e-3)
    found = figures(net, 5, "node:0", "convex-training")
    assert all(mu >= least * (1 - 1e-9) for mu, least in zip(found, hidden, strict=True))
    assert figures(net, 5, "node:0", "any-training") == pytest.approx([0.5] * 5)


def test_everyone_sees_every_visit():
    net = walking("complete:7", "walking,coin=3")
    visits = np.bincount([net_holder(net, round) for round in range(40)], minlength=7)
    assert figures(net, 40, "everyone", "any-training") == pytest.approx(list(np.sqrt(visits) / 2))


def net_holder(net, round):
    active, weights = net.at(round).active, net.at(round).weights
    receiver = int(np.flatnonzero(weights.diagonal() == 0)[0])
    sender = int(weights.indices[weights.indptr[receiver]])
    assert sorted(np.flatnonzero(active)) == sorted((sender, receiver))
    return sender


def test_exact_losses_lie_below_the_bound_on_any_walk():
    for coin in range(2):
        net = walking("complete:6", f"walking,coin={coin}")
        exact, bound = (figures(net, 30, "node:0", kind) for kind in ("fixed-streams", "convex-training"))
        seen = figures(net, 30, "node:0", "any-training")
        assert all(a <= b * (1 + 1e-9) <= c * (1 + 1e-6) for a, b, c in zip(exact, bound, seen, strict=True))
        assert sum(exact) < 0.9 * sum(seen)


def test_the_token_collects_the_steps_of_its_holders():
    net = walking("ring:4", "walking,route=0--1--2--3")
    end = train(
        algorithm("d-psgd", step_size=1.0), net, np.zeros((4, 1)), lambda round, x: np.array([[1.0], [10], [100], [0]]),
        rounds=3,
    )  # fmt: skip
    assert end.ravel().tolist() == [-1.0, -11.0, -111.0, -111.0]


@pytest.mark.parametrize("settings", ["walking,route=0--2", "walking,route=0", "walking,coin=-1", "walking,turn=1"])
def test_routes_that_are_none_are_refused(settings):
    with pytest.raises(InputError):
        walking("ring:5", settings)


def test_a_walk_that_cannot_go_on_is_refused():
    walk = Walk(graph("edges:0->1,1->2"))
    assert [walk.holder(round) for round in range(3)] == [0, 1, 2]
    with pytest.raises(InputError):
        walk.holder(3)
