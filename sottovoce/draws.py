"""The feed of a real run: gradients from the task, noise and compression from keyed draws.

Shapes: N nodes, D parameters, S noise sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce import arrays
from sottovoce.arrays import Rows
from sottovoce.compression import Compression
from sottovoce.correlation import Correlation
from sottovoce.errors import InputError
from sottovoce.noise import Spread
from sottovoce.sources import Sources, generator

Gradient = Callable[[int, Rows], Rows]
"""`gradient(round, points)`: every node's gradient at its own point, one row per node, clipped to the sensitivity.

It must not change `points`.
"""

CHUNK = 1 << 22
"""At most about this many noise values are alive at once, whatever the number of edges."""


class Draws:
    """Real gradients, and noise drawn by (seed, source, round)."""

    def __init__(self, seed: int, gradient: Gradient, like: Rows) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed {seed!r}", "it is a whole number", "give 0, say")
        self.seed, self._gradient, self._like = seed, gradient, like
        self._past: list[Any] = []
        self._next_round = 0

    def gradient(self, round: int, point: Rows) -> Rows:
        """Asks the task; refuses what would poison every neighbour."""
        grad = self._gradient(round, arrays.read_only(point))
        if arrays.is_torch(grad) != arrays.is_torch(point) or not arrays.is_real(grad) or np.ma.isMaskedArray(grad):
            raise InputError(
                f"gradient of type {type(grad).__name__}", f"points are {type(point).__name__}", "return the same kind"
            )
        if tuple(grad.shape) != tuple(point.shape):
            raise InputError(
                f"gradient of shape {tuple(grad.shape)}", f"points have {tuple(point.shape)}", "one row per node"
            )
        if not (math.isfinite(float(grad.sum())) or arrays.all_finite(grad)):
            raise InputError(
                f"gradient with nan or infinity in round {round}",
                "it would spread to every node",
                "clip it, lower the step size",
            )
        return grad

    def noise(self, sources: Sources, matrix: Spread, round: int, step: int) -> Rows:
        """`matrix @ Z`, a chunk of sources at a time."""
        D, dtype = self._like.shape[1], arrays.numpy_dtype(self._like)
        targets = [(sparse.csc_array(matrix.plain, dtype=dtype), np.zeros((matrix.shape[0], D), dtype=dtype))]
        if matrix.left is not None and matrix.right is not None:
            reached = np.flatnonzero(np.diff(matrix.left.tocsc().indptr))
            inner = np.zeros((len(reached), D), dtype=dtype)
            targets.append((sparse.csc_array(matrix.right[reached], dtype=dtype), inner))
        needed = np.any([np.diff(part.indptr) > 0 for part, _ in targets], axis=0)
        for which, rows in sources.draw(self.seed, round, step, D, dtype, needed, CHUNK):
            for part, out in targets:
                _add_product_(out, part[:, which], rows)
        total = targets[0][1]
        if matrix.left is not None and len(targets) > 1:
            total += matrix.left.tocsc()[:, reached].astype(dtype) @ targets[1][1]
        return arrays.convert(total, self._like)

    def correlated(self, correlation: Correlation, sources: Sources, matrix: Spread, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_t`: earlier rounds are remembered as far as C looks back, or drawn again."""
        if round < self._next_round:
            self._past, self._next_round = [], 0
        eye = Spread(sparse.eye_array(sources.size, format="csr"))
        for t in range(self._next_round, round + 1):
            fresh = self.noise(sources, eye, t, 0)
            result, keep = correlation.next(t, fresh, self._past)
            self._past = [*self._past, keep][-correlation.memory :] if correlation.memory else []
        self._next_round = round + 1
        return arrays.operator(matrix.whole(), self._like) @ result

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Each node's row with its own random stream."""
        values = rows.detach().cpu().numpy() if arrays.is_torch(rows) else rows
        streams = [generator(self.seed, "compression", [node], round, step) for node in range(len(values))]
        return arrays.convert(operator.apply(values, streams), rows)


def _add_product_(out: NDArray[Any], block: sparse.csc_array, rows: NDArray[Any]) -> None:
    """`out += block @ rows`, touching only the rows of `out` that the block reaches."""
    touched, row = np.unique(block.indices, return_inverse=True)
    small = sparse.csc_array((block.data, row, block.indptr), shape=(len(touched), block.shape[1]))
    out[touched] += small @ rows
