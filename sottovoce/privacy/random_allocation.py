"""A record that takes part in one of B Gaussian releases, drawn at random: its hockey-stick divergences, rounded up.

With noise of standard deviation s and a record that moves a release by 1, the pair of distributions is that of

    Q = N(0, s^2 I_B)        P = (N(e_1, s^2 I_B) + ... + N(e_B, s^2 I_B)) / B

(docs/guarantees.md proves that it stands for gradients that react to what was released). Under Q, dP/dQ is the mean
L = (X_1 + ... + X_B) / B of independent X_i = exp(g_i / s - 1 / (2 s^2)), with g_i normal, which have mean 1. So the
divergences of order a are the prices of two options on that mean, and both pay-offs are convex:

    of P from Q:   E (L - a)+               of Q from P:   a E (1 / a - L)+

Spreading an X_i to points left and right of it, with its mean kept, makes both larger, whatever is added to it later.
So X_1 is spread to the points of a grid, sums of two independent ones to those of the next, and so on: all figures are
upper bounds. Above the largest point a sum is cut off; what is lost is added to the first of the two.

    >>> record_there, not_there = (Allocation(2.0, 10).divergences([1.5], there)[0] for there in (True, False))
    >>> f"{record_there:.2e} {not_there:.2e}"
    '6.01e-04 4.66e-04'
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.privacy.gaussian_dp import RELATIVE_ERROR, log_deltas

Array = NDArray[np.float64]

UNIT = 2.0**-53
"""How far a rounded number is off, relatively."""

SPACING = 0.03
"""Points next to each other, over the standard deviation of the logarithm of a sum: it adds 1e-3 to its variance."""

LOW, HIGH = 10.0, 16.0
"""How many such deviations below its median a sum has points, and how many above 1 a single X."""


class _Sum(NamedTuple):
    """An upper bound of the sum of so many X: masses at points, what was cut off, and what rounding took off masses."""

    points: Array
    masses: Array
    cut: float
    relative: float
    terms: int

    @classmethod
    def single(cls, noise: float) -> _Sum:
        """The chords of the prices of one X: of (x - X)+ below 1, of (X - x)+ from there on."""
        points = _points(noise, 1)
        small = points[(points > 0) & (points < 1)]
        lower = np.concatenate([[0.0], small * np.exp(log_deltas(1 / noise, -np.log(small)))])
        upper = np.exp(log_deltas(1 / noise, np.log(points[points >= 1])))
        edge = len(lower)  # the first point from 1 on; the chord that leads to it is one of puts
        gaps, puts = np.diff(points), np.append(lower, points[edge] - 1 + upper[0])
        rising, falling = np.diff(puts) / gaps[:edge], np.diff(upper) / gaps[edge:]
        at_edge = 1 + falling[0] - rising[-1]
        masses = np.concatenate([np.diff(rising, prepend=0.0), [at_edge], np.diff(falling, append=0.0)])
        off = np.concatenate([puts[1:] + puts[:-1], upper[1:] + upper[:-1]]) / gaps * (RELATIVE_ERROR + 8 * UNIT)
        masses = np.maximum(masses, 0.0) + np.append(off, 0.0) + np.insert(off, 0, 0.0)
        return cls(points, masses, float(upper[-1]) * (1 + RELATIVE_ERROR), 0.0, 1)

    def plus(self, other: _Sum, noise: float) -> _Sum:
        """The sum with an independent one, spread to points of its own."""
        points = _points(noise, self.terms + other.terms)
        sums = (self.points[:, None] + other.points).ravel()
        masses = (self.masses[:, None] * other.masses).ravel()
        there = masses > 0
        sums, masses = sums[there], masses[there]
        above = sums > points[-1]
        cut = float(masses[above] @ (sums[above] - points[-1]))
        sums = np.minimum(sums, points[-1])
        left = np.minimum(np.searchsorted(points, sums, side="right") - 1, len(points) - 2)
        gap = np.diff(points)[left]
        share = (sums - points[left]) / gap
        slack = 8 * UNIT * points[left + 1] / gap
        right = np.asarray(np.bincount(left + 1, masses * np.minimum(share + slack, 1.0), len(points)), dtype=float)
        found: Array = right + np.bincount(left, masses * np.minimum(1 - share + slack, 1.0), len(points))
        own = 4 * UNIT * len(masses)
        relative = (1 + self.relative) * (1 + other.relative) * (1 + own) - 1
        return _Sum(points, found, (self.cut + other.cut + cut) * (1 + own), relative, self.terms + other.terms)


def _points(noise: float, count: int) -> Array:
    """0, and points that are close to each other where a lognormal number of this mean and variance is."""
    single = HIGH / noise + 1 / (2 * noise**2)
    width = math.sqrt(np.logaddexp(0.0, _log_expm1(noise**-2) - math.log(count)))
    middle = math.log(count) - width**2 / 2
    top = float(np.logaddexp(single, math.log(3 * count)))
    low, high = (4 * math.asinh(end / 4) for end in (-LOW, (top - middle) / width))
    steps = np.linspace(low, high, math.ceil((high - low) / SPACING) + 1)
    return np.concatenate([[0.0], np.exp(middle + width * 4 * np.sinh(steps / 4))])


def _log_expm1(value: float) -> float:
    return value if value > 40 else math.log(math.expm1(value))


@lru_cache(maxsize=32)
def _sum(noise: float, count: int) -> _Sum:
    """By doubling."""
    if count == 1:
        return _Sum.single(noise)
    half = _sum(noise, count // 2)
    double = half.plus(half, noise)
    return double.plus(_sum(noise, 1), noise) if count % 2 else double


class Allocation(NamedTuple):
    """One of `among` releases with this noise multiplier."""

    noise: float
    among: int

    def divergences(self, orders: ArrayLike, there: bool) -> Array:
        """Of orders from 1 on: how much more likely something is with the record there, or without it."""
        bound, order_V = _sum(self.noise, self.among), np.asarray(orders, dtype=float)
        masses, moments = bound.masses, bound.masses * bound.points / self.among
        if there:
            at = np.searchsorted(bound.points, self.among * order_V * (1 - 4 * UNIT), side="left")
            mass_V, moment_V = (np.append(np.cumsum(of[::-1])[::-1], 0.0)[at] for of in (masses, moments))
            more_V, less_V = moment_V, order_V * mass_V
        else:
            at = np.searchsorted(bound.points, self.among / order_V * (1 + 4 * UNIT), side="right")
            mass_V, moment_V = (np.append(0.0, np.cumsum(of))[at] for of in (masses, moments))
            more_V, less_V = mass_V, order_V * moment_V
        off = 4 * UNIT * len(masses)
        found_V = np.maximum(more_V - less_V, 0.0) + off * (more_V + less_V)
        return np.asarray(found_V * (1 + bound.relative) + there * bound.cut / self.among)

    def epsilon(self, delta: float, there: bool) -> float:
        """The least at which a divergence is delta; between points, divergences are linear in the order."""
        points = _sum(self.noise, self.among).points[1:] / self.among
        order_V = np.append(1.0, points[points > 1] if there else 1 / points[points < 1][::-1])
        value_V = self.divergences(order_V, there)
        few = np.flatnonzero(value_V <= delta)
        if not few.size:
            return math.inf
        last = int(few[0])
        if last == 0:
            return 0.0
        share = (value_V[last - 1] - delta) / (value_V[last - 1] - value_V[last])
        order = order_V[last - 1] + share * (order_V[last] - order_V[last - 1])
        return math.log(float(order)) * (1 + 16 * UNIT) + 16 * UNIT
