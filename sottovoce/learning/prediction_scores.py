"""How well a model predicts rows that it was not trained on: the figures that people ask for, beside its loss.

    >>> outputs, targets = np.array([[-2.0], [1.0], [3.0], [-1.0]]), np.array([0, 0, 1, 1])
    >>> found = score_predictions("logistic", outputs, targets, ("well", "ill"))
    >>> found["auc"], found["confusion"], found["by_class"][1]["sensitivity"]
    (0.75, [[1, 1], [1, 1]], 0.5)

Shapes: B rows, K outputs of the model, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from sottovoce.support.text import JSON

BINS = 10
"""Into so many bins of equal width confidences are sorted for the calibration error."""

Reals = NDArray[np.float64]


def probabilities(loss: str, outputs_BK: Reals) -> Reals:
    """What a classifier thinks of every class, B x C."""
    if loss == "logistic":
        second = expit(outputs_BK[:, 0])
        return np.stack([1 - second, second], axis=1)
    return softmax(outputs_BK, axis=1)


def score_predictions(
    loss: str, outputs_BK: Reals, targets_B: NDArray[np.generic], classes: Sequence[str], *, unit: float = 1.0
) -> dict[str, JSON]:
    """All figures of a model on rows with known targets: of classes, or (`rmse`, `mae`) of values, times their unit.

    `auc` is the area under the ROC curve of one class against the others, in the mean over classes that have rows on
    both sides; `sensitivity` of a class is the share of its rows that are recognised, `specificity` the share of other
    rows that are not taken for it; `brier` the mean squared distance of the probabilities from the true class, over
    one class where there are two; `calibration_error` the mean gap between confidence and accuracy over ten bins of
    confidence. `confusion[i][j]` counts rows of class i that are taken for class j. None: there are no such rows.
    """
    rows: dict[str, JSON] = {"rows": len(targets_B)}
    if loss == "squared":
        errors = unit * (outputs_BK[:, 0] - targets_B.astype(np.float64))
        return {**rows, "rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    truth, likely_BC = targets_B.astype(np.intp), probabilities(loss, outputs_BK)
    chosen = likely_BC.argmax(axis=1)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (truth, chosen), 1)
    by_class = [_of_class(name, at, confusion, likely_BC[:, at], truth) for at, name in enumerate(classes)]
    areas = [found for one in by_class if isinstance(found := one["auc"], float)]
    return {
        **rows, "accuracy": float(np.mean(chosen == truth)), "auc": float(np.mean(areas)) if areas else None,
        "brier": _brier(likely_BC, truth), "calibration_error": _calibration_error(likely_BC, truth),
        "confusion": confusion.tolist(), "by_class": by_class,
    }  # fmt: skip


def roc_auc(above: Reals, below: Reals) -> float:
    """The probability that a score of the first kind is above one of the second; ties count half."""
    m, n = len(above), len(below)
    ranks = mean_ranks(np.concatenate([above, below]))[:m]
    return float((ranks.sum() - m * (m + 1) / 2) / (m * n))


def mean_ranks(values: Reals) -> Reals:
    """The rank of every value, from 1 on; values that are equal share the mean of theirs. NaN has none, nor its peers.

    As `scipy.stats.rankdata`, whose import takes half a second.

    >>> mean_ranks(np.array([0.5, 2.0, 0.5])).tolist()
    [1.5, 3.0, 1.5]
    """
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def _of_class(
    name: str, at: int, confusion: NDArray[np.int64], likely_B: Reals, truth: NDArray[np.intp]
) -> dict[str, JSON]:
    inside, total = int(confusion[at].sum()), int(confusion.sum())
    outside, mistaken = total - inside, int(confusion[:, at].sum() - confusion[at, at])
    return {
        "class": name, "rows": inside, "sensitivity": int(confusion[at, at]) / inside if inside else None,
        "specificity": 1 - mistaken / outside if outside else None,
        "auc": roc_auc(likely_B[truth == at], likely_B[truth != at]) if inside and outside else None,
    }  # fmt: skip


def _brier(likely_BC: Reals, truth: NDArray[np.intp]) -> float:
    distances = (likely_BC - np.eye(likely_BC.shape[1])[truth]) ** 2
    return float(distances[:, 1].mean() if likely_BC.shape[1] == 2 else distances.sum(axis=1).mean())


def _calibration_error(likely_BC: Reals, truth: NDArray[np.intp]) -> float:
    confidence, right = likely_BC.max(axis=1), likely_BC.argmax(axis=1) == truth
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(truth))
