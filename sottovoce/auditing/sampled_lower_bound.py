"""Epsilon that Gaussian releases on Poisson batches really have: a lower bound, every rounding downwards.

The pair of data sets has one record more or less, of full size, while all others count as nothing: outputs of one
round are from N(0, s^2), or with probability q from N(1, s^2). Outputs are told apart only by the cell of a grid that
their loss lies in, and the loss counts as that at the lower end of its cell, so that sums of losses over rounds are too
small, and with them delta. What lies above the grid is left out. To delta is added what the Fourier transform may be
wrong by, and the mass that comes in again at the other end of its window, by Chernoff's bound.

    >>> least = epsilon_at_least(noise=1.0, share=0.01, rounds=100, delta=1e-5)
    >>> 0.71 < least < 0.72
    True
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

CELLS, MOST_LOSSES = 2**19, 2**20
"""Of the window of all rounds, and of one round, at most."""

ADDED = 0.01
"""Rounding of all rounds together is at most this, where so many cells are enough."""

WIDE, DEVIATIONS = 10.0, 10.0
"""The window is so many deviations wide to each side; outputs beyond so many are left out."""

TILTS = np.geomspace(1e-3, 1e3, 25)


def epsilon_at_least(*, noise: float, share: float, rounds: int, delta: float) -> float:
    """The larger of both directions; 0 where nothing is known. `noise` is s, for a record of size one."""
    if not 0 < noise < math.inf or not 0 < delta < 1:
        return 0.0
    return max(_of_direction(noise, share, rounds, delta, there=there) for there in (True, False))


class _Losses(NamedTuple):
    """Masses of the losses of one round at `first * step`, `(first + 1) * step`, and so on; they may sum to less."""

    masses: Array
    first: int
    step: float

    @property
    def values(self) -> Array:
        return np.asarray(self.step * np.arange(self.first, self.first + len(self.masses)))


def _of_direction(noise: float, share: float, rounds: int, delta: float, *, there: bool) -> float:
    coarse = _losses(noise, share, 1e-3 * _largest(noise, share), there)
    width = 2 * WIDE * math.sqrt(rounds * float(np.sum(coarse.masses * coarse.values**2))) + 2 * coarse.step
    step = max(ADDED / rounds, width / CELLS, _largest(noise, share) / MOST_LOSSES)
    one = _losses(noise, share, step, there)
    first = math.floor((rounds * float(one.masses @ one.values) - width / 2) / step)
    N = 2 * CELLS
    folded = np.bincount(np.arange(one.first, one.first + len(one.masses)) % N, one.masses, minlength=N)
    masses = np.roll(np.fft.irfft(np.fft.rfft(folded) ** rounds, N), -first)
    losses: Array = step * np.arange(first, first + N, dtype=np.float64)
    transforms, distributions = rounds * math.sqrt(N) * math.log2(N) * 2.0**-50, rounds * 2.0**-40
    error = transforms + distributions + _outside(one, rounds, losses[0], losses[-1])
    return _inverted(np.maximum(masses, 0.0), losses, delta + error)


def _largest(noise: float, share: float) -> float:
    """The largest loss that is counted, in either direction."""
    top = 1 + DEVIATIONS * noise
    return max(math.log1p(share * math.expm1(min(700.0, (top - 0.5) / noise**2))), -math.log1p(-min(share, 1 - 1e-16)))


def _losses(noise: float, share: float, step: float, there: bool) -> _Losses:
    """Losses rise with the output where the record is there, and fall with it where it is not."""
    largest = _largest(noise, share)
    lowest = max(math.log1p(-share) if share < 1 else -largest, -largest)
    ends = step * np.arange(math.floor(lowest / step), math.ceil(largest / step) + 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        outputs = 0.5 + noise**2 * np.log(np.maximum(np.expm1(ends) + share, 0.0) / share)
    zero, one = (ndtr((outputs - at) / noise) for at in (0.0, 1.0))
    if there:
        below = (1 - share) * zero + share * one
        return _Losses(np.maximum(np.diff(below), 0.0), round(ends[0] / step), step)
    masses = np.maximum(np.diff(zero), 0.0)[::-1]  # of the loss from -ends[i + 1] to -ends[i]
    return _Losses(masses, -round(ends[-1] / step), step)


def _outside(one: _Losses, rounds: int, low: float, high: float) -> float:
    """Chernoff's bound on the mass of all rounds together below and above a window."""
    with np.errstate(divide="ignore"):
        logs = np.log(one.masses)

    def log_moment(tilt: float) -> float:
        exponents = logs + tilt * one.values
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    above = min(rounds * log_moment(tilt) - tilt * high for tilt in TILTS.tolist())
    below = min(rounds * log_moment(-tilt) + tilt * low for tilt in TILTS.tolist())
    return math.exp(min(0.0, above)) + math.exp(min(0.0, below))


def _inverted(masses: Array, losses: Array, delta: float) -> float:
    """An epsilon at which delta is still reached."""
    low, high = 0.0, float(losses[-1])

    def reached(epsilon: float) -> float:
        from_here = int(np.searchsorted(losses, epsilon, "right"))
        return float(masses[from_here:] @ -np.expm1(epsilon - losses[from_here:]))

    if high <= 0 or reached(0.0) <= delta:
        return 0.0
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return low
