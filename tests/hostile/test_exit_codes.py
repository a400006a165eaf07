"""Every kind of failure has one exit code and one line: the table of docs/commands.md, with a command for each row."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from sottovoce.errors import Diverged, PeerLost
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.run.execute import run_experiment
from sottovoce.support.config import parse_experiment
from tests.hostile.mutations import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def failing(monkeypatch, error: BaseException) -> None:
    """`sotto data` fails with this error."""

    def fail(*_):
        raise error

    monkeypatch.setattr("sottovoce.learning.datasets.list_datasets", fail)


def raises(error: BaseException) -> Callable:
    def prepare(monkeypatch) -> str:
        failing(monkeypatch, error)
        return "data"

    return prepare


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "runs/x")


def files(content: dict[str, bytes], line: str) -> Callable:
    def prepare(monkeypatch) -> str:
        for name, text in content.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(text)
        return line

    return prepare


def another_run(monkeypatch) -> str:
    Path("runs/try").mkdir(parents=True)
    Path("runs/try/config.json").write_text(json.dumps(parse_experiment(tomllib.loads(SETTINGS)).document()))
    Path("try.toml").write_text(SETTINGS)
    return "run try.toml --set seed=9"


def another_rank(monkeypatch) -> str:
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Path("try.toml").write_text(SETTINGS)
    return "run try.toml"


def end_this_process(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_sweep(monkeypatch) -> str:
    monkeypatch.setattr("sottovoce.run.sweep._attempt", end_this_process)
    Path("try.toml").write_text("seeds = [0, 1]\n" + SETTINGS)
    return "run try.toml --jobs 2"


def used_ledger(monkeypatch) -> str:
    def in_use(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("sottovoce.ledger.database.fcntl.flock", in_use)
    return "ledger my.ledger --budget 4"


def small_budget(monkeypatch) -> str:
    with open_ledger(Path("my.ledger")) as database:
        Spending(database).set_budget(Budget(0.01, 1e-5), DEFAULT)
    Path("try.toml").write_text(SETTINGS)
    return "run try.toml --ledger my.ledger"


def no_extra(monkeypatch) -> str:
    monkeypatch.setattr("sottovoce.errors.find_spec", lambda name: None)
    return "peer status"


def finished_run(line: str) -> Callable:
    def prepare(monkeypatch) -> str:
        monkeypatch.setattr("sottovoce.report.page_pdf.BROWSERS", ("true",))
        run_experiment(parse_experiment(tomllib.loads(SETTINGS.replace("{sigma = 1.0", "{sigma = 0.0"))), Path("done"))
        return line

    return prepare


OWN_CODE = {
    "mine.py": b"raise RuntimeError('no')",
    "own.toml": SETTINGS.replace("{sigma", '{name = "mine.py:Mine", sigma').encode(),
}


def terminated(monkeypatch) -> str:
    monkeypatch.setattr("sottovoce.learning.datasets.list_datasets", lambda *_: signal.raise_signal(signal.SIGTERM))
    return "data"


CASES: dict[str, tuple[int, Callable, str]] = {
    "the disk is full": (1, raises(os_error(errno.ENOSPC)), "runs/x: the disk is full"),
    "the disk fails": (1, raises(os_error(errno.EIO)), "runs/x: Input/output error"),
    "there is not enough memory": (1, raises(MemoryError()), "not enough memory"),
    "another process of the run is gone": (1, raises(PeerLost("rank 1 is gone; go on")), "rank 1 is gone"),
    "a process of the run, or of a sweep, was ended": (1, killed_sweep, "a process of the sweep was ended"),
    "a browser does not print the page": (1, finished_run("report done --pdf"), "printed nothing; open done/"),
    "sottovoce has a defect": (1, raises(KeyError("x")), "unexpected KeyError"),
    "a command or an option is unknown": (2, files({}, "graph ring:6 --colour red"), "No such option: --colour"),
    "a setting is wrong": (2, files({"a.toml": b"colour = 1"}, "run a.toml"), "colour; there is no such key"),
    "a file is nested too deeply": (2, files({"a.toml": b"x = " + b"[" * 9999}, "run a.toml"), "nested too deeply"),
    "a file is not there": (2, files({}, "run a.toml"), "a.toml: No such file"),
    "a file is damaged": (
        2, files({"c.npz": b"PK"}, "account --graph ring:4 --algorithm mf-d-sgd --correlation c.npz --rounds 2"),
        "c.npz: it is not an .npz file, or it is damaged",
    ),
    "a permission is missing": (2, raises(os_error(errno.EACCES)), "give yourself the permission"),
    "a name is too long": (2, files({}, f"graph file:{'x' * 300}"), "use a shorter one"),
    "a folder is in the place of a file": (2, files({"a/b": b""}, "run a"), "a is a folder"),
    "a file is in the place of a folder": (
        2, files({"a.toml": SETTINGS.encode()}, "run a.toml --out a.toml"), "a.toml is not a folder",
    ),
    "a pipe, a device or a link": (2, files({}, "graph file:/dev/null"), "/dev/null is a pipe or a device"),
    "a folder or a ledger is in use": (2, used_ledger, "my.ledger: another process uses it; only one process"),
    "it would take too much": (
        2, files({}, "account --graph ring:6 --rounds 10000000"), "without --yes at most 10 minutes are used",
    ),
    "a package of an extra is not installed": (2, no_extra, "cryptography is not installed; this needs the extra"),
    "a folder holds another run": (2, another_run, "runs/try holds a run with another seed; a folder holds one run"),
    "training diverges": (2, raises(Diverged("nan after round 3", "nothing is left", "lower the step")), "nan after"),
    "code of your own does not load": (2, files(OWN_CODE, "run own.toml"), "RuntimeError: no; "),
    "a variable of the environment is wrong": (2, another_rank, "RANK='x' in the environment; it is a whole number"),
    "no guarantee exists": (3, files({}, "calibrate --graph ring:4 --algorithm rss-nb --epsilon 1"), "no sigma"),
    "a model would be exported that no figure covers": (3, finished_run("export done"), "add --uncovered"),
    "a budget would be passed": (3, small_budget, "its budget is 0.01; not one round would still fit"),
    "Ctrl-C": (130, raises(KeyboardInterrupt()), "stopped"),
    "SIGTERM": (143, terminated, "stopped"),
}  # fmt: skip

STREAMS = {
    "stdout is closed": (">&-", 1, "stdout is closed; answers are written to it; redirect it"),
    "stdout is a full disk": (">/dev/full", 1, "stdout: the disk is full"),
    "stdout has no reader any more": ("| true", 1, ""),
}


def test_the_page_lists_these_kinds():
    table = PAGE.partition("| what happened | exit code |")[2].partition("\n\n")[0]
    listed = {name: int(code) for name, code in re.findall(r"^\| (.+) \| (\d+) \|$", table, flags=re.MULTILINE)}
    own = {name: code for name, (code, *_) in CASES.items()} | {name: code for name, (_, code, _) in STREAMS.items()}
    own["an audit refutes a claim"] = 4  # tests/auditing
    own["a run folder contradicts itself"] = 1  # test_run_folders.py
    own["`sotto peer check`"] = 1  # tests/federation/test_checking.py
    own["a member cannot listen at its address"] = 1  # tests/federation/test_grpc_links.py
    own["a member of a rehearsal was ended"] = 1  # tests/federation/test_rehearsal.py
    own["members have different agreements"] = 2  # tests/federation/test_joining.py
    assert len(listed) == len(own)
    for name, code in own.items():
        assert [listed[row] for row in listed if row.startswith(name)] == [code], name


KINDS = {
    "SottovoceError",
    "_Explained",
    "InputError",
    "Diverged",
    "PeerLost",
    "Unaccountable",
    "Uncertified",
    "Terminated",
}
"""The errors that end a command; the rows above have one or more of each."""

INSIDE = {"Refused", "StreamEnded", "SumFailed", "Killed", "Singular", "TooLarge", "_Ended", "_MoreBits"}
"""Errors that no command ends with: of single frames, streams and sums, of tests, of a route that gives way."""

EXITS = {
    "cli/compare.py": ["Exit", "Exit"],
    "cli/peer.py": ["Exit", "Exit"],
    "cli/audit.py": ["Exit", "Exit"],
    "cli/app.py": ["Exit", "exit"],
    "cli/run.py": ["_exit", "SystemExit", "SystemExit"],
    "support/processes.py": ["_exit", "_exit"],
}
"""Where a command, or a process of one, is not ended by an error: findings, and what was said before."""


FAILURES = {
    "cli/output.py": "stdout is closed",
    "distributed/launch.py": "a process of the run, or of a sweep, was ended",
    "distributed/ranks.py": "sottovoce has a defect",
    "errors.py": "the disk is full, the disk fails",
    "federation/grpc_links.py": "a member cannot listen at its address",
    "federation/relay.py": "a member cannot listen at its address",
    "federation/rehearsal.py": "a member of a rehearsal was ended",
    "federation/secure_grpc.py": "a defect of a program that uses sottovoce",
    "ledger/database.py": "the disk is full, the disk fails",
    "core/secret_source.py": "sottovoce has a defect",
    "matrix_factorization/optimizer.py": "sottovoce has a defect",
    "report/figure_files.py": "sottovoce has a defect",
    "report/page_pdf.py": "a browser does not print the page",
    "support/processes.py": "a process of the run, or of a sweep, was ended",
}
"""Where a failure of the machine is raised, and which row it is."""


def test_no_kind_of_failure_is_missing():
    """A new error, or another way to end, gets a row of the table first."""
    found, exits, failures = set(), {}, set()
    for path in sorted((ROOT / "sottovoce").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(_is_error(base) for base in node.bases):
                found.add(node.name)
            ending = _name(node.func) if isinstance(node, ast.Call) else _name(getattr(node, "exc", None))
            name = str(path.relative_to(ROOT / "sottovoce"))
            if ending in ("Exit", "SystemExit", "exit", "_exit"):
                exits.setdefault(name, set()).add((ending, node.lineno))
            elif isinstance(node, ast.Call) and ending == "SottovoceError":
                failures.add(name)
    assert found <= KINDS | INSIDE, found - KINDS - INSIDE
    assert failures == set(FAILURES)
    assert {path: sorted(name for name, _ in ends) for path, ends in exits.items()} == {
        path: sorted(names) for path, names in EXITS.items()
    }


def _name(node: ast.AST | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_error(base: ast.AST) -> bool:
    return _name(base).endswith(("Error", "Exception", "KeyboardInterrupt")) or _name(base) in KINDS


@pytest.mark.parametrize("name", CASES)
def test_every_failure_has_its_code_and_its_line(name, sotto, tmp_path, monkeypatch):
    code, prepare, said = CASES[name]
    monkeypatch.chdir(tmp_path)
    line = prepare(monkeypatch)
    found, out, err = sotto(line)
    assert (found, out, err.count("\n")) == (code, "", 1), (found, out, err)
    assert err.startswith("sotto: ")
    assert said in err
    assert "Traceback" not in err
    assert ("unexpected" in err) == (name == "sottovoce has a defect")
    if code == 2 and "No such option" not in err:
        assert err.count("; ") >= 2, "found, rule, remedy"


@pytest.mark.parametrize("name", STREAMS)
def test_streams_that_cannot_be_written_have_their_code_and_their_line(name):
    where, code, said = STREAMS[name]
    done = shell(f"{sys.executable} -m sottovoce schema account {where}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == (1 if said else 0)
    assert said in done.stderr


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_a_stderr_that_cannot_be_written_changes_neither_code_nor_answer():
    sotto = f"{sys.executable} -m sottovoce"
    lines = ("data 2>/dev/full", "run missing 2>&-", "run missing 2>/dev/full", "data >&- 2>&-")
    done = shell("; ".join(f"({sotto} {line}; echo $?) | tail -1" for line in lines))
    assert (done.stdout.split(), done.stderr) == (["0", "2", "2", "1"], "")


READ = {
    "run try.toml --out .": ("config.json", "privacy.json", "result.json", "metrics.jsonl"),
    "compare try": ("config.json", "privacy.json", "result.json", "metrics.jsonl"),
    "attack try --attack threshold": ("config.json", "privacy.json", "checkpoint.npz"),
}
"""The files of a finished run that commands read."""


@pytest.mark.parametrize(("line", "name"), [(line, name) for line, names in READ.items() for name in names])
def test_a_missing_permission_is_asked_for(line, name, sotto, trained, tmp_path, monkeypatch):
    """As if another user owned the file: tests that run as root may read everything."""
    monkeypatch.chdir(tmp_path)
    Path("try.toml").write_text(SETTINGS)
    shutil.copytree(trained(tomllib.loads(SETTINGS)), "try")

    def refusing(inner):
        def open_(file, *arguments, **more):
            if isinstance(file, str | os.PathLike) and Path(file).name == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(file))
            return inner(file, *arguments, **more)

        return open_

    for place in (io, os):
        monkeypatch.setattr(place, "open", refusing(place.open))
    code, _, err = sotto(line)
    assert (code, err.count("\n")) == (2, 1), err
    assert f"try/{name}: Permission denied; " in err
    assert "give yourself the permission" in err
    assert "remove" not in err
