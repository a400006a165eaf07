"""What a member has done and spent, read from its folder: also while it takes part in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.identity import LOCK, public_part
from sottovoce.federation.member import Member
from sottovoce.federation.member_folder import ATTENDANCE, LEDGER, whole_lines
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Lineage
from sottovoce.ledger.places import Place
from sottovoce.ledger.spending import Spending
from sottovoce.run.layout import RunFiles
from sottovoce.run.lock import is_locked
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import Document
from sottovoce.support.text import parse_json


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
    """A member, whether a process takes part for it, its runs by name, and the lineages of data in its ledger."""

    member: Member
    running: bool
    runs: tuple[RunStatus, ...]
    lineages: tuple[Lineage, ...]


def member_status(folder: Path) -> MemberStatus:
    """What the folder of a member says; nothing is changed, or kept locked."""
    member = public_part(folder)
    lineages = _lineages(folder / LEDGER)
    recorded = {run.planned.run: run.round for lineage in lineages for run in lineage.runs}
    runs = sorted(path for path in (folder / "runs").glob("*") if (path / "agreement.toml").exists())
    return MemberStatus(member, is_locked(folder / LOCK), tuple(_run_status(path, recorded) for path in runs), lineages)


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


def heard_over_run(folder: Path) -> Document:
    """Of the run in a folder: how many steps this member played, and in how many it heard each of its senders."""
    with _as_written(folder / ATTENDANCE):
        steps = [parse_json(line) for line in whole_lines(folder / ATTENDANCE)]
        heard = Counter(name for step in steps for name in step["heard"])
        senders = sorted({name for step in steps for name in (*step["heard"], *step["missing"])})
        return {"steps": len(steps), "members": {name: heard[name] for name in senders}}


def sums_known(folder: Path) -> int:
    """Of the run in a folder: in how many rounds this member knew its secure sum."""
    with _as_written(folder / ATTENDANCE):
        return sum(parse_json(line).get("sum_known", False) for line in whole_lines(folder / ATTENDANCE))


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: damaged", "it is written by sotto peer join", "remove the line") from None


def _run_status(folder: Path, recorded: Mapping[str, int]) -> RunStatus:
    """What was spent is that of all rounds that are recorded for sending, which may be more than were heard."""
    files, agreement = RunFiles(folder), read_agreement(folder / "agreement.toml")
    rounds, heard, missing = last_attendance(folder)
    document = files.document(files.privacy)
    privacy = None if document is None else PrivacyDocument.read(document)
    sent, total = max(rounds, recorded.get(agreement.hash, 0)), agreement.training.rounds
    spent, planned = (None if privacy is None else privacy.epsilon_after(at) for at in (sent, total))
    ended = datetime.fromtimestamp((folder / ATTENDANCE).stat().st_mtime, UTC) if rounds else None
    return RunStatus(agreement, folder, files.result.exists(), rounds, spent, planned, heard, missing, ended)


def _lineages(ledger: Path) -> tuple[Lineage, ...]:
    if not ledger.exists():
        return ()
    with open_ledger(ledger, read_only=True) as database:
        return tuple(Spending(database).lineages())
