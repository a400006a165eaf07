"""Two classes: what each threshold on the probability of the second would do, and whether that is of any use.

    >>> likely, ill = np.array([0.9, 0.6, 0.4, 0.1, 0.1]), np.array([True, True, False, False, False])
    >>> at_half = next(one for one in decisions(likely, ill, 0.5)["decisions"] if one["threshold"] == 0.5)
    >>> at_half["alerts_per_100"], at_half["ppv"], at_half["net_benefit"], at_half["treat_all"]
    (40.0, 1.0, 0.4, -0.2)

Thresholds are public: none is chosen by the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.learning.score_intervals import FEW, Interval, Reals, difference_interval, share_interval
from sottovoce.support.text import JSON

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Those that are always told of, beside the run's own."""

BINS = 10
"""Into so many bins rows are sorted by what was predicted for them, at most."""


def decided(likely_BC: Reals, threshold: float) -> NDArray[np.intp]:
    """The class that each row is taken for: the likeliest, or of two the second above a threshold."""
    if likely_BC.shape[1] == 2:
        return (likely_BC[:, 1] > threshold).astype(np.intp)
    return likely_BC.argmax(axis=1)


def decisions(likely: Reals, truth: NDArray[np.bool_], threshold: float) -> dict[str, JSON]:
    """What each threshold would do on some rows, and how often what has a probability is true."""
    found = [_Decision(each, likely > each, truth).document() for each in sorted({*THRESHOLDS, threshold})]
    bins = calibration_bins(likely, truth, lambda own: share_interval(int(own.sum()), len(own)))
    return {"threshold": threshold, "decisions": found, "calibration": bins}


def calibration_bins(predicted: Reals, found: NDArray[Any], interval: Callable[[NDArray[Any]], Interval]) -> list[JSON]:
    """Rows in bins of about as many each, by what was predicted for them: the means of that and of what was found."""
    bins = min(BINS, len(predicted) // FEW) or 1
    edges = np.quantile(predicted, np.linspace(0, 1, bins + 1))
    at = np.searchsorted(edges[1:-1], predicted)
    parts = (np.flatnonzero(at == one) for one in np.unique(at))
    return [
        {"predicted": float(predicted[own].mean()), "found": float(found[own].mean()), "rows": len(own),
         "interval": interval(found[own])}
        for own in parts
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Decision:
    """Who is alerted at a threshold, and who should be.

    After Vickers and Elkin (2006), whoever acts above a threshold t holds a missed case to be as bad as (1 - t) / t
    false alerts. The net benefit is the share of rows that are rightly alerted, less t / (1 - t) times that of false
    alerts. Alerting nobody has none. Whoever alerts everybody alerts those that are rightly and wrongly spared, too.
    """

    threshold: float
    alerted: NDArray[np.bool_]
    truth: NDArray[np.bool_]

    def document(self) -> dict[str, JSON]:
        """All figures, with intervals."""
        rows, right, wrong, missed, spared = len(self.truth), *self._counts()
        ill, well, odds = right + missed, wrong + spared, self.threshold / (1 - self.threshold)
        shares = {
            "sensitivity": (right, ill), "specificity": (spared, well), "ppv": (right, right + wrong),
            "npv": (spared, spared + missed),
        }  # fmt: skip
        enough = min(ill, well) >= FEW
        return {
            "threshold": self.threshold, "alerts_per_100": 100 * (right + wrong) / rows,
            **{name: count / of if of else None for name, (count, of) in shares.items()},
            "net_benefit": (right - odds * wrong) / rows, "treat_all": (ill - odds * well) / rows,
            "intervals": {
                "alerts_per_100": _scaled(100, share_interval(right + wrong, rows)),
                **{name: share_interval(*counted) for name, counted in shares.items()},
                "net_benefit": _gain(right, wrong, odds, rows) if enough else None,
                "more_than_all": _scaled(odds, _gain(spared, missed, 1 / odds, rows)) if enough else None,
            },
        }  # fmt: skip

    def _counts(self) -> tuple[int, ...]:
        pairs = ((self.alerted, self.truth), (self.alerted, ~self.truth), (~self.alerted, self.truth))
        found = [int((one & other).sum()) for one, other in pairs]
        return (*found, len(self.truth) - sum(found))


def _scaled(factor: float, interval: Interval) -> Interval:
    return None if interval is None else [factor * end for end in interval]


def _gain(good: int, bad: int, weight: float, rows: int) -> Interval:
    """Of the share of rows that went well, less that of others that went badly by a weight."""
    one, other = good / rows, bad / rows
    spread = one * (1 - one) * other * (1 - other)
    correlation = -one * other / math.sqrt(spread) if spread else 0.0
    found = share_interval(good, rows), share_interval(bad, rows)
    return difference_interval(one, found[0], other, found[1], weight=weight, correlation=correlation)
