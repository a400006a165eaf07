"""Placement: blocks of equal size with fewer edges between them than chance gives, the same each time."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError, dropout, fresh_erdos_renyi, metropolis, push
from sottovoce.distributed.sharded_rows import place_nodes


def cut_edges(net, placement):
    """Directed edges of the first round that run between blocks."""
    owner = np.empty(net.n, dtype=int)
    for rank, block in enumerate(placement):
        owner[block] = rank
    sender, receiver, _ = net.at(0).edges
    return int((owner[sender] != owner[receiver]).sum())


def by_chance(net, ranks, draws=20):
    """Cut edges of random blocks, the mean over draws."""
    rng = np.random.default_rng(0)
    return np.mean([cut_edges(net, tuple(np.array_split(rng.permutation(net.n), ranks))) for _ in range(draws)])


@pytest.mark.parametrize(
    ("spec", "ranks", "least"),
    [
        ("ring:64", 2, 4), ("ring:64", 4, 8), ("path:30", 3, 4), ("grid:8x8", 2, 16), ("torus:8x8", 4, 64),
        ("hypercube:6", 2, 64), ("star:9", 2, 8),
    ],
)  # fmt: skip
def test_the_least_cut_is_found_where_it_is_known(spec, ranks, least):
    assert cut_edges(metropolis(spec), place_nodes(metropolis(spec), ranks)) == least


@pytest.mark.parametrize(
    ("spec", "share"),
    [("geometric:200,r=0.15,seed=3", 0.35), ("regular:200,d=6,seed=0", 0.65), ("erdos-renyi:100,p=0.1,seed=1", 0.85)],
)
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_fewer_edges_are_cut_than_by_chance(spec, share, ranks):
    net = metropolis(spec)
    found = place_nodes(net, ranks)
    assert cut_edges(net, found) < share * by_chance(net, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 11])
def test_blocks_are_all_nodes_once_in_equal_shares(ranks):
    for net in (
        metropolis("ring:11"),
        push("exponential:11"),
        fresh_erdos_renyi(11, 0.4),
        dropout("star:11", rate=0.2),
    ):
        found = place_nodes(net, ranks)
        assert sorted(np.concatenate(found)) == list(range(11))
        sizes = [len(block) for block in found]
        assert max(sizes) - min(sizes) <= 1
        assert all((np.diff(block) > 0).all() for block in found)
        assert [block.tolist() for block in found] == [block.tolist() for block in place_nodes(net, ranks)]


def test_more_ranks_than_nodes_are_refused():
    with pytest.raises(InputError, match="4 processes for 3 nodes"):
        place_nodes(metropolis("path:3"), 4)


def test_large_graphs_are_cut_in_seconds():
    net = metropolis("geometric:3000,r=0.04,seed=1")
    assert cut_edges(net, place_nodes(net, 8)) < 0.2 * by_chance(net, 8, 3)
