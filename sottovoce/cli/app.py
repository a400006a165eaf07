"""The command `sotto` itself: its options, and how every failure becomes one line and an exit code."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import typer

from sottovoce._version import __version__
from sottovoce.cli.output import close_streams, open_streams, print_line, print_message, verbosity
from sottovoce.cli.progress import narrated
from sottovoce.errors import SottovoceError, file_error, shortened, without_learning
from sottovoce.support import processes
from sottovoce.support.own_code import raised_in_own_code
from sottovoce.support.processes import Terminated
from sottovoce.support.threads import begin_with_one_thread

try:
    from typer import TyperException
except ImportError:  # older versions of typer raise those of click
    from click import ClickException as TyperException  # type: ignore[assignment]

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = {
    "attack": "attack",
    "audit": "audit",
    "compare": "compare",
    "report": "compare",
    "demo": "demo",
    "export": "export",
    "predict": "export",
    "graph": "graphs_and_data",
    "data": "graphs_and_data",
    "ledger": "ledger",
    "noise": "noise",
    "plan": "plan",
    "paper": "paper",
    "account": "account",
    "calibrate": "account",
    "run": "run",
    "schema": "graphs_and_data",
    "peer": "peer",
}
"""Every command, and the file of this folder that it is in."""

LONGEST_LINE = 1000
"""Characters of a message; of more than that the middle is left out."""

STOPPED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""What a shell says of a command that Ctrl-C, or SIGTERM, ended."""


def load_commands(words: Sequence[str] = ()) -> None:
    """Load the file of the command that a line names, or all of them where it names none.

    No option of `sotto` itself takes a value, so the first word that is no option is the command.
    """
    named = COMMANDS.get(next((word for word in words if not word.startswith("-")), ""))
    for module in dict.fromkeys(COMMANDS.values() if named is None else (named,)):
        importlib.import_module(f"sottovoce.cli.{module}")


def _version(show: bool) -> None:
    if show:
        print_line(f"sotto {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sotto(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only errors on stderr."),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Report on stderr what is being done and how long it takes."
    ),
    csv: bool = typer.Option(False, "--csv", help="Print tables as CSV on stdout, and sentences on stderr."),
) -> None:
    """Private learning without a server.

    Example: sotto demo, or sotto --verbose account --graph ring:30 --rounds 40 --view node:0
    """
    verbosity.quiet, verbosity.verbose, verbosity.csv = quiet, verbose, csv
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    if context.invoked_subcommand is None:
        print_line(context.get_help())
    else:
        context.with_resource(narrated(context.invoked_subcommand))


def main() -> None:
    """Run `sotto`."""
    for field in fields(verbosity):
        setattr(verbosity, field.name, False)
    with _stopped_by_termination() as terminated:
        code = _run_command()
    if code == STOPPED and os.environ.get("RANK", "0") == "0":  # typer turns an interrupt into this code, silently
        fail(*explained(KeyboardInterrupt()))
    close_streams()
    sys.exit(TERMINATED if code == STOPPED and terminated else code)


def _run_command() -> int:
    """Run the command, and return the code to exit with; a failure is one line."""
    try:
        open_streams()
        begin_with_one_thread()
        load_commands(sys.argv[1:])
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads what is left: end without a word
        code = 1
    except (SottovoceError, MemoryError, OSError) as error:
        code = fail(*explained(error))
    except TyperException as error:
        hint = f" Try '{_command_of(error)} --help'." if error.exit_code == 2 else ""
        code = fail(_in_plain_words(error.format_message()) + hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = STOPPED
    except Exception as error:
        if verbosity.verbose and without_learning(error) is None:
            raise
        code = fail(*explained(error))
    return code if isinstance(code, int) else 0


@contextmanager
def _stopped_by_termination() -> Iterator[list[int]]:
    """SIGTERM stops a command as Ctrl-C does. The first counts: some send it twice, and what saves is not disturbed.

    Yields the signals that came.
    """
    received: list[int] = []

    def stop(kind: int, _: object) -> None:
        received.append(kind)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _command_of(error: TyperException) -> str:
    """The command whose help says more: the one that the line names."""
    names, context = list[str](), getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    named = [word for word in sys.argv[1:] if word in COMMANDS][:1]  # some failures do not know their command
    return " ".join(["sotto", *(names or named)])


def _in_plain_words(message: str) -> str:
    """What is wrong with an option, in words that name no type of the parser."""
    message = message.replace("Got unexpected extra", "Got extra")  # that word is for defects of ours
    for kind, words in (("int", "a whole number"), ("float", "a number")):
        message = re.sub(rf"is not a valid {kind}(eger)?( range)?\b", f"is not {words}", message)
    return message


def explained(error: BaseException) -> tuple[str, int]:
    """What went wrong in one line, and the code to exit with."""
    if isinstance(error, SottovoceError):
        return str(error), error.exit_code
    known = raised_in_own_code(error) or without_learning(error)
    if known is not None:
        return explained(known)
    if isinstance(error, OSError):
        path = "the system" if error.filename is None else os.fsdecode(error.filename)
        return explained(file_error(path, error, "it is read or written here", "check the path"))
    if isinstance(error, MemoryError):
        return "not enough memory for this size; take fewer rounds, a smaller graph, or one --victim", 1
    if isinstance(error, Exception):
        return f"unexpected {type(error).__name__}: {error}; --verbose before the command shows where", 1
    return processes.STOPPED, TERMINATED if isinstance(error, Terminated) else STOPPED


def fail(line: str, code: int) -> int:
    """Say what went wrong, in one line."""
    print_message(f"sotto: {shortened(' '.join(line.split()), LONGEST_LINE)}")
    return code
