"""Whole members on this machine, each a process with its ledger over mutual TLS: `python -m benchmarks.members`.

`many members=50 rounds=20` lets a crowd learn handwritten digits; `long members=4 rounds=1000` shows whether memory
grows over rounds. Memory is counted in shares: a page that some processes have in common counts once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loop import settings
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.rehearsal import MemberProgress, rehearse
from sottovoce.learning.columns import parse_columns
from sottovoce.learning.tables import split_table

SETTINGS = """
name = "digits"
rows = {rows}

[topology]
graph = "{graph}"

[data]
columns = "digits.columns.toml"

[model]
name = "softmax"

[algorithm]
name = "{algorithm}"
step_size = 0.5

[training]
rounds = {rounds}
clip = "per-example"
bound = 1.0

[privacy]
epsilon = 10.0
attackers = "none"

[metrics]
every = 10
"""


def prepare(folder: Path, members: int, rounds: int, graph: str, algorithm: str = "dp-d-sgd") -> Path:
    """Settings and tables of so many members; where the settings are."""
    pixels = [{"name": f"pixel_{row}_{column}", "range": [0, 16]} for row in range(8) for column in range(8)]
    digit = {"name": "digit", "categories": [str(digit) for digit in range(10)]}
    columns = {"target": "digit", "scale_to": [-1, 1], "columns": [*pixels, digit]}
    text = "\n".join(
        "[[columns]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in one.items())
        for one in columns["columns"]
    )
    (folder / "digits.columns.toml").write_text(f'target = "digit"\nscale_to = [-1, 1]\n{text}\n')
    rows = {f"M{number:03}": min(24, 1797 // members - 8) for number in range(members)}
    (folder / "tables").mkdir()
    for name, table in split_table("digits", parse_columns(columns, "digits"), rows, 0).items():
        (folder / "tables" / f"{name}.csv").write_text(table.text)
    inline = "{ " + ", ".join(f"{name} = {count}" for name, count in rows.items()) + " }"
    text = SETTINGS.format(rows=inline, rounds=rounds, graph=graph, algorithm=algorithm)
    (folder / "settings.toml").write_text(text)
    return folder / "settings.toml"


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            found += [child, *descendants(child)]
    return found


def shares(processes: Sequence[int]) -> dict[int, float]:
    """Megabytes of each process, without those that have ended meanwhile."""
    found = {}
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        found[process] = sizes["Pss"] / 1000
    return found


class Watch:
    """Memory of all processes while they play."""

    def __init__(self) -> None:
        self.started, self.first, self.most, self.by_round = time.monotonic(), 0.0, 0.0, {}

    def __call__(self, agreement: Agreement, found: Sequence[MemberProgress]) -> None:
        now = shares(descendants(os.getpid()))
        self.most, round = max(self.most, sum(now.values())), min(one.rounds for one in found)
        if round and not self.first:
            self.first = time.monotonic() - self.started
        if len(now) > len(found):  # beside them there is the process that they were forked from
            self.by_round[round] = (sum(now.values()), max(now.values()))

    def at(self, round: int) -> tuple[float, float]:
        """Megabytes of all, and of the largest, when all had begun so many rounds, or shortly before."""
        return self.by_round[max(one for one in self.by_round if one <= round)]


def play(members: int, rounds: int, graph: str) -> tuple[Watch, list[MemberProgress]]:
    """A whole run; what was seen of it."""
    with tempfile.TemporaryDirectory() as folder:
        place, watch = prepare(Path(folder), members, rounds, graph), Watch()
        _, found = rehearse(place, Path(folder) / "tables", Path(folder) / "rehearsal", watch)
    return watch, found


def many(members: int = 50, rounds: int = 20) -> None:
    """A crowd on a graph with four neighbours each."""
    watch, found = play(members, rounds, f"regular:{members},d=4,seed=0")
    seconds = time.monotonic() - watch.started
    missing = sum(len(one.missing) for one in found)
    accuracy = sum(one.value or 0.0 for one in found) / members
    print(
        f"{members} members, {rounds} rounds: {seconds:.0f} s, the first round after {watch.first:.0f} s; all together "
        f"{watch.most / 1000:.2f} GB at most; mean accuracy {accuracy:.3f} on their own held-out rows; missing in the "
        f"last round {missing}; load {os.getloadavg()[0]:.1f}"
    )  # fmt: skip


def long(members: int = 4, rounds: int = 1000) -> None:
    """A ring over many rounds."""
    watch, _ = play(members, rounds, f"ring:{members}")
    seconds = time.monotonic() - watch.started
    for round in (rounds // 10, rounds // 2, rounds - 10):  # at the end they write their pages
        together, largest = watch.at(round)
        print(f"  round {round:5}: {together:7.1f} MB all together, {largest:6.1f} MB the largest member")
    print(f"{members} members, {rounds} rounds: {seconds:.0f} s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    wanted = {"many": many, "long": long}
    for name in sys.argv[1:2] or wanted:
        wanted[name](**settings(sys.argv[2:]))
