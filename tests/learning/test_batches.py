"""Batches: what is drawn is what the accountant is told."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.core.participation import Participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning.batches import Sampling, parse_batches
from sottovoce.learning.datasets import load
from sottovoce.learning.partitioning import partition

SPECS = ("full", "cycle:3x4", "poisson:0.3", "cyclic-poisson:0.6x4", "fixed:5", "allocate:3x4")
SIZES = [9, 14, 30]


def drawn(plan, node, round):
    batch = plan.draw(round)
    return batch.rows[node][batch.present[node]]


@pytest.mark.parametrize("spec", [*SPECS, "shuffle:4"])
def test_same_key_same_batch_alone_or_together(spec):
    plan, again = (
        parse_batches(spec, SIZES, key=NoiseKey.of_seed(7)),
        parse_batches(spec, SIZES, key=NoiseKey.of_seed(7)),
    )
    late = plan.draw(11)
    plan.draw(2)
    for node in range(3):
        alone = again.draw(11, nodes=[node])
        np.testing.assert_array_equal(alone.rows[0][alone.present[0]], drawn(plan, node, 11))
    np.testing.assert_array_equal(late.rows, plan.draw(11).rows)


@pytest.mark.parametrize("spec", ["poisson:0.3", "cyclic-poisson:0.6x2", "fixed:5"])
def test_nodes_rounds_and_seeds_draw_apart(spec):
    plan = parse_batches(spec, [20, 20], key=NoiseKey.of_seed(0))
    first = drawn(plan, 0, 0).tolist()
    assert first != (drawn(plan, 1, 0) - 20).tolist()
    assert first != drawn(plan, 0, 1).tolist()
    assert first != drawn(parse_batches(spec, [20, 20], key=NoiseKey.of_seed(1)), 0, 0).tolist()


@pytest.mark.parametrize("spec", [*SPECS, "shuffle:4"])
def test_batches_hold_own_rows_once_and_fit_what_is_stated(spec):
    digits = load("digits")
    shards = partition(digits, 4, "dirichlet:0.5", seed=1)
    plan = parse_batches(spec, shards)
    for round in range(12):
        batch = plan.draw(round)
        for node, own in enumerate(shards.indices):
            rows = batch.rows[node][batch.present[node]]
            assert len(np.unique(rows)) == len(rows) <= plan.largest[node]
            assert np.isin(batch.rows[node], own).all()  # padding too


@pytest.mark.parametrize(("spec", "sizes"), [("cycle:3x4", SIZES), ("cycle:2x1", [3]), ("cycle:5x3", [3, 3])])
def test_a_cycle_visits_each_record_once_per_epoch(spec, sizes):
    plan = parse_batches(spec, sizes)
    scheme = plan.participation("record")
    for node, size in enumerate(sizes):
        seen = {}
        for round in range(scheme.times * scheme.apart):
            for row in drawn(plan, node, round):
                seen.setdefault(int(row), []).append(round)
        assert len(seen) == size
        for rounds in seen.values():
            assert rounds == list(range(rounds[0], scheme.times * scheme.apart, scheme.apart))
            assert len(rounds) == scheme.times
    with pytest.raises(InputError, match="the cycle ends after"):
        plan.draw(scheme.times * scheme.apart)


def test_poisson_inclusion_rates_are_two_sided():
    """Records join with the share that is stated: 0.9 and 1.1 of it would be noticed. Pairs join independently."""
    share, rounds = 0.2, 600
    plan = parse_batches(f"poisson:{share}", [40, 40], key=NoiseKey.of_seed(3))
    joined = np.zeros((rounds, 80))
    for round in range(rounds):
        batch = plan.draw(round)
        joined[round, batch.rows[batch.present]] = 1
    rate, error = joined.mean(), np.sqrt(share * (1 - share) / joined.size)
    assert abs(rate - share) < 4 * error < 0.05 * share
    by_record = joined.mean(0)
    assert np.abs(by_record - share).max() < 4.5 * np.sqrt(share * (1 - share) / rounds)
    sizes = joined[:, :40].sum(1)
    assert sizes.var() == pytest.approx(40 * share * (1 - share), rel=0.25)
    lagged = np.corrcoef(joined[:-1].ravel(), joined[1:].ravel())[0, 1]
    assert abs(lagged) < 4 / np.sqrt(joined.size)


def test_cyclic_poisson_batches_are_drawn_from_the_part_whose_turn_it_is():
    """Parts are those of a cycle; within one, records join with the share, which is two-sided; divisors are public."""
    share, rounds = 0.4, 600
    plan, cycle = (
        parse_batches(spec, [41], key=NoiseKey.of_seed(5)) for spec in (f"cyclic-poisson:{share}x3", "cycle:200x3")
    )
    joined, turns = np.zeros(41), np.zeros(41)
    for round in range(rounds):
        mine = drawn(plan, 0, round)
        assert np.isin(mine, drawn(cycle, 0, round)).all()
        joined[mine] += 1
        turns[drawn(cycle, 0, round)] += 1
    assert (turns == 200).all()
    rate, error = joined.sum() / turns.sum(), np.sqrt(share * (1 - share) / turns.sum())
    assert abs(rate - share) < 4 * error < 0.1 * share
    assert np.abs(joined / turns - share).max() < 4.5 * np.sqrt(share * (1 - share) / 200)
    assert plan.divisors.tolist() == [share * 41 / 3]
    assert plan.largest.tolist() == [14]
    with pytest.raises(InputError, match="use at most 41 batches"):
        parse_batches("cyclic-poisson:0.5x42", [41])


def test_fixed_batches_are_uniform():
    plan = parse_batches("fixed:5", [20], key=NoiseKey.of_seed(1))
    counts = np.zeros(20)
    for round in range(800):
        counts[drawn(plan, 0, round)] += 1
    assert counts.sum() == 4000
    assert np.abs(counts / 800 - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / 800)


def test_what_the_accountant_is_told():
    told = {spec: parse_batches(spec, SIZES) for spec in SPECS}
    assert [told[spec].participation() for spec in SPECS] == [
        Participation(), Participation(3, 4), Participation(), Participation.sampled(0.6, 4), Participation(),
        Participation(apart=4, shuffled=True),
    ]  # fmt: skip
    assert all(plan.participation("user") == Participation() for plan in told.values())
    assert [told[spec].sampling(1) for spec in SPECS] == [
        None, None, Sampling(0.3), Sampling(0.6, apart=4), Sampling(5 / 14, 14),
        Sampling(1.0, epoch=4),
    ]  # fmt: skip
    assert told["full"].divisors.tolist() == [9, 14, 30]
    assert told["cycle:3x4"].divisors.tolist() == [2.25, 3.5, 7.5]
    np.testing.assert_allclose(told["poisson:0.3"].divisors, [2.7, 4.2, 9])
    assert told["fixed:5"].divisors.tolist() == [5, 5, 5]


def test_an_empty_batch_is_all_padding():
    plan = parse_batches("poisson:1e-9", [4, 4])
    batch = plan.draw(0)
    assert batch.rows.shape == (2, 1)
    assert not batch.present.any()


@pytest.mark.parametrize(
    ("spec", "sizes", "message"),
    [
        ("half", [4], "batches 'half'; known: full"),
        ("poisson:1.5", [4], "batches 'poisson:1.5'"),
        ("poisson:-", [4], "batches 'poisson:-'"),
        ("poisson:0", [4], "batches 'poisson:0'"),
        ("cycle:4", [4], "batches 'cycle:4'"),
        ("cycle:2x5", [9, 4], "cycle of 5 batches on node 1 with 4 rows"),
        ("fixed:5", [9, 4], "batches of 5 on node 1 with 4 rows"),
        ("full", [4, 0], "a node without rows"),
        ("full", [], "a node without rows"),
    ],
)
def test_wrong_batches_are_refused(spec, sizes, message):
    with pytest.raises(InputError, match=message):
        parse_batches(spec, sizes)
    with pytest.raises(InputError, match="a noise key of type str"):
        parse_batches("full", [4], "x")
    with pytest.raises(InputError, match="adjacency 'people'"):
        parse_batches("full", [4]).participation("people")


@pytest.mark.parametrize(
    "spec", ["full", "cycle:9x4", "shuffle:4", "poisson:0.3", "cyclic-poisson:0.5x3", "fixed:5", "allocate:9x4"]
)
def test_batches_of_several_rounds_are_those_of_each(spec):
    plan = parse_batches(spec, [13, 9, 22], NoiseKey.of_seed(1))
    together = plan.draw_several(range(2, 9), [2, 0])
    assert together.rows.shape == together.present.shape
    for number, round in enumerate(range(2, 9)):
        for place, node in enumerate([2, 0]):
            there = together.present[number, place]
            np.testing.assert_array_equal(together.rows[number, place][there], plan.rows_of(node, round))
            assert set(together.rows[number, place]) <= set(plan.shards[node])
