"""Averaging by a run: the model `mean`, whose values are the mean targets of nodes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce import algorithm, metropolis
from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import InputError
from sottovoce.learning.datasets import from_arrays
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.simulation import simulate

N, BOUND = 7, 3.0
RNG = np.random.default_rng(5)
TARGETS = RNG.uniform(-2.0, 6.0, 61)
DATA = from_arrays(np.zeros((61, 1)), TARGETS, test=(np.zeros((4, 1)), np.zeros(4)))
SHARDS = partition(DATA, N)
MEANS = np.array([np.clip(TARGETS[rows], -BOUND, BOUND).mean() for rows in SHARDS.indices])

RUN = """
name = "ages"
[data]
name = "table:patients.csv"
columns = "patients.columns.toml"
[model]
name = "mean"
[topology]
graph = "ring:4"
[algorithm]
name = "muffliato"
[training]
rounds = 8
clip = "per-example"
bound = 100.0
[privacy]
epsilon = 2.0
[metrics]
every = 4
"""


def job():
    """Targets that are clipped one by one."""
    return task(DATA, SHARDS, model("mean", DATA)).gradients("full", "per-example", BOUND)


@pytest.mark.parametrize("name", ["muffliato", "zip-dl-averaging"])
def test_without_noise_models_are_powers_of_w_times_the_clipped_means(name):
    net = metropolis("ring:7")
    run = simulate(algorithm(name, sigma=0.0), net, job(), rounds=3)
    expected = np.linalg.matrix_power(net.at(0).weights.toarray(), 3) @ MEANS
    np.testing.assert_allclose(run.models.numpy().ravel(), expected, rtol=1e-5)


def test_noise_has_the_size_that_is_accounted_for():
    """sigma is in units of how far a record moves a mean: 2 * bound over the rows of its node."""
    net, sigma, mix = metropolis("ring:7"), 2.0, metropolis("ring:7").at(0).weights.toarray()
    noisy = algorithm("muffliato", sigma=sigma)
    runs = [simulate(noisy, net, job(), rounds=1, noise_key=NoiseKey.of_seed(seed)) for seed in range(50)]
    rows = np.array([len(rows) for rows in SHARDS.indices])
    added = np.array([np.linalg.solve(mix, run.models.double().numpy().ravel()) - MEANS for run in runs])
    assert 0.9 < (added * rows).std() / (sigma * 2 * BOUND) < 1.1
    assert runs[0].guarantees.headline.mu == pytest.approx(1 / sigma, rel=1e-3)


def test_a_run_file_averages_to_a_target_with_an_account_and_a_page(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{number},{20 + number % 70}" for number in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["ward,age", *lines]))
    described = [f'[[columns]]\nname = "{name}"\nrange = [0, 100]' for name in ("ward", "age")]
    (tmp_path / "patients.columns.toml").write_text("\n".join(['target = "age"', *described]))
    (tmp_path / "run.toml").write_text(RUN)
    code, out, err = sotto("run run.toml --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["headline"]["epsilon"] <= 2.0
    assert "<svg" in (tmp_path / "runs" / "ages" / "report.html").read_text()
    assert sotto("run run.toml --out other --set model.name=linear")[0] == 2


@pytest.mark.parametrize("given", [("full", 2), ("cycle:2x2", 1), ("poisson:0.5", 1), ("fixed:2", 1)])
def test_values_enter_once_and_whole(given):
    batch, steps = given
    some = task(DATA, SHARDS, model("mean", DATA)).gradients(
        batch, "whole-gradient", BOUND, local_steps=steps, step_size=0.1 if steps > 1 else None
    )
    with pytest.raises(InputError, match="averages values once"):
        simulate(algorithm("muffliato", sigma=1.0), metropolis("ring:7"), some, rounds=3)
