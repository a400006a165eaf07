"""How commands print: one document or table on stdout, messages on stderr, more or fewer of them.

The one place where text goes to a terminal: no control characters, and no failure of its own on stderr.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from sottovoce.errors import SottovoceError, file_error
from sottovoce.support.text import table_text, visible

Table = list[list[str]]

RULE, REMEDY = "answers are written to it", "redirect it, for example to /dev/null"

EMPTY_LINE = "\r\x1b[2K"
"""What a terminal needs before something else is written over a status."""


@dataclass
class Verbosity:
    """What is printed besides errors: `quiet` nothing on stderr, `verbose` also each step and how long it takes."""

    quiet: bool = False
    verbose: bool = False
    csv: bool = False
    """Tables go to stdout as CSV, and sentences beside them to stderr."""
    json: bool = False
    """One document goes to stdout, and sentences beside it nowhere."""

    @property
    def shows_progress(self) -> bool:
        """Whether stderr is a terminal on which progress may be shown."""
        return not self.quiet and sys.stderr.isatty()


verbosity = Verbosity()
"""The verbosity of the command that runs; set by its options and those before its name."""

_status, _writing = "", threading.RLock()


def open_streams() -> None:
    """Make both streams ready: a closed stderr swallows messages, and what a stream cannot encode is escaped."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        raise SottovoceError(f"stdout is closed; {RULE}; {REMEDY}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def close_streams() -> None:
    """Before the process ends: let go of what can be written nowhere, or the interpreter would fail on it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _discard(stream)


def _discard(stream: TextIO) -> None:
    """Send what a stream still holds, and what comes after it, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_line(line: str = "") -> None:
    """Print on stdout; a line may have line ends of its own, and nothing else that cannot be seen."""
    show_status("")
    try:
        sys.stdout.write("\n".join(map(visible, line.split("\n"))) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise file_error("stdout", error, RULE, REMEDY) from None


def print_message(line: str) -> None:
    """Print on stderr."""
    with _writing:
        show_status("")
        _write_to_stderr(visible(line) + "\n")


def show_status(line: str) -> None:
    """A line on stderr, a terminal, that is gone before anything else is printed; without words the last one goes."""
    global _status
    with _writing:
        if line or _status:
            _write_to_stderr(EMPTY_LINE + visible(line)[: shutil.get_terminal_size().columns - 1])
        _status = line


def _write_to_stderr(text: str) -> None:
    """Where nobody can read it, nothing happens."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _discard(sys.stderr)


def print_note(line: str) -> None:
    """A message beside the answer, unless none is wanted."""
    if not verbosity.quiet:
        print_message(line)


def print_remark(line: str) -> None:
    """A message beside a table; a JSON document says by itself all that there is to say."""
    if not verbosity.json:
        print_note(line)


def print_sentence(line: str = "") -> None:
    """A line below a table, where one is printed."""
    if not (verbosity.csv or verbosity.json):
        print_line(line)
    elif line:
        print_remark(line)


def print_sentences(lines: Iterable[str]) -> None:
    """Lines below a table."""
    for line in lines:
        print_sentence(line)


def answer(document: Mapping[str, object], table: Table, *after: str) -> None:
    """All that a command prints on stdout: a JSON document, or a table, its first row the heading, and lines below."""
    if verbosity.json:
        print_line(json.dumps(document))
    if table:
        show(table)
    print_sentences(after)


def show_findings(findings: Sequence[str]) -> None:
    """What speaks against a run, on stdout and before everything else."""
    print_sentences(f"Finding: {line}" for line in findings)


def show(table: Table) -> None:
    """A table as wide as it has to be: a figure is never cut off. Or as CSV; nothing beside a JSON document."""
    if verbosity.csv and not verbosity.json:
        print_line(table_text(_shown(table if any(table[0]) else table[1:])).rstrip("\n"))
    elif not verbosity.json:
        print_line("\n".join(aligned(table)))


def aligned(table: Table) -> list[str]:
    """The lines of a table, numbers and short words to the right."""
    columns = []
    for number, (heading, *cells) in enumerate(zip(*_shown(table), strict=True)):
        width = max(map(len, (heading, *cells)))
        right = number > 0 and all(cell[:1].isdigit() or len(cell) < 12 for cell in cells)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in (heading, *cells)])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return lines if any(table[0]) else lines[1:]


def _shown(table: Table) -> Table:
    """A table whose cells have nothing that cannot be seen."""
    if all(cell.isprintable() for row in table for cell in row):
        return table
    return [[visible(cell) for cell in row] for row in table]


def picked(one: object, *names: str) -> dict[str, Any]:
    """What a document says of something under its own names."""
    return {name: getattr(one, name) for name in names}


def facts(values: Mapping[str, object]) -> Table:
    """A table of names and values, without a heading."""
    return [["", ""], *([key.replace("_", " "), short(value)] for key, value in values.items())]


def node_name(node: int | None, labels: Sequence[str] | None) -> str:
    """A node as its user calls it."""
    return str(node) if node is None or labels is None else f"{node} ({labels[node]})"


def short(value: object) -> str:
    """A value for reading."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
