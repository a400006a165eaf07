"""Runs on shards of unequal size: each node's noise follows its own records, and a target is met for all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce import InputError
from sottovoce.learning.batches import parse_batches
from sottovoce.privacy.amplification import noise_for
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.run.build import build_accountant, planned_question
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_wanted
from sottovoce.support.config import parse_experiment

HELD = (17, 24, 35, 48, 60, 81, 104, 126)
DELTA = 1e-5


def experiment(tmp_path, batch="full", held=HELD, algorithm=None, training=None, max_norm=None, **privacy):
    """A run on tables of made-up rows, one for each node, of these sizes."""
    total, rng = sum(held), np.random.default_rng(0)
    inputs = rng.standard_normal((total + 40, 4)).astype(np.float32)
    groups = np.repeat([f"n{node}" for node in range(len(held))], held)
    path = tmp_path / "rows.npz"
    np.savez(
        path, inputs=inputs[:total], targets=(inputs[:total, 0] > 0).astype(np.int64), groups=groups,
        test_inputs=inputs[total:], test_targets=(inputs[total:, 0] > 0).astype(np.int64),
    )  # fmt: skip
    return parse_experiment(
        {
            "name": "unequal", "model": {"name": "logistic"},
            "data": {"name": f"file:{path}", "partition": "user", "max_norm": max_norm},
            "topology": {"graph": f"ring:{len(held)}"}, "algorithm": algorithm or {"name": "dp-d-sgd"},
            "training": {"rounds": 20, "batch": batch, "clip": "per-example", "bound": 1.0, **(training or {})},
            "privacy": {"epsilon": 5.0, "delta": DELTA, "attackers": "none", **privacy},
        },
        "test",
    )  # fmt: skip


def test_a_target_is_met_for_every_node_with_the_least_noise_of_its_own(tmp_path):
    wanted = experiment(tmp_path)
    accountant = build_accountant(wanted)
    found = report_wanted(accountant, wanted)
    privacy = PrivacyDocument.read(found.document())
    least = np.sqrt(20) / mu_of(5.0, DELTA)
    for node, held in enumerate(rows_of_nodes(accountant)):
        assert privacy.noise_of(node) == pytest.approx(least * 2 / held, rel=1e-9)
        assert 5.0 * (1 - 1e-6) < found.accounts[0].of(node).epsilon(DELTA) <= 5.0
    assert privacy.sigma == pytest.approx(least, rel=1e-9)
    assert max(privacy.sensitivity) / min(privacy.sensitivity) == pytest.approx(126 / 17)


def rows_of_nodes(accountant):
    """Rows of each node, in the order of nodes."""
    return [len(shard) for shard in accountant.training_run.gradients.batches.shards]


@pytest.mark.slow
def test_batches_of_a_fixed_size_take_another_sigma_at_every_node(tmp_path):
    """A record of a large shard is drawn seldom; where the batch is the whole shard, nothing is drawn by chance."""
    wanted = experiment(tmp_path, "fixed:17", held=(17, 60, 126))
    accountant = build_accountant(wanted)
    found = report_wanted(accountant, wanted)
    sigma = found.document()["sigma"]
    plain = np.sqrt(20) / mu_of(5.0, DELTA)
    for node, held in enumerate(rows_of_nodes(accountant)):
        sampled = noise_for(5.0, share=17 / held, size=held, rounds=20, delta=DELTA)
        assert sigma[node] == pytest.approx(min(sampled, plain), rel=1e-6)
    assert found.headline.epsilon <= 5.0
    assert found.headline.epsilon > 4.99
    assert found.headline.change == "replace"


@pytest.mark.slow
def test_poisson_batches_take_one_sigma_and_noise_by_size(tmp_path):
    wanted = experiment(tmp_path, "poisson:0.1")
    accountant = build_accountant(wanted)
    found = report_wanted(accountant, wanted)
    privacy = PrivacyDocument.read(found.document())
    multiplier = noise_for(5.0, share=0.1, rounds=20, delta=DELTA)
    assert privacy.sigma == pytest.approx(multiplier / 2, rel=1e-9)  # a record zeroed out moves half as far
    for node, held in enumerate(rows_of_nodes(accountant)):
        assert privacy.noise_of(node) == pytest.approx(multiplier / (0.1 * held), rel=1e-9)
    assert 4.9 < found.headline.epsilon <= 5.0


def test_a_target_against_one_node_is_met_for_all_its_victims(tmp_path):
    wanted = experiment(tmp_path, view="node:0")
    found = report_wanted(build_accountant(wanted), wanted)
    seen = next(one for one in found.accounts if one.view.members == (0,))
    worst = max(seen.of(victim).epsilon(DELTA) for victim in range(1, 8))
    assert 5.0 * (1 - 1e-6) < worst <= 5.0


def test_sigmas_of_nodes_are_in_units_of_their_own_sensitivity(tmp_path):
    def at(sigmas):
        return experiment(tmp_path, algorithm={"name": "dp-d-sgd", "sigma": sigmas}, epsilon=None)

    wanted = at([float(node + 1) for node in range(8)])
    found = report_wanted(build_accountant(wanted), wanted)
    for node in range(8):
        assert found.accounts[0].of(node).mu == pytest.approx(np.sqrt(20) / (node + 1))
    with pytest.raises(InputError, match="sigma for 2 nodes; there are 8"):
        build_accountant(at([1.0, 2.0]))


def test_nodes_weighed_by_size_release_the_gradient_of_all_records_and_noise_alike(tmp_path):
    """FedAvg's convention: the average over nodes of what they release is the gradient of all records together."""
    wanted = experiment(tmp_path, training={"weigh_nodes": "size"})
    accountant = build_accountant(wanted)
    gradients = accountant.training_run.gradients
    assert gradients.sensitivities() == pytest.approx(2 / np.mean(HELD))
    point = torch.full_like(gradients.task.start(torch.Generator(), nodes=[0]), 0.1)
    released = gradients(0, point.expand(8, -1))
    pooled = gradients.task.gradients(parse_batches("full", [np.arange(sum(HELD))] * 8), "per-example", 1.0)
    torch.testing.assert_close(released.mean(0), pooled(0, point.expand(8, -1))[0])
    equal = build_accountant(experiment(tmp_path)).training_run.gradients(0, point.expand(8, -1))
    assert not torch.allclose(released.mean(0), equal.mean(0), rtol=1e-3)
    found = report_wanted(accountant, wanted)
    privacy = PrivacyDocument.read(found.document())
    assert privacy.noise_of(0) == pytest.approx(np.sqrt(20) / mu_of(5.0, DELTA) * 2 / np.mean(HELD), rel=1e-9)
    assert 5.0 * (1 - 1e-6) < found.headline.epsilon <= 5.0


def test_a_heavy_node_steps_farther_and_counts_for_convexity(tmp_path):
    """Steps of a node of weight w are w times as long: 2/L is for eta w."""
    settings = {"name": "dp-d-sgd", "step_size": 3.0}
    equal, by_size = (
        build_accountant(
            experiment(tmp_path, algorithm=settings, training={"weigh_nodes": how}, view="node:0", max_norm=1.0)
        )
        for how in ("equal", "size")
    )
    assert equal.convexity.established
    assert not by_size.convexity.established
    assert "step size 3 exceeds 2/L" in by_size.convexity.sentence


def test_other_weights_of_nodes_are_refused(tmp_path):
    with pytest.raises(InputError, match="weigh_nodes"):
        experiment(tmp_path, training={"weigh_nodes": "age"})
    task = build_accountant(experiment(tmp_path)).training_run.task
    with pytest.raises(InputError, match="nodes weighed by 'age'; known: equal, size"):
        task.gradients("full", "per-example", 1.0, weigh_nodes="age")


@pytest.mark.parametrize("batch", ["full", "poisson:0.1"])
def test_a_plan_weighs_nodes_as_the_run_does(batch, tmp_path):
    wanted = experiment(tmp_path, batch, training={"weigh_nodes": "size"})
    asked, run = planned_question(wanted), build_accountant(wanted).training_run
    assert asked.sensitivity == pytest.approx(run.gradients.sensitivities("record"))
    assert asked.sensitivity != planned_question(experiment(tmp_path, batch)).sensitivity
    if batch != "full":
        assert asked.declared.sampled_nodes.sensitivity == pytest.approx(run.sampled_nodes.sensitivity)
