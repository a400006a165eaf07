"""Recordings: what attackers really receive, the same after every interruption, and never in the way of the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce import InputError, algorithm, metropolis, simulate, weigh
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning.datasets import load
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.recording import read_recording
from sottovoce.support.config import RecordingSettings, parse_experiment
from tests.cases import DIMENSION, ROUNDS, Case, cases
from tests.cases import task as made_up
from tests.selection import rest_slow

PLAIN = [case for case in cases() if case.algorithm.compression.name == "identity" and case.example.weights != "push"]


def played(case: Case):
    net, x0 = case.topology, np.zeros((case.topology.n, DIMENSION))
    fitted, loop_state = start_run(case.algorithm, net, x0, ROUNDS)
    feed = NoiseFeed(3, NoiseKey.of_seed(3), made_up(net.n), x0)
    for t in range(ROUNDS):
        now = play_round(fitted, net, loop_state, feed, t)
        loop_state = now.loop_state
        yield now


@pytest.mark.parametrize("case", rest_slow(PLAIN))
def test_what_nodes_hold_is_what_was_heard_by_them(case):
    by = np.array([0, 2])
    for now in played(case):
        for step in now.steps:
            heard, held = step.sent_messages(), step.received_models(by)
            assert set(held.receiver.tolist()) <= {0, 2}
            for sender, receiver, row in zip(held.sender, held.receiver, held.row, strict=True):
                to = np.isin(heard.receiver, (receiver, -1))
                (at,) = np.flatnonzero((heard.sender == sender) & to)
                np.testing.assert_allclose(held.rows[row], heard.rows[at], rtol=0, atol=1e-12)
                assert sender == -1 or step.mixing.weights[receiver, sender] != 0
            if not step.gossip_step.secure_sum:
                arrived = step.mixing.weights[by] != 0
                assert len(held.sender) == arrived.sum() - arrived[:, by].diagonal().sum()


def test_noise_is_drawn_for_the_messages_that_are_asked_for_alone():
    case = next(case for case in PLAIN if case.example.name == "zip-dl" and case.place == "star:5")
    now = next(played(case))
    asked = []

    class Counting(NoiseFeed):
        def noise(self, sources, matrix, round, step):
            asked.append(matrix.used().sum())
            return super().noise(sources, matrix, round, step)

    step = replace(now.steps[0], inputs=Counting(3, NoiseKey.of_seed(3), made_up(5), np.zeros((5, DIMENSION))))
    whole = step.sent_messages()
    part = step.received_models(np.array([0]))
    assert asked[1] < asked[0]
    np.testing.assert_allclose(part.rows, whole.rows[whole.receiver == 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("compression", ["identity", "rand:0.5"])
def test_push_sum_is_divided_by_its_weight_and_differences_are_added_up(compression):
    net, x0 = weigh("star:6", "push"), np.full((6, 4), 0.5)
    fitted, loop_state = start_run(algorithm("dp-csgp", sigma=0.0, compression=compression, step_size=0.1), net, x0, 5)
    feed = NoiseFeed(0, NoiseKey.of_seed(0), made_up(6, 4), x0)
    copies, sent_whole = loop_state.copies, compression == "identity"
    for t in range(5):
        now = play_round(fitted, net, loop_state, feed, t)
        weight = loop_state.state.weight
        loop_state = now.loop_state
        copies = now.steps[0].sent if sent_whole else copies + now.steps[0].sent
        held = now.steps[0].received_models(np.array([0]))
        np.testing.assert_allclose(held.rows, (copies / weight)[held.sender], rtol=0, atol=1e-12)
        assert held.sender.tolist() == [1, 2, 3, 4, 5]
        assert abs(weight - 1).max() > 0.1


DOCUMENT = {
    "name": "small", "seed": 3, "noise_key": 16 * "5a", "topology": {"graph": "ring:6"},
    "data": {"rows": 20}, "algorithm": {"name": "zip-dl", "sigma": 0.2, "step_size": 0.5},
    "record": {"attackers": [0, 4], "every": 3}, "machine": {"checkpoint_seconds": 0.0},
    "training": {"rounds": 11, "clip": "per-example", "bound": 1.0},
}  # fmt: skip


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "messages").iterdir())}


def test_an_interrupted_run_leaves_the_same_recordings(tmp_path):
    experiment = parse_experiment(DOCUMENT)
    run_experiment(experiment, tmp_path / "whole")
    expected = files_of(tmp_path / "whole")
    assert list(expected) == ["0000000.npz", "0000003.npz", "0000006.npz", "0000009.npz", "0000010.npz"]
    broken = tmp_path / "broken"

    def stop_at(round):
        def on_round(now, state):
            if now.round == round:
                raise SystemExit

        return on_round

    for round in (3, 5, 10):
        with pytest.raises(SystemExit):
            run_experiment(experiment, broken, resume=True, on_round=stop_at(round))
        (broken / "messages").mkdir(exist_ok=True)
        (broken / "messages" / "0000009.npz.x.part").write_bytes(b"half")
    run_experiment(experiment, broken, resume=True)
    assert files_of(broken) == expected


def small_job():
    digits = load("digits")
    return task(digits, partition(digits, nodes=6, rows=20), model("softmax", digits))


@pytest.mark.parametrize("name", ["zip-dl", "dp-d-sgd"])
def test_recording_changes_no_number_and_keeps_noisy_models(name):
    job, net = small_job(), metropolis("ring:6")
    settings = {"rounds": 9, "seed": 1, "noise_key": NoiseKey.of_seed(1), "every": 3}
    built = algorithm(name, sigma=1.0, step_size=0.1)
    plain = simulate(built, net, job, **settings)
    kept = simulate(built, net, job, record=RecordingSettings(attackers="all", every=4), **settings)
    assert torch.equal(plain.models, kept.models)
    assert [m.loss for m in plain.metrics] == [m.loss for m in kept.metrics]
    assert kept.messages.rounds == (0, 4, 8)
    assert len(kept.messages.pairs) == 12
    told = [kept.messages.of(attacker, 2) for attacker in (1, 3)]
    assert (told[0] == told[1]).all() == (name == "dp-d-sgd")
    assert len(kept.messages.at(4).rows) == (12 if name == "zip-dl" else 6)


def test_files_hold_what_memory_holds(tmp_path):
    experiment = parse_experiment(DOCUMENT)
    run_experiment(experiment, tmp_path / "run")
    training_run = build_run(experiment)
    there = read_recording(tmp_path / "run", training_run, experiment.record)
    here = simulate(
        training_run.algorithm,
        training_run.topology,
        training_run.gradients,
        rounds=11,
        seed=3,
        noise_key=training_run.noise_key,
        record=experiment.record,
    ).messages
    assert there.pairs == here.pairs
    for pair in there.pairs:
        np.testing.assert_array_equal(there.of(*pair), here.of(*pair))
    with pytest.raises(InputError, match="choose a pair"):
        there.of(0, 3)
    (tmp_path / "run" / "messages" / "0000003.npz").unlink()
    with pytest.raises(InputError, match="no recording of round 3"):
        read_recording(tmp_path / "run", training_run, experiment.record)


def test_a_secure_sum_leaves_only_the_average(tmp_path):
    job = small_job()
    record = RecordingSettings(attackers=[1, 2], every=5)
    run = simulate(algorithm("dp-fedavg", sigma=1.0), weigh("complete:6", "uniform"), job, rounds=3, record=record)
    assert run.messages.pairs == ((1, -1), (2, -1))
    np.testing.assert_allclose(run.messages.of(1, -1)[-1], run.models[0], rtol=0, atol=1e-6)


def test_too_much_to_record_is_refused_before_anything_is_written(tmp_path):
    experiment = parse_experiment(DOCUMENT | {"record": {"attackers": "all", "every": 1, "limit_mb": 0.3}})
    with pytest.raises(InputError, match=r"MB; record.limit_mb allows 0.3; give a larger record.every"):
        run_experiment(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fits = parse_experiment(DOCUMENT | {"record": {"attackers": "all", "every": 1, "limit_mb": 0.4}})
    run_experiment(fits, tmp_path / "run")
    total = sum(path.stat().st_size for path in (tmp_path / "run" / "messages").iterdir())
    assert 0.34e6 < total < 0.4e6


def test_attackers_are_nodes():
    with pytest.raises(InputError, match=r"node 6; nodes are 0..5"):
        simulate(
            algorithm("d-psgd"), metropolis("ring:6"), small_job(), rounds=2, record=RecordingSettings(attackers=[6])
        )
