"""Where the time of a run goes, learning against accounting: `python -m benchmarks.runs`.

Runs `sotto run recipes/digits.toml` again and again, each time in a process of its own, and times the functions that
account for it and the one that plays its rounds, from within (internal timings). Each part is told by the clock, with
its processor time, in the median; and what the whole command takes from its start to its end.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.support.threads import begin_with_one_thread

RECIPE = Path(__file__).parents[1] / "recipes" / "digits.toml"

PARTS = {
    "tracing and calibration": ("run.build", None, "calibrate_run"),
    "accounts of all adversaries": ("run.run_accountant", "RunAccountant", "accounts"),
    "epsilon over rounds": ("run.privacy_report", "PrivacyReport", "over_rounds"),
    "rounds, with metrics": ("run.execute", "_Training", "play"),
}
"""Which function, of a module or of a class in it, does what; none of them calls another.

The last is learning, the others are accounting."""

LEARNING = tuple(PARTS)[-1]


def play(recipe: str, out: str) -> None:
    """One run in this process; prints what was timed."""
    taken: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    importlib.import_module("sottovoce.cli")
    begin_with_one_thread()  # as the command does before it loads what is timed here
    for part, (module, kind, name) in PARTS.items():
        owner: Any = importlib.import_module(f"sottovoce.{module}")
        owner = owner if kind is None else getattr(owner, kind)
        setattr(owner, name, _timed(getattr(owner, name), taken[part]))
    sys.argv = ["sotto", "--quiet", "run", recipe, "--out", out, "--json"]
    try:
        sys.modules["sottovoce.cli"].main()
    except SystemExit as stop:
        if stop.code:
            raise
    print(json.dumps(taken), file=sys.stderr)


def _timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **settings: Any) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        try:
            return function(*args, **settings)
        finally:
            taken[0] += time.perf_counter() - wall
            taken[1] += time.process_time() - processor

    return call


def measured(recipe: str) -> dict[str, list[float]]:
    """What one run took, part by part and as a whole, in a process of its own whose modules are compiled."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.runs", recipe, "--play", folder]
        compiling = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        begun = time.perf_counter()
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=compiling).stderr
    return {**json.loads(told.splitlines()[-1]), "the whole command": [time.perf_counter() - begun] * 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default=str(RECIPE))
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        play(given.recipe, given.play)
        return
    measured(given.recipe)  # the first compiles modules
    runs = [measured(given.recipe) for _ in range(given.repeat)]
    for part in runs[0]:
        wall, processor = zip(*(one[part] for one in runs), strict=True)
        spread = f"{1e3 * min(wall):.0f} to {1e3 * max(wall):.0f}"
        print(f"{part:28} {1e3 * statistics.median(wall):7.1f} ms ({spread}), processor {1e3 * min(processor):7.1f}")
    for what, parts in (("accounts", list(PARTS)[1:2]), ("all accounting", list(PARTS)[:-1])):
        clock, processor = (
            statistics.median(sum(one[part][kind] for part in parts) / one[LEARNING][kind] for one in runs)
            for kind in (0, 1)
        )
        print(f"{what} over learning, median of runs: {clock:.2f} by the clock, {processor:.2f} in processor time")


if __name__ == "__main__":
    main()
