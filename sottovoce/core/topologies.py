"""Topologies: a graph with its mixing weights, fixed or changing from round to round.

`W[u, v]` is the weight that node u gives to what node v says, so one gossip step is `x <- W @ x`.

    >>> net = metropolis("ring:30")
    >>> round(net.spectral_gap, 4)
    0.0146
    >>> push("exponential:10").at(0).column_stochastic
    True

Everything is sparse: a graph of 100,000 nodes and 1,000,000 edges never becomes dense.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sottovoce.core.graphs import Graph, graph, parse_options
from sottovoce.core.mixing import TOLERANCE, Mixing, Requirement
from sottovoce.core.random_streams import check_seed
from sottovoce.core.rotation import ROTATING, Rotation, parse_rotation
from sottovoce.core.walks import WALKING, parse_walk
from sottovoce.errors import InputError
from sottovoce.support.progress import report_stage


class Topology:
    """A fixed graph with its weights, the same in every round. `metropolis`, `uniform` and others make one."""

    static = True

    def __init__(self, mixing: Mixing, name: str, source: Graph | None = None) -> None:
        self._mixing, self.name = mixing, name
        self.graph: Graph | None = source if source is not None else _graph_of(mixing, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.n} nodes)"

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self._mixing.n

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the graph's nodes, in order; None if they have numbers only."""
        return None if self.graph is None else self.graph.names

    @property
    def spectral_gap(self) -> float:
        """Spectral gap of W (muffliato, Definition 2)."""
        return self._mixing.spectral_gap

    def at(self, round: int, step: int = 0) -> Mixing:
        """The mixing of a gossip step within a round."""
        return self._mixing

    def require_connected(self) -> None:
        """Refuse a graph that is not connected."""
        if self.graph is not None and not self.graph.connected:
            parts = int(self.graph.components.max()) + 1
            raise InputError(
                f"{self.name}: {parts} components",
                "the graph must be connected",
                "take its giant component (component=giant), or add edges",
            )


class Changing(Topology):
    """A topology that changes: `mixing_at(round, step)` must return the same answer each time it is called.

    >>> flip = [metropolis("path:3").at(0), metropolis("complete:3").at(0)]
    >>> round(Changing(lambda round, step: flip[round % 2], n=3, name="flip").at(1).spectral_gap, 6)
    1.0
    """

    static = False

    def __init__(
        self, mixing_at: Callable[[int, int], Mixing], *, n: int, name: str = "changing", source: Graph | None = None
    ) -> None:
        self._at, self._n, self.name = lru_cache(maxsize=64)(mixing_at), n, name
        self.graph = source

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self._n

    @property
    def spectral_gap(self) -> float:
        """Refused: each round has its own."""
        raise InputError(
            f"{self.name} changes", "each of its rounds has its own spectral gap", "ask at(round).spectral_gap"
        )

    def at(self, round: int, step: int = 0) -> Mixing:
        """The mixing of a gossip step within a round."""
        mixing = self._at(round, step)
        if not isinstance(mixing, Mixing):
            raise InputError(
                f"{self.name} gave a {type(mixing).__name__} for round {round}",
                "every step must be a Mixing",
                "give topology.at(0), or Mixing(W)",
            )
        if mixing.n != self.n:
            raise InputError(
                f"{self.name} has {mixing.n} nodes in round {round}",
                f"every round has {self.n}",
                "keep absent nodes as rows of the identity",
            )
        return mixing

    def require_connected(self) -> None:
        """Refuses nothing: parts may be connected over time."""


class Rotating(Changing):
    """An aggregator that rotates, and of the other nodes any may be missing as long as so many are there as agreed."""

    def __init__(self, source: Graph, rotation: Rotation, name: str) -> None:
        super().__init__(rotation.at, n=source.n, name=name, source=source)
        self.rotation = rotation


def _graph_of(mixing: Mixing, name: str) -> Graph:
    sender, receiver, _ = mixing.edges
    others = sender != receiver
    pairs = np.stack([sender[others], receiver[others]], axis=1)
    return Graph.from_edges(pairs, name=name, nodes=mixing.n, directed=not mixing.undirected)


# --- weights -------------------------------------------------------------------------------------------------------


def metropolis(source: str | Graph) -> Topology:
    """`W_ij = 1 / (1 + max(deg_i, deg_j))`, the remainder on the diagonal: symmetric, doubly stochastic."""
    return _fixed(_undirected(graph(source), "metropolis"), "metropolis", partial(_pairwise, offset=1))


def max_degree(source: str | Graph) -> Topology:
    """`W_ij = 1 / max(deg_i, deg_j)`, the remainder on the diagonal: symmetric, doubly stochastic."""
    return _fixed(_undirected(graph(source), "max-degree"), "max-degree", partial(_pairwise, offset=0))


def uniform(source: str | Graph) -> Topology:
    """The plain average over a node itself and those it receives from: row-stochastic."""
    return _fixed(graph(source), "uniform", _uniform_weights)


def push(source: str | Graph) -> Topology:
    """Equal shares to a node itself and those it sends to: column-stochastic, for directed graphs."""
    return _fixed(graph(source), "push", _push_weights)


def from_matrix(weights: ArrayLike | sparse.sparray, *, name: str = "matrix") -> Topology:
    """A topology from your own W; its rows or its columns must sum to one.

    >>> from_matrix([[0.5, 0.5], [0.2, 0.7]])
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: row 1 of W sums to 0.9; expected 1; use metropolis(graph), or ...
    """
    mixing = Mixing(weights)
    if not mixing.column_stochastic:
        mixing.require("row-stochastic")
    return Topology(mixing, name)


def rotating(source: str | Graph, settings: str = ROTATING) -> Changing:
    """One node in turn takes the mean of all, and sends it to all; see `core.rotation` for the settings.

    Two gossip steps make a round: `algorithm("swarm", ...)` has them.
    """
    known, name = graph(source), f"{graph(source).name} {settings}"
    rotation = parse_rotation(known, settings)
    if (rotation.least or known.n) < known.n:
        return Rotating(known, rotation, name)
    return Changing(rotation.at, n=known.n, name=name, source=known)


def walking(source: str | Graph, settings: str = WALKING) -> Changing:
    """One model is handed on from node to node, each of which takes a step; see `core.walks` for the settings."""
    known = graph(source)
    return Changing(parse_walk(known, settings).at, n=known.n, name=f"{known.name} {settings}", source=known)


CHANGING: dict[str, Callable[[str | Graph, str], Changing]] = {ROTATING: rotating, WALKING: walking}
"""Kinds that have settings of their own."""

WEIGHTS: dict[str, Callable[[str | Graph], Topology]] = {
    "metropolis": metropolis,
    "max-degree": max_degree,
    "uniform": uniform,
    "push": push,
    ROTATING: rotating,
    WALKING: walking,
}


def weigh(source: str | Graph, kind: str) -> Topology:
    """The topology with weights of the named kind: metropolis, max-degree, uniform, push, rotating or walking.

    With `,lazy=S` a node keeps a fraction S of what it has and mixes the rest: `S I + (1 - S) W`. Coarse compression
    needs that: the copies that receivers hold lag behind, and full steps along them diverge.

    >>> weigh("ring:4", "uniform,lazy=0.5").at(0).weights.toarray()[0].round(4).tolist()
    [0.6667, 0.1667, 0.0, 0.1667]
    """
    if not isinstance(kind, str):
        raise InputError(f"weights of type {type(kind).__name__}", "they are given by name", 'write "metropolis"')
    plain, *options = kind.split(",")
    if plain in CHANGING:
        return CHANGING[plain](source, kind)
    if plain not in WEIGHTS:
        raise InputError(f"weights {plain!r}", f"known: {', '.join(WEIGHTS)}", "choose one of them")
    share = parse_options(f"weights {kind!r}", options, {"lazy": (_share, "from 0 to less than 1")}).get("lazy", 0.0)
    source = graph(source)
    report_stage(f"{plain} weights")
    net = WEIGHTS[plain](source)
    if not share:
        return net
    weights = share * sparse.eye_array(net.n) + (1 - share) * net.at(0).weights
    return Topology(Mixing(weights), f"{net.name},lazy={share:g}", net.graph)


def _share(text: str) -> float:
    if not 0 <= float(text) < 1:
        raise ValueError
    return float(text)


def weights_for(needs: Requirement, kind: str | None = None) -> str:
    """The kind of weights for an algorithm with this requirement, unless a kind is asked for."""
    if kind is not None:
        return kind
    suited = {"column-stochastic": "push", "complete average": "uniform", "one aggregator": ROTATING}
    return suited.get(needs, "metropolis")


def _fixed_weights(source: str | Graph, kind: str) -> Mixing:
    """Weights of a graph that is itself one of several, or loses nodes."""
    net = weigh(source, kind)
    if not net.static:
        raise InputError(
            f"{kind} weights on a graph that changes", "the aggregator changes already", "use metropolis weights"
        )
    return net.at(0)


def _fixed(source: Graph, kind: str, weights: Callable[[Graph], sparse.csr_array]) -> Topology:
    return Topology(Mixing(weights(source)), f"{source.name} {kind}", source)


def _undirected(source: Graph, kind: str) -> Graph:
    if source.directed:
        raise InputError(
            f"{source.name} is directed", f"{kind} weights need undirected edges", "use uniform or push weights"
        )
    return source


def _pairwise(source: Graph, offset: int) -> sparse.csr_array:
    degrees = source.out_degrees
    off = source.adjacency.tocoo()
    row, column = off.coords
    value = 1.0 / (offset + np.maximum(degrees[row], degrees[column]))
    kept = np.clip(1.0 - np.bincount(row, weights=value, minlength=source.n), 0.0, 1.0)
    kept[kept < TOLERANCE] = 0.0
    off = sparse.coo_array((value, (row, column)), shape=off.shape)
    return sparse.csr_array(off + sparse.diags_array(kept))


def _uniform_weights(source: Graph) -> sparse.csr_array:
    hears = source.adjacency.T + sparse.eye_array(source.n)
    return sparse.csr_array(sparse.diags_array(1.0 / (1 + source.in_degrees)) @ hears)


def _push_weights(source: Graph) -> sparse.csr_array:
    hears = source.adjacency.T + sparse.eye_array(source.n)
    return sparse.csr_array(hears @ sparse.diags_array(1.0 / (1 + source.out_degrees)))


# --- changing topologies -------------------------------------------------------------------------------------------


def fresh_erdos_renyi(n: int, p: float, *, seed: int = 0, weights: str = "metropolis") -> Changing:
    """A new Erdos-Renyi graph for every gradient step (muffliato, section 5); all gossip steps of a round share it."""
    first = graph(f"erdos-renyi:{n},p={p},seed={_derived(seed, 0)}")

    @lru_cache(maxsize=16)
    def of_round(round: int) -> Mixing:
        source = first if round == 0 else graph(f"erdos-renyi:{n},p={p},seed={_derived(seed, round)}")
        return _fixed_weights(source, weights)

    return Changing(lambda round, step: of_round(round), n=n, name=f"fresh erdos-renyi:{n},p={p} {weights}")


def random_edges(source: str | Graph | Topology, *, seed: int = 0) -> Changing:
    """Randomised gossip: in each step one random edge is active and its two ends average (muffliato, Algorithm 2).

    From a graph every edge is equally likely; from a topology edge {u, v} is drawn in proportion to W[u, v].
    """
    net = source if isinstance(source, Topology) else metropolis(source)
    net.at(0).require("undirected")
    sender, receiver, weight = net.at(0).edges
    once = sender < receiver
    u, v, weight = sender[once], receiver[once], weight[once]
    if not u.size:
        raise InputError(
            f"{net.name}: no edges", "randomised gossip uses one edge in each step", "use a graph with edges"
        )
    chance = weight / weight.sum() if isinstance(source, Topology) else np.full(len(u), 1 / len(u))

    def mixing_at(round: int, step: int) -> Mixing:
        edge = int(np.random.default_rng(_derived(seed, round, step)).choice(len(u), p=chance))
        a, b = int(u[edge]), int(v[edge])
        weights = sparse.lil_array(sparse.eye_array(net.n))
        weights[[a, a, b, b], [a, b, a, b]] = 0.5
        return Mixing(weights.tocsr())

    return Changing(mixing_at, n=net.n, name=f"random edges of {net.name}", source=net.graph)


def dropout(
    source: str | Graph,
    *,
    rate: float,
    correlation: float = 0.0,
    seed: int = 0,
    weights: str = "metropolis",
    announced: bool = False,
) -> Changing:
    """Nodes that skip rounds: no gradient, nothing sent, nothing received (zip-dl A.5).

    Each node is absent with probability `rate`; `correlation` is the correlation between its absences in consecutive
    rounds. If dropout is not announced, senders still spread their noise over all neighbours, and receivers keep the
    missing weight for themselves. If it is, weights and noise are those of the graph of the nodes that are present.
    """
    base = graph(source)
    for value, what in ((rate, "rate"), (correlation, "correlation")):
        if not 0 <= value < 1:
            raise InputError(f"dropout {what} {value}", "it must lie in [0, 1)", f"give {what}=0.1, for example")
    absent: list[NDArray[np.bool_]] = []

    def active_in(round: int) -> NDArray[np.bool_]:
        while len(absent) <= round:
            draws = np.random.default_rng(_derived(seed, len(absent))).random(base.n)
            was = absent[-1] if absent else np.zeros(base.n, dtype=bool)
            chance = np.where(was, rate + correlation * (1 - rate), rate * (1 - correlation)) if absent else rate
            absent.append(draws < chance)
        return ~absent[round]

    name = f"{base.name} {weights}, dropout {rate}"
    if weights.partition(",")[0] == ROTATING:
        if not announced:
            raise InputError(
                f"{weights} weights with dropout that is not announced", "the mean is over those who say that they are "
                "there", "set announced = true",
            )  # fmt: skip
        turns = parse_rotation(base, weights)
        return Changing(lambda round, step: turns.at(round, step, active_in(round)), n=base.n, name=name, source=base)
    planned = _fixed_weights(base, weights)
    if not announced:
        planned.require("row-stochastic")

    @lru_cache(maxsize=16)
    def of_round(round: int) -> Mixing:
        active = active_in(round)
        if announced:
            return Mixing(_fixed_weights(base.restricted_to(active), weights).weights, active)
        return Mixing(_delivered(planned.weights, active), active, planned.weights)

    return Changing(lambda round, step: of_round(round), n=base.n, name=name, source=base)


def _delivered(weights: sparse.csr_array, active: NDArray[np.bool_]) -> sparse.csr_array:
    """W with only the edges between active nodes, the weight of the missing ones kept by the receiver."""
    there = sparse.diags_array(active.astype(float))
    left = sparse.csr_array(there @ weights @ there)
    missing = 1.0 - np.asarray(left.sum(axis=1)).ravel()
    return sparse.csr_array(left + sparse.diags_array(missing))


def _derived(seed: int, *where: int) -> int:
    """A seed for one round or step, far from those of neighbouring seeds."""
    return int(np.random.SeedSequence([check_seed(seed), *where]).generate_state(1)[0])
