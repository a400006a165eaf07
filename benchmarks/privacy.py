"""The accountant at work: `python -m benchmarks.privacy`. Every case runs in its own process.

What users call is measured by the command itself (`commands`, or `command NAME` for one of `COMMANDS`). Other cases
are of functions inside, and say so.
"""

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

from sottovoce import algorithm, graph, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.errors import SottovoceError
from sottovoce.privacy.absorption import couple
from sottovoce.privacy.absorption_policy import Policy, least_cost
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case

EVERY = parse_participation("every")
DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def median_node(net) -> int:
    degrees = net.graph.out_degrees
    return int(np.argsort(degrees)[len(degrees) // 2])


def tell(label: str, seconds: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{label}: {seconds:.2f} s, peak {peak:.2f} GB, {time.process_time():.1f} s of processor time so far",
        flush=True,
    )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


FACEBOOK = f"file:{DATA / 'facebook_ego' / 'facebook_combined.txt.gz'}"
EGO = f"file:{DATA / 'facebook_ego' / '414.edges.gz'},component=giant"

COMMANDS = {
    "facebook": f"account --graph {FACEBOOK} --rounds 50 --view node:2000 --json",
    "hub": f"account --graph {FACEBOOK} --rounds 50 --view node:107 --json",
    "ego": f"account --graph {EGO} --rounds 100 --view node:50 --json",
    "pairs": f"account --graph {EGO} --rounds 100 --all-pairs --json --yes",
    "one_pair": "account --graph regular:100000,d=10,seed=0 --rounds 30 --view node:0 --victim 7 --json",
    "plan_8": "plan --graph ring:8 --records 100 --epsilon 4 --json",
    "plan_100": "plan --graph regular:100,d=6,seed=0 --records 100 --epsilon 4 --json",
    "million": "account --graph regular:1000000,d=10,seed=0 --rounds 30 --view node:0 --victim 7 --json",
}
"""What is typed after `sotto`."""


def command(name: str) -> None:
    """One command from start to end: wall time, processor time and peak memory of its process."""
    start = time.perf_counter()
    sotto = Path(sys.executable).with_name("sotto")
    subprocess.run([sotto, "--quiet", *COMMANDS[name].split()], check=True, stdout=subprocess.DEVNULL)
    took, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"sotto {COMMANDS[name]}\n  {took:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of processor time, "
        f"peak {used.ru_maxrss / 2**20:.2f} GB, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def commands() -> None:
    """All of them, each measured by a process of its own."""
    for name in COMMANDS:
        subprocess.run([sys.executable, "-m", "benchmarks.privacy", "command", name], check=True)


def against_dense() -> None:
    """Erdos-Renyi(100, 0.2), T = 100, one node, all victims: Gram by lags against the pseudo-inverse."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("erdos-renyi:100,p=0.2,seed=1"), rounds=100)
    observation = observe(system, views.node(0))
    ours = statistics.median(timed(lambda: routes.losses(observation)) for _ in range(3))
    start = time.perf_counter()
    white_KTV = routes.whitened(observation).signal_KTV
    oracle = np.einsum("ksv,ktv->vst", white_KTV, white_KTV)
    dense = time.perf_counter() - start
    gap = np.abs(routes.losses(observation) - oracle).max()
    ratio = f"pseudo-inverse {dense:.1f} s, {dense / ours:.0f} times; largest difference {gap:.1e}"
    tell(f"ER(100, 0.2), T=100, {ratio}", ours)


def _facebook(rounds: int, which: Callable[..., int]) -> None:
    """The exact loss of all victims of a node of the 4,039, worst-case direction included; a function inside."""
    net = metropolis(graph(FACEBOOK))
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=rounds)
    attacker = which(net)
    observation = observe(system, views.node(attacker))
    took = timed(lambda: routes.squared(observation, parse_participation("every")))
    degree = net.graph.out_degrees[attacker]
    tell(f"Facebook, node {attacker} of degree {degree}, T={rounds}, {len(observation.victims)} victims", took)


def policies(attacker: str = "2000", most: str = "100") -> None:
    """Facebook, T = 50: mu of swept policies, all victims at once as the command has it, over optimised ones."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis(graph(FACEBOOK)), rounds=50)
    view = views.node(int(attacker))
    observation, rounds = observe(system, view), couple(system, view)
    victims, hops = observation.victims, np.array(observation.distances())
    swept = least_cost(rounds, victims, EVERY, Policy.SWEPT)
    tell(f"Facebook, node {attacker}, T=50, swept policies of {len(victims)} victims", time.process_time())
    for distance in np.unique(hops):
        there = np.flatnonzero(hops == distance)
        some = np.sort(np.random.default_rng(0).choice(there, min(int(most), len(there)), replace=False))
        took, best = time.process_time(), least_cost(rounds, victims[some], EVERY, Policy.OPTIMISED)
        ratio = np.sqrt(swept[some] / best)
        tell(
            f"distance {distance}, {len(some)} of {len(there)} victims: largest {ratio.max():.5f}, "
            f"median {np.median(ratio):.5f}, least {ratio.min():.5f}",
            time.process_time() - took,
        )


def facebook_long() -> None:
    """A node of median degree, T = 400."""
    _facebook(400, median_node)


def dense_correlation() -> None:
    """A dense C of 400 rounds in a node's view, and of 1,000 in everyone's."""
    net = metropolis("erdos-renyi:100,p=0.1,seed=1")
    for rounds, view in ((1000, views.everyone()), (400, views.node(0))):
        C = np.tril(np.random.default_rng(0).random((rounds, rounds)) / rounds) + np.eye(rounds)
        system = trace(algorithm("mf-d-sgd", sigma=1.0, correlation=C), net, rounds=rounds)
        took = timed(
            lambda system=system, view=view: routes.squared(observe(system, view), parse_participation("every"))
        )
        tell(f"ER(100, 0.1), dense C, T={rounds}, {view}", took)


CURVES = {
    "gram": ((1000, 10, 50), (4000, 10, 50), (16000, 10, 50), (4000, 10, 25), (4000, 10, 100), (4000, 5, 50),
             (4000, 20, 50)),
    "kalman": ((100, 10, 200), (200, 10, 200), (400, 10, 200), (200, 10, 100), (200, 10, 400), (200, 5, 200),
               (200, 20, 200)),
    "absorption": ((100, 10, 50), (200, 10, 50), (400, 10, 50), (200, 10, 100), (200, 20, 50)),
    "pair": ((10_000, 10, 30), (100_000, 10, 30), (300_000, 10, 30)),
}  # fmt: skip
"""For each route nodes, degree and rounds of random regular graphs; `pair` takes one victim."""


def curves() -> None:
    """Time and memory of each route over nodes, degree and rounds, every case in its own process."""
    for route, sizes in CURVES.items():
        for size in sizes:
            subprocess.run([sys.executable, "-m", "benchmarks.privacy", "curve", route, *map(str, size)], check=True)


def curve(route: str, nodes: str, degree: str, rounds: str) -> None:
    """One point of a curve."""
    net = metropolis(f"regular:{nodes},d={degree},seed=0")
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=int(rounds))
    second = int(net.graph.adjacency[[int(net.graph.adjacency[[0]].indices[0])]].indices[-1])
    observation = observe(system, views.node(0), victims=[second] if route == "pair" else None)
    actions = {
        "gram": lambda: [worst_case(M, EVERY, int(rounds)) for _, M in routes.gram(observation)],
        "kalman": lambda: [worst_case(M, EVERY, int(rounds)) for _, M in routes.kalman(observation)],
        "absorption": lambda: least_cost(couple(system, views.node(0)), observation.victims, EVERY),
        "pair": lambda: routes.squared(observation, EVERY),
    }
    tell(f"{route}, {nodes} nodes, degree {degree}, T={rounds}", timed(actions[route]))


def ego_long() -> None:
    """Ego graph 414: the exact loss for T = 380 with (20, 19)-participation; a function inside."""
    net = metropolis(graph(EGO))
    attacker = median_node(net)
    long = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=380)
    took = timed(lambda: routes.squared(observe(long, views.node(attacker)), parse_participation("20x19")))
    tell("ego 414, exact with the semidefinite value, T=380, 20x19", took)


CASES = {
    case.__name__: case
    for case in (commands, against_dense, policies, facebook_long, ego_long, dense_correlation, curves)
}

PARTS = {**CASES, "command": command, "curve": curve}
"""All that can be asked for by name; those in `CASES` are run where nothing is."""

if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            PARTS[sys.argv[1]](*sys.argv[2:])
    except SottovoceError as error:
        sys.exit(str(error))
    for name in CASES if len(sys.argv) == 1 else ():
        if code := subprocess.run([sys.executable, "-m", "benchmarks.privacy", name], check=False).returncode:
            sys.exit(code)
