"""Data sets for tests: used where they are, skipped by name where they are not."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# before numpy and torch are loaded: two threads that share a product wait for each other on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sottovoce.cli import main, progress
from tests.browser import open_page
from tests.forked import ENVIRONMENT, Command, forking

DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / "shared" / "data"))
MISSING = "data set not found"


def pytest_configure(config):
    """Nothing is read from or left in the user's cache and state."""
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name
    os.environ["XDG_STATE_HOME"] = folder.name
    ENVIRONMENT.update({**os.environ, **ENVIRONMENT})


@pytest.fixture
def sotto(monkeypatch, capsys):
    """`sotto("account --graph ring:6")` is what the command does here: its code, what it prints, and on stderr.

    Processes that it starts are forked. On a busy machine, lines of progress would come between those that are tested.
    """
    monkeypatch.setattr(progress, "INTERVAL", 1e6)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: forking())

    def run(line: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sotto", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def command(tmp_path_factory):
    """`command(folder, "run", "try.toml")` starts `sotto` there in a process of its own, which ends with the test."""
    begun = []

    def start(place: Path, *arguments: str) -> Command:
        begun.append(Command(tmp_path_factory.mktemp("command"), place, *arguments))
        return begun[-1]

    yield start
    for process in begun:
        process.end()


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
def oracles():
    """Stored reference values, each with how it was obtained."""
    return json.loads(Path(__file__).with_name("oracles.json").read_text())


@pytest.fixture(scope="session")
def trained(tmp_path_factory, worker_id):
    """`trained(document)` is the folder of that experiment, trained once for all tests and workers: look, do not touch.

    `shutil.copytree` makes a copy to change.
    """
    base = tmp_path_factory.getbasetemp()
    store = (base if worker_id == "master" else base.parent) / "trained"
    store.mkdir(exist_ok=True)

    def train_once(document: dict) -> Path:
        from sottovoce.run.execute import run_experiment
        from sottovoce.support.config import parse_experiment

        key = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
        with (store / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run_experiment(parse_experiment(document), store / key)  # a finished run is only read
        return store / key

    return train_once


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sottovoce" / "noise"


def pytest_terminal_summary(terminalreporter):
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if MISSING in str(report.longrepr)]
    terminalreporter.write_line(f"{len(skipped)} tests skipped for want of a data set")


@pytest.fixture(scope="module")
def chromium():
    """The installed browser; tests that need it are skipped without."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """`opened(file, width=360)` is its page from disk, offline; nothing may complain and nothing may be asked for."""
    contexts, wrong = [], []

    def show(file: Path, *, width: int = 1280, height: int = 900, dark: bool = False):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True
        )
        contexts.append(context)
        return open_page(context, file, wrong)

    yield show
    for context in contexts:
        context.close()
    assert wrong == []
