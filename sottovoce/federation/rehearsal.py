"""A rehearsal: all members of an agreement on this machine, each a process of its own, with throw-away keys.

They run `sotto peer join` over the real transport on loopback, with the agreed settings. On Linux they are forked from
a process that has imported all they need and opened no connection: what a member imports takes 200 MB and seconds,
which fifty members then share. Each has a folder:

    MEMBER/             ledger and runs, as of every member; its keys are removed at the end
    MEMBER.events.jsonl, MEMBER.messages    what happened, and what it wrote on stderr
    agreement.toml      the same settings with new keys, loopback addresses and other random bytes
"""

from __future__ import annotations

import multiprocessing
import os
import random
import runpy
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from sottovoce.errors import InputError, SottovoceError
from sottovoce.federation.agreement import AgreedMember, Agreement, parse_agreement
from sottovoce.federation.assembly import NONCE_BYTES, assemble_agreement
from sottovoce.federation.guarantees import account_run
from sottovoce.federation.identity import create_identity, erase_keys
from sottovoce.federation.member import SUFFIX
from sottovoce.federation.member_folder import SETTINGS, last_attendance, run_folder, whole_lines
from sottovoce.learning.table_cells import find_table
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import metric_of
from sottovoce.support.config import Document, read_settings_file
from sottovoce.support.files import write_text
from sottovoce.support.limits import limits_are_lifted
from sottovoce.support.processes import end_with_parent, signals_blocked, unblock_signals
from sottovoce.support.text import parse_json, to_toml

EVENTS = ".events.jsonl"
"""How the name of a member's log ends."""

POLL_SECONDS = 0.2
"""Seconds between two looks at how members do."""

ENDING_SECONDS = 15.0
"""Seconds that members have to end in, once one has failed or the rehearsal was stopped."""


@dataclass(frozen=True)
class MemberProgress:
    """How far a member is. Metrics are those on its own held-out rows; None before the first ones.

    Epsilon is that of the round after those that were played, which may have been sent already; None where nothing is
    proven, and before the first round.
    """

    name: str
    rows: int
    ready: bool
    rounds: int
    metric: str | None
    value: float | None
    epsilon: float | None
    heard: tuple[str, ...]
    missing: tuple[str, ...]


def rehearse(
    settings: Path, data: Path, folder: Path, tell: Callable[[Agreement, Sequence[MemberProgress]], None]
) -> tuple[Agreement, list[MemberProgress]]:
    """Let all members play all rounds; `tell` is called now and then. Whatever ends this process ends them too.

    `settings` is an agreement, or what `sotto peer agree` makes one of.
    """
    document = read_settings_file(settings)
    names = _listening(document, settings)
    tables = {name: find_table(data, name) for name in names}
    if folder.exists():
        raise InputError(f"{folder} exists", "nothing is overwritten", "name another folder with --out")
    with _keys_thrown_away(folder, names):
        agreement = _rehearsed(document, settings, names, folder)
        write_text(folder / "agreement.toml", agreement.toml())
        account_run(agreement, {}, agreement.names[0])  # once, for all of them
        _play(folder, tables, lambda: tell(agreement, _progress(folder, agreement)))
    return agreement, _progress(folder, agreement)


@contextmanager
def _keys_thrown_away(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """A folder for the members; however the block ends, no key is left in it, and no folder if nobody began."""
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield
    finally:
        if not (folder / "agreement.toml").exists():
            shutil.rmtree(folder)
        for name in names:
            erase_keys(folder / name)


def _play(folder: Path, tables: Mapping[str, Path], tell: Callable[[], None]) -> None:
    """Start all members, and wait until they have ended or one has failed."""
    with _ended_with_this(processes := {}):
        with signals_blocked(), _one_thread_each():
            context = _context()
            for name, table in tables.items():
                process = context.Process(target=_member, args=(folder, name, table, limits_are_lifted()))  # type: ignore[attr-defined]
                process.start()
                processes[name] = process
        codes: dict[str, int | None] = dict.fromkeys(processes)
        while None in codes.values() and not any(codes.values()):
            tell()
            time.sleep(POLL_SECONDS)
            codes = {name: process.exitcode for name, process in processes.items()}
    for name, code in codes.items():
        if code:
            raise _failure(name, code, folder / f"{name}.messages")


def _failure(name: str, code: int, messages: Path) -> SottovoceError:
    """Why a member has ended before its time; the code to exit with is its own."""
    said = _last_line(messages)
    how = f"ended with code {code}: {said}" if said else f"ended with code {code} and gave no reason"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    if code < 0 or not said:
        how += f"; what it wrote is in {messages}, its events are in {messages.with_name(f'{name}{EVENTS}')}"
    failure = SottovoceError(f"{name} {how}")
    failure.exit_code = max(1, code)
    return failure


def _listening(document: Document, settings: Path) -> dict[str, bool]:
    """The members by name, and whether each listens: of an agreement, or of settings, where all do."""
    if "members" in document:
        return {member.name: member.listen for member in parse_agreement(document, str(settings)).members}
    rows = document.get("rows")
    if not isinstance(rows, dict) or not rows:
        raise InputError(
            f"{settings}: no [rows]", "members are named under [rows]", "write Hill = 100, for example, under [rows]"
        )
    return dict.fromkeys(sorted(rows), True)


def _rehearsed(document: Document, settings: Path, names: dict[str, bool], folder: Path) -> Agreement:
    """The same agreement with new keys and loopback addresses."""
    made = {}
    for name, port in zip(names, free_ports(len(names)), strict=True):
        address = f"{LOOPBACK}:{port}" if names[name] else None
        made[name] = create_identity(name, folder / name, address=address, listen=names[name]).member
        write_text(folder / name / SETTINGS, to_toml({"bind": address} if address else {}), private=True)
    if "members" not in document:
        return assemble_agreement(settings, [folder / f"{name}{SUFFIX}" for name in names])
    members = [{**made[one["name"]].model_dump(), "rows": one["rows"]} for one in document["members"]]
    document.pop("amends", None)
    return parse_agreement({**document, "nonce": secrets.token_hex(NONCE_BYTES), "members": members}, str(settings))


def _context() -> BaseContext:
    """How members are started: forked from a process that has imported what they need, where that is safe."""
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["sottovoce.federation.joining", "sottovoce.cli.peer"])
    return context


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start now compute with one thread each, unless the user has said otherwise."""
    said = "OMP_NUM_THREADS" in os.environ
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        if not said:
            del os.environ["OMP_NUM_THREADS"]


def _member(folder: Path, name: str, table: Path, lifted: bool) -> None:
    """In a process of its own, which ends with the one that started it: one member, as its user would start it."""
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.sentinel, tidy=partial(erase_keys, folder / name))
    unblock_signals()
    for path, stream in ((os.devnull, sys.stdout), (folder / f"{name}.messages", sys.stderr)):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = [
        "sotto", "peer", "join", str(folder / "agreement.toml"), "--json", "--folder", str(folder / name),
        "--data", str(table), "--log", str(folder / f"{name}{EVENTS}"), "--confirmed",
        *(["--yes"] if lifted else []),
    ]  # fmt: skip
    runpy.run_module("sottovoce", run_name="__main__")


@contextmanager
def _ended_with_this(processes: dict[str, BaseProcess]) -> Iterator[None]:
    """However the block ends, no process is left: each is asked to end first."""
    try:
        yield
    finally:
        for process in processes.values():
            process.terminate()
        deadline = time.monotonic() + ENDING_SECONDS
        for process in processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()


def _progress(folder: Path, agreement: Agreement) -> list[MemberProgress]:
    """How far all members are. Their figures are the same, and are read from the first who has them."""
    files = [RunFiles(run_folder(folder / member.name, agreement)) for member in agreement.members]
    ready = next((one.folder for one in files if one.privacy.exists()), None)
    privacy, rounds = None if ready is None else _guarantees(ready), agreement.training.rounds
    return [
        _member_progress(one, member, rounds, privacy) for one, member in zip(files, agreement.members, strict=True)
    ]


@lru_cache(maxsize=1)
def _guarantees(folder: Path) -> PrivacyDocument | None:
    """What `privacy.json` says, which is asked several times a second."""
    files = RunFiles(folder)
    document = files.document(files.privacy)
    return None if document is None else PrivacyDocument.read(document)


def _member_progress(
    files: RunFiles, member: AgreedMember, total: int, privacy: PrivacyDocument | None
) -> MemberProgress:
    rounds, heard, missing = last_attendance(files.folder)
    metric, value = None, None
    for line in whole_lines(files.metrics)[-1:]:
        last = parse_json(line)
        metric = metric_of(last)
        value = last[metric]["mean"]
    spent = None if privacy is None or not rounds else privacy.epsilon_after(min(rounds + 1, total))
    return MemberProgress(
        member.name, member.rows, files.privacy.exists(), rounds, metric, value, spent, heard, missing
    )


def _last_line(path: Path) -> str:
    lines = path.read_bytes().decode(errors="replace").splitlines() if path.exists() else []
    return lines[-1].removeprefix("sotto: ") if lines else ""


LOOPBACK = "127.0.0.1"
BELOW_EPHEMERAL = range(10_000, 32_000)
"""A system takes ports for connections that are opened from above these: what is free now is not lost to one later."""


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens at."""
    ports: list[int] = []
    with ExitStack() as until:
        for port in random.sample(BELOW_EPHEMERAL, len(BELOW_EPHEMERAL)):
            if len(ports) == count:
                break
            with suppress(OSError):
                until.enter_context(socket.create_server((LOOPBACK, port)))
                ports.append(port)
    return ports
