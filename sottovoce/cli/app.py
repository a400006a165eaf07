"""The command `sotto` itself: its options, and how every failure becomes one line and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from sottovoce import __version__
from sottovoce.errors import SottovoceError

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


STOPPED = 130


def _version(show: bool) -> None:
    if show:
        typer.echo(f"sotto {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sotto(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Private learning without a server."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run `sotto`."""
    try:
        code = app(standalone_mode=False)
    except (SottovoceError, MemoryError) as error:
        code = fail(*explained(error))
    except TyperException as error:
        hint = " Try 'sotto --help'." if error.exit_code == 2 else ""
        code = fail(error.format_message() + hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = STOPPED
    if code == STOPPED:  # typer turns an interrupt into this code, and says nothing
        fail(*explained(KeyboardInterrupt()))
    sys.exit(code if isinstance(code, int) else 0)


def explained(error: BaseException) -> tuple[str, int]:
    """What went wrong in one line, and the code to exit with."""
    if isinstance(error, SottovoceError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return "not enough memory for this size; take fewer rounds, a smaller graph, or one --victim", 1
    return "stopped", STOPPED


def fail(line: str, code: int) -> int:
    """Say what went wrong, in one line."""
    typer.echo(f"sotto: {' '.join(line.split())}", err=True)
    return code
