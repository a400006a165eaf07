"""Partitions: laws for every kind, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.learning.datasets import load
from sottovoce.learning.partitioning import partition

KINDS = ("iid", "dirichlet:0.2", "dirichlet:100", "user", "writer")


@pytest.fixture(scope="module")
def digits():
    """scikit-learn's digits, as if 83 people of unequal diligence had written them."""
    plain = load("digits")
    return replace(plain, groups=np.sort(np.random.default_rng(5).integers(0, 83, len(plain.targets)) ** 2))


@pytest.mark.parametrize("nodes", [1, 7, 60])
@pytest.mark.parametrize("how", KINDS)
def test_shards_are_disjoint_and_cover_every_row(digits, how, nodes):
    shards = partition(digits, nodes, how, seed=1)
    assert len(shards.indices) == nodes
    dealt = np.concatenate(shards.indices)
    np.testing.assert_array_equal(np.sort(dealt), np.arange(len(digits.targets)))
    sizes = [len(shard) for shard in shards.indices]
    assert (shards.sizes.min, shards.sizes.max) == (min(sizes), max(sizes))
    assert shards.sizes.mean == pytest.approx(len(digits.targets) / nodes)
    assert shards.sizes.min > 0


@pytest.mark.parametrize("how", KINDS)
def test_same_seed_same_shards_whatever_else_is_drawn(digits, how):
    first = partition(digits, 12, how, seed=4)
    np.random.default_rng(4).random(10)
    again, other = partition(digits, 12, how, seed=4), partition(digits, 12, how, seed=5)
    for a, b in zip(first.indices, again.indices, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True))


@pytest.mark.parametrize("how", KINDS)
def test_shards_are_sealed_and_shuffled(digits, how):
    for shard in partition(digits, 5, how).indices:
        assert shard.dtype == np.int64
        assert (np.diff(shard) < 0).any()
        with pytest.raises(ValueError, match="read-only"):
            shard[0] = 0


@pytest.mark.parametrize("how", KINDS)
def test_a_cap_keeps_a_part_of_the_same_shards(digits, how):
    whole, capped = partition(digits, 12, how, seed=2), partition(digits, 12, how, seed=2, rows=30)
    for all_rows, kept in zip(whole.indices, capped.indices, strict=True):
        np.testing.assert_array_equal(kept, all_rows[:30])
    assert capped.sizes.max == 30


def test_so_many_groups_for_each_node_and_others_left_out(digits):
    held = [set(digits.groups[shard]) for shard in partition(digits, 20, "writer:4").indices]
    assert [len(groups) for groups in held] == [4] * 20
    assert len(set.union(*held)) == 80
    for shard, groups in zip(partition(digits, 20, "writer:4").indices, held, strict=True):
        assert len(shard) == np.isin(digits.groups, list(groups)).sum()


@pytest.mark.parametrize("nodes", [7, 16, 83])
def test_groups_are_never_split_and_dealt_evenly(digits, nodes):
    shards = partition(digits, nodes, "writer", seed=3)
    held = [set(digits.groups[shard]) for shard in shards.indices]
    assert sum(map(len, held)) == len(set(digits.groups)) == 83
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_iid_sizes_differ_by_at_most_one(digits):
    for nodes in (3, 100, len(digits.targets)):
        sizes = partition(digits, nodes, "iid").sizes
        assert sizes.max - sizes.min <= 1


def test_label_skew_grows_as_alpha_falls(digits):
    skews = [partition(digits, 10, f"dirichlet:{alpha}").sizes.label_skew for alpha in (1000, 1, 0.1, 0.02)]
    assert skews == sorted(skews)
    assert skews[0] < 0.05
    assert skews[-1] > 0.7


def test_label_skew_is_total_variation_from_everyone(digits):
    two = replace(digits, targets=np.array([0, 0, 1, 1]), groups=np.array([0, 0, 1, 1]))
    assert partition(two, 2, "user").sizes.label_skew == 0.5
    mixed = replace(two, groups=np.array([0, 1, 0, 1]))
    assert partition(mixed, 2, "user").sizes.label_skew == 0


def test_dirichlet_shares_have_the_right_spread(digits):
    """A node's share of a class has variance m (1 - m) / (n ALPHA + 1), where m = 1/n: right for 0.5, not 20 % off."""
    many = replace(digits, targets=np.zeros(5000, dtype=np.int64), classes=("0",))
    shares = [[len(s) / 5000 for s in partition(many, 4, "dirichlet:0.5", seed=k).indices] for k in range(800)]
    measured = np.var(shares)
    predicted = {alpha: 0.25 * 0.75 / (4 * alpha + 1) for alpha in (0.4, 0.5, 0.6)}
    assert measured == pytest.approx(predicted[0.5], rel=0.07)
    assert measured != pytest.approx(predicted[0.4], rel=0.07)
    assert measured != pytest.approx(predicted[0.6], rel=0.07)


def test_movielens_one_user_a_node(data):
    dataset = load("movielens", data("movielens/ml-latest-small/ratings.csv.gz").parents[2])
    shards = partition(dataset, 610, "user")
    assert all(len(set(dataset.groups[shard])) == 1 for shard in shards.indices)
    assert shards.sizes.label_skew is None
    assert (shards.sizes.min, shards.sizes.max) == (16, 2158)


def test_mnist_by_writer_is_less_skewed_than_by_label(data):
    dataset = load("mnist-writers", data("mnist/mnist_writers.npz").parents[1])
    by_writer, by_label = (partition(dataset, 100, how).sizes.label_skew for how in ("writer", "dirichlet:0.5"))
    assert by_writer < 0.05 < 0.3 < by_label


@pytest.mark.parametrize(
    ("nodes", "how", "settings", "line"),
    [
        (0, "iid", {}, "0 nodes; digits has 1438 training rows, and every node needs one"),
        (1439, "iid", {}, "1439 nodes; digits has 1438"),
        (84, "user", {}, "84 nodes for 83 groups of digits; by user, every node needs 1 .*; use at most 83 nodes"),
        (28, "user:3", {}, "28 nodes for 83 groups of digits; by user, every node needs 3 .*; use at most 27 nodes"),
        (3, "user:0", {}, "partition 'user:0'"),
        (5, "sorted", {}, "partition 'sorted'; known: iid, dirichlet:ALPHA, user, writer"),
        (5, "iid:3", {}, "partition 'iid:3'; known"),
        (5, "dirichlet", {}, "partition 'dirichlet'; ALPHA is a positive number"),
        (5, "dirichlet:-1", {}, "partition 'dirichlet:-1'; ALPHA"),
        (5, "dirichlet:nan", {}, "partition 'dirichlet:nan'; ALPHA"),
        (5, "dirichlet:inf", {}, "partition 'dirichlet:inf'; ALPHA"),
        (300, "dirichlet:0.01", {}, "dirichlet:0.01 left a node of 300 without rows .*; every node needs a row"),
        (5, "iid", {"rows": 0}, "rows=0; a node keeps at least one row"),
        (5, "iid", {"seed": -1}, "seed -1"),
    ],
)
def test_what_cannot_be_dealt_is_refused(digits, nodes, how, settings, line):
    with pytest.raises(InputError, match=f"^{line}"):
        partition(digits, nodes, how, **settings)


def test_labels_and_groups_are_needed_where_they_are_used(digits):
    with pytest.raises(InputError, match=r"^partition by user of digits; its rows do not say who they come from"):
        partition(replace(digits, groups=None), 3, "user")
    with pytest.raises(InputError, match=r"^dirichlet on digits, whose targets are a value; label skew needs classes"):
        partition(replace(digits, kind="value", classes=()), 3, "dirichlet:1")
