"""Closed views: training where every reaction is a function of what the adversary has already seen.

Then adaptive gradients cost nothing and the exact loss is proven for any training. With F_t the observations sent
before any message that holds a gradient of round t, the point where an honest node k takes that gradient must be
`c [A|B]_(F_t) + r`, where

1. r has no noise part;
2. r has no columns of a victim other than k;
3. nor of k itself, unless the sensitivity bounds the difference of k's gradients over all pairs of points (user level).

Batches, compression and mixing never depend on data or noise here: the tracer refuses what does (rule 4).

Two checks: by the step matrices, where the state after a round is a combination of what was just seen; and, for small
systems, by the unrolled ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.privacy.views import Inputs, Seen, View, see
from sottovoce.trace import LinearSystem

Array = NDArray[np.float64]

TOLERANCE = 1e-9
SMALL = 4_000_000
"""Largest number of entries of B for the unrolled check."""


@dataclass(frozen=True)
class Closedness:
    """Whether a view is closed, at which level, and what stands in the way."""

    closed: bool
    user_level_only: bool = False
    reason: str = ""


def closedness(system: LinearSystem, view: View) -> Closedness:
    """Check the rules on the traced system, the adversary's own messages counted as seen."""
    seen = see(system, view, own=True)
    open_node = open_by_steps(seen)
    if open_node is None:
        return Closedness(True)
    rows = sum(step.seen.state.shape[0] for step in seen.steps)
    sources = sum(step.seen.noise.shape[1] for step in seen.steps)
    if rows * max(sources, 1) > SMALL:
        return Closedness(False, reason=f"node {open_node} reacts to what the view has not seen")
    return _unrolled(seen)


def open_by_steps(seen: Seen) -> int | None:
    """The first honest node whose state after a round is no combination of what was just seen, if there is one."""
    victims = set(seen.victims.tolist())
    for step in dict.fromkeys(seen.steps[:-1]):
        rows, out = _joined(step.seen), _joined(step.out)
        missing = _outside(rows, out)
        n = seen.system.n
        nodes = np.unique(np.flatnonzero(missing) % n)
        found = next((int(node) for node in nodes if int(node) in victims), None)
        if found is not None:
            return found
    return None


def _joined(parts: Inputs) -> sparse.csr_array:
    return sparse.hstack(parts, format="csr")


def _outside(rows: sparse.csr_array, wanted: sparse.csr_array) -> NDArray[np.bool_]:
    """Which wanted rows are not in the span of `rows`."""
    n = wanted.shape[0]
    if rows.shape[0] >= n and rows.shape[0] * rows.shape[1] > SMALL:  # everyone, large: try the obvious combination
        if rows.shape[0] != n or wanted.shape[1] < n:
            return np.ones(n, dtype=bool)
        left = wanted.tocsc()[:, :n].tocsr()
        gap = abs(wanted - left @ rows)
        sizes = np.asarray(abs(wanted).max(axis=1).toarray()).ravel()
        return np.asarray(gap.max(axis=1).toarray()).ravel() > TOLERANCE * sizes
    if rows.shape[0] == 0:
        return np.asarray(abs(wanted).sum(axis=1)).ravel() > 0
    basis, triangle, _ = linalg.qr(rows.toarray().T, mode="economic", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(triangle))
    basis = basis[:, : int(np.sum(sizes > 1e-12 * sizes[0]))]
    dense = wanted.toarray()
    rest = dense - (dense @ basis) @ basis.T
    return np.linalg.norm(rest, axis=1) > TOLERANCE * np.maximum(np.linalg.norm(dense, axis=1), 1e-300)


def _unrolled(seen: Seen) -> Closedness:
    """The rules on A, B and the rows of the query points."""
    A_RG, B_RZ, rounds_R, points = _with_points(seen)
    V = len(seen.victims)
    reaching = _reaching(A_RG, points, V)
    only_user = False
    for number, (round, point_G, point_Z) in enumerate(points):
        before = _before(rounds_R, A_RG, number, V, round)
        needed = np.flatnonzero(reaching[number])
        if not needed.size:
            continue
        combination = linalg.lstsq(B_RZ[before].T, point_Z[needed].T, check_finite=False)[0].T if before.any() else None
        rest_Z, rest_G = point_Z[needed], point_G[needed]
        if combination is not None:
            rest_Z = rest_Z - combination @ B_RZ[before]
            rest_G = rest_G - combination @ A_RG[before]
        scale = np.maximum(1e-300, np.abs(np.concatenate([point_Z[needed], point_G[needed]], axis=1)).max())
        for k, noise, gradient in zip(needed, rest_Z, rest_G, strict=True):
            node = int(seen.victims[k])
            if np.abs(noise).max(initial=0.0) > TOLERANCE * scale:
                return Closedness(False, reason=f"node {node} reacts in round {round} to noise the view has not seen")
            others = np.abs(gradient.reshape(-1, V)).max(axis=0, initial=0.0)
            own = others[k]
            others[k] = 0.0
            if others.max(initial=0.0) > TOLERANCE * scale:
                heard = int(seen.victims[int(np.argmax(others))])
                return Closedness(False, reason=f"node {node} reacts in round {round} to node {heard} unseen")
            only_user = only_user or own > TOLERANCE * scale
    return Closedness(True, user_level_only=only_user)


def _before(rounds_R: NDArray[np.intp], A_RG: Array, number: int, V: int, round: int) -> NDArray[np.bool_]:
    """Observations sent before any message with a gradient of this round: of earlier rounds, and of its own."""
    own = A_RG[:, number * V : (number + 1) * V].any(axis=1)
    return (rounds_R < round) | ((rounds_R == round) & ~own)


def _with_points(
    seen: Seen,
) -> tuple[Array, Array, NDArray[np.intp], list[tuple[int, Array, Array]]]:
    """A and B unrolled, the round of each row, and for each gradient round its query points' rows over (G, Z)."""
    A_RTV, B_RZ = seen.dense()
    A_RG = A_RTV.reshape(len(A_RTV), -1)
    rounds_R = np.repeat(np.arange(len(seen.steps)), [step.seen.state.shape[0] for step in seen.steps])
    G_total, Z_total = A_RG.shape[1], B_RZ.shape[1]
    state = np.zeros((seen.steps[0].seen.state.shape[1], G_total + Z_total))
    points, g, z = [], 0, G_total
    for round, step in enumerate(seen.steps):
        inputs_g = np.zeros((step.seen.gradient.shape[1], G_total + Z_total))
        inputs_g[:, g : g + len(inputs_g)] = np.eye(len(inputs_g))
        inputs_z = np.zeros((step.seen.noise.shape[1], G_total + Z_total))
        inputs_z[:, z : z + len(inputs_z)] = np.eye(len(inputs_z))
        g, z = g + len(inputs_g), z + len(inputs_z)
        if step.point is not None:
            where = (step.point.state @ state)[seen.victims]
            points.append((round, where[:, :G_total], _mixed(seen, where[:, G_total:])))
        state = step.out.state @ state + step.out.gradient @ inputs_g + step.out.noise @ inputs_z
    return A_RG, B_RZ, rounds_R, points


def _mixed(seen: Seen, rows_Z: Array) -> Array:
    correlation = seen.system.correlation
    if correlation is None:
        return rows_Z
    return rows_Z @ np.kron(correlation.inverse(len(seen.steps)), np.eye(len(seen.steps[0].noise_columns)))


def _reaching(A_RG: Array, points: list[tuple[int, Array, Array]], V: int) -> NDArray[np.bool_]:
    """Which (gradient round, victim) reach the view, directly or through another's query point."""
    reaches = A_RG.any(axis=0).reshape(len(points), V)
    for number in range(len(points) - 1, -1, -1):
        moved = points[number][1][reaches[number]]
        if len(moved):
            reaches |= moved.any(axis=0).reshape(len(points), V)
    return reaches
