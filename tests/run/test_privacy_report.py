"""What a run promises: figures of the very thing that runs, never too small, and honest about what they rest on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld
from torch import nn

from sottovoce import InputError, Unaccountable, account, algorithm, compose, metropolis, trace, weigh
from sottovoce.core.final_models import FinalModels
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.random_streams import public_seed
from sottovoce.learning import models
from sottovoce.learning.datasets import Dataset, load
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.privacy import views
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.report.page import write_page_of
from sottovoce.run import privacy_report as choice
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_privacy
from sottovoce.run.run_accountant import RunAccountant, calibrate_run
from sottovoce.run.training_run import prepare_run
from sottovoce.support.config import parse_experiment
from sottovoce.support.progress import progress_heard
from sottovoce.support.text import to_json
from sottovoce.tracing.policy import trace_noisy_gradients
from tests.cases import cases
from tests.selection import rest_slow

DELTA = 1e-5
PLACES = ("ring:5", "complete:4", "fresh", "dropout")
TRAINED = [case for case in cases() if not case.algorithm.averaging and case.place in PLACES]


def rows(n=60, features=3, seed=0, classes=2, scale=1.0):
    """Made-up rows, each of norm `scale`, which is declared, with labels that do not matter."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, features))
    x = (scale * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    y = rng.integers(0, classes, n) if classes else rng.standard_normal(n).astype(np.float32)
    return Dataset(
        name="made-up", kind="classes" if classes else "value", examples=Examples(x), targets=y, test_inputs=x[:8],
        test_targets=y[:8], shape=(features,), classes=tuple("abcdef"[:classes]), groups=None, test_groups=None,
        entities=(), licence="", source="", notes=(),
    ).max_norm(scale)  # fmt: skip


def job(nodes=5, name="logistic", data=None, **settings):
    data = rows(12 * nodes) if data is None else data
    return task(data, partition(data, nodes), models.model(name, data, **settings))


def begun(built, net, batch="full", clip="per-example", bound=1.0, *, rounds=4, adjacency="record", what=None, **more):
    what = job(net.n) if what is None else what
    return prepare_run(built, net, what.gradients(batch, clip, bound, **more), rounds=rounds, adjacency=adjacency)


RING = metropolis("ring:5")


# --- the everyone headline -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["record", "user"])
@pytest.mark.parametrize("case", rest_slow(TRAINED))
def test_the_headline_is_the_account_of_the_same_system(case, adjacency):
    """For every algorithm, on fixed and changing topologies; traced here with a sensitivity of one."""
    began = begun(case.algorithm, case.topology, "cycle:2x2", adjacency=adjacency)
    found = report_privacy(began, delta=DELTA, attackers="none")
    how = trace if case.algorithm.compression.name == "identity" else trace_noisy_gradients
    system = how(with_exact_noise(case.algorithm, case.topology), case.topology, rounds=4)
    wanted = account(
        system, adjacency=adjacency, participation="2x2" if adjacency == "record" else "every",
        convex=case.algorithm.secure_sum,  # single nodes are the adversaries of sums, and logistic regression is convex
    )  # fmt: skip
    if wanted.headline.proves_nothing:
        assert found.headline.proves_nothing
        assert found.epsilon == math.inf
        return
    grids = 1e-5 if case.algorithm.secure_sum else 1e-9  # integers of another sensitivity have another step
    assert found.epsilon == pytest.approx(wanted.epsilon(DELTA), rel=grids)
    assert (found.headline.kind, found.headline.change) == (wanted.kind, "replace")
    if adjacency == "record":
        json.dumps(found.document(), allow_nan=False)


def test_epsilon_over_rounds_is_that_of_runs_that_end_earlier():
    """By hand: a record takes part in every second round, and noise is fresh each time."""
    found = report_privacy(
        begun(algorithm("dp-d-sgd", sigma=2.0), RING, "cycle:10x2", rounds=20), delta=DELTA, attackers="none", every=3
    )
    stages = found.document()["over_rounds"]
    assert [one["round"] for one in stages] == [1, 3, 6, 9, 12, 15, 18, 20]
    for one in stages:
        assert one["mu"] == pytest.approx(math.sqrt(math.ceil(one["round"] / 2)) / 2)
        assert one["epsilon"] == epsilon_of(one["mu"], DELTA)
    assert stages[-1]["epsilon"] == found.headline.epsilon


def test_a_secure_sum_tells_epsilon_at_as_many_rounds_as_gossip():
    """By hand: an attacker knows its own noise, and that of four nodes is left in every sum."""
    net = weigh("complete:5", "uniform")

    def report(rounds):
        began = begun(algorithm("secure-average", sigma=20.0), net, rounds=rounds, adjacency="user")
        return report_privacy(began, delta=DELTA, attackers="all")

    stages = report(300).over_rounds()
    assert len(stages) == 21
    for one in stages:
        assert one.mu == pytest.approx(math.sqrt(one.round / 4) / 20, rel=1e-4)
    early = report(stages[2].round)
    assert stages[2].mu == pytest.approx(early.headline.mu, rel=1e-9)
    assert stages[2].mu >= max(found.mu for found in early.accounts) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "batch"),
    [
        ("mafalda", {"sigma": 2.0, "rounds": 9, "participation": "3x3"}, "cycle:3x3"),
        ("decor", {"sigma": 2.0, "sigma_pair": 5.0}, "full"),
        ("dp-d-sgd", {"sigma": 2.0}, "poisson:0.5"),
        ("d-psgd", {}, "full"),
        ("zip-dl", {"sigma": 2.0}, "full"),
    ],
)
def test_epsilon_over_rounds_grows_to_the_headline(name, settings, batch):
    what = job(5, data=rows(60))
    found = report_privacy(
        begun(algorithm(name, **settings), RING, batch, rounds=9, what=what), delta=DELTA, attackers="all"
    )
    stages = found.document()["over_rounds"]
    if found.headline.proves_nothing:
        assert stages == []
        return
    figures = [float(one["epsilon"]) for one in stages]
    assert figures == sorted(figures)
    last = found.headline
    assert stages[-1] == {"round": 9, "epsilon": to_json(last.epsilon), "mu": to_json(last.mu)}
    assert name == "d-psgd" or 0 < figures[0] < figures[-1] < math.inf


def test_runs_up_to_a_size_tell_epsilon_over_rounds(monkeypatch):
    found = report_privacy(begun(algorithm("dp-d-sgd", sigma=2.0), RING), attackers="none")
    told = found.over_rounds()
    assert len(told) > 1
    monkeypatch.setattr("sottovoce.run.privacy_report.NODE_ROUNDS", 19)
    assert found.over_rounds() == told
    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.run.privacy_report.LARGEST", 19)
        assert found.over_rounds() == ()
    monkeypatch.setattr(RunAccountant, "traces_less_than_first_rounds", lambda self: True)
    assert found.over_rounds() == ()


@pytest.mark.parametrize(
    ("adjacency", "batch", "clip", "most", "times"),
    [
        ("record", "full", "per-example", 2 / 12, 6),
        ("record", "cycle:3x2", "per-example", 2 / 6, 3),
        ("record", "cycle:2x5", "per-example", 2 / 2.4, 2),
        ("record", "cycle:3x2", "whole-gradient", 2.0, 3),
        ("record", "poisson:0.25", "whole-gradient", 2.0, 6),
        ("user", "full", "per-example", 2.0, 6),
        ("user", "cycle:3x2", "per-example", 2.0, 6),
        ("user", "cycle:2x5", "per-example", 2 * 3 / 2.4, 6),
        ("user", "poisson:0.25", "per-example", 8.0, 6),
        ("user", "fixed:3", "whole-gradient", 2.0, 6),
    ],
)
def test_sensitivity_and_participation_by_hand(adjacency, batch, clip, most, times):
    """Bound 1, twelve rows a node, six rounds, sigma 3: mu = sqrt(times) / 3, and noise of size 3 x most."""
    began = begun(algorithm("dp-d-sgd", sigma=3.0), RING, batch, clip, rounds=6, adjacency=adjacency)
    found = report_privacy(began, attackers="none")
    document = found.document()
    assert document["sensitivity"] == began.algorithm.sensitivity == pytest.approx(most)
    assert found.headline.mu == pytest.approx(math.sqrt(times) / 3)
    assert (document["sampled"], document["sigma"], document["clipping"]) == (None, 3.0, clip)


@pytest.mark.parametrize(("rounds", "times"), [(1, 1), (3, 1), (4, 2), (7, 3), (11, 4), (12, 4)])
def test_a_cycle_that_ends_early_counts_the_rounds_there_are(rounds, times):
    began = begun(algorithm("dp-d-sgd", sigma=1.0), RING, "cycle:4x3", rounds=rounds)
    assert str(began.participation) == f"{times}x3"
    assert report_privacy(began, attackers="none").headline.mu == pytest.approx(math.sqrt(times))


@pytest.mark.parametrize(("batch", "rounds", "times"), [("cycle:3x4", 6, 3), ("cycle:3x2", 3, 3), ("cycle:4x3", 6, 6)])
def test_local_steps_bring_participations_together(batch, rounds, times):
    """Two steps a round: a record of `cycle:3x4` shows every second round; where B is odd, no scheme fits."""
    what = job(5).gradients(batch, "whole-gradient", 1.0, local_steps=2, step_size=0.1)
    began = prepare_run(algorithm("dp-d-sgd", sigma=1.0), RING, what, rounds=rounds)
    for row in what.batches.shards[0]:
        shows = [t for t in range(rounds) if any(row in what.batches.rows_of(0, step) for step in (2 * t, 2 * t + 1))]
        assert len(shows) <= times
        assert times == rounds or np.ptp(np.diff(shows)) == 0
    assert report_privacy(began, attackers="none").headline.mu == pytest.approx(math.sqrt(times))


def test_mafalda_takes_the_c_of_the_participation_that_is_used():
    base = {
        "name": "x", "topology": {"graph": "ring:4"}, "data": {"rows": 12},
        "algorithm": {"name": "mafalda", "sigma": 1.0},
        "training": {"rounds": 6, "batch": "cycle:4x3", "clip": "per-example", "bound": 1.0},
    }  # fmt: skip
    began = build_run(parse_experiment(base))
    assert str(began.participation) == "2x3"
    C = began.algorithm.noise.correlation.matrix(6)
    by_hand = algorithm("mafalda", sigma=1.0, rounds=6, participation="2x3").on(began.topology)
    np.testing.assert_array_equal(C, by_hand.noise.correlation.matrix(6))
    M = C.T @ C
    worst = max(M[np.ix_([s, s + 3], [s, s + 3])].__abs__().sum() for s in range(3))
    assert report_privacy(began, attackers="none").headline.mu == pytest.approx(math.sqrt(worst), rel=1e-4)
    everyone = build_run(parse_experiment(base | {"privacy": {"adjacency": "user"}}))
    assert not np.array_equal(everyone.algorithm.noise.correlation.matrix(6), C)
    mu = report_privacy(everyone, attackers="none").headline.mu
    C = everyone.algorithm.noise.correlation.matrix(6)
    assert mu >= math.sqrt((C.T @ C).sum()) * (1 - 1e-9)


@pytest.mark.parametrize("more", [{"graph": "erdos-renyi:4,p=0.9", "fresh": True}, {"graph": "ring:4", "dropout": 0.3}])
def test_changing_topologies_follow_the_runs_seed_and_are_accounted_as_they_run(more):
    base = {
        "name": "x", "topology": more, "data": {"rows": 12}, "algorithm": {"name": "muffliato-sgd", "sigma": 1.0},
        "training": {"rounds": 5, "clip": "per-example", "bound": 1.0},
    }  # fmt: skip
    one, other = (build_run(parse_experiment(base | {"seed": seed})) for seed in (1, 2))
    pinned = build_run(parse_experiment(base | {"seed": 2, "topology": more | {"seed": public_seed(1, "topology")}}))

    def weights(began):
        return [began.topology.at(t).weights.toarray().tolist() for t in range(5)]

    assert weights(one) == weights(pinned) != weights(other)
    seen = [played.steps[0].mixing.weights.toarray().tolist() for played, _ in one.play(one.before())]
    assert seen == weights(one)
    found = report_privacy(one, attackers="all")
    wanted = account(trace(one.algorithm, one.topology, rounds=5), "node:2", adjacency="record")
    assert found.accounts[3].guarantees == wanted.guarantees or found.convexity.startswith("convex-training is not")
    assert found.accounts[3].mu == pytest.approx(wanted.mu)


# --- sampling ------------------------------------------------------------------------------------------------------


@cache
def poisson(noise, share, rounds):
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    return accountant.compose(event, rounds).get_epsilon(DELTA)


@cache
def fixed(noise, size, held, rounds):
    return epsilon_of_batches(noise=noise, share=size / held, size=held, rounds=rounds, delta=DELTA)


@pytest.mark.parametrize(
    "name", ["dp-d-sgd", "dp2sgd", "dp-csgp", pytest.param("muffliato-sgd", marks=pytest.mark.slow)]
)
def test_poisson_batches_are_about_a_record_that_counts_as_nothing(name):
    """Noise is sigma x 2 C / d for all; without the record a sum moves by C / d: a noise multiplier of 2 sigma."""
    net = weigh("ring:5", "push") if name == "dp-csgp" else RING
    began = begun(algorithm(name, sigma=1.5), net, "poisson:0.25", rounds=20)
    found = report_privacy(began, delta=DELTA, attackers="none")
    wanted = poisson(3.0, 0.25, 20)
    assert found.sampled.epsilon == pytest.approx(wanted, rel=1e-5)
    assert found.headline.epsilon == pytest.approx(wanted, rel=1e-5)
    assert found.headline.change == "zero-out"
    assert found.headline.assumptions[0].kind is AssumptionKind.SAMPLED_BATCHES
    assert "made to count as nothing" in str(found.headline.assumptions[0])
    unsampled = epsilon_of(math.sqrt(19 if name == "dp2sgd" else 20) / 1.5, DELTA)  # its last step is never sent
    assert found.document()["views"][0]["headline"]["epsilon"] == pytest.approx(unsampled)


def test_fixed_batches_are_about_a_replaced_record_of_the_smallest_shard():
    data = rows(61)
    began = begun(algorithm("dp-d-sgd", sigma=4.0), RING, "fixed:3", rounds=20, what=job(data=data))
    assert sorted({len(shard) for shard in began.gradients.batches.shards}) == [12, 13]
    assert began.algorithm.sensitivity == pytest.approx(2 / 3)
    found = report_privacy(began, delta=DELTA, attackers="none")
    wanted = max(fixed(4.0, 3, held, 20) for held in (12, 13))
    assert found.sampled.epsilon == pytest.approx(wanted, rel=1e-9)
    plain = epsilon_of(math.sqrt(20) / 4, DELTA)
    assert found.epsilon == pytest.approx(min(wanted, plain))
    assert found.headline.change == "replace"


def test_poisson_on_shards_of_unequal_size_costs_every_node_the_same():
    data = rows(61)
    began = begun(algorithm("dp-d-sgd", sigma=1.5), RING, "poisson:0.25", rounds=20, what=job(data=data))
    held = [len(shard) for shard in began.gradients.batches.shards]
    assert sorted(set(held)) == [12, 13]
    assert began.algorithm.sensitivity == pytest.approx([2 / (0.25 * rows) for rows in held])
    assert report_privacy(began, attackers="none").sampled.epsilon == pytest.approx(poisson(3.0, 0.25, 20), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("anti-pgd", {}, "noise correlated over rounds"),
        ("zip-dl", {}, "nothing is added to gradients themselves"),
        ("zip-dl", {"message_sigma": 1.0, "sigma": None}, "nothing is added to gradients themselves"),
    ],
)
def test_sampling_that_is_not_proven_counts_for_nothing_and_says_so(name, settings, reason):
    began = begun(algorithm(name, **{"sigma": 1.0} | settings), RING, "poisson:0.25")
    found = report_privacy(began, attackers="none")
    assert found.sampled is None
    assert reason in found.refusals[0]
    assert found.headline.proves_nothing or found.headline.change == "replace"
    assert found.document()["sigma"] == 1.0


@pytest.mark.parametrize("batch", ["cyclic-poisson:0.5x2", "cyclic-poisson:1x2"])
def test_mafalda_finds_noise_with_which_sampling_counts(batch):
    """Calibrated to the target, with the figure of half as many releases, over rounds and as a loss too."""
    settings = {
        "name": "sampled", "topology": {"graph": "ring:5"}, "data": {"rows": 12}, "algorithm": {"name": "mafalda"},
        "training": {"rounds": 10, "batch": batch, "clip": "per-example", "bound": 1.0},
        "privacy": {"epsilon": 2.0, "delta": DELTA, "attackers": "none"},
    }  # fmt: skip
    began = build_run(parse_experiment(settings))
    found = report_privacy(began, delta=DELTA, attackers="none")
    assert found.headline.change == "zero-out"
    assert found.epsilon == pytest.approx(2.0, rel=1e-2)
    assert found.epsilon <= 2.0
    sigma, share = began.algorithm.noise.sigma, float(batch.removeprefix("cyclic-poisson:")[:-2])
    if share < 1:
        assert began.algorithm.noise.correlation.bands(10) == 2
        assert found.epsilon == pytest.approx(poisson(2 * sigma, share, 5), rel=1e-5)
        assert found.loss_after(5).rounds == 3
    else:
        cyclic = account(trace(began.algorithm, began.topology, rounds=10), participation="5x2").mu
        assert found.epsilon == pytest.approx(epsilon_of(cyclic / 2, DELTA), rel=1e-9)
    stages = [stage.epsilon for stage in found.over_rounds()]
    assert stages == sorted(stages)
    assert compose([found.loss]).epsilon(DELTA) == pytest.approx(found.epsilon, rel=1e-9)


def test_sampling_counts_for_records_alone_and_for_clipped_examples_alone():
    for clip, adjacency in (("per-example", "user"), ("whole-gradient", "record")):
        found = report_privacy(begun(algorithm("dp-d-sgd", sigma=1.0), RING, "poisson:0.25", clip, adjacency=adjacency))
        assert found.sampled is None
        assert found.headline.mu == pytest.approx(2.0)


def test_decor_under_sampling_has_the_noise_of_one_round_given_all_others():
    """Noise has covariance sigma^2 I + pair^2 L; what is left for one node when the others' is known is 1 / inverse."""
    decor = algorithm("decor", sigma=1.0, sigma_pair=2.0)
    laplacian = 2 * np.eye(5) - np.roll(np.eye(5), 1, 0) - np.roll(np.eye(5), -1, 0)
    alone = 1 / math.sqrt(np.linalg.inv(np.eye(5) + 4 * laplacian)[0, 0])
    found = report_privacy(begun(decor, RING, "poisson:0.25", rounds=20), attackers="none")
    assert found.sampled.epsilon == pytest.approx(poisson(2 * alone, 0.25, 20), rel=1e-5)


def test_a_neighbour_that_shares_secrets_is_the_headline():
    """Path of two, pair noise 5, three rounds: mu^2 is 1.53 for a stranger who hears all, and 3 for the neighbour."""
    began = begun(algorithm("decor", sigma=1.0, sigma_pair=5.0), metropolis("path:2"), what=job(2), rounds=3)
    some, found = report_privacy(began, attackers="none"), report_privacy(began, attackers="all")
    assert some.accounts[0].mu ** 2 == pytest.approx(1.53, abs=0.005)
    assert AssumptionKind.NO_SHARED_SECRETS in [one.kind for one in some.accounts[0].assumptions]
    assert some.headline.mu**2 == pytest.approx(3.0)
    assert found.headline.mu**2 == pytest.approx(3.0)
    for report in (some, found):
        assert report.headline.view in (views.node(0), views.node(1))
    sampled = report_privacy(
        begun(began.algorithm, began.topology, "poisson:0.25", what=job(2), rounds=3), attackers="all"
    )
    assert AssumptionKind.NO_SHARED_SECRETS.of() in sampled.sampled.assumptions
    assert sampled.sampled.epsilon < sampled.epsilon == pytest.approx(found.epsilon)


@pytest.mark.parametrize("attackers", ["none", [2], 2, "auto", "all"])
def test_secrets_are_known_to_whoever_was_not_accounted_for(attackers):
    """The hub of a star shares a secret with everybody, and only a node's own noise is left."""
    decor = algorithm("decor", sigma=3.0, sigma_pair=9.0)
    found = report_privacy(begun(decor, metropolis("star:5"), rounds=16), attackers=attackers)
    assert found.headline.mu == pytest.approx(4 / 3)
    assert found.over_rounds()[0].epsilon == pytest.approx(epsilon_of(1 / 3, DELTA))


@pytest.mark.parametrize(("name", "kept"), [("dp-d-sgd", False), ("dp2sgd", True), ("zip-dl", True)])
def test_models_that_hold_more_than_was_sent_are_not_covered(name, kept):
    adjacency = "user" if name == "zip-dl" else "record"
    found = report_privacy(begun(algorithm(name, sigma=1.0), RING, adjacency=adjacency, rounds=3)).headline
    assert found.final_models is (FinalModels.NONE if kept else FinalModels.ALL)
    assert found.covers_final_models != kept


# --- calibration ---------------------------------------------------------------------------------------------------


NOISY = {
    "dp-d-sgd": {}, "dp-csgp": {"compression": "gsgd:8"}, "decor": {"sigma_pair": 2.0}, "dp-fedavg": {}, "anti-pgd": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "batch", "epsilon"),
    [
        *((name, "cycle:4x5", 4.0) for name in NOISY),
        *((name, "poisson:0.25", 1.0) for name in NOISY if name != "decor"),
        ("dp-d-sgd", "full", 0.1),
        ("dp-d-sgd", "fixed:3", 1.0),
        *(pytest.param("decor", batch, 1.0, marks=pytest.mark.slow) for batch in ("poisson:0.25", "fixed:3")),
    ],
)
def test_calibration_meets_the_target_and_wastes_nothing(name, batch, epsilon):
    net = weigh("complete:5", {"dp-csgp": "push", "dp-fedavg": "uniform"}.get(name, "metropolis"))
    began = begun(algorithm(name, sigma=1.0, **NOISY[name]), net, batch, rounds=20)
    met = calibrate_run(began, epsilon=epsilon, delta=DELTA)
    assert report_privacy(met, delta=DELTA, attackers="none").epsilon <= epsilon
    run = met.training_run
    sigma = getattr(run.algorithm.noise, "sigma", None) or run.algorithm.noise.parts[0].sigma
    assert report_privacy(met.at_sigma(0.99 * sigma), delta=DELTA, attackers="none").epsilon > epsilon
    assert (run.algorithm.sensitivity, run.gradients) == (began.algorithm.sensitivity, began.gradients)


def test_a_target_is_met_for_those_who_share_secrets():
    began = begun(algorithm("decor", sigma=1.0, sigma_pair=6.0), metropolis("ring:4"), rounds=10)
    met = calibrate_run(began, epsilon=2.0, delta=DELTA)
    for attackers in ("all", "none", [1]):
        assert 1.98 < report_privacy(met, delta=DELTA, attackers=attackers).epsilon <= 2.0


def test_calibration_for_one_view_promises_that_view():
    base = {
        "name": "x", "topology": {"graph": "ring:8"}, "data": {"name": "breast-cancer", "rows": 12},
        "model": {"name": "logistic"}, "algorithm": {"name": "dp-d-sgd", "step_size": 0.001},
        "training": {"rounds": 10, "clip": "per-example", "bound": 1.0},
        "privacy": {"epsilon": 2.0, "view": "coalition:0,1", "attackers": "none"},
    }  # fmt: skip
    experiment = parse_experiment(base)
    began = build_run(experiment)
    found = report_privacy(began, attackers="none", target=experiment.privacy.view)
    assert [str(view.view) for view in found.accounts] == ["everyone", "coalition:0,1"]
    assert 1.98 < found.accounts[1].epsilon(DELTA) <= 2.0
    assert found.epsilon >= found.accounts[1].epsilon(DELTA)
    assert found.accounts[0].epsilon(DELTA) == found.epsilon


def test_a_target_against_nodes_counts_on_sampling_where_that_takes_less_noise():
    began = begun(algorithm("dp-d-sgd", sigma=1.0), RING, "poisson:0.25", rounds=20)
    met = {
        view: calibrate_run(began, epsilon=1.0, delta=DELTA, view=view)
        for view in ("everyone", "node:0", "coalition:0,2", "coalition:any-2")
    }
    sigmas = {one.training_run.algorithm.noise.sigma for one in met.values()}
    assert len(sigmas) == 1
    alone = met["node:0"].account(views.node(0))
    assert alone.epsilon(DELTA) > 1.5  # what the same view needs without counting on chance
    assert 0.99 < report_privacy(met["node:0"], delta=DELTA, attackers="none", target="node:0").epsilon <= 1.0


def test_no_sampling_is_counted_on_against_nodes_that_share_secrets():
    began = begun(algorithm("decor", sigma=1.0, sigma_pair=2.0), RING, "poisson:0.25", rounds=5)
    met = calibrate_run(began, epsilon=1.0, delta=DELTA, view="node:0")
    assert 0.99 < met.account(views.node(0)).epsilon(DELTA) <= 1.0


def test_what_cannot_be_calibrated_is_refused():
    with pytest.raises(Unaccountable, match="not clipped"):
        calibrate_run(begun(algorithm("dp-d-sgd", sigma=1.0), RING, clip="none", bound=None), epsilon=1, delta=DELTA)
    with pytest.raises(Unaccountable):
        calibrate_run(begun(algorithm("zip-dl", sigma=1.0), RING, "cycle:2x2"), epsilon=1, delta=DELTA)


# --- convex training -----------------------------------------------------------------------------------------------


def convexity(batch="full", clip="none", bound=None, step_size=0.5, what=None, name="dp-d-sgd", rounds=3, **more):
    net = weigh("path:5", "push") if name == "dp-csgp" else metropolis("path:5")
    what = job(5, data=rows(60), bias=False) if what is None else what
    built = algorithm(name, sigma=1.0, step_size=step_size)
    began = begun(built, net, batch, clip, bound, what=what, rounds=rounds, **more)
    return report_privacy(began, attackers=[0])


def test_a_small_step_on_normalised_features_is_convex_training():
    """Logistic loss, rows of norm 1: L <= 1/4, so steps up to 8 do not expand."""
    found = convexity("cycle:3x4", "per-example", 0.5, 7.9, rounds=12)
    assert found.convexity.startswith("checked: logistic regression, L = 0.25 ")
    seen = found.accounts[1]
    assert {guarantee.kind for guarantee in seen.guarantees} == {"any-training", "convex-training", "fixed-streams"}
    assert seen.of(4, "convex-training").mu < 0.5 * found.headline.mu
    assert seen.of(4, "convex-training").mu >= seen.of(4, "fixed-streams").mu
    assert found.accounts[0].kind == "any-training"


@pytest.mark.parametrize("graph", ["path:6", "ring:9"])
def test_distance_protects_in_softmax_regression(graph):
    """Rows of declared norm and clipping that never acts: convex figures fall hop by hop, far below everyone's."""
    net = metropolis(graph)
    what = job(net.n, "softmax", data=rows(12 * net.n, classes=3))
    began = begun(algorithm("dp-d-sgd", sigma=2.0, step_size=1.9), net, clip="bounded", bound=None, what=what, rounds=8)
    found = report_privacy(began, attackers=[0])
    assert found.convexity.startswith("checked: softmax regression, L = 1 from the declared norm of rows")
    seen = found.accounts[1]
    mus = [seen.of(hops, "convex-training").mu for hops in range(1, 5)]
    assert mus == sorted(mus, reverse=True)
    assert mus[0] == pytest.approx(found.headline.mu)
    assert mus[3] < 0.5 * mus[0]
    assert all(seen.of(hops, "fixed-streams").mu <= mu * (1 + 1e-9) for hops, mu in enumerate(mus, 1))
    assert seen.of(4, "any-training").mu > mus[3]


LINEAR = job(5, "linear", data=rows(60, classes=0), bias=False)
SOFTMAX = job(5, "softmax", data=rows(60, classes=3), bias=False)
BIASED = job(5, data=rows(60))
UNDECLARED = job(5, data=replace(rows(60), examples=Examples(rows(60).inputs)))
EACH, WHOLE = ({"clip": clip, "bound": 0.5} for clip in ("per-example", "whole-gradient"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**EACH, "step_size": 8.1, "batch": "cycle:3x4"}, "step size 8.1 exceeds 2/L, which is 7.999"),
        ({**EACH, "step_size": 4.1, "batch": "cycle:3x4", "what": BIASED}, "2/L, which is 3.999"),
        ({**EACH, "step_size": 2.1, "batch": "cycle:3x4", "what": LINEAR}, "2/L, which is 1.999"),
        ({**EACH, "step_size": -0.1, "batch": "cycle:3x4"}, "goes uphill"),
        ({**EACH, "step_size": 0.01, "what": SOFTMAX}, "softmax regression can move"),
        ({**EACH, "step_size": 0.01, "what": UNDECLARED}, "no bound on the norm of rows is declared"),
        ({**EACH, "what": job(5, "mlp", data=rows(60))}, "mlp is not known to be convex"),
        ({**WHOLE}, "clipping a whole gradient"),
    ],
)  # fmt: skip
def test_convex_training_is_not_offered_otherwise(settings, reason):
    found = convexity(**settings)
    assert found.convexity.startswith("convex-training is not offered: ")
    assert reason in found.convexity
    assert all(guarantee.kind != "convex-training" for view in found.accounts for guarantee in view.guarantees)


def test_several_local_steps_are_not_convex_training():
    what = job(5).gradients("full", "whole-gradient", 1.0, local_steps=2, step_size=0.01)
    found = report_privacy(
        prepare_run(algorithm("dp-d-sgd", sigma=1.0, step_size=0.01), RING, what, rounds=2), attackers=[0]
    )
    assert "several local steps" in found.convexity


def test_batches_heavier_than_their_divisor_need_smaller_steps():
    """Twelve rows in five batches: three of them over a divisor of 2.4. Poisson: up to twelve over 3."""
    for batch, most in (("cycle:3x5", 8 * 2.4 / 3), ("poisson:0.25", 2.0), ("fixed:3", 8.0)):
        for step_size, fine in ((0.999 * most, True), (1.001 * most, False)):
            found = convexity(batch, "per-example", 0.5, step_size)
            assert found.convexity.startswith("checked") is fine, (batch, step_size, found.convexity)


def test_heavy_batches_do_expand():
    """The reason: a step of 2/L on means, taken on three rows over 2.4, drives two models apart."""
    x = np.array([1.0, 0.0])
    apart = [z - 2.0 * (3 / 2.4) * (z @ x) * x for z in (np.array([1.0, 0.0]), np.array([0.0, 0.0]))]
    assert np.linalg.norm(apart[0] - apart[1]) > 1.4


class Hidden(nn.Sequential):
    """Looks like a chain of one layer, and is not."""

    def forward(self, x):
        return super().forward(x).square()


LAYER = nn.Linear(3, 3)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(LAYER, LAYER),
        nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        Hidden(nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)),
    ],
)  # fmt: skip
def test_a_name_does_not_make_a_model_convex(module):
    data = rows(60, classes=3)
    what = task(data, partition(data, 5), models.wrap_module(module, "cross-entropy", name="softmax"))
    found = convexity(step_size=0.01, what=what)
    assert what.convex_model is None
    assert what.feature_norm is None
    with pytest.raises(InputError, match="norm of rows bounds gradients of linear models only"):
        what.gradients("full", "bounded")
    assert found.headline.proves_nothing
    clipped = convexity(step_size=0.01, what=what, clip="per-example", bound=1.0)
    assert "softmax is not known to be convex" in clipped.convexity


def test_your_own_linear_layer_is_as_good_as_a_named_model():
    data = rows(60)
    what = task(data, partition(data, 5), models.wrap_module(nn.Linear(3, 1, bias=False), "logistic", name="mine"))
    assert convexity("cycle:3x4", "per-example", 0.5, 7.9, what).convexity.startswith("checked: logistic")
    assert not convexity("cycle:3x4", "per-example", 0.5, 8.1, what).convexity.startswith("checked")


def test_push_sum_allows_less():
    assert "exceeds" in convexity("cycle:3x4", "per-example", 0.5, 7.9, name="dp-csgp").convexity
    assert convexity("cycle:3x4", "per-example", 0.5, 3.0, name="dp-csgp").convexity.startswith("checked")


# --- nothing promised ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("built", [algorithm("dp-d-sgd", sigma=5.0), algorithm("decor", sigma=5.0, sigma_pair=2.0)])
def test_noise_without_clipping_promises_nothing_and_says_so(built):
    found = report_privacy(begun(built, RING, clip="none", bound=None))
    document = found.document()
    assert (document["headline"]["mu"], document["views"], document["sensitivity"]) == ("inf", [], "inf")
    assert "gradients are not clipped" in document["headline"]["assumptions"][0]
    assert "gradients are not clipped" in document["refusals"][0]
    assert found.epsilon == math.inf


@pytest.mark.parametrize("clip", ["none", "per-example"])
def test_no_noise_is_infinite(clip):
    for built in (algorithm("d-psgd"), algorithm("dp-d-sgd", sigma=0.0)):
        found = report_privacy(begun(built, RING, clip=clip, bound=None if clip == "none" else 1.0))
        assert found.epsilon == math.inf
        json.dumps(found.document(), allow_nan=False)
        assert found.document()["headline"]["epsilon"] == "inf"


def test_noise_at_some_nodes_only_is_infinite_for_the_others():
    built = algorithm("dp-d-sgd", sigma=(1.0, 1.0, 0.0, 1.0, 1.0))
    assert report_privacy(begun(built, RING), attackers="none").epsilon == math.inf
    assert report_privacy(begun(built, RING, "poisson:0.25"), attackers="none").epsilon == math.inf


# --- views of nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dp-d-sgd", "muffliato-sgd", "dp2sgd", "anti-pgd", "zip-dl"])
@pytest.mark.parametrize("adjacency", ["record", "user"])
def test_no_node_learns_more_than_everyone(name, adjacency):
    began = begun(algorithm(name, sigma=2.0), metropolis("path:4"), what=job(4), adjacency=adjacency, rounds=5)
    found = report_privacy(began, attackers="all")
    nodes = [f"node:{node}" for node in range(4)]
    published = [f"{node} and the average of the final models" for node in nodes]
    assert [str(view.view) for view in found.accounts] == ["everyone", *nodes, *published]
    for view in found.accounts[1:5]:
        if not found.accounts[0].headline.proves_nothing:
            assert view.mu <= found.accounts[0].mu * (1 + 1e-9)
    for heard, seen in zip(found.accounts[1:5], found.accounts[5:], strict=True):
        if not (heard.headline.proves_nothing or seen.headline.proves_nothing):
            assert heard.mu <= seen.mu * (1 + 1e-9)


@pytest.mark.parametrize(
    ("attackers", "nodes", "said"),
    [
        ("none", 0, "none"),
        (0, 0, "none"),
        ([], 0, "none"),
        ("all", 5, "all 5 nodes"),
        ("auto", 5, "all 5 nodes"),
        (5, 5, "all 5 nodes"),
        (2, 2, "a sample of 2 of 5 nodes, drawn with the run's seed"),
        ([3, 1, 3], 2, "nodes 1, 3"),
    ],
)
def test_attackers(attackers, nodes, said):
    found = report_privacy(begun(algorithm("dp-d-sgd", sigma=2.0), RING), attackers=attackers)
    assert (len(found.accounts) - 1, found.attackers) == (2 * nodes, said)
    if attackers == [3, 1, 3]:
        assert [str(view.view) for view in found.accounts[1:3]] == ["node:1", "node:3"]


def test_attackers_that_are_not_there_are_refused():
    for wanted, message in (("some", "known: auto, all"), (6, "there are 5 nodes"), (-1, "5 nodes"), ([5], "node 5")):
        with pytest.raises(InputError, match=message):
            report_privacy(begun(algorithm("dp-d-sgd", sigma=2.0), RING), attackers=wanted)


def test_large_runs_are_sampled_unasked(monkeypatch):
    began = begun(algorithm("dp-d-sgd", sigma=2.0), RING, rounds=10)
    for limit, said in ((150, "a sample of 3 of 5 nodes"), (10, "a sample of 1 of 5"), (4, "none")):
        monkeypatch.setattr("sottovoce.run.privacy_report.NODE_ROUNDS", limit)
        monkeypatch.setattr("sottovoce.run.privacy_report.MOST_ATTACKED", 10 * limit)
        assert report_privacy(began).attackers.startswith(said)


def test_attackers_unasked_are_as_many_as_sizes_allow(monkeypatch):
    """What is left out is said."""
    accountant = RunAccountant(begun(algorithm("dp-d-sgd", sigma=2.0), RING, rounds=10))
    each = choice._work_of_each(accountant)
    for allowed, count, said in ((5.5, 5, "all 5 nodes"), (2.5, 2, "a sample of 2 of 5 nodes"), (0.5, 0, "none")):
        monkeypatch.setattr(choice, "WORK", allowed * each)
        chosen = choice.choose_attackers(accountant, "auto")
        assert (len(chosen.nodes), chosen.description.startswith(said)) == (count, True)
        assert chosen.description.endswith("covers those left out as well") == (count < 5)
    assert choice.choose_attackers(accountant, 2).description.endswith("drawn with the run's seed")


def test_one_node_alone_has_nobody_to_fear_but_everyone():
    began = begun(algorithm("dp-d-sgd", sigma=2.0), metropolis("path:1"), what=job(1))
    found = report_privacy(began)
    assert found.attackers == "none"
    assert found.epsilon < math.inf or found.headline.proves_nothing


def test_threads_stay_as_they_were():
    before = torch.get_num_threads()
    report_privacy(begun(algorithm("dp-d-sgd", sigma=2.0), RING))
    assert torch.get_num_threads() == before


def test_data_that_ships_is_promised_what_its_shards_allow():
    digits = load("digits")
    what = task(digits, partition(digits, 5), models.model("softmax", digits))
    began = begun(algorithm("dp-d-sgd", sigma=2.0), RING, "cycle:4x3", what=what, rounds=12)
    assert began.algorithm.sensitivity == pytest.approx([2 / (len(shard) / 3) for shard in what.shards.indices])
    assert report_privacy(began, attackers="none").headline.mu == pytest.approx(1.0)


def test_each_figure_of_a_run_is_accounted_for_once(monkeypatch):
    """Calibration takes an account at sigma 1, which scales to the sigma that is reported."""
    from sottovoce.privacy import calibration
    from sottovoce.run import run_accountant

    accounted = []

    def account_counted(system, view, **settings):
        accounted.append((system.algorithm.noise.sigma, system.rounds, str(view)))
        return account(system, view, **settings)

    monkeypatch.setattr(calibration, "account", account_counted)
    monkeypatch.setattr(run_accountant, "account", account_counted)
    began = begun(algorithm("dp-d-sgd", sigma=7.0), RING, "cycle:5x2", rounds=10)
    met = calibrate_run(began, epsilon=2.0, delta=DELTA)
    document = report_privacy(met, delta=DELTA, attackers="all").document()
    assert len(accounted) == len(set(accounted))
    printed = len(document["views"]) + len(document["over_rounds"]) - 1
    assert [view for sigma, _, view in accounted if sigma == 1.0] == ["everyone"]
    assert sum(sigma == document["sigma"] for sigma, _, _ in accounted) == printed - 1
    assert len(accounted) == printed


def test_a_run_tells_what_it_does_before_the_first_round(tmp_path):
    settings = {
        "name": "told", "data": {"name": "digits", "rows": 60},
        "training": {"rounds": 3, "clip": "per-example", "bound": 1.0},
        "topology": {"graph": "ring:4"}, "algorithm": {"name": "dp-d-sgd"},
        "privacy": {"epsilon": 4.0, "adjacency": "record", "attackers": "all"},
    }  # fmt: skip
    heard = []
    with progress_heard(lambda *reached: heard.append(reached)):
        run_experiment(parse_experiment(settings, "here"), tmp_path / "told")
    assert list(dict.fromkeys(what for what, _, _ in heard if what != "metropolis weights")) == [
        "reading data", "finding the noise for epsilon 4", "traced rounds", "any-training", "fixed-streams",
        "fingerprint of data and settings", "privacy guarantees", "accounts of adversaries",
        "epsilon over rounds", "the first round",
    ]  # fmt: skip
    accounts = [(done, total) for what, done, total in heard if what == "accounts of adversaries"]
    assert accounts == [(done, 8) for done in range(9)]  # four nodes, with and without the average of final models


@pytest.mark.parametrize("privacy", [{}, {"attackers": "all"}, {"and_final_models": "average"}])
def test_a_node_by_itself_is_accounted_for_as_private_training_on_one_machine(privacy, tmp_path):
    """It sends nothing: what is handed on is its model, and that of T full rounds is T Gaussian mechanisms."""
    experiment = parse_experiment({
        "name": "one", "topology": {"graph": "complete:1"}, "data": {"name": "digits", "rows": 50},
        "training": {"rounds": 9, "batch": "full", "clip": "per-example", "bound": 1.0},
        "algorithm": {"name": "dp-d-sgd", "sigma": 2.0}, "metrics": {"every": 4, "test_rows": 20}, "privacy": privacy,
    })  # fmt: skip
    result = run_experiment(experiment, tmp_path / "one")
    write_page_of(tmp_path / "one", again=False)
    headline = result["headline"]
    assert headline["mu"] == pytest.approx(math.sqrt(9) / 2.0, rel=1e-6)
    assert (headline["view"], headline["final_models"]) == ("everyone and all final models", "all")
    assert (tmp_path / "one" / "report.html").exists()
    wanted = experiment.document()
    del wanted["algorithm"]["sigma"]
    wanted["privacy"]["epsilon"] = headline["epsilon"]
    calibrated = parse_experiment(wanted)
    assert build_run(calibrated).algorithm.noise.sigma == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("name", ["dp-d-sgd", "secure-gossip", "secure-average", "decor", "mafalda"])
def test_the_figures_that_a_run_holds_are_those_that_are_read_back(name):
    """Pages are made from either."""
    experiment = parse_experiment({
        "name": "held", "topology": {"graph": "complete:5"}, "data": {"name": "digits", "rows": 40},
        "algorithm": {"name": name} | ({"sigma_pair": 4.0} if name == "decor" else {}),
        "training": {"rounds": 4, "batch": "full", "clip": "per-example", "bound": 1.0},
        "privacy": {"attackers": "all", "epsilon": 8.0},
    })  # fmt: skip
    report = report_privacy(build_run(experiment), attackers="all")
    read = PrivacyDocument.read(json.loads(json.dumps(report.document())))
    assert len(read.views) > 5
    assert report.views == read.views
