"""Which figures cover rounding, and what runs say about it and about what no figure covers."""

from __future__ import annotations

import pytest

from sottovoce import account, algorithm, calibrate, metropolis, trace
from sottovoce.core.grid import with_exact_noise
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.not_covered import NotCovered
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
    return {assumption.kind for assumption in guarantee.assumptions} & {COVERED, OPEN}


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
