"""Losses of candidates on received models: what every membership attack here is made from.

Candidates of a victim are rows that it trained on, its members, and as many test rows, which nobody trained on. The
attacker sees each model that the victim sent it, noise included, and how large the losses of candidates are there.

Shapes: M rounds, R models, B candidates, F inputs, D parameters.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.attacks.registry import AttackOptions
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import Targets
from sottovoce.learning.engines import VALUES
from sottovoce.learning.tasks import Task
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.recording import Messages
from sottovoce.support.threads import chunks

SAMPLES = AttackOptions.samples
"""So many members of a victim are tried at most, and as many non-members."""

FEWEST_MEMBERS = 10
"""Victims with fewer members are not scored."""

LARGEST_LOSS = 1e30
"""Stands for losses that are not finite."""

Array = NDArray[np.float64]
Positions = NDArray[np.int64]


class Candidates(NamedTuple):
    """Positions among training rows and among test rows."""

    members: Positions
    nonmembers: Positions


@dataclass(frozen=True, eq=False)
class LossSeries:
    """Losses of a victim's candidates on the models that an attacker received from it, a row for each round.

    NaN where nothing was received in a recorded round. A victim of -1 is a sum over all nodes. `run` tells runs apart
    where several are attacked together.
    """

    attacker: int
    victim: int
    rounds: tuple[int, ...]
    members: Array
    nonmembers: Array
    run: int = 0

    def received(self) -> NDArray[np.bool_]:
        """In which of the rounds a model was received."""
        return np.isfinite(self.members[:, 0])


def candidates(job: Task, victim: int, *, samples: int = SAMPLES, spare: int = 0, seed: int = 0) -> Candidates:
    """A victim's members and equally many test rows, drawn with a seed; `spare` test rows are left for other uses.

    They come in pairs of the same label, or of the same user whose ratings they are: else an attack on data that is
    partitioned unevenly would find what a node has much of, not what it trained on.
    """
    held = np.concatenate(job.shards.indices) if victim < 0 else job.shards.indices[victim]
    rng = np.random.default_rng([seed, victim + 1])
    members = rng.choice(held, min(samples, len(held)), replace=False)
    kind, test_kind = _kinds(job, len(job.test_inputs) - spare)
    pairs = [
        _matched(rng, members[kind[members] == one], np.flatnonzero(test_kind == one))
        for one in np.unique(kind[members])
    ]
    found = Candidates(*(np.concatenate(part) for part in zip(*pairs, strict=True)))
    return found if len(found.members) >= FEWEST_MEMBERS else Candidates(np.empty(0, np.int64), np.empty(0, np.int64))


def _kinds(job: Task, tests: int) -> tuple[Targets, Targets]:
    """What each training row and each of the first test rows is: its label, its user, or the same for all."""
    data = job.dataset
    if data.entities and data.groups is not None and data.test_groups is not None:
        return data.groups, data.test_groups[:tests]
    if data.classes:
        return data.targets, data.test_targets[:tests]
    return np.zeros(len(data.targets), np.int64), np.zeros(tests, np.int64)


def _matched(rng: np.random.Generator, members: Positions, tests: Positions) -> Candidates:
    """As many members as non-members."""
    count = min(len(members), len(tests))
    return Candidates(members[:count], rng.choice(tests, count, replace=False))


def attacked_pairs(messages: Messages, attacker: int | None, n: int) -> tuple[tuple[int, int], ...]:
    """All recorded pairs (attacker, victim), or those of one attacker."""
    if attacker is None:
        return messages.pairs
    if not 0 <= attacker < n:
        raise InputError(f"attacker {attacker}", f"nodes are 0..{n - 1}", "choose one of them")
    if attacker not in messages.attackers:
        known = ", ".join(map(str, messages.attackers[:8])) + (", ..." if len(messages.attackers) > 8 else "")
        raise InputError(
            f"attacker {attacker}", f"what was recorded is what {known} received", "choose one of them, or record more"
        )
    return tuple(pair for pair in messages.pairs if pair[0] == attacker)


def attacked_pairs_of(finished_run: FinishedRun, attacker: int | None) -> tuple[tuple[int, int], ...]:
    """All recorded pairs (attacker, victim) of a finished run, or those of one attacker."""
    return attacked_pairs(finished_run.messages, attacker, finished_run.training_run.topology.n)


def candidates_of(
    job: Task, pairs: Sequence[tuple[int, int]], *, samples: int = SAMPLES, spare: int = 0, seed: int = 0
) -> dict[int, Candidates]:
    """Candidates of every victim that has enough of them; refused if no victim has."""
    victims = sorted({victim for _, victim in pairs})
    every = {victim: candidates(job, victim, samples=samples, spare=spare, seed=seed) for victim in victims}
    found = {victim: chosen for victim, chosen in every.items() if len(chosen.members)}
    if not found:
        held = "no victim" if not victims else f"victims with at most {max(_held(job, v) for v in victims)} members"
        raise InputError(
            f"{held} and {len(job.test_inputs)} test rows, of which at most {samples} are tested",
            f"fewer than {FEWEST_MEMBERS} members, or test rows, are too few to score",
            "attack a run with more rows for each node, or raise --samples",
        )
    return found


def _held(job: Task, victim: int) -> int:
    return sum(map(len, job.shards.indices)) if victim < 0 else len(job.shards.indices[victim])


def loss_series(
    job: Task,
    messages: Messages,
    pairs: Sequence[tuple[int, int]],
    chosen: dict[int, Candidates],
    *,
    rounds: Sequence[int] | None = None,
    run: int = 0,
) -> list[LossSeries]:
    """The losses of chosen candidates on what was recorded, one series for each pair whose victim has candidates."""
    rounds = tuple(messages.rounds if rounds is None else rounds)
    found = {pair: blank_series(*pair, rounds, chosen[pair[1]], run) for pair in pairs if pair[1] in chosen}
    for at, round in enumerate(rounds):
        for pair, (members, nonmembers) in _of_round(job, messages, round, found.keys(), chosen):
            found[pair].members[at], found[pair].nonmembers[at] = members, nonmembers
    return list(found.values())


def blank_series(attacker: int, victim: int, rounds: tuple[int, ...], of: Candidates, run: int) -> LossSeries:
    """A series to be filled, as if nothing had been received."""
    members, nonmembers = (np.full((len(rounds), len(part)), np.nan) for part in of)
    return LossSeries(attacker, victim, rounds, members, nonmembers, run)


def losses_on_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> list[LossSeries]:
    """The losses of every attacked victim's candidates on what finished runs recorded."""
    found = []
    for number, run in enumerate(finished_runs):
        job, pairs = run.training_run.task, attacked_pairs_of(run, options.attacker)
        chosen = candidates_of(job, pairs, samples=options.samples, seed=options.seed)
        found += loss_series(job, run.messages, pairs, chosen, run=number)
    return found


def _of_round(
    job: Task, messages: Messages, round: int, wanted: Container[tuple[int, int]], chosen: dict[int, Candidates]
) -> list[tuple[tuple[int, int], tuple[Array, Array]]]:
    """For each wanted pair of a round its losses; a model that several attackers received is tried once."""
    sender, receiver, row, rows = messages.at(round)
    pairs = list(zip(receiver.tolist(), sender.tolist(), strict=True))
    used = [number for number, pair in enumerate(pairs) if pair in wanted]
    if not used:
        return []
    tried, position = np.unique(row[used], return_inverse=True)
    of = dict(zip(row[used].tolist(), sender[used].tolist(), strict=True))
    models = torch.from_numpy(rows[tried]).to(job.inputs.dtype)
    own = [chosen[of[number]] for number in tried.tolist()]
    losses = losses_of_candidates(job, models, own)
    return [(pairs[number], losses[at]) for number, at in zip(used, position.tolist(), strict=True)]


def losses_of_candidates(job: Task, models_RD: Tensor, chosen: Sequence[Candidates]) -> list[tuple[Array, Array]]:
    """For each model the losses of its victim's members, which are training rows, and non-members, test rows."""
    members = losses_of(job, models_RD, job.inputs, job.targets, [one.members for one in chosen])
    nonmembers = losses_of(job, models_RD, job.test_inputs, job.test_targets, [one.nonmembers for one in chosen])
    return list(zip(members, nonmembers, strict=True))


@torch.no_grad()
def losses_of(job: Task, models_RD: Tensor, inputs: Tensor, targets: Tensor, rows: Sequence[Positions]) -> list[Array]:
    """The losses of some rows on each model, all models at once as far as they fit into memory.

    In double precision: in single precision all rows that a model is sure of would have the same loss, 0.
    """
    longest = max(map(len, rows))
    padded = torch.from_numpy(np.stack([np.resize(one, longest) for one in rows]))
    found: list[Array] = []
    for some in chunks(len(rows), max(1, VALUES // (longest * inputs.shape[1]))):
        models, picked = models_RD[some], padded[some]
        parts = []
        for examples in chunks(longest, job.engine.examples_at_once(len(models), inputs.shape[1])):
            at = picked[:, examples]
            shown = inputs.index_select(0, at.flatten()).view(*at.shape, -1)
            parts.append(job.model.loss.each(job.engine.outputs(models, shown).double(), targets[at]))
        whole = torch.cat(parts, dim=1).nan_to_num(nan=LARGEST_LOSS, posinf=LARGEST_LOSS).clamp(max=LARGEST_LOSS)
        found += list(whole.numpy())
    return [losses[: len(one)] for losses, one in zip(found, rows, strict=True)]
