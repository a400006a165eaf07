"""The worst change of a victim's gradients, and what it costs.

For a victim the loss is `max sum_{s,t} M[s,t] <delta_s, delta_t>` over changes with `||delta_t|| <= 1` in the rounds
of a participation pattern. Its value is a semidefinite programme,

    max {<M, R> : R psd, R_tt = 1}  =  min {sum y : diag(y) - M psd}

Any such y bounds it by `sum y`, and that dual value is what is reported.

    >>> from sottovoce.core.participation import parse_participation
    >>> M = np.array([[1.0, -0.9], [-0.9, 1.0]])
    >>> float(worst_case(M[None], parse_participation("every"), rounds=2)[0].round(6))
    3.8

All-ones would say 0.2 here: it is no bound (docs/guarantees.md).

Shapes: V victims, T rounds, K dimensions of a change.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from sottovoce.core.participation import Participation
from sottovoce.support.threads import WORKERS, chunks, one_thread

Array = NDArray[np.float64]

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

SMALL_SHARE = 1e-5
"""Of the largest direction of a worst change: smaller ones are what an interior point is off the boundary."""

AT_ONCE = 2e6
"""About how many entries of M a thread works on: with ten times as many, copies take new memory every time, which made
most of the cost."""

STEPS = 60
"""After so many steps the interior-point method keeps what it has reached; ten are usual."""

SHORTER, INSIDE, SHORTEST = 0.8, 0.95, 1e-6
"""Steps that leave the cone are made shorter by the first, until they do not; then by the second, to stay inside. Those
that would be shorter than the third are not taken: rounding decides there."""


def worst_case(M_VTT: Array, scheme: Participation, rounds: int) -> Array:
    """mu^2 of each victim: the largest over patterns of the semidefinite value, as a sound upper bound."""
    patterns = [_spaced(pattern) for pattern in scheme.patterns(rounds)]

    def largest(some: slice) -> Array:
        found = np.zeros(len(M_VTT[some]))
        for among in patterns:
            found = np.maximum(found, bound(M_VTT[some, among, among], found))
        return found

    some = list(chunks(len(M_VTT), int(AT_ONCE / M_VTT.shape[1] ** 2)))
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        found = np.concatenate([np.zeros(0), *(pool.map if len(some) > 1 else map)(largest, some)])
    return np.minimum(found, once_in_each_epoch(M_VTT, scheme.apart)) if scheme.shuffled else found


def _spaced(numbers: NDArray[np.intp]) -> slice:
    """Numbers that are equally far from each other; unlike these, a slice copies nothing."""
    return slice(numbers[0], numbers[-1] + 1, numbers[1] - numbers[0] if len(numbers) > 1 else 1)


def once_in_each_epoch(M_VTT: Array, apart: int) -> Array:
    """A bound for changes that show once in each epoch of `apart` rounds, in any of them.

    Whichever rounds these are, `sum |M[s,t]|` over pairs of them is at most the largest entry of each pair of epochs.
    """
    starts = np.arange(0, M_VTT.shape[1], apart)
    by_row = np.maximum.reduceat(np.abs(M_VTT), starts, axis=1)
    return np.asarray(np.maximum.reduceat(by_row, starts, axis=2).sum(axis=(1, 2)))


def bound(M_VTT: Array, known_V: Array | float = 0.0) -> Array:
    """The semidefinite value of each matrix, from above, within the gap; or what is no larger than a known value.

    `sum |M|` is the value of matrices without negative entries, and near enough for many others.
    """
    if not np.array_equal(M_VTT, M_VTT.transpose(0, 2, 1)):
        M_VTT = (M_VTT + M_VTT.transpose(0, 2, 1)) / 2
    found = np.abs(M_VTT).sum(axis=2).sum(axis=1)
    open_V = (found - M_VTT.sum(axis=(1, 2)) > GAP * found) & (found > known_V)
    for number in np.flatnonzero(open_V).tolist():
        found[number] = min(found[number], _dual_value(M_VTT[number], found[number]))
    return found


def _dual_value(M_TT: Array, most: float) -> float:
    """`sum y` within the gap of the optimum, where `sum |M|` is `most`.

    Signs are tried first and are often best: `y_t = s_t sum_u M[u,t] s_u`, lifted by less than the gap, needs one
    check. The rest is left to the interior-point method. Every y is checked by a Cholesky factor, and lifted by its
    rounding error: the result is sound whatever came before.
    """
    signs_T = _signs(M_TT)
    y_T = signs_T * (M_TT @ signs_T)
    reached, rounding = float(y_T.sum()), _rounding(M_TT, y_T)
    gap = GAP * reached / len(M_TT)
    if rounding < 0.1 * gap and _is_definite(_slack(y_T + 0.9 * gap, M_TT)):
        return float((y_T + (0.9 * gap + rounding)).sum())
    if most - reached <= GAP * most:
        return most
    y_T, _ = semidefinite_value(M_TT, 0.9 * GAP)
    lift, slack_TT = _rounding(M_TT, y_T), _slack(y_T, M_TT)
    if not _is_definite(slack_TT):
        lift += max(0.0, -float(np.linalg.eigvalsh(slack_TT)[0]))
    return float((y_T + lift).sum())


def _signs(M_TT: Array) -> Array:
    """Good signs, from the leading eigenvector: each step can only raise `x^T M x`."""
    x_T = np.ones(len(M_TT))
    for _ in range(4):
        x_T = M_TT @ x_T
        x_T /= max(float(np.linalg.norm(x_T)), 1e-300)
    x_T = np.where(x_T < 0, -1.0, 1.0)
    for _ in range(20):
        before, x_T = x_T, np.where(M_TT @ x_T < 0, -1.0, 1.0)
        if np.array_equal(before, x_T):
            break
    return x_T


def _slack(y_T: Array, M_TT: Array) -> Array:
    """`diag(y) - M`."""
    found = np.negative(M_TT)
    np.einsum("tt->t", found)[:] += y_T
    return found


def _rounding(M_TT: Array, y_T: Array) -> float:
    """How far rounding can move an eigenvalue, or a pivot, of `diag(y) - M`."""
    widest = float(np.abs(M_TT).sum(axis=1).max())
    return float(8 * len(y_T) * np.finfo(float).eps * (widest + np.abs(y_T).max()))


def _is_definite(S_TT: Array) -> bool:
    """Whether a matrix has a Cholesky factor. What is no number has none.

    LAPACK may report success for a matrix with such entries, and leave them in its factor.
    """
    factor, failed = lapack.dpotrf(S_TT, lower=1)
    return not failed and bool(np.isfinite(np.diag(factor).sum()))


# --- the interior-point method -------------------------------------------------------------------------------------


def semidefinite_value(M_TT: Array, gap: float) -> tuple[Array, Array]:
    """y and R, with `sum y` within a relative gap of the optimum; the matrix may not be zero.

    A primal-dual interior-point method: both sides stay strictly feasible from the first step on, so `sum y` is a bound
    wherever the method stops, and `<R, Z>` with `Z = diag(y) - M` is how far it can be above the optimum. Steps are
    Newton's towards `Z R = aim I`, as long as both sides allow, with a nearer aim if they allow much.
    """
    size, T = float(np.abs(M_TT).max()), len(M_TT)
    widest_T = np.abs(M_TT / size).sum(axis=1)
    y_T = widest_T + 0.05 * widest_T.mean()
    R_TT, Z_TT = np.eye(T), _slack(y_T, M_TT / size)
    aim = np.vdot(R_TT, Z_TT) / (2 * T)
    for _ in range(STEPS):
        inverse_TT = _inverse(Z_TT)
        _, dy_T, failed = lapack.dposv(inverse_TT * R_TT, aim * np.diag(inverse_TT) - 1.0, lower=1)
        if failed:  # rounding has left a matrix that is not positive definite
            dy_T = np.zeros(T)
        half_TT = (inverse_TT * dy_T) @ R_TT
        dR_TT = aim * inverse_TT - R_TT - (half_TT + half_TT.T) / 2
        by_R, by_Z = _length(R_TT, dR_TT), _length(Z_TT, np.diag(dy_T))
        R_TT += by_R * dR_TT
        y_T = y_T + by_Z * dy_T
        np.einsum("tt->t", Z_TT)[:] += by_Z * dy_T
        left = np.vdot(R_TT, Z_TT)
        if left <= gap * y_T.sum():
            break
        nearer = 5.0 if by_R + by_Z > 1.9 else 2.0 if by_R + by_Z > 1.6 else 1.0
        aim = left / (2 * T * nearer)
    return y_T * size, R_TT


def _inverse(S_TT: Array) -> Array:
    """Of a positive definite matrix, from its Cholesky factor."""
    half_TT = lapack.dpotri(lapack.dpotrf(S_TT, lower=1)[0], lower=1)[0]
    return np.asarray(np.tril(half_TT) + np.tril(half_TT, -1).T)


def _length(S_TT: Array, step_TT: Array) -> float:
    """How far a matrix may go along a step and stay positive definite, at most by the whole of it."""
    if _is_definite(S_TT + step_TT):
        return 1.0
    length = SHORTER
    while length > SHORTEST and not _is_definite(S_TT + length * step_TT):
        length *= SHORTER
    return INSIDE * length if INSIDE * length > SHORTEST else 0.0


# --- a change that costs most --------------------------------------------------------------------------------------


def worst_change(M_TT: Array, scheme: Participation) -> Array:
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
        v_TK = _worst_vectors(M)
        whole = np.zeros((T, v_TK.shape[1]))
        whole[pattern] = v_TK
        found.append((_value(M, v_TK), whole))
    return max(found, key=lambda pair: pair[0])[1]


def _worst_vectors(M_TT: Array) -> Array:
    signs_T1 = _signs(M_TT)[:, None]
    most = bound(M_TT[None])[0] * (1 - 10 * GAP)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    sizes, vectors = np.linalg.eigh(semidefinite_value(M_TT, GAP)[1])
    large = np.abs(vectors) > np.abs(vectors).max(axis=0) / 2
    vectors = vectors * np.sign(vectors[large.argmax(axis=0), np.arange(len(vectors))])  # whichever the processor chose
    signs_T1 = np.where(vectors[:, -1:] < 0, -1.0, 1.0)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    v_TK = (vectors * np.sqrt(np.maximum(sizes, 0.0)))[:, sizes > SMALL_SHARE * sizes[-1]]
    return np.asarray(v_TK / np.linalg.norm(v_TK, axis=1, keepdims=True))


def _value(M_TT: Array, v_TK: Array) -> float:
    return float(np.sum((M_TT @ v_TK) * v_TK))
