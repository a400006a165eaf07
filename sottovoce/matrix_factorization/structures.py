"""Families of C: dense, banded, Toeplitz, with restarts; and what each participation asks of X = C^T C.

- dense: every lower-triangular C; X is zero between rounds of one class, which loses nothing for vector-valued
  contributions.
- banded: noise looks back fewer rounds; C has b bands exactly when X has, so the same search runs on fewer entries.
- Toeplitz: one coefficient a lag; not convex in X, so its distance to the optimum is that to the dense one.
- restarts: blocks of rounds with fresh noise; C is block diagonal, and the search never meets a matrix larger than a
  block. How much of a class's budget each block gets is settled between the blocks.

In runs longer than K times B the same data shows in any K rounds of a class that follow each other. Patterns are then
overlapping windows of a class: X is zero between two rounds of one window, and the diagonal sums to at most 1 over
each. A dense search takes turns there: entries off the diagonal with the diagonal fixed, then a scale for each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.core.participation import Participation
from sottovoce.errors import InputError
from sottovoce.matrix_factorization.certificate import (
    bound_by_classes,
    bound_by_windows,
    bound_in_band,
    certify,
    certify_banded,
)
from sottovoce.matrix_factorization.optimizer import (
    Feasible,
    Point,
    Progress,
    SearchResult,
    is_singular,
    lower_factor,
    search,
)
from sottovoce.support.threads import one_thread

Array = NDArray[np.float64]

DAMPING = 0.25
"""Power of its multiplier by which a share changes: 1/2 would suit all shares at once, but single ones then swing."""

SWEEPS = 60
"""How often the blocks of a run with restarts may trade their budgets."""

TURNS = 8
NORMS = (10.0, 50.0, 200.0, 1000.0, 4000.0)
"""How closely the largest window is followed while scales are chosen."""

STRUCTURES = ("dense", "banded", "toeplitz")


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

    def __post_init__(self) -> None:
        if self.name not in STRUCTURES:
            raise InputError(f"structure {self.name!r}", f"known: {', '.join(STRUCTURES)}", "choose one of them")
        if self.bands is not None:
            if self.name == "dense":
                rule = "only banded and toeplitz have bands"
                raise InputError(f"{self.bands} bands of a dense C", rule, "choose one of these")
            require_whole("bands", self.bands, 1)
        if self.restart is not None:
            require_whole("restart", self.restart, 1)
            if self.name != "dense":
                rule = "the blocks between restarts are dense"
                raise InputError(f"restarts of a {self.name} C", rule, "leave out the structure or the restarts")

    @classmethod
    def within(cls, rounds: int, scheme: Participation, name: str, bands: int | None, restart: int | None) -> Structure:
        """With no more bands than rounds; with B bands unless others are given."""
        if name != "dense":
            own = rounds if scheme.times is None else scheme.apart
            bands = min(rounds, own if bands is None else bands)
        return cls(name=name, bands=bands, restart=restart)

    def __str__(self) -> str:
        return self.name if self.bands is None else f"{self.name}, {self.bands} bands"

    def optimise(self, H: Array, scheme: Participation, gap: float, progress: Progress | None = None) -> ProvenFactor:
        """The best C of this structure that is found, with its proof."""
        if self.restart is not None and self.restart < len(H):
            return restarts(H, scheme, self.restart, gap, progress)
        if self.bands is None:
            return dense(H, scheme, gap, progress)
        make = banded if self.name == "banded" else toeplitz
        return make(H, scheme, self.bands, gap, progress)

    def bound_of(self, proof: Array, H: Array, scheme: Participation) -> float:
        """No C of those that `among` names is better than this, whatever the matrix is."""
        T, per_class = len(H), patterns_per_class(scheme, len(H)) ** 2
        if self.name == "banded":
            return bound_in_band(proof, H, feasible(scheme, T, self.bands)) / per_class
        if self.restart is not None and self.restart < T:
            return bound_by_classes(proof, H, classes_of(scheme, T), _spans(T, self.restart)) / per_class
        if overlap(scheme, T):
            return bound_by_windows(proof, H, windows(scheme, T))
        return bound_by_classes(proof, H, classes_of(scheme, T), [slice(0, T)])

    def among(self, rounds: int) -> str:
        """For which C the bound holds."""
        if self.restart is not None and self.restart < rounds:
            return f"C with restarts every {self.restart} rounds"
        return f"C with {self.bands} bands" if self.name == "banded" else "all C"

    def is_provable(self, H: Array, scheme: Participation) -> bool:
        """Whether a search of this structure ends with a bound as close as was asked for.

        Not where patterns overlap, with one coefficient a lag, or for a singular H, which wants a C without inverse.
        """
        return self.name != "toeplitz" and not overlap(scheme, len(H)) and not is_singular(H)


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(
            f"{name} = {value!r}", f"a whole number from {least}", f"give {name}={max(least, 1)}, for example"
        )


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
    found = search(H, feasible(scheme, len(H)), certify, gap=gap, progress=progress)
    X, proof = found.X, found.certificate.F
    if overlap(scheme, len(H)):
        X, proof = _refined(X, H, windows(scheme, len(H)), gap, progress)
    return ProvenFactor(lower_factor(X), proof)


def overlap(scheme: Participation, rounds: int) -> bool:
    """Whether patterns are windows of a class."""
    return scheme.times is not None and scheme.times * scheme.apart < rounds


def windows(scheme: Participation, rounds: int) -> Array:
    """Which rounds are in which window: 1 or 0, a row for each round and a column for each window."""
    patterns = scheme.patterns(rounds)
    inside = np.zeros((rounds, len(patterns)))
    for number, pattern in enumerate(patterns):
        inside[pattern, number] = 1.0
    return inside


def _refined(X: Array, H: Array, inside: Array, gap: float, progress: Progress | None) -> tuple[Array, Array]:
    """A better X than one that was found for whole classes, and the G from which `bound_by_windows` bounds it best."""
    free = (inside @ inside.T) == 0
    best, value, lower, proof = X, np.inf, 0.0, _dual(X, H)
    for _ in range(TURNS):
        X = _rescaled(X, H, inside)
        now = float(np.trace(linalg.solve(X, H, assume_a="pos", check_finite=False)))
        G = _dual(X, H)
        bound = bound_by_windows(G, H, inside)
        lower, proof = (bound, G) if bound > lower else (lower, proof)
        before = value
        if now < value:
            best, value = X, now
        if progress is not None:
            progress(value / lower - 1)
        if value <= (1 + gap) * lower or value > (1 - gap / 10) * before:
            break
        space = Feasible(np.arange(len(H)), free, np.diag(X).copy())
        X = search(H, space, certify_banded, gap=gap / 4, start=X).X
    return best, proof


def _rescaled(X: Array, H: Array, inside: Array) -> Array:
    """D X D with the best diagonal D for which no window sums to more than 1."""
    error = linalg.inv(X) * H
    diagonal = np.diag(X)

    def value(logarithms: Array, norm: float) -> tuple[float, Array]:
        scale = np.exp(-logarithms)
        total = float(scale @ error @ scale)
        sizes = diagonal / scale**2
        sums = inside.T @ sizes
        shares = sums / sums.max()
        mass = float((shares**norm).sum())
        slope = 2 * sizes * (inside @ shares ** (norm - 1)) / (sums.max() * mass)
        return (
            float(np.log(total) + np.log(sums.max()) + np.log(mass) / norm),
            slope - 2 * scale * (error @ scale) / total,
        )

    logarithms = np.zeros(len(X))
    for norm in NORMS:
        logarithms = optimize.minimize(value, logarithms, (norm,), "L-BFGS-B", jac=True, options={"maxiter": 500}).x
    scaled = X * np.exp(np.add.outer(logarithms, logarithms))
    return np.asarray(scaled / (inside.T @ np.diag(scaled)).max())


def _dual(X: Array, H: Array) -> Array:
    """G = X^-1 H X^-1."""
    half = linalg.solve(X, H, assume_a="pos", check_finite=False)
    return np.asarray(linalg.solve(X, half.T, assume_a="pos", check_finite=False))


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
    found = search(H, space, certify_banded, gap=gap, progress=progress)
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
    return search(H, space, certify, gap=gap, start=start), present


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
