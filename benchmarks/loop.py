"""The round loop against the bare sparse product, and tracing at scale: `python -m benchmarks.loop`."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sottovoce import Graph, algorithm, iterate_rounds, metropolis, trace


def seconds(action: Callable[[], object], repeat: int = 7) -> list[float]:
    """Wall times of repeated calls, after one to warm up."""
    action()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return times


def peak_gigabytes() -> float:
    """Largest memory of this process so far. Where Linux says it, without that of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def mixing(nodes: int = 10_000, parameters: int = 1_000) -> None:
    """One round of D-PSGD and of its noisy kin, as multiples of `W @ X`."""
    net = metropolis(f"regular:{nodes},d=10,seed=0")
    x0 = np.random.default_rng(0).standard_normal((nodes, parameters))
    grad = np.random.default_rng(1).standard_normal((nodes, parameters))
    W = net.at(0).weights

    def rounds(name: str, **settings: float) -> Callable[[], object]:
        played = iterate_rounds(algorithm(name, **settings), net, x0, lambda t, x: grad, rounds=10**6)
        return lambda: next(played)

    actions = {
        "W @ X": lambda: W @ x0,
        "d-psgd": rounds("d-psgd"),
        "dp-d-sgd": rounds("dp-d-sgd", sigma=1.0),
        "zip-dl": rounds("zip-dl", sigma=1.0),
    }
    print(f"one round, {nodes} nodes, 10-regular, {parameters} parameters, float64")
    times = {name: [] for name in actions}
    for _ in range(3):  # in turn, so that a slow moment of the machine hits all alike
        for name, action in actions.items():
            times[name] += seconds(action, repeat=2 if name == "zip-dl" else 4)
    base = statistics.median(times["W @ X"])
    for name, took in times.items():
        middle = statistics.median(took)
        print(f"  {name:10} {middle:7.3f} s   {middle / base:5.2f} x W @ X   ({min(took):.3f} to {max(took):.3f})")
    print(f"  peak memory {peak_gigabytes():.2f} GB")


def tracing(nodes: int = 100_000, edges: int = 1_000_000, name: str = "dp-d-sgd") -> None:
    """Building a large graph, its weights and its step matrices."""
    pairs = np.random.default_rng(0).integers(0, nodes, size=(edges, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    start = time.perf_counter()
    source = Graph.from_edges(pairs, nodes=nodes)
    net = metropolis(source)
    built = time.perf_counter()
    system = trace(algorithm(name, sigma=1.0), net, rounds=100)
    traced = time.perf_counter()
    print(f"{source.n} nodes, {source.edges} edges, {name}, {system.rounds} rounds")
    print(f"  graph and weights {built - start:.2f} s, step matrices {traced - built:.2f} s", end="")
    print(f", {system.steps[0].state_out.nnz:,} numbers, peak memory {peak_gigabytes():.2f} GB")


def settings(words: list[str]) -> dict[str, int | str]:
    """`edges=500000 name=zip-dl` as keyword arguments."""
    pairs = (word.split("=") for word in words)
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"mixing": mixing, "tracing": tracing}[sys.argv[1]](**settings(sys.argv[2:]))
    else:  # each in its own process, so that its peak memory is its own
        for words in (
            ["mixing"],
            ["tracing"],
            ["tracing", "name=muffliato-sgd"],
            ["tracing", "name=zip-dl", "edges=500000"],
            ["tracing", "name=zip-dl"],
        ):
            subprocess.run([sys.executable, "-m", "benchmarks.loop", *words], check=True)
