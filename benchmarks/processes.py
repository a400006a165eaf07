"""Two processes against one: `python -m benchmarks.processes`.

Convolutional nets on 64 nodes, with made-up images. Ranks are started as `sotto run --processes` starts them, play
rounds, and say how long they took, what they sent and how much memory they needed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.learning import job_of
from benchmarks.loop import peak_gigabytes, settings
from sottovoce import Topology, algorithm, metropolis, weigh
from sottovoce.distributed.communication import Communicator, PendingExchange
from sottovoce.distributed.launch import LOOPBACK, MEETING
from sottovoce.distributed.ranks import join_ranks
from sottovoce.distributed.sharded_rows import place_nodes
from sottovoce.learning.datasets import load
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.training_run import TrainingRun, prepare_run

NODES, ROWS, SHAPE = 64, 64, (1, 28, 28)
SPECS = ("identity", "rand:0.5", "gsgd:8")


def made(graph: str, spec: str, nodes: int, batch: int, model: str, filters: tuple[int, ...]) -> TrainingRun:
    """DP-D-SGD, or DP-CSGP where messages are compressed, clipped per example."""
    words = {"filters": filters} if model == "cnn" else {"hidden": filters}
    job = job_of(nodes, ROWS, SHAPE, model, **words)
    gradients = job.gradients(f"fixed:{batch}", "per-example", 1.0)
    if spec == "none":
        net, built = metropolis(graph), algorithm("dp-d-sgd", sigma=1.0)
    else:
        net, built = weigh(graph, "push"), algorithm("dp-csgp", sigma=1.0, compression=spec)
    return prepare_run(built, net, gradients, rounds=10**6)


def crossing(net: Topology, placed: tuple) -> tuple[int, int]:
    """Messages of a round that cross, and how many there are when one to several nodes of a rank is counted once."""
    owner = torch.empty(net.n, dtype=torch.int64).numpy()
    for rank, nodes in enumerate(placed):
        owner[nodes] = rank
    sender, receiver, _ = net.at(0).edges
    away = owner[sender] != owner[receiver]
    return int(away.sum()), len({(int(s), int(r)) for s, r in zip(sender[away], owner[receiver[away]], strict=True)})


def play(begun: TrainingRun, rounds: int, communicator: Communicator | None = None) -> dict[str, object]:
    """Seconds of each round after the first, and what went over the wire meanwhile."""
    torch.set_num_threads(1)
    took, gradient, inner = [], 0.0, begun.gradients

    def timed(round: int, points: torch.Tensor) -> torch.Tensor:
        nonlocal gradient
        start = time.perf_counter()
        found = inner(round, points)
        gradient += time.perf_counter() - start
        return found

    timed.nonfinite = 0
    timed.task = inner.task
    played = replace(begun, gradients=timed).play(begun.before())
    next(played)
    at_first = _communication(communicator)
    gradient, processor = 0.0, time.process_time()
    for _ in range(rounds):
        start = time.perf_counter()
        next(played)
        took.append(time.perf_counter() - start)
    processor = time.process_time() - processor
    played.close()
    sent, waiting = _communication(communicator)
    return {
        "round": statistics.median(took), "rounds": took, "processor": processor / rounds,
        "gradient": gradient / rounds, "bytes": (sent - at_first[0]) / rounds,
        "wire": (waiting - at_first[1]) / rounds, "memory": peak_gigabytes(),
    }  # fmt: skip


WAITED = [0.0]
"""Seconds of waiting for other ranks so far."""


def _communication(communicator: Communicator | None) -> tuple[int, float]:
    """Bytes sent, and seconds of waiting, so far; none in one process."""
    return (0, 0.0) if communicator is None else (communicator.sent_bytes, WAITED[0])


def clocked(wait: Callable[[PendingExchange], None]) -> Callable[[PendingExchange], None]:
    """The same, with its seconds counted."""

    def waited(pending: PendingExchange) -> None:
        begun = time.perf_counter()
        wait(pending)
        WAITED[0] += time.perf_counter() - begun

    return waited


def rank(what: str, rounds: str) -> None:
    """In a process of its own: play a rank's part, or the whole run, and print what was measured."""
    begun = made(*json.loads(what))
    if "RANK" not in os.environ:
        print(json.dumps(play(begun, int(rounds))))
        return
    PendingExchange.wait = clocked(PendingExchange.wait)
    with join_ranks(300.0) as ranks:
        begun = begun.hosted_by(ranks.transport(begun.topology))
        found = play(begun, int(rounds), ranks.communicator)
        ranks.communicator.gather(torch.zeros(1))
        print(json.dumps(found))


def exchanges(what: str) -> None:
    """In one of two processes: how long exchanges of so many bytes take, and how long it takes to pack them."""
    with join_ranks(300.0) as ranks:
        found = {}
        for size in json.loads(what):
            there, here = torch.zeros(64, size // 256), torch.zeros(64, size // 256)
            took, pack = [], []
            for _ in range(30 if size < 10**6 else 7):
                start = time.perf_counter()
                packed = there[torch.arange(64)]
                pack.append(time.perf_counter() - start)
                ranks.communicator.gather(torch.zeros(1))
                start = time.perf_counter()
                ranks.communicator.exchange({1 - ranks.rank: packed}, {1 - ranks.rank: here}).wait()
                took.append(time.perf_counter() - start)
            found[size] = [statistics.median(took), statistics.median(pack)]
        print(json.dumps(found))


def measured(size: int, rounds: int, *what: object, act: str = "rank") -> list[dict]:
    """What each of so many processes measured."""
    command = [sys.executable, "-m", "benchmarks.processes", act, json.dumps(what)]
    command += [str(rounds)] if act == "rank" else []
    if size == 1:
        return [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)]
    with tempfile.TemporaryDirectory() as folder:
        told = {"WORLD_SIZE": str(size), MEETING: f"{folder}/meeting", "GLOO_SOCKET_IFNAME": LOOPBACK}
        started = [
            subprocess.Popen(command, env={**os.environ, **told, "RANK": str(rank)}, stdout=subprocess.PIPE)
            for rank in range(size)
        ]
        return [json.loads(process.communicate()[0]) for process in started]


def speed(rounds: int = 6, repeat: int = 3) -> None:
    """One process and two in turn."""
    what = (f"regular:{NODES},d=4,seed=0", "none", NODES, 32, "cnn", (16, 32))
    print(f"{NODES} convolutional nets, 4-regular, minibatch of 32 clipped per example; seconds a round")
    for _ in range(repeat):
        times, processor = {}, {}
        for size in (1, 2):
            found = measured(size, rounds, *what)
            times[size], processor[size] = (max(each[key] for each in found) for key in ("round", "processor"))
            parts = [statistics.mean(each[key] for each in found) for key in ("gradient", "wire")]
            rest = statistics.mean(statistics.mean(each["rounds"]) for each in found) - sum(parts)
            print(
                f"  {size} processes: {times[size]:.2f}, processor time of the busiest {processor[size]:.2f}; "
                f"gradient {parts[0]:.2f}, wire {parts[1]:.4f}, the rest {rest:.3f}; "
                f"load {os.getloadavg()[0]:.1f}", flush=True,
            )  # fmt: skip
        print(f"  speed-up {times[1] / times[2]:.2f}, by processor time {processor[1] / processor[2]:.2f}", flush=True)


def traffic(rounds: int = 3) -> None:
    """Bytes on the wire against the accounted bits of what crosses."""
    for graph in (f"ring:{NODES}", f"exponential:{NODES}"):
        for spec in SPECS:
            what = (graph, spec, NODES, 4, "cnn", (16, 32))
            begun = made(*what)
            edges, messages = crossing(begun.topology, place_nodes(begun.topology.n, 2))
            each = begun.algorithm.compression.bits(begun.task.model.layout.size) / 8
            sent = sum(found["bytes"] for found in measured(2, rounds, *what))
            print(
                f"  {graph:15} {spec:9} {sent:12,.0f} bytes a round on the wire; accounted for {messages} messages "
                f"that cross {messages * each:12,.0f}: {sent / (messages * each) - 1:+.3%}  ({edges} edges cross)",
                flush=True,
            )


def link() -> None:
    """The wire itself, both ways at once, between two processes of this machine."""
    found = measured(2, 0, 1_024, 102_400, 10_240_000, 102_400_000, act="exchanges")[0]
    for size, (took, pack) in found.items():
        rate = int(size) / took / 1e9
        print(f"  {int(size):11,} bytes each way: {1e3 * took:.2f} ms, {rate:.2f} GB/s; packed in {1e3 * pack:.2f} ms")


def memory() -> None:
    """Peak memory of a rank, by their number; large nets, so that they matter."""
    for size in (1, 2, 3, 4):
        found = measured(size, 1, f"ring:{NODES}", "none", NODES, 4, "mlp", (1500,))
        print(f"  {size} processes: {max(each['memory'] for each in found):.2f} GB the largest", flush=True)


def data() -> None:
    """Peak memory of reading MNIST for some of 100 nodes, beyond the interpreter: from the folder in SOTTOVOCE_DATA."""
    for hosted in (100, 50, 10):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.processes", "read", str(hosted)], check=True, stdout=subprocess.PIPE
        )
        print(f"  {hosted} of 100 nodes: {float(done.stdout):.2f} GB", flush=True)


def read(hosted: str) -> None:
    """What reading takes, in a process of its own."""
    before, images = peak_gigabytes(), load("mnist")
    job = task(images, partition(images, 100), model("softmax", images)).hosted(np.arange(int(hosted)))
    assert len(job.inputs) == 600 * int(hosted)
    print(peak_gigabytes() - before)


def placement() -> None:
    """Edges between blocks, and processor time to find them, against blocks by chance."""
    for spec in ("geometric:1000,r=0.06,seed=0", "regular:1000,d=10,seed=0"):
        net = metropolis(spec)
        start = time.process_time()
        found = place_nodes(net, 10)
        took, order = time.process_time() - start, np.random.default_rng(0).permutation(net.n)
        chance = crossing(net, tuple(np.array_split(order, 10)))[0]
        strangers = [len(np.setdiff1d(np.unique(net.at(0).weights[block].indices), block)) for block in found]
        print(
            f"  {spec}, 10 blocks: {crossing(net, found)[0]:,} of {net.at(0).weights.nnz - net.n:,} edges cross "
            f"(by chance {chance:,}), {np.mean(strangers):.0f} strangers a block, {took:.1f} s of processor time"
        )


if __name__ == "__main__":
    parts = {
        "speed": speed, "traffic": traffic, "link": link, "memory": memory, "data": data, "placement": placement,
    }  # fmt: skip
    if sys.argv[1:2] in (["rank"], ["exchanges"], ["read"]):
        {"rank": rank, "exchanges": exchanges, "read": read}[sys.argv[1]](*sys.argv[2:])
    elif len(sys.argv) > 1:
        partial(parts[sys.argv[1]], **settings(sys.argv[2:]))()
    else:
        for name, part in parts.items():
            print(name)
            part()
