"""M of all victims, a little above the truth, where a message takes as much from u to v as from v to u.

Made for many attackers: nothing here takes more than the square of all observations times those of one round. As in
`stationary`, one whitening C serves all rounds, block Toeplitz with blocks c_j, and what it lacks is `E = C G C^T =
I - D`. Let N_j be what noise does to the observations j rounds later. `N_i N_j^T` depends on i + j alone (i, j > 0), so
with `B_t = sum_{j<t} c_j N_{t-j}` and `F_s = N_1 B_s^T`

    B_{t+1} B_s^T = B_t B_{s+1}^T + c_t F_s - F_t^T c_s^T
    E[t, s] = E[t-1, s-1] + B_t B_s^T + c_t N_0 N_0^T c_s^T,

and D takes a few products for each of its blocks. Any C will do: it comes from some steps of conjugate gradients, in
single precision. Whatever U is,

    E >= (1 - eta) I - U U^T    implies    E^-1 <= (I + Y Y^T) / (1 - eta),    Y Y^T = U ((1 - eta) I - U^T U)^-1 U^T,

in the order of psd matrices. The norm of `D - U U^T` is at most that of the matrix of its blocks' Frobenius norms, and
is added to eta: so M is never too small.

Shapes: V victims, T rounds, P observations of one round, R observations, K directions, X state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.privacy.exact.fourier import lagged_products
from sottovoce.privacy.exact.gram import common_factor, turns_back
from sottovoce.privacy.exact.whitening import Array, Groups
from sottovoce.privacy.exact.workspace import WORKSPACE
from sottovoce.privacy.observation import Observation, ObservedStep

Single = NDArray[np.float32]

ROWS = 16_000
"""Largest number of observations: D has its square in entries."""

RESIDUAL, STEPS = 3e-6, 30
"""Conjugate gradients end at this residual of each column, or after so many steps."""

DIRECTIONS, MORE = 2, 100
"""Directions of D that are looked for, for each observation of one round and besides; twice as many where these are too
few."""

SHARE = 0.7
"""Of the accuracy that is left to D; the rest is for single precision in `fourier`."""

EPSILON, SINGLE = float(np.finfo(float).eps) / 2, float(np.finfo(np.float32).eps) / 2
"""Unit roundoffs."""


class _Lags(NamedTuple):
    """Effects of the state on observations after 0, 1, ... rounds; covariances of those of noise, by sums of lags."""

    state_TXP: Array
    gamma_TPP: Array
    fresh_PP: Array


def reversible(observation: Observation, eta: float, every: bool) -> Groups | None:
    """M of some victims after others, in an array they share, at most 1 + eta times the truth; None where unproven.

    That is so for losses of data that changes in `every` round, or of data that changes in some.
    """
    step, T = observation.steps[0], len(observation.steps)
    if not _applies(observation):
        return None
    lags, size = _in_units(_lags(step, T))
    filter_TPP, largest = _filter(lags, T) if 0 < size < np.inf else (None, np.inf)
    if filter_TPP is None or not np.isfinite(largest):
        return None
    D_RR, rounding = _lacks(lags, filter_TPP)
    found = _directions(D_RR, len(lags.fresh_PP), rounding, SHARE * eta)
    if found is None:
        return None
    Y_RK, scale = found
    Y_TPK = Y_RK.reshape(T, len(lags.fresh_PP), Y_RK.shape[1])
    return lagged_products(step, lags.state_TXP, filter_TPP, Y_TPK, scale / size, largest, every)


def _applies(observation: Observation) -> bool:
    """Whether rounds are alike, inputs enter the state as state does, and what is seen of fresh noise goes nowhere."""
    step, T = observation.steps[0], len(observation.steps)
    if observation.system.correlation is not None or any(other is not step for other in observation.steps):
        return False
    if T < 3 or not step.takes_gradients or T * step.observed.state.shape[0] > ROWS:
        return False
    if (abs(step.observed.noise) @ abs(step.out.noise).T).nnz or not turns_back(step):
        return False
    return common_factor(step.out.state, step.out.gradient) is not None


def _lags(step: ObservedStep, T: int) -> _Lags:
    on: sparse.csr_array = step.out.state.T.tocsr()
    P, X = step.observed.state.shape
    state_TXP = WORKSPACE.take("lags", (T, X + 1, P))
    state_TXP[:, X] = 0
    state_TXP[0, :X] = step.observed.state.T.toarray()
    for lag in range(1, T):
        state_TXP[lag, :X] = on @ state_TXP[lag - 1, :X]
    factor = common_factor(step.out.state, step.out.noise)
    assert factor is not None
    gamma_TPP = np.zeros((2 * T - 1, P, P))
    for both in range(2, 2 * T - 1):
        gamma_TPP[both] = state_TXP[both // 2].T @ state_TXP[both - both // 2]
    gamma_TPP *= factor**2
    return _Lags(state_TXP, gamma_TPP, (step.observed.noise @ step.observed.noise.T).toarray())


def _in_units(lags: _Lags) -> tuple[_Lags, float]:
    """Covariances in units of the mean variance of an observation, which fit single precision; and that unit."""
    size = float(np.trace(lags.fresh_PP) + np.trace(lags.gamma_TPP[2])) / len(lags.fresh_PP)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return lags._replace(gamma_TPP=lags.gamma_TPP / size, fresh_PP=lags.fresh_PP / size), size


def _filter(lags: _Lags, T: int) -> tuple[Array | None, float]:
    """About the last rows of `L^-1`, by lag, where `G = L L^T`; and a bound on the largest eigenvalue of G."""
    P = len(lags.fresh_PP)
    G_RR = _covariance(lags, T)
    last_RP = np.zeros((T * P, P), dtype=np.float32)
    last_RP[-P:] = np.eye(P)
    try:
        inverse_RP = _solved(G_RR, last_RP).astype(float)
        corner = inverse_RP[-P:]
        factor = linalg.cholesky((corner + corner.T) / 2, lower=True)
    except (linalg.LinAlgError, ValueError):
        return None, np.inf
    rows_PR: Array = linalg.solve_triangular(factor, inverse_RP.T, lower=True)
    by_lag = rows_PR.reshape(P, T, P).transpose(1, 0, 2)[::-1]
    return np.ascontiguousarray(by_lag), float(linalg.norm(G_RR, check_finite=False))


def _covariance(lags: _Lags, T: int) -> Single:
    """G in single precision."""
    P = len(lags.fresh_PP)
    gamma = lags.gamma_TPP.transpose(1, 0, 2).reshape(P, -1).astype(np.float32)
    G_RR: Single = WORKSPACE.take("square", (T * P, T * P), np.float32)
    G_RR[:P, P:] = 0
    G_RR[:P, :P] = lags.fresh_PP
    for t in range(1, T):
        row, before = G_RR[t * P : (t + 1) * P], G_RR[(t - 1) * P : t * P]
        row[:, :P] = 0
        np.add(before[:, :-P], gamma[:, (t + 1) * P : (t + T) * P], out=row[:, P:])
    return G_RR


def _solved(G_RR: Single, right_RP: Single) -> Single:
    """The last columns of `G^-1` by conjugate gradients for all of them together; `right` has those of I."""
    found_RP, left_RP = np.zeros_like(right_RP), right_RP.copy()
    along_RP, moved_RP = right_RP, G_RR[:, -right_RP.shape[1] :]
    for step in range(STEPS):
        if step:
            along_RP, _ = linalg.qr(along_RP, mode="economic", check_finite=False)
            moved_RP = G_RR @ along_RP
        curved_PP = linalg.cho_factor((along_RP.T @ moved_RP).astype(float))
        step_PP = linalg.cho_solve(curved_PP, (along_RP.T @ left_RP).astype(float)).astype(np.float32)
        found_RP += along_RP @ step_PP
        left_RP -= moved_RP @ step_PP
        if linalg.norm(left_RP) < RESIDUAL * np.sqrt(right_RP.shape[1]):
            break
        turn_PP = linalg.cho_solve(curved_PP, (moved_RP.T @ left_RP).astype(float)).astype(np.float32)
        along_RP = left_RP - along_RP @ turn_PP
    return found_RP


def _lacks(lags: _Lags, filter_TPP: Array) -> tuple[Single, float]:
    """D in single precision, and a bound on the norm of its rounding error before it was stored so."""
    T, P, _ = filter_TPP.shape
    ahead_TPP = _ahead(lags.gamma_TPP, filter_TPP)
    with_last_TPP = _with_last(ahead_TPP, filter_TPP)
    ahead, filters = (
        np.ascontiguousarray(part.transpose(1, 0, 2)).reshape(P, -1)
        for part in (ahead_TPP[:T], filter_TPP.transpose(0, 2, 1))
    )
    D_RR: Single = WORKSPACE.take("square", (T * P, T * P), np.float32)
    products, row = np.zeros((P, T * P)), np.zeros((P, (T + 1) * P))
    for t in range(T):  # products: B_t B_s^T, and row: E[t, s], for s from t to T - 1
        row = row[:, : (T - t) * P] + products
        row += (filter_TPP[t] @ lags.fresh_PP) @ filters[:, t * P :]
        here = slice(t * P, (t + 1) * P)
        D_RR[here, t * P :] = -row
        D_RR[here, here] = np.eye(P) - row[:, :P]
        D_RR[(t + 1) * P :, here] = -row[:, P:].T
        if t < T - 1:
            some = slice((t + 1) * P, (T - 1) * P)
            following = filter_TPP[t] @ ahead[:, some] - ahead_TPP[t].T @ filters[:, some]
            products = np.concatenate([products[:, 2 * P :] + following, with_last_TPP[t + 1]], axis=1)
    sizes = linalg.norm(filter_TPP, axis=(1, 2)).sum() ** 2
    spread = float(np.abs(lags.fresh_PP).sum(axis=1).max()) + max(map(np.trace, lags.gamma_TPP[2::2]))
    return D_RR, float(8 * T**2 * EPSILON * (T * P + lags.state_TXP.shape[1] + 64) * sizes * spread)


def _ahead(gamma_TPP: Array, filter_TPP: Array) -> Array:
    """`F_s = sum_{j<s} Gamma_{s+1-j} c_j^T` for s below 2 T - 2."""
    T = len(filter_TPP)
    found = _convolved(gamma_TPP, filter_TPP.transpose(0, 2, 1), 3 * T)[1 : 2 * T - 1]
    found[0] = 0
    return found


def _with_last(ahead_TPP: Array, filter_TPP: Array) -> Array:
    """`B_t B_s^T` for the last s: `sum_{j<t} c_j F_{s+t-1-j} - F_{t-1}^T c_s^T`, since there is no c after that."""
    T = len(filter_TPP)
    known = _convolved(filter_TPP, ahead_TPP[T - 1 :], 2 * T)[: T - 1]
    found = np.zeros_like(filter_TPP)
    found[1:] = known - ahead_TPP[: T - 1].transpose(0, 2, 1) @ filter_TPP[-1].T
    return found


def _convolved(one: Array, other: Array, length: int) -> Array:
    """`sum_j one_j other_{t-j}`, of matrices, for t below this length."""
    from scipy import fft

    length = fft.next_fast_len(length, real=True)
    found: Array = fft.irfft(fft.rfft(one, length, axis=0) @ fft.rfft(other, length, axis=0), length, axis=0)
    return found


def _directions(D_RR: Single, P: int, rounding: float, eta: float) -> tuple[Array, float] | None:
    """Y, R x K, and a scale with `E^-1 <= scale (I + Y Y^T)`; None where M may be more than 1 + eta times the truth.

    Where `D - U U^T` is psd, as it is for the exact C up to rounding, M is not.
    """
    for times in (1, 2):
        U_RK = _leading(D_RR, min(times * (DIRECTIONS * P + MORE), len(D_RR)))
        rest = rounding + _rest(D_RR, U_RK, P)
        if not U_RK.shape[1]:
            return (U_RK.astype(float), 1 / (1 - rest)) if rest <= eta / (1 + eta) else None
        products_KK = U_RK.T.astype(float) @ U_RK
        wide_KK = np.cumsum(np.abs(products_KK), axis=1)  # of the first so many directions, which are the smallest
        lost_K = np.array([0.0, *(wide_KK[: some + 1, some].max() for some in range(len(wide_KK)))])
        largest = wide_KK[:, -1].max(initial=0.0)
        with np.errstate(divide="ignore"):
            above_K = (lost_K + rest) / (1 - lost_K - rest - largest)
        few = np.flatnonzero((above_K >= 0) & (above_K <= eta))
        if few.size:
            kept, missing = slice(few[-1], None), lost_K[few[-1]] + rest
            left_KK = (1 - missing) * np.eye(len(products_KK) - few[-1]) - products_KK[kept, kept]
            factor = linalg.cholesky(left_KK, lower=True)
            Y_RK = linalg.solve_triangular(factor, U_RK[:, kept].T.astype(float), lower=True).T
            return Y_RK, 1 / (1 - missing)
    return None


def _leading(D_RR: Single, count: int) -> Single:
    """U, R x K, with U U^T about the larger part of D, by subspace iteration from a random start; largest last."""
    start_RK = np.random.default_rng(0).standard_normal((len(D_RR), count), dtype=np.float32)
    Q_RK, _ = linalg.qr(D_RR @ start_RK, mode="economic", overwrite_a=True, check_finite=False)
    image_RK = D_RR @ Q_RK
    h_K, turn_KK = linalg.eigh((Q_RK.T @ image_RK).astype(float), check_finite=False)
    some = h_K > 1e-6
    return np.asarray(image_RK @ (turn_KK[:, some] / np.sqrt(h_K[some])).astype(np.float32))


def _rest(D_RR: Single, U_RK: Single, P: int) -> float:
    """A bound on the norm of `D - U U^T`: that of the matrix of Frobenius norms of its blocks, rounding included."""
    T = len(D_RR) // P
    norms_TT = np.zeros((T, T))
    for t in range(T):
        here = slice(t * P, (t + 1) * P)
        block = D_RR[here, t * P :] - U_RK[here] @ U_RK[t * P :].T
        norms_TT[t, t:] = norms_TT[t:, t] = np.sqrt(np.square(block).reshape(P, T - t, P).sum(axis=(0, 2), dtype=float))
    rounding = SINGLE * (U_RK.shape[1] + 4) * float(np.square(U_RK).sum(dtype=float) + linalg.norm(norms_TT))
    return (1 + 4 * SINGLE) * float(np.linalg.eigvalsh(norms_TT)[-1]) + rounding
