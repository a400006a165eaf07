"""The least size of noise that meets a target, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable

from sottovoce.errors import Unaccountable


def least_noise(
    meets: Callable[[float], bool],
    start: float,
    *,
    tolerance: float,
    smallest: float,
    largest: float = math.inf,
    name: str = "sigma",
    target: str = "the target",
) -> float:
    """The least noise that `meets` a target, up to the relative `tolerance`, on the safe side.

    More noise must not break a target that less of it meets. The search begins at `start`; below `smallest` it stops,
    and a target that nothing up to `largest` meets is refused.

    >>> least_noise(lambda sigma: sigma >= 3, 1.0, tolerance=1e-3, smallest=1e-9)
    3.0
    """
    high = start
    while not meets(high):
        high *= 2
        if high > largest:
            raise Unaccountable(f"no {name} up to {largest:g} meets {target}")
    low = high / 2
    while low > smallest and meets(low):
        low, high = low / 2, low
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
