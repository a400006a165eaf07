"""How good any C could be: a lower bound on the objective, from the dual problem.

Let classes be the sets of rounds in which the same data can show. For every positive semidefinite Q that is zero across
classes and has one value v_c on the diagonal of class c, and every C of full column rank,

    sens(C)^2 ||L C^+||_F^2  >=  ( trace (Q^(1/2) H Q^(1/2))^(1/2) )^2 / sum_c v_c

because `<X, Q> <= sum_c v_c sens^2` and `trace(X^-1 H) <X, Q> >= (trace (Q^(1/2) H Q^(1/2))^(1/2))^2`. Equality holds
at the optimum, where Q is X^-1 H X^-1. Away from it that matrix is cut to the classes, which keeps it semidefinite,
and its diagonal is made constant by scaling rows and columns alike; averaging the diagonal could break
semidefiniteness. Q is kept as a product F F^T throughout, so that rounding cannot break it either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.matrix_factorization.feasible import Feasible, Point

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Certificate:
    """A lower bound, and what proves it: F with Q = F F^T, and the common diagonal of each class."""

    value: float
    F: Array
    diagonals: Array


def certify(point: Point, H: Array, feasible: Feasible) -> Certificate:
    """The bound for H from the Q that a point of the search suggests; holds for every C."""
    G = (point.G + point.G.T) / 2
    F = np.zeros_like(G)
    for c in range(len(feasible.budgets)):
        members = np.flatnonzero(feasible.classes == c)
        F[np.ix_(members, members)] = root(G[np.ix_(members, members)])
    return from_root(F, np.diag(point.X), H, feasible)


def certify_banded(point: Point, H: Array, feasible: Feasible) -> Certificate:
    """The bound for every C with the zeros of `feasible`: Q may then be anything where X is zero.

    Entries where X is free are cut out of Q, and what that takes from semidefiniteness is added to the diagonal.
    """
    G = (point.G + point.G.T) / 2
    Q = np.where(feasible.free, 0.0, G)
    least = float(linalg.eigvalsh(Q, subset_by_index=(0, 0), check_finite=False)[0])
    margin = 1e-12 * float(np.trace(Q)) / len(Q)
    Q += (max(0.0, -least) + margin) * np.eye(len(Q))
    return from_root(root(Q), np.diag(point.X), H, feasible)


def from_root(F: Array, shares: Array, H: Array, feasible: Feasible) -> Certificate:
    """The bound of Q = F F^T after its rows are scaled to a common diagonal: the mean by `shares` of each class."""
    sizes = np.linalg.norm(F, axis=1)
    diagonals = feasible.sums(shares * sizes**2) / feasible.budgets
    F = F * (np.sqrt(diagonals[feasible.classes]) / np.maximum(sizes, 1e-300))[:, None]
    return Certificate(nuclear(F, H) ** 2 / float(diagonals @ feasible.budgets), F, diagonals)


def root(Q: Array) -> Array:
    """F with F F^T = Q, the part of Q that is semidefinite."""
    if len(Q) == 1:
        return np.sqrt(np.maximum(Q, 0.0))
    sizes, vectors = linalg.eigh(Q, check_finite=False)
    return vectors * np.sqrt(np.maximum(sizes, 0.0))


def nuclear(F: Array, H: Array) -> float:
    """`trace (F^T H F)^(1/2)`, rounded down."""
    middle = F.T @ H @ F
    sizes = linalg.eigvalsh((middle + middle.T) / 2, check_finite=False)
    error = 4 * len(H) ** 0.5 * np.finfo(float).eps * float(sizes[-1])
    return float(np.sqrt(np.maximum(sizes - error, 0.0)).sum()) * (1 - 4 * len(H) * np.finfo(float).eps)
