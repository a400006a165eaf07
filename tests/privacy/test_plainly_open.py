"""Views that structure alone shows to be open: never one that is closed, and most views of single nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from sottovoce import Coordinate, algorithm, metropolis, trace, views
from sottovoce.privacy.closedness import closedness, is_plainly_open
from sottovoce.privacy.observation import observe
from sottovoce.privacy.reactions import reaching_gradients
from sottovoce.privacy.views import with_final_models
from tests.cases import DIMENSION, ROUNDS, cases
from tests.selection import rest_slow

PLACES = ("path:6", "star:6", "complete:5", "grid:2x4", "erdos-renyi:9,p=0.4,seed=2", "florentine")


def plainly_open(system, view):
    seen = observe(system, view)
    return is_plainly_open(seen, reaching_gradients(seen))


def some_views(n):
    """Single nodes, with and without models; two nodes together; a tapped edge; all messages."""
    single = [views.node(a) for a in range(n)]
    models = [with_final_models(views.node(0), which) for which in ("average", "all")]
    sums = [views.node(1, secure_sum=True), views.coalition(0, 2, secure_sum=True)]
    return [*single, *models, *sums, views.coalition(0, 2), views.everyone()]


@pytest.mark.parametrize("case", rest_slow(case for case in cases() if case.algorithm.compression.linear))
def test_no_closed_view_is_called_open(case):
    """Over all algorithms: `closedness` decides by linear algebra, with members' own messages counted as seen."""
    system = trace(case.algorithm, case.topology, rounds=ROUNDS, coordinate=Coordinate(1, DIMENSION))
    for view in some_views(case.topology.n):
        if plainly_open(system, view):
            status = closedness(system, view)
            assert not status.closed, view
            assert status.reason


@pytest.mark.parametrize("place", PLACES)
def test_views_of_single_nodes_are_decided_by_structure(place):
    """One gossip step, noise of each node's own: a view is open exactly if somebody whom it does not hear adds any."""
    net = metropolis(place)
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=5)
    for view in some_views(net.n):
        if not view.secure_sum:
            assert plainly_open(system, view) is not closedness(system, view).closed, view


def test_one_round_has_no_reactions():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:4"), rounds=1)
    assert not plainly_open(system, views.node(0))


def test_a_node_that_reaches_nobody_opens_no_view():
    """Nodes 1 and 2 add no noise, and what node 3 makes of its own does not come to node 0 in two rounds."""
    quiet = trace(algorithm("dp-d-sgd", sigma=[1.0, 0.0, 0.0, 1.0]), metropolis("path:4"), rounds=2)
    assert not plainly_open(quiet, views.node(0))
    longer = trace(algorithm("dp-d-sgd", sigma=[1.0, 0.0, 0.0, 1.0]), metropolis("path:4"), rounds=4)
    assert plainly_open(longer, views.node(0))


def test_points_in_which_noise_may_cancel_are_left_to_linear_algebra():
    """On a path of three, states 1 and 2 hold one and two thirds of node 2's noise, and `2 x_1 - x_2` none of it."""
    seen = observe(trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:3"), rounds=3), views.node(0))
    reaching, step = reaching_gradients(seen), seen.steps[0]
    assert is_plainly_open(seen, reaching)
    point = sparse.csr_array(np.tile([0.0, 2.0, -1.0], (3, 1)))
    np.testing.assert_allclose((point @ step.out.noise).toarray()[:, 1], 0.0, atol=1e-15)
    assert not is_plainly_open(replace(seen, steps=(replace(step, point=point),) * 3), reaching)
