"""What distrust costs a run: `python -m benchmarks.distrust`.

Runs `sotto run recipes/digits.toml` again and again, each time in a process of its own, and counts the time inside all
code that reads and writes without trust: files, links, modes, checksums, schemas, locks, keys, signatures, limits,
escapes. Every call from outside into one of these modules counts whole, with what it would take without distrust as
well (bytes have to be written anyway): the shares are upper bounds. Importing the modules counts too.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "regular_files", "text", "schemas.validation", "core.limits", "core.files", "core.processes", "core.auditor_key",
    "cli.terminal", "cli.progress_lines", "privacy.account_cost", "privacy.account_estimate", "run.lock", "run.layout",
    "run.noise_key_file", "run.private_facts", "run.recorded_inputs", "run.claim_consistency",
    "run.stored_accounts",
)  # fmt: skip
ALSO = {"tracing.policy": ("trace_cost",), "run.checkpoint": ("save", "load"), "run.execute": ("_check_memory",)}
"""Functions of other modules that are there for the same reason, or hold checks of it."""

RECIPE = Path(__file__).parents[1] / "recipes" / "digits.toml"


class Clock:
    """Seconds by the wall and of this thread's processor in the outermost of nested calls."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0
        self.calls = self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._begun = time.perf_counter(), time.thread_time()
        self._depth += 1
        self.calls += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.wall += time.perf_counter() - self._begun[0]
            self.processor += time.thread_time() - self._begun[1]


class TimedContext(AbstractContextManager[Any]):
    """A context whose beginning and end count, and what happens within does not."""

    def __init__(self, context: AbstractContextManager[Any], clock: Clock) -> None:
        self._context, self._clock = context, clock

    def __enter__(self) -> Any:
        with self._clock:
            return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        with self._clock:
            return self._context.__exit__(*error)


def timed(function: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """The same function, with its calls counted."""

    def call(*args: Any, **settings: Any) -> Any:
        with clock:
            found = function(*args, **settings)
        return TimedContext(found, clock) if isinstance(found, AbstractContextManager) and made else found

    made = inspect.isgeneratorfunction(inspect.unwrap(function))
    return call


def count_calls(clock: Clock) -> None:
    """Put counted functions in the place of those of MODULES and ALSO, wherever they are known by name."""
    replaced: dict[int, Callable[..., Any]] = {}
    for name in (*MODULES, *ALSO):
        module = importlib.import_module(f"sottovoce.{name}")
        wanted = ALSO.get(name) or [key for key, one in vars(module).items() if _is_own_function(one, module)]
        replaced |= {id(getattr(module, key)): timed(getattr(module, key), clock) for key in wanted}
        for one in vars(module).values() if name in MODULES else ():
            if inspect.isclass(one) and one.__module__ == module.__name__:
                _count_methods(one, clock)
    for module in [one for name, one in sys.modules.items() if name.startswith("sottovoce")]:
        for key, one in list(vars(module).items()):
            if id(one) in replaced and inspect.isfunction(one):
                setattr(module, key, replaced[id(one)])


def _is_own_function(one: object, module: ModuleType) -> bool:
    return inspect.isfunction(one) and one.__module__ == module.__name__


def _count_methods(kind: type, clock: Clock) -> None:
    for key, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not key.startswith("__"):
            setattr(kind, key, timed(method, clock))


def play(out: str) -> None:
    """One run in this process; prints what was counted and what all of it took."""
    begun, clock, before = time.perf_counter(), Clock(), time.process_time()
    importlib.import_module("sottovoce.cli")
    count_calls(clock)
    sys.argv = ["sotto", "--quiet", "run", str(RECIPE), "--out", out, "--json"]
    try:
        sys.modules["sottovoce.cli"].main()
    except SystemExit as stop:
        if stop.code:
            raise
    whole = {"wall": time.perf_counter() - begun, "processor": time.process_time() - before}
    found = {"wall": clock.wall, "processor": clock.processor, "calls": clock.calls}
    print(json.dumps({"whole": whole, "found": found}), file=sys.stderr)


def importing() -> float:
    """Seconds that the modules themselves take to be imported, without those that they import."""
    line = "import sottovoce.cli, sottovoce.run.execute, sottovoce.report.page"
    told = subprocess.run([sys.executable, "-X", "importtime", "-c", line], check=True, capture_output=True, text=True)
    rows = [row.removeprefix("import time:").split("|") for row in told.stderr.splitlines() if row.count("|") == 2]
    names = {f"sottovoce.{name}" for name in MODULES}
    return sum(float(own) for own, _, name in rows if name.strip() in names) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        play(given.play)
        return
    shares: dict[str, list[float]] = {"processor": [], "wall": []}
    for _ in range(given.repeat):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.distrust", "--play", folder]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()[-1]
        one, imports = json.loads(told), importing()
        for kind, list_ in shares.items():
            list_.append((one["found"][kind] + imports) / one["whole"][kind])
        print(told, f"imports {imports:.4f} s", flush=True)
    for kind, found in shares.items():
        mean = sum(found) / len(found)
        error = math.sqrt(sum((one - mean) ** 2 for one in found) / max(1, len(found) - 1) / len(found))
        print(f"{kind}: {mean:.3%} of the run, standard error {error:.3%}, largest {max(found):.3%}")


if __name__ == "__main__":
    main()
