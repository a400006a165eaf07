"""The search: `min trace(X^-1 H)` over X = C^T C, for vector-valued contributions under cyclic participation.

What participation asks of X is linear: no entry between two rounds of one class (the same data could show in both),
and a fixed sum of the diagonal over each class. So the search runs in a linear space, and positive definiteness looks
after itself: the objective is infinite at the border. Steps are L-BFGS's, preconditioned with the inverse of the
unconstrained Hessian `Z -> X^-1 Z G + G Z X^-1`, G = X^-1 H X^-1. It stops on a proven gap (see certificate), never on
a small gradient: that drifts past the precision floor.

Shapes: T rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from sottovoce.errors import SottovoceError
from sottovoce.support.threads import one_thread

Array = NDArray[np.float64]

MEMORY = 12
"""How many steps L-BFGS remembers."""

REFRESH = 20
"""Steps between two preconditioners."""

CHECK = 5
"""Steps between two certificates."""

STEPS = 2000

RIDGES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Shares of the mean of H's diagonal that are added to a singular H while searching, each from where the last one
ended. Such an H (error of the last models only) wants a C that is no longer invertible; what the ridge costs shows in
the gap."""

SINGULAR = 1e-10
"""An eigenvalue below this share of the largest makes H singular."""


@dataclass(frozen=True, eq=False)
class Feasible:
    """Which X are looked at: entries that may differ from zero, and what the diagonal sums to over each class."""

    classes: NDArray[np.intp]
    free: NDArray[np.bool_]
    budgets: Array

    def project(self, Z: Array) -> Array:
        """The nearest direction that stays feasible."""
        out = np.where(self.free, (Z + Z.T) / 2, 0.0)
        diagonal = np.diag(Z)
        mean = self.sums(diagonal) / np.bincount(self.classes)
        np.fill_diagonal(out, diagonal - mean[self.classes])
        return out

    def sums(self, diagonal: Array) -> Array:
        """Sum over each class."""
        return np.bincount(self.classes, weights=diagonal).astype(np.float64)

    def start(self, H: Array) -> Array:
        """A feasible X near the unconstrained optimum H^(1/2): its factor cut to a band that keeps classes apart."""
        T = len(H)
        sizes, vectors = linalg.eigh(H, check_finite=False)
        root = (vectors * np.sqrt(np.maximum(sizes, 1e-10 * sizes[-1]))) @ vectors.T
        C = lower_factor(root)
        far = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
        reach = int(far[~self.free & (far > 0)].min(initial=T))
        C = np.where(far < reach, C, 0.0)
        scale = np.sqrt(self.budgets / self.sums((C**2).sum(axis=0)))
        C = C * scale[self.classes]
        return C.T @ C


def lower_factor(X: Array) -> Array:
    """The lower-triangular C with C^T C = X; checked, because a factor of the wrong matrix is easily taken for it."""
    upper = linalg.cholesky(X[::-1, ::-1], lower=True, check_finite=False)[::-1, ::-1]
    C = np.ascontiguousarray(upper.T)
    assert np.abs(C.T @ C - X).max() <= 1e-9 * np.abs(X).max(), "C^T C is not X"
    return C


@dataclass(frozen=True, eq=False)
class Point:
    """X with its inverse, the objective there and G = X^-1 H X^-1, minus the gradient."""

    X: Array
    inverse: Array
    value: float
    G: Array

    @staticmethod
    def at(X: Array, H: Array) -> Point | None:
        """None where X is not positive definite."""
        factor, failed = lapack.dpotrf(X, lower=1, clean=0)
        if failed:
            return None
        inverse, failed = lapack.dpotri(factor, lower=1, overwrite_c=1)
        if failed:
            return None
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        half = inverse @ H
        return Point(X, inverse, float(np.trace(half)), half @ inverse)


@dataclass(frozen=True, eq=False)
class Certificate:
    """A lower bound, and what proves it: F with Q = F F^T, and the common diagonal of each class."""

    value: float
    F: Array
    diagonals: Array


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Where a search ended."""

    X: Array
    value: float
    certificate: Certificate


Bound = Callable[[Point, Array, Feasible], Certificate]
"""A lower bound for H from where a search stands."""


@one_thread()
def search(
    H: Array,
    feasible: Feasible,
    bound: Bound,
    *,
    gap: float,
    start: Array | None = None,
) -> SearchResult:
    """The best X, with a certificate that is within `gap` of it, relatively, unless numbers do not allow that."""
    if not is_singular(H):
        point, certificate = _descend(H, feasible, gap, start, bound)
        return SearchResult(point.X, point.value, certificate)
    best: SearchResult | None = None
    for ridge in RIDGES:
        lifted = H + ridge * np.trace(H) / len(H) * np.eye(len(H))
        point, _ = _descend(lifted, feasible, gap / 4, start, bound)
        start, certificate, value = point.X, bound(point, H, feasible), float(np.vdot(point.inverse, H))
        if best is not None and best.certificate.value > certificate.value:
            certificate = best.certificate
        best = SearchResult(point.X, value, certificate) if best is None or value < best.value else best
        best = SearchResult(best.X, best.value, certificate)
        if best.value <= (1 + gap) * certificate.value:
            break
    assert best is not None
    return best


def is_singular(H: Array) -> bool:
    """Whether H has an eigenvalue that is zero but for rounding."""
    sizes = linalg.eigvalsh(H, check_finite=False)
    return bool(sizes[0] <= SINGULAR * sizes[-1])


def _descend(H: Array, feasible: Feasible, gap: float, start: Array | None, bound: Bound) -> tuple[Point, Certificate]:
    point = Point.at(feasible.start(H) if start is None else start, H)
    if point is None:
        raise SottovoceError("the start of the search is not positive definite; report this")
    memory: deque[tuple[Array, Array, float]] = deque(maxlen=MEMORY)
    gradient = -feasible.project(point.G)
    precondition = Preconditioner(point, feasible)
    best, stalled = bound(point, H, feasible), 0
    for step in range(1, STEPS + 1):
        direction = _direction(gradient, memory, precondition)
        following, length = _line_search(point, direction, gradient, H)
        if following is None:
            if not memory:
                break
            memory.clear()
            precondition = Preconditioner(point, feasible)
            continue
        new = -feasible.project(following.G)
        moved, turned = length * direction, new - gradient
        curvature = float(np.vdot(moved, turned))
        stalled = stalled + 1 if point.value - following.value <= 1e-14 * point.value else 0
        point, gradient = following, new
        if curvature > 0:
            memory.append((moved, turned, curvature))
        if step % CHECK == 0 or stalled:
            here = bound(point, H, feasible)
            best = here if here.value > best.value else best
            if point.value <= (1 + gap) * best.value or stalled > 3:
                break
        if step % REFRESH == 0:
            precondition = Preconditioner(point, feasible)
    return point, best


def _direction(gradient: Array, memory: deque[tuple[Array, Array, float]], precondition: Preconditioner) -> Array:
    """The two-loop recursion."""
    rest, weights = gradient.copy(), []
    for moved, turned, curvature in reversed(memory):
        weight = float(np.vdot(moved, rest)) / curvature
        weights.append(weight)
        rest -= weight * turned
    step = precondition(rest)
    for (moved, turned, curvature), weight in zip(memory, reversed(weights), strict=True):
        step += (weight - float(np.vdot(turned, step)) / curvature) * moved
    return -step


def _line_search(point: Point, direction: Array, gradient: Array, H: Array) -> tuple[Point | None, float]:
    """Backtrack until the objective falls enough."""
    slope = float(np.vdot(gradient, direction))
    if slope >= 0:
        return None, 0.0
    length = 1.0
    for _ in range(40):
        X = point.X + length * direction
        trial = Point.at((X + X.T) / 2, H)
        if trial is not None and trial.value <= point.value + 1e-4 * length * slope:
            return trial, length
        length /= 2
    return None, 0.0


class Preconditioner:
    """`Z -> X^-1 Z G + G Z X^-1`, inverted in the basis that makes X^-1 and G diagonal at once, then projected."""

    def __init__(self, point: Point, feasible: Feasible) -> None:
        self._feasible = feasible
        G = (point.G + point.G.T) / 2
        factor = linalg.cholesky(point.X, lower=True, check_finite=False)
        middle = factor.T @ G @ factor
        sizes, vectors = linalg.eigh((middle + middle.T) / 2, check_finite=False, driver="evd")
        sizes = np.maximum(sizes, 1e-13 * sizes[-1])
        self._basis = factor @ vectors
        self._weights = 1.0 / np.add.outer(sizes, sizes)

    def __call__(self, R: Array) -> Array:
        inner = (self._basis.T @ R @ self._basis) * self._weights
        return self._feasible.project(self._basis @ inner @ self._basis.T)
