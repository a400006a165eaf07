"""The worst change of a victim's gradients, and what it costs.

For a victim the loss is `max sum_{s,t} M[s,t] <delta_s, delta_t>` over changes with `||delta_t|| <= 1` in the rounds
of a participation pattern. Its value is a semidefinite programme, `max {<M, R> : R psd, R_tt = 1}`; any y with
`diag(y) - M` psd bounds it by `sum y`, and that dual value is what is reported.

    >>> from sottovoce.core.participation import parse_participation
    >>> M = np.array([[1.0, -0.9], [-0.9, 1.0]])
    >>> float(worst_case(M[None], parse_participation("every"), rounds=2)[0].round(6))
    3.8

All-ones would say 0.2 here: it is no bound (docs/guarantees.md).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from sottovoce.core.participation import Participation
from sottovoce.core.threads import WORKERS, one_thread

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

STEPS = 2000

DIMENSIONS = 16
"""Of the vectors in the ascent; the certificate does not depend on it."""

AT_ONCE = 2e6
"""About how many entries of M a thread works on: with ten times as many, copies take new memory every time, which made
most of the cost."""


def worst_case(M_VTT: NDArray[np.float64], scheme: Participation, rounds: int, gap: float = GAP) -> NDArray[np.float64]:
    """mu^2 of each victim: the largest over patterns of the semidefinite value, as a sound upper bound."""
    alike: dict[int, list[NDArray[np.intp]]] = {}
    for pattern in scheme.patterns(rounds):
        alike.setdefault(len(pattern), []).append(pattern)
    size = max(1, int(AT_ONCE / rounds**2))
    some = [slice(first, first + size) for first in range(0, len(M_VTT), size)]

    def largest(group: slice) -> NDArray[np.float64]:
        held = M_VTT[group]
        found = []
        for some in alike.values():
            stacked = np.concatenate([held[:, pattern[:, None], pattern] for pattern in some])
            found.append(bound(stacked, len(some), gap).reshape(len(some), -1).max(axis=0))
        return np.max(found, axis=0)

    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        found = np.concatenate([np.zeros(0), *pool.map(largest, some)])
    return np.minimum(found, once_in_each_epoch(M_VTT, scheme.apart)) if scheme.shuffled else found


def once_in_each_epoch(M_VTT: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    """A bound for changes that show once in each epoch of `apart` rounds, in any of them.

    Whichever rounds these are, `sum |M[s,t]|` over pairs of them is at most the largest entry of each pair of epochs.
    """
    starts = np.arange(0, M_VTT.shape[1], apart)
    by_row = np.maximum.reduceat(np.abs(M_VTT), starts, axis=1)
    return np.asarray(np.maximum.reduceat(by_row, starts, axis=2).sum(axis=(1, 2)))


def absolute_sum(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum |M|`: sound, and quick."""
    return np.abs(M_VTT).sum(axis=(1, 2))


def bound(M_VTT: NDArray[np.float64], patterns: int = 1, gap: float = GAP) -> NDArray[np.float64]:
    """The semidefinite value of each matrix, from above, within the gap. Matrices of one pattern follow each other."""
    M_VTT = (M_VTT + M_VTT.transpose(0, 2, 1)) / 2
    quick, plain = absolute_sum(M_VTT), M_VTT.sum(axis=(1, 2))
    out = quick.copy()
    loose = np.flatnonzero(quick - plain > gap * quick)
    if loose.size:
        pattern = loose // (len(M_VTT) // patterns)
        out[loose] = np.minimum(quick[loose], dual_bound(M_VTT[loose], gap, pattern))
    return out


def dual_bound(
    M_VTT: NDArray[np.float64], gap: float = GAP, pattern: NDArray[np.intp] | None = None
) -> NDArray[np.float64]:
    """`sum y` with `diag(y) - M` psd, y from the stationary point of an ascent.

    Unit vectors v_t maximise `f = sum M[s,t] <v_s, v_t>`. M is psd, so f is convex and moving every v_t along
    `sum_s M[s,t] v_s` at once can only raise it. Signs, vectors of one dimension, are tried first and are often best;
    elsewhere vectors of more dimensions are, with momentum. At the optimum `y_t = <v_t, sum_s M[s,t] v_s>` is dual
    feasible. What is missing to feasibility is added to every y and checked by a Cholesky factor, with its rounding
    error: the result is sound wherever the ascent stopped, and within `gap` of the optimum unless it ran out of steps.
    """
    V, T, _ = M_VTT.shape
    best = absolute_sum(M_VTT)
    signs_VT = _signs(M_VTT)
    open_ = _certify(M_VTT, np.arange(V), signs_VT[:, :, None], best, gap)
    v_VTK = 0.3 * _starts(np.zeros(V, dtype=np.intp)[open_] if pattern is None else pattern[open_], T)
    v_VTK = _unit(v_VTK + signs_VT[open_][:, :, None])
    before_VTK, still_VTT = v_VTK, M_VTT[open_]
    for step in range(STEPS):
        if not open_.size:
            break
        ahead = _unit(v_VTK + step / (step + 3) * (v_VTK - before_VTK))
        before_VTK, v_VTK = v_VTK, _unit(still_VTT @ ahead)
        if step % 25 == 24:
            left = _certify(M_VTT, open_, v_VTK, best, gap)
            going = np.isin(open_, left)
            open_, v_VTK, before_VTK = left, v_VTK[going], before_VTK[going]
            still_VTT = still_VTT if going.all() else still_VTT[going]
    for v, vectors in zip(open_, v_VTK, strict=True):
        best[v] = min(best[v], _feasible(M_VTT[v], np.einsum("tk,tk->t", M_VTT[v] @ vectors, vectors)))
    return best


def _starts(pattern: NDArray[np.intp], T: int) -> NDArray[np.float64]:
    """Where ascents begin; the matrices of each pattern, which follow each other, begin alike."""
    counts = np.unique(pattern, return_counts=True)[1]
    draws = [np.random.default_rng(0).standard_normal((count, T, min(T, DIMENSIONS))) for count in counts]
    return np.concatenate([np.zeros((0, T, min(T, DIMENSIONS))), *draws])


def _signs(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """Good signs for every matrix, from its leading eigenvector: each step can only raise `x^T M x`."""
    x_VT = np.ones(M_VTT.shape[:2])
    for _ in range(30):
        x_VT = np.einsum("vst,vt->vs", M_VTT, x_VT)
        x_VT /= np.maximum(np.linalg.norm(x_VT, axis=1, keepdims=True), 1e-300)
    for _ in range(20):
        x_VT = np.where(np.einsum("vst,vt->vs", M_VTT, np.where(x_VT < 0, -1.0, 1.0)) < 0, -1.0, 1.0)
    return x_VT


def worst_change(M_TT: NDArray[np.float64], scheme: Participation) -> NDArray[np.float64]:
    """A change that costs the most: row t is delta_t, of norm one where the victim takes part and zero elsewhere.

    Signs where they reach the bound, else vectors of as many dimensions as the semidefinite value may need.

    >>> from sottovoce.core.participation import parse_participation
    >>> worst_change(np.array([[1.0, -0.9], [-0.9, 1.0]]), parse_participation("every")).ravel().tolist()
    [1.0, -1.0]
    """
    T = len(M_TT)
    found = []
    for pattern in scheme.possible(T):
        M = (M_TT + M_TT.T)[np.ix_(pattern, pattern)] / 2
        v_TK = _ascended(M)
        whole = np.zeros((T, v_TK.shape[1]))
        whole[pattern] = v_TK
        found.append((_value(M, v_TK), whole))
    return max(found, key=lambda pair: pair[0])[1]


def _ascended(M_TT: NDArray[np.float64]) -> NDArray[np.float64]:
    signs_T1 = _signs(M_TT[None])[0][:, None]
    most = bound(M_TT[None])[0] * (1 - 10 * GAP)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    K = math.ceil((math.sqrt(8 * len(M_TT) + 1) - 1) / 2)
    v_TK = _unit(0.3 * np.random.default_rng(0).standard_normal((1, len(M_TT), K)) + signs_T1)
    for _ in range(STEPS):
        v_TK = _unit(M_TT @ v_TK)
    leading = np.linalg.svd(v_TK[0])[0][:, :1]
    signs_T1 = np.where(leading * leading[0] < 0, -1.0, 1.0)
    return signs_T1 if _value(M_TT, signs_T1) >= most else v_TK[0]


def _value(M_TT: NDArray[np.float64], v_TK: NDArray[np.float64]) -> float:
    return float(np.sum((M_TT @ v_TK) * v_TK))


def _certify(
    M_VTT: NDArray[np.float64],
    some: NDArray[np.intp],
    v_VTK: NDArray[np.float64],
    best: NDArray[np.float64],
    gap: float,
) -> NDArray[np.intp]:
    """Write the values that are proven within the gap into `best`; which are not."""
    T = M_VTT.shape[1]
    left = []
    for v, vectors in zip(some, v_VTK, strict=True):
        M = M_VTT[v]
        y = np.einsum("tk,tk->t", M @ vectors, vectors)
        value = y.sum()
        lift, rounding = 0.9 * gap * value / T, _rounding(M, y)
        slack = np.diag(y + lift) - M
        if rounding < 0.1 * gap * value / T and lapack.dpotrf(slack, lower=1, overwrite_a=1)[1] == 0:
            best[v] = min(best[v], value + T * (lift + rounding))
        elif best[v] - value > gap * best[v]:
            left.append(v)
    return np.array(left, dtype=np.intp)


def _unit(v_VTK: NDArray[np.float64]) -> NDArray[np.float64]:
    return v_VTK / np.maximum(np.sqrt(np.einsum("vtk,vtk->vt", v_VTK, v_VTK)), 1e-300)[:, :, None]


def _feasible(M_TT: NDArray[np.float64], y_T: NDArray[np.float64]) -> float:
    """`sum y` after lifting y until `diag(y) - M` is psd, rounding included."""
    missing = max(0.0, -float(np.linalg.eigvalsh(np.diag(y_T) - M_TT)[0])) + _rounding(M_TT, y_T)
    return float(y_T.sum() + len(y_T) * missing)


def _rounding(M_TT: NDArray[np.float64], y_T: NDArray[np.float64]) -> float:
    """How far rounding can move an eigenvalue, or a pivot, of `diag(y) - M`."""
    return 8 * len(y_T) * np.finfo(float).eps * float(np.abs(M_TT).sum(axis=1).max() + np.abs(y_T).max())
