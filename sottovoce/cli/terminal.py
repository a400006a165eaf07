"""The one place where text goes to a terminal: no control characters, and no failure of its own on stderr."""

import io
import os
import sys
from typing import TextIO

from sottovoce.errors import SottovoceError, file_error
from sottovoce.support.text import visible

RULE, REMEDY = "answers are written to it", "redirect it, for example to /dev/null"


def open_streams() -> None:
    """Make both streams ready: a closed stderr swallows messages, and what a stream cannot encode is escaped."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        raise SottovoceError(f"stdout is closed; {RULE}; {REMEDY}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(line: str = "") -> None:
    """Print on stdout; a line may have line ends of its own, and nothing else that cannot be seen."""
    try:
        sys.stdout.write("\n".join(map(visible, line.split("\n"))) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise file_error("stdout", error, RULE, REMEDY) from None


def print_message(line: str, *, end: str = "\n") -> None:
    """Print on stderr; where nobody can read it, nothing happens."""
    try:
        sys.stderr.write(visible(line) + end)
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)


def close_streams() -> None:
    """Before the process ends: let go of what can be written nowhere, or the interpreter would fail on it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                discard(stream)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and what comes after it, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
