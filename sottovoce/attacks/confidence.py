"""Confidence limits of rates, by Clopper and Pearson: what attacks and audits report their counts with.

>>> import numpy as np
>>> [round(float(limit(np.array(3), 100, 0.025)), 3) for limit in (lower_limit, upper_limit)]
[0.006, 0.085]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv

from sottovoce.errors import InputError

Array = NDArray[np.float64]


def check_confidence(confidence: float) -> float:
    """The probability of error that a confidence level leaves; refuses levels outside (0, 1)."""
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise InputError(f"confidence {confidence!r}", "it must lie between 0 and 1", "give 0.95, for example")
    return 1 - confidence


def upper_limit(count: NDArray[np.intp], of: int, error: float) -> Array:
    """The rate is below this, except with a probability of `error`."""
    inside = count < of
    return np.where(inside, betainccinv(count + 1, np.where(inside, of - count, 1), error), 1.0)


def lower_limit(count: NDArray[np.intp], of: int, error: float) -> Array:
    """The rate is above this, except with a probability of `error`."""
    inside = count > 0
    return np.where(inside, betaincinv(np.where(inside, count, 1), of - count + 1, error), 0.0)
