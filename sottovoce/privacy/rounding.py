"""Figures for reading."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.core.noise import PerNode


def round_up(value: float, digits: int = 4) -> str:
    """A privacy figure for reading, rounded up.

    >>> round_up(0.707106), round_up(2.00001), round_up(0.0)
    ('0.7072', '2.001', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value)
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(last, rounding=ROUND_CEILING)):.{digits}g}"


def sigma_text(sigma: PerNode, digits: int = 6) -> str:
    """One sigma, or the range of those of nodes."""
    if isinstance(sigma, tuple):
        return f"from {round_up(min(sigma), digits)} to {round_up(max(sigma), digits)}"
    return round_up(sigma, digits)
