"""What is in a member's folder besides its keys: its settings, what it confirmed, what it has done and spent.

settings.toml       where its data lies, its budget, its patience: never sent
confirmed.json      the fingerprints that were compared, by agreement
signed.json         from which round the agreements are amended that this member has signed amendments of
ledger.db           every step before it is sent, and what has been spent
runs/NAME-HASH/     one run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.identity import LOCK, ends_soon, public_part
from sottovoce.federation.member import Member
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Budget, Lineage
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import AMENDED, Steps
from sottovoce.run.layout import REMEDY, RULE, RunFiles, is_locked
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import Document, Section, parse_section, read_settings_file
from sottovoce.support.files import read_text, write_text
from sottovoce.support.text import json_text, parse_json

LEDGER = "ledger.db"
ATTENDANCE = "attendance.jsonl"


def run_folder(folder: Path, agreement: Agreement) -> Path:
    """Where the run of an agreement lies."""
    return folder / "runs" / f"{agreement.name.replace('/', '-')}-{agreement.run[:8]}"


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that a member appends to; one that is just written, or was never ended, is left out."""
    lines = read_text(path, RULE, REMEDY).splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]


SETTINGS = "settings.toml"
"""Its name in the member's folder."""


class BudgetSettings(Section):
    """What all runs on a lineage of data may cost together."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class MemberSettings(Section):
    """Settings of one member, all of which have defaults.

    `data` is the file of its table, looked for beside the settings. Before the first round a member waits `gather`
    seconds at most until all neighbours are there, later `patience` seconds in a round. `bind` is where it listens, if
    not at the port of its address on all interfaces. With `proxy = "environment"` it dials through the proxy that its
    environment names; with `relay`, its address is that of a relay, at which it registers.
    """

    data: str | None = None
    gather: float = Field(default=600.0, gt=0)
    patience: float = Field(default=60.0, gt=0)
    bind: str | None = None
    proxy: Literal["none", "environment"] = "none"
    relay: bool = False
    lineage: str = DEFAULT
    budget: BudgetSettings | None = None

    @property
    def through_proxy(self) -> bool:
        """Whether a proxy of the environment is used."""
        return self.proxy == "environment"

    @property
    def agreed_budget(self) -> Budget | None:
        """The budget as a ledger takes it."""
        return None if self.budget is None else Budget(self.budget.epsilon, self.budget.delta)


def read_member_settings(folder: Path) -> MemberSettings:
    """The settings in a member's folder, or the defaults where it has none."""
    path = folder / SETTINGS
    return parse_section(MemberSettings, read_settings_file(path), str(path)) if path.exists() else MemberSettings()


CONFIRMED = "confirmed.json"


def fingerprints(agreement: Agreement) -> dict[str, str]:
    """What every member reads out to the others, by name."""
    return {member.name: member.spoken_fingerprint for member in agreement.members}


def confirm(folder: Path, agreement: Agreement) -> None:
    """Note that all fingerprints of an agreement were compared."""
    found = {**_confirmed(folder), agreement.hash: fingerprints(agreement)}
    write_text(folder / CONFIRMED, json_text(found), private=True)


def is_confirmed(folder: Path, agreement: Agreement) -> bool:
    """Whether that was noted, or need not be: without secure sums nothing hides behind others' keys."""
    return not agreement.has_secure_sums or _confirmed(folder).get(agreement.hash) == fingerprints(agreement)


def require_confirmed(folder: Path, agreement: Agreement, file: Path) -> None:
    """Refuse to take part in secure sums with keys that nobody compared; `file` is where the agreement stands."""
    if not is_confirmed(folder, agreement):
        raise InputError(
            f"the fingerprints of {agreement.name} were not confirmed",
            "with secure sums every member compares every fingerprint with its owner, for example by telephone",
            f"type sotto peer check {file} --folder {folder} to see them; if all are right, again with --confirmed",
        )


def _confirmed(folder: Path) -> Document:
    path = folder / CONFIRMED
    return read_settings_file(path) if path.exists() else {}


SIGNED = "signed.json"


def signed_amendments(folder: Path) -> dict[str, int]:
    """From which round the amendments hold that this member has signed, by the agreement that each amends."""
    path = folder / SIGNED
    return dict(read_settings_file(path)) if path.exists() else {}


@contextmanager
def noted_as_signed(folder: Path, agreement: Agreement) -> Iterator[None]:
    """Note that this member signs an amendment, in place of an earlier one; not if the block refuses that."""
    assert agreement.amends is not None
    before = signed_amendments(folder)
    found = {**before, agreement.amends.agreement: agreement.since}
    write_text(folder / SIGNED, json_text(found), private=True)
    try:
        yield
    except InputError:
        write_text(folder / SIGNED, json_text(before), private=True)
        raise


def recorded_rounds(folder: Path, agreement: Agreement) -> int:
    """How many rounds of a run were begun, as far as they are recorded."""
    if not (folder / LEDGER).exists():
        return 0
    with open_ledger(folder / LEDGER, read_only=True) as database:
        newest = Steps(database, agreement.run).newest()
    return 0 if newest is None else newest.round + 1


@dataclass(frozen=True)
class RunStatus:
    """One run of a member: the rounds that were played, and who was heard in the last step and who was missing.

    Epsilon is None where nothing is proven, `last_step`, the time at which that step ended, before the first one.
    """

    agreement: Agreement
    folder: Path
    finished: bool
    rounds: int
    epsilon_spent: float | None
    epsilon_planned: float | None
    heard: tuple[str, ...]
    missing: tuple[str, ...]
    last_step: datetime | None


@dataclass(frozen=True)
class MemberStatus:
    """A member, whether a process takes part for it, its runs by name, and the lineages of data in its ledger.

    `problems` are what somebody should look after, in sentences.
    """

    member: Member
    running: bool
    runs: tuple[RunStatus, ...]
    lineages: tuple[Lineage, ...]
    problems: tuple[str, ...]


def member_status(folder: Path, stalled: float = 3600.0) -> MemberStatus:
    """What the folder of a member says; nothing is changed, or kept locked.

    A run that no process plays, or in which no step has ended for `stalled` seconds, is a problem.
    """
    member = public_part(folder)
    lineages, left = _lineages(folder / LEDGER)
    recorded = {run.planned.run: run.round for lineage in lineages for run in lineage.runs}
    runs = sorted(path for path in (folder / "runs").glob("*") if (path / "agreement.toml").exists())
    running, found = is_locked(folder / LOCK), tuple(_run_status(path, recorded, left) for path in runs)
    problems = tuple(_problems(member, running, found, stalled))
    return MemberStatus(member, running, found, lineages, problems)


def _problems(member: Member, running: bool, runs: Sequence[RunStatus], stalled: float) -> Iterator[str]:
    unfinished, now = [run for run in runs if not run.finished], datetime.now(UTC)
    if unfinished and not running:
        yield f"No process takes part for {member.name} now."
    for run in unfinished if running else ():
        since = run.last_step or datetime.fromtimestamp((run.folder / "agreement.toml").stat().st_mtime, UTC)
        if (seconds := (now - since).total_seconds()) > stalled:
            yield f"{run.agreement.name}: no step has ended for {seconds:.0f} s."
    known = [run.agreement.member(name) for run in unfinished for name in run.agreement.neighbours(member.name)]
    yield from dict.fromkeys(filter(None, map(ends_soon, [member, *known])))


def last_attendance(folder: Path) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Of the run in a folder: how many rounds were begun, who was heard in the last step, and who was missing."""
    whole = whole_lines(folder / ATTENDANCE)
    if not whole:
        return 0, (), ()
    with _as_written(folder / ATTENDANCE):
        last = parse_json(whole[-1])
        return last["round"] + 1, tuple(last["heard"]), tuple(last["missing"])


def check_not_behind(folder: Path, newest: Place | None, ledger: Path) -> None:
    """Refuse a ledger that is behind what the run's own folder tells; neighbours tell more, if they are there."""
    rounds, _, _ = last_attendance(folder)
    if rounds > (0 if newest is None else newest.round + 1):
        raise InputError(
            f"{ledger}: {folder} has reached round {rounds - 1}, but the last step in this ledger is "
            f"{newest or 'none'}",
            "with a ledger that was lost or restored, a member would send different noise for the same place",
            "do not take part in this agreement with this folder any more",
        )


def heard_over_run(folder: Path, *, sums: bool) -> Document:
    """Of the run in a folder: how many steps this member played, and in how many it heard each of its senders.

    With `sums` also in how many of them it knew its secure sum.
    """
    with _as_written(folder / ATTENDANCE):
        steps = [parse_json(line) for line in whole_lines(folder / ATTENDANCE)]
        heard = Counter(name for step in steps for name in step["heard"])
        senders = sorted({name for step in steps for name in (*step["heard"], *step["missing"])})
        known = {"sums_known": sum(step.get("sum_known", False) for step in steps)} if sums else {}
        return {"heard": {"steps": len(steps), "members": {name: heard[name] for name in senders}}, **known}


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: damaged", "it is written by sotto peer join", "remove the line") from None


def _run_status(folder: Path, recorded: Mapping[str, int], left: Set[str]) -> RunStatus:
    """What was spent is that of all rounds that are recorded for sending, which may be more than were heard."""
    files, agreement = RunFiles(folder), read_agreement(folder / "agreement.toml")
    rounds, heard, missing = last_attendance(folder)
    document = files.document(files.privacy)
    privacy = None if document is None else PrivacyDocument.read(document)
    sent, total = max(rounds, recorded.get(agreement.run, 0)), agreement.training.rounds
    spent, planned = (None if privacy is None else privacy.epsilon_after(at) for at in (sent, total))
    ended = datetime.fromtimestamp((folder / ATTENDANCE).stat().st_mtime, UTC) if rounds else None
    return RunStatus(
        agreement, folder, files.result.exists() or agreement.run in left, rounds, spent, planned, heard, missing, ended
    )


def _lineages(ledger: Path) -> tuple[tuple[Lineage, ...], set[str]]:
    """The lineages of a ledger, and the runs that this member has left."""
    if not ledger.exists():
        return (), set()
    with open_ledger(ledger, read_only=True) as database:
        return tuple(Spending(database).lineages()), {
            one.key for one in database.entries(AMENDED) if not one.body["by"]
        }
