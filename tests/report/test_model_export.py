"""Models that are handed on: the parameters of the run, a card that says what covers them, and predictions."""

from __future__ import annotations

import json
import os
import pickle
import stat

import numpy as np
import pytest
import safetensors.torch
import torch

from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.exported_model import read_exported_model
from sottovoce.learning.lazy_rows import Examples
from sottovoce.report.model_export import export_model
from sottovoce.run.checkpoint import load
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.support.config import parse_experiment
from tests.cli.test_schemas import fits

AGE, WARD = {"name": "age", "range": [20, 100], "missing": 60}, {"name": "ward", "categories": ["east", "west"]}
TARGETS = {
    "classes": {"name": "again", "categories": ["no", "yes"]},
    "value": {"name": "days", "range": [0, 40]},
}
MODELS = {"classes": "logistic", "value": "linear"}


def settings(kind: str, **changes):
    target = TARGETS[kind]
    columns = {"target": target["name"], "drop": ["patient"], "columns": [AGE, WARD, target]}
    return {
        "name": "wards", "data": {"name": "table:wards", "partition": "tables", "columns": columns},
        "model": {"name": MODELS[kind]}, "topology": {"graph": "ring:3"}, "privacy": {"attackers": "none"},
        "algorithm": {"sigma": 2.0}, "training": {"rounds": 3, "clip": "per-example", "bound": 1.0}, **changes,
    }  # fmt: skip


@pytest.fixture
def wards(tmp_path, monkeypatch):
    """Three tables of ten rows, with both targets, one of which a run drops."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards").mkdir()
    for name in ("East", "Mercy", "West"):
        lines = [f"P{row},{20 + 7 * row},{('east', 'west')[row % 2]}" for row in range(10)]
        (tmp_path / "wards" / f"{name}.csv").write_text("\n".join(["patient,age,ward,TARGET", *lines]))
    return tmp_path


def trained(wards, kind: str = "classes", **changes):
    for path in (wards / "wards").iterdir():
        heading, *lines = path.read_text().splitlines()
        cells = [("no", "yes")[at % 2] if kind == "classes" else str(3 * at) for at in range(len(lines))]
        rows = [f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)]
        path.write_text("\n".join([heading.replace("TARGET", TARGETS[kind]["name"]), *rows]))
    run_experiment(parse_experiment(settings(kind, **changes)), wards / "runs" / "wards")
    return wards / "runs" / "wards"


def test_parameters_are_those_of_the_run_and_predict_as_torch_does(wards):
    folder = trained(wards)
    found = export_model(folder)
    assert (found.covered, found.node, found.folder) == (True, None, folder / "export")
    state = torch.load(folder / "export" / "model.pt", weights_only=True)
    same = safetensors.torch.load_file(folder / "export" / "model.safetensors")
    assert state.keys() == same.keys()
    finished = open_run(folder, wards)
    stored = load(RunFiles(folder).checkpoint, finished.training_run, finished.fingerprint).state
    models = finished.training_run.models(stored)
    flat = finished.training_run.task.model.layout.flatten(state)
    torch.testing.assert_close(flat, models.mean(0))
    torch.testing.assert_close(flat, finished.training_run.task.model.layout.flatten(same), rtol=0, atol=0)

    export_model(folder, wards / "mercy", node="Mercy")
    own = torch.load(wards / "mercy" / "model.pt", weights_only=True)
    torch.testing.assert_close(finished.training_run.task.model.layout.flatten(own), models[1], rtol=0, atol=0)

    plain = torch.nn.Sequential(torch.nn.Linear(3, 1))
    plain.load_state_dict(own)
    said = read_exported_model(wards / "mercy").predict({"age": [40, None, 200], "ward": ["east", "west", "east"]})
    rows = torch.tensor([[0.25, 1, 0], [0.5, 0, 1], [1, 1, 0]])
    np.testing.assert_allclose(said.probabilities[:, 1], plain(rows).sigmoid().detach()[:, 0], rtol=1e-6)
    assert [row[0] for row in said.rows()] == [("no", "yes")[int(p > 0.5)] for p in said.probabilities[:, 1]]
    assert said.heading == ["again", "probability of no", "probability of yes"]


def test_values_are_predicted_in_their_own_units(wards):
    folder = trained(wards, "value")
    export_model(folder)
    found = read_exported_model(folder / "export")
    said = found.predict({"age": [60], "ward": ["west"], "days": [0]})
    output = found.model.outputs(found.parameters, torch.tensor([[0.5, 0.0, 1.0]]))
    assert said.values == pytest.approx([40 * float(output)], rel=1e-6)
    assert said.csv() == f"days\n{said.rows()[0][0]}\n"


@pytest.fixture
def usual_mask():
    """That of most systems, whatever members that ran in threads of this process left."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_card_says_what_was_trained_and_what_covers_it(wards, usual_mask):
    folder = trained(wards)
    export_model(folder)
    card, described = (folder / "export" / "README.md").read_text(), folder / "export" / "model.json"
    fits(json.loads(described.read_text()), "model.json")
    privacy = json.loads((folder / "privacy.json").read_text())
    for sentence in (
        "it predicts `again`: one of 2 classes: no, yes", "24 records of 3 nodes", "- Mercy: 8",
        f"epsilon {privacy['headline']['epsilon']:.3g}"[:11], "It covers the final models of all nodes",
        "Held-out rows, on which models are tested", "what was found is not here",
    ):  # fmt: skip
        assert sentence in card
    assert "AUC" not in card
    assert stat.S_IMODE((folder / "export" / "model.pt").stat().st_mode) & 0o044


UNCOVERED = [
    ({"algorithm": {"name": "d-psgd"}}, "no privacy figure is proven"),
    ({"algorithm": {"name": "dp2sgd", "sigma": 2.0}}, 'privacy.and_final_models = "average"'),
]


@pytest.mark.parametrize(("changes", "reason"), UNCOVERED, ids=["no noise", "dp2sgd"])
def test_what_no_figure_covers_is_refused(wards, changes, reason):
    folder = trained(wards, **changes)
    with pytest.raises(Unaccountable, match=reason):
        export_model(folder)
    assert not (folder / "export").exists()
    assert not export_model(folder, uncovered=True).covered
    assert "No privacy figure covers this model" in (folder / "export" / "README.md").read_text()
    assert stat.S_IMODE((folder / "export" / "model.pt").stat().st_mode) == 0o600


def test_a_figure_for_the_average_covers_no_single_model(wards):
    changes = {"algorithm": {"name": "dp2sgd", "sigma": 2.0}}
    folder = trained(wards, **changes, privacy={"attackers": "none", "and_final_models": "all"})
    assert export_model(folder, node="West").covered
    forged = RunFiles(folder).privacy
    forged.write_text(forged.read_text().replace('"final_models": "all"', '"final_models": "average"'))
    with pytest.raises(InputError, match="'all' is what the settings give"):
        export_model(folder, wards / "again", node="West")


@pytest.fixture
def handed_on(wards):
    export_model(trained(wards), wards / "model")
    return wards / "model"


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("something was unpickled",))


def test_nothing_in_an_export_is_unpickled_or_followed(handed_on):
    (handed_on / "model.pt").write_bytes(pickle.dumps(Trap()))
    assert len(read_exported_model(handed_on).predict({"age": [30], "ward": ["east"]})) == 1
    (handed_on / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InputError, match="damaged"):
        read_exported_model(handed_on)
    (handed_on / "model.safetensors").unlink()
    (handed_on / "model.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="is a link"):
        read_exported_model(handed_on)


@pytest.mark.parametrize("cells", [["P7", "P7"], ["", "P7"], ["P7", 2000 * "x"]], ids=["twice", "empty", "long"])
def test_a_dropped_column_that_tells_no_rows_apart_stays_out(handed_on, wards, cells):
    (wards / "new.csv").write_text(f"patient,age,ward\n{cells[0]},50,east\n{cells[1]},60,west\n")
    said = read_exported_model(handed_on).predict(wards / "new.csv")
    assert (said.row_names, len(said)) == (None, 2)


DAMAGE = [
    ('"name": "logistic"', '"name": "net.py:Small"', "its author's own code"),
    ('"name": "logistic"', '"name": "mlp"', "parameters of another model"),
    ('"format": 1', '"format": 2', "format 2; this version reads 1"),
    ('"format": 1', '"formal": 1', "damaged: 'formal' is no key of it"),
    ('"target": "again"', '"target": "soon"', "target 'soon' among 3 columns"),
    ("{", "[", "it is not JSON"),
]


@pytest.mark.parametrize(("old", "new", "reason"), DAMAGE, ids=[new for _, new, _ in DAMAGE])
def test_exports_that_do_not_fit_are_refused(handed_on, old, new, reason):
    path = handed_on / "model.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=reason):
        read_exported_model(handed_on)


def test_parameters_that_are_no_numbers_are_refused(handed_on):
    path = handed_on / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    safetensors.torch.save_file({name: value * float("nan") for name, value in stored.items()}, path)
    with pytest.raises(InputError, match="not finite"):
        read_exported_model(handed_on)


def test_commands(sotto, handed_on, wards):
    (wards / "new.csv").write_text("age,ward\n50,east\n,west\n")
    code, out, err = sotto("predict model --data new.csv --json")
    assert (code, err) == (0, "")
    fits(json.loads(out), "predict")
    assert json.loads(out)["rows"] == 2
    code, out, err = sotto("predict model --data new.csv --out said.csv")
    assert (code, err) == (0, "")
    assert (wards / "said.csv").read_text().startswith("again,probability of no,probability of yes\n")
    (wards / "new.csv").write_text("patient,age,ward\nP7,50,east\nP8,,west\n")
    assert sotto("predict model --data new.csv --out said.csv")[0] == 0
    heading, *rows = (wards / "said.csv").read_text().splitlines()
    assert (heading.split(",")[:2], [row.split(",")[0] for row in rows]) == (["patient", "again"], ["P7", "P8"])
    code, out, err = sotto("predict model --data new.csv --json")
    fits(json.loads(out), "predict")
    assert json.loads(out)["row_names"] == {"column": "patient", "cells": ["P7", "P8"]}
    code, out, err = sotto("export runs/wards --node 2 --json")
    assert (code, err) == (0, "")
    fits(json.loads(out), "export")
    assert json.loads(out)["node"] == "West"
    for line, reason in (
        ("export runs/wards", "export exists; a model that was handed on is not overwritten"),
        ("export runs/wards --out b --node Quay", "there is no node called 'Quay'"),
        ("export runs/wards --out b --node 3", "nodes are 0 to 2"),
        ("export wards --out b", "wards: no run"),
        ("predict wards --data new.csv", "model.json: No such file"),
        ("predict model --data none.csv", "none.csv: No such file"),
    ):
        code, out, err = sotto(line)
        assert (code, out, err.count("\n")) == (2, "", 1), line
        assert reason in err
    (wards / "new.csv").write_text("age,ward\n50,east\nold,west\n")
    code, _, err = sotto("predict model --data new.csv")
    assert (code, "row 2, column 'age': 'old'; a finite number is needed here" in err) == (2, True)


def test_rows_to_predict_become_features_as_in_training(wards):
    folder = trained(wards, model={"name": "linear", "features": "fourier:D=20,gamma=2.0", "bias": False})
    export_model(folder, wards / "out")
    found = read_exported_model(wards / "out")
    assert found.parameters.shape == (20,)
    job = open_run(folder, wards).training_run.task
    said = found.predict({"age": [40, 70], "ward": ["east", "west"]})
    rows = np.array([[0.25, 1, 0], [0.625, 0, 1]], dtype=np.float32)
    seen = torch.from_numpy(job.model.inputs(Examples(rows))[:])
    assert torch.linalg.vector_norm(seen, dim=1).tolist() == pytest.approx([1, 1])
    np.testing.assert_allclose(said.probabilities[:, 1], (seen @ found.parameters).sigmoid().numpy(), atol=1e-5)
