"""NVFlare's own simulator with three sites: FedAvg with a server, and swarm learning with an agreed order."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: make test-adapters")

from sottovoce.adapters.guard import LEDGER, Guard
from tests.adapters.breast_cancer import accuracy, rows_of, start, trained

SITES, ROUNDS = ("site-1", "site-2", "site-3"), 4

JOB = """
import sys
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.ccwf.swarm_server_ctl import SwarmServerController
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from sottovoce.adapters.nvflare import AgreedSwarm, GuardedExecutor
from tests.adapters.nvflare_trainer import Models, Trainer, WatchedMean

kind, folder, rounds, until = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
agreement = f"{folder}/agreement.toml"
job = FedJob(name=kind, min_clients=1)
if kind == "swarm":
    job.to_server(SwarmServerController(num_rounds=rounds, starting_client="site-1"))
else:
    job.to_server(Models(folder), id="persistor")
    job.to_server(FullModelShareableGenerator(), id="generator")
    job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHTS"), id="mean")
    job.to_server(ScatterAndGather(
        min_clients=2, num_rounds=rounds, wait_time_after_min_received=2, aggregator_id="mean",
        persistor_id="persistor", shareable_generator_id="generator", train_task_name="train", train_timeout=60,
    ))
for number, site in enumerate(("site-1", "site-2", "site-3")):
    trainer = Trainer(as_difference=number == 1, until=until if site == "site-3" else 1000)
    job.to(GuardedExecutor(trainer, agreement, f"{folder}/guard"), site, tasks=["train"])
    if kind == "swarm":
        job.to(Models(folder), site, id="persistor")
        job.to(FullModelShareableGenerator(), site, id="shareable_generator")
        job.to(WatchedMean(agreement, folder), site, id="aggregator")
        job.to(AgreedSwarm(agreement, learn_task_timeout=60), site, tasks=["swarm_*"])
job.simulator_run(f"{folder}/workspace", threads=3)
"""


@pytest.fixture
def play(tmp_path):
    def run(kind, more="", sigma=0.02, rounds=ROUNDS, until=1000):
        (tmp_path / "agreement.toml").write_text(
            f'name = "breast-cancer"\nsites = {json.dumps(SITES)}\nrounds = {ROUNDS}\nbound = 0.5\n{more}\n'
            f"[privacy]\nsigma = {sigma}\n"
        )
        root = Path(__file__).parents[2]
        given = [sys.executable, "-c", JOB, kind, tmp_path, str(rounds), str(until)]
        done = subprocess.run(given, cwd=root, capture_output=True, text=True, timeout=300)
        return tmp_path, done.stdout + done.stderr

    return run


def models_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def spent(folder, site):
    with Guard(folder / "agreement.toml", site, folder / "guard" / site) as guard:
        return guard._spending.recorded(guard._run_id), guard.report.headline


def test_fedavg_stops_when_the_agreement_is_over(play):
    folder, log = play("fedavg", rounds=ROUNDS + 1)
    models = models_of(folder / "simulator_server.jsonl")
    assert len(models) == ROUNDS, log[-2000:]
    assert accuracy(models[-1], *rows_of(0, 3)[1]) > 0.85
    for site in SITES:
        rounds, headline = spent(folder, site)
        assert rounds == ROUNDS
        assert headline.mu == pytest.approx(np.sqrt(ROUNDS) / 0.02)


def test_a_site_that_dies_costs_the_others_nothing(play):
    folder, log = play("fedavg", until=2)
    assert len(models_of(folder / "simulator_server.jsonl")) == ROUNDS, log[-2000:]
    assert [spent(folder, site)[0] for site in SITES] == [ROUNDS, ROUNDS, 2]


def test_swarm_keeps_to_its_order_and_every_update_has_noise(play):
    folder, log = play("swarm", 'aggregators = ["site-2", "site-3", "site-1"]')
    lines = models_of(folder / "accepted.jsonl")
    assert len(lines) == 3 * ROUNDS, log[-2000:]
    assert [next(line["at"] for line in lines if line["round"] == round) for round in range(ROUNDS)] == [
        "site-2", "site-3", "site-1", "site-2",
    ]  # fmt: skip
    assert any(line["at"] == line["from"] for line in lines)  # the aggregator's own update is among them
    for line in lines:
        assert line["steps"] == 1.0
        assert not {"initial_metrics", "INITIAL_METRICS"} & set(line["meta"])
        if line["round"] == 0:
            update = trained(start(), *rows_of(int(line["from"][-1]) - 1, 3)[0])
            length = np.sqrt(sum((part**2).sum() for part in update.values()))
            noise = np.array(line["w"]) - update["w"] * min(1.0, 0.5 / length)
            assert 0.5 * 0.02 < noise.std() < 1.6 * 0.02  # thirty numbers; sigma times twice the bound
    by_round = [[np.array(line["w"]) for line in lines if line["round"] == round] for round in range(ROUNDS)]
    ends = models_of(folder / "site-2.jsonl")
    assert np.allclose(np.mean(by_round[0], axis=0), ends[0]["w"], atol=1e-6)  # the exact mean
    assert (folder / "guard" / "site-1" / LEDGER).exists()
