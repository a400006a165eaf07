"""The error that noise of a banded C leaves in models, and its slope, in time and memory that grow with rounds alone.

Noise `n_t = (z_t - sum_j C[t,t-j] n_{t-j}) / C[t,t]` enters a model along each eigenvector of a symmetric W as
`m_t = lambda (m_{t-1} + n_t)`, and the error is the sum of all E[m_t^2]. What rounds after t will cost is quadratic in
m_t and in the noise of the last few rounds; a pass backwards finds that, a pass forwards the covariances, and both
together the slope `-2 (C G)` in the band, where G = X^-1 H X^-1 and X = C^T C. No matrix has more than a band of C.

Shapes: T rounds, B bands, P = B - 1 earlier rounds, E eigenvalues. C is given by columns: `C_TB[s, j] = C[s+j, s]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Modes:
    """The eigenvalues of W, how much each counts, and how much the models after each round do."""

    eigenvalues_E: Array
    weights_E: Array
    rounds_T: Array


@dataclass(frozen=True, eq=False)
class BandedError:
    """`trace(X^-1 H)` at a C, with its slope by every entry of the band, by columns."""

    value: float
    slope_TB: Array
    C_TB: Array

    def dual_TB(self) -> Array:
        """`G[s+j, s]` of G = X^-1 H X^-1 within the band, by forward substitution in `C G = -slope / 2`."""
        rows_TB, CG_TB = by_rows(self.C_TB), by_rows(self.slope_TB) / -2
        T, B = rows_TB.shape
        symmetric = np.zeros((T, 2 * B - 1))  # row s: G[s-B+1 .. s+B-1, s]
        for s in range(T):
            for i in range(min(B, T - s)):
                known = symmetric[s, i : i + B - 1] @ rows_TB[s + i, :0:-1]
                symmetric[s, i + B - 1] = (CG_TB[s + i, i] - known) / rows_TB[s + i, 0]
                symmetric[s + i, B - 1 - i] = symmetric[s, i + B - 1]
        return symmetric[:, B - 1 :]


def by_rows(columns_TB: Array) -> Array:
    """`C[t, t-j]` from `C[s+j, s]`."""
    rows_TB = np.zeros_like(columns_TB)
    T, B = columns_TB.shape
    for j in range(B):
        rows_TB[j:, j] = columns_TB[: T - j, j]
    return rows_TB


def by_columns(rows_TB: Array) -> Array:
    """`C[s+j, s]` from `C[t, t-j]`."""
    columns_TB = np.zeros_like(rows_TB)
    T, B = rows_TB.shape
    for j in range(B):
        columns_TB[: T - j, j] = rows_TB[j:, j]
    return columns_TB


def banded_error(C_TB: Array, modes: Modes) -> BandedError:
    """The error of noise of this C, two bands or more, and how it changes with C."""
    rows_TB = by_rows(C_TB)
    back_TP, size_T = rows_TB[:, 1:] / rows_TB[:, :1], 1 / rows_TB[:, 0]
    value, kappa_TE, h_TP = _backward(back_TP, size_T, modes)
    return BandedError(value, by_columns(_forward(back_TP, size_T, modes, kappa_TE, h_TP)), C_TB)


def _backward(back_TP: Array, size_T: Array, modes: Modes) -> tuple[float, Array, Array]:
    """The value, and what the derivative by noise of round t is in models and in noise of the last rounds.

    What is left to pay after round t is `sum_E w (K m^2 + 2 m L p) + p S p` for models m and the last noise p.
    """
    lam, w = modes.eigenvalues_E, modes.weights_E
    (T, P), E = back_TP.shape, len(lam)
    w1, w2 = w * lam, w * lam**2
    kappa_TE, h_TP, value = np.zeros((T, E)), np.zeros((T, P)), 0.0
    K, L, S = np.zeros(E), np.zeros((E, P)), np.zeros((P, P))
    for t in range(T - 1, -1, -1):
        if t < T - 1:
            a = back_TP[t + 1]
            L_next, paid = _through(L, a), lam**2 * K
            slope = w1 @ L_next
            cross = np.multiply.outer(a, slope)
            S = _through(_through(S, a).T, a) + (w @ paid) * np.multiply.outer(a, a) - cross - cross.T
            L = lam[:, None] * L_next - np.multiply.outer(paid, a)
            K = paid
        K = K + modes.rounds_T[t]
        kappa_TE[t] = w1 * K + w * L[:, 0]
        h_TP[t] = w1 @ L + S[0]
        value += size_T[t] ** 2 * float(w2 @ K + 2 * (w1 @ L[:, 0]) + S[0, 0])
    return value, kappa_TE, h_TP


def _through(rows: Array, a: Array) -> Array:
    """Each row, as a linear form in the last noise, one round earlier: the newest is `-a` times those before it."""
    out = np.multiply.outer(-rows[:, 0], a)
    out[:, :-1] += rows[:, 1:]
    return out


def _forward(back_TP: Array, size_T: Array, modes: Modes, kappa_TE: Array, h_TP: Array) -> Array:
    """The slope by rows of C, from covariances of the last noise with itself and with models."""
    lam, (T, P) = modes.eigenvalues_E, back_TP.shape
    N, Q, slope_TB = np.zeros((P + 1, P + 1)), np.zeros((len(lam), P + 1)), np.zeros((T, P + 1))
    for t in range(T):
        a = back_TP[t]
        with_past = -(a @ N[:P])
        own = size_T[t] ** 2 - float(with_past[:P] @ a)
        model = -(Q[:, :P] @ a)
        N[1:, 1:] = N[:-1, :-1].copy()
        N[0, 0], N[0, 1:], N[1:, 0] = own, with_past[:P], with_past[:P]
        Q[:, 1:] = Q[:, :-1] + with_past[:P]
        Q[:, 0] = model + own
        Q *= lam[:, None]
        slope_TB[t] = -2 * size_T[t] * (kappa_TE[t] @ Q + h_TP[t] @ N[:P])
    return slope_TB
