"""Graphs: who can speak to whom. Built from a spec such as `ring:30`, a networkx graph, a matrix or an edge list.

    >>> graph("ring:5")
    Graph('ring:5', 5 nodes, 5 edges)
    >>> graph("exponential:10")
    Graph('exponential:10', 10 nodes, 40 directed edges)
    >>> graph("florentine").labels[0]
    'Acciaiuoli'

Nodes are 0..n-1. Random graphs are those of networkx for the same seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse import csgraph

from sottovoce.core.arrays import given_array
from sottovoce.core.graph_files import parse_edges, read_edge_list
from sottovoce.errors import InputError
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.progress import report_stage

if TYPE_CHECKING:
    import networkx as nx

Options: TypeAlias = Mapping[str, tuple[Callable[[str], Any], str]]
"""Options of a spec, such as `p=0.5`: how each is read, which raises a `ValueError`, and what it has to be."""

MOST_NODES = 20_000_000
MOST_EDGES = 100_000_000
"""Larger graphs are refused rather than left to run out of memory."""

LONGEST_NAME = 60
"""A graph whose edges take more characters is called `edges`."""
DRAWN_EDGE = Cost(memory=500.0, seconds=5e-6)
"""What networkx takes for an edge of a random graph."""

NUMBERED = re.compile("0|-?[1-9][0-9]*")
"""Labels that are whole numbers."""

FAST_ERDOS_RENYI = 10_000
"""From this many nodes on `erdos-renyi` takes networkx's `fast_gnp_random_graph`: the plain one looks at every pair."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph without self-loops; `adjacency[i, j]` is set when i sends to j.

    `positions` are where the nodes of a geometric graph lie in the unit square.
    """

    adjacency: sparse.csr_array
    directed: bool
    name: str
    labels: tuple[Hashable, ...] | None = None
    positions: NDArray[np.float64] | None = None

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The names of the nodes in its source, in order; None if they have only the numbers 0..n-1.

        >>> graph("florentine").names[:2], graph("ring:5").names
        (('Acciaiuoli', 'Medici'), None)
        """
        names = None if self.labels is None else tuple(map(str, self.labels))
        return None if names == tuple(map(str, range(self.n))) else names

    def number(self, node: str) -> int:
        """The number of a node that is called by its name or number; a ValueError if there is none."""
        return int(node) if node.isdecimal() or self.names is None else self.names.index(node)

    def __post_init__(self) -> None:
        rows, columns = self.adjacency.shape
        if rows != columns:
            raise InputError(
                f"{self.name}: adjacency is {rows} x {columns}", "it must be square", "give one row for each node"
            )
        if rows == 0:
            raise InputError(f"{self.name}: 0 nodes", "a graph needs at least one", "give a positive number of nodes")
        loops = np.flatnonzero(self.adjacency.diagonal())
        if loops.size:
            raise InputError(
                f"{self.name}: self-loop at node {loops[0]}",
                "edges join two different nodes; every node uses its own model anyway",
                "leave self-loops out",
            )

    def __repr__(self) -> str:
        kind = "directed edges" if self.directed else "edges"
        return f"Graph({self.name!r}, {self.n} nodes, {self.edges} {kind})"

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.adjacency.shape[0])

    @property
    def edges(self) -> int:
        """Number of edges; an undirected edge counts once."""
        return int(self.adjacency.nnz) if self.directed else int(self.adjacency.nnz) // 2

    @cached_property
    def out_degrees(self) -> NDArray[np.int64]:
        """How many nodes each node sends to."""
        return np.diff(self.adjacency.indptr).astype(np.int64)

    @cached_property
    def in_degrees(self) -> NDArray[np.int64]:
        """How many nodes each node receives from."""
        return np.bincount(self.adjacency.indices, minlength=self.n).astype(np.int64)

    @cached_property
    def components(self) -> NDArray[np.int32]:
        """The component of each node (strong components where the graph is directed)."""
        return np.asarray(csgraph.connected_components(self.adjacency, directed=self.directed, connection="strong")[1])

    @property
    def connected(self) -> bool:
        """Whether every node can reach every other."""
        return int(self.components.max()) == 0

    def giant(self) -> Graph:
        """The largest component, its nodes relabelled in order.

        >>> Graph.from_edges([(0, 1), (1, 2), (5, 6)], name="two parts").giant()
        Graph('two parts,component=giant', 3 nodes, 2 edges)
        """
        keep = np.flatnonzero(self.components == np.bincount(self.components).argmax())
        old = self.labels if self.labels is not None else range(self.n)
        return Graph(
            sparse.csr_array(self.adjacency[keep][:, keep]),
            self.directed,
            f"{self.name},component=giant",
            tuple(old[i] for i in keep),
        )

    def reaching(self, nodes: Sequence[int], hops: int) -> list[int]:
        """Other nodes from which messages get to one of these in at most so many hops, in order.

        >>> graph("ring:9").reaching([0], 2)
        [1, 2, 7, 8]
        """
        towards = self.adjacency.tocsc()
        newest = found = np.unique(np.asarray(nodes, dtype=np.intp))
        for _ in range(hops):
            newest = np.setdiff1d(towards[:, newest].indices, found)
            found = np.union1d(found, newest)
        return np.setdiff1d(found, nodes).tolist()

    def restricted_to(self, active: NDArray[np.bool_]) -> Graph:
        """The same nodes, with only the edges between active ones."""
        mask = sparse.diags_array(active.astype(float)).tocsr()
        left = sparse.csr_array(mask @ self.adjacency @ mask)
        left.eliminate_zeros()
        return Graph(left, self.directed, self.name, self.labels)

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Hashable, Hashable]] | NDArray[np.generic],
        *,
        name: str = "edges",
        directed: bool = False,
        nodes: int | None = None,
    ) -> Graph:
        """From pairs of labels. Labels are sorted and become 0..n-1; with `nodes` given they are 0..nodes-1 already.

        >>> Graph.from_edges([(10, 20), (20, 30)]).labels
        (10, 20, 30)
        """
        pairs = given_array(edges, f"{name}: edges")
        if pairs.size == 0:
            pairs = np.empty((0, 2), dtype=np.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(f"{name}: edges of shape {pairs.shape}", "an edge is a pair", "give two columns")
        labels: tuple[Hashable, ...] | None = None
        if nodes is None:
            values, pairs = np.unique(pairs, return_inverse=True)
            pairs, nodes = pairs.reshape(-1, 2), len(values)
            labels = tuple(values.tolist())
        elif pairs.size and not (pairs.min() >= 0 and pairs.max() < nodes):
            raise InputError(
                f"{name}: edge end {pairs.max() if pairs.max() >= nodes else pairs.min()}",
                f"nodes are 0..{nodes - 1}",
                "leave out 'nodes' to use your own labels",
            )
        source, target = pairs[:, 0], pairs[:, 1]
        if not directed:
            source, target = np.concatenate([source, target]), np.concatenate([target, source])
        matrix = sparse.coo_array((np.ones(len(source), dtype=bool), (source, target)), shape=(nodes, nodes))
        return cls(_pattern(matrix), directed, name, labels)

    @classmethod
    def from_networkx(cls, source: nx.Graph[Hashable], *, name: str = "networkx") -> Graph:
        """From a networkx graph, nodes in its own order, or whole numbers by size; edge attributes are ignored."""
        return _labelled(source.nodes, source.edges(), name=name, directed=source.is_directed())


def _labelled(nodes: Iterable[Hashable], edges: Iterable[tuple[Hashable, ...]], *, name: str, directed: bool) -> Graph:
    """A graph whose nodes are in the order in which they are listed, or whole numbers by size."""
    labels = _in_order(nodes)
    place = {label: number for number, label in enumerate(labels)}
    ends = np.fromiter((place[end] for edge in edges for end in edge), dtype=np.int64)
    built = Graph.from_edges(ends.reshape(-1, 2), name=name, directed=directed, nodes=len(labels))
    return replace(built, labels=labels)


def _in_order(labels: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Labels as nodes are numbered: whole numbers, also as text, by their size; others as they are listed.

    So a file and the networkx graph that was read from it have the same numbers.

    >>> _in_order(["10", "9"]), _in_order(["Mercy", "Hill", "9"])
    (('9', '10'), ('Mercy', 'Hill', '9'))
    """
    listed = tuple(labels)
    return tuple(sorted(listed, key=_size)) if all(map(_is_whole_number, listed)) else listed


def _size(label: Hashable) -> int:
    return int(str(label))


def _is_whole_number(label: Hashable) -> bool:
    return type(label) is int or bool(NUMBERED.fullmatch(str(label)))


def _pattern(matrix: sparse.sparray) -> sparse.csr_array:
    """The nonzero pattern as ones, duplicates merged, indices sorted."""
    pattern = sparse.csr_array(matrix, dtype=bool)
    pattern.sum_duplicates()
    return pattern.astype(np.int8)


# --- specs ---------------------------------------------------------------------------------------------------------


def kinds() -> list[str]:
    """What a spec may begin with."""
    return sorted([*_SPECS, "edges", "file"])


def graph(spec: str | Graph | nx.Graph[Hashable]) -> Graph:
    """Build the graph that `spec` names, such as `ring:30` or `file:edges.txt.gz`; networkx graphs are accepted too.

    >>> graph("grid:2x3").edges
    7
    >>> graph("mesh:3")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: graph 'mesh:3'; known: complete, ...; see docs/graphs.md
    """
    if isinstance(spec, Graph):
        return spec
    if not isinstance(spec, str):
        if hasattr(spec, "is_directed"):
            return Graph.from_networkx(spec)
        raise InputError(
            f"a {type(spec).__name__} instead of a graph",
            "it must be a spec, a Graph or a networkx graph",
            "give ring:5, for example",
        )
    kind, _, rest = spec.partition(":")
    if kind == "file":
        return _from_file(spec, rest)
    if kind == "edges":
        pairs, directed = parse_edges(rest)
        return Graph.from_edges(pairs, name=spec if len(spec) <= LONGEST_NAME else "edges", directed=directed)
    if kind not in _SPECS:
        raise InputError(f"graph {spec!r}", f"known: {', '.join(kinds())}", "see docs/graphs.md")
    build, sizes, allowed = _SPECS[kind]
    head, *options = rest.split(",") if rest else [""]
    settings = parse_options(f"graph {spec!r}", options, allowed)
    found = re.fullmatch("x".join(["([0-9]+)"] * sizes), head)
    if not found:
        rule, example = (("takes no size", ""), ("needs a size", ":30"), ("needs two sizes", ":8x8"))[sizes]
        raise InputError(f"graph {spec!r}", f"{kind} {rule}", f"write {kind}{example}")
    given = [int(size) for size in found.groups()]
    if math.prod(given) > MOST_NODES:
        raise InputError(f"graph {spec!r}", f"a graph has at most {MOST_NODES:,} nodes", "use a smaller one")
    return build(spec, *given, **settings)


def parse_options(what: str, options: Sequence[str], allowed: Options) -> dict[str, Any]:
    """The options that stand after a comma each; `what` says in errors where."""
    settings = {}
    for option in map(str.strip, options):
        key, _, value = option.partition("=")
        if key not in allowed:
            known = ", ".join(allowed) or "none"
            raise InputError(f"option {option!r} in {what}", f"options here: {known}", "correct or remove it")
        read, meaning = allowed[key]
        try:
            settings[key] = read(value)
        except ValueError:
            raise InputError(f"{key}={value!r:.40} in {what}", f"it must be {meaning}", "correct it") from None
    return settings


def _check_edges(name: str, edges: float) -> None:
    if edges > MOST_EDGES:
        raise InputError(
            f"{name}: {edges:,.0f} edges", f"a graph has at most {MOST_EDGES:,} edges", "use a smaller one"
        )


def _numbered(name: str, n: int, edges: ArrayLike, *, directed: bool = False) -> Graph:
    return Graph.from_edges(np.asarray(edges, dtype=np.int64).reshape(-1, 2), name=name, directed=directed, nodes=n)


def _ring(name: str, n: int) -> Graph:
    if n < 3:
        raise InputError(f"{name}: {n} nodes", "a ring needs at least 3", "use path:N or complete:N")
    i = np.arange(n)
    return _numbered(name, n, np.stack([i, (i + 1) % n], axis=1))


def _path(name: str, n: int) -> Graph:
    i = np.arange(max(n - 1, 0))
    return _numbered(name, n, np.stack([i, i + 1], axis=1))


def _complete(name: str, n: int) -> Graph:
    _check_edges(name, n * (n - 1) / 2)
    return _numbered(name, n, np.stack(np.triu_indices(n, 1), axis=1))


def _star(name: str, n: int) -> Graph:
    i = np.arange(1, max(n, 1))
    return _numbered(name, n, np.stack([np.zeros_like(i), i], axis=1))


def _grid(name: str, rows: int, columns: int, *, wrap: bool = False) -> Graph:
    if wrap and min(rows, columns) < 3:
        raise InputError(f"{name}: {min(rows, columns)} in a row", "a torus needs at least 3", "use grid:AxB")
    index = np.arange(rows * columns).reshape(rows, columns)
    if wrap:
        pairs = [(index, np.roll(index, -1, axis=axis)) for axis in (0, 1)]
    else:
        pairs = [(index[:-1], index[1:]), (index[:, :-1], index[:, 1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
    return _numbered(name, rows * columns, edges)


def _hypercube(name: str, dimension: int) -> Graph:
    if dimension > 20:
        raise InputError(f"{name}: 2^{dimension} nodes", "the dimension is at most 20", "use a smaller one")
    i = np.arange(2**dimension)
    return _numbered(name, 2**dimension, [np.stack([i, i ^ (1 << bit)], axis=1) for bit in range(dimension)])


def _exponential(name: str, n: int) -> Graph:
    i = np.arange(n)
    hops = [1 << j for j in range(max(n - 1, 0).bit_length())]
    return _numbered(name, n, [np.stack([i, (i + hop) % n], axis=1) for hop in hops], directed=True)


def _erdos_renyi(name: str, n: int, *, p: float | None = None, seed: int = 0) -> Graph:
    if p is None or not 0 <= p <= 1:
        raise InputError(
            f"{name}: p={p}", "the probability of an edge must lie in [0, 1]", f"write erdos-renyi:{n},p=0.2"
        )
    family = "fast_gnp_random_graph" if n >= FAST_ERDOS_RENYI else "erdos_renyi_graph"
    return _drawn(name, p * n * (n - 1) / 2, family, n, p, seed=seed)


def _regular(name: str, n: int, *, d: int | None = None, seed: int = 0) -> Graph:
    if d is None or not 0 <= d < n or n * d % 2:
        raise InputError(
            f"{name}: d={d}", f"the degree must satisfy 0 <= d < {n}, with n*d even", "write regular:100,d=6"
        )
    return _drawn(name, n * d / 2, "random_regular_graph", d, n, seed=seed)


def _geometric(name: str, n: int, *, r: float | None = None, seed: int = 0) -> Graph:
    if r is None or not r > 0:
        raise InputError(f"{name}: r={r}", "the radius must be positive", f"write geometric:{n},r=0.2")
    if not n:
        return _numbered(name, n, [])  # networkx fails
    edges = min(1.0, math.pi * r * r) * n * (n - 1) / 2
    return _drawn(name, edges, "random_geometric_graph", n, r, seed=seed)


def _drawn(name: str, edges: float, family: str, *sizes: float, seed: int) -> Graph:
    """A random graph of networkx's; refused if it takes too much, by the number of edges that is expected."""
    _check_edges(name, edges)
    cost = Cost(memory=edges * DRAWN_EDGE.memory, seconds=edges * DRAWN_EDGE.seconds)
    check_cost(f"{name}, about {edges:,.0f} edges,", cost, "take a smaller one")
    report_stage(f"drawing about {edges:,.0f} edges")  # by networkx, which does not say how far it is
    return _of_networkx(name, family, *sizes, seed=seed)


def _of_networkx(name: str, family: str, *sizes: float, **settings: int) -> Graph:
    import networkx as nx

    found = getattr(nx, family)(*sizes, **settings)
    built, places = Graph.from_networkx(found, name=name), nx.get_node_attributes(found, "pos")
    return replace(built, positions=np.array(list(places.values()))) if places else built


NUMBER, WHOLE_NUMBER = (float, "a number"), (int, "a whole number")

_SPECS: dict[str, tuple[Callable[..., Graph], int, Options]] = {
    "ring": (_ring, 1, {}),
    "path": (_path, 1, {}),
    "complete": (_complete, 1, {}),
    "star": (_star, 1, {}),
    "grid": (_grid, 2, {}),
    "torus": (partial(_grid, wrap=True), 2, {}),
    "hypercube": (_hypercube, 1, {}),
    "exponential": (_exponential, 1, {}),
    "erdos-renyi": (_erdos_renyi, 1, {"p": NUMBER, "seed": WHOLE_NUMBER}),
    "regular": (_regular, 1, {"d": WHOLE_NUMBER, "seed": WHOLE_NUMBER}),
    "geometric": (_geometric, 1, {"r": NUMBER, "seed": WHOLE_NUMBER}),
    "florentine": (partial(_of_networkx, family="florentine_families_graph"), 0, {}),
    "karate": (partial(_of_networkx, family="karate_club_graph"), 0, {}),
}
"""How graphs are built, by how many sizes, and with which options."""


def _from_edge_list(path: Path, name: str, directed: bool) -> Graph:
    """A graph whose file lists edges alone: they name its nodes."""
    pairs = read_edge_list(path)
    if pairs.dtype.kind != "U":
        return Graph.from_edges(pairs, name=name, directed=directed)
    edges = pairs.tolist()
    return _labelled(dict.fromkeys(end for edge in edges for end in edge), edges, name=name, directed=directed)


def _one_of(known: Mapping[str, Any], text: str) -> Any:
    if text not in known:
        raise ValueError
    return known[text]


FILE_OPTIONS: Options = {
    "component": (partial(_one_of, {"all": False, "giant": True}), "'all' or 'giant'"),
    "directed": (partial(_one_of, {"true": True, "false": False}), "true or false"),
}


def _from_file(spec: str, rest: str) -> Graph:
    options = []
    while found := re.fullmatch(r"(.*),((?:component|directed)=[^,]*)", rest, flags=re.DOTALL):
        rest, option = found.groups()
        options.append(option)
    settings = parse_options(f"graph {spec!r}", options, FILE_OPTIONS)
    path, directed = Path(rest), settings.get("directed")
    report_stage(f"reading {path.name}")
    built = _from_edge_list(path, f"file:{rest}", bool(directed))
    return built.giant() if settings.get("component") else built
