"""What the round loop keeps of a node that is away."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce import algorithm, dropout, iterate_rounds
from sottovoce.core import arrays
from sottovoce.core.compression import parse_compression
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows

NET = dropout("ring:6", rate=0.4, seed=5)
AWAY = ~NET.at(0).active
LARGE = np.finfo(np.float32).max


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_node_that_is_away_keeps_its_model_whatever_its_step_would_have_been(kind):
    x0 = np.zeros((6, 2), dtype=np.float32)
    x0[AWAY] = LARGE
    gradient = np.where(AWAY[:, None], -x0, 0)
    played = iterate_rounds(
        algorithm("d-psgd", step_size=2.0), NET, kind(x0), lambda round, x: kind(gradient), rounds=1
    )
    with np.errstate(over="ignore"):
        after = np.asarray(next(played).models)
    assert (after[AWAY] == LARGE).all()
    assert (after[~AWAY] == 0).all()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_node_that_is_away_with_infinity_has_it_still(kind):
    x0 = np.zeros((6, 2), dtype=np.float32)
    x0[AWAY] = np.inf
    played = iterate_rounds(algorithm("d-psgd"), NET, kind(x0), lambda round, x: kind(0 * gradient), rounds=1)
    gradient = np.zeros((6, 2), dtype=np.float32)
    after = np.asarray(next(played).models)
    assert np.isposinf(after[AWAY]).all()
    assert (after[~AWAY] == 0).all()


def test_rows_of_several_processes_are_chosen_with_what_is_known_of_other_nodes():
    shard = NodeShard((np.array([0, 2]), np.array([1, 3])), 0)
    new, old = (ShardedRows(shard, torch.full((4, 1), value), np.array([3, 1])) for value in (torch.inf, 1.0))
    chosen = arrays.where(np.array([True, False, False, True]), new, old)
    assert chosen.rows.ravel().tolist() == [torch.inf, 1.0, torch.inf, 1.0]


def test_a_coordinate_that_is_not_sent_is_zero_whatever_it_is():
    operator = parse_compression("rand:0.5")
    rows = np.full((1, 8), np.inf)
    sent = operator.apply(rows, [np.random.default_rng(0)])
    assert sorted(sent.ravel().tolist()) == [0.0] * 4 + [np.inf] * 4
