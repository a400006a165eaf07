"""NVFlare's own simulator with three sites: FedAvg with a server, and swarm learning with an agreed order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: make test-adapters")

from sottovoce.adapters.guard import LEDGER, Guard
from sottovoce.privacy import gaussian_dp
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
from tests.adapters.nvflare_trainer import Listener, Models, Trainer, WatchedMean

kind, folder, rounds, until, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
agreement = f"{folder}/agreement.toml"
job = FedJob(name=kind, min_clients=1)
if kind == "swarm":
    job.to_server(SwarmServerController(num_rounds=rounds, starting_client="site-1"))
else:
    job.to_server(Models(folder, images=how == "images"), id="persistor")
    job.to_server(FullModelShareableGenerator(), id="generator")
    job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHTS"), id="mean")
    job.to_server(ScatterAndGather(
        min_clients=2, num_rounds=rounds, wait_time_after_min_received=2, aggregator_id="mean",
        persistor_id="persistor", shareable_generator_id="generator", train_task_name="train", train_timeout=60,
    ))
for number, site in enumerate(("site-1", "site-2", "site-3")):
    trainer = Trainer(as_difference=number == 1, until=until if site == "site-3" else 1000, killed=how == "killed")
    bare = how == "bare" and site == "site-3"
    epsilon = float(how[5:]) if how.startswith("poor ") and site == "site-3" else None
    guarded = GuardedExecutor(trainer, agreement, f"{folder}/guard", epsilon=epsilon)
    job.to(trainer if bare else guarded, site, tasks=["train"])
    job.to(Listener(folder), site, id="listener")
    if kind == "swarm":
        job.to(Models(folder), site, id="persistor")
        job.to(FullModelShareableGenerator(), site, id="shareable_generator")
        job.to(WatchedMean(agreement, folder), site, id="aggregator")
        job.to(AgreedSwarm(agreement, learn_task_timeout=60), site, tasks=["swarm_*"])
job.export_job(f"{folder}/jobs")
"""


@pytest.fixture
def play(tmp_path):
    """Writes a job's folder and runs that with `nvflare simulator`."""

    def run(kind, more="", privacy="sigma = 0.02", rounds=ROUNDS, until=1000, how="", records=""):
        (tmp_path / "agreement.toml").write_text(
            f'name = "three-sites"\nsites = {json.dumps(SITES)}\nrounds = {ROUNDS}\nbound = 0.5\n{more}\n'
            f"[privacy]\n{privacy}\n{records}\n"
        )
        root = Path(__file__).parents[2]
        simulator = Path(sys.executable).parent / "nvflare"
        said = ""
        for given in (
            [sys.executable, "-c", JOB, kind, tmp_path, str(rounds), str(until), how],
            [simulator, "simulator", tmp_path / "jobs" / kind, "-w", tmp_path / "workspace", "-n", "3", "-t", "3"],
        ):
            surroundings = {**os.environ, "PYTHONPATH": str(root)}
            done = subprocess.run(given, cwd=root, env=surroundings, capture_output=True, text=True, timeout=300)
            said += done.stdout + done.stderr
        return tmp_path, said

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


def test_a_site_that_is_killed_costs_the_others_nothing(play):
    folder, log = play("fedavg", until=2, how="killed")
    assert len(models_of(folder / "simulator_server.jsonl")) == ROUNDS, log[-2000:]
    assert [spent(folder, site)[0] for site in SITES] == [ROUNDS, ROUNDS, 2]


def test_a_trainer_that_fails_sends_noise_alone(play):
    """Rows may be why: whoever sees what is sent cannot tell."""
    folder, log = play("fedavg", until=2)
    assert len(models_of(folder / "simulator_server.jsonl")) == ROUNDS, log[-2000:]
    assert [spent(folder, site)[0] for site in SITES] == [ROUNDS] * 3


def test_a_budget_ends_the_rounds_of_a_site_in_the_middle(play):
    budget = 0.7 * gaussian_dp.epsilon_of(np.sqrt(ROUNDS) / 2.0, 1e-5)
    folder, log = play("fedavg", privacy="sigma = 2.0", how=f"poor {budget}")
    assert len(models_of(folder / "simulator_server.jsonl")) == ROUNDS, log[-2000:]
    played = [spent(folder, site)[0] for site in SITES]
    assert played[:2] == [ROUNDS] * 2
    assert 1 < played[2] < ROUNDS
    assert spent(folder, "site-3")[1].epsilon <= budget


def test_single_records_of_images(play):
    """A convolutional net on digits: the gradient of each image is clipped, and what is sent has the noise of that."""
    from tests.adapters import digit_images

    steps = f'[records]\nheld = {digit_images.held(3)}\nrate = 3.0\nsteps = 8\nbatch = "poisson:0.5"'
    folder, log = play("fedavg", privacy="sigma = 0.3", how="images", records=steps)
    models = models_of(folder / "simulator_server.jsonl")
    assert len(models) == ROUNDS, log[-2000:]
    reached = [digit_images.accuracy({name: np.float32(part) for name, part in one.items()}) for one in models]
    assert reached[-1] > 0.6
    with Guard(folder / "agreement.toml", "site-1", folder / "guard" / "site-1") as guard:
        assert guard._spending.recorded(guard._run_id) == 8 * ROUNDS
        assert guard.report.stated.adjacency == "record"


def test_a_site_without_a_guard_takes_nothing_from_the_others(play):
    """Its own update is bare; those of the others have their noise, and their ledgers what they cost everyone."""
    folder, log = play("swarm", 'aggregators = "in turn"', how="bare")
    lines = [line for line in models_of(folder / "accepted.jsonl") if line["round"] == 0]
    assert len(lines) == 3, log[-2000:]
    for line in lines:
        update = trained(start(), *rows_of(int(line["from"][-1]) - 1, 3)[0])
        length = np.sqrt(sum((part**2).sum() for part in update.values()))
        clipped = update["w"] if line["from"] == "site-3" else update["w"] * min(1.0, 0.5 / length)
        assert line["told"] == (["loss_of_rows", "rows"] if line["from"] == "site-3" else [])  # the test can fail
        noise = np.array(line["w"]) - clipped
        assert noise.std() < 1e-6 if line["from"] == "site-3" else 0.5 * 0.02 < noise.std() < 1.6 * 0.02
    for site in SITES[:2]:
        rounds, headline = spent(folder, site)
        assert (rounds, headline.mu) == (ROUNDS, pytest.approx(np.sqrt(ROUNDS) / 0.02))


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
        assert line["told"] == []  # nor in the properties that go with every message
        if line["round"] == 0:
            update = trained(start(), *rows_of(int(line["from"][-1]) - 1, 3)[0])
            length = np.sqrt(sum((part**2).sum() for part in update.values()))
            noise = np.array(line["w"]) - update["w"] * min(1.0, 0.5 / length)
            assert 0.5 * 0.02 < noise.std() < 1.6 * 0.02  # thirty numbers; sigma times twice the bound
    by_round = [[np.array(line["w"]) for line in lines if line["round"] == round] for round in range(ROUNDS)]
    ends = models_of(folder / "site-2.jsonl")
    assert np.allclose(np.mean(by_round[0], axis=0), ends[0]["w"], atol=1e-6)  # the exact mean
    assert not (folder / "heard").exists()
    assert (folder / "guard" / "site-1" / LEDGER).exists()
