"""Directions of the noise that rounding would hide: none is dropped, however small it is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from sottovoce import Graph, account, algorithm, from_matrix, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.exact import routes
from sottovoce.privacy.exact.rank import exact_rank
from sottovoce.privacy.observation import observe
from sottovoce.privacy.row_space import Exact, Modulo, dense, random_prime, times

EVERY = parse_participation("every")

TAILED = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4)])
"""Nodes 0, 1 and 3 hear the same nodes: a gossip step leaves a twentieth of their difference."""


def _tailed():
    return metropolis(Graph.from_edges(TAILED, name="tailed", nodes=5, directed=False))


@pytest.mark.parametrize("gossip_steps", [4, 8, 10, 14, 20])
def test_what_gossip_leaves_of_differences_tells_models_apart_however_small_it_is(gossip_steps):
    """All final models of one round are as many independent combinations as there are nodes, so all gradients show."""
    system = trace(algorithm("muffliato-sgd", sigma=1.0, gossip_steps=gossip_steps), _tailed(), rounds=1)
    found = account(system, "node:4", final_models="all", covering=False)
    for guarantee in found.guarantees:
        assert 1 - 1e-12 < guarantee.mu < 1 + 1e-5


@pytest.mark.parametrize(("net", "gossip_steps"), [("ring:5", 20), ("ring:8", 16)])
def test_sums_of_much_gossip_and_all_models_tell_every_gradient(net, gossip_steps):
    system = trace(algorithm("muffliato-sgd", sigma=1.0, gossip_steps=gossip_steps), metropolis(net), rounds=1)
    view = views.with_final_models(views.node(0, secure_sum=True), "all")
    assert min(guarantee.mu for guarantee in account(system, view, covering=False).guarantees) > 1 - 1e-12


@pytest.mark.parametrize("gossip_steps", [8, 11, 12, 20])
def test_no_view_is_closed_by_what_rounding_hides(gossip_steps):
    """Node 0 reacts to what tells it from nodes 1 and 3, of which node 4 hears nothing."""
    system = trace(algorithm("muffliato-sgd", sigma=1.0, gossip_steps=gossip_steps), _tailed(), rounds=3)
    assert not closedness(system, views.node(4)).closed
    assert account(system, "node:4", covering=False).of(0, "any-training").mu > 1.7


@pytest.mark.parametrize("weight", [1e-3, 1e-10, 1e-12, 1e-14])
def test_a_weight_counts_however_small_it_is(weight):
    """Node 3 is heard by node 2 alone, whose sum less that of node 1 is the noisy gradient of node 3."""
    W = np.zeros((4, 4))
    for one, other, value in ((0, 1, 0.25), (0, 2, 0.25), (2, 3, weight)):
        W[one, other] = W[other, one] = value
    W += np.diag(1 - W.sum(axis=1))
    system = trace(algorithm("dp-d-sgd", sigma=1.0), from_matrix(W), rounds=1)
    found = account(system, views.coalition(1, 2, secure_sum=True), victims=[3], covering=False)
    assert found.mu == pytest.approx(1.0, rel=1e-6)


def test_exact_ranks_are_those_of_the_fractions_that_weights_are_next_to():
    system = trace(algorithm("dp-d-sgd", sigma=0.37), metropolis("path:5"), rounds=2)
    seen = observe(system, views.with_final_models(views.node(0), "all"))
    _, B = seen.dense()
    meant = exact_rank(seen, stored=False)
    assert meant.certain
    assert meant.rank == np.linalg.matrix_rank(B, tol=1e-9) <= exact_rank(seen, stored=True).rank
    assert not meant.uncovered.any()
    bare = trace(algorithm("rss-nb", sigma=1.0), metropolis("ring:5"), rounds=1)
    seen = observe(bare, views.coalition(0, 2, secure_sum=True))
    assert exact_rank(seen, stored=False).uncovered.any() == np.isinf(routes.squared(seen, EVERY)).any()


def test_weights_that_are_stored_may_have_a_larger_rank_than_those_that_are_meant():
    """All final models of a complete graph are one average; four weights of 0.2, taken off one, leave less than 0.2."""
    system = trace(algorithm("muffliato", sigma=1.0), metropolis("complete:5"), rounds=1)
    seen = observe(system, views.with_final_models(views.node(0, secure_sum=True), "all"))
    assert exact_rank(seen, stored=False).rank == 1
    assert exact_rank(seen, stored=True).rank > 1


def test_fractions_stay_where_they_are():
    """In a matrix whose entries all differ, modulo a prime."""
    matrix = np.array([[0.5, 0.0, 0.25], [0.0, 0.125, 0.75], [0.625, 0.375, 0.0]])
    modulo = Modulo(random_prime())
    exact = Exact.near(sparse.csr_array(matrix), Fraction)
    assert np.array_equal(dense(modulo, exact) * 8 % modulo.prime, 8 * matrix)
    rows = np.arange(6).reshape(2, 3)
    assert np.array_equal(times(modulo, rows, exact) * 8 % modulo.prime, rows @ (8 * matrix))
