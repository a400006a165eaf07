"""The ways of a hospital's engineer, a student and an auditor, each from end to end by the command line alone."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from tests.browser import inside, questions

pytestmark = pytest.mark.slow

HOSPITALS = ("Nord", "Süd", "Ost", "West", "Mitte")
SETTINGS = """
name = "clinics"
topology.graph = "edges:Nord--Süd,Süd--Ost,Ost--West,West--Mitte,Mitte--Nord"
data = {name = "table:tables", partition = "tables", columns = "agreed.toml"}
model.name = "logistic"
training = {rounds = 20, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {name = "dp-d-sgd", step_size = 0.5}
privacy = {epsilon = 4.0, attackers = "none", and_final_models = "average"}
about = {title = "Readmission", contact = "Office, ext. 4711"}
"""


@pytest.fixture
def typed(sotto, tmp_path, monkeypatch):
    """`typed(line)` is what a command prints, which must end well."""
    monkeypatch.chdir(tmp_path)

    def typed(line: str, wanted: int = 0) -> str:
        code, out, err = sotto(*line.split())
        assert code == wanted, f"{line}: {err}"
        return out

    return typed


def write_tables(folder, ill_of=20):
    """Semicolons, decimal commas, latin-1, missing cells; one in twenty is ill, and one hospital has twelve rows."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in HOSPITALS:
        rows = ["Fall;geboren;Kalium;Größe;Klinik;krank"]
        for at in range(12 if name == "Mitte" else 200):
            ill = at % ill_of == 0
            potassium = f"{rng.normal(5.5 if ill else 4, 0.4):.1f}".replace(".", ",")
            size = "" if at % 17 == 3 else f"{rng.uniform(1.5, 2):.2f}".replace(".", ",")
            born = f"{at % 28 + 1}.{at % 12 + 1}.{1940 + at % 60}"
            rows.append(f"{name}-{at};{born};{potassium};{size};{'MÄX'[at % 3]};{'ja' if ill else 'nein'}")
        (folder / f"{name}.csv").write_bytes("\r\n".join(rows).encode("latin-1"))


def test_a_hospital_signs_what_is_true(typed, tmp_path):
    write_tables(tmp_path / "tables")
    found = json.loads(typed("data inspect tables --out seen.toml --json"))
    assert found["reasons"].keys() == {"Fall", "geboren"}
    agreed = (tmp_path / "seen.toml").read_text().replace('"geboren", ', "").replace(', "geboren"', "")
    agreed += '\n[[columns]]\nname = "geboren"\nyears_until = "2026-01-01"\nrange = [0, 120]\n'
    agreed = agreed.replace('name = "Größe"\n', 'name = "Größe"\nmissing = 1.75\n')
    (tmp_path / "agreed.toml").write_text(agreed)
    (tmp_path / "run.toml").write_text(SETTINGS)
    typed("ledger our.ledger --budget 6")
    printed = typed("run run.toml --baselines --ledger our.ledger")
    assert "held-out answers" in printed, "nobody is said to be ill: a constant, first"
    run = inside(tmp_path / "runs/clinics/report.html")["runs"][0]
    assert run["plain"]["questions"][0][0] == "Read this first"
    assert "AUC" in questions(run)["How good is the model?"]
    assert "a further run of epsilon up to 4.0" in typed("ledger our.ledger")
    typed("run run.toml --ledger our.ledger --set name=more --set training.rounds=60 --set algorithm.step_size=4.0")
    assert "no further run fits" in typed("ledger our.ledger") or "up to 0" in typed("ledger our.ledger")
    assert "clinics 4, more 4" in (tmp_path / "runs/more/report.html").read_text()
    typed("export runs/more --data . --scores --out model")
    assert "spent on the same records" in (tmp_path / "model/README.md").read_text()
    typed("predict model --data tables/Nord.csv --out said.csv")
    with (tmp_path / "said.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 200


def test_a_student_prints_a_figure_that_is_the_table(typed, tmp_path):
    (tmp_path / "study.toml").write_text(
        'name = "study"\nseeds = [0, 1, 2]\ndata.rows = 20\nmodel.name = "softmax"\nalgorithm.name = "dp-d-sgd"\n'
        'privacy.attackers = "none"\ntraining = {rounds = 5, batch = "full", clip = "per-example", bound = 1.0}\n'
        'grid = {"topology.graph" = ["ring:4", "complete:4"], "privacy.epsilon" = [1.0, 8.0]}\n'
    )
    for part in (2, 3):
        assert json.loads(typed(f"run study.toml --shard {part}/3 --json"))["missing"]
    rows = json.loads(typed("run study.toml --shard 1/3 --json"))["runs"]
    assert len(rows) == 4
    drawn = ET.fromstring((tmp_path / "runs/study/over-epsilon.svg").read_text())
    assert sum(part.tag.endswith("polyline") for part in drawn) == 2, "a line for each graph"
    typed("compare runs/study --out page.html --figures figures --format pdf")
    assert (tmp_path / "figures/trade-off.pdf").read_bytes().startswith(b"%PDF")
    central = "--set name=central --set topology.graph=complete:1 --set grid={} --set privacy.epsilon=4.0"
    typed(f"run study.toml {central} --set seeds=[0]")


SCRIPT = """
import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sottovoce import make_private


class Images(Dataset):
    def __init__(self, first, last):
        found = load_digits()
        self.images = torch.from_numpy(found.images[first:last] / 16).float().unsqueeze(1)
        self.labels = torch.from_numpy(found.target[first:last])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, at):
        return self.images[at], self.labels[at]


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
loaders = [DataLoader(Images(n, n + 350), batch_size=70, shuffle=True) for n in range(0, 1400, 350)]
test = Images(1400, 1797)
private = make_private(
    net, optimizer, loaders, graph="ring:4", loss="cross-entropy", test=test, rounds=60, max_grad_norm=1.0, epsilon=8.0
)
best = 0.0
for played in private:  # the student's loop: a log, a best model, an end of its own
    if played % 10 == 0:
        best = max(best, private.measure().metric.average)
    if played == 50:
        torch.save(private.average.state_dict(), "model.pt")
        break
images, labels = test.images, test.labels
each = [float((private.of(node)(images).argmax(1) == labels).float().mean()) for node in range(4)]
print(json.dumps({"best": best, "each": each, "epsilon": private.guarantees.headline.epsilon}))
"""


def test_a_student_who_comes_from_opacus_keeps_the_loop(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert 7.9 < told["epsilon"] <= 8.0, "of all planned rounds: when the loop ended depends on rows"
    assert min(told["each"]) > 0.6
    assert told["best"] > 0.7
    assert torch.load(tmp_path / "model.pt", weights_only=True)["0.weight"].shape == (8, 1, 3, 3)


def test_an_auditor_finds_what_was_changed(typed, tmp_path):
    (tmp_path / "run.toml").write_text(
        'name = "theirs"\ntopology.graph = "ring:4"\ndata.rows = 20\nmodel.name = "softmax"\n'
        'algorithm = {name = "dp-d-sgd", sigma = 2.0}\nprivacy.attackers = "none"\n'
        'training = {rounds = 5, batch = "full", clip = "per-example", bound = 1.0}\n'
    )
    result = json.loads(typed("run run.toml --json"))
    typed("audit runs/theirs")
    epsilon = result["headline"]["epsilon"]
    typed(f"audit runs/theirs --claim {epsilon * 1.01}")
    typed(f"audit runs/theirs --claim {epsilon / 3}", 4)
    stated = json.loads((tmp_path / "runs/theirs/privacy.json").read_text())
    stated["headline"]["epsilon"] = epsilon / 3
    (tmp_path / "runs/theirs/privacy.json").write_text(json.dumps(stated))
    typed("compare runs/theirs --out page.html", 1)
