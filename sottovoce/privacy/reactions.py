"""Whether the states that nodes react from follow from what a view has just seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.privacy.observation import Inputs, Observation

TOLERANCE = 1e-9


SMALL = 4_000_000
"""Largest number of entries of a round's rows for a dense check."""


def open_by_steps(observation: Observation) -> int | None:
    """The first honest node whose state after a round is no combination of what was just seen, if there is one."""
    victims = set(observation.victims.tolist())
    for step in dict.fromkeys(observation.steps[:-1]):
        rows, out = _joined(step.observed), _joined(step.out)
        missing = _outside(rows, out)
        n = observation.system.n
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
