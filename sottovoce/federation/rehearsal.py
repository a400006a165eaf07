"""A rehearsal: all members of an agreement on this machine, each a process of its own, with throw-away keys.

They run `sotto peer join` over the real transport on loopback, with the agreed settings. Each has a folder:

    MEMBER/             keys, ledger and runs, as of every member
    MEMBER.events.jsonl, MEMBER.messages    what happened, and what it wrote on stderr
    agreement.toml      the same settings with new keys, loopback addresses and other random bytes
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sottovoce.config import Document, read_settings_file
from sottovoce.core.files import write_text
from sottovoce.core.processes import signals_blocked
from sottovoce.core.toml_text import to_toml
from sottovoce.distributed.launch import PARENT
from sottovoce.errors import InputError, SottovoceError
from sottovoce.federation.agreement import Agreement, parse_agreement
from sottovoce.federation.assembly import NONCE_BYTES, assemble_agreement
from sottovoce.federation.identity import create_identity
from sottovoce.federation.joining import run_folder, whole_lines
from sottovoce.federation.loopback import LOOPBACK, free_ports
from sottovoce.federation.member import SUFFIX
from sottovoce.federation.member_settings import FILE
from sottovoce.federation.member_status import last_attendance
from sottovoce.learning.table_files import find_table
from sottovoce.run.layout import RunFiles
from sottovoce.run.sweep_results import metric_of
from sottovoce.text import parse_json

POLL_SECONDS = 0.2
"""Seconds between two looks at how members do."""

ENDING_SECONDS = 15.0
"""Seconds that members have to end in, once one has failed or the rehearsal was stopped."""


@dataclass(frozen=True)
class MemberProgress:
    """How far a member is. Metrics are those on its own held-out rows; None before the first ones."""

    name: str
    rows: int
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
    folder.mkdir(mode=0o700, parents=True)
    agreement = _rehearsed(document, settings, names, folder)
    write_text(folder / "agreement.toml", agreement.toml())
    with ExitStack() as open_files, _ended_with_this(processes := {}):
        with signals_blocked():
            for name, table in tables.items():
                processes[name] = _start(folder, name, table, open_files)
        while None in (codes := {name: process.poll() for name, process in processes.items()}).values():
            failed = next((name for name, code in codes.items() if code), None)
            if failed is not None:
                break
            tell(agreement, _progress(folder, agreement))
            time.sleep(POLL_SECONDS)
        for name, code in codes.items():
            if code:
                raise SottovoceError(f"{name} ended with code {code}: {_last_line(folder / f'{name}.messages')}")
    return agreement, _progress(folder, agreement)


def _listening(document: Document, settings: Path) -> dict[str, bool]:
    """The members by name, and whether each listens: of an agreement, or of settings, where all do."""
    if "members" in document:
        return {member.name: member.listen for member in parse_agreement(document, str(settings)).members}
    rows = document.get("rows")
    if not isinstance(rows, dict) or not rows:
        raise InputError(f"{settings}: no [rows]", "members are named there", "write Hill = 100, say, under [rows]")
    return dict.fromkeys(sorted(rows), True)


def _rehearsed(document: Document, settings: Path, names: dict[str, bool], folder: Path) -> Agreement:
    """The same agreement with new keys and loopback addresses."""
    made = {}
    for name, port in zip(names, free_ports(len(names)), strict=True):
        address = f"{LOOPBACK}:{port}" if names[name] else None
        made[name] = create_identity(name, folder / name, address=address, listen=names[name]).member
        write_text(folder / name / FILE, to_toml({"bind": address} if address else {}), private=True)
    if "members" not in document:
        return assemble_agreement(settings, [folder / f"{name}{SUFFIX}" for name in names])
    members = [{**made[one["name"]].model_dump(), "rows": one["rows"]} for one in document["members"]]
    return parse_agreement({**document, "nonce": secrets.token_hex(NONCE_BYTES), "members": members}, str(settings))


def _start(folder: Path, name: str, table: Path, open_files: ExitStack) -> subprocess.Popen[bytes]:
    """One member. Nothing is written to its stdin, by which it notices that this process has ended."""
    messages = open_files.enter_context((folder / f"{name}.messages").open("wb"))
    command = [
        sys.executable, "-m", "sottovoce", "peer", "join", str(folder / "agreement.toml"), "--json",
        "--folder", str(folder / name), "--data", str(table), "--log", str(folder / f"{name}.events.jsonl"),
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", **os.environ, PARENT: str(os.getpid())}
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=messages,
    )  # fmt: skip


@contextmanager
def _ended_with_this(processes: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """However the block ends, no process is left: each is asked to end first."""
    try:
        yield
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + ENDING_SECONDS
        for process in processes.values():
            with process:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()


def _progress(folder: Path, agreement: Agreement) -> list[MemberProgress]:
    return [_member_progress(folder / member.name, agreement, member.name, member.rows) for member in agreement.members]


def _member_progress(folder: Path, agreement: Agreement, name: str, rows: int) -> MemberProgress:
    files = RunFiles(run_folder(folder, agreement))
    rounds, heard, missing = last_attendance(files.folder)
    lines = whole_lines(files.metrics)
    if not lines:
        return MemberProgress(name, rows, rounds, None, None, None, heard, missing)
    last = parse_json(lines[-1])
    metric, epsilon = metric_of(last), last["epsilon"]
    spent = None if epsilon is None else epsilon["spent"]
    return MemberProgress(name, rows, rounds, metric, last[metric]["mean"], spent, heard, missing)


def _last_line(path: Path) -> str:
    lines = path.read_bytes().decode(errors="replace").splitlines()
    return lines[-1].removeprefix("sotto: ") if lines else "it said nothing"
