"""What the search moves among: the feasible X = C^T C, and the objective at one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

Array = NDArray[np.float64]


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
