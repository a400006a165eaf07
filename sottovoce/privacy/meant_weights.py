"""Which fraction a stored weight stands for: a weight of 1/3 is stored as the nearest float."""

from __future__ import annotations

import math
from fractions import Fraction

SIMPLE, NEAR, SMALL = 10**6, 1e-15, 1e-6
"""A float next to a fraction with a denominator up to the first stands for it: by chance that is one float in 2,000.
The distance may be the second, which is what is left of one when other weights are taken off, or for floats below the
third four units in their last place."""


def meant(value: float) -> Fraction:
    """The simple fraction next to a float, or else the float itself."""
    exact = Fraction(value)
    simple = exact.limit_denominator(SIMPLE)
    return simple if abs(simple - exact) <= (NEAR if abs(value) >= SMALL else 4 * math.ulp(value)) else exact
