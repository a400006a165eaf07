"""A token that walks: in each round its holder takes a step and hands the model on to a neighbour; all others wait.

Whoever receives it goes on from it, and what it held before is overwritten. The route is public: `route=0--1--2` goes
round and round, `coin=SEED` draws each next neighbour, all of them alike.

    >>> from sottovoce.core.graphs import graph
    >>> walk = parse_walk(graph("ring:4"), "walking,route=0--1--2--3")
    >>> [walk.holder(round) for round in range(5)]
    [0, 1, 2, 3, 0]
    >>> walk.at(1, 0).weights.toarray()[2].tolist(), walk.at(1, 0).active.tolist()
    ([0.0, 1.0, 0.0, 0.0], [False, True, True, False])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy import sparse

from sottovoce.core.graphs import Graph, parse_options
from sottovoce.core.mixing import Mixing
from sottovoce.errors import InputError

WALKING = "walking"
"""The kind of weights."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Where the token is: along a `route`, or from node 0 on along edges that a public `coin` draws."""

    source: Graph
    route: tuple[int, ...] = ()
    coin: int = 0
    _drawn: list[int] = field(default_factory=lambda: [0], init=False, repr=False)

    def holder(self, round: int) -> int:
        """Who has the token when a round begins."""
        if self.route:
            return self.route[round % len(self.route)]
        edges = self.source.adjacency
        for now in range(len(self._drawn) - 1, round):
            here = self._drawn[now]
            nexts = edges.indices[edges.indptr[here] : edges.indptr[here + 1]]
            if not nexts.size:
                raise InputError(
                    f"a walk on {self.source.name} that ends at node {here}", "a token is handed on in every round",
                    "use a graph in which every node sends to another",
                )  # fmt: skip
            self._drawn.append(int(np.random.default_rng([self.coin, now]).choice(nexts)))
        return self._drawn[round]

    def at(self, round: int, step: int) -> Mixing:
        """The holder's model takes the place of the next one's. Equal mixings are one object."""
        if step:
            raise InputError(
                f"gossip step {step} of a walk", "a token is handed on once in a round", "use one gossip step"
            )
        return _handed_on(self.source.n, self.holder(round), self.holder(round + 1))


@lru_cache(maxsize=4096)
def _handed_on(n: int, sender: int, receiver: int) -> Mixing:
    source, active = np.arange(n), np.zeros(n, dtype=bool)
    source[receiver], active[[sender, receiver]] = sender, True
    return Mixing(sparse.csr_array((np.ones(n), (np.arange(n), source)), shape=(n, n)), active)


def parse_walk(source: Graph, kind: str) -> Walk:
    """`walking`, with `,route=0--1--2` or `,coin=SEED`."""

    def read_route(text: str) -> tuple[int, ...]:
        route = tuple(source.number(node) for node in text.split("--"))
        edges = {(int(u), int(v)) for u, v in zip(*source.adjacency.nonzero(), strict=True)}
        if len(route) < 2 or not set(zip(route, route[1:] + route[:1], strict=True)) <= edges:
            raise ValueError
        return route

    def read_coin(text: str) -> int:
        if int(text) < 0:
            raise ValueError
        return int(text)

    known = {
        "route": (read_route, f"nodes of {source.name}, each a neighbour of the next and the last of the first"),
        "coin": (read_coin, "0 or more"),
    }
    return Walk(source, **parse_options(f"weights {kind!r}", kind.split(",")[1:], known))
