"""What joining buys: the same training without noise, and by each node alone."""

from __future__ import annotations

import json
import stat

import pytest
import torch

from sottovoce.config import parse_experiment
from sottovoce.run.baselines import compute_baselines
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from tests.cli.test_schemas import fits

SETTINGS = {
    "name": "joined", "topology": {"graph": "path:3"}, "data": {"name": "breast-cancer", "rows": 30},
    "model": {"name": "logistic"}, "privacy": {"attackers": "none", "epsilon": 4.0}, "algorithm": {"step_size": 0.5},
    "training": {"rounds": 4, "clip": "per-example", "bound": 1.0, "weigh_nodes": "size"},
}  # fmt: skip


def test_without_noise_is_a_run_without_noise(tmp_path):
    found = compute_baselines(parse_experiment(SETTINGS))
    plain = SETTINGS | {"algorithm": {"name": "d-psgd", "step_size": 0.5}, "privacy": {"attackers": "none"}}
    result = run_experiment(parse_experiment(plain), tmp_path / "plain")
    wanted = result["metrics"]["accuracy"]
    assert found["without_noise"] == pytest.approx(wanted)


def test_alone_is_descent_on_a_nodes_own_rows():
    experiment = parse_experiment(SETTINGS)
    found, run = compute_baselines(experiment), build_run(experiment)
    job = run.task
    layer = torch.nn.Linear(job.inputs.shape[1], 1)
    start = job.model.layout.views(run.starting_models(run.transport.nodes)[2])
    layer.load_state_dict({name.rpartition(".")[2]: value for name, value in start.items()})
    rows = torch.from_numpy(job.shards.indices[2].copy())
    for _ in range(4):
        total = [torch.zeros_like(one) for one in layer.parameters()]
        for row in rows:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(job.inputs[row])[0], job.targets[row])
            gradient = torch.autograd.grad(loss, list(layer.parameters()))
            norm = torch.sqrt(sum(one.square().sum() for one in gradient))
            total = [one + part / max(1.0, float(norm)) for one, part in zip(total, gradient, strict=True)]
        with torch.no_grad():
            for one, part in zip(layer.parameters(), total, strict=True):
                one -= 0.5 * part / len(rows)
    right = (layer(job.test_inputs)[:, 0] > 0) == (job.test_targets > 0)
    assert found["nodes"][2]["alone"] == pytest.approx(float(right.double().mean()), abs=0.02)


def test_they_are_shown_and_are_no_public_file(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    code, out, err = sotto("run run.json --baselines")
    assert (code, err) == (0, "")
    assert "accuracy without noise" in out
    assert "accuracy of each node alone" in out
    path = tmp_path / "runs" / "joined" / "baselines.json"
    fits(json.loads(path.read_text()), "baselines.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "of each node alone" in (path.parent / "report.html").read_text()
    code, out, _ = sotto("compare runs/joined")
    assert (code, "joined, each alone" in out) == (0, True)
    code, _, err = sotto("run run.json --baselines --processes 2")
    assert (code, "--baselines with --processes" in err) == (2, True)
