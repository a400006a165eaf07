"""Sources of noise: unit Gaussians with a name, and how they are drawn.

Draws are keyed by (seed, source, round, step): a restart, another process or another transport gives the same numbers,
and no draw is ever used for two rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


@dataclass(frozen=True, eq=False)
class Sources:
    """Unit Gaussians of one step, in groups that are drawn together because the same party draws them.

    `holders[s, u]` says that node u knows source s: it drew it, or shares the secret it comes from.
    """

    kind: str
    groups: NDArray[np.int64]
    counts: NDArray[np.int64]
    holders: sparse.csr_array

    @property
    def size(self) -> int:
        """Number of sources."""
        return int(self.holders.shape[0])

    def draw(
        self,
        seed: int,
        round: int,
        step: int,
        dimension: int,
        dtype: Any = np.float64,
        needed: NDArray[np.bool_] | None = None,
        at_once: int | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """The draws of one step: (which sources, their rows), in blocks of about `at_once` values.

        Groups in which no source is needed are left out.
        """
        stops = np.cumsum(self.counts)
        starts = stops - self.counts
        if needed is None:
            wanted = np.arange(len(stops))
        else:
            wanted = np.flatnonzero(np.add.reduceat(needed, starts) if len(starts) else [])
        limit = self.size if at_once is None else max(1, at_once // dimension)
        for groups in _batches(wanted, self.counts, limit):
            sources = np.concatenate([np.arange(starts[g], stops[g]) for g in groups])
            rows = np.empty((len(sources), dimension), dtype=dtype)
            filled = 0
            for g in groups:
                rng = generator(seed, self.kind, self.groups[g].tolist(), round, step)
                rng.standard_normal(out=rows[filled : filled + self.counts[g]], dtype=dtype)
                filled += self.counts[g]
            yield sources, rows


def _batches(groups: NDArray[np.intp], counts: NDArray[np.int64], limit: int) -> Iterator[NDArray[np.intp]]:
    """Consecutive groups whose counts add up to about `limit`."""
    if len(groups):
        number = (np.cumsum(counts[groups]) - 1) // limit
        yield from np.split(groups, np.flatnonzero(np.diff(number)) + 1)


def generator(seed: int, kind: str, ids: Sequence[int], round: int, step: int = 0) -> np.random.Generator:
    """The random stream of one source in one step: a hash of its name is the key of a counter-based generator."""
    name = f"{seed}|{kind}|{','.join(map(str, ids))}|{round}|{step}"
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
