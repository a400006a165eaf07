"""The inputs of a real run: gradients from the task, noise from the noise key, compression from the public seed.

Shapes: N nodes, D parameters, S noise sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core import arrays
from sottovoce.core.arrays import Precision, Reals, Rows
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.exact_gaussians import fine_, guess_
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.noise_key import NoiseKey, public_stream
from sottovoce.core.noise_sources import Sources
from sottovoce.core.prefetch import Block, Prefetcher
from sottovoce.core.rounded_sum import (
    CorrelatedSum,
    CorrelationErrors,
    FreshSum,
    KeyedGaussians,
    NoiseBounds,
    guess_bounds,
    rounded_sum_,
)
from sottovoce.core.threads import WORKERS
from sottovoce.errors import Diverged, InputError

CHUNK = 1 << 22
"""At most about this many noise values are alive at once, whatever the number of edges."""


PREFETCHED = 1 << 19
"""From so many values a round on, noise is drawn ahead by a thread of its own.

For fewer a thread does not pay, and on a busy machine it costs: threads that both need the interpreter wait in turns.
"""


class NoiseFeed:
    """Real gradients, and noise drawn by (key, source, round). A context, which ends with its thread if it has one.

    `seed` is public, and decides how messages are compressed.
    """

    def __init__(self, seed: int, key: NoiseKey, gradient: Gradient, like: Rows) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed {seed!r}", "it is a whole number", "give 0, say")
        self.seed, self._key, self._gradient, self._like = seed, key, gradient, like
        self._expected: tuple[Sources, NDArray[np.bool_]] | None = None
        self._prefetcher: Prefetcher | None = None
        self._past: list[Rows] = []
        self._errors: CorrelationErrors | None = None
        self._next_round = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()

    def expect(self, term: NoiseTerm, rounds: range, *, exact: bool = False) -> None:
        """Each of these rounds will ask for this noise in turn: it is drawn ahead, within this context."""
        if WORKERS > 1 and term.sources.size * self._like.shape[1] >= PREFETCHED:
            sources, used = self._expected = term.sources, term.matrix.used()
            draw = self._draw_guesses if exact else self._draw
            self._prefetcher = Prefetcher(lambda round: draw(sources, used, round, 0), rounds)

    def gradient(self, round: int, point: Rows) -> Rows:
        """Asks the task; refuses what would poison every neighbour."""
        grad = self._gradient(round, arrays.read_only(point))
        if arrays.is_torch(grad) != arrays.is_torch(point) or not arrays.is_plain(grad) or np.ma.isMaskedArray(grad):
            raise InputError(
                f"gradient of type {type(grad).__name__}", f"points are {type(point).__name__}", "return the same kind"
            )
        if tuple(grad.shape) != tuple(point.shape):
            raise InputError(
                f"gradient of shape {tuple(grad.shape)}", f"points have {tuple(point.shape)}", "one row per node"
            )
        if not (math.isfinite(float(grad.sum())) or arrays.all_finite(grad)):
            raise Diverged(
                f"gradient with nan or infinity in round {round}",
                "it would spread to every node",
                "clip it, lower the step size",
            )
        return grad

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """`matrix @ Z`, a block of sources at a time."""
        blocks = self._ahead(sources, matrix.used(), round, step) or self._draw(sources, matrix.used(), round, step)
        return arrays.convert(_times(matrix, blocks, self._like.shape[1], arrays.numpy_dtype(self._like)), self._like)

    def rounded_sum(self, gradient: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """The gradient plus `matrix @ Z` of all terms, rounded to the grid as if they were real numbers."""
        values = arrays.to_numpy(gradient)
        sum_of = self._fresh_sum if noise.correlation is None else self._correlated_sum
        return arrays.convert(sum_of(values, noise, round), gradient)

    def _fresh_sum(self, values: Reals, noise: NoiseOnGrid, round: int) -> Reals:
        guesses: Reals | None = np.zeros(values.shape, dtype=np.float32) if len(noise.terms) > 1 else None
        for term in noise.terms:
            used = term.matrix.used()
            blocks = self._ahead(term.sources, used, round, 0) or self._draw_guesses(term.sources, used, round, 0)
            product = _times(term.matrix, blocks, values.shape[1], np.dtype(np.float32))
            guesses = product if guesses is None else guesses + product
        draws = tuple(KeyedGaussians(self._key, term.sources, round, 0, values.shape[1]) for term in noise.terms)
        exact = FreshSum(values, noise.terms, draws, noise.step)
        assert guesses is not None
        return rounded_sum_(values, guesses, guess_bounds(noise.terms, len(values)), noise.step, exact.decide)

    def _correlated_sum(self, values: Reals, noise: NoiseOnGrid, round: int) -> Reals:
        (term,), correlation, D = noise.terms, noise.correlation, values.shape[1]
        assert correlation is not None
        used = term.matrix.used()

        def fresh(t: int) -> Reals:
            blocks = term.sources.draw(self._key, t, 0, D, np.float64, used, CHUNK, fine_)
            return _times(_identity(used), blocks, D, np.dtype(np.float64))

        if self._errors is None:
            self._errors = CorrelationErrors(correlation)
        sums = term.matrix.whole() @ self._recursion(correlation, round, fresh)
        sizes = np.asarray(abs(term.matrix.whole()).sum(axis=1)).ravel()
        known = NoiseBounds(sizes * self._errors.of(round), np.abs(sums).max(axis=1))
        draws = tuple(KeyedGaussians(self._key, term.sources, t, 0, D) for t in range(round + 1))
        exact = CorrelatedSum(values, term, draws, correlation, noise.step)
        return rounded_sum_(values, sums, known, noise.step, exact.decide)

    def _ahead(self, sources: Sources, used: NDArray[np.bool_], round: int, step: int) -> Iterator[Block] | None:
        """What was drawn ahead. It is handed out once; who asks again has it drawn again."""
        if self._prefetcher is not None and self._expected is not None and (self._prefetcher.round, 0) == (round, step):
            known, known_used = self._expected
            if known is sources and np.array_equal(known_used, used):
                return self._prefetcher.take()
        return None

    def _draw(self, sources: Sources, used: NDArray[np.bool_], round: int, step: int) -> Iterator[Block]:
        D, dtype = self._like.shape[1], arrays.numpy_dtype(self._like)
        return sources.draw(self._key, round, step, D, dtype, used, CHUNK)

    def _draw_guesses(self, sources: Sources, used: NDArray[np.bool_], round: int, step: int) -> Iterator[Block]:
        return sources.draw(self._key, round, step, self._like.shape[1], np.float32, used, CHUNK, guess_)

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_t`: earlier rounds are remembered as far as C looks back, or drawn again."""
        own = _identity(matrix.used())
        result = self._recursion(correlation, round, lambda t: self.noise(sources, own, t, 0))
        return arrays.operator(matrix.whole(), self._like) @ result

    def _recursion(self, correlation: Correlation, round: int, fresh: Callable[[int], Rows]) -> Rows:
        """`(C^-1 Z)_t` from the draws of each round, which `fresh` gives."""
        if round < self._next_round:
            self._past, self._next_round = [], 0
        for t in range(self._next_round, round + 1):
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
    """Every target has a source of its own: rows are scaled where they were drawn, and stay there if they are all."""
    total = np.zeros((len(sizes), D), dtype=dtype)
    for which, rows in blocks:
        rows *= sizes[which, None].astype(dtype)
        if len(which) == len(sizes):
            total = rows
        else:
            total[which] = rows
    return total


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
