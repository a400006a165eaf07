"""The inputs of a real run: gradients from the task, noise from its source, compression from the public seed.

Shapes: N nodes, D parameters, S noise sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core import arrays
from sottovoce.core.arrays import IN_CACHE, Precision, Reals, Rows
from sottovoce.core.class_correlation import for_sources, groups_of
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.discrete_gaussians import draw_discrete_gaussians
from sottovoce.core.drawn_gaussians import (
    AT_ONCE,
    DrawnGaussians,
    Guesses,
    KeptBits,
    SpareMemory,
    draw_guesses,
    guess_groups_,
    keep_bits,
)
from sottovoce.core.exact_gaussians import Floats, Places, fine_
from sottovoce.core.fixed_point import encoded
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.noise_key import public_stream
from sottovoce.core.noise_sources import Sources
from sottovoce.core.prefetch import Prefetcher
from sottovoce.core.random_streams import RandomSource, StreamName
from sottovoce.core.rounded_sum import (
    CorrelatedSum,
    CorrelationErrors,
    FreshSum,
    NoiseBounds,
    fine_bounds,
    guess_bounds,
    rounded_sum_,
)
from sottovoce.core.row_memory import ROW_MEMORY
from sottovoce.core.sum_grid import SumGrid
from sottovoce.errors import Diverged, InputError
from sottovoce.support.threads import WORKERS

CHUNK = 1 << 22
"""At most about this many noise values are alive at once, whatever the number of edges."""


PREFETCHED = 1 << 19
"""From so many values a round on, noise is drawn ahead by a thread of its own.

For fewer a thread does not pay, and on a busy machine it costs: threads that both need the interpreter wait in turns.
"""


USELESS = 64.0
"""Steps: where guesses may be further off than this, they decide nothing, and are not made."""


Block: TypeAlias = tuple[NDArray[np.intp], Reals]
"""Which sources, and their draws."""


class NoiseFeed:
    """Real gradients, and noise drawn by source and round. A context, which ends with its thread if it has one.

    `seed` is public, and decides how messages are compressed.
    """

    def __init__(self, seed: int, source: RandomSource, gradient: Gradient, like: Rows) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed {seed!r}", "it must be a whole number", "give 0, for example")
        self.seed, self._source, self._gradient, self._like = seed, source, gradient, like
        self._expected: NoiseTerm | None = None
        self._draws: Prefetcher[Block] | None = None
        self._guesses: Prefetcher[Guesses] | None = None
        self._past: list[Rows] = []
        self._errors: dict[Correlation, CorrelationErrors] = {}
        self._next_round = 0
        self._keeps_streams = False
        self._goes_on = False
        self._spare = SpareMemory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for prefetcher in (self._draws, self._guesses):
            if prefetcher is not None:
                prefetcher.close()

    def expect(self, term: NoiseTerm, rounds: range, *, exact: bool = False) -> None:
        """Each of these rounds will ask for this noise in turn: it is drawn ahead, within this context."""
        size = term.sources.size * self._like.shape[1]
        if WORKERS > 1 and size >= PREFETCHED and not (exact and size > AT_ONCE):
            self._expected = term
            if exact:
                self._guesses = Prefetcher(partial(self._draw_guesses, term), rounds)
            else:
                self._draws = Prefetcher(partial(self._draw, term.sources, term.matrix.used()), rounds)

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
        used, ahead, expected = matrix.used(), self._draws, self._expected
        blocks = self._draw(sources, used, round, step)
        if ahead is not None and expected is not None and (ahead.round, 0, expected.sources) == (round, step, sources):
            blocks = ahead.take() if np.array_equal(expected.matrix.used(), used) else blocks
        return arrays.convert(_times(matrix, blocks, self._like.shape[1], arrays.numpy_dtype(self._like)), self._like)

    def rounded_sum(self, gradient: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """The gradient plus `matrix @ Z` of all terms, rounded to the grid as if they were real numbers."""
        values = arrays.to_numpy(gradient)
        sum_of = self._fresh_sum if noise.correlation is None else self._correlated_sum
        return arrays.convert(sum_of(values, noise, round), gradient)

    def discrete_sum(self, gradient: Rows, grid: SumGrid, round: int) -> Rows:
        """The rounded gradient of every node, and a discrete Gaussian of its own stream."""
        values = arrays.to_numpy(gradient)
        released = encoded(values, grid.step)
        for row, stream in enumerate(grid.streams(self._source, round)):
            if grid.sigma_N[row]:
                released[row] += draw_discrete_gaussians(stream, values.shape[1], grid.sigma_N[row])
        return arrays.in_float64(released * grid.step, gradient)

    def _fresh_sum(self, values: Reals, noise: NoiseOnGrid, round: int) -> Reals:
        known = guess_bounds(noise.terms, len(values))
        if self._guesses is None and known.error_N.max(initial=0.0) > USELESS:
            return self._fine_sum(values, noise, round)
        sizes = noise.in_units[0].matrix.diagonal()
        if self._guesses is None and len(noise.terms) == 1 and sizes is not None and sizes.all():
            return self._sum_of_own_noise(values, noise, sizes, known, round)
        total: Reals | None = None
        draws = []
        for term in noise.in_units:
            guesses, bits = self._guessed(term, round)
            total = guesses if total is None else total + guesses
            draws.append(DrawnGaussians(self._source, term.sources, round, values.shape[1], bits))
        exact = FreshSum(values, noise.terms, tuple(draws), noise.step)
        assert total is not None
        released = rounded_sum_(values, total, known, noise.step, exact.decide)
        for drawn in draws:
            if drawn.bits is not None:
                self._spare.give_back(drawn.bits.words)
        return released

    def _sum_of_own_noise(
        self, values: Reals, noise: NoiseOnGrid, sizes: Reals, known: NoiseBounds, round: int
    ) -> Reals:
        """The same where every node has a source of its own: drawn and rounded for a block of nodes at a time.

        Not by several threads: a stream takes less time than a thread needs to get hold of the interpreter.
        """
        (term,), D = noise.terms, values.shape[1]
        released = ROW_MEMORY.take(values.shape, values.dtype)
        for groups, nodes in term.sources.blocks(limit=max(1, IN_CACHE // D)):
            some, first = slice(int(nodes[0]), int(nodes[-1]) + 1), int(nodes[0])
            bits = keep_bits(term.sources, groups, D, self._spare)
            guesses = released[some] if released.dtype == np.float32 else np.empty((len(nodes), D), dtype=np.float32)
            guess_groups_(term.sources, self._source, round, groups, guesses, bits)
            drawn = DrawnGaussians(self._source, term.sources, round, D, bits)
            decide = partial(_decide_from, FreshSum(values, noise.terms, (drawn,), noise.step), first)
            bounds = NoiseBounds(known.error_N[some], known.largest_N[some])
            released[some] = rounded_sum_(values[some], _scale_(guesses, sizes[some]), bounds, noise.step, decide)
            self._spare.give_back(bits.words)
        return released

    def _fine_sum(self, values: Reals, noise: NoiseOnGrid, round: int) -> Reals:
        """The same for noise of so many steps that guesses would decide nothing: all numbers in float64."""
        D, double = values.shape[1], np.dtype(np.float64)
        total, draws = np.zeros(values.shape), []
        for term in noise.in_units:
            blocks = term.sources.draw(self._source, round, 0, D, double, term.matrix.used(), CHUNK, fine_)
            total += _times(term.matrix, blocks, D, double)
            draws.append(DrawnGaussians(self._source, term.sources, round, D))
        exact = FreshSum(values, noise.terms, tuple(draws), noise.step)
        return rounded_sum_(values, total, fine_bounds(noise.terms, len(values)), noise.step, exact.decide)

    def _guessed(self, term: NoiseTerm, round: int) -> tuple[Reals, KeptBits | None]:
        """`matrix @ Z` within the error of guesses, and the bits of Z that it was made of."""
        ahead, expected = self._guesses, self._expected
        blocks = self._draw_guesses(term, round)
        if ahead is not None and expected is not None and ahead.round == round and _same(expected, term):
            blocks = ahead.take()
        bits: list[KeptBits | None] = []

        def rows() -> Iterator[Block]:
            for block in blocks:
                bits.append(block.bits)
                yield block.sources, block.rows

        D, single = self._like.shape[1], np.dtype(np.float32)
        scaled = term.matrix.diagonal() is not None
        total = (
            _stacked(term.matrix.shape[0], rows(), D, single) if scaled else _product(term.matrix, rows(), D, single)
        )
        return total, bits[0] if len(bits) == 1 else None

    def _correlated_sum(self, values: Reals, noise: NoiseOnGrid, round: int) -> Reals:
        (term,), D = noise.terms, values.shape[1]
        self._keeps_streams = True
        assert noise.correlation is not None
        correlation, used = for_sources(noise.correlation, term.sources), term.matrix.used()

        def fresh(t: int) -> Reals:
            blocks = term.sources.draw(self._source, t, 0, D, np.float64, used, CHUNK, fine_)
            return _times(_identity(used), blocks, D, np.dtype(np.float64))

        sums = noise.in_units[0].matrix.whole() @ self._recursion(correlation, round, fresh)
        error_N = abs(term.matrix.whole()) @ self._errors_after(round, correlation, term.sources.size)
        known = NoiseBounds(error_N, np.abs(sums).max(axis=1) / noise.step)
        draws = tuple(DrawnGaussians(self._source, term.sources, t, D) for t in range(round + 1))
        exact = CorrelatedSum(values, term, draws, correlation, noise.step)
        return rounded_sum_(values, sums, known, noise.step, exact.decide)

    def _errors_after(self, round: int, correlation: Correlation, sources: int) -> Reals:
        """How far the correlated number of each source may be off in this round."""
        error_S = np.empty(sources)
        for part, places in groups_of(correlation, np.arange(sources)):
            error_S[places] = self._errors.setdefault(part, CorrelationErrors(part)).of(round)
        return error_S

    def _draw(self, sources: Sources, used: NDArray[np.bool_], round: int, step: int = 0) -> Iterator[Block]:
        D, dtype = self._like.shape[1], arrays.numpy_dtype(self._like)
        return sources.draw(self._source, round, step, D, dtype, used, CHUNK)

    def _draw_guesses(self, term: NoiseTerm, round: int) -> Iterator[Guesses]:
        """Guesses, multiplied with the size of the noise where every node has a source of its own."""
        sizes = term.matrix.diagonal()
        for block in draw_guesses(
            term.sources, self._source, round, self._like.shape[1], term.matrix.used(), self._spare
        ):
            if sizes is not None:
                _scale_(block.rows, sizes[block.sources])
            yield block

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


def _decide_from(exact: FreshSum, first: int, rows_K: Places, columns_K: Places) -> Floats:
    """Decide values of a block whose first row is this one."""
    return exact.decide(rows_K + first, columns_K)


def _same(one: NoiseTerm, other: NoiseTerm) -> bool:
    """Whether two terms are of the same sources, with the same matrix."""
    if one.sources is not other.sources or one.matrix.left is not None or other.matrix.left is not None:
        return False
    a, b = one.matrix.plain, other.matrix.plain
    return a.shape == b.shape and all(
        np.array_equal(*pair) for pair in ((a.indptr, b.indptr), (a.indices, b.indices), (a.data, b.data))
    )


def _identity(used: NDArray[np.bool_]) -> FactoredMatrix:
    return FactoredMatrix(sparse.diags_array(used.astype(float), format="csr"))


def _times(matrix: FactoredMatrix, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    sizes = matrix.diagonal()
    return _product(matrix, blocks, D, dtype) if sizes is None else _scaled(sizes, blocks, D, dtype)


def _scaled(sizes: Reals, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    """Every target has a source of its own: rows are scaled where they were drawn."""
    return _stacked(len(sizes), ((which, _scale_(rows, sizes[which])) for which, rows in blocks), D, dtype)


def _scale_(rows: Reals, sizes: Reals) -> Reals:
    rows *= sizes[:, None].astype(rows.dtype)
    return rows


def _stacked(n: int, blocks: Iterator[Block], D: int, dtype: Precision) -> Reals:
    """The rows of all blocks, zero where there is none; they stay where they were drawn if one block has all."""
    total: Reals | None = None
    for which, rows in blocks:
        if len(which) == n:
            total = rows
        else:
            total = np.zeros((n, D), dtype=dtype) if total is None else total
            total[which] = rows
    return np.zeros((n, D), dtype=dtype) if total is None else total


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
