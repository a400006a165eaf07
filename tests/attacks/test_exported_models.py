"""Reviews of exports: who was in the training of a model, by rows that the reviewer has."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from sottovoce.report.model_export import export_model
from tests.cli.test_schemas import fits
from tests.report.test_model_export import trained, wards

__all__ = ["wards"]


def table(path, rng, rows, wrong):
    """Ages with the label that a model of age gives, or, for so many of them, the other one."""
    ages = rng.integers(20, 100, rows)
    labels = (ages > 60) ^ (np.arange(rows) < wrong)
    order = rng.permutation(rows)
    lines = [f"{ages[at]},{('east', 'west')[at % 2]},{('no', 'yes')[int(labels[at])]}" for at in order]
    path.write_text("\n".join(["age,ward,again", *lines]))
    return path


@pytest.fixture
def given(wards):
    """A model of age beside the description that an export wrote."""
    trained(wards)
    folder = export_model(wards / "runs" / "wards", wards / "export").folder
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    known = {name: torch.zeros_like(part) for name, part in stored.items()}
    weight = next(name for name, part in known.items() if part.dim() == 2)
    known[weight][0, 0] = 6.0
    known[next(name for name in known if name != weight)][0] = -3.0
    safetensors.torch.save_file(known, folder / "given.safetensors")
    return folder


def test_members_are_found_where_they_can_be_and_else_not(given, wards, sotto):
    rng = np.random.default_rng(1)
    files = {name: table(wards / f"{name}.csv", rng, 400, wrong) for name, wrong in
             (("members", 0), ("alike", 0), ("unlike", 200))}  # fmt: skip
    line = f"attack --model {given / 'given.safetensors'} --members {files['members']} --json --others"
    code, out, err = sotto(f"{line} {files['unlike']}")
    assert code == 0, err
    fits(json.loads(out), "attack")
    for one in json.loads(out)["attacks"]:
        tried = 800 if one["attack"] == "loss" else pytest.approx(400, abs=80)
        assert (one["members"] + one["others"], one["interval"]) == (tried, "over examples")
        assert one["auc"]["low"] > 0.65
        assert one["advantage"]["low"] > 0.2
    code, out, _ = sotto(f"{line} {files['alike']}")
    for one in json.loads(out)["attacks"]:
        assert one["auc"]["low"] < 0.5 < one["auc"]["high"]
        assert one["tpr_at_1_percent"]["low"] <= 0.01


def test_the_loss_is_that_of_the_model(given, wards):
    from sottovoce.learning.exported_model import read_exported_model

    path = wards / "two.csv"
    path.write_text("age,ward,again\n100,east,yes\n100,east,no")
    found, said = read_exported_model(given / "given.safetensors").losses(path)
    assert said.shape == (2, 2)
    assert np.allclose(np.exp(-found), [said[0, 1], said[1, 0]], atol=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "attack",
        "attack --model export",
        "attack --model export --members wards/East.csv",
        "attack --model export --members wards/East.csv --others wards/West.csv",  # ten rows
        "attack runs/wards --members wards/East.csv",
        "attack --model export --members wards/East.csv --others wards/West.csv --shadows 8",
        "attack runs/wards --model export --members wards/East.csv --others wards/West.csv",
    ],
)
def test_questions_that_are_refused(given, sotto, line):
    code, _, err = sotto(line)
    assert code not in (0, 1), err
    assert "Traceback" not in err
