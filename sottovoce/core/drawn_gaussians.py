"""What sources of noise draw in one step: guesses of all numbers, and as many digits of single ones as it takes.

Shapes: D parameters, G groups of sources, K single numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.exact_gaussians import (
    FINE_ERROR,
    DecimalInterval,
    Floats,
    Places,
    decimal_number,
    fine_numbers,
    guess_,
    guess_rows_,
    numbers_of_first_bits,
    pair_places,
    words_of,
)
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource, StreamName, Words

AT_ONCE = 1 << 23
"""Up to so many numbers are guessed as one block, and the bits that were used are kept until all are decided."""


class KeptBits(NamedTuple):
    """The first bits of all numbers of some groups, G x words, of which `row` has those of group `groups[row]`."""

    groups: NDArray[np.intp]
    words: Words


class Guesses(NamedTuple):
    """Which sources, and guesses of their numbers, with the bits they were made of if these are all of a step."""

    sources: NDArray[np.intp]
    rows: NDArray[np.float32]
    bits: KeptBits | None


class SpareMemory:
    """Arrays for bits that were kept and are no longer needed: new memory costs more than what is done with it."""

    def __init__(self) -> None:
        self._arrays: list[Words] = []

    def take(self, shape: tuple[int, int]) -> Words:
        """An array of this shape, with whatever is in it; of several threads, each gets its own."""
        try:
            found = self._arrays.pop()
        except IndexError:
            return np.empty(shape, dtype=np.uint64)
        return found if found.shape == shape else np.empty(shape, dtype=np.uint64)

    def give_back(self, words: Words) -> None:
        """Nobody reads this array any more."""
        self._arrays.append(words)


def draw_guesses(
    sources: Sources, source: RandomSource, round: int, D: int, needed: NDArray[np.bool_], spare: SpareMemory
) -> Iterator[Guesses]:
    """Guesses of the numbers that sources draw in a round, block by block."""
    blocks = list(sources.blocks(needed, max(1, AT_ONCE // D)))
    for groups, which in blocks:
        rows = np.empty((len(which), D), dtype=np.float32)
        bits = keep_bits(sources, groups, D, spare) if len(blocks) == 1 else None
        guess_groups_(sources, source, round, groups, rows, bits)
        yield Guesses(which, rows, bits)


def keep_bits(sources: Sources, groups: NDArray[np.intp], D: int, spare: SpareMemory) -> KeptBits:
    """Memory for the first bits of some groups."""
    return KeptBits(groups, spare.take((len(groups), words_of(int(sources.counts[groups].max()) * D))))


def guess_groups_(
    sources: Sources,
    source: RandomSource,
    round: int,
    groups: NDArray[np.intp],
    out: NDArray[np.float32],
    bits: KeptBits | None,
) -> None:
    """Fill rows with guesses of the numbers that some groups draw in a round, and `bits` with what they are made of."""
    counts = sources.counts[groups]
    streams = [sources.stream(source, group, round, 0) for group in groups]
    if counts.min() == counts.max():
        guess_rows_(streams, out.reshape(len(groups), -1), None if bits is None else bits.words)
        return
    for number, (stream, stop, count) in enumerate(zip(streams, np.cumsum(counts), counts, strict=True)):
        guess_(stream, out[stop - count : stop], None if bits is None else bits.words[number])


@dataclass(frozen=True, eq=False)
class DrawnGaussians:
    """The numbers that sources draw in one step, at any place: the same that `Sources.draw` gives as rows."""

    source: RandomSource
    sources: Sources
    round: int
    dimension: int
    bits: KeptBits | None = None

    @cached_property
    def _group(self) -> Places:
        """The group of each source."""
        return np.repeat(np.arange(len(self.sources.counts)), self.sources.counts)

    def _places(self, sources_K: Places, columns_K: Places) -> Places:
        """Where numbers stand in the stream of their group, in which one source comes after the other."""
        first = (np.cumsum(self.sources.counts) - self.sources.counts)[self._group[sources_K]]
        return (sources_K - first) * self.dimension + columns_K

    def of_first_bits(self, sources_K: Places, columns_K: Places) -> tuple[Floats, Floats]:
        """Numbers from the bits that were kept, and their errors."""
        bits = self.bits
        assert bits is not None

        def some(groups: Places, places: Places, size: int) -> tuple[Floats, Floats]:
            at, row = pair_places(places, size), np.searchsorted(bits.groups, groups)
            u, v = (bits.words.view("<u4")[row, half] for half in (at.u, at.v))
            return numbers_of_first_bits(u, v, at.is_sine)

        return self._by_length(some, sources_K, columns_K)

    def fine(self, sources_K: Places, columns_K: Places) -> tuple[Floats, Floats]:
        """Numbers in float64, and their errors: infinite where that takes more bits."""

        def some(groups: Places, places: Places, size: int) -> tuple[Floats, Floats]:
            needed, which = np.unique(groups, return_inverse=True)
            names = [self._name(group) for group in needed.tolist()]
            values, decided = fine_numbers(partial(self.source.words_at, names, which), places, size)
            return values, np.where(decided, FINE_ERROR, np.inf)

        return self._by_length(some, sources_K, columns_K)

    def _by_length(
        self, act: Callable[[Places, Places, int], tuple[Floats, Floats]], sources_K: Places, columns_K: Places
    ) -> tuple[Floats, Floats]:
        """Numbers of streams of the same length at once."""
        groups, places = self._group[sources_K], self._places(sources_K, columns_K)
        counts = self.sources.counts[groups]
        values, errors = np.empty(len(places)), np.empty(len(places))
        for count in np.unique(counts).tolist():
            some = counts == count
            values[some], errors[some] = act(groups[some], places[some], count * self.dimension)
        return values, errors

    def decimal(self, source: int, column: int, level: int) -> DecimalInterval:
        """One number, with about 38 digits more for each level."""
        group = int(self._group[source])
        place = int(self._places(np.array([source]), np.array([column]))[0])
        words_at = partial(self.source.words_at, [self._name(group)], np.zeros(1, dtype=np.intp))
        return decimal_number(words_at, place, int(self.sources.counts[group]) * self.dimension, level)

    def _name(self, group: int) -> StreamName:
        return self.sources.name(group, self.round, 0)
