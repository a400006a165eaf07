"""Which rank hosts which nodes: blocks of equal size between which few edges run.

Recursive bisection: nodes are put in the order of the Fiedler vector, cut where sizes are right, and pairs of nodes
change sides as long as that leaves fewer edges cut (Kernighan and Lin 1970).

    >>> from sottovoce.topology import metropolis
    >>> [block.tolist() for block in blocks(metropolis("path:6"), 2)]
    [[0, 1, 2], [3, 4, 5]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import ArpackError, eigsh

from sottovoce.errors import InputError
from sottovoce.topology import Topology

Nodes = NDArray[np.intp]

DENSE = 400
"""Up to so many nodes the Fiedler vector comes from a dense solver."""

SWAPS = 2000
"""At most so many pairs change sides in one bisection."""


def blocks(topology: Topology, ranks: int, seed: int = 0) -> tuple[Nodes, ...]:
    """Each rank's nodes, ascending; sizes differ by one at most. Graphs that are new in each round are cut in order."""
    n = topology.n
    if not 1 <= ranks <= n:
        raise InputError(f"{ranks} processes for {n} nodes", "each hosts at least one node", f"use at most {n}")
    if topology.graph is None:
        return tuple(np.array_split(np.arange(n), ranks))
    edges = topology.graph.adjacency.astype(float)
    edges = sparse.csr_array(edges + edges.T)
    found = _bisected(edges, np.arange(n), ranks, np.random.default_rng(seed))
    return tuple(sorted((np.sort(block) for block in found), key=lambda block: int(block[0])))


def cut(topology: Topology, found: tuple[Nodes, ...]) -> int:
    """Directed edges of the topology's first round that run between blocks."""
    owner = np.empty(topology.n, dtype=np.intp)
    for rank, block in enumerate(found):
        owner[block] = rank
    sender, receiver, _ = topology.at(0).edges
    return int((owner[sender] != owner[receiver]).sum())


def _bisected(edges: sparse.csr_array, nodes: Nodes, ranks: int, rng: np.random.Generator) -> list[Nodes]:
    if ranks == 1:
        return [nodes]
    few = ranks // 2
    sizes = [len(part) for part in np.array_split(nodes, ranks)]
    among = sparse.csr_array(edges[nodes][:, nodes])
    order = np.argsort(_fiedler(among, rng), kind="stable")
    first = np.zeros(len(nodes), dtype=bool)
    first[order[: sum(sizes[:few])]] = True
    first = _refined(among, first)
    return [
        *_bisected(edges, nodes[first], few, rng),
        *_bisected(edges, nodes[~first], ranks - few, rng),
    ]


def _fiedler(edges: sparse.csr_array, rng: np.random.Generator) -> NDArray[np.float64]:
    """The eigenvector of the graph Laplacian's second smallest eigenvalue."""
    n, degrees = edges.shape[0], np.asarray(edges.sum(axis=1)).ravel()
    if n < 3:
        return np.arange(n, dtype=float)
    laplacian = sparse.csr_array(sparse.diags_array(degrees) - edges)
    if n <= DENSE:
        return np.asarray(linalg.eigh(laplacian.toarray(), subset_by_index=[1, 1])[1]).ravel()
    top = 2 * float(degrees.max()) + 1
    turned = sparse.csr_array(top * sparse.eye_array(n) - laplacian)
    try:
        values, vectors = eigsh(turned, k=2, which="LA", v0=rng.standard_normal(n), tol=1e-4, maxiter=20 * n)
    except ArpackError:
        return np.arange(n, dtype=float)
    return np.asarray(vectors[:, np.argmin(values)])


def _refined(edges: sparse.csr_array, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Swap the pair that gains most, while any gains."""
    first = first.copy()
    side = np.where(first, 1.0, -1.0)
    gain = -side * np.asarray(edges @ side).ravel()  # edges cut less edges kept, of each node
    for _ in range(SWAPS):
        a = int(np.argmax(np.where(first, gain, -np.inf)))
        to_a = edges[[a]].toarray().ravel()
        b = int(np.argmax(np.where(first, -np.inf, gain - 2 * to_a)))
        if gain[a] + gain[b] - 2 * to_a[b] <= 0:
            return first
        for node in (a, b):
            side[node], first[node] = -side[node], not first[node]
        gain = -side * np.asarray(edges @ side).ravel()
    return first
