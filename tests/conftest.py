"""Data sets for tests: used where they are, skipped by name where they are not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sottovoce.cli import main

DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / "shared" / "data"))
MISSING = "data set not found"


def pytest_configure(config):
    """Nothing is read from or left in the user's cache."""
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


@pytest.fixture
def sotto(monkeypatch, capsys):
    """`sotto("account --graph ring:6")` is what the command does here: its code, what it prints, and on stderr."""

    def run(line: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sotto", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def command():
    """`command(folder, "run", "try.toml")` starts `sotto` there in a process of its own, which ends with the test.

    It imports the package that is tested, and hears interrupts even where the tests were told not to.
    """
    begun = []

    def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce", *arguments], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def data():
    """`data("facebook_ego/414.edges.gz")` is its path, or the test is skipped, naming the file."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"{MISSING}: {name} (set SOTTOVOCE_DATA to the folder that holds it)")
        return path

    return find


@pytest.fixture(scope="session")
def oracles(data):
    """Stored reference values, each with how it was obtained."""
    return json.loads(data("../oracles.json").read_text())


def pytest_terminal_summary(terminalreporter):
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if MISSING in str(report.longrepr)]
    terminalreporter.write_line(f"{len(skipped)} tests skipped for want of a data set")
