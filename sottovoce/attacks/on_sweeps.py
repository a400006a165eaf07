"""Attacks on all runs of a sweep: the seeds of one variant, at one point of the grid, are attacked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.attacks.registry import MEMBERSHIP_ATTACKS, Attack, names_of
from sottovoce.errors import InputError
from sottovoce.run.sweep import SweepRow, SweepRun
from sottovoce.support.config import Document

if TYPE_CHECKING:
    from sottovoce.support.progress import Progress


@dataclass(frozen=True)
class AttackedRow:
    """A row of a sweep's results with what each attack found, by its name; empty where a run diverged."""

    row: SweepRow
    found: dict[str, Document]


def check_attacks(document: Document, runs: Sequence[SweepRun]) -> tuple[Attack, ...]:
    """The attacks that a sweep asks for; refuses unknown ones, and runs that do not record what an attack needs."""
    names = document.get("attacks", [])
    known = [attack.name for attack in MEMBERSHIP_ATTACKS]
    if not isinstance(names, list) or not all(name in known for name in names):
        example = f'["{MEMBERSHIP_ATTACKS[0].name}"]'
        raise InputError(f"attacks = {names}", f"known: {names_of(MEMBERSHIP_ATTACKS)}", f"write attacks = {example}")
    attacks = tuple(MEMBERSHIP_ATTACKS[known.index(name)] for name in names)
    unrecorded = next((run.experiment for run in runs if run.experiment.record.attackers in ("none", [])), None)
    if unrecorded is not None and any(attack.needs_recording for attack in attacks):
        raise InputError(
            f"attacks on {unrecorded.name}, which records nothing", "attacks need what attackers received",
            'write record.attackers = "all"',
        )  # fmt: skip
    return attacks


def attack_rows(
    rows: Sequence[SweepRow],
    attacks: Sequence[Attack],
    out: Path,
    *,
    data: Path | None = None,
    progress: Progress | None = None,
) -> list[AttackedRow]:
    """Attack the runs of every row by all nodes that were recorded. Stored results are only read."""
    from sottovoce.attacks.run_attacks import attack_unless_stored  # loads torch, which `check_attacks` does without

    attacked, done = [], 0
    for row in rows:
        found = {}
        for attack in attacks:
            if not row.diverged:
                folders = [out / one.run.experiment.name for one in row.runs]
                found[attack.name] = attack_unless_stored(folders, attack.name, data)
            done += 1
            if progress is not None:
                progress(done, len(rows) * len(attacks))
        attacked.append(AttackedRow(row, found))
    return attacked
