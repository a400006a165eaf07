"""Runs whose models lie on another device than the processor: the same numbers, and nothing that mixes the two.

No graphics card is needed: see `tests.run.elsewhere`.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from sottovoce import InputError, algorithm, metropolis
from sottovoce.core.arrays import to_numpy
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning import models
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.checkpoint import Checkpoint, load, save
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.training_run import measured_rounds, prepare_run
from sottovoce.support.own_code import code_from
from tests.cases import cases
from tests.learning.test_models import ratings
from tests.run.elsewhere import NAME, elsewhere
from tests.run.killed import experiment
from tests.run.test_simulation import DIGITS
from tests.selection import rest_slow

ROUNDS = 3
EXAMPLES = [case for case in cases() if not case.algorithm.averaging and case.place in ("complete:4", "dropout")]


def prepared(case, device, clip="per-example"):
    data = DIGITS
    job = task(data, partition(data, case.topology.n, rows=6), models.model("softmax", data), device=device)
    what = job.gradients("poisson:0.5", clip, 1.0, noise_key=NoiseKey.of_seed(2))
    return prepare_run(case.algorithm, case.topology, what, rounds=ROUNDS, seed=3, noise_key=NoiseKey.of_seed(3))


def played(began, state):
    """All figures but the time, and the last models."""
    found = list(measured_rounds(began, state, every=1, test_rows=10, start=state.rounds == 0))
    figures = [{**measured.document(), "seconds": 0} for _, measured in found if measured is not None]
    return figures, to_numpy(began.models(found[-1][0])).tobytes(), found[-1][0]


@pytest.mark.parametrize("case", rest_slow(EXAMPLES))
def test_every_algorithm_computes_the_same_elsewhere(case, tmp_path):
    began = prepared(case, "cpu")
    figures, at_end, _ = played(began, began.before())
    with elsewhere() as device:
        run = prepared(case, device)
        assert run.models(run.before()).device.type == device
        there, models_there, last = played(run, run.before())
        assert run.models(last).device.type == device
        save(tmp_path / "stage", Checkpoint(last, 1, 1.0), "mark", run.transport)
        again = load(tmp_path / "stage", run, "mark").state
        assert run.models(again).device.type == device
        assert to_numpy(run.models(again)).tobytes() == at_end
    assert (there, models_there) == (figures, at_end)


@pytest.mark.parametrize(
    ("name", "data", "engine", "clip"),
    [
        ("mlp", DIGITS, "stacked", "per-example"),
        ("mlp", DIGITS, "functional", "per-example"),
        ("mlp", DIGITS, "functional", "whole-gradient"),
        ("cnn", DIGITS, "functional", "whole-gradient"),
        ("cnn", DIGITS, "ghost", "per-example"),
        ("matrix-factorisation", ratings(), "stacked", "per-example"),
        ("matrix-factorisation", ratings(), "stacked", "none"),
    ],
)
def test_every_engine_computes_the_same_elsewhere(name, data, engine, clip):
    def found(device):
        job = task(data, partition(data, 3, rows=6), models.model(name, data), engine=engine, device=device)
        bound = None if clip == "none" else 1.0
        gradient = job.gradients("full", clip, bound, weigh_nodes="size")
        points = job.start(torch.Generator().manual_seed(1))
        evaluation = job.evaluate(points, 20)
        return to_numpy(gradient(0, points)).tobytes(), evaluation.loss.tolist(), evaluation.average_metric

    with elsewhere() as device:
        there = found(device)
    assert there == found("cpu")


def test_the_device_keeps_to_itself():
    with elsewhere() as device:
        there = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            there + torch.ones(3)
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
        assert (there + torch.ones(3).to(device)).cpu().tolist() == [2, 2, 2]


def test_a_run_file_names_the_device_and_whoever_opens_the_run_needs_none(tmp_path):
    sections = {"record": {"attackers": "none"}}
    with elsewhere():
        run_experiment(experiment(machine={"device": NAME}, **sections), tmp_path / "there")
    run_experiment(experiment(**sections), tmp_path / "here")
    lines = [(tmp_path / place / "metrics.jsonl").read_text().splitlines() for place in ("there", "here")]
    there, here = ([{**json.loads(line), "seconds": 0} for line in some] for some in lines)
    assert there == here
    assert open_run(tmp_path / "there").training_run.task.device.type == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "lazy", "nothing", ""])
def test_a_device_that_is_not_here_is_refused(name):
    with pytest.raises(InputError, match="finds no such device here"):
        task(DIGITS, partition(DIGITS, 3, rows=6), models.model("softmax", DIGITS), device=name)


def test_views_rules_and_frozen_parts_are_the_same_elsewhere(tmp_path):
    save_file(models.model("mlp", DIGITS, hidden=(6,)).module.state_dict(), tmp_path / "start.safetensors")
    with code_from(tmp_path):
        net = models.find_model("mlp", DIGITS, hidden=(6,), start="start.safetensors", train=["2", "lora:rank=2"])

    def found(device):
        job = task(DIGITS, partition(DIGITS, 4, rows=6), net, device=device)
        what = job.gradients("full", "per-example", 1.0, augment="shift:1", views=2)
        built = algorithm("dp-d-sgd", sigma=1.0, optimizer="adam", step_factors=[1, 2, 3, 4], average=0.5)
        key = NoiseKey.of_seed(3)
        run = prepare_run(built, metropolis("ring:4"), what, rounds=ROUNDS, seed=3, noise_key=key)
        return played(run, run.before())[:2]

    with elsewhere() as device:
        there = found(device)
    assert there == found("cpu")
