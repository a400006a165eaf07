"""Clinics of a federation on loopback: each with its folder, table and ledger, in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.assembly import assemble_agreement
from sottovoce.federation.identity import create_identity, locked_identity
from sottovoce.federation.joining import join_federation, member_number, member_table
from sottovoce.federation.member_folder import LEDGER, MemberSettings, run_folder
from sottovoce.federation.member_run import Watch
from sottovoce.federation.metrics import Metrics
from sottovoce.federation.rehearsal import free_ports
from sottovoce.ledger.database import Database, open_ledger
from tests.federation.federation import COLUMNS

NAMES = ("Hill", "Mercy", "North", "South")
ROWS = 12

SETTINGS = """
name = "clinics"
seed = 3
precision = "{precision}"
{more}

[rows]
{rows}

[topology]
graph = "{graph}"

[data]
columns = "patients.columns.toml"

[model]
{model}

[algorithm]
{algorithm}

[training]
rounds = {rounds}
clip = "per-example"
bound = 1.0
{batches}

[privacy]
{privacy}

[metrics]
every = {every}
"""

DP_D_SGD = 'name = "dp-d-sgd"\nstep_size = 0.5'
QUICK = MemberSettings(gather=20.0, patience=20.0)
"""Seconds on a busy machine; nobody waits for so long where nothing went wrong."""


@dataclass
class Clinics:
    """Members of one federation, in a folder, and what was told of each."""

    folder: Path
    names: tuple[str, ...] = NAMES[:3]
    addresses: tuple[str, ...] = ()
    events: dict[str, list[tuple[str, dict]]] = field(default_factory=lambda: defaultdict(list))
    metrics: dict[str, Metrics] = field(default_factory=lambda: defaultdict(Metrics))

    def __post_init__(self) -> None:
        (self.folder / "patients.columns.toml").write_text(COLUMNS)
        rng = np.random.default_rng(0)
        addresses = self.addresses or [f"127.0.0.1:{port}" for port in free_ports(len(self.names))]
        for name, address in zip(self.names, addresses, strict=True):
            create_identity(name, self.folder / name, address=address)
            lines = ["patient,age,ward,readmitted"]
            for number in range(ROWS + 4):
                age, ward, again = rng.integers(20, 95), rng.choice(["east", "west"]), rng.choice(["no", "yes"])
                lines.append(f"{name} {number},{age},{ward},{again}")
            (self.folder / f"{name}.csv").write_text("\n".join(lines) + "\n")

    def agree(
        self,
        algorithm: str = DP_D_SGD,
        *,
        graph: str | None = None,
        rounds: int = 4,
        batches: str = "",
        privacy: str = "epsilon = 3.0",
        model: str = 'name = "logistic"',
        every: int = 2,
        precision: str = "float32",
        more: str = "",
        out: str = "agreement.toml",
    ) -> Agreement:
        """An agreement of all of them; each call makes another one."""
        text = SETTINGS.format(
            rows="\n".join(f"{name} = {ROWS}" for name in self.names), graph=graph or f"path:{len(self.names)}",
            algorithm=algorithm, rounds=rounds, batches=batches, privacy=privacy,
            model=model, every=every, precision=precision, more=more,
        )  # fmt: skip
        (self.folder / "settings.toml").write_text(text)
        files = [self.folder / f"{name}.member.toml" for name in self.names]
        agreement = assemble_agreement(self.folder / "settings.toml", files)
        (self.folder / out).write_text(agreement.toml())
        return read_agreement(self.folder / out)

    def join(
        self, agreement: Agreement, name: str, *, resume: bool = False, settings: MemberSettings = QUICK
    ) -> dict[str, object]:
        """Take part as one of them, as `sotto peer join` does."""
        with locked_identity(self.folder / name, agreement) as identity:
            member_number(agreement, identity)
            table = member_table(agreement, identity, settings, self.folder / f"{name}.csv")
            events = self.events[name]
            watch = Watch(lambda played, rounds: None, lambda *told: events.append(told), self.metrics[name])
            return join_federation(identity, agreement, table, settings, resume=resume, watch=watch)

    def play(self, acts: Mapping[str, Callable[[], object]]) -> dict[str, object]:
        """What each of these does, at the same time, each in a thread with its name; what it returned or raised."""
        with ThreadPoolExecutor(len(acts)) as threads:
            futures = {name: threads.submit(_named, name, act) for name, act in acts.items()}
        return {name: future.exception() or future.result() for name, future in futures.items()}

    def run(self, agreement: Agreement, acts: Mapping[str, Callable[[], object]] | None = None) -> dict[str, object]:
        """All take part to the end; `acts` has what some do instead."""
        usual = {name: lambda name=name: self.join(agreement, name) for name in self.names}
        return self.play(usual | dict(acts or {}))

    @contextmanager
    def ledger(self, name: str) -> Iterator[Database]:
        """The ledger of a member, to be read."""
        with open_ledger(self.folder / name / LEDGER, read_only=True) as database:
            yield database

    def run_folder(self, agreement: Agreement, name: str) -> Path:
        return run_folder(self.folder / name, agreement)

    def lines(self, agreement: Agreement, name: str, file: str) -> list[dict]:
        """The lines of one of a run's files."""
        text = (self.run_folder(agreement, name) / file).read_text()
        return [json.loads(line) for line in text.splitlines()]


def _named(name: str, act: Callable[[], object]) -> object:
    threading.current_thread().name = name
    return act()
