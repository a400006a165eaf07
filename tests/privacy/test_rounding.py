"""Which figures cover rounding, and what runs say about it and about what no figure covers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from sottovoce import (
    InputError,
    account,
    algorithm,
    build_run,
    calibrate,
    metropolis,
    parse_experiment,
    trace,
)
from sottovoce.core.grid import message_grid, with_exact_noise
from sottovoce.privacy.assumptions import NOT_ROUNDED_KINDS, Assumption, AssumptionKind, NotCovered
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_privacy
from sottovoce.run.training_run import prepare_run
from tests.run.test_privacy_report import job

RING = metropolis("ring:8")
COVERED, OPEN = AssumptionKind.ROUNDING_COVERED, AssumptionKind.ROUNDING_NOT_COVERED
PLAIN, DECOR = algorithm("dp-d-sgd", sigma=2.0), algorithm("decor", sigma=2.0, sigma_pair=3.0)


def system(built=PLAIN, *, exact=True, rounds=12):
    return trace(with_exact_noise(built, RING, exact), RING, rounds=rounds)


def kinds_of(guarantee):
    kinds = {assumption.kind for assumption in guarantee.assumptions}
    return {OPEN if kind in NOT_ROUNDED_KINDS else kind for kind in kinds} & {COVERED, OPEN}


@pytest.mark.parametrize("built", [PLAIN, DECOR, algorithm("muffliato", sigma=2.0), algorithm("anti-pgd", sigma=2.0)])
@pytest.mark.parametrize("exact", [False, True])
def test_every_figure_says_whether_it_covers_rounding(built, exact):
    for view in ("everyone", "node:0"):
        for guarantee in account(system(built, exact=exact), view).guarantees:
            assert kinds_of(guarantee) == {COVERED} or kinds_of(guarantee) == {OPEN}
            assert exact or kinds_of(guarantee) == {OPEN}


def test_only_figures_that_hold_given_all_noisy_gradients_cover_it():
    """A distant node's figure counts on sums of many nodes' noise; a neighbour hears noisy gradients as they are."""
    whole, node = account(system()), account(system(), "node:0", convex=True)
    assert kinds_of(whole.headline) == {COVERED}
    assert kinds_of(node.of(1, "any-training")) == {COVERED}
    for victim in (2, 3, 4):
        for kind in ("convex-training", "fixed-streams"):
            assert node.of(victim, kind).mu < whole.mu
            assert kinds_of(node.of(victim, kind)) == {OPEN}


def test_convex_figures_say_what_covering_rounding_would_add():
    """2 h sqrt(n T) / s, times the square root of the number of parameters, for steps h of 1/16 of noise of size 2."""
    found = account(system(rounds=9), "node:0", convex=True).of(4, "convex-training")
    assert found.assumptions[-1].kind is AssumptionKind.ROUNDED_MODELS_NOT_COVERED
    assert f" adds {2 / 16 * math.sqrt(8 * 9):.4g} times the square root" in str(found.assumptions[-1])
    figure = PrivacyFigure.of(found, 1e-5)
    assert not figure.covers_rounding
    assert Assumption.read(str(found.assumptions[-1])) == found.assumptions[-1]


@pytest.mark.parametrize("built", [PLAIN, DECOR])
def test_exact_noise_lowers_no_figure_and_adds_less_than_a_millionth(built):
    for view in ("everyone", "node:0"):
        plain, exact = (account(system(built, exact=wanted), view).guarantees for wanted in (False, True))
        for one, other in zip(plain, exact, strict=True):
            assert one.mu * (1 - 1e-12) <= other.mu <= one.mu * (1 + 1e-6)


def test_calibration_meets_the_target_with_exact_noise():
    built = with_exact_noise(PLAIN, RING)
    sigma = calibrate(built, RING, rounds=12, epsilon=2.0, delta=1e-5)
    found = account(trace(with_sigma(built, sigma), RING, rounds=12))
    assert found.epsilon(1e-5) <= 2.0
    assert kinds_of(found.headline) == {COVERED}
    assert not with_sigma(built, 0.0).exact_noise


@pytest.mark.parametrize(("wanted", "step"), [("auto", True), (True, True), (False, False)])
@pytest.mark.parametrize("batch", ["full", "poisson:0.5"])
def test_a_run_says_it_in_its_document(wanted, step, batch):
    gradients = job(8).gradients(batch, "per-example", 1.0)
    run = prepare_run(PLAIN, RING, gradients, rounds=4, exact_noise=wanted)
    document = {**report_privacy(run, attackers="none").document()}
    read = PrivacyDocument.read(document)
    assert (read.grid_step is not None) is step
    assert read.headline.covers_rounding is step
    assert read.not_covered == tuple(NotCovered)


def test_runs_with_models_on_a_grid_say_so_and_take_float64():
    settings = {
        "name": "far", "topology": {"graph": "ring:8"}, "data": {"unit_norm": True},
        "training": {"rounds": 4, "clip": "bounded"}, "algorithm": {"name": "zip-dl", "sigma": 8.0, "step_size": 1.0},
        "privacy": {"exact_noise": True, "adjacency": "user"}, "machine": {"precision": "float64"},
    }  # fmt: skip
    run = build_run(parse_experiment(settings))
    read = PrivacyDocument.read({**report_privacy(run, attackers=[0]).document()})
    figures = [one for one in read.node_views[0].guarantees if one.victim == 3 and one.kind != "fixed-streams"]
    assert "ROUNDED_MESSAGES" in {one.assumptions[-1].kind.name for one in figures}
    assert all(one.covers_rounding for one in figures)
    released = next(run.play(run.before()))[0].steps[0].sent_messages().rows
    assert torch.equal(released, torch.round(released / read.grid_step) * read.grid_step)
    settings["machine"] = {"precision": "float32"}
    with pytest.raises(InputError, match=r'more bits than float32 has; set machine\.precision = "float64"'):
        build_run(parse_experiment(settings))


# --- noise on single messages --------------------------------------------------------------------------------------

ON_MESSAGES = AssumptionKind.ROUNDED_MESSAGES


def zip_dl(graph, name="zip-dl", **settings):
    net = metropolis(graph)
    built = with_exact_noise(algorithm(name, **{"sigma": 1.5, **settings}), net, True)
    return built, net, message_grid(built, net.at(0))


def told_by_messages(net, node, zeta):
    """`1^T S^-1 1` for the covariance S of the noise on a node's messages, by the formula of zip-dl's Algorithm 1."""
    weights = net.at(0).weights.toarray()[:, node]
    receivers = np.flatnonzero(weights)
    balance = np.eye(len(receivers)) - weights[receivers] / (len(receivers) * weights[receivers, None])
    sent = zeta * balance[receivers != node]
    return float(np.linalg.inv(sent @ sent.T).sum())


@pytest.mark.parametrize("graph", ["ring:5", "star:4", "path:4"])
@pytest.mark.parametrize("view", ["everyone", "node:0", "coalition:0,2"])
def test_figures_about_noise_on_messages_are_those_of_real_numbers_and_what_rounding_adds(graph, view):
    """Round t shows t changes at once, each as large as Delta and what rounding adds for a billion parameters."""
    built, net, grid = zip_dl(graph, sensitivity=(0.5, 2.0, 0.7, 1.0, 3.0)[: metropolis(graph).n], step_size=0.2)
    rounds = 6
    added = 1.25 * grid.model_step * math.sqrt(10**9) / (0.2 * 0.5)
    found = account(trace(built, net, rounds=rounds), view, adjacency="user")
    for guarantee in found.guarantees:
        real = told_by_messages(net, guarantee.victim, 1.5) * sum(t**2 for t in range(1, rounds + 1))
        if guarantee.kind == "any-training":
            assert math.sqrt(real) * (1 + added) <= guarantee.mu <= math.sqrt(real) * (1 + added) * (1 + 1e-6)
            assert guarantee.assumptions[-1].kind is ON_MESSAGES
    assert found.headline.assumptions[-1].kind is ON_MESSAGES
    assert "rounding is covered, and adds 0." in json.dumps(found.document(1e-5)["headline"])


def test_what_is_not_proven_for_noise_on_messages_covers_no_rounding():
    built, net, _ = zip_dl("ring:6")
    traced = trace(built, net, rounds=3)
    whole = account(traced, adjacency="user")
    for guarantee in account(traced, "node:0", adjacency="user").guarantees:
        is_covered = guarantee.assumptions[-1].kind is ON_MESSAGES
        assert is_covered is (guarantee.mu > 0.999 * whole.mu)
    by_record = account(traced, adjacency="record")
    assert by_record.headline.proves_nothing
    assert {one.assumptions[-1].kind for one in by_record.guarantees} == {OPEN}
    assert by_record.epsilon(1e-5) == math.inf


def test_values_that_are_averaged_under_such_noise_cover_it_for_whoever_hears_everything():
    built, net, grid = zip_dl("ring:5", "zip-dl-averaging")
    found = account(trace(built, net, rounds=4), adjacency="record").headline
    real = math.sqrt(4 * told_by_messages(net, 0, 1.5))
    added = 1.25 * grid.model_step * math.sqrt(10**9)
    assert real * (1 + added) <= found.mu <= real * (1 + added) * (1 + 1e-6)
    assert found.assumptions[-1].kind is ON_MESSAGES


def bins(centre, multiples, spread):
    """Probabilities of multiples of 1, for a rounded Gaussian."""
    return norm.cdf((multiples + 0.5 - centre) / spread) - norm.cdf((multiples - 0.5 - centre) / spread)


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 2.0])
def test_what_is_sent_in_two_rounds_is_told_apart_no_better_than_the_figure_says(epsilon):
    """All pairs of messages of one of two nodes, each with its probability; the change follows the first message."""
    sigma = 5.0
    built, net, grid = zip_dl("path:2", sigma=sigma, step_size=1.0)
    spread = 1 / math.sqrt(told_by_messages(net, 0, sigma)) / grid.step
    step, change = grid.model_step / grid.step, (1 + 1.25 * grid.model_step) / grid.step
    first = second = np.arange(-230, 260)
    towards = np.where(first % 3, 1.0, -1.0)  # gradients of a world may depend on what was sent
    worlds = []
    for world in (0.0, change):
        models = np.rint((7.3 + world) / step) * step
        next_models = np.rint((models + towards * 0.4 / grid.step + world) / step) * step
        worlds.append(bins(models, first, spread)[:, None] * bins(next_models[:, None], second, spread))
    assert all(abs(world.sum() - 1) < 1e-9 for world in worlds)
    mu = account(trace(built, net, rounds=2), adjacency="user").mu

    def claimed(mu):
        return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)

    for one, other in (worlds, worlds[::-1]):
        reached = np.maximum(one - math.exp(epsilon) * other, 0).sum()
        assert claimed(0.98 * mu) < reached < claimed(mu)
