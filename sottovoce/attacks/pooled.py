"""The pooled attack: one attacker, or several together, on all that they received, about nodes near and far.

Of a victim that some of them hear, the model is the mean of the copies they got of it in a round: noise that differs
from edge to edge averages out, and zero-sum noise cancels where enough neighbours collude. About a victim that none of
them hears they have the mean of all models received. A low loss there speaks for a member, as in the threshold attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csgraph

from sottovoce.attacks.candidate_losses import (
    Array,
    Candidates,
    LossSeries,
    attacked_pairs_of,
    blank_series,
    candidates_of,
    losses_of_candidates,
)
from sottovoce.attacks.evaluation import MembershipResult
from sottovoce.attacks.registry import AttackOptions
from sottovoce.attacks.threshold import threshold
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Task
from sottovoce.privacy.views import View, ViewKind, parse_view
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.recording import Messages, RecordedRound


class Group(NamedTuple):
    """Who attacks together: they have what `receivers` received, and `members` are no victims."""

    receivers: tuple[int, ...]
    members: tuple[int, ...]


def pooled_loss_series(
    job: Task, messages: Messages, groups: Sequence[Group], chosen: dict[int, Candidates], *, run: int = 0
) -> list[LossSeries]:
    """The losses of every victim's candidates on what each group can make of a round; a series bears its number."""
    found = {
        (number, victim): blank_series(number, victim, messages.rounds, chosen[victim], run)
        for number, group in enumerate(groups)
        for victim in chosen
        if victim not in group.members
    }
    for at, round in enumerate(messages.rounds):
        delivery = messages.at(round)
        for number, group in enumerate(groups):
            victims = [victim for victim in chosen if (number, victim) in found]
            models = models_of(delivery, group, victims)
            if models is None:
                continue
            stacked = torch.from_numpy(models).to(job.inputs.dtype)
            losses = losses_of_candidates(job, stacked, [chosen[victim] for victim in victims])
            for victim, (members, nonmembers) in zip(victims, losses, strict=True):
                one = found[number, victim]
                one.members[at], one.nonmembers[at] = members, nonmembers
    return [one for one in found.values() if one.received().any()]


def models_of(delivery: RecordedRound, group: Group, victims: Sequence[int]) -> Array | None:
    """For each victim the model that a group has for it after a round; None where it received nothing."""
    received = np.isin(delivery.receiver, group.receivers) & ~np.isin(delivery.sender, group.members)
    if not received.any():
        return None
    models = delivery.rows[delivery.row[received]].astype(np.float64)
    sender = delivery.sender[received]
    return np.stack([models[sender == one].mean(axis=0) if one in sender else models.mean(axis=0) for one in victims])


def pooled(
    found: Sequence[LossSeries], groups: Sequence[Group], net: Topology, *, confidence: float = 0.95, seed: int = 0
) -> MembershipResult:
    """The attack on every group and victim, and by how many hops victims are from the nearest member."""
    whole = threshold(found, confidence=confidence, seed=seed)
    apart: dict[int, list[LossSeries]] = {}
    hops = None if net.graph is None else csgraph.shortest_path(net.graph.adjacency, method="D", unweighted=True)
    for one in found:
        members = list(groups[one.attacker].members)
        if members and hops is not None and np.isfinite(hops[one.victim, members].min()):
            apart.setdefault(int(hops[one.victim, members].min()), []).append(one)
    near = [(far, threshold(apart[far], confidence=confidence, seed=seed).auc) for far in sorted(apart)]
    return replace(whole, method="pooled", by_distance=tuple(near))


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> MembershipResult:
    """The attack on finished runs, by each recorded node alone or by those that a view pools."""
    groups, net = _groups(finished_runs[0], options), finished_runs[0].training_run.topology
    found = []
    for number, run in enumerate(finished_runs):
        job = run.training_run.task
        every = [(0, victim) for victim in range(net.n)]
        chosen = candidates_of(job, every, samples=options.samples, seed=options.seed)
        found += pooled_loss_series(job, run.messages, groups, chosen, run=number)
    if not found:
        raise InputError("nobody to attack", "attackers received no model of another node", "choose other attackers")
    return pooled(found, groups, net, confidence=options.confidence, seed=options.seed)


def _groups(finished_run: FinishedRun, options: AttackOptions) -> list[Group]:
    """Every recorded node by itself, or the members of a view."""
    if options.view is not None:
        return [_group_of(finished_run, options.view)]
    attacked_pairs_of(finished_run, options.attacker)
    attackers = finished_run.messages.attackers if options.attacker is None else (options.attacker,)
    return [Group((one,), (one,)) for one in attackers]


def _group_of(finished_run: FinishedRun, name: str | View) -> Group:
    net = finished_run.training_run.topology
    view, n = parse_view(name, labels=net.names), net.n
    view.check(n)
    if view.kind not in (ViewKind.EVERYONE, ViewKind.COALITION) or view.secure_sum:
        raise InputError(
            f"view {view}", "only what nodes received was recorded", "use everyone, node:A or coalition:A,B"
        )
    receivers = tuple(range(n)) if view.kind is ViewKind.EVERYONE else view.members
    missing = sorted(set(receivers) - set(finished_run.messages.attackers))
    if missing:
        raise InputError(
            f"{view}: node {missing[0]} was not recorded", "attacks need what was received", "record more attackers"
        )
    return Group(receivers, view.members)
