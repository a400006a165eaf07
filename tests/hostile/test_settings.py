"""Settings that somebody broke: one line, exit code 2 or 3, within seconds, and never a traceback."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import typer

from sottovoce.cli.app import app, load_commands
from sottovoce.run.build import build_accountant
from sottovoce.support.config import DEEPEST
from tests.hostile.mutations import SETTINGS, mutated

load_commands()
GROUP = typer.main.get_command(app)


@pytest.fixture
def untrained(monkeypatch, tmp_path):
    """Runs are built, and end before the first round; the options of commands are put together once for all calls."""

    def run_experiment(experiment, folder, *, data=None, **_):
        build_accountant(experiment, data)
        raise typer.Exit

    def run_experiments(runs, *_, **more):
        run_experiment(runs[0].experiment, None)

    monkeypatch.setattr(sys.modules["sottovoce.cli.app"], "app", GROUP)
    monkeypatch.setattr("sottovoce.run.execute.run_experiment", run_experiment)
    monkeypatch.setattr("sottovoce.run.sweep.run_experiments", run_experiments)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)


def expect_one_line(code: int, err: str, what: object) -> None:
    assert code in (2, 3), (what, code, err)
    assert err.startswith("sotto: "), (what, err)
    assert err.count("\n") == 1, (what, err)
    assert "unexpected" not in err, (what, err)
    assert "Traceback" not in err, (what, err)
    assert len(err) < 1100, (what, len(err))
    assert err[:-1].isprintable(), (what, err)


def run_mutated(sotto, numbers) -> Counter:
    codes = Counter()
    for number in numbers:
        Path("mutated.toml").write_bytes(mutated(number))
        begun = time.process_time()
        code, _, err = sotto("run mutated.toml --jobs 1")
        assert time.process_time() - begun < 10, number
        codes[code] += 1
        if code:
            expect_one_line(code, err, number)
    return codes


def test_mutated_settings_are_one_line(sotto, untrained):
    codes = run_mutated(sotto, range(500))
    assert codes[0] > 10, "some mutations are harmless"
    assert codes[2] > 300


@pytest.mark.slow
def test_many_more_mutated_settings_are_one_line(sotto, untrained):
    run_mutated(sotto, range(500, 5000))


DEEP = {
    "array.toml": "x = " + "[" * 100_000,
    "inline.toml": "x = " + "{a = " * 5000,
    "keys.toml": SETTINGS + "x." * 20_000 + "x = 1",
    "levels.toml": SETTINGS + "x = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "array.json": "[" * 200_000,
    "tables.json": '{"a": ' * 100_000,
    "levels.json": json.dumps({"name": "x"})[:-1] + ', "a": ' + '{"a": ' * 500 + "1" + "}" * 501,
    "surrogate.json": '{"name": "\\ud800"}',
    "numbers.json": '{"seed": ' + "9" * 5000 + "}",
    "nan.json": json.dumps({**tomllib.loads(SETTINGS), "algorithm": {"sigma": float("nan")}}),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_and_strange_files_are_one_line(name, sotto, untrained):
    Path(name).write_text(DEEP[name])
    code, out, err = sotto("run", name)
    expect_one_line(code, err, name)
    assert out == ""


@pytest.mark.parametrize("setting", ["x." * 20_000 + "x=1", "x=" + "[" * 50_000, "seed=0x" + "f" * 5000, "\x1b[2J=1"])
def test_strange_overrides_are_one_line(setting, sotto, untrained):
    Path("try.toml").write_text(SETTINGS)
    code, _, err = sotto("run try.toml --set", setting)
    expect_one_line(code, err, setting[:40])


def test_a_sweep_that_nobody_could_wait_for_is_refused_at_once(sotto, untrained):
    axes = "\n".join(f'"algorithm.x{axis}" = {list(range(30))}' for axis in range(9))
    Path("try.toml").write_text(f"{SETTINGS}\n[grid]\n{axes}")
    code, _, err = sotto("run try.toml")
    expect_one_line(code, err, "sweep")
    assert "a sweep of 19,683,000,000,000 runs; it has at most 10,000; use fewer values" in err
