"""Runs of ranks in their folders, as tests ask for them; and ranks that die as `kill -9` would have it."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import numpy as np
import torch

import sottovoce
from sottovoce import Independent, metropolis
from sottovoce.core import noise_feed
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey
from sottovoce.distributed.communication import Communicator, PendingExchange
from sottovoce.distributed.ranks import join_ranks
from sottovoce.errors import Diverged, SottovoceError, Uncertified
from sottovoce.run import checkpoint, fingerprint
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.support.config import parse_experiment
from sottovoce.tracing.certificate import Certificate
from sottovoce.tracing.linear_forms import LinearRows
from sottovoce.tracing.tracer import trace_all_maps
from tests.cases import DIMENSION, cases, task
from tests.run.killed import Count, half_written
from tests.tracing.test_certificate import HONEST, Cheat

TIMEOUT = 20.0
SEED, ROUNDS = 9, 3


# --- cases of the laws ---------------------------------------------------------------------------------------------


@cache
def hosted_cases():
    """Cases by name; found when they are asked for, because most ranks are not asked."""
    return {str(case): case for case in cases() if case.place not in ("path:4", "star:5")}


def start(case, dtype=torch.float32):
    """A public starting point of all nodes; averaging begins at zero."""
    rows = torch.from_numpy(np.random.default_rng(4).standard_normal((case.topology.n, DIMENSION))).to(dtype)
    if case.algorithm.name in ("secure-average", "secure-mafalda"):  # all hold one model
        return rows[:1].expand_as(rows).clone()
    return 0 * rows if case.algorithm.averaging else rows


def hosted_rounds(ranks, name):
    """The transport of this rank, and the rounds of a case as it plays them."""
    case = hosted_cases()[name]
    net, x0 = case.topology, start(case)
    transport = ranks.transport(net)
    compressed = case.algorithm.compression.name != "identity"
    rows = transport.start(lambda nodes: x0[torch.from_numpy(nodes)], net.at(0) if compressed else None)
    everyone = task(net.n)

    def gradient(round, points):
        whole = np.zeros((net.n, DIMENSION), dtype=np.float32)
        whole[transport.nodes] = points.numpy()
        return torch.from_numpy(everyone(round, whole)[transport.nodes])

    return transport, iterate_rounds(
        case.algorithm, net, rows, gradient, rounds=ROUNDS, seed=SEED,
        noise_key=NoiseKey.of_seed(SEED), transport=transport,
    )  # fmt: skip


def alone_rounds(name):
    """The same in one process."""
    case = hosted_cases()[name]
    everyone = task(case.topology.n)
    return iterate_rounds(
        case.algorithm, case.topology, start(case), lambda t, x: torch.from_numpy(everyone(t, x.numpy())),
        rounds=ROUNDS, seed=SEED, noise_key=NoiseKey.of_seed(SEED),
    )  # fmt: skip


def hosted_end(ranks, names):
    """The nodes here and where they end, of each case."""
    found = {}
    for name in names:
        transport, played = hosted_rounds(ranks, name)
        found[name] = transport.nodes, transport.local(list(played)[-1].models).numpy()
    return found


def overheard(ranks, name):
    """Of each exchange: what this rank hands to the wire for whom; and whose noise it draws, and compresses, in all."""
    sent, drawn, real = [], set(), ranks.communicator.exchange
    secret, public = NoiseKey.stream, noise_feed.public_stream

    def exchange(outgoing, incoming):
        sent.append({peer: rows.clone().numpy() for peer, rows in outgoing.items()})
        return real(outgoing, incoming)

    def noted(draw):
        def stream(of, kind, ids, *when):
            drawn.add((kind, *ids))
            return draw(of, kind, ids, *when)

        return stream

    try:
        ranks.communicator.exchange, NoiseKey.stream, noise_feed.public_stream = exchange, noted(secret), noted(public)
        transport, played = hosted_rounds(ranks, name)
        list(played)
    finally:
        del ranks.communicator.exchange
        NoiseKey.stream, noise_feed.public_stream = secret, public
    return transport.nodes, sent, drawn


class RankedCheat(Cheat):
    """Cheats on the rows of a rank as it does in one process."""

    def _cheats(self, what, *rows):
        if any(isinstance(one, LinearRows) for one in rows):
            return False
        calls = self.__dict__.setdefault("calls", {})
        calls[what] = calls.get(what, 0) + 1
        return self.trick.startswith(what) and calls[what] > HONEST


def stopped(ranks, tricks):
    """What stops each cheat here, and how often this rank had handed rows to the wire by then."""
    net, found = metropolis("ring:5"), {}
    x0, everyone, exchange = torch.zeros(5, DIMENSION), task(5), ranks.communicator.exchange
    for trick in tricks:
        exchanges = []
        ranks.communicator.exchange = lambda *given, noted=exchanges: (noted.append(1), exchange(*given))[1]
        built = RankedCheat(name="cheat", noise=Independent(0.5), step_size=0.3, trick=trick)
        transport = ranks.transport(net)
        watch = Certificate(trace_all_maps(built, net, rounds=ROUNDS), "cheat", transport.nodes, transport.local)

        def gradient(round, points, here=transport.nodes):
            whole = np.zeros((5, DIMENSION), dtype=np.float32)
            whole[here] = points.numpy()
            return torch.from_numpy(everyone(round, whole)[here])

        try:
            rows = transport.start(lambda nodes: x0[torch.from_numpy(nodes)], None)
            list(iterate_rounds(
                built, net, rows, gradient, rounds=ROUNDS, noise_key=NoiseKey.of_seed(SEED), transport=transport,
                watch=watch,
            ))  # fmt: skip
            found[trick] = "nothing", len(exchanges)
        except Uncertified as error:
            found[trick] = str(error), len(exchanges)
        finally:
            del ranks.communicator.exchange
    return found


# --- runs in their folders -----------------------------------------------------------------------------------------


def held_data(ranks, wanted):
    training_run = build_run(parse_experiment(wanted))
    mine = training_run.hosted_by(ranks.transport(training_run.topology))
    whole = "inputs" in vars(training_run.task) or "inputs" in vars(training_run.task.dataset)
    rows = [mine.task.inputs[mine.task.shards.indices[node]].numpy() for node in mine.transport.nodes]
    return mine.transport.nodes, rows, len(mine.task.inputs), whole


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
        run_experiment(parse_experiment(document), Path(place), resume=resume, coordinator=ranks, on_round=interrupt)
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
    "before sending in round 3": lambda: setattr(Communicator, "exchange", bound(Count(Communicator.exchange, 4))),
    "after sending in round 3": lambda: setattr(Communicator, "exchange", bound(After(Communicator.exchange, 4))),
    "after hearing in round 3": lambda: setattr(PendingExchange, "wait", bound(After(PendingExchange.wait, 4))),
    "while writing its part": lambda: setattr(checkpoint, "write_npz", half_written(4)),
    "before its part has its name": lambda: setattr(checkpoint, "write", Count(checkpoint.write, 4)),
    "when its part is written": lambda: setattr(checkpoint, "write", After(checkpoint.write, 4)),
    "goes astray in round 3": lambda: setattr(NoiseFeed, "gradient", bound(Astray(NoiseFeed.gradient, 4))),
    "does not answer in round 3": lambda: setattr(Communicator, "exchange", bound(Hang(Communicator.exchange, 4))),
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
    checkpoint.WRITING_TIMES = 0
    if int(told["RANK"]) == victim:
        FAULTS[fault]()
    with join_ranks(timeout) as ranks:
        said = ranked(ranks, document, place, True)
        os._exit({"PeerLost": 1, "Diverged": 2}.get((said or "").partition(":")[0], 9))
