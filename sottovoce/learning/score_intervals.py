"""95 % confidence intervals of shares, means and their differences; of too few rows there is none.

>>> [round(end, 3) for end in share_interval(9, 12)], share_interval(2, 2)
([0.468, 0.911], None)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

FEW = 5
"""From fewer rows of a class nothing is said about how sure a figure is."""

TAIL = 0.975
"""Intervals leave out as much as this leaves, on each side."""

NORMAL = float(ndtri(TAIL))

Reals = NDArray[np.float64]

Interval = list[float] | None
"""Its two ends; None: too few rows to say."""


def share_interval(count: float, of: float) -> Interval:
    """Wilson's, of a share; as scipy's, which takes a thousand times as long, and hundreds are asked for."""
    if of < FEW:
        return None
    share, middle = count / of, (count + NORMAL**2 / 2) / (of + NORMAL**2)
    reach = NORMAL / (of + NORMAL**2) * math.sqrt(of * share * (1 - share) + NORMAL**2 / 4)
    return [max(0.0, middle - reach) if count else 0.0, min(1.0, middle + reach) if count < of else 1.0]


def mean_interval(values: Reals, least: float = -math.inf) -> Interval:
    """Student's, of a mean that is never below `least`."""
    n = len(values)
    if n < FEW:
        return None
    mean, wide = float(values.mean()), float(stdtrit(n - 1, TAIL) * values.std(ddof=1)) / math.sqrt(n)
    return [max(least, mean - wide), mean + wide]


def difference_interval(
    one: float, of_one: Interval, other: float, of_other: Interval, *, weight: float = 1.0, correlation: float = 0.0
) -> Interval:
    """Of `one - weight other`, after Newcombe (1998). Without a correlation it is wide for figures of the same rows."""
    if of_one is None or of_other is None:
        return None
    (low, high), (least, most) = of_one, of_other

    def reach(below: float, above: float) -> float:
        return math.sqrt(below**2 + (weight * above) ** 2 - 2 * correlation * below * weight * above)

    between = one - weight * other
    return [between - reach(one - low, most - other), between + reach(high - one, other - least)]
