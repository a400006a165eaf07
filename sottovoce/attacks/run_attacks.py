"""Attacks on finished runs, by name, from what they recorded; what they found is kept beside the run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.attacks.candidate_losses import SAMPLES, Series, attacked_nodes, candidates_of, series
from sottovoce.attacks.classifier import classifier
from sottovoce.attacks.evaluation import Success
from sottovoce.attacks.likelihood import ENOUGH, likelihood
from sottovoce.attacks.pooled import Group, pooled, pooled_series
from sottovoce.attacks.reconstruction import ENTRIES, NOISE_ENTRIES, reconstruct
from sottovoce.attacks.registry import MEMBERSHIP
from sottovoce.attacks.shadow_models import shadowed
from sottovoce.attacks.threshold import threshold
from sottovoce.auditing.lower_bound import check_confidence
from sottovoce.config import Document
from sottovoce.core.files import write_text
from sottovoce.core.threads import threads
from sottovoce.errors import InputError
from sottovoce.privacy import views
from sottovoce.privacy.views import View
from sottovoce.privacy.views import parse_view as named_view
from sottovoce.run.callbacks import Progress
from sottovoce.run.finished_run import FinishedRun, open_run
from sottovoce.run.layout import RunFiles
from sottovoce.tracing.tracer import trace

ASKED = {"samples": SAMPLES, "seed": 0, "confidence": 0.95}
"""What is asked for unless told; an attack that was asked for something else, by hand, is made again."""


def infer(
    finished_run: Sequence[FinishedRun],
    attack: str = "threshold",
    *,
    attacker: int | None = None,
    view: str | View | None = None,
    samples: int = SAMPLES,
    shadows: int = ENOUGH,
    method: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int | None = None,
    tell: Progress | None = None,
) -> Success:
    """Membership inference by one attacker, or by all that were recorded, on one run or on several seeds of it.

    For the pooled attack a `parse_view` says who conspires: `coalition:0,3`, or `everyone`, who hears all messages.
    """
    if attack not in MEMBERSHIP:
        raise InputError(f"attack {attack!r}", f"known: {', '.join(MEMBERSHIP)}", "choose one of them")
    check_confidence(confidence)
    check_seeds(finished_run)
    if view is not None and (attack != "pooled" or attacker is not None):
        raise InputError(f"view {view} with {attack}", "views are for pooled, without an attacker", "drop one of them")
    with threads():
        if attack == "likelihood":
            pairs = [attacked_nodes(one.messages, attacker, one.training_run.topology.n) for one in finished_run]
            found = [
                shadowed(one, mine, shadows=shadows, samples=samples, seed=seed, jobs=jobs, tell=tell)
                for one, mine in zip(finished_run, pairs, strict=True)
            ]
            return likelihood(found, method=method, confidence=confidence, seed=seed)
        if attack == "pooled":
            return _pooled(finished_run, attacker, view, samples=samples, confidence=confidence, seed=seed)
        every = [one for run, each in enumerate(finished_run) for one in _series(each, attacker, samples, seed, run)]
        act = threshold if attack == "threshold" else classifier
        return act(every, confidence=confidence, seed=seed)


def attack(folders: Sequence[Path], kind: str, data: Path | None = None) -> Document:
    """Membership inference by all nodes that were recorded; what was found before is only read."""
    before = stored_attack(folders[0]).get(kind, {})
    asked = {"attacker": "all", **ASKED}
    if before.get("runs") == [str(folder) for folder in folders] and asked.items() <= before.items():
        return dict(before)
    return keep(folders, kind, {**asked, **figures(infer([open_run(one, data) for one in folders], kind))})


def check_seeds(finished_run: Sequence[FinishedRun]) -> None:
    """Refuse a run given twice, which would count its victims twice, and runs of other settings than the first."""
    places = [one.folder.resolve() for one in finished_run]
    settings = [_but_seeds(one.experiment.document()) for one in finished_run]
    for number, one in enumerate(finished_run):
        if places[number] in places[:number]:
            raise InputError(f"{one.folder} twice", "victims count once", "give each run once")
        if settings[number] != settings[0]:
            key = next(key for key, value in settings[0].items() if settings[number].get(key) != value)
            raise InputError(
                f"{finished_run[0].folder} and {one.folder} differ in {key}", "together go seeds of one experiment",
                "attack them one by one",
            )  # fmt: skip


def _but_seeds(settings: Document) -> Document:
    rest = {key: value for key, value in settings.items() if key not in ("name", "seed", "about", "machine")}
    for part in ("data", "topology"):
        rest[part] = {key: value for key, value in rest[part].items() if key != "seed"}
    return rest


def keep(folders: Sequence[Path], kind: str, found: Document) -> Document:
    """What an attack found, written into `attack.json` of its runs: the latest of each kind counts."""
    document = {"runs": [str(folder) for folder in folders], "attack": kind, **found}
    for folder in folders:
        write_text(RunFiles(folder).attack, json.dumps({**stored_attack(folder), kind: document}, indent=1) + "\n")
    return document


def stored_attack(folder: Path) -> Document:
    """What attacks on a run found so far, by their kind."""
    files = RunFiles(folder)
    try:
        return files.document(files.attack) or {}
    except InputError as error:
        raise InputError(error.found, "it is written by sotto attack", "remove this file") from None


def figures(success: Success) -> Document:
    """As JSON; `method` says how, where an attack has several ways."""
    document = success.document()
    return {"method": document.pop("attack"), **document}


def _series(finished_run: FinishedRun, attacker: int | None, samples: int, seed: int, run: int) -> list[Series]:
    job = finished_run.training_run.task
    pairs = attacked_nodes(finished_run.messages, attacker, finished_run.training_run.topology.n)
    return series(job, finished_run.messages, pairs, candidates_of(job, pairs, samples=samples, seed=seed), run=run)


def _pooled(
    finished_run: Sequence[FinishedRun],
    attacker: int | None,
    view: str | View | None,
    *,
    samples: int,
    confidence: float,
    seed: int,
) -> Success:
    groups, net = _groups(finished_run[0], attacker, view), finished_run[0].training_run.topology
    every = []
    for run, one in enumerate(finished_run):
        job = one.training_run.task
        chosen = candidates_of(job, [(0, victim) for victim in range(net.n)], samples=samples, seed=seed)
        every += pooled_series(job, one.messages, groups, chosen, run=run)
    if not every:
        raise InputError("nobody to attack", "attackers received no model of another node", "choose other attackers")
    return pooled(every, groups, net, confidence=confidence, seed=seed)


def _groups(finished_run: FinishedRun, attacker: int | None, view: str | View | None) -> list[Group]:
    """Every recorded node by itself, or who a view is."""
    messages, n = finished_run.messages, finished_run.training_run.topology.n
    if view is None:
        attacked_nodes(messages, attacker, n)
        return [Group((one,), (one,)) for one in (messages.attackers if attacker is None else (attacker,))]
    observation = named_view(view)
    observation.check(n)
    if observation.kind == "eavesdropper" or observation.secure_sum:
        raise InputError(
            f"view {observation}", "recorded is what nodes received", "use everyone, node:A or coalition:A,B"
        )
    hears = tuple(range(n)) if observation.kind == "everyone" else observation.members
    missing = sorted(set(hears) - set(messages.attackers))
    if missing:
        raise InputError(
            f"{observation}: node {missing[0]} was not recorded",
            "attacks need what was received",
            "record more attackers",
        )
    return [Group(hears, observation.members)]


def solve(finished_run: FinishedRun, attacker: int) -> dict[str, Any]:
    """What one node can solve for by the linear attack: for each other node how sharply, in units of gradients.

    Long runs are attacked in as many first rounds as can be solved.
    """
    training_run = finished_run.training_run
    views.node(attacker).check(training_run.topology.n)
    rounds = _solvable(finished_run, attacker)
    found = reconstruct(trace(training_run.algorithm, training_run.topology, rounds=rounds), views.node(attacker))
    nodes: dict[int, list[tuple[float, int]]] = {victim: [] for victim in found.nodes}
    for round, victim, deviation in found.solved():
        nodes[victim].append((deviation, round))
    distances = dict(zip(found.observation.victims.tolist(), found.observation.distances(), strict=True))
    return {
        "attack": "reconstruction", "attacker": attacker, "rounds": rounds, "of": training_run.rounds,
        "nodes": [
            {
                "node": victim, "distance": distances[victim], "solved_rounds": len(solved),
                "deviation": min(solved)[0] if solved else "inf", "round": min(solved)[1] if solved else None,
            }
            for victim, solved in nodes.items()
        ],
    }  # fmt: skip


def _solvable(finished_run: FinishedRun, attacker: int) -> int:
    observation = finished_run.beginning(views.node(attacker))
    rows, sources = (
        max(1, observation.steps[-1].observed.state.shape[0]),
        max(1, len(observation.steps[-1].noise_columns)),
    )
    most = min(ENTRIES / (rows * len(observation.victims)), NOISE_ENTRIES / (rows * sources))
    return min(finished_run.training_run.rounds, max(1, math.isqrt(int(most))))
