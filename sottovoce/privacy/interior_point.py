"""The semidefinite value of several matrices at once, by a primal-dual interior-point method.

    max {<M, R> : R psd, R_tt = 1}  =  min {sum y : Z = diag(y) - M psd}

Both sides stay strictly feasible from the first step on, so `sum y` is a bound wherever the method stops, and `<R, Z>`
is how far it can be above the optimum. It takes about ten steps, whatever the matrix.

Shapes: V matrices, T rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]

STEPS = 60
"""After so many a matrix keeps what it has reached; ten are usual."""

SHORTER, INSIDE, SHORTEST = 0.8, 0.95, 1e-6
"""Steps that leave the cone are made shorter by the first, until they do not; then by the second, to stay inside. Those
that would be shorter than the third are not taken: rounding decides there."""


class Solution(NamedTuple):
    """Of each matrix y, and R that is as near to the optimum as `sum y` is."""

    y_VT: Array
    R_VTT: Array


def semidefinite_values(M_VTT: Array, gap: float, enough_V: Array | None = None) -> Solution:
    """y and R of every matrix, with `sum y` within a relative gap of the optimum, or below what is `enough`.

    No matrix may be zero.
    """
    size_V = np.abs(M_VTT).max(axis=(1, 2), initial=0.0)
    point = _Point(M_VTT / size_V[:, None, None])
    found = Solution(np.zeros(M_VTT.shape[:2]), np.zeros_like(M_VTT))
    some = np.arange(len(M_VTT))
    enough_V = np.zeros(len(M_VTT)) if enough_V is None else enough_V / size_V
    for step in range(STEPS):
        if not some.size:
            break
        point.step()
        value = point.y_VT.sum(axis=1)
        done = (point.gaps() <= gap * value) | (value <= enough_V[some]) | (step == STEPS - 1)
        if done.any():
            found.y_VT[some[done]], found.R_VTT[some[done]] = point.y_VT[done], point.R_VTT[done]
            some = some[~done]
            point.keep(~done)
    return found._replace(y_VT=found.y_VT * size_V[:, None])


class _Point:
    """Where the method stands: y, Z and R of every matrix, and how far from the boundary it aims."""

    def __init__(self, M_VTT: Array) -> None:
        T = M_VTT.shape[1]
        widest_VT = np.abs(M_VTT).sum(axis=2)
        self.y_VT = widest_VT + 0.05 * widest_VT.mean(axis=1, keepdims=True)
        self.R_VTT = np.broadcast_to(np.eye(T), M_VTT.shape).copy()
        self.Z_VTT = np.negative(M_VTT)
        _diagonal(self.Z_VTT)[:] += self.y_VT
        self._aim_V = self.gaps() / (2 * T)

    def gaps(self) -> Array:
        """`<R, Z>`: the distance of both sides."""
        return np.einsum("vst,vst->v", self.R_VTT, self.Z_VTT)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Go on with some matrices only."""
        self.y_VT, self.R_VTT, self.Z_VTT = self.y_VT[which], self.R_VTT[which], self.Z_VTT[which]
        self._aim_V = self._aim_V[which]

    def step(self) -> None:
        """A Newton step towards `Z R = aim I`, as long as both sides allow, and a nearer aim if they allow much."""
        inverse_VTT = _inverses(self.Z_VTT)
        missing_VT = self._aim_V[:, None] * _diagonal(inverse_VTT) - 1.0
        dy_VT = _solved(inverse_VTT * self.R_VTT, missing_VT)
        half_VTT = (inverse_VTT * dy_VT[:, None, :]) @ self.R_VTT
        dR_VTT = self._aim_V[:, None, None] * inverse_VTT - self.R_VTT - (half_VTT + half_VTT.transpose(0, 2, 1)) / 2
        dZ_VTT = np.zeros_like(self.Z_VTT)
        _diagonal(dZ_VTT)[:] = dy_VT
        by_R, by_Z = _lengths(self.R_VTT, dR_VTT), _lengths(self.Z_VTT, dZ_VTT)
        self.R_VTT += by_R[:, None, None] * dR_VTT
        self.y_VT = self.y_VT + by_Z[:, None] * dy_VT
        _diagonal(self.Z_VTT)[:] += by_Z[:, None] * dy_VT
        nearer = np.select([by_R + by_Z > 1.9, by_R + by_Z > 1.6], [5.0, 2.0], 1.0)
        self._aim_V = self.gaps() / (2 * self.y_VT.shape[1] * nearer)


def _diagonal(S_VTT: Array) -> Array:
    return np.einsum("vtt->vt", S_VTT)


def _inverses(S_VTT: Array) -> Array:
    """Of positive definite matrices; each is factored and inverted where it lies, in one of its triangles."""
    half = S_VTT.copy()
    for S in half:
        lapack.dpotrf(S.T, lower=1, overwrite_a=1)
        lapack.dpotri(S.T, lower=1, overwrite_c=1)
    found = half + half.transpose(0, 2, 1)
    _diagonal(found)[:] /= 2
    return found


def _solved(S_VTT: Array, right_VT: Array) -> Array:
    """`S^-1 right` of positive definite matrices; zero where rounding has left one that is not."""
    found = np.zeros_like(right_VT)
    for x, S, right in zip(found, S_VTT, right_VT, strict=True):
        _, solution, failed = lapack.dposv(S.T, right, lower=1, overwrite_a=1)
        if not failed:
            x[:] = solution
    return found


def _lengths(S_VTT: Array, step_VTT: Array) -> Array:
    """How far each matrix may go along its step and stay positive definite, at most by the whole of it."""
    lengths = np.ones(len(S_VTT))
    outside = np.flatnonzero(~are_definite_(S_VTT + step_VTT))
    left = outside
    while left.size:
        lengths[left] *= SHORTER
        left = left[~are_definite_(S_VTT[left] + lengths[left, None, None] * step_VTT[left])]
        left = left[lengths[left] > SHORTEST]
    lengths[outside] *= INSIDE
    return np.where(lengths > SHORTEST, lengths, 0.0)


def are_definite_(S_VTT: Array) -> NDArray[np.bool_]:
    """Which matrices have a Cholesky factor; it is written over them. What is no number has none.

    LAPACK may report success for a matrix with such entries, and leave them in its factor.
    """
    found = np.array([lapack.dpotrf(S.T, lower=1, overwrite_a=1)[1] == 0 for S in S_VTT], dtype=bool)
    with np.errstate(invalid="ignore"):
        return found & np.isfinite(_diagonal(S_VTT).sum(axis=1))
