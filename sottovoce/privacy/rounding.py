"""Figures for reading."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.core.noise import PerNode


TOLERANCE = 1e-9
"""A figure that exceeds a shorter one by less than this share of it is read as that one: what it exceeds it by is the
rounding of sums, and the next digit would be 1e-4 to 1e-3 of it."""


def round_up(value: float, digits: int = 4) -> str:
    """A privacy figure for reading, rounded up; never below it by more than `TOLERANCE` of it.

    >>> round_up(0.707106), round_up(2.00001), round_up(0.0)
    ('0.7072', '2.001', '0')
    >>> round_up(2.000000000000064), round_up(2.00000001)
    ('2', '2.001')
    """
    nearest = f"{value:.{digits}g}"
    return nearest if 0 <= value - float(nearest) <= TOLERANCE * value else _rounded(value, digits, ROUND_CEILING)


def round_noise_up(value: float, digits: int = 4) -> str:
    """A size of noise for reading, rounded up, however little it exceeds a shorter one: less noise misses a target.

    >>> round_noise_up(2.000000000000064)
    '2.001'
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
        return f"from {round_noise_up(min(sigma), digits)} to {round_noise_up(max(sigma), digits)}"
    return round_noise_up(sigma, digits)
