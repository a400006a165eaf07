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
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from sottovoce.core.participation import Participation
from sottovoce.matrix_factorization import windows
from sottovoce.matrix_factorization.certificate import certify, certify_banded
from sottovoce.matrix_factorization.feasible import Feasible, Point, lower_factor
from sottovoce.matrix_factorization.optimizer import Progress, SearchResult, is_singular, search
from sottovoce.matrix_factorization.proofs import bound_by_classes, bound_by_windows, bound_in_band
from sottovoce.support.threads import one_thread

Array = NDArray[np.float64]

DAMPING = 0.25
"""Power of its multiplier by which a share changes: 1/2 would suit all shares at once, but single ones then swing."""

SWEEPS = 60
"""How often the blocks of a run with restarts may trade their budgets."""


@dataclass(frozen=True, eq=False)
class ProvenFactor:
    """A C, unscaled, and the matrix that proves how good any C could be: `Structure.bound_of` says how good."""

    C: Array
    proof: Array


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Which C are searched: of all, those with so many bands, with one coefficient a lag, or with restarts."""

    name: str = "dense"
    bands: int | None = None
    restart: int | None = None

    def __str__(self) -> str:
        return self.name if self.bands is None else f"{self.name}, {self.bands} bands"

    def optimise(self, H: Array, scheme: Participation, gap: float, progress: Progress | None = None) -> ProvenFactor:
        """The best C of this structure that is found, with its proof."""
        if self._restarts(len(H)):
            return restarts(H, scheme, cast("int", self.restart), gap, progress)
        if self.bands is None:
            return dense(H, scheme, gap, progress)
        make = banded if self.name == "banded" else toeplitz
        return make(H, scheme, self.bands, gap, progress)

    def bound_of(self, proof: Array, H: Array, scheme: Participation) -> float:
        """No C of those that `among` names is better than this, whatever the matrix is."""
        return float(self._bound_of(proof, H, scheme))

    def _bound_of(self, proof: Array, H: Array, scheme: Participation) -> float:
        T, per_class = len(H), patterns_per_class(scheme, len(H)) ** 2
        if self._restarts(T):
            return bound_by_classes(proof, H, classes_of(scheme, T), _spans(T, cast("int", self.restart))) / per_class
        if self.name == "banded":
            return bound_in_band(proof, H, feasible(scheme, T, self.bands)) / per_class
        if windows.overlap(scheme, T):
            return bound_by_windows(proof, H, windows.windows(scheme, T))
        return bound_by_classes(proof, H, classes_of(scheme, T), [slice(0, T)])

    def among(self, rounds: int) -> str:
        """For which C the bound holds."""
        if self._restarts(rounds):
            return f"C with restarts every {self.restart} rounds"
        return f"C with {self.bands} bands" if self.name == "banded" else "all C"

    def is_provable(self, H: Array, scheme: Participation) -> bool:
        """Whether a search of this structure ends with a bound as close as was asked for.

        Not where patterns overlap, with one coefficient a lag, or for a singular H, which wants a C without inverse.
        """
        overlapping = windows.overlap(scheme, len(H))
        return self.name != "toeplitz" and not overlapping and not is_singular(H)

    def _restarts(self, rounds: int) -> bool:
        return self.restart is not None and self.restart < rounds


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


def dense(H: Array, scheme: Participation, gap: float, progress: Progress | None = None) -> ProvenFactor:
    """The best C of all."""
    found = search(H, feasible(scheme, len(H)), gap=gap, progress=progress)
    X, proof = found.X, found.certificate.F
    if windows.overlap(scheme, len(H)):
        X, proof = windows.refine(X, H, scheme, gap, progress)
    return ProvenFactor(lower_factor(X), proof)


def patterns_per_class(scheme: Participation, rounds: int) -> int:
    """How many patterns it takes to cover a class: 1 unless the run is longer than K times B.

    What all rounds of a class cost is at most so many times, squared, what the worst pattern does; a bound for
    classes is one for patterns when divided by that.
    """
    if scheme.times is None:
        return 1
    longest = math.ceil(rounds / scheme.apart)
    return math.ceil(longest / scheme.times)


def banded(H: Array, scheme: Participation, bands: int, gap: float, progress: Progress | None = None) -> ProvenFactor:
    """The best C with so many bands."""
    space = feasible(scheme, len(H), bands)
    found = search(H, space, gap=gap, bound=certify_banded, progress=progress)
    C = lower_factor(found.X)
    far = np.subtract.outer(np.arange(len(H)), np.arange(len(H)))
    return ProvenFactor(np.where(far < bands, C, 0.0), found.certificate.F)


def toeplitz(H: Array, scheme: Participation, bands: int, gap: float, progress: Progress | None = None) -> ProvenFactor:
    """A good C with one coefficient a lag; the bound is that of all C."""
    C = toeplitz_only(H, scheme, bands)
    return ProvenFactor(C, dense(H, scheme, gap, progress).proof)


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
) -> ProvenFactor:
    """The best block-diagonal C with blocks of so many rounds: fresh noise in each."""
    T = len(H)
    classes = classes_of(scheme, T)
    count = classes.max() + 1
    spans = _spans(T, length)
    shares = np.array([np.bincount(classes[span], minlength=count) for span in spans], dtype=float)
    shares *= np.array([np.sqrt(np.trace(H[span, span])) for span in spans])[:, None]
    shares /= shares.sum(axis=0)
    X: list[Array | None] = [None] * len(spans)
    best, value, bound, proof = X, np.inf, 0.0, np.eye(T)
    for _ in range(SWEEPS):
        blocks = [_block(H[span, span], classes[span], shares[i], X[i], gap / 20) for i, span in enumerate(spans)]
        X = [found.X for found, _ in blocks]
        multipliers = np.zeros_like(shares)
        for i, (found, present) in enumerate(blocks):
            multipliers[i, present] = found.certificate.diagonals
        now = sum(found.value for found, _ in blocks)
        joint = _joint_proof(T, spans, classes, blocks, multipliers, shares)
        now_bound = bound_by_classes(joint, H, classes, spans)
        bound, proof = (now_bound, joint) if now_bound > bound else (bound, proof)
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
    return ProvenFactor(C, proof)


def _spans(rounds: int, length: int) -> list[slice]:
    """Blocks of so many rounds, the last one perhaps shorter."""
    return [slice(first, min(rounds, first + length)) for first in range(0, rounds, length)]


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


def _joint_proof(
    rounds: int,
    spans: list[slice],
    classes: NDArray[np.intp],
    blocks: list[tuple[SearchResult, NDArray[np.intp]]],
    multipliers: Array,
    shares: Array,
) -> Array:
    """The proof for all blocks together: one diagonal for each class, whatever the block."""
    common = (multipliers * shares).sum(axis=0)
    joint = np.zeros((rounds, rounds))
    for span, (found, _) in zip(spans, blocks, strict=True):
        F = found.certificate.F
        joint[span, span] = F * np.sqrt(common[classes[span]] / (F**2).sum(axis=1))[:, None]
    return joint
