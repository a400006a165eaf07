"""Which nodes of a run are accounted for as adversaries, besides whoever hears every message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sottovoce.core.noise import NoNoise
from sottovoce.core.noise_key import public_seed
from sottovoce.errors import InputError
from sottovoce.privacy.covering_views import NODE_ROUNDS
from sottovoce.privacy.views import node_numbers
from sottovoce.run.training_run import TrainingRun

LARGEST = 10 * NODE_ROUNDS
"""Runs with more nodes times rounds than this get no attacker unasked."""


class Attackers(NamedTuple):
    """Nodes as adversaries, one at a time, and how they were chosen."""

    nodes: list[int]
    description: str


def choose_attackers(training_run: TrainingRun, wanted: str | int | Sequence[int | str]) -> Attackers:
    """`wanted` are nodes by number or name, how many to sample, `all`, `none`, or `auto`: as many as are cheap."""
    n = training_run.topology.n
    if isinstance(wanted, str):
        wanted = _count(training_run, wanted)
    if not isinstance(wanted, int):
        named = node_numbers(wanted, training_run.topology.names)
        return Attackers(named, f"nodes {', '.join(map(str, named))}" if named else "none")
    if not 0 <= wanted <= n:
        raise InputError(f"{wanted} attackers", f"there are {n} nodes", "sample at most so many")
    if wanted == n:
        return Attackers(list(range(n)), f"all {n} nodes")
    rng = np.random.default_rng(public_seed(training_run.seed, "attackers"))
    sample = sorted(rng.choice(n, wanted, replace=False).tolist())
    return Attackers(sample, f"a sample of {wanted} of {n} nodes, drawn with the run's seed" if wanted else "none")


def _count(training_run: TrainingRun, wanted: str) -> int:
    n = training_run.topology.n
    if wanted == "auto":
        size = n * training_run.rounds
        if n == 1 or size > LARGEST or isinstance(training_run.algorithm.noise, NoNoise):
            return 0
        return min(n, max(1, NODE_ROUNDS // size))
    if wanted not in ("all", "none"):
        raise InputError(f"attackers {wanted!r}", "known: auto, all, none, a number, a list of nodes", "choose one")
    return n if wanted == "all" else 0
