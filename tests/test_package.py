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
        "import sys; import sottovoce.cli.peer, sottovoce.federation.member_folder\n"
        "sys.exit('torch' in sys.modules or 'grpc' in sys.modules)"
    )
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr


WITHOUT_LEARNING = (
    "import sys; sys.modules.update(dict.fromkeys(('torch', 'sklearn', 'safetensors')))\n"
    "from sottovoce.cli import main; sys.argv = ['sotto', *{words!r}]; main()"
)


@pytest.mark.parametrize(
    "line", ["account --graph ring:6 --rounds 5 --view node:0", "calibrate --graph ring:6 --epsilon 1", "graph ring:6"]
)
def test_accounts_need_no_torch(line):
    done = in_new_process(WITHOUT_LEARNING.format(words=line.split()))
    assert done.returncode == 0, done.stderr


def test_settings_are_audited_without_torch():
    settings = "clip=1,sigma=1,sigma-unit=clip,noise-on=sum,rounds=1,batch=full,records=10,adjacency=replace"
    done = in_new_process(
        f"import sys; from sottovoce.cli import main; sys.argv = ['sotto', 'audit', '--settings', {settings!r}]\n"
        "try: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    assert (done.returncode, done.stderr) == (0, "False\n")


@pytest.mark.parametrize("line", ["run recipes/digits.toml", "--verbose demo", "attack runs/none"])
def test_where_torch_is_missing_one_line_says_what_to_type(line):
    done = in_new_process(WITHOUT_LEARNING.format(words=line.split()))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].count('pip install "sottovoce[learning]"') == 1
    assert "Traceback" not in done.stderr


def test_where_torch_is_missing_names_say_what_to_type():
    done = in_new_process(
        "import sys; sys.modules['torch'] = None\n"
        "import sottovoce\ntry: sottovoce.simulate\n"
        "except sottovoce.InputError as error: sys.exit('sottovoce[learning]' not in str(error))"
    )
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
