"""Rounds over two and three processes: the same models, and only what must cross crosses."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from sottovoce.algorithms.registry import examples
from tests.cases import DIMENSION
from tests.distributed.ranked import (
    ROUNDS,
    alone_rounds,
    hosted_cases,
    hosted_end,
    overheard,
    stopped,
)
from tests.selection import rest_slow
from tests.tracing.test_certificate import HONEST

FEW = ("complete:4", "exponential:6", "fresh", "dropout")


@cache
def alone_end(name):
    return list(alone_rounds(name))[-1].models.numpy()


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_algorithm_on_every_topology_ends_the_same(rest, pool):
    """Bit for bit, but where noise on single messages or a secure sum is added up in another order.

    Fast: every algorithm, on topologies that take turns; slow: the rest.
    """
    admitted = [case for case in hosted_cases().values() if pool.size == 2 or case.place in FEW]
    chosen = {one.id: one.values[0] for one in rest_slow(admitted) if bool(one.marks) is rest}
    assert rest or {str(case.example) for case in chosen.values()} == set(map(str, examples()))
    ends = pool(hosted_end, list(chosen))
    for name, case in chosen.items():
        alone = alone_end(name)
        whole = np.full_like(alone, np.nan)
        for nodes, rows in (end[name] for end in ends):
            whole[nodes] = rows
        if case.algorithm.noise.edge(case.topology.at(0)) or case.algorithm.secure_sum:
            np.testing.assert_allclose(whole, alone, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(whole, alone, err_msg=name)


# --- what crosses, and who draws -------------------------------------------------------------------------------------


def crossing(name, blocks, rank, peer, round):
    """Edges from a rank to another in a round."""
    sender, receiver, _ = hosted_cases()[name].topology.at(round).edges
    some = np.isin(sender, blocks[rank]) & np.isin(receiver, blocks[peer])
    return sender[some], receiver[some]


DECOR = "decor(sigma_pair=4.0) on ring:5"
PLAIN = ["dp-d-sgd on ring:5", "dp-d-sgd on exponential:6", "dp-d-sgd on fresh", "dp-d-sgd on dropout",
         "dp2sgd on ring:5", DECOR, "anti-pgd on announced"]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_each_row_that_another_rank_needs_crosses_once_and_no_other(name, pool):
    found = pool(overheard, name)
    nodes = [each[0] for each in found]
    for round, now in enumerate(alone_rounds(name)):
        said = now.steps[0].sent.numpy()
        for rank, (_, sent, _) in enumerate(found):
            for peer in range(pool.size):
                wanted = np.unique(crossing(name, nodes, rank, peer, round)[0]) if peer != rank else []
                if len(wanted):
                    np.testing.assert_array_equal(sent[round][peer], said[wanted])
                else:
                    assert peer not in sent[round]


@pytest.mark.parametrize("name", ["zip-dl on ring:5", "zip-dl on dropout", "rss-lb on complete:4"])
def test_noise_on_single_messages_is_added_before_they_cross(name, pool):
    found = pool(overheard, name)
    nodes = [each[0] for each in found]
    for round, now in enumerate(alone_rounds(name)):
        step = now.steps[0]
        heard, said = step.sent_messages(), step.sent.numpy()
        number = {pair: at for at, pair in enumerate(zip(heard.sender.tolist(), heard.receiver.tolist(), strict=True))}
        for rank, (_, sent, _) in enumerate(found):
            for peer, rows in sent[round].items():
                pairs = list(zip(*(ends.tolist() for ends in crossing(name, nodes, rank, peer, round)), strict=True))
                wanted = heard.rows.numpy()[[number[pair] for pair in pairs]]
                np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-6)
                assert (abs(rows - said[[sender for sender, _ in pairs]]) > 1e-3).any(axis=1).all()


@pytest.mark.parametrize(
    "name", ["dp-csgp(compression=rand:0.5) on exponential:6", "dp-csgp(compression=gsgd:8) on ring:5"]
)
def test_compressed_messages_cross_compressed(name, pool):
    found = pool(overheard, name)
    operator = hosted_cases()[name].algorithm.compression
    size, blocks = operator.payload(DIMENSION, np.dtype(np.float32)), [each[0] for each in found]
    for rank, (_, sent, _) in enumerate(found):
        assert len(sent) == ROUNDS
        for peer, rows in sent[0].items():
            assert rows.dtype == np.uint8
            assert rows.shape == (len(np.unique(crossing(name, blocks, rank, peer, 0)[0])), size)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("dp-d-sgd on ring:5", "node"), ("mafalda(rounds=12,participation=2x6) on ring:5", "node"),
     ("zip-dl on ring:5", "edge"), (DECOR, "pair"), (DECOR, "node")],
)  # fmt: skip
def test_a_rank_draws_for_its_own_nodes_and_for_the_secrets_they_share(name, kind, pool):
    net = hosted_cases()[name].topology.at(0)
    for nodes, _, drawn in pool(overheard, name):
        ids = {tuple(each[1:]) for each in drawn if each[0] == kind}
        if kind == "pair":
            pairs = {(int(u), int(v)) for u, v, _ in zip(*net.edges, strict=True) if u < v and {u, v} & set(nodes)}
            assert ids == pairs
        else:
            assert ids == {(int(node),) for node in nodes}


# --- cheats --------------------------------------------------------------------------------------------------------

TRICKS = [
    "local without noise", "local with half of the noise", "local with one percent less noise",
    "local with noise twice", "local with noise turned", "local with a schedule",
    "local with a step a percent longer", "local uphill",
    "local with gradients twice", "local without gradients", "local that hides the gradient", "local that hides a bit",
    "local that forgets", "message of the hidden part", "message twice", "message of the round before",
    "message of zeros", "absorb nothing", "absorb half", "absorb into what is hidden", "point at what is hidden",
    "point a little off", "point at zero",
]  # fmt: skip


def test_cheats_over_ranks_are_stopped_before_their_first_dishonest_message(pool):
    for here in pool(stopped, [*TRICKS, "none"]):
        assert here.pop("none") == ("nothing", ROUNDS)
        for trick, (error, exchanges) in here.items():
            assert f"in round {HONEST}" in error, trick
            assert exchanges == HONEST + trick.startswith("absorb"), trick
