"""Where things are in a member's folder."""

from __future__ import annotations

from pathlib import Path

from sottovoce.federation.agreement import Agreement
from sottovoce.run.layout import REMEDY, RULE
from sottovoce.support.text import read_text

LEDGER = "ledger.db"
ATTENDANCE = "attendance.jsonl"


def run_folder(folder: Path, agreement: Agreement) -> Path:
    """Where the run of an agreement lies."""
    return folder / "runs" / f"{agreement.name.replace('/', '-')}-{agreement.hash[:8]}"


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that a member appends to; one that is just written, or was never ended, is left out."""
    lines = read_text(path, RULE, REMEDY).splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]
