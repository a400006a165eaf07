"""Input canaries: mislabelled examples among a victim's rows, each in or out by its own coin, in real reruns.

Canary i replaces row i of the victim where its coin says so: a change of one record. All canaries of a rerun are in it
together, and reruns are independent, so that all of them are one large run of Steinke, Nasr and Jagielski's method
(`lower_bound`): changing one coin changes one record of one rerun. The score is by how much the loss of the canary is
lower, on the models that an attacker received of the victim, than in a first rerun without any canary, about which
nothing is guessed.

What this shows is real training, clipping and batches included, not only the mechanism; and it is weak: a loss on noisy
models is far from the best distinguisher.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.attacks.candidate_losses import losses_of
from sottovoce.auditing.claim_checks import Claim, ClaimCheck, claims_about
from sottovoce.auditing.lower_bound import audit_one_run
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.views import node_numbers
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.rerun import load_or_compute, open_run_once, record_rerun, with_other_rows
from sottovoce.support.config import RecordingSettings
from sottovoce.support.npz import Arrays
from sottovoce.support.progress import Note, Progress
from sottovoce.support.threads import threads

MOST = 100
"""So many canaries are planted in a rerun at most, in half of the victim's rows at most."""

MODELS = 10
"""About so many received models are looked at."""

SEARCHED_ROUNDS = 20
"""In so many first rounds of a changing topology the senders to an attacker are looked for."""


class RerunSettings(NamedTuple):
    """What a rerun needs to know, in whichever process it runs."""

    folder: Path
    data: Path | None
    own: bool
    attacker: int
    victim: int
    seed: int


def audit_inputs(
    finished_run: FinishedRun,
    *,
    runs: int,
    attacker: int | None = None,
    confidence: float = 0.999,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> ClaimCheck:
    """Audit a run by reruns with input canaries at a neighbour of the attacker; finished reruns are stored.

    Only those are used again that this user has made; a `note` says if there are others.
    """
    if runs < 1:
        raise InputError(f"{runs} reruns", "there must be at least one", "give 8, for example")
    attacker, victim = _attacker_and_victim(finished_run, attacker)
    settings = RerunSettings(finished_run.folder, finished_run.data, finished_run.own, attacker, victim, seed)
    about = {"attacker": attacker, "victim": victim, "seed": seed}
    found = load_or_compute(
        finished_run, RunFiles(finished_run.folder).reruns, partial(_rerun, settings), runs + 1, about=about, jobs=jobs,
        progress=progress, note=note,
    )  # fmt: skip
    scores = np.concatenate([found[0]["losses"] - one["losses"] for one in found[1:]])
    coins = np.concatenate([one["coins"] for one in found[1:]])
    bounds = audit_one_run(
        scores,
        coins,
        guesses=max(2, len(coins) // 2),
        delta=finished_run.experiment.privacy.delta,
        confidence=confidence,
    )
    claims = _covering_claims(finished_run.privacy, f"node:{attacker}", victim)
    return ClaimCheck(
        canaries=f"inputs, {len(coins)} in {runs} reruns, node {attacker} listens to {victim}",
        audit=bounds, claims=claims, rounds=finished_run.training_run.rounds, view=f"node:{attacker}",
    )  # fmt: skip


def _attacker_and_victim(finished_run: FinishedRun, attacker: int | None) -> tuple[int, int]:
    """The attacker, and whom it hears of those with the fewest rows: what a row does there is hidden least.

    Unless named, the attacker is the first that was recorded, or else the first node that hears such a one.
    """
    training_run, record = finished_run.training_run, finished_run.experiment.record.attackers
    n, held = training_run.topology.n, [len(rows) for rows in training_run.task.shards.indices]
    if attacker is not None and not 0 <= attacker < n:
        raise InputError(f"attacker {attacker}", f"nodes are 0..{n - 1}", "choose one of them")
    recorded = node_numbers(record, training_run.topology.names) if isinstance(record, list) else []
    tried = [attacker] if attacker is not None else [*recorded, *range(n)]
    for one in () if training_run.algorithm.secure_sum else tried:
        able = [node for node in _senders_to(finished_run, one) if held[node] >= 2]
        if able:
            return one, min(able, key=lambda node: (held[node], node))
    if attacker is None:
        raise Unaccountable(
            "input canaries replace half of the rows of a node, and no node receives from a single node with two "
            "rows or more"
        )
    raise InputError(
        f"node {attacker} receives from no single node that holds two rows or more",
        "canaries replace half of the rows of such a node",
        "choose another --attacker, or --runs 0",
    )  # fmt: skip


def _senders_to(finished_run: FinishedRun, attacker: int) -> list[int]:
    """The nodes that the attacker hears, in the first rounds if the topology changes."""
    net = finished_run.training_run.topology
    found = set()
    for round in range(1 if net.static else min(finished_run.training_run.rounds, SEARCHED_ROUNDS)):
        sender, receiver, _ = net.at(round, 0).edges
        found |= set(sender[(receiver == attacker) & (sender != attacker)].tolist())
    return sorted(found)


def _canaries(finished_run: FinishedRun, victim: int, seed: int) -> tuple[NDArray[np.int64], Tensor]:
    """Numbers of test rows, each with a target that is wrong: another class, or the value farthest away."""
    job = finished_run.training_run.task
    held = len(job.shards.indices[victim])
    count = min(MOST, held // 2, len(job.test_inputs))
    rng = np.random.default_rng([seed, victim])
    rows = rng.choice(len(job.test_inputs), count, replace=False)
    targets, classes = job.test_targets[rows], len(job.dataset.classes)
    if classes:
        return rows, ((targets + 1) % classes).to(targets.dtype)
    low, high = job.targets.min(), job.targets.max()
    return rows, torch.where(targets - low > high - targets, low, high)


def _rerun(settings: RerunSettings, number: int) -> Arrays:
    """One rerun: its coins, and the losses of all canaries on the models received from the victim later on."""
    finished_run = open_run_once(settings.folder, settings.data, settings.own)
    training_run, (chosen, targets) = finished_run.training_run, _canaries(finished_run, settings.victim, settings.seed)
    job, count = training_run.task, len(chosen)
    canaries = torch.from_numpy(job.dataset.test_inputs[chosen]), targets
    coins = np.random.default_rng([settings.seed, settings.victim, number]).integers(0, 2, count).astype(bool) & (
        number > 0
    )
    rows = job.shards.indices[settings.victim].copy()
    first = len(job.inputs) + len(job.test_inputs)
    rows[:count][coins] = first + np.flatnonzero(coins)
    seed = int(np.random.SeedSequence([training_run.seed, settings.seed, number, 1]).generate_state(1)[0])
    every = max(1, training_run.rounds // (2 * MODELS)) if training_run.topology.static else 1
    record = RecordingSettings(every=every, limit_mb=finished_run.experiment.record.limit_mb)
    messages = record_rerun(
        with_other_rows(finished_run, seed, {settings.victim: rows}, canaries), record, [settings.attacker]
    )
    models = torch.from_numpy(messages.of(settings.attacker, settings.victim)).to(job.inputs.dtype)
    later = models[len(models) // 2 :]
    with threads():
        losses = losses_of(job, later, job.test_inputs[chosen], targets, [np.arange(count)] * len(later))
    return {"coins": coins, "losses": np.mean(losses, axis=0)}


def _covering_claims(privacy: PrivacyDocument, view: str, victim: int) -> tuple[Claim, ...]:
    """Claims that cover training: of this view, and of everyone, who hears what it hears."""
    found = [*claims_about(privacy, view, victim), *claims_about(privacy, "everyone", victim)]
    covering = [claim for claim in found if claim.kind != Kind.FIXED_STREAMS]
    if privacy.sampled is not None and privacy.sampled.change == "replace":
        epsilon = privacy.sampled.epsilon
        covering.append(Claim(view="everyone", victim=None, kind="sampled", mu=None, epsilon=epsilon))
    return tuple(covering)
