"""Figures as reports show them: privacy figures rounded up, what is not finite as JSON can say it."""

from __future__ import annotations

import math

from sottovoce.privacy.rounding import round_up


def rounded(epsilon: float) -> float | str:
    """A privacy figure rounded up to four digits; the word inf where it is infinite.

    >>> rounded(0.70710678), rounded(math.inf)
    (0.7072, 'inf')
    """
    return "inf" if math.isinf(epsilon) else float(round_up(epsilon))


def percent(share: float) -> float:
    """A share in percent, rounded up to one decimal.

    >>> percent(0.5), percent(0.50001)
    (50.0, 50.1)
    """
    return math.ceil(share * 1000) / 10


def finite(value: float) -> float | None:
    """A measured figure; None where a run diverged."""
    return value if math.isfinite(value) else None


def deviation_text(mean: float | None, deviation: float | None) -> str:
    """A mean over seeds with its deviation, for tables.

    >>> deviation_text(0.25, 0.01), deviation_text(0.25, None), deviation_text(None, None)
    ('0.2500 ± 0.0100', '0.2500', 'diverged')
    """
    if mean is None:
        return "diverged"
    return f"{mean:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
