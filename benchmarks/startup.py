"""How long commands take to start: `python -m benchmarks.startup`.

Each in a process of its own, beside `import numpy, scipy.sparse`, which any answer about a graph needs first, in the
same round; the least of several rounds, for others only ever add to it. Modules are compiled beforehand, as those of an
installation are. `--help` of every command, and of every command of a group, is measured too.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import typer

from sottovoce.cli.app import app, load_commands

BASE = [sys.executable, "-c", "import numpy, scipy.sparse"]
LINES = (
    "--help",
    "graph ring:30",
    "account --graph ring:30 --rounds 40",
    "account --graph ring:30 --rounds 40 --view node:0",
    "calibrate --graph ring:30 --rounds 40 --epsilon 1",
)


def taken(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def help_lines() -> list[str]:
    """`--help` of every command, and of those that groups of commands are made of."""
    load_commands()
    command = typer.main.get_command(app)
    return [f"{words} --help" for words in _words(command, "")]


def _words(command: object, before: str) -> Iterator[str]:
    for name, one in getattr(command, "commands", {}).items():
        yield f"{before}{name}"
        yield from _words(one, f"{before}{name} ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    repeat = parser.parse_args().repeat
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {"import numpy, scipy.sparse": BASE}
    lines = (*LINES, *help_lines())
    commands |= {f"sotto {line}": [sys.executable, "-m", "sottovoce", *line.split()] for line in lines}
    for command in commands.values():
        taken(command)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            found[name].append(taken(command))
    least = {name: (min(w for w, _ in times), min(c for _, c in times)) for name, times in found.items()}
    base = least["import numpy, scipy.sparse"]
    slowest = max((name for name in least if name.endswith("--help")), key=lambda name: least[name][0])
    print("| command | wall, s | processor, s | over numpy and scipy.sparse |\n|---|---|---|---|")
    for name, (wall, processor) in least.items():
        print(f"| `{name}` | {wall:.2f} | {processor:.2f} | {processor / base[1]:.2f} |")
    print(f"slowest --help: {slowest}, {least[slowest][0]:.3f} s")


if __name__ == "__main__":
    main()
