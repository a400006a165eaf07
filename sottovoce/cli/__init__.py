"""The command `sotto`, one file for each group of commands."""

from sottovoce.cli import (
    attack,
    compare,
    demo,
    export,
    graphs_and_data,
    ledger,
    noise,
    peer,
    peer_progress,
    plan,
    privacy,
    run,
    schema,
)
from sottovoce.cli.app import app, main

__all__ = [
    "app",
    "attack",
    "compare",
    "demo",
    "export",
    "graphs_and_data",
    "ledger",
    "main",
    "noise",
    "peer",
    "peer_progress",
    "plan",
    "privacy",
    "run",
    "schema",
]
