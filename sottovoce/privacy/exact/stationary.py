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

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from sottovoce.privacy.exact.whitening import EPS, Array, Groups, backwards, responses
from sottovoce.privacy.observation import Observation
from sottovoce.support.progress import report_work
from sottovoce.support.threads import WORKERS, chunks, one_thread

ETA = 5e-6
"""How far, relatively, M may be above the truth."""

DIRECTIONS = 512
"""How many directions of what one whitening lacks are looked for at first; twice as many as long as all matter."""

PARTS = 8
"""Parts of a product that threads take: as many on every machine, so that no bit depends on it."""

VICTIMS = 16
"""Victims whose transforms are alive at once in a thread."""

AT_ONCE = 6e7
"""About how many entries of M, and of responses, may be alive at once."""


@one_thread()
def settled(observation: Observation, factor_RR: Array, rounding: float) -> Groups | None:
    """M of some victims after others, at most 1 + ETA times the truth, from the factor L; None where unproven."""
    T = len(observation.steps)
    units = np.eye(len(factor_RR), len(factor_RR) // T, len(factor_RR) // T - len(factor_RR))
    last_PR = linalg.solve_triangular(factor_RR, units, lower=True, trans="T", check_finite=False).T
    Y_RK = lacking(factor_RR, last_PR, rounding)
    if Y_RK is None:
        return None
    return _losses(observation, last_PR, Y_RK, (1 + ETA) * (1 + rounding + _transforming(Y_RK, T)))


def lacking(factor_RR: Array, last_PR: Array, rounding: float) -> Array | None:
    """Y, R x K, with `E^-1 <= (1 + ETA) (I + Y Y^T)`; None where unproven."""
    R, carried = len(factor_RR), 1 + _widest(last_PR) * _widest(factor_RR)
    E_RR = lacks(factor_RR, last_PR)
    margin = rounding + 8 * R * EPS * carried * _widest(E_RR)
    h_K, Q_RK = _leading(E_RR)
    h_K, Q_RK = h_K[h_K > 0.8 * ETA], Q_RK[:, h_K > 0.8 * ETA]
    if np.any(h_K >= 1):
        return None
    E_RR *= 1 + ETA
    E_RR += (Q_RK * h_K) @ Q_RK.T
    np.einsum("rr->r", E_RR)[:] -= 1 + margin
    proven = lapack.dpotrf(E_RR.T, lower=1, overwrite_a=1)[1] == 0
    return Q_RK * np.sqrt(h_K / (1 - h_K)) if proven else None


def _widest(matrix: Array) -> float:
    """The largest sum of absolute values in a row: how far products with it carry rounding errors."""
    return float(np.abs(matrix).sum(axis=1).max())


def lacks(factor_RR: Array, last_PR: Array) -> Array:
    """`E = (C L) (C L)^T`."""
    CL_RR = _times(toeplitz(last_PR), factor_RR, lower=True)
    report_work(0.5)
    E_RR = np.tril(_times(CL_RR, CL_RR.T, lower=True))
    E_RR += np.tril(E_RR, -1).T
    report_work(0.5)
    return E_RR


def toeplitz(last_PR: Array) -> Array:
    """The whitening matrix C."""
    P, R = last_PR.shape
    C_RR = np.zeros((R, R))
    for row in range(0, R, P):
        C_RR[row : row + P, : row + P] = last_PR[:, R - row - P :]
    return C_RR


def _times(one_RR: Array, other_RK: Array, *, lower: bool = False) -> Array:
    """A product; of matrices that are `lower` triangular, or of one and its transpose, the lower triangle."""
    R, out = len(one_RR), np.zeros((len(one_RR), other_RK.shape[1]))

    def times(rows: slice) -> None:
        stop = rows.stop if lower else R
        out[rows, : rows.stop if lower else None] = (
            one_RR[rows, :stop] @ other_RK[:stop, : rows.stop if lower else None]
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(times, chunks(R, -(-R // PARTS))))
    return out


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


def _losses(observation: Observation, last_PR: Array, Y_RK: Array, scale: float) -> Groups:
    """`scale (C A)^T (I + Y Y^T) (C A)` of some victims after others."""
    from scipy import fft  # small accounts are quicker than loading it

    V, T, P = len(observation.victims), len(observation.steps), len(last_PR)
    length = fft.next_fast_len(2 * T - 1, real=True)
    Y_FPK = fft.rfft(Y_RK.reshape(T, P, -1), length, axis=0)
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        for group in chunks(V, int(AT_ONCE / max(T**2, T * P))):
            back = backwards(observation, group)
            white_TVP = responses(
                observation, lambda _, s, __: last_PR[:, s * P : (s + 1) * P].T, back, range(T - 1, T)
            )
            some = [white_TVP[:, few] for few in chunks(white_TVP.shape[1], VICTIMS)]
            M_VTT = np.concatenate(list(pool.map(partial(_products, Y_FPK=Y_FPK, length=length), some)))
            report_work((group.stop - group.start) / V)
            M_VTT *= scale
            yield group, M_VTT


def _products(white_TVP: Array, Y_FPK: Array, length: int) -> Array:
    """`(C A)^T (I + Y Y^T) (C A)` of some victims, from responses of the last round.

    `(C A)^T C A` sums their products along diagonals; `Y^T C A` correlates Y with them.
    """
    from scipy import fft

    T = len(white_TVP)
    M_VTT = white_TVP.transpose(1, 0, 2) @ white_TVP.transpose(1, 2, 0)
    for s in range(T - 2, -1, -1):
        M_VTT[:, s, :-1] += M_VTT[:, s + 1, 1:]
    lags_FVP = fft.rfft(white_TVP[::-1], length, axis=0)
    lacks_TVK = fft.irfft(lags_FVP.conj() @ Y_FPK, length, axis=0)[:T]
    return M_VTT + lacks_TVK.transpose(1, 0, 2) @ lacks_TVK.transpose(1, 2, 0)


def _transforming(Y_RK: Array, rounds: int) -> float:
    """A bound on the share of a victim's loss that Fourier transforms may round away.

    They leave an error in `Y^T C A` of at most a few eps log T in norm, times `||Y|| sqrt(R)` times the response's;
    directions have norms up to sqrt(T), and the loss of the first round alone is at least the response's norm squared.
    """
    return 16 * EPS * np.log2(4 * rounds) * float((Y_RK**2).sum() + 1) * float(np.sqrt(len(Y_RK) * rounds))
