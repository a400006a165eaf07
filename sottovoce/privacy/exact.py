"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

Routes to the same numbers:

- `gram`: covariance of all observations by lags, one Cholesky factor and its inverse for all victims;
- `kalman`: a whitening filter over rounds, for small graphs, long runs and topologies that change;
- `conjugate`: conjugate gradients, victim by victim, where neither the observations nor the state fit in memory;
- `orthogonal`: an orthonormal basis of the noise that reaches the view, where noise is poorer than what is said
  (averaging, several gossip steps per gradient, masks); the only one that decides about rank;
- `dense`: the pseudo-inverse, the oracle of the tests.

Shapes: V victims, T gradient rounds, R observations, P observations of one round, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.errors import Unaccountable
from sottovoce.privacy.closedness import open_by_steps
from sottovoce.privacy.conjugate import conjugate
from sottovoce.privacy.gram import gram
from sottovoce.privacy.kalman import kalman
from sottovoce.privacy.released import loss_given_noisy_gradients
from sottovoce.privacy.said import without_what_was_said
from sottovoce.privacy.sensitivity import Participation, worst_case
from sottovoce.privacy.views import Seen
from sottovoce.privacy.whiten import Array, Groups, Singular, starts

ORTHOGONAL = 1e8
"""Largest number of entries of B for which averaging, whose noise is always poor, takes the orthogonal route."""

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route may be taken: its matrices have their square in entries."""

FILTER_STATE = 6_000
"""Up to this many components of the state the filter may be taken."""

RANK = 1e-13
"""Directions of noise below this share of the largest are rounding."""

ARNOLDI = 1e-11
"""Part of a unit vector outside the basis so far below which it is rounding."""

UNCOVERED = 1e-7
"""Share of a signal that may lie outside the noise, as rounding, before the loss is infinite."""


def squared(seen: Seen, scheme: Participation) -> Array:
    """mu^2 of every victim: the worst direction and pattern; infinite where a signal is not covered by noise."""
    if tells_all_noisy_gradients(seen):
        return loss_given_noisy_gradients(seen.system, seen.view, seen.victims, scheme)
    out = np.zeros(len(seen.victims))
    for group, M_VTT in in_groups(seen):
        covered = np.isfinite(M_VTT).all(axis=(1, 2))
        found = np.full(len(M_VTT), np.inf)
        if covered.any():
            found[covered] = worst_case(M_VTT[covered], scheme, M_VTT.shape[1])
        out[group] = found
    return out


def tells_all_noisy_gradients(seen: Seen) -> bool:
    """Whether the view is exactly that of all noisy gradients, which has a closed form.

    It is when all hear everything, the state after each round follows from what was just said, noise travels with its
    gradient, and every gradient stands alone in some message.
    """
    if seen.view.kind != "everyone" or seen.view.secure_sum or seen.system.algorithm.once:
        return False
    for step in dict.fromkeys(seen.steps):
        gradient = step.seen.gradient
        alone = gradient[np.flatnonzero(np.diff(gradient.indptr) == 1)]
        if step.takes_gradients and len(np.unique(alone.indices)) < gradient.shape[1]:
            return False
    if open_by_steps(seen) is not None:
        return False
    try:
        loss_given_noisy_gradients(seen.system, seen.view, seen.victims[:1], Participation(1))
    except Unaccountable:
        return False
    return True


def losses(seen: Seen) -> Array:
    """M of every victim, V x T x T; infinite throughout where a signal is not covered by noise."""
    return whole(seen, in_groups(seen))


def whole(seen: Seen, groups: Groups) -> Array:
    """Groups of victims put together."""
    M_VTT = np.zeros((len(seen.victims), seen.gradient_rounds, seen.gradient_rounds))
    for group, found in groups:
        M_VTT[group] = found
    return M_VTT


def in_groups(seen: Seen) -> Groups:
    """M of some victims after others, by the route that fits the size."""
    sources = sum(step.seen.noise.shape[1] for step in seen.steps)
    if seen.system.algorithm.once and starts(seen.steps)[-1] * sources <= ORTHOGONAL:
        yield slice(None), orthogonal(seen)
        return
    smaller, direct = without_what_was_said(seen)
    try:  # what is singular shows before the first group
        for group, M_VTT in _route(smaller)(smaller):
            M_VTT += direct[group, None, None] * np.eye(M_VTT.shape[1])
            yield group, M_VTT
    except Singular:
        yield slice(None), orthogonal(seen)


def _route(seen: Seen) -> Callable[[Seen], Groups]:
    """By memory, then by the number of multiplications; only the Gram route takes correlated noise."""
    T, rows = len(seen.steps), int(starts(seen.steps)[-1])
    X = max(max(step.out.state.shape) for step in seen.steps)
    if not rows or not seen.gradient_rounds:
        return _silence
    if rows > GRAM_ROWS and X > FILTER_STATE:
        return conjugate
    each, links = rows / T, max(step.out.state.nnz for step in seen.steps)
    by_gram = rows**2 * X + 2 / 3 * rows**3
    by_filter = T * (2 * each * X**2 + 40 * links * X) + rows * T * each * X
    cheaper = rows > GRAM_ROWS or (by_filter < by_gram and X <= FILTER_STATE)
    return kalman if cheaper and seen.system.correlation is None else gram


def _silence(seen: Seen) -> Groups:
    yield slice(None), np.zeros((len(seen.victims), seen.gradient_rounds, seen.gradient_rounds))


# --- orthogonal basis ----------------------------------------------------------------------------------------------


def orthogonal(seen: Seen) -> Array:
    """M from an orthonormal basis of the noise that reaches the view, by pivoted QR of B^T.

    Where each gradient enters exactly as one noise source does, `A = B C` is known and M is read off the basis: its
    condition does not matter. Elsewhere signals are solved for, and those outside the noise have infinite loss.
    """
    A_RTV, B_RZ = _averaging_rows(seen) if _is_averaging(seen) else seen.dense()
    if not B_RZ.any():
        bare = np.where(A_RTV.any(axis=(0, 1)), np.inf, 0.0)
        return np.broadcast_to(bare[:, None, None], (len(bare), A_RTV.shape[1], A_RTV.shape[1])).copy()
    Q_ZK, R_KR, pivots = linalg.qr(B_RZ.T, mode="economic", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(R_KR))
    K = int(np.sum(sizes > RANK * max(B_RZ.shape) ** 0.5 * (sizes[0] if sizes.size else 0.0)))
    R, T, V = A_RTV.shape
    matched = _matched_columns(A_RTV, B_RZ)
    if matched is not None:
        column_TV, share_TV = matched
        basis = Q_ZK[column_TV][..., :K] * share_TV[..., None]
        return np.einsum("svk,tvk->vst", basis, basis)
    first, others = pivots[:K], pivots[K:]
    flat = A_RTV.reshape(R, T * V)
    white = linalg.solve_triangular(R_KR[:K, :K].T, flat[first], lower=True, check_finite=False)
    missed = flat[others] - R_KR[:K, K:].T @ white
    scale = np.maximum(np.abs(flat).max(axis=0), 1e-300)
    uncovered = (np.abs(missed).max(axis=0, initial=0.0) > UNCOVERED * scale).reshape(T, V).any(axis=0)
    white_KTV = white.reshape(K, T, V)
    M_VTT = np.einsum("ksv,ktv->vst", white_KTV, white_KTV)
    M_VTT[uncovered] = np.inf
    return M_VTT


def _is_averaging(seen: Seen) -> bool:
    """Values and noise enter in the first round, and all later rounds are one and the same."""
    later = seen.steps[1:]
    quiet = all(not step.takes_gradients and not step.seen.noise.shape[1] for step in later)
    return len(later) > 1 and quiet and all(step is later[0] for step in later)


def _averaging_rows(seen: Seen) -> tuple[Array, Array]:
    """Rows with the span of A and B, but well conditioned: powers of W are replaced by an orthonormal basis.

    The rows `H F^j` of later rounds soon look alike, and what tells them apart would drown in rounding; a block Arnoldi
    basis of the same space keeps every direction at its full size.
    """
    first, later = seen.steps[0], seen.steps[1]
    H, F = later.seen.state.toarray(), later.out.state
    basis = np.zeros((H.shape[1], 0))
    block = H.T
    for _ in range(len(seen.steps) - 1):
        sizes = np.linalg.norm(block, axis=0)
        block = block[:, sizes > RANK] / sizes[sizes > RANK]
        for _ in range(2):
            block = block - basis @ (basis.T @ block)
        new, triangle, _ = linalg.qr(block, mode="economic", pivoting=True, check_finite=False)
        new = new[:, np.abs(np.diag(triangle)) > ARNOLDI]
        if not new.shape[1]:
            break
        basis = np.concatenate([basis, new], axis=1)
        block = np.asarray(F.T @ new)
    A = np.concatenate([first.seen.gradient.toarray(), basis.T @ first.out.gradient.toarray()])
    B = np.concatenate([first.seen.noise.toarray(), basis.T @ first.out.noise.toarray()])
    return A[:, None, :], B


def _matched_columns(A_RTV: Array, B_RZ: Array) -> tuple[NDArray[np.intp], Array] | None:
    """For each gradient column the noise column it is a multiple of, and the factor; None where one has none."""
    R, T, V = A_RTV.shape
    flat = A_RTV.reshape(R, T * V)
    sizes_B = np.linalg.norm(B_RZ, axis=0)
    sizes_A = np.linalg.norm(flat, axis=0)
    units = B_RZ / np.where(sizes_B > 0, sizes_B, 1.0)
    column = np.argmax(np.abs(units.T @ flat), axis=0)
    share = np.where(
        sizes_A > 0, (units[:, column] * flat).sum(axis=0) / np.where(sizes_B > 0, sizes_B, 1.0)[column], 0
    )
    rest = flat - B_RZ[:, column] * share
    if np.any(np.linalg.norm(rest, axis=0) > 1e-13 * np.maximum(sizes_A, 1e-300)):
        return None
    return column.reshape(T, V), share.reshape(T, V)


# --- oracle --------------------------------------------------------------------------------------------------------


def dense(seen: Seen, *, rank: float = 1e-11) -> Array:
    """M by the pseudo-inverse of B B^T: the definition itself."""
    A_RTV, B_RZ = seen.dense()
    R, T, V = A_RTV.shape
    left, sizes, _ = np.linalg.svd(B_RZ, full_matrices=False)
    keep = sizes > rank * (sizes[0] if sizes.size else 0.0)
    coordinates = (left[:, keep].T @ A_RTV.reshape(R, T * V)).reshape(-1, T, V)
    rest = A_RTV - np.einsum("rk,ktv->rtv", left[:, keep], coordinates)
    white = coordinates / sizes[keep][:, None, None]
    M_VTT = np.einsum("ksv,ktv->vst", white, white)
    M_VTT[(np.abs(rest).max(axis=(0, 1)) > UNCOVERED * np.abs(A_RTV).max(axis=(0, 1), initial=1e-300))] = np.inf
    return M_VTT
