"""The command `sotto` itself: its options, and how every failure becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from sottovoce._version import __version__
from sottovoce.cli.output import printable, verbosity
from sottovoce.errors import SottovoceError

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


STOPPED = 130
"""What a shell says of a command that an interrupt ended."""


def _version(show: bool) -> None:
    if show:
        typer.echo(f"sotto {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sotto(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on stderr what is done and how long it takes.")
    ] = False,
) -> None:
    """Private learning without a server.

    Example: sotto demo, or sotto --verbose account --graph ring:30 --rounds 40 --view node:0
    """
    verbosity.quiet, verbosity.verbose = quiet, verbose
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run `sotto`."""
    verbosity.quiet = verbosity.verbose = False
    if sys.stdout is None:
        sys.exit(fail("stdout is closed; answers are written to it; redirect it, to /dev/null say", 1))
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except (SottovoceError, MemoryError) as error:
        code = fail(*explained(error))
    except TyperException as error:
        hint = " Try 'sotto --help'." if error.exit_code == 2 else ""
        code = fail(error.format_message() + hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = STOPPED
    except BrokenPipeError:
        code = _closed()
    except Exception as error:
        if verbosity.verbose:
            raise
        code = fail(*explained(error))
    if code == STOPPED and os.environ.get("RANK", "0") == "0":  # typer turns an interrupt into this code, silently
        fail(*explained(KeyboardInterrupt()))
    sys.exit(code if isinstance(code, int) else 0)


def _closed() -> int:
    """Nobody reads what is left: end without a word, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def explained(error: BaseException) -> tuple[str, int]:
    """What went wrong in one line, and the code to exit with."""
    if isinstance(error, SottovoceError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return "not enough memory for this size; take fewer rounds, a smaller graph, or one --victim", 1
    if isinstance(error, Exception):
        return f"unexpected {type(error).__name__}: {error}; --verbose before the command shows where", 1
    return "stopped", STOPPED


def fail(line: str, code: int) -> int:
    """Say what went wrong, in one line."""
    typer.echo(printable(f"sotto: {' '.join(line.split())}"), err=True)
    return code
