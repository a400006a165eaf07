"""What joining buys: the same training without noise, and by each node alone."""

from __future__ import annotations

import json
import stat

import pytest
import torch

from sottovoce.run.baselines import compute_baselines
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.support.config import parse_experiment
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


def trained_by_hand(job, start, rows, rounds=4):
    """The share of held-out rows that a logistic model has right after descent on some rows, clipped one by one."""
    layer = torch.nn.Linear(job.inputs.shape[1], 1, dtype=job.inputs.dtype)
    start = job.model.layout.views(start)
    layer.load_state_dict({name.rpartition(".")[2]: value for name, value in start.items()})
    for _ in range(rounds):
        total = [torch.zeros_like(one) for one in layer.parameters()]
        for row in torch.from_numpy(rows.copy()):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(job.inputs[row])[0], job.targets[row])
            gradient = torch.autograd.grad(loss, list(layer.parameters()))
            norm = torch.sqrt(sum(one.square().sum() for one in gradient))
            total = [one + part / max(1.0, float(norm)) for one, part in zip(total, gradient, strict=True)]
        with torch.no_grad():
            for one, part in zip(layer.parameters(), total, strict=True):
                one -= 0.5 * part / len(rows)
    right = (layer(job.test_inputs)[:, 0] > 0) == (job.test_targets > 0)
    return float(right.double().mean())


def test_alone_is_descent_on_a_nodes_own_rows():
    experiment = parse_experiment(SETTINGS)
    found, run = compute_baselines(experiment), build_run(experiment)
    by_hand = trained_by_hand(run.task, run.starting_models(run.transport.nodes)[2], run.task.shards.indices[2])
    assert found["nodes"][2]["alone"] == pytest.approx(by_hand, abs=0.02)


def test_an_audit_draws_the_same_batches():
    experiment = parse_experiment(SETTINGS | {"training": SETTINGS["training"] | {"batch": "allocate:1x4"}})
    assert compute_baselines(experiment) == compute_baselines(experiment)


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


def test_runs_of_a_sweep_that_differ_in_noise_share_their_baselines(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    privacy = {"attackers": "none"}
    sweep = SETTINGS | {"privacy": privacy, "seeds": [0, 1], "grid": {"privacy.epsilon": [1.0, 8.0]}}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    asked = []
    compute = compute_baselines
    monkeypatch.setattr(
        "sottovoce.run.baselines.compute_baselines", lambda *given: asked.append(given[0].seed) or compute(*given)
    )
    code, _, err = sotto("run sweep.json --baselines --jobs 1")
    assert (code, sorted(asked)) == (0, [0, 1]), err
    stored = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("runs/joined/*/baselines.json"))]
    assert len(stored) == 4
    assert len({json.dumps(one) for one in stored}) == 2
    page = (tmp_path / "runs" / "joined" / "results.md").read_text()
    (line,) = [line for line in page.split("What noise costs")[1].splitlines() if line.startswith("| epsilon 1.0")]
    own = [json.loads(path.read_text()) for path in tmp_path.glob("runs/joined/*epsilon*1.0*/baselines.json")]
    assert len(own) == 2
    assert f"{sum(one['alone']['mean'] for one in own) / 2:.4f}" in line
    assert sotto("run sweep.json --baselines --jobs 1")[0] == 0
    assert sorted(asked) == [0, 1], "what is there is read"
