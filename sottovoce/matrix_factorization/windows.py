"""Runs longer than K times B: the same data shows in K rounds of a class, in any K that follow each other.

Patterns are then overlapping windows of a class instead of whole classes. X is zero between two rounds of one window,
and the diagonal sums to at most 1 over each. The search takes turns: entries off the diagonal with the diagonal fixed,
then a scale for each round under the windows.

The bound: for weights l_w on windows and a correlation matrix R (semidefinite, ones on its diagonal), with P_w cutting
to window w, `Q = sum_w l_w P_w R P_w` has `<X, Q> <= sum_w l_w sens^2`, so the dual value with `sum_w l_w` below the
line holds for every C. Weights come from the diagonal of X^-1 H X^-1. It need not be tight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.core.participation import Participation
from sottovoce.matrix_factorization.certificate import certify_banded
from sottovoce.matrix_factorization.feasible import Feasible
from sottovoce.matrix_factorization.optimizer import Progress, search
from sottovoce.matrix_factorization.proofs import bound_by_windows

Array = NDArray[np.float64]

TURNS = 8
NORMS = (10.0, 50.0, 200.0, 1000.0, 4000.0)
"""How closely the largest window is followed while scales are chosen."""


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


def refine(
    X: Array, H: Array, scheme: Participation, gap: float, progress: Progress | None = None
) -> tuple[Array, Array]:
    """A better X than one that was found for whole classes, and the G from which `bound_by_windows` bounds it best."""
    T, inside = len(H), windows(scheme, len(H))
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
        space = Feasible(np.arange(T), free, np.diag(X).copy())
        X = search(H, space, gap=gap / 4, start=X, bound=certify_banded).X
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
