"""Figures for reading."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.core.noise import PerNode


def round_up(value: float, digits: int = 4) -> str:
    """A privacy figure for reading, rounded up.

    >>> round_up(0.707106), round_up(2.00001), round_up(0.0)
    ('0.7072', '2.001', '0')
    """
    return _rounded(value, digits, ROUND_CEILING)


def round_down(value: float, digits: int = 4) -> str:
    """What is left, or allowed, for reading, rounded down.

    >>> round_down(0.707106), round_down(1.9999999)
    ('0.7071', '1.999')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, towards: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value)
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(last, rounding=towards)):.{digits}g}"


def sigma_text(sigma: PerNode, digits: int = 6) -> str:
    """One sigma, or the range of those of nodes."""
    if isinstance(sigma, tuple):
        return f"from {round_up(min(sigma), digits)} to {round_up(max(sigma), digits)}"
    return round_up(sigma, digits)
