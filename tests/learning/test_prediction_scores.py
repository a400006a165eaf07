"""Figures on held-out rows, against scikit-learn and against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import rankdata
from sklearn import metrics

from sottovoce.learning.prediction_scores import mean_ranks, probabilities, score_predictions


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
    if classes == 2:
        assert found["brier"] == pytest.approx(metrics.brier_score_loss(targets, likely[:, 1]))


def test_calibration_error_of_forecasts_that_are_right_and_of_some_that_are_not():
    logit = np.log(0.85 / 0.15)
    outputs, targets = np.full((100, 1), logit), np.arange(100) < 85
    assert score_predictions("logistic", outputs, targets, "ab")["calibration_error"] == pytest.approx(0, abs=1e-12)
    assert score_predictions("logistic", outputs, ~targets, "ab")["calibration_error"] == pytest.approx(0.7)


def test_values():
    found = score_predictions("squared", np.array([[1.0], [2.0], [5.0]]), np.array([1, 4, 4]), ())
    assert found == {"rows": 3, "mae": 1.0, "rmse": pytest.approx(np.sqrt(5 / 3))}


def test_a_class_without_rows_has_no_figures():
    found = score_predictions("logistic", np.array([[1.0], [-1.0]]), np.array([0, 0]), ("no", "yes"))
    assert found["auc"] is None
    assert [(one["sensitivity"], one["specificity"]) for one in found["by_class"]] == [(0.5, None), (None, 0.5)]


@pytest.mark.parametrize("values", [[0.5, 2.0, 0.5, -1.0, 0.5], [], [1.0, np.nan, 0.0], [-0.0, 0.0, np.inf, -np.inf]])
def test_ranks_are_those_of_scipy(values):
    np.testing.assert_array_equal(mean_ranks(np.array(values)), rankdata(values))
