"""How good a model is, in words: a constant is named as one, and nothing is said to differ without an interval."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from sottovoce.report.quality import OF_MODEL, OF_NOISE, baseline_rows, quality_rows
from sottovoce.report.sweep_report import constants
from tests.browser import inside, questions

HELPED, COST = re.compile(r"together (would help|helped, by)"), re.compile(r"noise cost (nothing|[0-9])")
COLUMNS = """target = "ill"
columns = [
    {name = "age", range = [20, 90]}, {name = "pressure", range = [60, 180]},
    {name = "ill", categories = ["no", "yes"]},
]
"""
RUN = """
name = "ward"
topology.graph = "complete:5"
data = {name = "table:patients.csv", columns = "columns.toml", rows = 160}
model.name = "logistic"
training = {rounds = 10, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {name = "dp-d-sgd", step_size = 0.5}
privacy = {epsilon = 4.0, attackers = "none", and_final_models = "average"}
"""


@pytest.fixture
def ward(tmp_path, monkeypatch):
    """One in fourteen patients is ill, and no column tells who."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(0), ["age,pressure,ill"]
    rows += [f"{rng.integers(20, 90)},{rng.integers(70, 170)},{'no' if at % 14 else 'yes'}" for at in range(1120)]
    (tmp_path / "patients.csv").write_text("\n".join(rows))
    (tmp_path / "columns.toml").write_text(COLUMNS)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def test_a_worthless_model_is_called_worthless(sotto, ward):
    code, out, err = sotto("run run.toml --baselines")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line.startswith(("held-out", "test accuracy"))]
    assert lines[0].startswith("held-out answers")
    assert "constant" in lines[0]
    (run,) = inside(ward / "runs/ward/report.html")["runs"]
    (first, said), *_ = run["plain"]["questions"]
    assert (first, "worthless" in said[0]) == ("Read this first", True)
    told = questions(run)
    scores = json.loads((ward / "runs/ward/result.json").read_text())["held_out"]
    assert scores["constant"] == "no"
    assert f"right for {sum(scores['confusion'][0])}." in told[OF_MODEL], "as many as by always naming that class"
    assert not HELPED.search(told[OF_NOISE])
    assert not COST.search(told[OF_NOISE])
    assert not HELPED.search(out)


def test_models_and_their_cards_come_with_figures(sotto, ward):
    assert sotto("run run.toml")[0] == 0
    code, out, err = sotto("export runs/ward --data . --scores --json")
    assert code == 0, err
    scores = json.loads((ward / "runs/ward/result.json").read_text())["held_out"]
    assert json.loads(out)["held_out"] == scores
    card = next((ward / "runs/ward/export").glob("*.md")).read_text()
    low, high = scores["intervals"]["auc"]
    assert f"{scores['auc']:.3f} ({low:.3f} to {high:.3f})" in card
    assert "constant" in card
    assert sotto("audit runs/ward --data .")[0] == 0


def test_constant_models_of_a_sweep_are_named(sotto, ward):
    code, _, err = sotto("run run.toml --set seeds=[0,1]")
    assert code == 0, err
    assert "**Constant models**" in (ward / "runs/ward/results.md").read_text()
    assert constants([]) == []


def of_two(rows: int, ill: int, right: int) -> dict:
    """Scores of a model that recognises so many of the ill, and everybody else."""
    by_class = [{"class": name, "rows": count, "sensitivity": share, "specificity": share, "auc": 1.0}
                for name, count, share in (("no", rows - ill, 1.0), ("yes", ill, right / ill))]  # fmt: skip
    return {
        "rows": rows, "accuracy": 1.0, "auc": 1.0, "brier": 0.0, "calibration_error": 0.0, "by_class": by_class,
        "confusion": [[rows - ill, 0], [ill - right, right]],
    }  # fmt: skip


def test_a_public_threshold_decides_everywhere(sotto, ward, opened):
    rows = (ward / "patients.csv").read_text().splitlines()
    known = [f"{35 + 45 * (line.endswith('yes'))},{line.split(',', 1)[1]}" for line in rows[1:]]
    (ward / "patients.csv").write_text("\n".join([rows[0], *known]))
    settings = [f"noise_key='{16 * '5a'}'", "training.threshold=0.12", "training.rounds=40", "algorithm.step_size=4.0"]
    code, out, err = sotto("run", "run.toml", *(word for one in settings for word in ("--set", one)))
    assert code == 0, err
    result = json.loads((ward / "runs/ward/result.json").read_text())
    scores = result["held_out"]
    own = next(one for one in scores["decisions"] if one["threshold"] == 0.12)
    (_, wrong), (_, right) = scores["confusion"]
    assert right > 0
    assert own["ppv"] == pytest.approx(right / (right + wrong))
    assert result["metrics"]["accuracy"]["average"] == pytest.approx(scores["accuracy"]), "lines of metrics too"
    ppv = f"{own['ppv']:.3f}"
    assert next(line for line in out.splitlines() if line.startswith("held-out PPV")).split()[2] == ppv
    (run,) = inside(ward / "runs/ward/report.html")["runs"]
    assert run["held_out"]["decisions"] == scores["decisions"]
    assert f"{ppv} (" in questions(run)[OF_MODEL]
    drawn = opened(ward / "runs/ward/report.html").locator("#decisions tbody tr")
    assert drawn.count() == len(scores["decisions"])
    assert sotto("export runs/ward --data . --scores")[0] == 0
    assert f"| {ppv} (" in next((ward / "runs/ward/export").glob("*.md")).read_text()
    code, out, err = sotto("predict runs/ward/export --data patients.csv --json")
    assert code == 0, err
    said = json.loads(out)
    assert said["threshold"] == 0.12
    assert all((name == "yes") == (ill > 0.12) for name, _, ill in said["predictions"])
    assert any(0.12 < ill < 0.5 for _, _, ill in said["predictions"])
    code, _, err = sotto("run run.toml --set training.threshold=0.3 --set data.name=digits --set model.name=softmax")
    assert code == 2, err


def test_two_rows_are_too_few_to_say():
    shown = quality_rows(of_two(2, 1, 1))
    assert "too few rows" in shown["held-out accuracy"]
    assert "2 right" in shown["held-out accuracy"]
    assert quality_rows(None) == {}


@pytest.mark.parametrize(("alone", "said"), [(0.6, "helped, by 0.1"), (0.79, "does not show"), (0.97, "did harm")])
def test_training_together_helped_where_an_interval_says_so(alone, said):
    scores = of_two(400, 200, 180) | {"auc": 0.8, "intervals": {"auc": [0.75, 0.84]}}
    single = {"figure": "auc", "value": alone, "interval": [alone - 0.05, alone + 0.02], "constant": 0}
    baselines = {
        "metric": "accuracy", "without_noise": None, "alone": {"mean": 0.7, "min": 0.6, "max": 0.8},
        "held_out": {"without_noise": None, "alone": single}, "nodes": [],
    }  # fmt: skip
    assert said in baseline_rows(baselines, scores)["training together"]
    del baselines["held_out"]
    assert "training together" not in baseline_rows(baselines, scores), "of an earlier version"
