"""The pooled attack: one attacker, or several together, on all that they received, about nodes near and far.

Of a victim that some of them hear, the model is the mean of the copies they got of it in a round: noise that differs
from edge to edge averages out, and zero-sum noise cancels where enough neighbours conspire. About a victim that none of
them hears they have the mean of all models received. A low loss there speaks for a member, as in the threshold attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csgraph

from sottovoce.attacks.candidate_losses import Array, Candidates, Series, losses_of
from sottovoce.attacks.evaluation import Success
from sottovoce.attacks.threshold import threshold
from sottovoce.core.topologies import Topology
from sottovoce.learning.tasks import Task
from sottovoce.run.recording import Messages, RecordedRound


class Group(NamedTuple):
    """Who attacks together: what reaches `hears` is theirs, and `members` are no victims."""

    hears: tuple[int, ...]
    members: tuple[int, ...]


def pooled_series(
    job: Task, messages: Messages, groups: Sequence[Group], chosen: dict[int, Candidates], *, run: int = 0
) -> list[Series]:
    """The losses of every victim's candidates on what each group can make of a round; a series bears its number."""
    found = {
        (number, victim): Series(number, victim, messages.rounds, *_blank(len(messages.rounds), chosen[victim]), run)
        for number, group in enumerate(groups)
        for victim in chosen
        if victim not in group.members
    }
    for at, round in enumerate(messages.rounds):
        got = messages.at(round)
        for number, group in enumerate(groups):
            victims = [victim for victim in chosen if (number, victim) in found]
            models = models_of(got, group, victims)
            if models is None:
                continue
            stacked = torch.from_numpy(models).to(job.inputs.dtype)
            members = losses_of(job, stacked, job.inputs, job.targets, [chosen[one].members for one in victims])
            others = losses_of(job, stacked, job.test_inputs, job.test_targets, [chosen[one].others for one in victims])
            for victim, mine, theirs in zip(victims, members, others, strict=True):
                one = found[number, victim]
                one.members[at], one.others[at] = mine, theirs
    return [one for one in found.values() if one.came().any()]


def _blank(rounds: int, of: Candidates) -> tuple[Array, Array]:
    return np.full((rounds, len(of.members)), np.nan), np.full((rounds, len(of.others)), np.nan)


def models_of(got: RecordedRound, group: Group, victims: Sequence[int]) -> Array | None:
    """For each victim the model that a group has for it after a round; None where nothing came."""
    theirs = np.isin(got.receiver, group.hears) & ~np.isin(got.sender, group.members)
    if not theirs.any():
        return None
    whole = got.rows[got.row[theirs]].astype(np.float64)
    sender = got.sender[theirs]
    return np.stack([whole[sender == one].mean(axis=0) if one in sender else whole.mean(axis=0) for one in victims])


def pooled(
    found: Sequence[Series], groups: Sequence[Group], net: Topology, *, confidence: float = 0.95, seed: int = 0
) -> Success:
    """The attack on every group and victim, and by how many hops victims are from the nearest member."""
    whole = threshold(found, confidence=confidence, seed=seed)
    apart: dict[int, list[Series]] = {}
    hops = None if net.graph is None else csgraph.shortest_path(net.graph.adjacency, method="D", unweighted=True)
    for one in found:
        members = list(groups[one.attacker].members)
        if members and hops is not None and np.isfinite(hops[one.victim, members].min()):
            apart.setdefault(int(hops[one.victim, members].min()), []).append(one)
    near = [(far, threshold(apart[far], confidence=confidence, seed=seed).auc) for far in sorted(apart)]
    return whole.named("pooled", near)
