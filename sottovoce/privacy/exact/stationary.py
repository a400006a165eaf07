"""The loss of many victims in a long run whose rounds are all alike: one whitening for every round, and what it lacks.

The rows of `L^-1` settle from round to round, though slowly. Let C have the last rows of `L^-1` in every round, shifted
back in time: block Toeplitz, so `C A` is too, and one pass back in time with the observations of a single round gives
the whitened responses to all impulses. What C lacks in the first rounds is

    E = C G C^T = I - D,        G^-1 = C^T E^-1 C,        M = (C A_u)^T E^-1 (C A_u),

with few eigenvalues of D that matter. For any `D_k = Q diag(h) Q^T`, Q orthonormal and h < 1,

    eta E - (D - D_k) psd    implies    E^-1 <= (1 + eta) (I - D_k)^-1 = (1 + eta) (I + Q diag(h / (1 - h)) Q^T).

The condition is checked by a Cholesky factor, so M is never too small, in the order of psd matrices and hence in every
direction and pattern; where D is psd, as it is when hidden noise only grows from no noise at all, M is at most 1 + eta
times the truth.

Shapes: V victims, T rounds, P observations of one round, R observations, K directions, F frequencies, X state.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from sottovoce.privacy.exact.whitening import PARTS, Array, Groups, responses, shares
from sottovoce.privacy.observation import Observation
from sottovoce.support.progress import report_work
from sottovoce.support.threads import WORKERS, chunks, one_thread

ETA = 5e-6
"""How far, relatively, M may be above the truth."""

DIRECTIONS = 512
"""How many directions of what one whitening lacks are looked for at first; twice as many as long as all matter."""

ROWS = 1024
"""Rows of C, which has as many entries as G, that are alive at once."""

VICTIMS = 16
"""Victims whose transforms are alive at once in a thread."""

AT_ONCE = 6e7
"""About how many entries of M, and of responses, may be alive at once."""

EPSILON = float(np.finfo(float).eps)


def settled_(observation: Observation, factor_RR: Array, rounding: float) -> Groups | None:
    """M of some victims after others, at most 1 + ETA times the truth; None where unproven. Overwrites the factor L."""
    last_PR = _last(factor_RR, len(factor_RR) // len(observation.steps))
    Y_RK = lacking_(factor_RR, last_PR, rounding)
    if Y_RK is None:
        return None
    return _losses(observation, last_PR, Y_RK, (1 + ETA) * (1 + rounding + _transforming(Y_RK, len(observation.steps))))


def _last(factor: Array, count: int) -> Array:
    """The last rows of the factor's inverse."""
    units = np.eye(len(factor), count, count - len(factor))
    rows: Array = linalg.solve_triangular(factor, units, lower=True, trans="T", check_finite=False).T
    return rows


def lacking_(factor_RR: Array, last_PR: Array, rounding: float) -> Array | None:
    """Y, R x K, with `E^-1 <= (1 + ETA) (I + Y Y^T)`; None where unproven. Overwrites the factor."""
    R, carried = len(factor_RR), 1 + _widest(last_PR) * _widest(factor_RR)
    E_RR = _lacks_(factor_RR, last_PR)
    margin = rounding + 8 * R * EPSILON * carried * _widest(E_RR)
    h_K, Q_RK = _leading(E_RR)
    some = h_K > 0.8 * ETA
    h_K, Q_RK = h_K[some], np.ascontiguousarray(Q_RK[:, some])
    if np.any(h_K >= 1):
        return None
    E_RR *= 1 + ETA
    E_RR += (Q_RK * h_K) @ Q_RK.T
    np.einsum("rr->r", E_RR)[:] -= 1 + margin
    proven = lapack.dpotrf(E_RR.T, lower=1, overwrite_a=1)[1] == 0
    return Q_RK * np.sqrt(h_K / (1 - h_K)) if proven else None


def _widest(matrix: Array) -> float:
    """The largest sum of absolute values in a row: how far products with it carry rounding errors."""
    parts = (matrix[:, first : first + ROWS] for first in range(0, matrix.shape[1], ROWS))
    return float(sum(np.abs(part).sum(axis=1) for part in parts).max())


def _lacks_(factor_RR: Array, last_PR: Array) -> Array:
    """`E = (C L) (C L)^T`; C L is written over L, from the last rows, which no others need."""
    P, R = last_PR.shape
    wide = max(1, ROWS // P) * P
    parts = [slice(begin, min(R, begin + wide)) for begin in range(0, R, wide)]
    E_RR = np.empty((R, R))

    def times_(rows: slice, C: Array, columns: slice) -> None:
        factor_RR[rows, columns] = C[:, columns.start :] @ factor_RR[columns.start : rows.stop, columns]

    def square_(part: slice) -> None:
        E_RR[part.start :, part] = factor_RR[part.start :, : part.stop] @ factor_RR[part, : part.stop].T
        E_RR[part, part.stop :] = E_RR[part.stop :, part].T

    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        for count in range(len(parts), 0, -1):
            rows = parts[count - 1]
            list(pool.map(partial(times_, rows, _toeplitz(last_PR, rows)), parts[:count]))
            report_work(0.5 / len(parts))
        for _ in pool.map(square_, parts):
            report_work(0.5 / len(parts))
    return E_RR


def _toeplitz(last_PR: Array, rows: slice) -> Array:
    """Some rows of the whitening matrix C."""
    P, R = last_PR.shape
    C = np.zeros((rows.stop - rows.start, rows.stop))
    for row in range(rows.start, rows.stop, P):
        C[row - rows.start :][:P, : row + P] = last_PR[:, R - row - P :]
    return C


@one_thread()
def _leading(E_RR: Array) -> tuple[Array, Array]:
    """The larger eigenvalues of `D = I - E` and their directions, by subspace iteration from a random start."""
    R, size = len(E_RR), DIRECTIONS
    Q_RK = np.zeros((R, 0))
    while 2 * size < R:
        more = np.random.default_rng(size).standard_normal((R, size - Q_RK.shape[1]))
        Q_RK = np.concatenate([Q_RK, more], axis=1)
        for _ in range(2):
            Q_RK, _ = linalg.qr(Q_RK - _times(E_RR, Q_RK), mode="economic", overwrite_a=True, check_finite=False)
        h_K, turn = linalg.eigh(np.eye(size) - Q_RK.T @ _times(E_RR, Q_RK), check_finite=False)
        Q_RK = Q_RK @ turn
        if h_K[0] < ETA / 4:
            return h_K, Q_RK
        size *= 2
    sizes, Q_RR = linalg.eigh(E_RR, check_finite=False)
    return 1 - sizes, Q_RR


def _times(E_RR: Array, Q_RK: Array) -> Array:
    out = np.empty((len(E_RR), Q_RK.shape[1]))
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda rows: np.matmul(E_RR[rows], Q_RK, out=out[rows]), shares(len(E_RR), PARTS)))
    return out


def _losses(observation: Observation, last_PR: Array, Y_RK: Array, scale: float) -> Groups:
    """`scale (C A)^T (I + Y Y^T) (C A)` of some victims after others."""
    V, T, P = len(observation.victims), len(observation.steps), len(last_PR)
    size = max(1, min(V, int(AT_ONCE / T**2), int(AT_ONCE / (T * P))))
    desks: SimpleQueue[_Desk] = SimpleQueue()
    for _ in range(WORKERS):
        desks.put(_Desk.of(Y_RK.reshape(T, P, -1)))

    def weigh(_: range, s: int, __: Array) -> Array:
        return last_PR[:, s * P : (s + 1) * P].T

    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        for first in range(0, V, size):
            group = slice(first, min(V, first + size))
            white_TVP = responses(observation, weigh, group, range(T - 1, T))
            M_VTT = np.empty((group.stop - first, T, T))
            some = list(chunks(len(M_VTT), VICTIMS))
            for _ in pool.map(partial(_products_, M_VTT, white_TVP, scale, desks), some):
                report_work(len(M_VTT) / len(some) / V)
            yield group, M_VTT


class _Desk(NamedTuple):
    """What a thread works with: transforms of Y, and rooms that are never given back, for new memory costs most."""

    Y_FPK: NDArray[np.complex128]
    lacks_FVK: NDArray[np.complex128]
    lacks_TVK: Array

    @classmethod
    def of(cls, Y_TPK: Array) -> _Desk:
        from scipy import fft

        T, _, K = Y_TPK.shape
        twice = fft.next_fast_len(2 * T - 1, real=True)
        room = np.empty((twice // 2 + 1, VICTIMS, K), dtype=complex)
        return cls(fft.rfft(Y_TPK, twice, axis=0), room, np.empty((twice, VICTIMS, K)))


def _products_(M_VTT: Array, white_TVP: Array, scale: float, desks: SimpleQueue[_Desk], some: slice) -> None:
    """Write `scale (C A)^T (I + Y Y^T) (C A)` of some victims.

    `(C A)^T C A` sums the products of the last responses along diagonals; `Y^T C A` correlates Y with the responses.
    """
    from scipy import fft

    desk, white, M = desks.get(), white_TVP[:, some], M_VTT[some]
    T, twice = len(white), len(desk.lacks_TVK)
    np.matmul(white.transpose(1, 0, 2), white.transpose(1, 2, 0), out=M)
    for s in range(T - 2, -1, -1):
        M[:, s, :-1] += M[:, s + 1, 1:]
    white_FVP = fft.rfft(white[::-1], twice, axis=0)
    lacks_FVK, lacks_TVK = desk.lacks_FVK[:, : len(M)], desk.lacks_TVK[:, : len(M)]
    np.matmul(white_FVP.conj(), desk.Y_FPK, out=lacks_FVK)
    np.fft.irfft(lacks_FVK, twice, axis=0, out=lacks_TVK)
    M += lacks_TVK[:T].transpose(1, 0, 2) @ lacks_TVK[:T].transpose(1, 2, 0)
    M *= scale
    desks.put(desk)


def _transforming(Y_RK: Array, rounds: int) -> float:
    """A bound on the share of a victim's loss that Fourier transforms may round away.

    They leave an error in `Y^T C A` of at most a few eps log T in norm, times `||Y|| sqrt(R)` times the response's;
    directions have norms up to sqrt(T), and the loss of the first round alone is at least the response's norm squared.
    """
    return 16 * EPSILON * np.log2(4 * rounds) * float((Y_RK**2).sum() + 1) * float(np.sqrt(len(Y_RK) * rounds))
