"""How well a model predicts rows that it was not trained on, with 95 % confidence intervals and counts.

    >>> outputs, targets = np.array([[-2.0], [1.0], [3.0], [-1.0]]), np.array([0, 0, 1, 1])
    >>> found = score_predictions("logistic", outputs, targets, ("well", "ill"))
    >>> found["auc"], found["confusion"], found["by_class"][1]["sensitivity"], found["intervals"]["auc"]
    (0.75, [[1, 1], [1, 1]], 0.5, None)

Intervals say what other rows, drawn alike, would give. From fewer than `FEW` rows of a class, or of all, there is none.

Shapes: B rows, K outputs of the model, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri, owens_t, softmax

from sottovoce.learning.decisions import calibration_bins, decided, decisions
from sottovoce.learning.score_intervals import FEW, NORMAL, Interval, Reals, mean_interval, share_interval
from sottovoce.support.text import JSON

BINS = 10
"""Into so many bins of equal width confidences are sorted for the calibration error."""

TRUST = 20
"""With so many rows of the rarer class, what the rows tell of the variance of an AUC counts as much as the model."""


def probabilities(loss: str, outputs_BK: Reals) -> Reals:
    """What a classifier thinks of every class, B x C."""
    if loss == "logistic":
        second = expit(outputs_BK[:, 0])
        return np.stack([1 - second, second], axis=1)
    return softmax(outputs_BK, axis=1)


def score_predictions(
    loss: str, outputs_BK: Reals, targets_B: NDArray[np.generic], classes: Sequence[str], *, threshold: float = 0.5
) -> dict[str, JSON]:
    """All figures of a model on rows with known targets: of classes, or of values (`rmse`, `mae`, `r2`).

    `constant` is the class that it takes every row for, if it does. `auc` is the area under the ROC curve of one class
    against the others, in the mean over classes that have rows on both sides; `sensitivity` of a class is the share of
    its rows that are recognised, `specificity` the share of other rows that are not taken for it; `balanced_accuracy`
    the mean sensitivity; `brier` the mean squared distance of the probabilities from the true class, over one class
    where there are two; `calibration_error` the mean gap between confidence and accuracy over ten bins of confidence,
    and `overconfidence` their mean difference. `confusion[i][j]` counts rows of class i that are taken for class j.
    None: there are no such rows. Of two classes, the second is decided for above `threshold`; `decisions` says what
    other thresholds would do. Of two classes and of values, `calibration` is what was found for what was predicted.
    """
    rows = len(targets_B)
    if loss == "squared":
        values = targets_B.astype(np.float64)
        bins = calibration_bins(outputs_BK[:, 0], values, mean_interval)
        return {"rows": rows, **_of_values(outputs_BK[:, 0], values), "calibration": bins}
    truth, likely_BC = targets_B.astype(np.intp), probabilities(loss, outputs_BK)
    chosen = decided(likely_BC, threshold)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (truth, chosen), 1)
    areas = [_area(likely_BC[truth == at, at], likely_BC[truth != at, at]) for at in range(len(classes))]
    balanced, balanced_interval = _balanced(confusion)
    area, area_interval = _mean_area([one for one in areas if one is not None])
    distances, surplus = _brier(likely_BC, truth), likely_BC.max(axis=1) - (likely_BC.argmax(axis=1) == truth)
    right = int(np.trace(confusion))
    return {
        "rows": rows, "constant": classes[chosen[0]] if rows >= FEW and (chosen == chosen[0]).all() else None,
        "accuracy": right / rows, "balanced_accuracy": balanced, "auc": area, "brier": float(distances.mean()),
        "calibration_error": _calibration_error(likely_BC, truth), "overconfidence": float(surplus.mean()),
        "intervals": {
            "accuracy": share_interval(right, rows), "balanced_accuracy": balanced_interval, "auc": area_interval,
            "brier": mean_interval(distances, 0.0), "overconfidence": mean_interval(surplus),
        },
        "confusion": confusion.tolist(),
        "by_class": [_of_class(name, at, confusion, areas[at]) for at, name in enumerate(classes)],
        **(decisions(likely_BC[:, 1], truth == 1, threshold) if len(classes) == 2 else {}),
    }  # fmt: skip


class Leading(NamedTuple):
    """The figure by which models are compared, with its interval."""

    figure: str
    value: float | None
    interval: Interval


def leading_figure(scores: Mapping[str, Any] | None) -> Leading | None:
    """AUC of two classes, balanced accuracy of more, RMSE of values, concordance of times; None if not measured.

    Not accuracy: where one class is rare, who always names the other has much of that.
    """
    if scores is None:
        return None
    figure = next((name for name in ("rmse", "concordance") if name in scores), None)
    if figure is None:
        figure = "auc" if len(scores["by_class"]) == 2 else "balanced_accuracy"
    return Leading(figure, scores[figure], scores.get("intervals", {}).get(figure)) if figure in scores else None


# --- intervals -------------------------------------------------------------------------------------------------------


def auc_interval(above: Reals, below: Reals) -> Interval:
    """Areas whose distance from the one that was found is within what chance explains, as Wilson's interval of a share.

    How the variance depends on the true area is that of two normal distributions of equal width. Its size is in between
    that and DeLong's, which needs no distribution and is too small for few rows; the more rows, the nearer to DeLong's.
    """
    m, n = len(above), len(below)
    fewer = min(m, n)
    if fewer < FEW:
        return None
    found, half = roc_auc(above, below), 0.5 / (m * n)
    weight = fewer / (fewer + TRUST)
    ratio = roc_auc_variance(above, below) / _normal_variance(min(max(found, half), 1 - half), m, n)
    reach = NORMAL * math.sqrt(1 - weight + weight * ratio)

    def end(outermost: float) -> float:
        inside, outside = found, outermost
        for _ in range(60):
            middle = (inside + outside) / 2
            near = abs(middle - found) <= reach * math.sqrt(_normal_variance(middle, m, n))
            inside, outside = (middle, outside) if near else (inside, middle)
        return outside

    return [end(0.0), end(1.0)]


def _normal_variance(area: float, m: int, n: int) -> float:
    """The variance of an AUC of m and n scores from normal distributions of equal width."""
    at = ndtri(area)
    both = ndtr(at) - 2 * owens_t(at, 1 / math.sqrt(3))  # that one score is above two of the other kind
    return max(0.0, float(area * (1 - area) + (m + n - 2) * (both - area**2)) / (m * n))


# --- figures ---------------------------------------------------------------------------------------------------------


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


def roc_auc_variance(above: Reals, below: Reals) -> float:
    """DeLong, DeLong and Clarke-Pearson (1988): the variance of the AUC over draws of rows."""
    m, n = len(above), len(below)
    ranks = mean_ranks(np.concatenate([above, below]))
    first = (ranks[:m] - mean_ranks(above)) / n
    second = 1 - (ranks[m:] - mean_ranks(below)) / m
    return float(first.var(ddof=1) / m + second.var(ddof=1) / n)


def _of_values(found: Reals, truth: Reals) -> dict[str, JSON]:
    """Errors, and how much less their squares are than those of always saying the mean."""
    squares, spread = (found - truth) ** 2, (truth - truth.mean()) ** 2
    rmse, mae = float(np.sqrt(squares.mean())), np.abs(found - truth)
    explained = float(1 - squares.mean() / spread.mean()) if spread.any() else None
    of_squares, of_r2 = mean_interval(squares), None
    if explained is not None and (reach := mean_interval(squares - (1 - explained) * spread)) is not None:
        of_r2 = [explained - end / float(spread.mean()) for end in reversed(reach)]
    return {
        "rmse": rmse, "mae": float(mae.mean()), "r2": explained,
        "intervals": {
            "rmse": None if of_squares is None or not rmse else [_of_root(rmse, end) for end in of_squares],
            "mae": mean_interval(mae, 0.0), "r2": of_r2,
        },
    }  # fmt: skip


Share = tuple[float, Interval]
"""A mean of shares, or a share of pairs, and its interval."""


def _area(above: Reals, below: Reals) -> Share | None:
    return (roc_auc(above, below), auc_interval(above, below)) if len(above) and len(below) else None


def _of_root(root: float, end: float) -> float:
    """An end of its interval, from that of the mean square: in logarithms, for squares are skewed."""
    return root * math.exp((end / root**2 - 1) / 2)


def _of_class(name: str, at: int, confusion: NDArray[np.int64], area: Share | None) -> dict[str, JSON]:
    inside, total, right = int(confusion[at].sum()), int(confusion.sum()), int(confusion[at, at])
    outside, spared = total - inside, total - inside - int(confusion[:, at].sum()) + right
    auc, interval = area or (None, None)
    return {
        "class": name, "rows": inside, "sensitivity": right / inside if inside else None,
        "specificity": spared / outside if outside else None, "auc": auc,
        "intervals": {
            "sensitivity": share_interval(right, inside), "specificity": share_interval(spared, outside),
            "auc": interval,
        },
    }  # fmt: skip


def _balanced(confusion: NDArray[np.int64]) -> Share:
    """The mean sensitivity of classes that have rows. Its interval sums up theirs, as Newcombe's of a difference."""
    there = [(int(counts[at]), int(counts.sum())) for at, counts in enumerate(confusion) if counts.any()]
    shares, found = [right / rows for right, rows in there], [share_interval(*one) for one in there]
    mean, ends = float(np.mean(shares)), [one for one in found if one is not None]
    if len(ends) < len(there):
        return mean, None
    reach = [[one - low, high - one] for one, (low, high) in zip(shares, ends, strict=True)]
    down, up = np.sqrt(np.square(reach).sum(axis=0)) / len(there)
    return mean, [mean - float(down), mean + float(up)]


def _mean_area(areas: Sequence[Share]) -> tuple[float | None, Interval]:
    """Over classes. The interval is the mean of theirs: as if their errors all went the same way."""
    if not areas:
        return None, None
    ends = [interval for _, interval in areas if interval is not None]
    mean = float(np.mean([area for area, _ in areas]))
    return mean, np.mean(ends, axis=0).tolist() if len(ends) == len(areas) else None


def _brier(likely_BC: Reals, truth: NDArray[np.intp]) -> Reals:
    distances: Reals = (likely_BC - np.eye(likely_BC.shape[1])[truth]) ** 2
    return distances[:, 1] if likely_BC.shape[1] == 2 else distances.sum(axis=1)


def _calibration_error(likely_BC: Reals, truth: NDArray[np.intp]) -> float:
    confidence, right = likely_BC.max(axis=1), likely_BC.argmax(axis=1) == truth
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(truth))
