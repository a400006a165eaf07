"""Every command of `sotto`, by the words that start it."""

from __future__ import annotations

import typer

from sottovoce.cli.app import app, load_commands

load_commands()


def command_lines(commands: typer.Typer = app, prefix: str = "") -> set[str]:
    """`account`, `peer init`, and all others; a group that does something by itself is among them."""
    found = {prefix + (command.name or command.callback.__name__) for command in commands.registered_commands}
    for group in commands.registered_groups:
        if group.typer_instance.info.invoke_without_command is True:
            found.add(prefix + group.name)
        found |= command_lines(group.typer_instance, f"{prefix}{group.name} ")
    return found
