"""Families of C: dense, banded, Toeplitz, with restarts; and what each participation asks of X = C^T C.

- dense: every lower-triangular C; X is zero between rounds of one class, which loses nothing for vector-valued
  contributions.
- banded: noise looks back fewer rounds; C has b bands exactly when X has, so the same search runs on fewer entries.
- Toeplitz: one coefficient a lag; not convex in X, so its distance to the optimum is that to the dense one.
- restarts: blocks of rounds with fresh noise; C is block diagonal, and the search never meets a matrix larger than a
  block. How much of a class's budget each block gets is settled between the blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from sottovoce.core.participation import Participation
from sottovoce.core.threads import one_thread
from sottovoce.matrix_factorization import windows
from sottovoce.matrix_factorization.certificate import certify, certify_banded, nuclear
from sottovoce.matrix_factorization.feasible import Feasible, Point, lower_factor
from sottovoce.matrix_factorization.optimizer import Progress, SearchResult, search

Array = NDArray[np.float64]

DAMPING = 0.25
"""Power of its multiplier by which a share changes: 1/2 would suit all shares at once, but single ones then swing."""

SWEEPS = 60
"""How often the blocks of a run with restarts may trade their budgets."""


@dataclass(frozen=True, eq=False)
class BoundedFactor:
    """A C, unscaled, a bound on the objective, and for which C the bound holds."""

    C: Array
    lower_bound: float
    among: str


def classes_of(scheme: Participation, rounds: int) -> NDArray[np.intp]:
    """The class of each round: rounds in which the same data can show."""
    return np.arange(rounds) % (1 if scheme.times is None else min(scheme.apart, rounds))


def feasible(scheme: Participation, rounds: int, bands: int | None = None) -> Feasible:
    """What X may be under cyclic participation, and within so many bands."""
    classes = classes_of(scheme, rounds)
    free = np.not_equal.outer(classes, classes)
    if bands is not None:
        free &= np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))) < bands
    return Feasible(classes, free, np.ones(classes.max() + 1))


def dense(H: Array, scheme: Participation, gap: float, progress: Progress | None = None) -> BoundedFactor:
    """The best C of all."""
    found = search(H, feasible(scheme, len(H)), gap=gap, progress=progress)
    X, bound = found.X, found.certificate.value
    if windows.overlap(scheme, len(H)):
        X, bound = windows.refine(X, H, scheme, gap, progress)
    return BoundedFactor(lower_factor(X), bound, "all C")


def patterns_per_class(scheme: Participation, rounds: int) -> int:
    """How many patterns it takes to cover a class: 1 unless the run is longer than K times B.

    What all rounds of a class cost is at most so many times, squared, what the worst pattern does; a bound for
    classes is one for patterns when divided by that.
    """
    if scheme.times is None:
        return 1
    longest = math.ceil(rounds / scheme.apart)
    return math.ceil(longest / scheme.times)


def banded(H: Array, scheme: Participation, bands: int, gap: float, progress: Progress | None = None) -> BoundedFactor:
    """The best C with so many bands."""
    space = feasible(scheme, len(H), bands)
    found = search(H, space, gap=gap, bound=certify_banded, progress=progress)
    C = lower_factor(found.X)
    far = np.subtract.outer(np.arange(len(H)), np.arange(len(H)))
    return BoundedFactor(
        np.where(far < bands, C, 0.0),
        found.certificate.value / patterns_per_class(scheme, len(H)) ** 2,
        f"C with {bands} bands",
    )


def toeplitz(
    H: Array, scheme: Participation, bands: int, gap: float, progress: Progress | None = None
) -> BoundedFactor:
    """A good C with one coefficient a lag; the bound is that of all C."""
    C = toeplitz_only(H, scheme, bands)
    return BoundedFactor(C, dense(H, scheme, gap, progress).lower_bound, "all C")


@one_thread()
def toeplitz_only(H: Array, scheme: Participation, bands: int) -> Array:
    """The same without a bound: descent on the coefficients, from those of the square root of prefix sums."""
    T = len(H)
    patterns = scheme.patterns(T)
    lags = np.subtract.outer(np.arange(T), np.arange(T))

    def matrix(coefficients: Array) -> Array:
        padded = np.concatenate([[1.0], coefficients, np.zeros(T - bands)])
        return np.where(lags >= 0, padded[np.abs(lags)], 0.0)

    def value(coefficients: Array) -> tuple[float, Array]:
        C = matrix(coefficients)
        X = C.T @ C
        point = Point.at(X, H)
        if point is None:
            return np.inf, np.zeros_like(coefficients)
        sums = [np.abs(X[np.ix_(pattern, pattern)]).sum() for pattern in patterns]
        worst = patterns[int(np.argmax(sums))]
        slope = np.zeros((T, T))
        slope[np.ix_(worst, worst)] = np.sign(X[np.ix_(worst, worst)]) / max(sums)
        by_entry = 2 * C @ (slope - point.G / point.value)
        by_lag = [np.trace(by_entry, offset=-lag) for lag in range(1, bands)]
        return float(np.log(max(sums) * point.value)), np.array(by_lag)

    lag = np.arange(1, bands)
    start = np.cumprod((2 * lag - 1) / (2 * lag))
    best = start if bands == 1 else optimize.minimize(value, start, jac=True, method="L-BFGS-B").x
    return matrix(np.asarray(best, dtype=np.float64))


def restarts(
    H: Array, scheme: Participation, length: int, gap: float, progress: Progress | None = None
) -> BoundedFactor:
    """The best block-diagonal C with blocks of so many rounds: fresh noise in each."""
    T = len(H)
    classes = classes_of(scheme, T)
    count = classes.max() + 1
    spans = [slice(first, min(T, first + length)) for first in range(0, T, length)]
    shares = np.array([np.bincount(classes[span], minlength=count) for span in spans], dtype=float)
    shares *= np.array([np.sqrt(np.trace(H[span, span])) for span in spans])[:, None]
    shares /= shares.sum(axis=0)
    X: list[Array | None] = [None] * len(spans)
    best, value, bound = X, np.inf, 0.0
    for _ in range(SWEEPS):
        blocks = [_block(H[span, span], classes[span], shares[i], X[i], gap / 20) for i, span in enumerate(spans)]
        X = [found.X for found, _ in blocks]
        multipliers = np.zeros_like(shares)
        for i, (found, present) in enumerate(blocks):
            multipliers[i, present] = found.certificate.diagonals
        now = sum(found.value for found, _ in blocks)
        bound = max(bound, _joint_bound(H, spans, classes, blocks, multipliers, shares))
        if now < value:
            best, value = X, now
        if progress is not None:
            progress(value / bound - 1)
        if value <= (1 + gap) * bound:
            break
        shares = shares * multipliers**DAMPING
        shares /= shares.sum(axis=0)
    C = np.zeros((T, T))
    for span, block in zip(spans, best, strict=True):
        assert block is not None
        C[span, span] = lower_factor(block)
    return BoundedFactor(C, bound / patterns_per_class(scheme, T) ** 2, f"C with restarts every {length} rounds")


def _block(
    H: Array, classes: NDArray[np.intp], shares: Array, start: Array | None, gap: float
) -> tuple[SearchResult, NDArray[np.intp]]:
    """One block, with its share of every class that is present."""
    present, renumbered = np.unique(classes, return_inverse=True)
    space = Feasible(renumbered, np.not_equal.outer(classes, classes), shares[present])
    if start is not None:
        scale = np.sqrt(space.budgets / space.sums(np.diag(start)))[renumbered]
        start = start * np.outer(scale, scale)
    return search(H, space, gap=gap, start=start, bound=certify), present


def _joint_bound(
    H: Array,
    spans: list[slice],
    classes: NDArray[np.intp],
    blocks: list[tuple[SearchResult, NDArray[np.intp]]],
    multipliers: Array,
    shares: Array,
) -> float:
    """The bound for all blocks together: one diagonal for each class, whatever the block."""
    common = (multipliers * shares).sum(axis=0)
    total = 0.0
    for span, (found, _) in zip(spans, blocks, strict=True):
        F = found.certificate.F
        scale = np.sqrt(common[classes[span]] / (F**2).sum(axis=1))
        total += nuclear(F * scale[:, None], H[span, span])
    return total**2 / float(common.sum())
