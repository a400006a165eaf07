"""The inputs of a real run: gradients from the task, noise from its source, compression from the public seed.

Shapes: N nodes, D parameters, S noise sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core import arrays
from sottovoce.core.arrays import Precision, Reals, Rows
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation, for_sources, groups_of
from sottovoce.core.exact_gaussians import draw_discrete_gaussians, fine_, guess_
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.integer_sums import Integers, encoded, whole_sizes
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Fill, Sources
from sottovoce.core.random_streams import RandomSource, StreamName, check_seed, public_stream
from sottovoce.core.release import Gradient
from sottovoce.core.rounded_sum import (
    FINE,
    GUESSES,
    CorrelationErrors,
    ExactSum,
    NoiseBounds,
    noise_bounds,
    rounded_sum_,
)
from sottovoce.errors import Diverged, InputError

CHUNK = 1 << 22
"""At most about this many noise values are alive at once, whatever the number of edges."""

USELESS = 64.0
"""Steps: where guesses may be further off than this, they decide nothing, and are not made."""

SINGLE: Precision = np.dtype(np.float32)
DOUBLE: Precision = np.dtype(np.float64)

Block: TypeAlias = tuple[NDArray[np.intp], Reals]
"""Which sources, and their draws."""


class NoiseFeed:
    """Real gradients, and noise drawn by source and round.

    `seed` is public, and decides how messages are compressed.
    """

    def __init__(self, seed: int, source: RandomSource, gradient: Gradient, like: Rows) -> None:
        self.seed, self._source, self._gradient, self._like = check_seed(seed), source, gradient, like
        self._past: list[Rows] = []
        self._errors: dict[Correlation, CorrelationErrors] = {}
        self._next_round = 0
        self._keeps_streams = False
        self._goes_on = False

    def finish(self, round: int) -> None:
        """Streams of the round are erased, unless later rounds may need more digits of them."""
        if not self._keeps_streams:
            self._source.erase(round)

    def knows_noise_before(self, round: int) -> bool:
        """Noise of a key is drawn again; secret noise was drawn by this process, or restored."""
        return round == 0 or self._source.repeatable or self._goes_on

    def past(self) -> dict[int, Rows]:
        """What later rounds of correlated noise look back at, by round."""
        return dict(zip(range(self._next_round - len(self._past), self._next_round), self._past, strict=True))

    def restore_past(self, past: Mapping[int, Rows], next_round: int) -> None:
        """Go on with a round from what `past` gave in an earlier process."""
        self._past, self._next_round, self._goes_on = [past[t] for t in sorted(past)], next_round, True

    def restore_streams(self, keys: Mapping[StreamName, bytes]) -> None:
        """Go on with the streams of an earlier process: correlated noise on a grid takes those of all rounds."""
        self._source.restore(keys)
        self._keeps_streams = self._goes_on = True

    def gradient(self, round: int, point: Rows) -> Rows:
        """Asks the task; refuses what would poison every neighbour."""
        grad = self._gradient(round, arrays.read_only(point))
        if arrays.is_torch(grad) != arrays.is_torch(point) or not arrays.is_plain(grad) or np.ma.isMaskedArray(grad):
            raise InputError(
                f"gradient of type {type(grad).__name__}", f"points are {type(point).__name__}", "return the same type"
            )
        if tuple(grad.shape) != tuple(point.shape):
            raise InputError(
                f"gradient of shape {tuple(grad.shape)}", f"points have {tuple(point.shape)}", "one row per node"
            )
        if not (math.isfinite(float(grad.sum())) or arrays.all_finite(grad)):
            raise Diverged(
                f"gradient with nan or infinity in round {round}",
                "it would spread to every node",
                "clip it, or lower the step size",
            )
        return grad

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """`matrix @ Z`, a block of sources at a time."""
        return arrays.convert(self._drawn(sources, matrix, round, step, arrays.numpy_dtype(self._like)), self._like)

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """Values plus `matrix @ Z` of all terms, rounded to the grid as if they were real numbers; or whole steps."""
        values_ND = arrays.to_numpy(values)
        if noise.whole and noise.correlation is not None:  # an audit replays sums as they are worth
            (term,) = noise.in_units
            worth = arrays.to_numpy(self.correlated(noise.correlation, term.sources, term.matrix, round))
            return arrays.in_float64(values_ND + worth.astype(np.float64), values)
        if noise.whole:
            return arrays.in_float64(self._whole_steps(values_ND, noise, round) * noise.step, values)
        sums, known = (self._fresh_sums if noise.correlation is None else self._correlated_sums)(noise, round)
        exact = ExactSum(values_ND, noise, self._source, round)
        return arrays.convert(rounded_sum_(values_ND, sums, known, noise.step, exact.decide), values)

    def _whole_steps(self, values: Reals, noise: NoiseOnGrid, round: int) -> Integers:
        """The rounded values of every node, and a discrete Gaussian of its own stream."""
        (term,), steps = noise.terms, encoded(values, noise.step)
        sizes = term.matrix.diagonal()
        assert sizes is not None
        for node, sigma in enumerate(whole_sizes(sizes)):
            if sigma:
                stream = term.sources.stream(self._source, node, round, 0)
                steps[node] += draw_discrete_gaussians(stream, values.shape[1], sigma)
        return steps

    def _fresh_sums(self, noise: NoiseOnGrid, round: int) -> tuple[Reals, NoiseBounds]:
        """`matrix @ Z` of all terms: guesses in float32, or, where these would decide nothing, numbers of float64."""
        n = noise.terms[0].matrix.shape[0]
        known = noise_bounds(noise.terms, n, GUESSES)
        fill_: Fill = guess_
        dtype = SINGLE
        if known.error_N.max(initial=0.0) > USELESS:
            known, fill_, dtype = noise_bounds(noise.terms, n, FINE), fine_, DOUBLE
        first, *others = (self._drawn(term.sources, term.matrix, round, 0, dtype, fill_) for term in noise.in_units)
        return sum(others, first), known

    def _correlated_sums(self, noise: NoiseOnGrid, round: int) -> tuple[Reals, NoiseBounds]:
        """`matrix @ (C^-1 Z)_t` in float64."""
        self._keeps_streams = True
        assert noise.correlation is not None
        (term,) = noise.terms
        correlation, own = for_sources(noise.correlation, term.sources), _identity(term.matrix.used())
        drawn = self._recursion(correlation, round, lambda t: self._drawn(term.sources, own, t, 0, DOUBLE, fine_))
        sums = noise.in_units[0].matrix.whole() @ drawn
        error_N = abs(term.matrix.whole()) @ self._errors_after(round, correlation, term.sources.size)
        return sums, NoiseBounds(error_N, np.nanmax(np.abs(sums), axis=1) / noise.step)

    def _drawn(
        self,
        sources: Sources,
        matrix: FactoredMatrix,
        round: int,
        step: int,
        dtype: Precision,
        fill_: Fill | None = None,
    ) -> Reals:
        """`matrix @ Z`, a block of sources at a time."""
        D = self._like.shape[1]
        return _times(matrix, sources.draw(self._source, round, step, D, dtype, matrix.used(), CHUNK, fill_), D, dtype)

    def _errors_after(self, round: int, correlation: Correlation, sources: int) -> Reals:
        """How far the correlated number of each source may be off in this round."""
        error_S = np.empty(sources)
        for part, places in groups_of(correlation, np.arange(sources)):
            error_S[places] = self._errors.setdefault(part, CorrelationErrors(part)).of(round)
        return error_S

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_t`: earlier rounds are remembered as far as C looks back, or drawn again."""
        own = _identity(matrix.used())
        result = self._recursion(for_sources(correlation, sources), round, lambda t: self.noise(sources, own, t, 0))
        return arrays.operator(matrix.whole(), self._like) @ result

    def _recursion(self, correlation: Correlation, round: int, fresh: Callable[[int], Rows]) -> Rows:
        """`(C^-1 Z)_t` from the draws of each round, which `fresh` gives."""
        if round < self._next_round:
            self._past, self._next_round = [], 0
        for t in range(self._next_round if correlation.memory else round, round + 1):
            result, remembered = correlation.next(t, fresh(t), self._past)
            self._past = [*self._past, remembered][-correlation.memory :] if correlation.memory else []
        self._next_round = round + 1
        return result

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Each node's row with its own random stream."""
        streams = self.compression_streams(range(rows.shape[0]), round, step)
        return arrays.convert(operator.apply(arrays.to_numpy(rows), streams), rows)

    def compression_streams(self, nodes: Iterable[int], round: int, step: int) -> list[np.random.Generator]:
        """The random stream of each of these nodes, for compressing its row."""
        return [public_stream(self.seed, "compression", [int(node)], round, step) for node in nodes]


def _identity(used: NDArray[np.bool_]) -> FactoredMatrix:
    return FactoredMatrix(sparse.diags_array(used.astype(float), format="csr"))


def _times(matrix: FactoredMatrix, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    sizes = matrix.diagonal()
    return _product(matrix, blocks, D, dtype) if sizes is None else _scaled(sizes, blocks, D, dtype)


def _scaled(sizes: Reals, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    """Every target has a source of its own: rows are scaled where they were drawn, and stay there if it is one block.

    Rows are zero where nothing was drawn.
    """
    total: Reals | None = None
    for which, rows in blocks:
        rows *= sizes[which, None].astype(dtype)
        if len(which) == len(sizes):
            return rows
        total = np.zeros((len(sizes), D), dtype=dtype) if total is None else total
        total[which] = rows
    return np.zeros((len(sizes), D), dtype=dtype) if total is None else total


def _product(matrix: FactoredMatrix, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    total = np.zeros((matrix.shape[0], D), dtype=dtype)
    targets = [(sparse.csc_array(matrix.plain, dtype=dtype), total)]
    if matrix.left is not None and matrix.right is not None:
        reached = np.unique(matrix.left.indices)
        inner = np.zeros((len(reached), D), dtype=dtype)
        targets.append((sparse.csc_array(matrix.right[reached], dtype=dtype), inner))
    for which, rows in blocks:
        for part, out in targets:
            _add_product_(out, part[:, which], rows)
    if matrix.left is not None and len(targets) > 1:
        total += matrix.left.tocsc()[:, reached].astype(dtype) @ targets[1][1]
    return total


def _add_product_(out: Reals, block: sparse.csc_array, rows: Reals) -> None:
    """`out += block @ rows`, touching only the rows of `out` that the block reaches."""
    touched, row = np.unique(block.indices, return_inverse=True)
    small = sparse.csc_array((block.data, row, block.indptr), shape=(len(touched), block.shape[1]))
    out[touched] += small @ rows
