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
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import TrainingRun

LARGEST = 10 * NODE_ROUNDS
"""Runs with more nodes times rounds than this get no attacker unasked."""

WORK = 1e12
"""Multiplications, roughly, of all attackers that nobody asked for: sizes decide on their number, and no machine."""


LEFT_OUT = ": all would take long; the headline, if there is one, covers those left out as well"


class Attackers(NamedTuple):
    """Nodes as adversaries, one at a time, and how they were chosen."""

    nodes: list[int]
    description: str


def choose_attackers(accountant: RunAccountant, wanted: str | int | Sequence[int | str]) -> Attackers:
    """`wanted` are nodes by number or name, how many to sample, `all`, `none`, or `auto`: as many as sizes allow."""
    training_run = accountant.training_run
    n, automatic = training_run.topology.n, wanted == "auto"
    if n == 1 and wanted in ("all", "auto"):
        return Attackers([], "none")
    if isinstance(wanted, str):
        wanted = _count(accountant, wanted)
    if not isinstance(wanted, int):
        named = node_numbers(wanted, training_run.topology.names)
        return Attackers(named, f"nodes {', '.join(map(str, named))}" if named else "none")
    if not 0 <= wanted <= n:
        raise InputError(f"{wanted} attackers", f"there are {n} nodes", "sample at most that many")
    if wanted == n:
        return Attackers(list(range(n)), f"all {n} nodes")
    rng = np.random.default_rng(public_seed(training_run.seed, "attackers"))
    sample = sorted(rng.choice(n, wanted, replace=False).tolist())
    described = f"a sample of {wanted} of {n} nodes, drawn with the run's seed" if wanted else "none"
    return Attackers(sample, described + (LEFT_OUT if automatic and _has_attackers(training_run) else ""))


def _has_attackers(training_run: TrainingRun) -> bool:
    """Whether there is anything to account for: another node, and noise."""
    return training_run.topology.n > 1 and not isinstance(training_run.algorithm.noise, NoNoise)


def _count(accountant: RunAccountant, wanted: str) -> int:
    n = accountant.training_run.topology.n
    if wanted == "auto":
        size = n * accountant.training_run.rounds
        if size > LARGEST or not _has_attackers(accountant.training_run):
            return 0
        return min(n, max(1, NODE_ROUNDS // size), int(WORK / _work_of_each(accountant)))
    if wanted not in ("all", "none"):
        raise InputError(f"attackers {wanted!r}", "known: auto, all, none, a number, a list of nodes", "choose one")
    return n if wanted == "all" else 0


def _work_of_each(accountant: RunAccountant) -> float:
    """What one attacker takes, with final models and without: the exact loss of the node that hears most, and what
    weights carry to every other node."""
    system = accountant.system
    n, T = system.n, system.rounds
    heard = T * max(sum(int(np.diff(mixing.weights.indptr).max()) for mixing in step.mixings) for step in system.steps)
    links = max(int(step.split(step.state_out)[0].nnz) for step in system.steps)
    return 2.0 * heard**3 + 60.0 * T * n * (links + 15 * n)
