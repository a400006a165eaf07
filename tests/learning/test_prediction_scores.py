"""Figures on held-out rows, against scikit-learn and against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import binomtest, norm, rankdata
from sklearn import metrics
from sklearn.calibration import calibration_curve

from sottovoce.learning.decisions import THRESHOLDS, calibration_bins, decisions
from sottovoce.learning.prediction_scores import auc_interval, mean_ranks, probabilities, score_predictions
from sottovoce.learning.score_intervals import FEW, difference_interval, mean_interval, share_interval


def drawn(classes: int, rows: int = 400):
    rng = np.random.default_rng(classes)
    targets = rng.integers(classes, size=rows)
    outputs = rng.normal(size=(rows, 1 if classes == 2 else classes)).round(1)  # ties among them
    outputs[:, -1] += targets == classes - 1
    return outputs, targets, tuple(f"class {number}" for number in range(classes))


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_as_scikit_learn_has_it(classes):
    outputs, targets, names = drawn(classes)
    loss = "logistic" if classes == 2 else "cross-entropy"
    likely, found = probabilities(loss, outputs), score_predictions(loss, outputs, targets, names)
    if classes == 4:
        np.testing.assert_allclose(np.log(likely), log_softmax(outputs, axis=1))
    chosen = likely.argmax(axis=1)
    assert found["confusion"] == metrics.confusion_matrix(targets, chosen).tolist()
    assert found["accuracy"] == metrics.accuracy_score(targets, chosen)
    curves = likely[:, 1] if classes == 2 else likely
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(targets, curves, multi_class="ovr"))
    recalls = metrics.recall_score(targets, chosen, average=None)
    assert [one["sensitivity"] for one in found["by_class"]] == pytest.approx(recalls.tolist())
    others = [metrics.recall_score(targets != at, chosen != at) for at in range(classes)]
    assert [one["specificity"] for one in found["by_class"]] == pytest.approx(others)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(targets, chosen))
    if classes == 2:
        assert found["brier"] == pytest.approx(metrics.brier_score_loss(targets, likely[:, 1]))


def test_calibration_error_of_forecasts_that_are_right_and_of_some_that_are_not():
    logit = np.log(0.85 / 0.15)
    outputs, targets = np.full((100, 1), logit), np.arange(100) < 85
    assert score_predictions("logistic", outputs, targets, "ab")["calibration_error"] == pytest.approx(0, abs=1e-12)
    assert score_predictions("logistic", outputs, ~targets, "ab")["calibration_error"] == pytest.approx(0.7)


def test_values():
    found = score_predictions("squared", np.array([[1.0], [2.0], [5.0]]), np.array([1, 4, 4]), ())
    assert found["intervals"] == {"rmse": None, "mae": None, "r2": None}
    assert (found["rows"], found["mae"], found["rmse"]) == (3, 1.0, pytest.approx(np.sqrt(5 / 3)))
    rng = np.random.default_rng(0)
    inside, times = dict.fromkeys(("rmse", "mae", "r2"), 0), 1000
    for _ in range(times):
        truth = rng.normal(0, 2, 200)
        outputs = truth[:, None] / 2 + rng.normal(0, 1, (200, 1))
        found = score_predictions("squared", 3 * outputs, 3 * truth, ())
        assert found["r2"] == pytest.approx(metrics.r2_score(truth, outputs[:, 0]))
        true = {"rmse": 3 * np.sqrt(2), "mae": 3 * np.sqrt(2) * np.sqrt(2 / np.pi), "r2": 0.5}
        for name, value in true.items():
            low, high = found["intervals"][name]
            inside[name] += low <= value <= high
    assert all(0.93 <= count / times <= 0.97 for count in inside.values()), inside


def test_a_class_without_rows_has_no_figures():
    found = score_predictions("logistic", np.array([[1.0], [-1.0]]), np.array([0, 0]), ("no", "yes"))
    assert (found["auc"], found["intervals"]["auc"], found["intervals"]["accuracy"]) == (None, None, None)
    assert [(one["sensitivity"], one["specificity"]) for one in found["by_class"]] == [(0.5, None), (None, 0.5)]


@pytest.mark.parametrize("values", [[0.5, 2.0, 0.5, -1.0, 0.5], [], [1.0, np.nan, 0.0], [-0.0, 0.0, np.inf, -np.inf]])
def test_ranks_are_those_of_scipy(values):
    np.testing.assert_array_equal(mean_ranks(np.array(values)), rankdata(values))


@pytest.mark.slow
@pytest.mark.parametrize("area", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("rows", [12, 60, 1000])
def test_intervals_of_areas_cover_as_often_as_they_say(rows, share, area):
    rng = np.random.default_rng(7)
    distance, inside, told = np.sqrt(2) * norm.ppf(area), 0, 0
    for drawn in range(1, 40_001):
        positive = int(rng.binomial(rows, share))
        above, below = rng.normal(distance, 1, positive), rng.normal(0, 1, rows - positive)
        found = auc_interval(above, below)
        assert (found is None) == (min(positive, rows - positive) < FEW)
        if found is not None:
            told, inside = told + 1, inside + (found[0] <= area <= found[1])
        if told == 1000 or (drawn == 1000 and told < 10):  # 5 % of 12 rows: too few to say
            break
    assert told < 10 or 0.93 <= inside / told <= 0.97


@pytest.mark.parametrize("draw", ["wide", "exponential"])
def test_intervals_of_areas_hold_for_scores_that_are_no_normal_ones(draw):
    rng, area, inside, times = np.random.default_rng(3), 0.8, 0, 300
    for _ in range(times):
        if draw == "wide":
            above, below = rng.normal(np.sqrt(5) * norm.ppf(area), 2, 50), rng.normal(0, 1, 950)
        else:
            above, below = rng.exponential(area / (1 - area), 50), rng.exponential(1, 950)
        low, high = auc_interval(above, below)
        inside += low <= area <= high
    assert inside / times >= 0.9  # where normal scores are taken for granted: 0.86 and 0.89


def test_shares_and_differences():
    assert share_interval(2, 2) is None
    for count, of in [(0, 5), (5, 5), (1, 12), (9, 12), (37, 1000), (999, 1000)]:
        wilson = binomtest(count, of).proportion_ci(method="wilson")
        assert share_interval(count, of) == pytest.approx([wilson.low, wilson.high], rel=1e-12)
    assert share_interval(9, 12) == pytest.approx([0.4677, 0.9111], abs=1e-4)
    # Newcombe (1998), example of 56 of 70 against 48 of 80
    one, other = share_interval(56, 70), share_interval(48, 80)
    assert difference_interval(56 / 70, one, 48 / 80, other) == pytest.approx([0.0524, 0.3339], abs=1e-4)
    assert difference_interval(1.0, None, 0.5, other) is None


def test_who_always_says_the_same_is_named():
    outputs, targets = np.full((40, 1), -3.0), np.arange(40) < 4
    found = score_predictions("logistic", outputs, targets, ("no", "yes"))
    assert (found["constant"], found["balanced_accuracy"], found["auc"]) == ("no", 0.5, 0.5)
    assert found["intervals"]["auc"] is None, "four are positive"
    outputs[0] = 1.0
    assert score_predictions("logistic", outputs, targets, ("no", "yes"))["constant"] is None


def of_two(rows: int, share: float, rng):
    """Probabilities that are right, and who is ill."""
    ill = rng.random(rows) < share
    scores = rng.normal(size=rows) + 1.2 * ill
    return 1 / (1 + np.exp(-(np.log(share / (1 - share)) + 1.2 * scores - 0.72))), ill


def test_thresholds_as_scikit_learn_counts_and_net_benefit_as_it_is_defined():
    likely, ill = of_two(500, 0.2, np.random.default_rng(0))
    outputs = np.log(likely / (1 - likely))[:, None]
    found = score_predictions("logistic", outputs, ill.astype(int), ("well", "ill"), threshold=0.33)
    assert [one["threshold"] for one in found["decisions"]] == sorted((*THRESHOLDS, 0.33))
    for one in found["decisions"]:
        named = likely > one["threshold"]
        assert one["sensitivity"] == pytest.approx(metrics.recall_score(ill, named))
        assert one["specificity"] == pytest.approx(metrics.recall_score(~ill, ~named))
        assert one["ppv"] == (pytest.approx(metrics.precision_score(ill, named)) if named.any() else None)
        assert one["npv"] == (pytest.approx(metrics.precision_score(~ill, ~named)) if not named.all() else None)
        assert one["alerts_per_100"] == pytest.approx(100 * named.mean())
        each = np.where(named, np.where(ill, 1.0, -one["threshold"] / (1 - one["threshold"])), 0.0)
        assert one["net_benefit"] == pytest.approx(each.mean())
    assert found["confusion"] == metrics.confusion_matrix(ill, likely > 0.33).tolist(), "the run's own decides"
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(ill, likely > 0.33))
    at_half = score_predictions("logistic", outputs, ill.astype(int), ("well", "ill"))
    assert all(found[key] == at_half[key] for key in ("auc", "brier", "calibration_error", "overconfidence"))


@pytest.mark.parametrize(("rows", "share", "threshold"), [(60, 0.5, 0.3), (1000, 0.2, 0.1), (1000, 0.2, 0.5)])
def test_intervals_of_net_benefit_cover_as_often_as_they_say(rows, share, threshold):
    rng, inside, times = np.random.default_rng(4), np.zeros(2), 400
    likely, ill = of_two(1_000_000, share, rng)
    named, odds = likely > threshold, threshold / (1 - threshold)
    benefit = (named & ill).mean() - odds * (named & ~ill).mean()
    true = benefit, benefit - (share - odds * (1 - share))
    for _ in range(times):
        told = decisions(*of_two(rows, share, rng), threshold)["decisions"]
        found = next(one["intervals"] for one in told if one["threshold"] == threshold)
        ends = found["net_benefit"], found["more_than_all"]
        inside += [low <= value <= high for value, (low, high) in zip(true, ends, strict=True)]
    assert ((inside / times >= 0.92) & (inside / times <= 0.985)).all(), inside / times


def test_calibration_in_bins_of_scikit_learn():
    likely, ill = of_two(500, 0.3, np.random.default_rng(1))
    shares, means = calibration_curve(ill, likely, n_bins=10, strategy="quantile")
    found = decisions(likely, ill, 0.5)["calibration"]
    assert [one["found"] for one in found] == pytest.approx(shares.tolist())
    assert [one["predicted"] for one in found] == pytest.approx(means.tolist())
    assert all(low <= one["found"] <= high for one in found for low, high in [one["interval"]])
    (only,) = calibration_bins(np.full(40, 0.2), np.arange(40.0), mean_interval)
    assert (only["rows"], only["found"]) == (40, 19.5), "a constant has one bin"
    assert len(calibration_bins(np.arange(12.0), np.arange(12.0), mean_interval)) == 2, "five rows or more in each"


def test_four_ill_are_too_few_for_net_benefit():
    likely, ill = np.linspace(0.1, 0.9, 40), np.arange(40) >= 36
    for one in decisions(likely, ill, 0.5)["decisions"]:
        assert (one["intervals"]["net_benefit"], one["intervals"]["more_than_all"]) == (None, None)
