"""The time to an event in periods: what tables become, and how well hazards predict it on rows nobody trained on.

    >>> periods_of(np.array([10.0, 45.0, 400.0, 400.0]), np.array([True, False, True, False]), (30.0, 90.0, 365.0))
    array([3, 2, 6, 6])

A row of a person holds all its periods, so a record is a person. Who leaves within a period counts to its beginning.

Shapes: B rows, P periods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sottovoce.learning.score_intervals import FEW, NORMAL, Interval, Reals, share_interval
from sottovoce.support.text import JSON


def periods_of(times: Reals, happened: NDArray[np.bool_], ends: Sequence[float]) -> NDArray[np.int64]:
    """Targets of the loss `hazards`: twice the number of periods, and one more where the last ended with the event."""
    begun, gone = np.searchsorted(ends, times, side="left"), np.searchsorted(ends, times, side="right")
    event = happened & (begun < len(ends))
    return np.where(event, 2 * begun + 3, 2 * gone).astype(np.int64)


def without_event(outputs_BP: Reals) -> Reals:
    """The probability of no event until the end of each period, B x P."""
    kept: Reals = np.cumprod(1 - expit(outputs_BP), axis=1)
    return kept


def score_times(outputs_BP: Reals, targets_B: Reals, ends: Sequence[float]) -> dict[str, JSON]:
    """Harrell's concordance: of two rows of which one had the event first, how often it was expected to come less far.

    `calibration` is, for each period, the mean probability of the event by its end, and its share after Kaplan and
    Meier. None: there is nothing to compare, or too few events to say.
    """
    kept = without_event(outputs_BP)
    through, event = targets_B // 2, targets_B % 2 == 1
    value, interval = concordance(-kept.sum(axis=1), through, event)
    return {
        "rows": len(targets_B), "events": int(event.sum()),
        "concordance": value, "intervals": {"concordance": interval},
        "calibration": _by_period(1 - kept, through, event, ends),
    }  # fmt: skip


def concordance(risk: Reals, through: Reals, event: NDArray[np.bool_]) -> tuple[float | None, Interval]:
    """The share of comparable pairs in which the higher risk ended first, ties of risk counting half.

    The interval is Wilson's, of as many independent pairs as would vary as much: by the jackknife over rows.
    """
    pairs, right = np.zeros((2, len(risk)))
    for one in np.flatnonzero(event):
        longer = (through > through[one]) | ((through == through[one]) & ~event)
        found = ((risk[one] > risk) + 0.5 * (risk[one] == risk)) * longer
        pairs += longer
        right += found
        pairs[one] += longer.sum()
        right[one] += found.sum()
    total, agreed = pairs.sum() / 2, right.sum() / 2
    if not total:
        return None, None
    value, n = float(agreed / total), len(risk)
    left = total - pairs
    if event.sum() < FEW or not left.all():
        return value, None
    without = (agreed - right) / left
    variance = float((n - 1) / n * np.square(without - without.mean()).sum())
    alike = value * (1 - value) / variance if variance else float(event.sum())
    return value, share_interval(value * alike, alike)


def _by_period(predicted_BP: Reals, through: Reals, event: NDArray[np.bool_], ends: Sequence[float]) -> list[JSON]:
    """Intervals are Greenwood's, for the logarithm of minus that of the share without event; as scipy's `ecdf`."""
    number = np.arange(1, len(ends) + 1)
    there = (through[:, None] >= number).sum(axis=0)
    met = ((through[:, None] == number) & event[:, None]).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.cumprod(1 - met / there)
        wide = NORMAL * np.sqrt(np.cumsum(met / (there * (there - met)))) / np.log(kept)
        low, high = 1 - kept ** np.exp(wide), 1 - kept ** np.exp(-wide)
    told = (event.sum() >= FEW) & (kept > 0) & (kept < 1)
    return [
        {"until": end, "predicted": float(predicted_BP[:, at].mean()), "found": float(1 - kept[at]), "rows": int(rows),
         "interval": [float(low[at]), float(high[at])] if told[at] else None}
        for at, (end, rows) in enumerate(zip(ends, there, strict=True)) if rows
    ]  # fmt: skip
