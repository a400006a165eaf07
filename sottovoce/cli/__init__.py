"""The command `sotto`, one file for each group of commands."""

from sottovoce.cli.app import app, main

__all__ = ["app", "main"]
