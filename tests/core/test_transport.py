"""The transport seam: nodes that live apart play the run that they play in one process, with no change above it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Lock

import numpy as np
import pytest
import torch

from sottovoce.core.loop import iterate_rounds
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.transport import InProcess
from sottovoce.distributed.communication import Communicator
from sottovoce.distributed.ranks import RankTransport
from sottovoce.distributed.sharded_rows import NodeShard
from sottovoce.learning.datasets import load
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run import checkpoint
from sottovoce.run.checkpoint import Checkpoint
from sottovoce.run.training_run import TrainingRun, prepare_run
from tests.cases import DIMENSION, cases
from tests.cases import task as made_up
from tests.selection import rest_slow

ROUNDS, SEED, DEADLINE = 3, 7, 20.0
CASES = [case for case in cases() if case.place in ("ring:5", "dropout", "complete:4")]


class Arrival:
    """Messages under way through queues."""

    def __init__(self, queues, rank, incoming):
        self._queues, self._rank, self._incoming = queues, rank, incoming

    def wait(self):
        for peer, tensor in self._incoming.items():
            tensor.copy_(self._queues[peer, self._rank].get(timeout=DEADLINE))


class InMemory(Communicator):
    """A communicator between threads of one process, one for each node."""

    def __init__(self, rank, size, queues):
        super().__init__(rank, size)
        self._queues = queues

    def exchange(self, outgoing, incoming):
        for peer, tensor in outgoing.items():
            self._queues[self.rank, peer].put(tensor.clone())
            self.sent_bytes += tensor.numel() * tensor.element_size()
        return Arrival(self._queues, self.rank, incoming)

    def sum_(self, values, *, counted=True):
        others = [peer for peer in range(self.size) if peer != self.rank]
        arrived = {peer: torch.empty_like(values) for peer in others}
        self.exchange(dict.fromkeys(others, values), arrived).wait()
        values.copy_(sum(arrived[rank] if rank != self.rank else values.clone() for rank in range(self.size)))


def one_node_each(n):
    """A transport for every node, which hosts no other."""
    queues = {(u, v): Queue() for u in range(n) for v in range(n) if u != v}
    placement = tuple(np.array([node]) for node in range(n))
    return [RankTransport(NodeShard(placement, rank), InMemory(rank, n, queues)) for rank in range(n)]


def in_threads(act, transports):
    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(act, transports))


def start_of(case):
    rows = torch.from_numpy(np.random.default_rng(4).standard_normal((case.topology.n, DIMENSION)))
    if case.algorithm.name in ("secure-average", "secure-mafalda"):  # all hold one model
        return rows[:1].expand_as(rows).clone()
    return 0 * rows if case.algorithm.averaging else rows


def played(case, transport):
    """Where the nodes of a transport end."""
    net, x0, everyone = case.topology, start_of(case), made_up(case.topology.n)
    compressed = case.algorithm.compression.name != "identity"
    rows = transport.start(lambda nodes: x0[torch.from_numpy(nodes)], net.at(0) if compressed else None)

    def gradient(round, points):
        whole = np.zeros((net.n, DIMENSION))
        whole[transport.nodes] = points.numpy()
        return torch.from_numpy(everyone(round, whole)[transport.nodes])

    rounds = iterate_rounds(
        case.algorithm,
        net,
        rows,
        gradient,
        rounds=ROUNDS,
        seed=SEED,
        noise_key=NoiseKey.of_seed(SEED),
        transport=transport,
    )
    return transport.local(list(rounds)[-1].models)


@pytest.mark.parametrize("case", rest_slow(CASES))
def test_one_node_in_each_process_plays_the_same_run(case):
    """Bit for bit, but where noise on single messages or a secure sum is added up in another order."""
    alone = played(case, InProcess(case.topology.n))
    apart = torch.cat(in_threads(lambda transport: played(case, transport), one_node_each(case.topology.n)))
    exact = not (case.algorithm.noise.edge(case.topology.at(0)) or case.algorithm.secure_sum)
    np.testing.assert_allclose(apart, alone, rtol=0, atol=0 if exact else 1e-12)


@pytest.fixture(scope="module")
def training_run():
    digits, (case,) = load("digits"), [case for case in CASES if str(case) == "dp-d-sgd on ring:5"]
    job = task(digits, partition(digits, nodes=5), model("softmax", digits))
    return prepare_run(
        case.algorithm, case.topology, job, rounds=ROUNDS, seed=SEED, noise_key=NoiseKey.of_seed(SEED), same_start=False
    )


def last(part):
    *_, (_, state) = part.play(part.before())
    return part.models(state), state


@pytest.fixture
def one_start_at_a_time(monkeypatch):
    """Layers are reset with torch's global generator, which the threads of this test share; processes do not."""
    inner, lock = TrainingRun.starting_models, Lock()

    def starting_models(self, nodes):
        with lock:
            return inner(self, nodes)

    monkeypatch.setattr(TrainingRun, "starting_models", starting_models)


def test_a_training_run_is_hosted_by_any_transport(training_run, one_start_at_a_time):
    """To rounding: torch may form the products of one node's rows in another order than those of several nodes."""
    alone, state = last(training_run)
    apart = in_threads(lambda transport: last(training_run.hosted_by(transport)), one_node_each(5))
    np.testing.assert_allclose(torch.cat([models for models, _ in apart]), alone, rtol=0, atol=1e-6)
    assert state.wire_bytes == 0
    assert sum(each.wire_bytes for _, each in apart) == ROUNDS * 10 * alone.shape[1] * alone.element_size()
    assert {each.sent for _, each in apart} == {state.sent}


def test_a_checkpoint_of_all_nodes_is_restored_where_each_lives(training_run, tmp_path):
    alone, state = last(training_run)
    checkpoint.save(tmp_path / "all.npz", Checkpoint(state, 0, 0.0), "this run", training_run.transport)
    for node, transport in enumerate(one_node_each(5)):
        part = training_run.hosted_by(transport)
        restored = checkpoint.load(tmp_path / "all.npz", part, "this run").state
        np.testing.assert_array_equal(part.models(restored), alone[[node]])
        assert transport.is_partial(restored.loop_state.state.x)
        assert not training_run.transport.is_partial(state.loop_state.state.x)
