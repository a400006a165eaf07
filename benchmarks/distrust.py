"""What distrust costs a run: `python -m benchmarks.distrust`.

Runs `sotto run recipes/digits.toml` again and again, each time in a process of its own, and counts the processor time
inside all code that reads and writes without trust: files, links, modes, checksums, schemas, locks, keys, signatures,
limits, escapes. A call from any other code into one of these modules counts whole, with what it would take without
distrust as well (bytes have to be written anyway), but for `EITHER_WAY`; what these modules call of each other is not
clocked again. Importing the modules counts whole. So the shares are upper bounds. The clock's own time, which the
counted calls include, is measured and taken off.
"""

from __future__ import annotations

import argparse
import importlib
import importlib._bootstrap as bootstrap
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "support.files", "support.text", "schemas.validation", "support.limits", "support.npz",
    "support.processes",
    "cli.output", "cli.progress", "run.layout",
)  # fmt: skip
ALSO = {"tracing.policy": ("trace_cost",), "run.checkpoint": ("save", "load"), "run.execute": ("_check_memory",)}
"""Functions of other modules that are there for the same reason, or hold checks of it."""

EITHER_WAY = {"text": ("parse_json", "json_text")}
"""What these modules call that every version would: bytes become a document, and it becomes text. The clock stands
still meanwhile."""

EMPTY_CALLS = 10_000
"""Calls of a function that does nothing, which say what the clock itself takes."""

SHOWN = 6
"""So many functions are named, those that take most."""

RECIPE = Path(__file__).parents[1] / "recipes" / "digits.toml"


class Clock:
    """Seconds of this thread's processor within counted calls, by name. A call within another is part of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._name, self._begun = "", 0.0

    def call(self, name: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """Call a function, counted unless a counted call is under way."""
        if self._name:
            return function(*args, **settings)
        self._name, self._begun = name, time.thread_time()
        try:
            return function(*args, **settings)
        finally:
            self.seconds[name] += time.thread_time() - self._begun
            self.calls[name] += 1
            self._name = ""

    def pause(self, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """Call a function that does not count, whatever calls it."""
        begun = time.thread_time()
        try:
            return function(*args, **settings)
        finally:
            self._begun += time.thread_time() - begun

    def own_seconds(self) -> float:
        """What a counted call takes beyond the function itself."""
        own = Clock()
        for _ in range(EMPTY_CALLS):
            own.call("nothing", int)
        return own.seconds["nothing"] / EMPTY_CALLS


class TimedContext(AbstractContextManager[Any]):
    """A context whose beginning and end count, and what happens within does not."""

    def __init__(self, context: AbstractContextManager[Any], clock: Clock, name: str) -> None:
        self._context, self._clock, self._name = context, clock, name

    def __enter__(self) -> Any:
        return self._clock.call(self._name, self._context.__enter__)

    def __exit__(self, *error: Any) -> bool | None:
        return self._clock.call(self._name, self._context.__exit__, *error)


class CountedModule(ModuleType):
    """A module that hands out counted functions; its own code, which looks them up elsewhere, finds the plain ones."""

    def __getattribute__(self, key: str) -> Any:
        return super().__getattribute__("counted_functions").get(key) or super().__getattribute__(key)


def timed(function: Callable[..., Any], clock: Clock, name: str) -> Callable[..., Any]:
    """The same function, with its calls counted."""
    makes_context = inspect.isgeneratorfunction(inspect.unwrap(function))

    def call(*args: Any, **settings: Any) -> Any:
        found = clock.call(name, function, *args, **settings)
        return TimedContext(found, clock, name) if makes_context else found

    return call


def count_calls(clock: Clock, modules: dict[str, ModuleType]) -> None:
    """Put counted functions in the place of those of MODULES and ALSO, wherever other modules know them by name."""
    for name, keys in EITHER_WAY.items():
        for key in keys:
            _replace(getattr(modules[name], key), _paused(getattr(modules[name], key), clock), list(modules.values()))
    others = [module for name, module in sys.modules.items() if name.startswith("sottovoce")]
    others = [module for module in others if module not in [modules[name] for name in MODULES]]
    for name, module in modules.items():
        keys = ALSO.get(name) or [key for key, one in vars(module).items() if _is_own(one, module, inspect.isfunction)]
        counted = {key: timed(vars(module)[key], clock, f"{name}.{key}") for key in keys}
        for key in keys:
            _replace(vars(module)[key], counted[key], others)
        if name in MODULES:
            module.__dict__["counted_functions"] = counted
            module.__class__ = CountedModule
            for kind in [one for one in vars(module).values() if _is_own(one, module, inspect.isclass)]:
                _count_methods(kind, clock, name)


def _is_own(one: object, module: ModuleType, is_kind: Callable[[object], bool]) -> bool:
    return is_kind(one) and getattr(one, "__module__", None) == module.__name__


def _replace(plain: object, other: object, modules: list[ModuleType]) -> None:
    for module in modules:
        for key in [key for key, one in vars(module).items() if one is plain]:
            vars(module)[key] = other


def _paused(function: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    return lambda *args, **settings: clock.pause(function, *args, **settings)


def _count_methods(kind: type, clock: Clock, module: str) -> None:
    for key, method in list(vars(kind).items()):
        name = f"{module}.{kind.__name__}.{key}"
        if isinstance(method, property) and method.fget is not None:
            setattr(kind, key, property(timed(method.fget, clock, name)))
        elif inspect.isfunction(method):
            setattr(kind, key, timed(method, clock, name))


class ImportTimes:
    """Seconds of this thread's processor that importing each module takes, without those that it imports itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within: list[float] = []
        self._load = bootstrap._find_and_load  # type: ignore[attr-defined]
        bootstrap._find_and_load = self._timed_load  # type: ignore[attr-defined]

    def _timed_load(self, name: str, import_: Callable[..., Any]) -> ModuleType:
        begun = time.thread_time()
        self._within.append(0.0)
        try:
            return self._load(name, import_)  # type: ignore[no-any-return]
        finally:
            whole, others = time.thread_time() - begun, self._within.pop()
            self.seconds[name] += whole - others
            if self._within:
                self._within[-1] += whole


def play(out: str) -> None:
    """One run in this process; prints what was counted and what all of it took."""
    clock, imports, before = Clock(), ImportTimes(), time.process_time()
    importlib.import_module("sottovoce.cli")
    modules = {name: importlib.import_module(f"sottovoce.{name}") for name in (*MODULES, *ALSO)}
    before -= _preparation(clock, modules)
    sys.argv = ["sotto", "--quiet", "run", str(RECIPE), "--out", out, "--json"]
    try:
        sys.modules["sottovoce.cli"].main()
    except SystemExit as stop:
        if stop.code:
            raise
    whole = time.process_time() - before
    told = {
        "whole": whole, "calls": sum(clock.calls.values()), "called": dict(clock.seconds),
        "clock": clock.own_seconds() * sum(clock.calls.values()),
        "imported": {name: imports.seconds[f"sottovoce.{name}"] for name in MODULES},
    }  # fmt: skip
    print(json.dumps(told), file=sys.stderr)


def _preparation(clock: Clock, modules: dict[str, ModuleType]) -> float:
    """Seconds that it takes to count calls from here on; negative, to be taken off."""
    begun = time.process_time()
    count_calls(clock, modules)
    return begun - time.process_time()


def measured() -> dict[str, Any]:
    """What one run took, in a process of its own whose modules are compiled once, as an installation's are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.distrust", "--play", folder]
        compiling = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=compiling).stderr
    return dict(json.loads(told.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        play(given.play)
        return
    shares, called = [], defaultdict[str, float](float)
    measured()  # the first compiles modules
    for _ in range(given.repeat):
        one = measured()
        calls, imports = sum(one["called"].values()) - one["clock"], sum(one["imported"].values())
        shares.append((calls + imports) / one["whole"])
        for name, seconds in one["called"].items():
            called[name] += seconds / given.repeat
        print(
            f"{shares[-1]:.3%} of {one['whole']:.2f} s: {1e3 * calls:.1f} ms in {one['calls']:,} calls "
            f"(the clock's own {1e3 * one['clock']:.2f} ms taken off), {1e3 * imports:.1f} ms of imports",
            flush=True,
        )
    for name, seconds in sorted(called.items(), key=lambda entry: -entry[1])[:SHOWN]:
        print(f"  {1e3 * seconds:6.2f} ms  {name}")
    mean = sum(shares) / len(shares)
    error = math.sqrt(sum((one - mean) ** 2 for one in shares) / max(1, len(shares) - 1) / len(shares))
    print(f"at most {mean:.3%} of the run's processor time, standard error {error:.3%}, largest {max(shares):.3%}")


if __name__ == "__main__":
    main()
