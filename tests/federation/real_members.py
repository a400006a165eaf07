"""Members of a federation as real processes of `sotto peer join`, which tests kill, stop and cut off.

Each is forked from a process that has imported everything and opened no connection, and is otherwise what a user
starts: its own folder, ledger, certificate and connections over loopback or between network namespaces. One thing is
added to it: every message that arrives is written to a file before the member looks at it, so that what was really
seen is known whatever happened to the ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.frames import Reason
from sottovoce.federation.member_folder import SETTINGS, whole_lines
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import Steps
from sottovoce.privacy.composition import compose
from sottovoce.support.text import to_toml
from tests.federation.clinics import Clinics
from tests.forked import ENVIRONMENT, Command
from tests.ledger.verified import verify

LONGEST = 300.0
"""Seconds after which a test gives up on a process, on a busy machine too."""

WRONG_TIME = {Reason.TOO_EARLY.value, Reason.TOO_OLD.value}
"""Why messages of members that follow the agreement may be refused."""

Seen = dict[tuple[str, str, Place], set[str]]
"""What arrived: hashes by receiver, sender and place."""


def watch_arrivals(path: Path) -> None:
    """In a member's process: write down every message that arrives, before anything is done with it."""
    from sottovoce.federation.links import Mailbox
    from sottovoce.ledger.steps import digest_of

    take, lines = Mailbox.take, os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def taken(mailbox, sender, place, payload, *more):
        line = json.dumps([sender, place.round, place.step, digest_of(payload)])
        os.write(lines, f"{line}\n".encode())
        return take(mailbox, sender, place, payload, *more)

    Mailbox.take = taken


def slow_rounds(seconds: float) -> None:
    """In a member's process: every gradient takes so much longer, so that there is time for a fault."""
    from sottovoce.federation.journal import RecordedInputs

    gradient = RecordedInputs.gradient

    def slowly(inputs, round, point):
        threading.Event().wait(seconds)
        return gradient(inputs, round, point)

    RecordedInputs.gradient = slowly


def watch_waiting(path: Path) -> None:
    """In a member's process: write down how long each round has waited for others so far."""
    from sottovoce.federation.attendance import Patience

    wait, lines = Patience.wait, os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def waited(patience, place, members, attempt):
        left = wait(patience, place, members, attempt)
        os.write(lines, f"{json.dumps([place.round, patience._spent])}\n".encode())
        return left

    Patience.wait = waited


def prepare(steps: tuple[Callable[[], None], ...]) -> None:
    """What a process does before it is a member."""
    for step in steps:
        step()


class Interpreter:
    """`sotto` in a new interpreter, with a `Command`'s methods."""

    def __init__(self, place: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce", *words], cwd=place, env={**ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def communicate(self) -> tuple[str, str]:
        return self._process.communicate()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class RealMembers:
    """The processes of one agreement's members. `patience` and `gather` are settings of all of them."""

    clinics: Clinics
    agreement: Agreement
    patience: float = 60.0
    gather: float = 60.0
    within: dict[str, tuple[Callable[[], None], ...]] = field(default_factory=dict)
    processes: dict[str, Command | Interpreter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, member in zip(self.clinics.names, self.agreement.members, strict=True):
            assert name == member.name
            settings = {"gather": self.gather, "patience": self.patience, "bind": member.address}
            (self.clinics.folder / name / SETTINGS).write_text(to_toml(settings))
        (self.clinics.folder / self.agreement_file).write_text(self.agreement.toml())

    @property
    def agreement_file(self) -> str:
        return f"{self.agreement.hash[:8]}.toml"

    def start(self, name: str) -> Command:
        """Let a member take part, or go on."""
        folder = self.clinics.folder
        log = folder / f"{name}.{self.agreement.hash[:8]}"
        place = folder / f"{name} prints" / f"{time.monotonic_ns()}"
        place.mkdir(parents=True)
        watching = partial(watch_arrivals, Path(f"{log}.seen")), partial(watch_waiting, Path(f"{log}.waited"))
        steps = (*watching, *self.within.get(name, ()))
        process = Command(place, folder, *self._words(name), before=partial(prepare, steps))
        self.processes[name] = process
        return process

    def start_interpreter(self, name: str, environment: dict[str, str]) -> Interpreter:
        """Let a member take part as a new interpreter, with something in its environment; arrivals are not watched."""
        process = Interpreter(self.clinics.folder, self._words(name), environment)
        self.processes[name] = process
        return process

    def _words(self, name: str) -> tuple[str, ...]:
        log = f"{name}.{self.agreement.hash[:8]}.jsonl"
        return (
            "peer", "join", self.agreement_file, "--folder", name, "--data", f"{name}.csv", "--log", log, "--json",
            "--resume",
        )  # fmt: skip

    def start_all(self) -> None:
        for name in self.clinics.names:
            self.start(name)

    def kill(self, name: str) -> None:
        """kill -9, and wait until it is gone."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(LONGEST)

    def ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def codes(self) -> dict[str, int | None]:
        """Wait until all have ended; with what code."""
        for process in self.processes.values():
            process.wait(LONGEST)
        return {name: process.returncode for name, process in self.processes.items()}

    def end(self) -> None:
        """Nothing is left of them."""
        for process in self.processes.values():
            process.end()

    # --- what they left behind ---------------------------------------------------------------------------------------

    def rounds_heard(self, name: str) -> int:
        """In how many steps a member has finished listening so far."""
        return len(self.attendance(name))

    def attendance(self, name: str) -> list[dict]:
        path = self.clinics.run_folder(self.agreement, name) / "attendance.jsonl"
        return [json.loads(line) for line in whole_lines(path)]

    def events(self, name: str, kind: str) -> list[dict]:
        """What a member's log says of one kind."""
        lines = whole_lines(self.clinics.folder / f"{name}.{self.agreement.hash[:8]}.jsonl")
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def waited(self, name: str) -> dict[int, float]:
        """How many seconds a member has waited for others, by round; the last is the end of the run."""
        lines = whole_lines(self.clinics.folder / f"{name}.{self.agreement.hash[:8]}.waited")
        return dict(json.loads(line) for line in lines)

    def until_heard(self, name: str, steps: int) -> None:
        """Wait until a member has listened in so many steps; it must not end before."""
        deadline = time.monotonic() + LONGEST
        while self.rounds_heard(name) < steps:
            assert not self.processes[name].wait(0.01), self.processes[name].communicate()
            assert time.monotonic() < deadline

    def missed(self) -> set[tuple[str, str, int]]:
        """Who missed whom in which round."""
        return {
            (name, gone, line["round"])
            for name in self.clinics.names
            for line in self.attendance(name)
            for gone in line["missing"]
        }

    def seen(self) -> Seen:
        """All that arrived anywhere."""
        found: Seen = defaultdict(set)
        for name in self.clinics.names:
            for line in whole_lines(self.clinics.folder / f"{name}.{self.agreement.hash[:8]}.seen"):
                sender, round, step, digest = json.loads(line)
                found[name, self.agreement.names[sender], Place(round, step)].add(digest)
        return found

    def spent(self, name: str) -> tuple[int, float]:
        """The rounds for which a member's ledger has counted, and its epsilon so far; none where there is no ledger."""
        try:
            with self.clinics.ledger(name) as database:
                found = Spending(database).lineage(DEFAULT).runs
        except InputError:  # killed before it was made
            found = ()
        runs = [run for run in found if run.planned.run == self.agreement.run]
        return (runs[0].round, compose([runs[0].spent]).epsilon(self.agreement.privacy.delta)) if runs else (0, 0.0)

    def check_what_was_seen(self) -> int:
        """One message was seen for each place, that of its sender's ledger, and ledgers say what was seen; how many."""
        seen, ledgers = self.seen(), {}
        watched = {name for name, process in self.processes.items() if isinstance(process, Command)}
        for name in self.clinics.names:
            with self.clinics.ledger(name) as database:
                steps = Steps(database, self.agreement.run)
                verify(steps)
                places = {place for receiver, sender, place in seen if name in (receiver, sender)}
                ledgers[name] = {place: steps.step(place) for place in places}
        for (receiver, sender, place), digests in seen.items():
            sent = ledgers[sender][place]
            assert sent is not None, f"{receiver} saw {place} of {sender}, whose ledger knows nothing of it"
            assert digests == {sent.sent[receiver]}, (receiver, sender, place)
            there = ledgers[receiver][place]
            if there is not None and there.received is not None:
                assert there.received.get(sender, sent.sent[receiver]) == sent.sent[receiver]
        for name, found in ledgers.items():
            for place, step in found.items():
                received = {} if step is None or name not in watched else step.received or {}
                assert {(name, sender, place) for sender in received} <= seen.keys()
        return len(seen)

    def check_fine(self, *, names: Iterable[str] | None = None) -> None:
        """Members have ended well, nobody sent two messages for a place, and ledgers count all that was seen."""
        chosen, codes = self.clinics.names if names is None else tuple(names), self.codes()
        assert {codes[name] for name in chosen} == {0}, {
            name: self.processes[name].communicate()[1] for name in chosen if codes[name]
        }
        self.check_what_was_seen()
        for name in chosen:
            self.check_counted(name)
            assert self.events(name, "Equivocation") == []
            assert {event["reason"] for event in self.events(name, "FrameRefused")} <= WRONG_TIME

    def check_counted(self, name: str) -> float:
        """A member's ledger counts every round of which anybody has seen a message; epsilon so far."""
        newest = max((place.round + 1 for _, sender, place in self.seen() if sender == name), default=0)
        counted, epsilon = self.spent(name)
        assert counted >= newest, f"{name}: {newest} rounds were seen, {counted} are counted"
        return epsilon
