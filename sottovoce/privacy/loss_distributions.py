"""Epsilon of many Gaussian releases on batches drawn by chance, by distributions of the privacy loss; never too small.

One release. Let H(a) be the hockey-stick divergence of order a of a Gaussian release of mu = 1 / noise, and q the share
of records in a batch. Poisson batches and a record that is left out have the profiles

    the record is there:   q H(1 + (a - 1) / q)             the loss is at least log(1 - q)
    it is not:             q a b H(1 / b)                   b = 1 - (1 - 1 / a) / q, and 0 where b is not positive

for a >= 1. For a < 1, one follows from the other: H_a(P, Q) = 1 - a + a H_(1/a)(Q, P). Batches of a fixed size, drawn
without replacement, where a record is replaced by another: take a batch of which one record is not looked at yet. With
probability q it is the one that may change, else any other. All records lie within Delta of each other, so advanced
joint convexity (Balle, Barthe and Gaboardi, 2018, arXiv 1807.01647, Theorem 2) gives the first profile, in both
directions. A profile has a pair of distributions, and pairs compose, also adaptively (Zhu, Dong and Wang, 2022, arXiv
2106.08567, Proposition 8 and Theorem 10). A plain release is one with q = 1. A record that takes part in one of several
releases has the profiles of `random_allocation`. docs/guarantees.md has the proofs.

On a grid of losses a profile is replaced by its chords, as functions of e^loss (Doroshenko and others, 2022, arXiv
2207.04380). Chords lie above, and so do compositions of what lies above. Every rounding is added as well:

- profiles are taken `RELATIVE_ERROR` larger; masses are larger by the rounding of the differences that they are;
- masses are *tilted* before they are convolved, q_l = p_l e^(tilt l) / M, so that errors are relative to what is left
  of delta rather than to 1. Of a vector of length N, a power of two, a fast Fourier transform is right up to
  e = 2^-50 log2 N of its Euclidean norm (Higham, Accuracy and Stability, 2nd edition, Theorem 24.2, has
  7 * 2^-53 log2 N with twiddle factors that are right to 2^-53). Transforms of distributions are at most 1 in size. So
  those of R releases, multiplied, are off by at most R (e (1 + e |q| sqrt N)^R + 2^-51) |q| sqrt N, where a product of
  complex numbers is right to 2^-51, and the convolution is off by 1 / sqrt N of that, and e |q|. By Cauchy and Schwarz,
  delta is off by at most that times the norm of its weights, M^R e^(-tilt l) (1 - e^(epsilon - l)): this is added;
- what lies above the window of the convolution has at most the mass M(s)^R e^(-s l) of Chernoff's bound. What lies
  outside comes in again at the other end, which only adds.

    >>> round(epsilon_of_releases([Releases(2.0, 0.01, 1000, replaced=True)], 1e-5), 3)
    0.719
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.gaussian_dp import RELATIVE_ERROR, epsilon_of, log_deltas
from sottovoce.privacy.random_allocation import UNIT, Allocation

Array = NDArray[np.float64]

TAIL = 1e-9
"""This share of delta is left for losses above the grid of one release, and for those above the window of all."""

WRAPPED = 1e-12
"""This much of the tilted distribution may lie below the window, and above."""

COARSE, FINE = 2**11, 2**16
"""Losses of one release lie on a grid of so many points on each side of 0: where the window is sought, and at most."""

LEAST_CELLS, CELLS, MOST_CELLS = 2**17, 2**11, 2**20
"""The window has the second times the root of the number of releases: so chords add 1e-5 to the variance of losses."""

TILTS = np.geomspace(1e-4, 1e6, 121)
"""Tilts that are tried, over the largest loss of one release."""


class Releases(NamedTuple):
    """So many releases with this noise multiplier, on batches with this share of all records.

    A record is left out, and batches are Poisson; or it is `replaced`, and batches have a fixed size. Or each is a
    group of `among` releases, in one of which the record takes part.
    """

    noise: float
    share: float
    rounds: int
    replaced: bool = False
    among: int = 1

    @property
    def plain(self) -> bool:
        """Whether nothing is left to chance."""
        return self.share == 1 and self.among == 1


def epsilon_of_releases(releases: Sequence[Releases], delta: float) -> float:
    """Epsilon of all releases together, rounded up.

    At most that of releases without sampling: mixing both distributions with the same third one brings them closer.
    """
    return _joint_epsilon(tuple(one for one in releases if one.rounds and one.noise < math.inf), delta)


@lru_cache(maxsize=256)
def _joint_epsilon(releases: tuple[Releases, ...], delta: float) -> float:
    """Runs of a sweep that differ in their seeds alone ask the same."""
    mus = [math.sqrt(one.rounds) / one.noise for one in releases]
    unsampled = epsilon_of(mus[0] if len(mus) == 1 else math.hypot(*mus) * (1 + 4 * UNIT), delta)
    if all(one.plain for one in releases):
        return unsampled
    directions = dict.fromkeys(tuple(_Part(one, there or one.replaced) for one in releases) for there in (True, False))
    if sum(one.rounds for one in releases) == 1:
        return min(unsampled, max(parts[0].epsilon_of_one(delta) for parts in directions))
    return min(unsampled, max(_composed_epsilon(parts, delta) for parts in directions))


def _epsilon_of_one(one: Releases, delta: float) -> float:
    """The order at which q H(1 + (a - 1) / q) is delta: the other direction has less.

    Let t = (a - 1) / q. There the divergence is the integral of the positive part of (1 - (1 - q) t) p - (1 + q t) s,
    which is p - (1 + t) s - (1 - q) t (p - s); and p > s wherever it is positive.
    """
    if delta >= one.share:
        return 0.0
    within = epsilon_of(1 / one.noise, delta / one.share * (1 - 2 * UNIT))
    found = within + math.log(one.share + (1 - one.share) * math.exp(-within)) if within > 1 else 0.0
    found = found or math.log1p(one.share * math.expm1(within))
    return found * (1 + 16 * UNIT) if within < math.inf else math.inf


class _Part(NamedTuple):
    """Releases in one direction: whether the record is there, in the distribution that losses are drawn from."""

    releases: Releases
    there: bool

    def epsilon_of_one(self, delta: float) -> float:
        """Of one of the releases, in this direction or in the one that has more."""
        if self.releases.among > 1:
            return Allocation(self.releases.noise, self.releases.among).epsilon(delta, self.there)
        return _epsilon_of_one(self.releases, delta)

    def reach(self, tail: float) -> float:
        """The loss above which a share `tail` is at most left, of all rounds together."""
        return self.epsilon_of_one(max(tail / self.releases.rounds, math.ulp(0.0)))

    def masses(self, reach: float, step: float) -> tuple[Array, float]:
        """Masses at the multiples of a step from -reach to reach, by chords of the profile; and at infinity."""
        count = math.ceil(reach / step) + 1
        one = self.releases._replace(rounds=1)
        above, dual = _profile(one, self.there, step, count), _profile(one, one.replaced or not self.there, step, count)
        # below 0 the profile, less what is linear in e^loss: that has no curvature
        below = np.exp(-step * np.arange(count)) * dual
        grown, growth = math.exp(step), math.expm1(step)
        values = np.concatenate([below[-1:] / grown, below[:0:-1], above, above[-1:]])
        rises = np.diff(values)
        masses = (rises[1:] - grown * rises[:-1]) / growth
        masses[count - 1] += 1
        rounding = 4 * UNIT * (np.abs(rises[1:]) + grown * np.abs(rises[:-1])) / growth
        rounding[count - 1] += 4 * UNIT
        return np.maximum(masses, 0.0) + rounding, float(above[-1])


@lru_cache(maxsize=8)
def _profile(one: Releases, there: bool, step: float, count: int) -> Array:
    """The hockey-stick divergences at so many multiples of a step, from 0 on; rounded up."""
    noise, share, losses = one.noise, one.share, step * np.arange(count)
    if one.among > 1:
        with np.errstate(divide="ignore"):
            logs = np.log(Allocation(noise, one.among).divergences(np.exp(losses), there))
    elif there:
        logs = math.log(share) + log_deltas(1 / noise, np.log1p(np.expm1(losses) / share))
    else:
        b = 1 + np.expm1(-losses) / share + 4 * UNIT / share
        b_some = np.minimum(b[b > 0], 1.0)
        logs = np.full(count, -np.inf)
        logs[b > 0] = math.log(share) + losses[b > 0] + np.log(b_some) + log_deltas(1 / noise, -np.log(b_some))
    found: Array = np.exp(logs + RELATIVE_ERROR)
    found.setflags(write=False)
    return found


class _Grid(NamedTuple):
    """Masses of one release, from the loss -reach on, and how often there is one."""

    masses: Array
    at_infinity: float
    first: int
    step: float
    rounds: int

    @classmethod
    def of(cls, part: _Part, reach: float, step: float) -> _Grid:
        masses, at_infinity = part.masses(reach, step)
        return cls(masses, at_infinity, -(len(masses) // 2), step, part.releases.rounds)

    @property
    def losses(self) -> Array:
        return np.asarray(self.step * np.arange(self.first, self.first + len(self.masses)))

    def log_moments(self, tilts: Array) -> Array:
        """log sum_l p_l e^(tilt l), of each tilt."""
        with np.errstate(divide="ignore"):
            logs, losses = np.log(self.masses), self.losses
        found = np.empty(len(tilts))
        for number, tilt in enumerate(tilts):
            exponents = logs + tilt * losses
            largest = exponents.max()
            found[number] = largest + math.log(np.exp(exponents - largest).sum())
        return found


class _Window(NamedTuple):
    """Where all losses together are computed, how far they are tilted, and the tilt that bounds what lies above."""

    low: float
    high: float
    tilt: float
    above: float


def _composed_epsilon(parts: tuple[_Part, ...], delta: float) -> float:
    rounds = sum(part.releases.rounds for part in parts)
    reaches = [part.reach(TAIL * delta / len(parts)) for part in parts]
    reach = max(reaches)
    if not 0 < reach < math.inf:
        return reach
    coarse = [_Grid.of(part, own, max(own, reach / COARSE) / COARSE) for part, own in zip(parts, reaches, strict=True)]
    window = _window(coarse, TILTS / reach, delta)
    cells = min(MOST_CELLS, max(LEAST_CELLS, CELLS * math.sqrt(rounds)))
    step = max((window.high - window.low) / cells, reach / FINE)
    return _inverted([_Grid.of(part, own, step) for part, own in zip(parts, reaches, strict=True)], window, delta)


def _window(grids: Sequence[_Grid], tilts: Array, delta: float) -> _Window:
    """Of the tilt with which Chernoff's bound is least, or of the next smaller one that leaves the window short.

    Where losses are rare and large, tilting by a little too much makes them the rule.
    """
    every = np.concatenate([-tilts[::-1], [0.0], tilts])
    moments = np.sum([grid.rounds * grid.log_moments(every) for grid in grids], axis=0)
    up = moments[-len(tilts) :]
    reached = (up - math.log(delta) - math.log(TAIL)) / tilts
    top = int(np.argmin(reached))
    above = max(0.0, float(reached[top]))
    for tilt in tilts[int(np.argmin((up - math.log(delta)) / tilts)) :: -1].tolist():
        others = every != tilt
        ends = (moments[others] - moments[every == tilt] - math.log(WRAPPED)) / (every[others] - tilt)
        less = every[others] < tilt
        low, high = float(ends[less].max()), float(ends[~less].min(initial=math.inf))
        if high <= 2 * above:
            break
    return _Window(low, max(above, high), tilt, float(tilts[top]))


def _inverted(grids: Sequence[_Grid], window: _Window, delta: float) -> float:
    """The least epsilon at which delta, with all that rounding may hide of it, is as given."""
    composed = _Composed.of(grids, window)
    bad, good = max(0, -composed.first), len(composed.weights) - 1
    first = composed.delta(bad)
    if first <= delta:
        return composed.loss(bad)
    last = composed.delta(good)
    if last > delta:
        return math.inf
    while good - bad > 1:
        middle = (bad + good) // 2
        here = composed.delta(middle)
        if here > delta:
            bad, first = middle, here
        else:
            good, last = middle, here
    # between losses, delta is at most linear in e^epsilon: all its terms are convex there
    share = (first - delta) / (first - last) if first < math.inf else 1.0
    found = composed.loss(bad) + math.log1p(share * math.expm1(composed.step))
    return min(composed.loss(good), found) * (1 + 16 * UNIT)


class _Composed(NamedTuple):
    """All losses together: tilted masses from a first multiple of the step on, weights that undo the tilt, and errors.

    `off` bounds the Euclidean norm of what the transforms did to the masses, `share` the share of a sum that roundings
    of its positive terms may take off, and `missing` the mass above.
    """

    masses: Array
    weights: Array
    first: int
    step: float
    off: float
    share: float
    missing: float

    @classmethod
    def of(cls, grids: Sequence[_Grid], window: _Window) -> _Composed:
        step, rounds = grids[0].step, sum(grid.rounds for grid in grids)
        first = math.floor(window.low / step)
        N = 1 << max(4, math.ceil(math.log2(math.ceil(window.high / step) - first + 2)))
        transform_error = 2.0**-50 * math.log2(N)
        product = np.ones(N // 2 + 1, dtype=complex)
        log_moment = relative = offs = 0.0
        norms = []
        for grid in grids:
            log_one = float(grid.log_moments(np.array([window.tilt]))[0])
            with np.errstate(divide="ignore"):
                logs = np.log(grid.masses)
            tilts = window.tilt * grid.losses
            there = np.isfinite(logs)
            tilted = np.exp(logs + tilts - log_one)
            sizes = np.abs(logs[there]).max() + np.abs(tilts).max() + abs(log_one) + 1
            places = np.arange(grid.first, grid.first + len(tilted)) % N
            folded = np.bincount(places, tilted, minlength=N)
            product *= _power(np.fft.rfft(folded), grid.rounds)
            norms.append(float(np.linalg.norm(folded)))
            offs += grid.rounds * norms[-1]
            log_moment += grid.rounds * log_one
            relative += grid.rounds * 8 * UNIT * float(sizes)
        growth = rounds * math.log1p(transform_error * max(norms) * math.sqrt(N) + relative)
        off = offs * transform_error * math.exp(min(growth, 700)) + (rounds * 4 * UNIT + transform_error) * min(norms)
        masses = np.roll(np.fft.irfft(product, N), -first)
        exponents = log_moment - window.tilt * step * np.arange(first, first + N)
        with np.errstate(over="ignore"):
            weights = np.exp(exponents)
        top = step * (first + N - 1)
        above = sum(grid.rounds * float(grid.log_moments(np.array([window.above]))[0]) for grid in grids)
        missing = math.exp(min(0.0, above - window.above * top)) + sum(grid.rounds * grid.at_infinity for grid in grids)
        share = math.expm1(min(700.0, relative + 8 * UNIT * (abs(log_moment) + abs(window.tilt * top) + N)))
        return cls(np.maximum(masses, 0.0), weights, first, step, 2 * off, share, missing * (1 + 1e-9))

    def loss(self, place: int) -> float:
        return (self.first + place) * self.step

    def delta(self, place: int) -> float:
        """delta at the loss at a place, rounded up."""
        weights = self.weights[place + 1 :] * -np.expm1(-self.step * np.arange(1, len(self.weights) - place))
        if not np.isfinite(weights[:1]).all():
            return math.inf
        found = float(weights @ self.masses[place + 1 :]) + self.off * float(np.linalg.norm(weights))
        return found * (1 + self.share) + self.missing


def _power(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """By squaring: each product is right to 2^-51, so that the power is right to that times the number of factors."""
    result = np.ones_like(values)
    while times:
        if times & 1:
            result = result * values
        times >>= 1
        if times:
            values = values * values
    return result
