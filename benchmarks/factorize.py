"""Choosing the noise: `python -m benchmarks.factorize [CASE]`. Every case runs in its own process, without the cache.

Seconds are wall clock and, beside them, of the processor: on a shared machine the second is what counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sottovoce import factorize, graph, metropolis, uniform
from sottovoce.core.participation import parse_participation
from sottovoce.errors import SottovoceError
from sottovoce.matrix_factorization.result import error_of, normalised
from sottovoce.matrix_factorization.structures import Structure, dense

DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def tell(label: str, action: Callable[[], str]) -> None:
    wall, processor = time.perf_counter(), time.process_time()
    figures = action()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{label}: {wall:.2f} s ({processor:.2f} s of the processor), peak {peak:.2f} GB; {figures}", flush=True)


def on(net, scheme: str) -> str:
    found = factorize(net, participation=scheme, cache=False)
    share = f"{found.objective / found.independent:.4f} of independent noise"
    return f"objective {found.objective:.6g}, {share}, gap {found.gap:.1e}"


def prefix_sums(k: int, b: int) -> str:
    T, scheme = k * b, parse_participation(f"{k}x{b}")
    rows = np.arange(T, 0, -1.0)
    H = np.minimum.outer(rows, rows)
    found = dense(H, scheme, 1e-6)
    value = error_of(normalised(found.C, scheme), H)
    least = Structure().bound_of(found.proof, H, scheme)
    return f"mean squared error {value / T:.6f}, gap {value / least - 1:.1e}"


def florentine() -> None:
    """Florentine families, 10x16."""
    tell("Florentine families, uniform weights, 10x16", lambda: on(uniform("florentine"), "10x16"))


def prefix_380() -> None:
    """Prefix sums, T = 380, to a gap of 1e-6."""
    tell("prefix sums, T=380 (20, 19), gap 1e-6", lambda: prefix_sums(20, 19))


def prefix_1000() -> None:
    """Prefix sums, T = 1,000, to a gap of 1e-6."""
    tell("prefix sums, T=1000 (10, 100), gap 1e-6", lambda: prefix_sums(10, 100))


def ego() -> None:
    """Ego graph 414, its giant component of 148 nodes, 20x19."""
    net = metropolis(graph(f"file:{DATA / 'facebook_ego' / '414.edges.gz'},component=giant"))
    tell(f"ego 414, {net.n} nodes, 20x19", lambda: on(net, "20x19"))


def facebook() -> None:
    """The Facebook graph, 20x19."""
    net = metropolis(graph(f"file:{DATA / 'facebook_ego' / 'facebook_combined.txt.gz'}"))
    tell(f"Facebook, {net.n} nodes, 20x19", lambda: on(net, "20x19"))


def facebook_uniform() -> None:
    """The Facebook graph with weights that are not symmetric, 20x19."""
    net = uniform(graph(f"file:{DATA / 'facebook_ego' / 'facebook_combined.txt.gz'}"))
    tell(f"Facebook, {net.n} nodes, uniform weights, 20x19", lambda: on(net, "20x19"))


RUNS = (florentine, prefix_380, prefix_1000, ego, facebook, facebook_uniform)
CASES = {case.__name__: case for case in RUNS}

if __name__ == "__main__":
    try:
        for name in sys.argv[1:2]:
            CASES[name]()
    except SottovoceError as error:
        sys.exit(str(error))
    for name in CASES if len(sys.argv) == 1 else ():
        if code := subprocess.run([sys.executable, "-m", "benchmarks.factorize", name], check=False).returncode:
            sys.exit(code)
