"""How good any C could be: a lower bound on the objective, from the dual problem.

Let classes be the sets of rounds in which the same data can show. For every positive semidefinite Q that is zero across
classes and has one value v_c on the diagonal of class c, and every C of full column rank,

    sens(C)^2 ||L C^+||_F^2  >=  ( trace (Q^(1/2) H Q^(1/2))^(1/2) )^2 / sum_c v_c

because `<X, Q> <= sum_c v_c sens^2` and `trace(X^-1 H) <X, Q> >= (trace (Q^(1/2) H Q^(1/2))^(1/2))^2`. Equality holds
at the optimum, where Q is X^-1 H X^-1. Away from it that matrix is cut to the classes, which keeps it semidefinite,
and its diagonal is made constant by scaling rows and columns alike; averaging the diagonal could break
semidefiniteness. Q is kept as a product F F^T throughout, so that rounding cannot break it either.

A search gets its bound from the point where it stands. `bound_by_classes`, `bound_in_band` and `bound_by_windows` say
what a matrix proves, wherever it comes from: a search, or a file that anybody may have written. Each makes its matrix
fit the theorem first, so that any numbers at all give a bound that holds, and only those of a good search a close one.

Runs that are longer than K times B have overlapping patterns, windows of a class. For weights l_w on windows and a
correlation matrix R (semidefinite, ones on its diagonal), with P_w cutting to window w, `Q = sum_w l_w P_w R P_w` has
`<X, Q> <= sum_w l_w sens^2`, so the dual value with `sum_w l_w` below the line holds for every C. It need not be tight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.matrix_factorization.optimizer import Certificate, Feasible, Point

Array = NDArray[np.float64]


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
    return float(np.sqrt(np.maximum(sizes - error, 0.0)).sum() * (1 - 4 * len(H) * np.finfo(float).eps))


def bound_by_classes(F: Array, H: Array, classes: NDArray[np.intp]) -> float:
    """The bound of Q = F F^T for every C.

    Entries of F between rounds of different classes are left out, and Q gets one diagonal for each class.
    """
    F = np.where(np.equal.outer(classes, classes), F, 0.0)
    scale, total = _common_diagonal((F**2).sum(axis=1), classes)
    return nuclear(F * scale[:, None], H) ** 2 / total if total > 0 else 0.0


def bound_in_band(F: Array, H: Array, feasible: Feasible) -> float:
    """The bound of Q = F F^T for every C with the zeros of `feasible`.

    Where X may differ from zero, Q should not: what is left there by rounding counts against the bound, because no
    entry of X is larger than the sensitivity squared.
    """
    scale, total = _common_diagonal((F**2).sum(axis=1), feasible.classes)
    F = F * scale[:, None]
    total += float(np.abs((F @ F.T)[feasible.free]).sum())
    return nuclear(F, H) ** 2 / total if total > 0 else 0.0


def bound_by_windows(G: Array, H: Array, inside: Array) -> float:
    """The bound from a matrix G like X^-1 H X^-1: its diagonal weighs the windows, its correlations make R."""
    sizes = np.sqrt(np.maximum(np.diag(G), 1e-300))
    R = (G + G.T) / (2 * np.outer(sizes, sizes))
    np.fill_diagonal(R, 1.0)
    lifted = max(0.0, -float(linalg.eigvalsh(R, subset_by_index=(0, 0), check_finite=False)[0]))
    R = (R + lifted * np.eye(len(R))) / (1.0 + lifted)
    weights = optimize.nnls(inside, sizes**2)[0]
    total = float(weights.sum())
    return nuclear(root(R * ((inside * weights) @ inside.T)), H) ** 2 / total if total > 0 else 0.0


def _common_diagonal(squares: Array, classes: NDArray[np.intp]) -> tuple[Array, float]:
    """By what to scale rows with these squared norms to the mean of their class, and the sum of these means."""
    means = np.bincount(classes, weights=squares) / np.bincount(classes)
    return np.sqrt(means[classes] / np.maximum(squares, 1e-300)), float(means.sum())
