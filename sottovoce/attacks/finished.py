"""Attacks on finished runs, by name, from what they recorded; what they found is kept beside the run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.attacks.classifier import classifier
from sottovoce.attacks.likelihood import ENOUGH, likelihood
from sottovoce.attacks.losses import SAMPLES, Series, attacked, candidates_of, series
from sottovoce.attacks.reconstruction import ENTRIES, NOISE_ENTRIES, reconstruct
from sottovoce.attacks.shadows import shadowed
from sottovoce.attacks.success import Success
from sottovoce.attacks.threshold import threshold
from sottovoce.errors import InputError
from sottovoce.files import write_text
from sottovoce.privacy.views import node
from sottovoce.run.again import Tell
from sottovoce.run.folder import Files
from sottovoce.run.reopen import Opened
from sottovoce.threads import threads
from sottovoce.trace import trace

ATTACKS = ("threshold", "classifier", "likelihood", "reconstruction")

KEPT = "attack.json"


def infer(
    opened: Sequence[Opened],
    attack: str = "threshold",
    *,
    attacker: int | None = None,
    samples: int = SAMPLES,
    shadows: int = ENOUGH,
    method: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int | None = None,
    tell: Tell | None = None,
) -> Success:
    """Membership inference by one attacker, or by all that were recorded, on one run or on several seeds of it."""
    if attack not in ATTACKS[:3]:
        raise InputError(f"attack {attack!r}", f"known: {', '.join(ATTACKS)}", "choose one of them")
    with threads():
        if attack == "likelihood":
            pairs = [attacked(one.messages, attacker, one.trial.topology.n) for one in opened]
            found = [
                shadowed(one, mine, shadows=shadows, samples=samples, seed=seed, jobs=jobs, tell=tell)
                for one, mine in zip(opened, pairs, strict=True)
            ]
            return likelihood(found, method=method, confidence=confidence, seed=seed)
        every = [one for run, each in enumerate(opened) for one in _series(each, attacker, samples, seed, run)]
        act = threshold if attack == "threshold" else classifier
        return act(every, confidence=confidence, seed=seed)


def _series(opened: Opened, attacker: int | None, samples: int, seed: int, run: int) -> list[Series]:
    job = opened.trial.task
    pairs = attacked(opened.messages, attacker, opened.trial.topology.n)
    return series(job, opened.messages, pairs, candidates_of(job, pairs, samples=samples, seed=seed), run=run)


def described(runs: Sequence[Path], attack: str, attacker: int | None, success: Success) -> dict[str, Any]:
    """Membership inference as JSON: on which runs, by whom, and what it achieved."""
    found = success.document()
    whom = "all" if attacker is None else attacker
    method = found.pop("attack")
    return {"runs": [str(folder) for folder in runs], "attack": attack, "attacker": whom, "method": method, **found}


def keep(runs: Sequence[Path], document: dict[str, Any]) -> None:
    """All kinds of attack stand in one `attack.json` of each run; the latest of each kind counts."""
    for folder in runs:
        before = Files(folder).document(folder / KEPT) or {}
        write_text(folder / KEPT, json.dumps({**before, document["attack"]: document}, indent=1) + "\n")


def kept(folder: Path, attack: str) -> dict[str, Any] | None:
    """What an attack of this kind found last, if there was one."""
    return (Files(folder).document(folder / KEPT) or {}).get(attack)


def solve(opened: Opened, attacker: int) -> dict[str, Any]:
    """What one node can solve for by the linear attack: for each other node how sharply, in units of gradients.

    Long runs are attacked in as many first rounds as can be solved.
    """
    trial = opened.trial
    node(attacker).check(trial.topology.n)
    rounds = _solvable(opened, attacker)
    found = reconstruct(trace(trial.algorithm, trial.topology, rounds=rounds), node(attacker))
    nodes: dict[int, list[tuple[float, int]]] = {victim: [] for victim in found.nodes}
    for round, victim, deviation in found.solved():
        nodes[victim].append((deviation, round))
    distances = dict(zip(found.seen.victims.tolist(), found.seen.distances(), strict=True))
    return {
        "attack": "reconstruction", "attacker": attacker, "rounds": rounds, "of": trial.rounds,
        "nodes": [
            {
                "node": victim, "distance": distances[victim], "solved_rounds": len(solved),
                "deviation": min(solved)[0] if solved else "inf", "round": min(solved)[1] if solved else None,
            }
            for victim, solved in nodes.items()
        ],
    }  # fmt: skip


def _solvable(opened: Opened, attacker: int) -> int:
    seen = opened.beginning(node(attacker))
    rows, sources = max(1, seen.steps[-1].seen.state.shape[0]), max(1, len(seen.steps[-1].noise_columns))
    most = min(ENTRIES / (rows * len(seen.victims)), NOISE_ENTRIES / (rows * sources))
    return min(opened.trial.rounds, max(1, math.isqrt(int(most))))
