"""Runs of ranks in their folders, as tests ask for them; and ranks that die as `kill -9` would have it."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import torch

import sottovoce
from sottovoce.config import from_document
from sottovoce.core import noise_sources
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.distributed import sharded_feed
from sottovoce.distributed.communication import Communicator, PendingExchange
from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.distributed.placement import blocks
from sottovoce.distributed.ranks import join_ranks
from sottovoce.distributed.sharded_feed import ShardedFeed
from sottovoce.distributed.sharded_rows import Halo, ShardedRows
from sottovoce.errors import Diverged, SottovoceError
from sottovoce.run import checkpoint, checkpoint_schedule, fingerprint
from sottovoce.run.build import build
from sottovoce.run.execute import run_experiment
from tests.cases import DIMENSION, cases, task
from tests.run.killed import Count, half_written

TIMEOUT = 20.0
CASES = {str(case): case for case in cases() if case.place not in ("path:4", "star:5")}
SEED, ROUNDS = 9, 3


# --- cases of the laws ---------------------------------------------------------------------------------------------


def start(case, dtype=torch.float32):
    """A public starting point of all nodes; averaging begins at zero."""
    rows = torch.from_numpy(np.random.default_rng(4).standard_normal((case.topology.n, DIMENSION))).to(dtype)
    return 0 * rows if case.algorithm.averaging else rows


def hosted_rounds(ranks, name):
    """The host of this rank, and the rounds of a case as it plays them."""
    case = CASES[name]
    net = case.topology
    shard = NodeShard(blocks(net, ranks.size), ranks.communicator)
    x0, away = start(case), shard.plan(net.at(0)).strangers
    compressed = case.algorithm.compression.name != "identity"
    halo = Halo(away, x0[torch.from_numpy(away)]) if compressed else None
    everyone = task(net.n)

    def gradient(round, points):
        whole = np.zeros((net.n, DIMENSION), dtype=np.float32)
        whole[shard.nodes] = points.numpy()
        return torch.from_numpy(everyone(round, whole)[shard.nodes])

    return shard, iterate_rounds(
        case.algorithm, net, ShardedRows(shard, shard.share(x0), halo), gradient, rounds=ROUNDS, seed=SEED,
        make=partial(ShardedFeed, first=net.at(0)),
    )  # fmt: skip


def alone_rounds(name):
    """The same in one process."""
    case = CASES[name]
    everyone = task(case.topology.n)
    return iterate_rounds(
        case.algorithm, case.topology, start(case), lambda t, x: torch.from_numpy(everyone(t, x.numpy())),
        rounds=ROUNDS, seed=SEED,
    )  # fmt: skip


def hosted_end(ranks, names):
    """The nodes here and where they end, of each case."""
    found = {}
    for name in names:
        shard, played = hosted_rounds(ranks, name)
        found[name] = shard.nodes, list(played)[-1].models.own.numpy()
    return found


def overheard(ranks, name):
    """Of each exchange: what this rank hands to the wire for whom; and whose noise it draws, and compresses, in all."""
    sent, drawn, real, draw = [], set(), ranks.communicator.swap, noise_sources.generator

    def swap(outgoing, incoming):
        sent.append({peer: rows.clone().numpy() for peer, rows in outgoing.items()})
        return real(outgoing, incoming)

    def generator(seed, kind, ids, *when):
        drawn.add((kind, *ids))
        return draw(seed, kind, ids, *when)

    try:
        ranks.communicator.swap, noise_sources.generator, sharded_feed.generator = swap, generator, generator
        shard, played = hosted_rounds(ranks, name)
        list(played)
    finally:
        del ranks.communicator.swap
        noise_sources.generator = sharded_feed.generator = draw
    return shard.nodes, sent, drawn


# --- runs in their folders -----------------------------------------------------------------------------------------


def held_data(ranks, wanted):
    training_run = build(from_document(wanted))
    mine = ranks.share(training_run, ranks.place(training_run))
    whole = "inputs" in vars(training_run.task) or "inputs" in vars(training_run.task.dataset)
    rows = [mine.task.inputs[mine.task.shards.indices[node]].numpy() for node in mine.shard.nodes]
    return mine.shard.nodes, rows, len(mine.task.inputs), whole


def differing(ranks, one, other, place, version):
    """Rank 1 is given another document, or is of another version."""
    if version is not None and ranks.rank == 1:
        fingerprint.__version__ = version
    try:
        return ranked(ranks, other if ranks.rank == 1 else one, place)
    finally:
        fingerprint.__version__ = sottovoce.__version__


def ranked(ranks, document, place, resume=False, stop=None):
    """Carry out an experiment at each rank, or its first rounds; what it raises is returned."""

    def interrupt(_, state):
        if state.rounds == stop:
            raise KeyboardInterrupt

    try:
        run_experiment(from_document(document), Path(place), resume=resume, coordinator=ranks, watch=interrupt)
    except SottovoceError as error:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        return "stopped"
    return None


class After(Count):
    """Ends this process when the right call has been made."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        answer = self.inner(*arguments, **more)
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def bound(act):
    """A callable object as a method."""
    return lambda *arguments, **more: act(*arguments, **more)


FAULTS = {
    "before sending in round 3": lambda: setattr(Communicator, "swap", bound(Count(Communicator.swap, 4))),
    "after sending in round 3": lambda: setattr(Communicator, "swap", bound(After(Communicator.swap, 4))),
    "after hearing in round 3": lambda: setattr(PendingExchange, "land", bound(After(PendingExchange.land, 4))),
    "while writing its part": lambda: setattr(checkpoint.np, "savez", half_written(4)),
    "before its part has its name": lambda: setattr(checkpoint, "write", Count(checkpoint.write, 4)),
    "when its part is written": lambda: setattr(checkpoint, "write", After(checkpoint.write, 4)),
    "goes astray in round 3": lambda: setattr(NoiseFeed, "gradient", bound(Astray(NoiseFeed.gradient, 4))),
    "does not answer in round 3": lambda: setattr(Communicator, "swap", bound(Hang(Communicator.swap, 4))),
}
"""What befalls a rank. Of rank 0, its part is the one that names the others."""


class Astray(Count):
    """Refuses at the right call."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        if not self.left:
            raise Diverged("gradient with nan", "it would spread", "clip it")
        return self.inner(*arguments, **more)


class Hang(Count):
    """Stops this process, without ending it, at the right call."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.inner(*arguments, **more)


def rank_until(fault, victim, told, document, place, timeout):
    """One rank of a run of which the victim meets a fault; exits 1 where a rank is lost to it, 2 where one refused."""
    os.environ |= told
    checkpoint_schedule.PATIENCE = 0
    if int(told["RANK"]) == victim:
        FAULTS[fault]()
    with join_ranks(timeout) as ranks:
        said = ranked(ranks, document, place, True)
        os._exit({"PeerLost": 1, "Diverged": 2}.get((said or "").partition(":")[0], 9))
