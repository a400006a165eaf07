"""What all commands have in common: help, quiet and verbose, wrong input, closed pipes, completion, quick starts."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from sottovoce.cli.app import COMMANDS as FILES
from sottovoce.cli.app import app
from tests.cli.lines import command_lines
from tests.support.test_config import SMALL

GROUP = typer.main.get_command(app)
COMMANDS = sorted(command_lines())

FINE = {
    "account": "--graph ring:6",
    "attack": "run",
    "audit": "run",
    "calibrate": "--graph ring:6 --epsilon 1",
    "compare": "run",
    "data": "",
    "data inspect": "table.csv",
    "data split": "breast-cancer settings.toml",
    "demo": "",
    "export": "run",
    "graph": "ring:6",
    "ledger": "my.ledger",
    "noise": "--graph ring:6 --participation 2x3",
    "paper": "muffliato theorem-2",
    "peer agree": "settings.toml Hill.member.toml",
    "peer amend": "agreement.toml --from-round 2",
    "peer check": "agreement.toml",
    "peer init": "Hill --address hill.example:7443",
    "peer join": "agreement.toml --data table.csv",
    "peer leave": "agreement.toml",
    "peer rehearse": "agreement.toml --data empty",
    "peer relay": "agreement.toml --listen 127.0.0.1:7443",
    "peer renew": "",
    "peer sign": "amended.toml",
    "peer status": "",
    "predict": "model --data table.csv",
    "plan": "--graph ring:6 --records 20 --rounds 6 --epsilon 2",
    "report": "run",
    "run": "try.toml",
    "schema": "account",
}
"""For each command, options that are right: each wrong input below spoils one of them."""

WITH_ARGUMENTS = (
    "graph", "run", "attack", "audit", "compare", "report", "schema", "peer init", "peer agree", "peer check",
    "peer join", "peer rehearse", "peer amend", "peer leave", "peer relay", "peer sign", "data inspect",
    "data split", "export", "paper", "predict", "plan",
)  # fmt: skip
"""Commands that take words without an option's name."""

TRADED = {
    "--graph": ["nothing:6", "", "ring:0", "ring:-3", "ring:1e9", "ring:99999999999999", "erdos-renyi:5,p=nan", "file:",
                "file:no.txt", "file:.", "grid:3", "regular:5,d=3", "ring:6,p=1"],
    "--weights": ["odd", "", "push "],
    "--rounds": ["0", "-1", "nan", "1.5", "", "99999999999999999999"],
    "--sigma": ["-1", "nan", "inf", "", "word"],
    "--epsilon": ["0", "-1", "nan", "inf", "1e300", "", "word"],
    "--delta": ["0", "1", "-1", "nan", "inf", "2", ""],
    "--view": ["node:9", "node:-1", "node:", "coalition:", "coalition:0,9", "nonsense", "", "eavesdropper:0>3"],
    "--victim": ["9", "-1", "", "nobody"],
    "--adjacency": ["odd", ""],
    "--participation": ["0x3", "3", "-1x2", "99x9", "", "1x99999999999999999999"],
    "--algorithm": ["nothing", "", "decor"],
    "--records": ["0", "-1", "nan", "99999999999999999999"],
    "--dimension": ["0", "-5", "inf", "99999999999999999999"],
    "--objective": ["odd", ""],
    "--structure": ["odd"],
    "--gap": ["nan", "-1", "0"],
    "--jobs": ["0", "-1", "1000"],
    "--set": ["nonsense", "=", "training.rounds=0", "training.rounds=nan", "topology.graph=nothing:3",
              "topology.graph=", "topology.weights=odd", "algorithm.sigma=-1.0", "algorithm.sigma=nan",
              "algorithm.name=nothing", "privacy.delta=0.0", "privacy.attackers=[9]", "privacy.view=node:9",
              "training.bound=inf", "data.name=nothing", "name=../up", "name=", "seed=-1", "model.name=nothing",
              "training.batch=odd", "record.attackers=[77]", "unknown=1"],
    "--data": ["missing", "file"],
    "--attack": ["odd", ""],
    "--confidence": ["0", "1", "nan", "-1"],
    "--shadows": ["0", "1"],
    "--samples": ["0", "-1"],
    "--repetitions": ["1", "-1"],
    "--attacker": ["99", "-1", "x"],
    "--only": ["nobody"],
    "--lipschitz": ["nan", "-1"],
    "--compression": ["odd", "rand:0", "rand:nan"],
    "--gossip-steps": ["0", "2"],
    "--correlation": ["missing.npz", "file"],
    "--sigma-pair": ["1"],
    "--classes": ["0", "2", "-1"],
    "--address": ["", "host", "host:0", "host:99999", "host:port", ":1", "a b:1", "host:7443/x"],
    "--folder": ["file", "file/below"],
    "--target": ["nothing", ""],
    "--nonsense": ["1"],
}  # fmt: skip


def options(command: str) -> set[str]:
    found = GROUP
    for word in command.split():
        found = found.commands[word]
    parameters = found.params
    return {name for parameter in parameters for name in parameter.opts if name.startswith("--")}


def wrong() -> list[tuple[str, list[str]]]:
    lines = []
    for command in COMMANDS:
        if command in ("attack", "audit", "compare", "report"):
            continue  # on a run of their own, below
        for option, values in TRADED.items():
            if option in options(command) or option == "--nonsense":
                lines += [(command, [option, value]) for value in values if fits(command, option, value)]
    lines += [("peer init", [name, "--no-listen"]) for name in ("", "../up", "Hill 2", "9", "x" * 64)]
    lines += [("peer agree", ["missing.toml", "file"]), ("peer agree", ["try.toml", "try.toml"])]
    lines += [
        (f"peer {command}", [path])
        for command in ("check", "join", "leave", "sign")
        for path in ("missing.toml", "try.toml")
    ]
    lines += [("peer rehearse", [path, "--data", "empty"]) for path in ("missing.toml", "broken.toml", "try.toml")]
    lines += [("data split", ["breast-cancer", "try.toml"]), ("data split", ["moons", "missing.toml"])]
    lines += [("data inspect", [path]) for path in ("missing.csv", "file", ".", "", "one.csv", "binary.csv")]
    lines += [("graph", [spec]) for spec in TRADED["--graph"]]
    lines += [("run", [path]) for path in ("missing.toml", "broken.toml", ".", "file", "", "binary.toml", "list.json")]
    lines += [("attack", [path]) for path in ("missing", "file", "", "empty")]
    lines += [
        (command, [path]) for command in ("audit", "compare", "report") for path in ("missing", "file", "", "empty")
    ]
    lines += [("run", ["try.toml", "--out", "file"]), ("demo", ["--out", "file"]), ("demo", ["--out", "file/below"])]
    lines += [("noise", ["--out", place]) for place in (".", "", "missing/c.npz", "file/c.npz")]
    lines += [("account", ["--all-pairs", "--out", place]) for place in (".", "missing/x", "file/x")]
    lines += [
        ("schema", ["nothing"]),
        ("schema", [""]),
        ("account", []),
        ("calibrate", []),
        ("plan", []),
        ("noise", []),
    ]
    return lines


def fits(command: str, option: str, value: str) -> bool:
    """Some are right for some commands; the demo has its own test for settings."""
    if (command, option) == ("demo", "--set"):
        return False
    right = {("noise", "--participation", "99x9"), ("noise", "--view", "eavesdropper:0>3")} | {
        ("plan", "--algorithm", "decor")  # which finds the size of secrets itself
    }
    return (command, option, value) not in right


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a right recipe, and files that are none."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "try.toml").write_text(SMALL)
    (folder / "broken.toml").write_text('name = "x\n[[')
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "list.json").write_text("[1]")
    (folder / "file").write_text("mine")
    (folder / "table.csv").write_text("age,again\n20,no\n30,yes\n")
    (folder / "one.csv").write_text("age\n20\n30\n")
    (folder / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "empty").mkdir()
    return folder


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize(
    ("command", "words"), wrong(), ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
def test_wrong_input_is_one_line_and_writes_nothing(command, words, sotto, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    before = contents(place)
    right = FINE[command].split()
    if words and words[0] in right:
        at = right.index(words[0])
        right = right[:at] + right[at + 2 :]
    if not words or (command in WITH_ARGUMENTS and not words[0].startswith("--")):
        right = []
    code, out, err = sotto(command, *right, *words)
    assert (code in (2, 3), out, err.count("\n")) == (True, "", 1), (code, out[:200], err[:500])
    assert err.startswith("sotto: ")
    assert "unexpected" not in err
    assert contents(place) == before


@pytest.fixture(scope="module")
def finished(place, trained):
    """The folder of a finished run that recorded nothing."""
    return shutil.copytree(trained(tomllib.loads(SMALL)), place / "done" / "try")


ON_A_RUN = [
    (command, [option, value])
    for command in ("attack", "audit")
    for option in sorted(options(command) & TRADED.keys() | {"--nonsense"})
    for value in TRADED[option]
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words"), ON_A_RUN, ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
def test_wrong_input_about_a_run_is_one_line_and_writes_nothing(command, words, sotto, finished, monkeypatch):
    monkeypatch.chdir(finished.parents[1])
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    before = contents(finished)
    code, out, err = sotto(command, str(finished), *words)
    assert (code in (2, 3), out, err.count("\n")) == (True, "", 1), (code, out[:200], err[:500])
    assert contents(finished) == before


def start(*words: str, cwd: Path | None = None, **more) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **more}
    return subprocess.run(
        [sys.executable, "-m", "sottovoce", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("account --graph nothing:6", 2),
        ("calibrate --graph ring:4 --algorithm rss-nb --epsilon 1", 3),
        ("run broken.toml", 2),
        pytest.param("plan --graph ring:6 --records 5 --rounds 3 --epsilon nan", 2, marks=pytest.mark.slow),
    ],
)
def test_wrong_input_in_a_process_of_its_own(line, code, place):
    before = contents(place)
    done = start(*line.split(), cwd=place)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert contents(place) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_understood(command, sotto):
    code, out, err = sotto(f"{command} --help")
    assert (code, err) == (0, "")
    assert "--json" in out
    assert f"Example: sotto {command} " in " ".join(out.split()), out[:300]


def test_all_commands_are_those_of_the_design(sotto):
    assert {
        "account",
        "attack",
        "audit",
        "calibrate",
        "data",
        "demo",
        "graph",
        "noise",
        "plan",
        "run",
        "schema",
    } <= set(COMMANDS)
    out = sotto("--help")[1]
    assert all(re.search(rf"^  {command.split()[0]} ", out, flags=re.MULTILINE) for command in COMMANDS)


def test_the_table_of_commands_names_their_files():
    found = {
        command.name or command.callback.__name__: {command.callback.__module__} for command in app.registered_commands
    }
    for group in app.registered_groups:
        found[group.name] = {command.callback.__module__ for command in group.typer_instance.registered_commands}
    assert set(found) == set(FILES)
    assert [name for name, modules in found.items() if f"sottovoce.cli.{FILES[name]}" not in modules] == []


def test_quiet_says_nothing_and_verbose_says_what_takes_how_long(sotto, place, monkeypatch):
    monkeypatch.chdir(place)
    assert sotto("data")[2].startswith("Folder: ")
    assert sotto("--quiet data")[2] == ""
    assert sotto("--quiet graph nothing:3")[2].startswith("sotto: graph")
    code, out, err = sotto("--verbose account --graph ring:6 --json")
    assert json.loads(out)["rounds"] == 100
    assert re.fullmatch(r"(sotto: [^\n]+: \d+\.\d\d s\n)+", err)
    code, out, err = sotto("-q -v data")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sotto("account --graph ring:6 --json")[2] == ""


def test_a_closed_pipe_is_no_error_message(place):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    line = f"{sys.executable} -m sottovoce account --graph ring:30 --view node:0 --rounds 3 --json | head -c 5"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('{"ver', "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sottovoce", "graph", "ring:6"], env=environment, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("sotto: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell, monkeypatch, capsys):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit) as stop:
        app([f"--show-completion={shell}"], prog_name="sotto")
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert "_SOTTO_COMPLETE" in out


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("sotto aud", "audit", "account"),
    ],
)
def test_words_are_completed(typed, offered, not_offered, monkeypatch, capsys):
    for name, value in (("COMP_WORDS", typed), ("COMP_CWORD", str(len(typed.split()) - 1))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_SOTTO_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit) as stop:
        app([], prog_name="sotto")
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert offered in out.split()
    assert not_offered not in out.split()


HEAVY = {"torch", "pydantic", "sklearn", "dp_accounting", "rich", "jsonschema"}
"""What a quick answer never loads."""


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        (["--help", "--version", "account --help", "schema account"], {"numpy", "scipy", "networkx"}),
        (
            ["account --graph ring:6"],
            {
                "networkx",
                "scipy.optimize",
                "scipy.stats",
                "scipy.fft",
                "sottovoce.cli.run",
                "sottovoce.learning",
            },
        ),
        (
            ["graph ring:6", "account --graph ring:6 --view node:0 --rounds 5", "calibrate --graph ring:6 --epsilon 1"],
            {"networkx", "scipy.optimize", "scipy.stats"},
        ),
    ],
)
def test_quick_answers_load_nothing_heavy(lines, more):
    """One process for answers that load the same: what any of them loads is seen at the end."""
    code = (
        f"import sys\nfrom sottovoce.cli import main\nfor line in {lines!r}:\n"
        "    sys.argv = ['sotto', *line.split()]\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert stop.code == 0, line\n"
        f"print(*sorted({HEAVY | more!r} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


TERMINAL = (
    "import sys\n"
    "from sottovoce.cli import progress\n"
    "progress.PATIENCE, progress.BLINK = 0.0, 0.01\n"
    "sys.argv = ['sotto', *sys.argv[1:]]\n"
    "from sottovoce.cli import main\n"
    "main()\n"
)


@pytest.mark.parametrize(
    ("line", "said", "quiet"),
    [
        ("account --graph ring:30 --rounds 60 --view node:0 --victim 9 --json", "accounting for node:0", []),
        ("account --graph ring:30 --rounds 60 --view node:0 --victim 9 --json", "accounting for node:0", ["--quiet"]),
        ("account --graph ring:8 --rounds 5 --all-pairs --json", "attackers", []),
        pytest.param(
            "account --graph ring:8 --rounds 5 --all-pairs --json", "attackers", ["--quiet"], marks=pytest.mark.slow
        ),
    ],
)
def test_progress_is_shown_on_a_terminal_and_only_there(line, said, quiet):
    """stderr is a terminal, stdout is not: one document there, and nothing else."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *quiet, *line.split()], env=environment, stdout=subprocess.PIPE,
        stderr=theirs, text=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    out = process.communicate()[0]
    os.close(ours)
    assert process.returncode == 0
    assert json.loads(out)
    assert (said in shown.decode()) == (not quiet)
