"""Random streams: what noise and the coins of batches are drawn from.

A stream has words of 64 random bits: one after the other, and any of them wherever it stands, on as many levels as it
takes to know more digits of a number. Two sources make streams: `noise_key.NoiseKey`, from which the same streams can
be drawn again, and `secret_source.SecretSource`, from which nobody can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import Reals

Words = NDArray[np.uint64]


class StreamName(NamedTuple):
    """What a stream is for: a kind of draw, whose it is, the round and the gossip step."""

    kind: str
    ids: tuple[int, ...]
    round: int
    step: int


class RandomStream(Protocol):
    """Random bits. `words`, `uniforms`, `permutation` and `gaussians_` go on where the one before them ended."""

    def words(self, count: int) -> Words:
        """The next words."""

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """The next numbers from 0 up to 1, multiples of 2^-53."""

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below `count` in a random order."""

    def gaussians_(self, out: Reals) -> None:
        """Fill a flat array with N(0, 1), up to rounding."""

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """Four words for each of the counters `first + 1` to `first + count` of a level, count x 4."""


@runtime_checkable
class RandomSource(Protocol):
    """Makes streams. Within a process the stream of a name is always the same, until it is erased."""

    @property
    def repeatable(self) -> bool:
        """Whether another process can make the same streams."""

    @property
    def shared_alike(self) -> bool:
        """Whether processes that each have such a source draw the same noise for nodes that share it."""

    def stream(self, kind: str, ids: Sequence[int], round: int, step: int = 0) -> RandomStream:
        """The stream of one draw, at its beginning."""

    def words_at(self, names: Sequence[StreamName], which_K: NDArray[np.intp], counters_K: Words, level: int) -> Words:
        """Four words for each counter of the stream that `which_K` says, K x 4.

        Counter c + 1 of level 0 has words 4 c to 4 c + 3 of a stream.
        """

    def bind(self, digest: bytes) -> None:
        """Streams of which nobody has asked yet depend on this hash as well, if they can."""

    def noise_keys(self) -> Mapping[StreamName, bytes]:
        """The keys that are held for single streams of noise."""

    def restore(self, keys: Mapping[StreamName, bytes]) -> None:
        """Hold the keys that an earlier process held."""

    def erase(self, round: int) -> None:
        """The noise of this round, and of those before it, will not be asked for again."""
