"""What secure sums cost as members become more: `python -m benchmarks.secure_sums`.

`arithmetic members=50 parameters=7850` is what one member does for a round on a complete graph: noise, masks, sum.
`members members=8 rounds=5` plays whole members, each a process with its ledger over mutual TLS, with secure sums over
all and, on the same graph, with messages that are not masked.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.loop import settings
from benchmarks.members import prepare
from sottovoce import NoiseKey, algorithm, uniform
from sottovoce.core.exact_gaussians import draw_discrete_gaussians
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.integer_sums import sum_grid
from sottovoce.core.pair_masks import PairMasks, pair_key
from sottovoce.federation.link_rules import MaskedSums
from sottovoce.federation.rehearsal import rehearse
from sottovoce.ledger.payloads import Place


def processor_seconds(action: Callable[[], object], repeat: int = 5) -> float:
    """The least processor time of repeated calls."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def arithmetic(members: int = 50, parameters: int = 7850) -> None:
    """One member's round: a discrete Gaussian for each parameter, a masked message for each other, and their sum."""
    net = uniform(f"complete:{members}")
    grid = sum_grid(with_exact_noise(algorithm("secure-average", sigma=1.0), net).on(net), net.at(0))
    names = tuple(f"M{number:03}" for number in range(members))
    keys = {name: pair_key(hashlib.sha256(name.encode()).digest(), "M000", name, agreement=b"") for name in names[1:]}
    sums = MaskedSums(0, names, PairMasks("M000", keys), over_all=True)
    integers = np.arange(parameters)
    frames = sums.frames(grid.weights, integers, Place(0, 0))
    stream = NoiseKey.of_seed(0).stream("node", [0], 0)
    noise = processor_seconds(lambda: draw_discrete_gaussians(stream, parameters, grid.sigma_N[0]))
    masking = processor_seconds(lambda: sums.frames(grid.weights, integers, Place(1, 0)))
    received = dict.fromkeys(range(1, members), frames[1])
    adding = processor_seconds(lambda: sums.total(grid.weights, integers, received))
    sent = sum(map(len, frames.values()))
    print(
        f"{members:3} members, {parameters:,} parameters: noise {1e3 * noise:.1f} ms, masks {1e3 * masking:.1f} ms, "
        f"sum {1e3 * adding:.1f} ms; {len(frames)} messages, {sent / 1e6:.2f} MB leave each member"
    )


def members(members: int = 8, rounds: int = 5) -> None:
    """Whole members, with secure sums over all and without."""
    for name in ("secure-average", "dp-d-sgd"):
        with tempfile.TemporaryDirectory() as folder:
            place = prepare(Path(folder), members, rounds, f"complete:{members}", name)
            started = time.monotonic()
            agreement, _ = rehearse(place, Path(folder) / "tables", Path(folder) / "played", lambda *_: None)
            seconds = time.monotonic() - started
            files = Path(folder, "played").glob("*/runs/*/metrics.jsonl")
            last = [json.loads(path.read_text().splitlines()[-1]) for path in files]
        print(
            f"{name}, {len(agreement.members)} members, {rounds} rounds: {last[0]['messages'] / rounds:.0f} messages, "
            f"{last[0]['bytes'] / rounds / 1e3:.0f} kB, on the wire {last[0]['wire_bytes'] / rounds / 1e3:.0f} kB a "
            f"member and round; {max(one['seconds'] for one in last) / rounds:.2f} s a round, {seconds:.0f} s in all; "
            f"load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    wanted = {"arithmetic": arithmetic, "members": members}
    if len(sys.argv) > 1:
        wanted[sys.argv[1]](**settings(sys.argv[2:]))
    else:
        for number in (3, 10, 25, 50):
            arithmetic(number)
        for number in (3, 10, 25, 50):
            members(number)
