"""Batches: which rows each node uses in each round. The loop draws from this object and the accountant reads it.

    >>> plan = parse_batches("cycle:4x5", [50, 40])
    >>> plan.draw(7).rows.shape, plan.participation("record")
    ((2, 10), Participation(times=4, apart=5, share=1.0, shuffled=False))
    >>> parse_batches("poisson:0.1", [50, 40]).sampling(1).share
    0.1

Draws are named by (node, round). From a noise key any round can be drawn alone, by a restart or by the node itself.
From a `SecretSource` the rows of a round are drawn when they are first asked for, and are the same from then on within
the process: `rows_of` gives them before the gradient is computed, to be recorded.

A node's gradients are summed and divided by a number that depends on no data and no draw: the size of the shard
(`full`), of the average batch (`cycle`, `shuffle`), the expected size (`poisson`, `cyclic-poisson`, `allocate`), or the
size (`fixed`). Batches whose size is drawn are never divided by it: one record would change the weight of all others.

Shapes: T rounds, N nodes, B examples (of the largest batch; shorter ones are padded and masked).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import (
    ALLOCATED,
    LEAST_SHARE,
    SAMPLED,
    SHUFFLED,
    Adjacency,
    Participation,
    Sampling,
    parse_adjacency,
    parse_allocation,
    parse_cyclic_poisson,
    parse_shuffle,
)
from sottovoce.core.random_streams import NoiseKey, RandomSource
from sottovoce.errors import InputError
from sottovoce.learning.partitioning import Partition

Rows = NDArray[np.int64]


class Batch(NamedTuple):
    """Rows of the training set, N x B, and which of them are there: the others are padding, with weight zero."""

    rows: Rows
    present: NDArray[np.bool_]


NODE_WEIGHTS = ("equal", "size")
"""Every node counts alike, or by its records."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Batches:
    """All rows in every round (`full`). `shards` holds the row numbers of each node.

    Other rules deal each shard into `apart` parts of consecutive rows, of which one has its turn in each round, or draw
    records of it with probability `share`.
    """

    shards: tuple[Rows, ...]
    key: RandomSource = field(default_factory=NoiseKey.fresh)
    apart: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        few = int(np.argmin(self.sizes))
        if self.sizes[few] < self.apart:
            raise InputError(
                f"cycle of {self.apart} batches on node {few} with {len(self.shards[few])} rows",
                "every batch needs at least one row",
                f"use at most {len(self.shards[few])} batches",
            )

    @property
    def full(self) -> bool:
        """Whether every row is used in every round."""
        return type(self) is Batches

    @property
    def nodes(self) -> int:
        """How many nodes draw."""
        return len(self.shards)

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """Rows of each node."""
        return np.array([len(shard) for shard in self.shards], dtype=float)

    def node_weights(self, weigh_nodes: str) -> NDArray[np.float64]:
        """What each node multiplies its gradient with: a function of the numbers of records, which are public."""
        if weigh_nodes not in NODE_WEIGHTS:
            raise InputError(
                f"nodes weighed by {weigh_nodes!r:.40}", f"known: {', '.join(NODE_WEIGHTS)}", "choose one of them"
            )
        return np.ones(self.nodes) if weigh_nodes == "equal" else self.sizes / self.sizes.mean()

    @property
    def divisors(self) -> NDArray[np.float64]:
        """What each node divides its sum by: the expected size of its average batch, so all records weigh alike."""
        return self.share * self.sizes / self.apart

    @property
    def largest(self) -> NDArray[np.float64]:
        """The most rows that a batch of each node can have: parts differ by one row at most."""
        return np.ceil(self.sizes / self.apart)

    def rows_of(self, node: int, round: int) -> Rows:
        """The rows of one node in one round."""
        return self._part(self.shards[node], round)

    def _part(self, shard: Rows, round: int) -> Rows:
        """The rows of a shard whose turn it is."""
        part, (each, more) = round % self.apart, divmod(len(shard), self.apart)
        start = part * each + min(part, more)
        return shard[start : start + each + (part < more)]

    def draw(self, round: int, nodes: Sequence[int] | None = None) -> Batch:
        """The rows of all nodes, or of some, stacked. Padding repeats a row of the node's own."""
        rows, present = self.draw_several(range(round, round + 1), nodes)
        return Batch(rows[0], present[0])

    def draw_several(self, rounds: range, nodes: Sequence[int] | None = None) -> Batch:
        """The same for T rounds at once, T x N x B."""
        which = range(self.nodes) if nodes is None else nodes
        parts = [self.rows_of(node, round) for node in which for round in rounds]
        lengths = np.array([len(part) for part in parts])
        present = np.arange(max(1, lengths.max())) < lengths[:, None]
        rows = np.repeat([self.shards[node][0] for node in which for _ in rounds], present.shape[1])
        rows[present.ravel()] = np.concatenate(parts)
        shape = len(which), len(rounds), -1
        return Batch(rows.reshape(shape).swapaxes(0, 1).copy(), present.reshape(shape).swapaxes(0, 1).copy())

    def participation(self, adjacency: str = "record") -> Participation:
        """In which rounds a changed record, or a node whose data changes, can show."""
        return self._of_record() if parse_adjacency(adjacency) is Adjacency.RECORD else Participation()

    def _of_record(self) -> Participation:
        return Participation()

    def sampling(self, node: int) -> Sampling | None:
        """How this node's records are sampled, or None where nothing is sampled."""
        return None

    def check(self, rounds: int) -> None:
        """Refuse a run that is longer than what is drawn for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Cycle(Batches):
    """The parts in order, `times` times: a record takes part `times` times, `apart` rounds apart."""

    times: int

    def rows_of(self, node: int, round: int) -> Rows:
        """Part `round` modulo `apart` of the shard."""
        self.check(round + 1)
        return super().rows_of(node, round)

    def _of_record(self) -> Participation:
        return Participation(self.times, self.apart)

    def check(self, rounds: int) -> None:
        """In a longer run records would take part more often than the accountant assumes."""
        if rounds > self.times * self.apart:
            raise InputError(
                f"{rounds} rounds of cycle:{self.times}x{self.apart}",
                f"the cycle ends after {self.times * self.apart} rounds",
                f"use {-(-rounds // self.apart)}x{self.apart} in place of {self.times}x{self.apart}",
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Shuffled(Batches):
    """Shuffled epochs: each shard is shuffled anew every `apart` rounds, and dealt into as many batches.

    Every record takes part once in each epoch; in which of its rounds nobody needs to know, and no figure counts on it.
    """

    _orders: dict[int, tuple[int, Rows]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.key.repeatable:
            raise InputError(
                f"{SHUFFLED}:{self.apart} with secret noise",
                "the order of an epoch would have to be kept for all of its rounds",
                "use poisson batches, or leave noise = 'secret' out",
            )  # fmt: skip

    def rows_of(self, node: int, round: int) -> Rows:
        """Part `round` modulo `apart` of the shard, in the order of its epoch; the last order is kept."""
        epoch = round // self.apart
        if self._orders.get(node, (None,))[0] != epoch:
            shard = self.shards[node]
            self._orders[node] = epoch, shard[self.key.stream("batch", [node], epoch).permutation(len(shard))]
        return self._part(self._orders[node][1], round)

    def _of_record(self) -> Participation:
        return Participation(apart=self.apart, shuffled=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Allocated(Batches):
    """In each of `epochs` epochs of `epoch` rounds every record draws by itself in which `times` rounds it takes part.

    Where streams cannot be repeated, that of an epoch's first round is kept for all of its rounds.
    """

    epochs: int
    epoch: int
    times: int
    _turns: dict[int, tuple[int, NDArray[np.int64]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def divisors(self) -> NDArray[np.float64]:
        """The expected size of a batch."""
        return self.sizes * self.times / self.epoch

    def rows_of(self, node: int, round: int) -> Rows:
        """The records whose turn it is; the draws of the last epoch are held."""
        self.check(round + 1)
        first, shard = round - round % self.epoch, self.shards[node]
        if self._turns.get(node, (None,))[0] != first:
            drawn = self.key.stream("batch", [node], first).uniforms(len(shard) * self.times).reshape(-1, self.times)
            self._turns[node] = first, self._places(drawn)
        return shard[(self._turns[node][1] == round - first).any(axis=1)]

    def _places(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        """Different rounds for each record: the j-th draw is among those that are left, counted from the first."""
        places = np.empty(drawn.shape, dtype=np.int64)
        for j in range(self.times):
            place = (drawn[:, j] * (self.epoch - j)).astype(np.int64)
            for taken in np.sort(places[:, :j], axis=1).T:
                place += place >= taken
            places[:, j] = place
        return places

    def _of_record(self) -> Participation:
        return Participation(apart=self.epoch, shuffled=True) if self.times == 1 else Participation()

    def sampling(self, node: int) -> Sampling:
        """So many rounds of each epoch, drawn at random."""
        return Sampling(1.0, epoch=self.epoch, times=self.times)

    def check(self, rounds: int) -> None:
        """In a longer run records would take part more often than was agreed."""
        if rounds > self.epochs * self.epoch:
            raise InputError(
                f"{rounds} rounds of {ALLOCATED} batches", f"they end after {self.epochs * self.epoch} rounds",
                f"use {ALLOCATED}:{-(-rounds // self.epoch)}x{self.epoch}",
            )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Poisson(Batches):
    """Each record whose turn it is joins with probability `share`, by itself. There is one part."""

    def rows_of(self, node: int, round: int) -> Rows:
        """Each record is drawn by itself."""
        part = super().rows_of(node, round)
        return part[self.key.stream("batch", [node], round).uniforms(len(part)) < self.share]

    def sampling(self, node: int) -> Sampling:
        """Every record whose turn it is with probability `share`."""
        return Sampling(self.share, apart=self.apart)


@dataclass(frozen=True, eq=False, kw_only=True)
class CyclicPoisson(Poisson):
    """The same with several parts. With noise correlated over at most `apart` rounds sampling counts.

    Parts follow from the order of rows alone.
    """

    def _of_record(self) -> Participation:
        return Participation.sampled(self.share, self.apart)


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedSize(Batches):
    """`size` records of each shard, drawn afresh in each round without replacement."""

    size: int

    def __post_init__(self) -> None:
        few = int(np.argmin(self.sizes))
        if self.sizes[few] < self.size:
            raise InputError(
                f"batches of {self.size} on node {few} with {len(self.shards[few])} rows",
                "rows are drawn without replacement",
                f"use at most {len(self.shards[few])}",
            )

    @property
    def divisors(self) -> NDArray[np.float64]:
        """The size, which every batch has."""
        return np.full(self.nodes, float(self.size))

    @property
    def largest(self) -> NDArray[np.float64]:
        """The size: no batch is larger."""
        return self.divisors

    def rows_of(self, node: int, round: int) -> Rows:
        """The first rows of a fresh permutation."""
        shard = self.shards[node]
        return shard[self.key.stream("batch", [node], round).permutation(len(shard))[: self.size]]

    def sampling(self, node: int) -> Sampling:
        """Share and number of this node's records."""
        held = len(self.shards[node])
        return Sampling(self.size / held, held)


def parse_batches(
    spec: str, shards: Partition | Sequence[int] | Sequence[Rows], key: RandomSource | None = None
) -> Batches:
    """`full`, `cycle:KxB`, `shuffle:B`, `allocate:KxB`, `poisson:SHARE`, `cyclic-poisson:SHARExB` or `fixed:SIZE`, on
    shards, rows, or bare sizes.

    Which records are drawn is a secret, as noise is, and follows from the noise key: a fresh one unless it is given.
    """
    key = NoiseKey.given_or_fresh(key)
    held = _rows(shards)
    kind, _, setting = spec.partition(":")
    if spec == "full":
        return Batches(shards=held, key=key)
    if kind == "cycle" and (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", setting)):
        return Cycle(shards=held, key=key, times=int(found[1]), apart=int(found[2]))
    if kind == SHUFFLED:
        return Shuffled(shards=held, key=key, apart=parse_shuffle(spec))
    if kind == ALLOCATED:
        epochs, epoch, times = parse_allocation(spec)
        return Allocated(shards=held, key=key, epochs=epochs, epoch=epoch, times=times)
    if kind == "poisson" and re.fullmatch(r"[\d.eE+-]+", setting) and LEAST_SHARE <= (share := _number(setting)) <= 1:
        return Poisson(shards=held, key=key, share=share)
    if kind == SAMPLED:
        share, apart = parse_cyclic_poisson(spec)
        return CyclicPoisson(shards=held, key=key, share=share, apart=apart)
    if kind == "fixed" and re.fullmatch(r"[1-9]\d*", setting):
        return FixedSize(shards=held, key=key, size=int(setting))
    raise InputError(
        f"batches {spec!r}",
        f"known: full, cycle:KxB, {SHUFFLED}:B, {ALLOCATED}:KxB, poisson:SHARE ({LEAST_SHARE:g} to 1), "
        f"{SAMPLED}:SHARExB, fixed:SIZE",
        "see docs/models.md",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _rows(shards: Partition | Sequence[int] | Sequence[Rows]) -> tuple[Rows, ...]:
    """Bare sizes stand for consecutive rows."""
    given = shards.indices if isinstance(shards, Partition) else shards
    stops = np.cumsum([held if isinstance(held, int | np.integer) else 0 for held in given])
    rows = tuple(
        np.arange(stop - held, stop) if isinstance(held, int | np.integer) else np.asarray(held, dtype=np.int64)
        for held, stop in zip(given, stops, strict=True)
    )
    if not rows or not all(len(part) for part in rows):
        raise InputError("a node without rows", "every node needs at least one", "use fewer nodes")
    return rows
