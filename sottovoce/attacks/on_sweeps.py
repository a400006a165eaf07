"""Attacks on all runs of a sweep: the seeds of one variant, at one point of the grid, are attacked together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sottovoce.attacks.run_attacks import attack
from sottovoce.config import Document
from sottovoce.run.callbacks import Progress
from sottovoce.run.sweep_results import Row


class Attacked(NamedTuple):
    """A row of results with what each kind of attack found; nothing where runs went astray."""

    row: Row
    found: dict[str, Document]


def attack_rows(
    rows: Sequence[Row], kinds: Sequence[str], out: Path, *, data: Path | None = None, tell: Progress | None = None
) -> list[Attacked]:
    """Attack the runs of every row by all nodes that were recorded. What is known already is only read."""
    attacked, done = [], 0
    for row in rows:
        found = {}
        for kind in kinds:
            if not any("diverged" in run.result for run in row.runs):
                found[kind] = attack([out / run.run.experiment.name for run in row.runs], kind, data)
            done += 1
            if tell is not None:
                tell(done, len(rows) * len(kinds))
        attacked.append(Attacked(row, found))
    return attacked
