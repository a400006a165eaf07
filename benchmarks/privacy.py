"""The accountant at work: `python -m benchmarks.privacy [--data FOLDER]`. Every case runs in its own process."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sottovoce import algorithm, graph, metropolis, node, trace
from sottovoce.privacy import exact
from sottovoce.privacy.absorption import couple, least_cost
from sottovoce.privacy.pairs import all_pairs
from sottovoce.privacy.sensitivity import participation
from sottovoce.privacy.views import see

DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def median_node(net) -> int:
    degrees = net.graph.out_degrees
    return int(np.argsort(degrees)[len(degrees) // 2])


def tell(label: str, seconds: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{label}: {seconds:.2f} s, peak {peak:.2f} GB", flush=True)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def against_dense() -> None:
    """Erdos-Renyi(100, 0.2), T = 100, one node, all victims: Gram by lags against the pseudo-inverse."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("erdos-renyi:100,p=0.2,seed=1"), rounds=100)
    seen = see(system, node(0))
    ours = statistics.median(timed(lambda: exact.losses(seen)) for _ in range(3))
    start = time.perf_counter()
    oracle = exact.dense(seen)
    dense = time.perf_counter() - start
    gap = np.abs(exact.losses(seen) - oracle).max()
    ratio = f"pseudo-inverse {dense:.1f} s, {dense / ours:.0f} times; largest difference {gap:.1e}"
    tell(f"ER(100, 0.2), T=100, {ratio}", ours)


def facebook() -> None:
    """4,039 nodes, a node of median degree, T = 50, all victims, worst-case direction included."""
    net = metropolis(graph(f"file:{DATA / 'facebook_ego' / 'facebook_combined.txt.gz'}"))
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=50)
    attacker = median_node(net)
    squares = None

    def work() -> None:
        nonlocal squares
        squares = exact.squared(see(system, node(attacker)), participation("every"))

    took = timed(work)
    tell(f"Facebook, node {attacker} of degree {net.graph.out_degrees[attacker]}, T=50, {len(squares)} victims", took)


def ego() -> None:
    """Ego graph 414: T = 380 with (20, 19)-participation; absorption for T = 100."""
    net = metropolis(graph(f"file:{DATA / 'facebook_ego' / '414.edges.gz'},component=giant"))
    attacker = median_node(net)
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=100)
    victims = see(system, node(attacker)).victims
    took = timed(lambda: least_cost(couple(system, node(attacker)), victims, participation("every")))
    tell("ego 414, absorption for all victims of a node, T=100", took)
    long = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=380)
    took = timed(lambda: exact.squared(see(long, node(attacker)), participation("20x19")))
    tell("ego 414, exact with the semidefinite value, T=380, 20x19", took)


def pairs() -> None:
    """Ego graph 414, all 148 x 147 pairs, T = 100, user level."""
    net = metropolis(graph(f"file:{DATA / 'facebook_ego' / '414.edges.gz'},component=giant"))
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=100)
    tell("ego 414, all pairs, T=100", timed(lambda: all_pairs(system, participation("every"))))


def one_pair() -> None:
    """One pair on a 100,000-node 10-regular graph, T = 30, graph and tracing included."""
    start = time.perf_counter()
    net = metropolis("regular:100000,d=10,seed=0")
    built = time.perf_counter()
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=30)
    neighbour = int(net.graph.adjacency[[0]].indices[0])
    second = int(net.graph.adjacency[[neighbour]].indices[-1])
    square = exact.squared(see(system, node(0), victims=[second]), participation("every"))[0]
    tell(f"100,000 nodes, node {second} seen by node 0, T=30 (mu^2 {square:.4g})", time.perf_counter() - built)
    print(f"  building the graph took {built - start:.1f} s before that")


CASES = {case.__name__: case for case in (against_dense, facebook, ego, pairs, one_pair)}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        CASES[sys.argv[1]]()
    else:
        for name in CASES:
            subprocess.run([sys.executable, "-m", "benchmarks.privacy", name], check=True)
