"""Settings: whatever is wrong with them is one line that names the key, and nothing is written."""

from __future__ import annotations

import json
import os

import pytest

from sottovoce import InputError
from sottovoce.run.sweep import FinishedSweepRun, SweepRun, expand_sweep, sweep_rows
from sottovoce.support.config import apply_overrides, parse_experiment, read_settings_file, set_key

SMALL = """
name = "try"

[data]
rows = 12

[topology]
graph = "ring:4"

[algorithm]
name = "dp-d-sgd"
sigma = 1.0

[training]
rounds = 3
batch = "cycle:2x2"
clip = "per-example"
bound = 1.0

[privacy]
attackers = "none"

[metrics]
test_rows = 20
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(SMALL)
    return tmp_path / "try.toml"


WRONG = {
    # unknown keys, with what was meant
    "training.round=5": "try.toml: training.round; there is no such key; did you mean training.rounds?",
    "trainings.rounds=5": "try.toml: trainings; there is no such key; did you mean training?",
    "privacy.epsilom=1": "did you mean privacy.epsilon?",
    "privacy.zzz=1": "privacy.zzz; there is no such key; known here: adjacency, delta, epsilon",
    "colour=red": "colour; there is no such key; known here: name, seed,",
    "algorithm.sgima=2": "setting 'sgima' of dp-d-sgd; its settings are: sigma, step_size",
    "model.depth=2": "'depth' of softmax; it has no such setting",
    "topology.seeds=2": "did you mean topology.seed?",
    # wrong types
    "training.rounds=ten": "training.rounds = 'ten'; it should be a valid integer",
    "training.rounds=3.0": "training.rounds = 3.0",
    "training.rounds=true": "training.rounds = True",
    "training.rounds=[3]": "training.rounds = [3]",
    "training=5": "training = 5; it must be a table of keys; write [training]",
    "topology.fresh=1": "topology.fresh = 1",
    "topology.graph=7": "topology.graph = 7",
    "algorithm=dp-d-sgd": "algorithm = 'dp-d-sgd'; it must be a table of keys",
    "algorithm.name=3": "algorithm.name = 3",
    "algorithm.sigma=large": "sigma = 'large';",
    "algorithm.step_size=[0.1]": "step_size = [0.1] of dp-d-sgd; it must be a number",
    "algorithm.step_size=2020-01-01": "step_size = ",
    "algorithm.step_size=true": "step_size = True of dp-d-sgd; it must be a number",
    f"algorithm.step_size=1{400 * '0'}": "step_size = 1000",
    "algorithm.sigma=true": "sigma = True;",
    'algorithm.sigma="2"': "sigma = '2';",
    f"algorithm.sigma=1{400 * '0'}": "sigma = 1000",
    "model.bias=maybe": "bias = 'maybe' of softmax; it must be true or false",
    "name=3": "name = 3",
    "seed=-1": "seed = -1",
    "seed=0.5": "seed = 0.5",
    "privacy.attackers=some": "privacy.attackers = 'some'",
    "privacy.attackers=true": "privacy.attackers",
    "privacy.attackers=[0.5]": "it should be 'auto', 'all' or 'none', or a valid integer",
    # impossible values
    "training.rounds=0": "training.rounds = 0",
    "training.rounds=5": "5 rounds of cycle:2x2; the cycle ends after 4 rounds",
    "training.batch=half": "batches 'half'; known: full, cycle:KxB",
    "training.batch=fixed:13": "batches of 13 on node 0 with 12 rows",
    "training.clip=often": "training.clip = 'often'",
    "training.clip=none": "clipping none with bound 1.0",
    "training.clip=bounded": "clipping bounded without a declared norm",
    "data.max_norm=0": "data.max_norm = 0",
    "data.max_norm=1e-40": "max_norm = 1e-40; it must lie between",
    "training.bound=0": "training.bound = 0",
    "training.bound=inf": "training.bound = inf",
    "training.local_steps=2": "per-example clipping",
    "privacy.delta=0": "privacy.delta = 0",
    "privacy.delta=1": "privacy.delta = 1",
    "privacy.delta=nan": "privacy.delta = nan",
    "privacy.epsilon=inf": "privacy.epsilon = inf",
    "privacy.adjacency=people": "privacy.adjacency = 'people'",
    "privacy.view=nobody": "view 'nobody'",
    "privacy.view=node:4": "node 4 in view node:4; nodes are 0..3",
    "privacy.attackers=5": "5 attackers; there are 4 nodes",
    "privacy.attackers=[0, 9]": "node 9 in view node:9",
    "privacy.attackers=[-1]": "node -1",
    "metrics.every=0": "metrics.every = 0",
    "metrics.test_rows=0": "metrics.test_rows = 0",
    "machine.threads=0": "machine.threads = 0",
    "machine.threads=100000": "machine.threads = 100000; it should be less than or equal to 1024",
    "seed=18446744073709551616": "seed = 18446744073709551616; it should be less than",
    "topology.announced=true": "topology.announced without dropout",
    "topology.dropout_correlation=0.5": "topology.dropout_correlation without dropout",
    "machine.engine=warp": "engine 'warp'",
    "machine.precision=float16": "machine.precision = 'float16'",
    "data.name=moons": "data set 'moons'; known: breast-cancer",
    "data.name=mnist": "data set 'mnist' and no folder",
    "data.partition=writer": "partition by writer of digits",
    "data.rows=0": "data.rows = 0",
    "model.name=lstm": "model 'lstm'",
    "model.name=logistic": "logistic on digits, which has classes",
    "algorithm.name=dp-d-sdg": "did you mean dp-d-sgd?",
    "algorithm.name=muffliato": "muffliato on the model softmax; it averages values once",
    "algorithm.sigma=-1": "sigma = -1",
    "algorithm.sigma=[1.0, 2.0]": "sigma for 2 nodes; there are 4",
    "algorithm.step_size=0": "step_size = 0",
    "topology.graph=rang:4": "rang",
    "topology.graph=file:missing.txt": "missing.txt",
    "topology.graph=erdos-renyi:4,p=0": "components",
    "topology.weights=heavy": "heavy",
    "topology.dropout=1": "topology.dropout = 1",
    "topology.fresh=true": "topology.fresh with ring:4; fresh graphs are Erdos-Renyi",
    # names that would leave the folder
    "name=../x": "name = '../x'",
    "name=/else/x": "name = '/else/x'",
    "name=a/../../b": "name = 'a/../../b'",
    "name=a//b": "name = 'a//b'",
    "name=.hidden": "name = '.hidden'",
    "name=": "name = ''",
    "name=a b": "name = 'a b'",
    'name="a\\nb"': "name; it has characters that cannot be seen",
    # derived, or decided twice
    "algorithm.sensitivity=1": "algorithm.sensitivity; it follows from clipping and batches; leave it out",
    "algorithm.rounds=3": "algorithm.rounds; it is training.rounds",
    "algorithm.participation=2x2": "algorithm.participation; it follows from training.batch",
    "privacy.epsilon=1": "both algorithm.sigma and privacy.epsilon; exactly one of them decides the noise",
    # --set itself
    "training.rounds": "--set training.rounds; it must have the form key=value",
    "=5": "--set =5",
    "name.first=5": "name is a value and has no keys",
    "seeds=3": "seeds = 3; it must be a list of whole numbers",
    "seeds=[]": "seeds = []",
    "seeds=[0, 0]": "two runs named try/seed=0",
    "variants=[]": "each is a table with a name",
    "variants=[{name = 'a', seed = 3}]": "seed of variant a; variants share their seeds",
    "variants=[{name = 'a', grid = 'no'}]": "it must be true, false or a table",
    "variants=[{name = '../a'}]": "name = 'try/..-a,seed=0'",
    "variants=[{name = 'a'}, {name = 'a'}]": "two runs named try/a,seed=0",
    "variants=[{name = 'a', training = {round = 3}}]": "did you mean training.rounds?",
    "grid.algorithm.sigma=[1.0]": "each of its keys needs a list of values",
}  # fmt: skip


@pytest.mark.parametrize("setting", WRONG)
def test_wrong_settings_are_one_line_and_leave_nothing_behind(setting, sotto, recipe, monkeypatch):
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    code, out, err = sotto("run try.toml --jobs 1 --set", setting)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("sotto: ")
    assert " ".join(WRONG[setting].split()) in err
    assert os.listdir(recipe.parent) == ["try.toml"]


def test_models_that_are_no_numbers_are_no_result(sotto, recipe):
    code, out, err = sotto("run try.toml --set algorithm.step_size=1e49")
    assert (code, out) == (2, "")
    assert err.startswith("sotto: values with nan or infinity in round 0")
    assert not list(recipe.parent.glob("runs/*/result.json"))


def test_sigma_may_be_one_for_each_node(sotto, recipe):
    code, out, _ = sotto("run try.toml --set algorithm.sigma=[1,2,2,4]")
    assert code == 0
    assert "seconds of training" in out
    assert "sigma from 1 to 4: standard deviation" in (recipe.parent / "runs/try/report.html").read_text()


TOGETHER = {
    "neither algorithm.sigma nor privacy.epsilon": ["algorithm={name = 'dp-d-sgd'}"],
    "privacy.epsilon with d-psgd; it has no noise to choose": ["algorithm={name = 'd-psgd'}", "privacy.epsilon=1"],
    "topology.fresh and topology.dropout": [
        "topology.fresh=true", "topology.dropout=0.1", "topology.graph=erdos-renyi:4,p=0.9"
    ],
    "topology.random_edges and topology.dropout": ["topology.random_edges=true", "topology.dropout=0.1"],
    "both algorithm.message_sigma and privacy.epsilon": [
        "algorithm={name = 'zip-dl', message_sigma = 1.0}", "privacy.epsilon=1"
    ],
    "muffliato on the model softmax": [
        "algorithm={name = 'muffliato', sigma = 1.0}", "training.local_steps=2", "training.clip=whole-gradient"
    ],
    "rand:0.5 on ring:4": [
        "algorithm={name = 'dp-csgp', sigma = 1.0, compression = 'rand:0.5'}", "topology.dropout=0.1",
        "topology.announced=true",
    ],
    "widths": ["model={name = 'mlp', hidden = [0]}"],
    "hidden = 32 of mlp; it must be a list": ["model={name = 'mlp', hidden = 32}"],
    "filters = 'many' of cnn": ["model={name = 'cnn', filters = 'many'}"],
    "chebyshev = 'no' of muffliato-sgd": ["algorithm={name = 'muffliato-sgd', sigma = 1.0, chebyshev = 'no'}"],
    "groups": ["model={name = 'cnn', groups = 5}"],
}  # fmt: skip


@pytest.mark.parametrize("message", TOGETHER)
def test_settings_that_do_not_go_together(message, sotto, recipe):
    line = [part for setting in TOGETHER[message] for part in ("--set", setting)]
    code, out, err = sotto("run try.toml", *line)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert os.listdir(recipe.parent) == ["try.toml"]


@pytest.mark.parametrize("missing", ["name", "topology", "training", "topology.graph", "training.rounds"])
def test_what_has_no_default_is_asked_for(missing, sotto, recipe):
    section, _, key = missing.rpartition(".")
    document = read_settings_file(recipe)
    (document[section] if section else document).pop(key)
    with pytest.raises(InputError, match=f"^{missing} is missing; it has no default"):
        parse_experiment(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'name = "x"\ntraining\n', "line 2"),
        (b'name = "x"\nname = "y"\n', "line 2"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "name is missing"),
        (b"[training", "it is not valid TOML"),
        (b'"a\\nb" = 1\nname = "x"', "a\\nb; it has characters that cannot be seen"),
    ],
)
def test_broken_files_are_one_line(text, message, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_bytes(text)
    code, out, err = sotto("run broken.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "broken.toml" in err
    assert os.listdir(tmp_path) == ["broken.toml"]


def test_files_that_are_none(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, message in (("missing.toml", "No such file"), (".", "is a folder"), ("broken.json", "not valid JSON")):
        (tmp_path / "broken.json").write_text("{")
        code, _, err = sotto("run", place)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    (tmp_path / "broken.json").write_text("[1]")
    assert "settings must be a table of keys" in sotto("run broken.json")[2]


def test_where_nothing_can_be_written(sotto, recipe):
    (recipe.parent / "taken").write_text("mine")
    for place in ("taken", "taken/below", "/proc/none"):
        code, out, err = sotto("run try.toml --out", place)
        assert (code, out, err.count("\n")) == (2, "", 1)
    (recipe.parent / "runs").mkdir()
    (recipe.parent / "runs" / "try").write_text("mine")
    code, _, err = sotto("run try.toml")
    assert code == 2
    assert "is not a folder" in err
    assert (recipe.parent / "runs" / "try").read_text() == (recipe.parent / "taken").read_text() == "mine"


def test_values_of_set_are_toml_or_words():
    document = {"training": {"rounds": 5}, "name": "x"}
    found = apply_overrides(document, ["training.rounds=7", "topology.graph=ring:8", "seeds=[0, 1]", "a.b='c=d'"])
    assert found["training"] == {"rounds": 7}
    assert (found["topology"], found["seeds"], found["a"]) == ({"graph": "ring:8"}, [0, 1], {"b": "c=d"})
    assert apply_overrides({}, ["flag=true", "e=1e-5", "w= x "]) == {"flag": True, "e": 1e-5, "w": "x"}
    assert document == {"training": {"rounds": 5}, "name": "x"}
    assert set_key({}, ("a", "b", "c"), 1) == {"a": {"b": {"c": 1}}}


# --- sweeps --------------------------------------------------------------------------------------------------------

STUDY = {
    "name": "study", "topology": {"graph": "ring:4"}, "training": {"rounds": 5},
    "algorithm": {"name": "dp-d-sgd", "step_size": 0.5},
}  # fmt: skip


def expand(document):
    return [run.experiment for run in expand_sweep(document)]


def test_a_sweep_is_variants_times_grid_times_seeds():
    runs = expand({
        **STUDY, "seeds": [0, 7],
        "variants": [
            {"name": "plain", "algorithm": {"name": "d-psgd"}, "grid": False},
            {"name": "mine", "training": {"batch": "fixed:2"}},
        ],
        "grid": {"algorithm.sigma": [1.0, 2.0], "topology.graph": ["ring:4", "erdos-renyi:4,p=0.9,seed=1"]},
    })  # fmt: skip
    assert len(runs) == len({run.name for run in runs}) == 2 + 2 * 2 * 2
    plain, last = runs[0], runs[-1]
    assert (plain.name, plain.algorithm.name, plain.algorithm.settings) == (
        "study/plain,seed=0", "d-psgd", {"step_size": 0.5}
    )  # fmt: skip
    assert last.name == "study/mine,sigma=2.0,graph=erdos-renyi-4-p=0.9-seed=1,seed=7"
    assert (last.seed, last.algorithm.settings["sigma"], last.training.batch) == (7, 2.0, "fixed:2")
    assert (last.topology.graph, last.training.rounds) == ("erdos-renyi:4,p=0.9,seed=1", 5)


def test_names_of_odd_values_stay_inside_the_folder():
    grid = {"model.hidden": [[64, 32], [8]], "training.batch": ["poisson:0.1"], "topology.graph": ["file:../a/b.txt"]}
    names = [run.name for run in expand({**STUDY, "model": {"name": "mlp"}, "grid": grid})]
    assert names[0] == "study/hidden=-64--32-,batch=poisson-0.1,graph=file-..-a-b.txt,seed=0"
    assert all(name.count("/") == 1 for name in names)


def test_without_anything_that_varies_there_is_one_run():
    assert [run.name for run in expand({**STUDY, "seed": 3})] == ["study"]
    (one,) = expand({**STUDY, "seed": 3, "grid": {"algorithm.sigma": [1.0]}})
    assert (one.name, one.seed) == ("study/sigma=1.0,seed=3", 3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grid": {"seed": [0, 1]}}, "grid over seed"),
        ({"grid": {"name": ["a", "b"]}}, "grid over name"),
        ({"grid": {"privacy.epsilom": [1.0]}}, "did you mean privacy.epsilon?"),
        ({"grid": {"algorithm.sigma": []}}, "a list of values"),
        ({"grid": {"training.batch": ["fixed:2", "fixed/2"]}}, "two runs named"),
        ({"variants": [{"algorithm": {}}]}, "each is a table with a name"),
        ({"variants": [{"name": "x" * 300}]}, "at most 200 characters"),
        ({"seeds": ["a"]}, "it must be a list of whole numbers"),
        ({"seeds": [-1]}, "seed = -1"),
    ],
)
def test_sweeps_that_are_refused(more, message):
    with pytest.raises(InputError, match=message.replace("?", "\\?")):
        expand({**STUDY, **more})


def finished(name, seed, value, *, epsilon=1.0, tuned=(), **result):
    def line(value):
        nodes = {"mean": value, "min": value, "max": value, "average": value + 1}
        return {"round": 5, "loss": nodes, "accuracy": nodes, "consensus": value, "bytes": 2_000_000, "seconds": 1.0}

    (run,) = expand_sweep({**STUDY, "seeds": [seed], "variants": [{"name": name}]})
    headline = None if epsilon is None else {"epsilon": epsilon, "view": "everyone"}
    found = {"name": run.experiment.name, "headline": headline, "sigma": 1.0, "delta": 1e-5, "seconds": 1.0, **result}
    return FinishedSweepRun(SweepRun(run.experiment, name, (), tuned), found, [line(100.0) | {"round": 0}, line(value)])


def test_runs_that_differ_by_seed_are_averaged():
    found = [row.document() for row in sweep_rows([
        finished("", 0, 1.0), finished("", 1, 3.0, epsilon="inf"), finished("a", 0, 5.0, epsilon=None),
    ])]  # fmt: skip
    assert [(row["run"], row["seeds"]) for row in found] == [("all seeds", 2), ("a", 1)]
    assert (found[0]["mean_node"]["mean"], found[0]["average_model"]["mean"], found[0]["consensus"]) == (2.0, 3.0, 2.0)
    assert found[0]["mean_node"]["deviation"] == pytest.approx(2**0.5)
    assert found[1]["mean_node"]["deviation"] is None
    assert (found[0]["megabytes"], found[0]["epsilon"], found[1]["epsilon"]) == (2.0, "inf", None)
    json.dumps(found, allow_nan=False)


def test_of_tuned_values_the_best_over_all_seeds_is_kept_and_one_that_went_astray_is_not():
    slow, fast, wild = ((("algorithm.step_size", size),) for size in (0.1, 1.0, 10.0))
    (row,) = sweep_rows([
        finished("a", 0, 0.5, tuned=slow), finished("a", 1, 0.6, tuned=slow),
        finished("a", 0, 0.9, tuned=fast), finished("a", 1, 0.1, tuned=fast),
        finished("a", 0, 9.0, tuned=wild), finished("a", 1, 9.0, tuned=wild, diverged="gradient with nan"),
    ])  # fmt: skip
    assert (row.tuned, row.document()["mean_node"]["mean"]) == (slow, pytest.approx(0.55))
    (lost,) = sweep_rows([finished("a", 0, 9.0, tuned=wild, diverged="gradient with nan")])
    assert lost.document()["mean_node"] == {"mean": None, "deviation": None}
