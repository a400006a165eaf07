"""The package's surface: its names, its start-up, its command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import sottovoce


def test_public_names_are_these():
    assert sorted(sottovoce.__all__) == sottovoce.__all__
    assert set(sottovoce.__all__) == {"views", *(name for names in sottovoce._MODULE_OF.values() for name in names)}
    assert all(getattr(sottovoce, name) is not None for name in sottovoce.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sottovoce.nonsense


def in_new_process(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_privacy_half_does_not_load_torch():
    code = (
        "import sys; from sottovoce import *; trace(algorithm('zip-dl', sigma=1.0), metropolis('ring:5'), rounds=2)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr


def test_the_status_of_a_member_does_not_load_torch_or_grpc():
    code = (
        "import sys; import sottovoce.cli.peer_progress, sottovoce.federation.member_folder\n"
        "sys.exit('torch' in sys.modules or 'grpc' in sys.modules)"
    )
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr


def new_sotto(*words):
    return subprocess.run([sys.executable, "-m", "sottovoce", *words], capture_output=True, text=True, check=False)


def test_graph_command_prints_one_document():
    done = new_sotto("graph", "florentine", "--weights", "uniform", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (facts["nodes"], facts["edges"], facts["components"]) == (15, 20, 1)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["graph", "mesh:3"], 2, "sotto: graph 'mesh:3'; known: "),
        (["graph", "exponential:6"], 2, "sotto: exponential:6 is directed; "),
        (["graph"], 2, "sotto: Missing argument"),
        (["grpah"], 2, "sotto: No such command 'grpah'"),
        (["demo", "--jobs", "0"], 2, "sotto: Invalid value for '--jobs'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(words, code, line, sotto):
    found, out, err = sotto(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(line)


def test_without_a_command_help_is_shown():
    done = new_sotto()
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo" in done.stdout
