"""Rounds that differ, and victims who are asked about alone: what holds for some does not stand for all."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import account, algorithm, from_matrix, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.core.topologies import Changing
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients, matrices_given_noisy_gradients
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case

EVERY = parse_participation("every")


def changing(*graphs):
    nets = [metropolis(graph) for graph in graphs]
    return Changing(lambda round, step: nets[round % len(nets)].at(0), n=nets[0].n)


def plain(net, rounds):
    return trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=rounds)


@pytest.mark.parametrize("graphs", [("path:5", "ring:5", "path:5"), ("ring:5", "path:5", "path:5")])
def test_a_round_between_equal_ones_counts(graphs):
    seen = observe(plain(changing(*graphs), 3), views.node(0))
    white = routes.whitened(seen).signal_KTV
    np.testing.assert_allclose(routes.losses(seen), np.einsum("ksv,ktv->vst", white, white), rtol=1e-7, atol=1e-9)


def test_a_view_that_is_closed_in_its_first_round_may_open_later():
    assert closedness(plain(changing("complete:4", "complete:4"), 4), views.node(0)).closed
    assert not closedness(plain(changing("complete:4", "path:4"), 4), views.node(0)).closed


ONE_WAY = from_matrix(np.array([[1, 0, 0, 0], [1 / 3, 1 / 3, 0, 1 / 3], [0, 0.5, 0.5, 0], [0, 0, 0, 1.0]]))
"""Nodes 0 and 3 hear nobody, node 1 hears both, and node 2 hears node 1."""

CASES = [
    *((metropolis(net), view) for net in ("path:4", "star:5", "ring:5", "complete:4")
      for view in (views.node(0, secure_sum=True), views.coalition(0, 3, secure_sum=True), views.node(1))),
    (ONE_WAY, views.eavesdropper((0, 1), (1, 2))),
]  # fmt: skip


@pytest.mark.parametrize(("net", "view"), CASES, ids=str)
def test_one_victim_has_the_figures_that_it_has_among_all(net, view):
    """Also where another node reacts: of node 0 on one-way edges all is heard, but node 1 hears node 3, too."""
    system = plain(net, 4)
    together = account(system, view, convex=True, covering=False)
    for one in together.guarantees:
        alone = account(system, view, victims=[one.victim], convex=True, covering=False)
        assert alone.of(one.victim, one.kind.value).mu == pytest.approx(one.mu, rel=1e-6)
        assert len(alone.guarantees) == sum(other.victim == one.victim for other in together.guarantees)
        observation = observe(system, view, victims=[one.victim])
        assert closedness(system, view, observation).closed == closedness(system, view).closed


def test_matrices_of_correlated_noise_cost_what_its_loss_says():
    built = algorithm("anti-pgd", sigma=0.7)
    system = trace(built, metropolis("ring:4"), rounds=5)
    victims = np.array([0, 2])
    M_VTT = matrices_given_noisy_gradients(system, views.everyone(), victims)
    C = np.tril(np.ones((5, 5)))  # what it adds are differences
    np.testing.assert_allclose(M_VTT[1], C.T @ C / 0.7**2, rtol=1e-12)
    costs = [float(worst_case(M[None], EVERY, 5)[0]) for M in M_VTT]
    assert costs == pytest.approx(loss_given_noisy_gradients(system, views.everyone(), victims, EVERY))


def test_nothing_is_exactly_nothing_also_where_others_have_a_bound():
    found = account(plain(metropolis("path:6"), 2), "node:0", participation="shuffle:2", adjacency="record")
    assert found.of(1, "fixed-streams").figure is Figure.BOUND
    far = found.of(5, "fixed-streams")
    assert (far.mu, far.figure) == (0.0, Figure.EXACT)
