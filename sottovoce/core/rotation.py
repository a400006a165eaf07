"""A rotating aggregator ("swarm"): in each round one node takes the mean of all that are present, and sends it to all.

    step 0:  the aggregator's row of W is the mean over those present, all others keep what they have
    step 1:  every row is the aggregator's

Whoever was missing has its own row again in the next round: it goes on from the mean that it was sent meanwhile. With
fewer than `least` nodes present, or without its aggregator, a round is left out: whoever keeps others from taking part
must not aggregate instead of them.

    >>> from sottovoce.core.graphs import graph
    >>> swarm = parse_rotation(graph("complete:4"), "rotating,order=2--0")
    >>> [swarm.aggregator(round, np.ones(4, dtype=bool)) for round in range(3)]
    [2, 0, 2]
    >>> swarm.aggregator(0, np.array([True, True, False, True])) is None
    True
    >>> swarm.at(1, 0).weights.toarray()[0].tolist(), swarm.at(1, 1).weights.toarray()[3].tolist()
    ([0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.graphs import Graph, parse_options
from sottovoce.core.mixing import Mixing
from sottovoce.errors import InputError

ROTATING = "rotating"
"""The kind of weights."""


@dataclass(frozen=True)
class Rotation:
    """Who aggregates, in this order round after round, or drawn from them by a public `coin`; `shares` weigh nodes."""

    order: tuple[int, ...]
    shares: tuple[float, ...]
    coin: int | None = None
    least: int | None = None

    def at(self, round: int, step: int, present_N: NDArray[np.bool_] | None = None) -> Mixing:
        """The mixing of a step. Equal ones are one object, so that rounds that are alike are traced once."""
        there = np.ones(len(self.shares), dtype=bool) if present_N is None else present_N
        return _mixing(self.shares, self.aggregator(round, there), step % 2, there.tobytes())

    def aggregator(self, round: int, present_N: NDArray[np.bool_]) -> int | None:
        """Who aggregates. None where the round is left out."""
        turn = self.turn(round)
        return turn if present_N[turn] and present_N.sum() >= (self.least or 1) else None

    def least_noise(
        self, round: int, known: Sequence[int], victim: int, noise_N: NDArray[np.float64], *, sums: bool = False
    ) -> float:
        """The variance of the noise among which a victim hides in the mean, `known` nodes taken out, over its weight.

        At least: they are all present, and of the others those that add least. An aggregator that is `known` hears the
        victim alone, unless it learns only `sums`.
        """
        there_N, scaled_N = np.zeros(len(self.shares), dtype=bool), np.array(self.shares) * noise_N
        there_N[victim] = True
        if sums or self.turn(round) not in known:
            there_N[[*known, self.turn(round)]] = True
            others = np.argsort(np.where(there_N, np.inf, scaled_N), kind="stable")
            there_N[others[: max(0, (self.least or 1) - int(there_N.sum()))]] = True
        there_N[[*known]] = False
        return float((scaled_N[there_N] ** 2).sum() / self.shares[victim] ** 2)

    def turn(self, round: int) -> int:
        """Whose turn it is to aggregate."""
        if self.coin is None:
            return self.order[round % len(self.order)]
        return int(np.random.default_rng([self.coin, round]).permutation(self.order)[0])


@lru_cache(maxsize=1024)
def _mixing(shares: tuple[float, ...], aggregator: int | None, step: int, present: bytes) -> Mixing:
    n, there_N = len(shares), np.frombuffer(present, dtype=bool).copy()
    if aggregator is None:
        return Mixing(sparse.eye_array(n), np.zeros(n, dtype=bool))
    if step:
        return Mixing(sparse.csr_array((np.ones(n), (np.arange(n), np.full(n, aggregator))), shape=(n, n)))
    rows = sparse.lil_array(sparse.eye_array(n))
    counted_N = np.where(there_N, shares, 0.0)
    rows[[aggregator]] = counted_N / counted_N.sum()
    return Mixing(rows.tocsr(), None if there_N.all() else there_N)


def parse_rotation(source: Graph, kind: str) -> Rotation:
    """`rotating`: in turn. `,order=2--0--1` names who aggregates, `,order=coin:SEED` draws them in public.

    `,least=3`: fewer nodes leave a round out, and unless it is known who is there in which round, what is proven holds
    whoever is missing. `,shares=17:24:126`: weights of nodes in the mean.
    """
    n, everybody = source.n, tuple(range(source.n))

    def read_order(text: str) -> tuple[tuple[int, ...], int | None]:
        coin = int(text.removeprefix("coin:")) if text.startswith("coin:") else None
        order = everybody if coin is not None else tuple(source.number(node) for node in text.split("--"))
        if (coin or 0) < 0 or not set(order) <= set(everybody):
            raise ValueError
        return order, coin

    def read_least(text: str) -> int:
        if not 1 <= int(text) <= n:
            raise ValueError
        return int(text)

    def read_shares(text: str) -> tuple[float, ...]:
        shares = tuple(map(float, text.split(":")))
        if len(shares) != n or not all(0 < share < 1e300 for share in shares):
            raise ValueError
        return shares

    known = {
        "order": (read_order, f"nodes of {source.name}, such as 2--0--1, or coin:SEED"),
        "least": (read_least, f"from 1 to {n}"),
        "shares": (read_shares, f"{n} positive numbers, such as 1:2:1"),
    }
    given = parse_options(f"weights {kind!r}", kind.split(",")[1:], known)
    order, coin = given.get("order", (everybody, None))
    _check_reach(source, order)
    return Rotation(order, given.get("shares", (1.0,) * n), coin, given.get("least"))


def _check_reach(source: Graph, order: tuple[int, ...]) -> None:
    """Refuse an aggregator that does not hear all others, or is not heard by them."""
    heard_N, hearing_N = (np.diff(edges.indptr) for edges in (source.adjacency.tocsc(), source.adjacency.tocsr()))
    for one in order:
        if min(heard_N[one], hearing_N[one]) < source.n - 1:
            raise InputError(
                f"node {one} of {source.name} as aggregator",
                "an aggregator exchanges messages with all others",
                f"use complete:{source.n}, or name the hub of a star: --weights rotating,order=0",
            )
