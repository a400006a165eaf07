"""The least size of noise that meets a target, by bisection, most steps of which need not be computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

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


SECANTS = 12
"""So many secants look for the least noise at most."""


class Answer(NamedTuple):
    """What one size of noise does: a figure that falls with noise, and whether the target is met."""

    figure: float
    meets: bool


class Search:
    """Which noise meets a target. What one meets, more of it meets too, so that few sizes are asked about.

    >>> asked = []
    >>> search = Search(lambda noise: asked.append(noise) or Answer(1 / noise**0.5, noise >= 9), limit=1 / 3)
    >>> search.approach(1.0, 2.0, close=1e-8)
    >>> sigma = least_noise(search.meets, 1.0, tolerance=1e-6, smallest=1e-9)
    >>> 9 <= sigma < 9.00001, len(asked) < 8
    (True, True)
    """

    def __init__(self, ask: Callable[[float], Answer], limit: float) -> None:
        self._ask, self._limit = ask, limit
        self._failing, self._meeting = 0.0, math.inf

    def meets(self, noise: float) -> bool:
        """Whether this much noise meets the target."""
        if noise >= self._meeting:
            return True
        return noise > self._failing and self._learn(noise).meets

    def approach(self, one: float, other: float, *, close: float) -> None:
        """Ask about noise just below the least and just above, found by secants of logarithms from two sizes."""
        before, now = self._learn(one).figure, other
        for _ in range(SECANTS):
            if not 0 < now < math.inf or abs(now - one) <= close * now:
                break
            figure = self._learn(now).figure
            one, before, now = now, figure, _secant(one, before, now, figure, self._limit)
        if 0 < now < math.inf:
            self.meets(now * (1 - close))
            self.meets(now * (1 + close))

    def _learn(self, noise: float) -> Answer:
        found = self._ask(noise)
        if found.meets:
            self._meeting = min(self._meeting, noise)
        else:
            self._failing = max(self._failing, noise)
        return found


def _secant(one: float, before: float, other: float, figure: float, limit: float) -> float:
    """Where the line through two points, in logarithms, reaches the limit; nan where it does not."""
    usable = min(before, figure) > 0 and max(before, figure) < math.inf and (before - figure) * (other - one) > 0
    if not usable:
        return math.nan
    slope = math.log(figure / before) / math.log(other / one)
    power = math.log(limit / figure) / slope
    return other * math.exp(power) if abs(power) < 50 else math.nan
