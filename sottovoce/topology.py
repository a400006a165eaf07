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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import ArpackNoConvergence, eigs, eigsh

from sottovoce import arrays
from sottovoce.errors import InputError
from sottovoce.graphs import Graph, graph

TOLERANCE = 1e-9
"""How far a row of W may be from summing to one."""

DENSE_SPECTRUM = 600
"""Up to this many nodes the spectrum comes from a dense solver."""

Requirement: TypeAlias = Literal["row-stochastic", "column-stochastic", "undirected", "symmetric", "complete average"]


class Edges(NamedTuple):
    """Directed edges of a mixing step, sorted by sender, then receiver; a node's edge to itself is among them."""

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    weight: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Mixing:
    """One gossip step: `mixing @ x` is what every node holds after it.

    `active` marks the nodes that take part (None: all). `planned` is the W that senders believed in, where that is
    another one: a node dropped out unannounced.
    """

    weights: sparse.csr_array
    active: NDArray[np.bool_] | None = None
    planned: sparse.csr_array | None = None
    _operators: dict[tuple[str, str, str], Any] = field(default_factory=dict, repr=False)
    _met: set[Requirement] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _checked(self.weights))
        if self.planned is not None:
            object.__setattr__(self, "planned", _checked(self.planned))
            unplanned = np.isin(_codes(self.weights), _codes(self.planned), invert=True)
            if unplanned.any():
                raise InputError("an edge that was not planned", "what is delivered was sent", "add it to planned")
        if self.active is not None and (self.active.dtype != bool or self.active.shape != (self.n,)):
            raise InputError(
                f"active of type {self.active.dtype}, shape {self.active.shape}", "one true or false per node", "fix it"
            )

    def __matmul__(self, rows: arrays.Rows) -> arrays.Rows:
        if not (arrays.is_torch(rows) or isinstance(rows, np.ndarray)):
            return rows.mixed_by(self.weights)
        key = (type(rows).__name__, str(rows.dtype), str(getattr(rows, "device", "cpu")))
        if key not in self._operators:
            self._operators[key] = arrays.operator(self.weights, rows)
        return self._operators[key] @ rows

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.weights.shape[0])

    @cached_property
    def edges(self) -> Edges:
        """Along which edges something is delivered in this step."""
        return _edges(self.weights)

    @cached_property
    def planned_edges(self) -> Edges:
        """Along which edges senders meant to speak."""
        return self.edges if self.planned is None else _edges(self.planned)

    @cached_property
    def row_stochastic(self) -> bool:
        """Whether every row sums to one."""
        return _off_sum(self.weights, axis=1) is None

    @cached_property
    def column_stochastic(self) -> bool:
        """Whether every column sums to one."""
        return _off_sum(self.weights, axis=0) is None

    @cached_property
    def symmetric(self) -> bool:
        """Whether W equals its transpose."""
        gap = abs(self.weights - self.weights.T)
        return gap.nnz == 0 or float(gap.max()) <= TOLERANCE

    @cached_property
    def undirected(self) -> bool:
        """Whether u hears v exactly when v hears u."""
        pattern = self.weights != 0
        return (pattern != pattern.T).nnz == 0

    @cached_property
    def spectral_gap(self) -> float:
        """`1 - |lambda|` for the second largest eigenvalue in magnitude: 0 when parts of the graph never meet."""
        return max(0.0, 1.0 - _second_eigenvalue(self))

    def require(self, rule: Requirement) -> None:
        """Refuse weights that an algorithm cannot use, saying which entry breaks which rule."""
        if rule not in self._met:
            self._refuse_unless(rule)
            self._met.add(rule)

    def _refuse_unless(self, rule: Requirement) -> None:
        if rule == "column-stochastic":
            _require_sums(self.weights, axis=0)
            return
        if rule in ("undirected", "symmetric") and not self.undirected:
            v, u = (int(i[0]) for i in ((self.weights != 0) != (self.weights != 0).T).nonzero())
            raise InputError(
                f"directed edge between {u} and {v} without its reverse",
                "this algorithm speaks both ways along every edge",
                "use an undirected graph, or dp-csgp with push weights",
            )
        _require_sums(self.weights, axis=1)
        if rule == "symmetric" and not self.symmetric:
            gap = abs(self.weights - self.weights.T).tocoo()
            worst = int(np.argmax(gap.data))
            u, v = (int(i[worst]) for i in gap.coords)
            raise InputError(
                f"W[{u},{v}] = {self.weights[u, v]:.4g} but W[{v},{u}] = {self.weights[v, u]:.4g}",
                "this algorithm needs symmetric weights",
                "use metropolis",
            )
        if rule == "complete average" and not _is_complete_average(self.weights):
            raise InputError(
                "weights are not the average over all nodes",
                "this algorithm has one sum over everyone",
                f"use complete:{self.n} with uniform weights",
            )


def _codes(weights: sparse.csr_array) -> NDArray[np.int64]:
    """One number for each edge between two nodes."""
    row, column = (index.astype(np.int64) for index in weights.tocoo().coords)
    return (row * weights.shape[0] + column)[row != column]


def _edges(weights: sparse.csr_array) -> Edges:
    by_sender = weights.tocsc()
    sender = np.repeat(np.arange(by_sender.shape[1]), np.diff(by_sender.indptr))
    return Edges(sender, by_sender.indices.astype(np.intp), by_sender.data)


def _checked(weights: Any) -> sparse.csr_array:
    """W as sorted CSR without stored zeros: square, finite, non-negative."""
    try:
        matrix = sparse.csr_array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("weights are not a matrix of numbers", "W must be one", "give an n x n array") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"W has shape {matrix.shape}", "W must be square", "give one row and column per node")
    if matrix.shape[0] == 0:
        raise InputError("W has 0 nodes", "a topology needs at least one", "give a positive number of nodes")
    coords = sparse.coo_array(matrix)
    for bad, rule in ((~np.isfinite(coords.data), "weights are finite"), (coords.data < 0, "weights are not negative")):
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            u, v = (int(i[at]) for i in coords.coords)
            raise InputError(f"W[{u},{v}] = {coords.data[at]}", rule, "use metropolis(graph)")
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _off_sum(weights: sparse.csr_array, axis: int) -> tuple[int, float] | None:
    sums = np.asarray(weights.sum(axis=axis)).ravel()
    worst = int(np.argmax(abs(sums - 1)))
    return (worst, float(sums[worst])) if abs(sums[worst] - 1) > TOLERANCE else None


def _require_sums(weights: sparse.csr_array, axis: int) -> None:
    off = _off_sum(weights, axis)
    if off is None:
        return
    line, remedy = ("row", "metropolis(graph)") if axis == 1 else ("column", "push(graph)")
    raise InputError(f"{line} {off[0]} of W sums to {off[1]:.6g}", "expected 1", f"use {remedy}")


def _is_complete_average(weights: sparse.csr_array) -> bool:
    n = weights.shape[0]
    return weights.nnz == n * n and bool(np.allclose(weights.data, 1 / n, rtol=0, atol=TOLERANCE))


def _second_eigenvalue(mixing: Mixing) -> float:
    """The second largest magnitude in the spectrum of W, of which one is the eigenvalue 1."""
    weights, n = mixing.weights, mixing.n
    if n == 1:
        return 0.0
    symmetric = _symmetrised(mixing)
    if n <= DENSE_SPECTRUM:
        dense = (weights if symmetric is None else symmetric).toarray()
        values = linalg.eigvals(dense) if symmetric is None else linalg.eigvalsh(dense)
        return float(np.sort(abs(values))[-2])
    start = np.random.default_rng(0).standard_normal(n)  # ARPACK's own start vector would differ from call to call
    if symmetric is None:
        return float(np.sort(abs(eigs(weights, k=3, which="LM", v0=start, return_eigenvectors=False)))[-2])
    try:
        ends = eigsh(symmetric, k=4, which="BE", v0=start, maxiter=3000, tol=1e-10, return_eigenvectors=False)
    except ArpackNoConvergence:  # many eigenvalues close to one, as in long rings: look at them through an inverse
        near = [eigsh(symmetric, k=2, sigma=end, v0=start, return_eigenvectors=False) for end in (1 + 1e-8, -1 - 1e-8)]
        ends = np.concatenate(near)
    return float(np.sort(abs(ends))[-2])


def _symmetrised(mixing: Mixing) -> sparse.csr_array | None:
    """A symmetric matrix with the spectrum of W, where one is near: W itself, or S^(1/2) W S^(-1/2)."""
    weights = mixing.weights
    if mixing.symmetric:
        return weights
    if not mixing.undirected:
        return None
    # uniform averaging over closed neighbourhoods: W = S^-1 (A + I), S = diag(neighbourhood sizes)
    root = np.sqrt(1.0 / np.maximum(weights.max(axis=1).toarray().ravel(), 1e-300))
    similar = sparse.csr_array(sparse.diags_array(root) @ weights @ sparse.diags_array(1 / root))
    gap = abs(similar - similar.T)
    return similar if gap.nnz == 0 or float(gap.max()) <= TOLERANCE else None


class Topology:
    """What every round looks like: a fixed graph with its weights."""

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
    def spectral_gap(self) -> float:
        """Spectral gap of W (muffliato, Definition 2)."""
        return self._mixing.spectral_gap

    def at(self, round: int, step: int = 0) -> Mixing:
        """The mixing of a gossip step within a round."""
        return self._mixing

    def require_connected(self) -> None:
        """Refuse a graph whose parts never hear each other."""
        if self.graph is not None and not self.graph.connected:
            parts = int(self.graph.components.max()) + 1
            raise InputError(
                f"{self.name}: {parts} components",
                "the graph must be connected",
                "take its giant component (component=giant), or add edges",
            )


class Changing(Topology):
    """A topology that changes: `mixing_at(round, step)` must give the same answer each time it is asked.

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
        raise InputError(f"{self.name} changes", "each round has its own spectral gap", "ask at(round).spectral_gap")

    def at(self, round: int, step: int = 0) -> Mixing:
        """The mixing of a gossip step within a round."""
        mixing = self._at(round, step)
        if not isinstance(mixing, Mixing):
            raise InputError(
                f"{self.name} gave a {type(mixing).__name__} for round {round}",
                "every step is a Mixing",
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
        """Nothing to refuse: parts may meet over time."""


def _graph_of(mixing: Mixing, name: str) -> Graph:
    sender, receiver, _ = mixing.edges
    others = sender != receiver
    pairs = np.stack([sender[others], receiver[others]], axis=1)
    return Graph.from_edges(pairs, name=name, nodes=mixing.n, directed=not mixing.undirected)


# --- weights -------------------------------------------------------------------------------------------------------


def metropolis(source: str | Graph) -> Topology:
    """`W_ij = 1 / (1 + max(deg_i, deg_j))`, the remainder on the diagonal: symmetric, doubly stochastic."""
    return _fixed(_undirected(graph(source), "metropolis"), "metropolis", _metropolis_weights)


def max_degree(source: str | Graph) -> Topology:
    """`W_ij = 1 / max(deg_i, deg_j)`, the remainder on the diagonal: symmetric, doubly stochastic."""
    return _fixed(_undirected(graph(source), "max-degree"), "max-degree", _max_degree_weights)


def uniform(source: str | Graph) -> Topology:
    """The plain average over oneself and whom one hears: row-stochastic."""
    return _fixed(graph(source), "uniform", _uniform_weights)


def push(source: str | Graph) -> Topology:
    """Equal shares to oneself and whom one speaks to: column-stochastic, for directed graphs."""
    return _fixed(graph(source), "push", _push_weights)


def from_matrix(weights: Any, *, name: str = "matrix") -> Topology:
    """A topology from your own W; its rows or its columns must sum to one.

    >>> from_matrix([[0.5, 0.5], [0.2, 0.7]])
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: row 1 of W sums to 0.9; expected 1; use metropolis(graph)
    """
    mixing = Mixing(weights)
    if not mixing.column_stochastic:
        mixing.require("row-stochastic")
    return Topology(mixing, name)


def weigh(source: str | Graph, kind: str) -> Topology:
    """The topology with weights of the named kind: metropolis, max-degree, uniform or push."""
    kinds: dict[str, Callable[[str | Graph], Topology]] = {
        "metropolis": metropolis,
        "max-degree": max_degree,
        "uniform": uniform,
        "push": push,
    }
    if kind not in kinds:
        raise InputError(f"weights {kind!r}", f"known: {', '.join(kinds)}", "choose one of them")
    return kinds[kind](source)


def suited(needs: Requirement, kind: str | None = None) -> str:
    """The kind of weights: the one that is asked for, or the one that suits an algorithm's requirement."""
    return kind or {"column-stochastic": "push", "complete average": "uniform"}.get(needs, "metropolis")


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


def _metropolis_weights(source: Graph) -> sparse.csr_array:
    return _pairwise(source, 1)


def _max_degree_weights(source: Graph) -> sparse.csr_array:
    return _pairwise(source, 0)


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
        return weigh(source, weights).at(0)

    return Changing(lambda round, step: of_round(round), n=n, name=f"fresh erdos-renyi:{n},p={p} {weights}")


def random_edges(source: str | Graph | Topology, *, seed: int = 0) -> Changing:
    """Randomised gossip: each step one edge wakes and its two ends average (muffliato, Algorithm 2).

    From a graph every edge is equally likely; from a topology edge {u, v} is drawn in proportion to W[u, v].
    """
    net = source if isinstance(source, Topology) else metropolis(source)
    net.at(0).require("undirected")
    sender, receiver, weight = net.at(0).edges
    once = sender < receiver
    u, v, weight = sender[once], receiver[once], weight[once]
    if not u.size:
        raise InputError(f"{net.name}: no edges", "randomised gossip wakes one per step", "use a graph with edges")
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

    Each node is absent with probability `rate`; whether it is absent now and was in the last round are correlated by
    `correlation`. Unannounced, senders still spread their noise over everyone they know of, and receivers keep the
    missing weight for themselves; announced, weights and noise are those of the graph of who is present.
    """
    base = graph(source)
    for value, what in ((rate, "rate"), (correlation, "correlation")):
        if not 0 <= value < 1:
            raise InputError(f"dropout {what} {value}", "it lies in [0, 1)", f"give {what}=0.1, say")
    planned = weigh(base, weights).at(0)
    if not announced:
        planned.require("row-stochastic")
    absent: list[NDArray[np.bool_]] = []

    def active_in(round: int) -> NDArray[np.bool_]:
        while len(absent) <= round:
            draws = np.random.default_rng(_derived(seed, len(absent))).random(base.n)
            was = absent[-1] if absent else np.zeros(base.n, dtype=bool)
            chance = np.where(was, rate + correlation * (1 - rate), rate * (1 - correlation)) if absent else rate
            absent.append(draws < chance)
        return ~absent[round]

    @lru_cache(maxsize=16)
    def of_round(round: int) -> Mixing:
        active = active_in(round)
        if announced:
            return Mixing(weigh(base.restricted_to(active), weights).at(0).weights, active)
        return Mixing(_delivered(planned.weights, active), active, planned.weights)

    return Changing(
        lambda round, step: of_round(round), n=base.n, name=f"{base.name} {weights}, dropout {rate}", source=base
    )


def _delivered(weights: sparse.csr_array, active: NDArray[np.bool_]) -> sparse.csr_array:
    """W with only the edges between active nodes, the weight of the missing ones kept by the receiver."""
    there = sparse.diags_array(active.astype(float))
    left = sparse.csr_array(there @ weights @ there)
    missing = 1.0 - np.asarray(left.sum(axis=1)).ravel()
    return sparse.csr_array(left + sparse.diags_array(missing))


def _derived(seed: int, *where: int) -> int:
    """A seed for one round or step, far from those of neighbouring seeds."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed {seed!r}", "it is a whole number from 0", "give 0, say")
    return int(np.random.SeedSequence([seed, *where]).generate_state(1)[0])
