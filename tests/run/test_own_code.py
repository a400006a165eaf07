"""Runs whose algorithm, model and data are code of the user's own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sottovoce import InputError, Unaccountable, algorithm, code_from, metropolis, trace
from sottovoce.learning.datasets import find_dataset
from sottovoce.learning.models import find_model
from sottovoce.privacy.convexity import least_weight, taken_step_size
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.support.config import parse_experiment, read_settings_file

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-code.md").read_text()
QUICK = ("--set", "training.rounds=3", "--set", "training.batch=cycle:4x2", "--set", "metrics.every=3")


def saved(page: str, name: str) -> str:
    return re.search(rf'title="{name}"\n(.*?)```', page, flags=re.DOTALL)[1]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The files of the page about code, in a folder of their own."""
    folder = tmp_path / "written"
    folder.mkdir()
    for name in ("mine.py", "mine.toml"):
        (folder / name).write_text(saved(PAGE, name))
    monkeypatch.chdir(tmp_path)
    return folder


def trained(sotto, *more: str) -> Path:
    code, _, err = sotto("", "run", "written/mine.toml", *QUICK, *more)
    assert code == 0, err
    return Path("runs/mine")


def test_changed_code_is_refused(written, sotto):
    run = trained(sotto)
    stated = json.loads((run / "privacy.json").read_text())
    assert set(stated["code"]) == {"algorithm", "model"}
    assert stated["algorithm"] == "mine.py:Momentum"
    assert sotto("", "run", "written/mine.toml", *QUICK)[0] == 0
    (written / "mine.py").write_text(saved(PAGE, "mine.py").replace("grad + noise", "grad + 0.5 * noise"))
    for command in (["run", "written/mine.toml", *QUICK], ["attack", "runs/mine", "--code", "written"]):
        code, _, err = sotto("", *command)
        assert (code, "the code of algorithm has changed since the run began" in err) == (2, True), err
    (run / "result.json").unlink()
    code, _, err = sotto("", "run", "written/mine.toml", *QUICK, "--resume")
    assert (code, "has changed" in err) == (2, True), err


def test_a_plan_counts_the_parameters_of_a_model_of_ones_own(written, sotto):
    code, out, err = sotto("", "plan", "written/mine.toml", "--json")
    assert code == 0, err
    assert json.loads(out)["dimension"] == 5 * 7 + 2 * 6


def test_code_that_reads_data_is_part_of_the_private_fingerprint(written, sotto):
    """The same rows, read by other code that stands elsewhere: what is public stays the same."""
    (written / "rows.py").write_text(saved(PAGE, "mine.py"))
    run = trained(sotto, "--set", "data.name=rows.py:load")
    before = (run / "privacy.json").read_bytes()
    private = json.loads((run / "private.json").read_text())["fingerprint"]
    shutil.rmtree(run)
    (written / "rows.py").write_text(saved(PAGE, "mine.py") + "# changed\n")
    trained(sotto, "--set", "data.name=rows.py:load")
    assert (run / "privacy.json").read_bytes() == before
    assert json.loads((run / "private.json").read_text())["fingerprint"] != private


def test_a_foreign_folder_runs_no_code(written, sotto, tmp_path):
    """Whatever is asked about a folder, and whatever it contains."""
    run, mark = trained(sotto), tmp_path / "mark"
    shutil.rmtree(written)
    foreign = f"open({str(mark)!r}, 'w').close()\n" + saved(PAGE, "mine.py")
    for place in (run, run.parent, tmp_path):
        (place / "mine.py").write_text(foreign)
    (run / "again.toml").write_text(saved(PAGE, "mine.toml"))
    commands = [
        ["attack", str(run)], ["audit", str(run), "--runs", "0"], ["compare", str(run)], ["account", str(run)],
        ["account", str(run), "--view", "node:0"], ["run", str(run / "config.json"), "--out", "others"],
        ["run", str(run / "again.toml"), "--out", "others"],
    ]  # fmt: skip
    for command in commands:
        code, _, err = sotto("", *command)
        assert not mark.exists(), command
        asks = code == 2 and "--code" in err
        assert asks or command[:2] in (["compare", str(run)], ["account", str(run)]), (command, err)
    assert sotto("", "attack", str(run), "--code", str(run))[0] == 2
    assert mark.exists()


def test_attacks_and_audits_take_the_code_that_is_named(written, sotto):
    trained(sotto, "--set", "record.every=1")
    assert sotto("", "attack", "runs/mine", "--code", "written")[0] == 0
    code, out, err = sotto(
        "", "audit", "runs/mine", "--code", "written", "--runs", "0", "--repetitions", "100", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["findings"] == []
    code, _, err = sotto("", "account", "runs/mine", "--view", "node:1", "--code", "written")
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--jobs", "2", "--set", "seeds=[0, 1]"], ["--processes", "2"]])
def test_sweeps_and_ranks_load_code_in_their_processes(written, command, more):
    """In processes that are started anew, and must be told where code is."""
    process = command(written.parent, "--quiet", "run", "written/mine.toml", *QUICK, *more)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_code_that_fails_in_a_process_of_a_sweep_is_named_with_its_line(written, sotto):
    """Tracebacks do not travel between processes."""
    (written / "mine.py").write_text(saved(PAGE, "mine.py").replace("return self.layers(rows)", "return {}[0]"))
    code, out, err = sotto("", "run", "written/mine.toml", *QUICK, "--jobs", "2", "--set", "seeds=[0, 1]")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert re.search(r"mine\.py, line \d+: KeyError: 0; your own code raised", err), err


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ("model.width = 'broad'", "mine.py:Small: TypeError: .*; your own code raised this error"),
        ("model.height = 3", "mine.py:Small with .*height.*; it cannot be called with these settings"),
        ("model.shape = 3", "shape = 3 of mine.py:Small; it must be a list of whole numbers"),
        ("model.name = 'mine.py:np'", "model 'mine.py:np' is a module; it must be a class of torch modules"),
        ("data.name = 'mine.py:Moving'", "data set 'mine.py:Moving'|mine.py:Moving with"),
        ("data.name = 'mine.py:Small'", "data set 'mine.py:Small' returns a Small; it must return a Dataset"),
        ("algorithm.gamma = 2", "setting 'gamma' of mine.py:Momentum; its settings are: sigma, step_size, beta"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(written, changes, line):
    from sottovoce.support.config import apply_overrides

    document = apply_overrides(read_settings_file(written / "mine.toml"), [changes])
    with code_from(written), pytest.raises(InputError, match=line):
        build_run(parse_experiment(document))


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        (
            "Moving(mixed, state.velocity)", "Moving(mixed, state.speed)",
            r"mine\.py, line 31: AttributeError: 'Moving' object has no attribute 'speed'; your own code raised",
        ),
        ("return Moving(mixed, state.velocity)", "return None", "None as an algorithm's state; .* give a Moving"),
        ("return Moving(mixed, state.velocity)", "return mixed, 0", "a tuple as an algorithm's state"),
    ],
)  # fmt: skip
def test_what_own_code_raises_while_it_runs_is_a_line_that_names_it(written, sotto, right, wrong, line):
    code = saved(PAGE, "mine.py")
    assert code.count(right) == 1
    (written / "mine.py").write_text(code.replace(right, wrong))
    code, _, err = sotto("", "run", "written/mine.toml", *QUICK)
    assert (code, err.count("\n"), bool(re.search(line, err))) == (2, 1, True), err


def test_models_and_data_of_the_package_are_found_as_before(written):
    digits = find_dataset("digits", None)
    assert find_model("softmax", digits, bias=False).layout.size == 640
    with pytest.raises(InputError, match="is code, and no folder was named"):
        find_dataset("mine.py:load", None)


def test_rows_that_declare_a_norm_are_made_to_have_it(written):
    (written / "long.py").write_text(
        "import numpy as np\nfrom dataclasses import replace\nfrom sottovoce import from_arrays\n"
        "def load(folder):\n    found = from_arrays(np.full((20, 2), 9.0), [0, 1] * 10)\n"
        "    found.examples._norm_bound = 1.0\n    return found\n"
    )
    with code_from(written):
        assert (find_dataset("long.py:load", None).inputs ** 2).sum(axis=1).max() <= 1.0


# --- convexity follows from what the maps do -------------------------------------------------------------------

STEPS = """
from dataclasses import dataclass
from sottovoce import Gossip

@dataclass(frozen=True, kw_only=True)
class Long(Gossip):
    def local(self, state, grad, noise):
        return type(state)(state.x - 10 * self.step_size * (grad + noise))

@dataclass(frozen=True, kw_only=True)
class Uphill(Gossip):
    def local(self, state, grad, noise):
        return type(state)(state.x + self.step_size * (grad + noise))

@dataclass(frozen=True, kw_only=True)
class Mirrored(Gossip):
    def point(self, state):
        return -state.x
"""


def test_the_step_that_is_taken_decides_convexity(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    net = metropolis("ring:4")
    with code_from(tmp_path):
        built = {
            name: algorithm(f"steps.py:{name}", sigma=1.0, step_size=0.1) for name in ("Long", "Uphill", "Mirrored")
        }
    traced = {name: trace(one, net, rounds=3) for name, one in built.items()}
    assert taken_step_size(traced["Long"]) == pytest.approx(1.0)
    assert taken_step_size(traced["Uphill"]) == pytest.approx(-0.1)
    with pytest.raises(Unaccountable, match="at minus a node's model"):
        least_weight(traced["Mirrored"])
    document = {
        "name": "steps", "topology": {"graph": "ring:4"}, "data": {"name": "breast-cancer", "unit_norm": True},
        "model": {"name": "logistic"},
        "training": {"rounds": 3, "batch": "full", "clip": "per-example", "bound": 1.0},
    }  # fmt: skip
    with code_from(tmp_path):
        for name, words in {"Long": "step size 5 exceeds 2/L", "Uphill": "goes uphill", "Mirrored": "minus"}.items():
            settings = document | {"algorithm": {"name": f"steps.py:{name}", "sigma": 1.0, "step_size": 0.5}}
            found = RunAccountant(build_run(parse_experiment(settings))).convexity
            assert (found.established, words in found.sentence) == (False, True), found
        settings = document | {"algorithm": {"name": "dp-d-sgd", "sigma": 1.0, "step_size": 0.5}}
        assert RunAccountant(build_run(parse_experiment(settings))).convexity.established


def test_experiments_in_python_name_the_folder_of_code(written):
    experiment = parse_experiment(read_settings_file(written / "mine.toml")).model_copy(update={"name": "api"})
    with pytest.raises(InputError, match="--code"):
        run_experiment(experiment, Path("runs/api"))
    assert not Path("runs/api").exists()


SCALING = """
import numpy as np
from dataclasses import dataclass
from sottovoce import Gossip
from sottovoce.core.arrays import convert
from sottovoce.core.algorithm import Model

@dataclass(frozen=True, kw_only=True)
class Layered(Gossip):
    \"\"\"Steps of another size in the last parameters, and at every node.\"\"\"

    def local(self, state, grad, noise):
        layers = convert(np.where(np.arange(47) < 35, 1.0, 0.1), like=grad)
        nodes = convert(np.array([[1.0], [0.5], [1.0], [2.0], [1.0]]), like=grad)
        return Model(state.x - self.step_size * ((grad + noise) * layers * nodes))

@dataclass(frozen=True, kw_only=True)
class Dishonest(Layered):
    \"\"\"Has other factors once rows are numbers.\"\"\"

    def local(self, state, grad, noise):
        layers = np.where(np.arange(47) < 35, 1.0, 0.1)
        if type(grad).__name__ == "Tensor":
            layers = layers[::-1].copy()
        return Model(state.x - self.step_size * ((grad + noise) * convert(layers, like=grad)))
"""


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_numbers_for_each_parameter_and_node_in_a_run(written, sotto, processes):
    (written / "layered.py").write_text(SCALING)
    text = (written / "mine.toml").read_text().replace("mine.py:Momentum", "layered.py:Layered")
    (written / "mine.toml").write_text(re.sub(r"beta = .*\n", "", text))
    run = trained(sotto, *processes)
    headline = json.loads((run / "privacy.json").read_text())["headline"]
    assert headline["epsilon"] == pytest.approx(4.0, rel=1e-2)
    assert headline["epsilon"] <= 4.0


def test_a_run_with_other_factors_than_were_traced_ends(written, sotto):
    (written / "layered.py").write_text(SCALING)
    text = (written / "mine.toml").read_text().replace("mine.py:Momentum", "layered.py:Dishonest")
    (written / "mine.toml").write_text(re.sub(r"beta = .*\n", "", text))
    code, _, err = sotto("", "run", "written/mine.toml", *QUICK)
    assert code != 0
    assert "than was traced" in err


OTHERS = """
import torch

class Rows:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]

POINTS = torch.arange(60.0).view(20, 3)

def of_torch():
    return torch.utils.data.TensorDataset(POINTS, torch.arange(20) % 2)

def of_columns():
    return Rows([{"points": row.tolist(), "label": at % 2} for at, row in enumerate(POINTS)])

def of_three():
    return Rows([(1, 2, 3)])

def ragged():
    return Rows([([1.0], 0), ([1.0, 2.0], 1)])

def broken():
    return Rows({0: 1, 2: 3})

def nothing():
    return {}
"""


@pytest.mark.parametrize("name", ["of_torch", "of_columns"])
def test_data_sets_of_torch_and_of_columns_are_taken_by_name(name, tmp_path):
    (tmp_path / "others.py").write_text(OTHERS)
    with code_from(tmp_path):
        found = find_dataset(f"others.py:{name}", None)
    assert (len(found.examples) + len(found.test_inputs), found.classes, found.shape) == (20, ("0", "1"), (3,))
    for inputs, target in zip(found.inputs, found.targets, strict=True):
        assert target == int(inputs[0] / 3) % 2, "rows keep their targets"


@pytest.mark.parametrize("name", ["of_three", "ragged", "broken", "nothing"])
def test_other_things_are_no_data_sets(name, tmp_path):
    (tmp_path / "others.py").write_text(OTHERS)
    with code_from(tmp_path), pytest.raises(InputError, match=name):
        find_dataset(f"others.py:{name}", None)
