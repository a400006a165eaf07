"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

Routes to the same numbers:

- `gram`: covariance of all observations by lags, one Cholesky factor and its inverse for all victims; in long runs of
  equal rounds one whitening for all of them instead (`settled`), whose M is up to one part in a million too large;
- `kalman`: a whitening filter over rounds, for small graphs, long runs and topologies that change;
- `conjugate`: conjugate gradients, victim by victim, where neither the observations nor the state fit in memory;
- `deflated`: an orthonormal basis of the noise that reaches the view, where noise is poorer than what is said
  (averaging, masks); the only one that decides about rank;
- `dense`: the pseudo-inverse, the oracle of the tests.

Shapes: V victims, T gradient rounds, R observations, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import Unaccountable
from sottovoce.privacy.closedness import open_by_steps
from sottovoce.privacy.conjugate import conjugate
from sottovoce.privacy.deflation import UNCOVERED, deflated, well_conditioned
from sottovoce.privacy.gram import gram
from sottovoce.privacy.kalman import kalman
from sottovoce.privacy.released import loss_given_noisy_gradients
from sottovoce.privacy.said import without_what_was_said
from sottovoce.privacy.sensitivity import Participation, worst_case
from sottovoce.privacy.views import Inputs, Seen, see
from sottovoce.privacy.whiten import Array, Groups, Singular, silence, starts

DEFLATED = 1e8
"""Largest number of entries that the hidden state may have as a map from noise where averaging, whose noise is always
poor, takes the route by deflation."""

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route may be taken: its matrices have their square in entries."""

FILTER_STATE = 6_000
"""Up to this many components of the state the filter may be taken."""


def squared(seen: Seen, scheme: Participation) -> Array:
    """mu^2 of every victim: the worst direction and pattern; infinite where a signal is not covered by noise."""
    if not any(part.noise.nnz for step in seen.steps for part in (step.seen, step.out)):
        return np.where(_reached(seen), np.inf, 0.0)
    if tells_all_noisy_gradients(seen):
        return loss_given_noisy_gradients(seen.system, seen.view, seen.victims, scheme)
    out = np.zeros(len(seen.victims))
    for group, M_VTT in in_groups(seen):
        covered = np.isfinite(M_VTT).all(axis=(1, 2))
        found = np.full(len(M_VTT), np.inf)
        if covered.any():
            found[covered] = worst_case(M_VTT if covered.all() else M_VTT[covered], scheme, M_VTT.shape[1])
        out[group] = found
    return out


def _reached(seen: Seen) -> NDArray[np.bool_]:
    """Whose gradients come into any observation at all, unless terms cancel."""
    found = np.zeros(len(seen.victims), dtype=bool)
    touched = np.zeros((seen.steps[0].out.state.shape[1], len(seen.victims)))
    for step in seen.steps:
        heard, after = (_touched(part, touched) for part in (step.seen, step.out))
        found |= heard.any(axis=0)
        if found.all():
            break
        touched = after.astype(float)
    return found


def _touched(part: Inputs, touched: Array) -> NDArray[np.bool_]:
    there = abs(part.state) @ touched
    if part.gradient.shape[1]:
        there = there + abs(part.gradient).toarray()
    return np.asarray(there > 0)


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
    if seen.system.algorithm.once and seen.steps[0].out.state.shape[0] * sources <= DEFLATED:
        yield slice(None), _deflated(seen)
        return
    smaller, direct = without_what_was_said(well_conditioned(seen))
    try:  # what is singular shows before the first group
        for group, M_VTT in _route(smaller)(smaller):
            np.einsum("vtt->vt", M_VTT)[:] += direct[group, None]
            yield group, M_VTT
    except Singular:
        yield slice(None), _deflated(seen)


def _deflated(seen: Seen) -> Array:
    """Deflation with everyone as a victim: what is rounding is told by all signals, not by those of a few."""
    whole = see(seen.system, seen.view)
    M_VTT = deflated(whole if seen.system.algorithm.once else well_conditioned(whole))
    return M_VTT[np.searchsorted(whole.victims, seen.victims)]


def _route(seen: Seen) -> Callable[[Seen], Groups]:
    """By memory, then by the number of multiplications; only the Gram route takes correlated noise."""
    T, rows = len(seen.steps), int(starts(seen.steps)[-1])
    X = max(max(step.out.state.shape) for step in seen.steps)
    if not rows or not seen.gradient_rounds:
        return silence
    if rows > GRAM_ROWS and X > FILTER_STATE:
        return conjugate
    each, links = rows / T, max(step.out.state.nnz for step in seen.steps)
    by_gram = rows**2 * X + 2 / 3 * rows**3
    by_filter = T * (2 * each * X**2 + 40 * links * X) + rows * T * each * X
    cheaper = rows > GRAM_ROWS or (by_filter < by_gram and X <= FILTER_STATE)
    return kalman if cheaper and seen.system.correlation is None else gram


# --- oracle --------------------------------------------------------------------------------------------------------


class Whitened(NamedTuple):
    """Observations made white: `matrix @ O` is unit noise plus `signal`; `bare` is what of a signal no noise covers."""

    matrix_KR: Array
    signal_KTV: Array
    bare_RTV: Array
    uncovered_V: NDArray[np.bool_]


def whitened(seen: Seen, *, rank: float = 1e-11) -> Whitened:
    """A view's observations whitened by a singular value decomposition of B; for small systems."""
    A_RTV, B_RZ = seen.dense()
    R, T, V = A_RTV.shape
    left, sizes, _ = np.linalg.svd(B_RZ, full_matrices=False)
    keep = sizes > rank * (sizes[0] if sizes.size else 0.0)
    coordinates = (left[:, keep].T @ A_RTV.reshape(R, T * V)).reshape(-1, T, V)
    bare = A_RTV - np.einsum("rk,ktv->rtv", left[:, keep], coordinates)
    uncovered = np.abs(bare).max(axis=(0, 1), initial=0.0) > UNCOVERED * np.abs(A_RTV).max(axis=(0, 1), initial=1e-300)
    return Whitened(left[:, keep].T / sizes[keep, None], coordinates / sizes[keep][:, None, None], bare, uncovered)


def dense(seen: Seen, *, rank: float = 1e-11) -> Array:
    """M by the pseudo-inverse of B B^T: the definition itself."""
    white = whitened(seen, rank=rank)
    M_VTT = np.einsum("ksv,ktv->vst", white.signal_KTV, white.signal_KTV)
    M_VTT[white.uncovered_V] = np.inf
    return M_VTT
