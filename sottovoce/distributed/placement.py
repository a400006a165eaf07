"""Which rank hosts which nodes: blocks of equal size between which few edges run.

Recursive bisection: nodes are put in order, by their numbers or by the Fiedler vector, and cut where sizes are right;
the order that cuts fewer edges is kept.

    >>> from sottovoce.core.topologies import metropolis
    >>> [block.tolist() for block in place_nodes(metropolis("path:6"), 2)]
    [[0, 1, 2], [3, 4, 5]]
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import ArpackError, eigsh

from sottovoce.core.topologies import Topology
from sottovoce.core.transport import Nodes
from sottovoce.errors import InputError, PeerLost

Placement: TypeAlias = tuple[Nodes, ...]
"""The nodes of each rank, in ascending order."""

DENSE = 400
"""Up to so many nodes the Fiedler vector comes from a dense solver."""


def read_placement(blocks: object, n: int, ranks: int) -> Placement:
    """A placement that another rank made, checked: every node once, ascending, at every rank at least one."""
    found = [block for block in blocks if isinstance(block, list)] if isinstance(blocks, list) else []
    nodes = [node for block in found for node in block]
    whole = all(isinstance(node, int) for node in nodes) and sorted(nodes) == list(range(n))
    if len(found) != ranks or not whole or any(not block or block != sorted(block) for block in found):
        raise PeerLost(
            "rank 0 sent no valid placement of these nodes; start again, on ports that only the ranks can reach"
        )
    return tuple(np.array(block, dtype=np.intp) for block in found)


def place_nodes(topology: Topology, ranks: int, seed: int = 0) -> Placement:
    """Each rank's nodes, ascending; sizes differ by one at most. Graphs that are new in each round are cut in order."""
    n = topology.n
    if not 1 <= ranks <= n:
        raise InputError(f"{ranks} processes for {n} nodes", "each hosts at least one node", f"use at most {n}")
    if topology.graph is None:
        return tuple(np.array_split(np.arange(n), ranks))
    edges = topology.graph.adjacency.astype(float)
    edges = sparse.csr_array(edges + edges.T)
    blocks = _bisect(edges, np.arange(n), ranks, np.random.default_rng(seed))
    return tuple(sorted((np.sort(block) for block in blocks), key=lambda block: int(block[0])))


def _bisect(edges: sparse.csr_array, nodes: Nodes, ranks: int, rng: np.random.Generator) -> list[Nodes]:
    if ranks == 1:
        return [nodes]
    few = ranks // 2
    size = sum(len(part) for part in np.array_split(nodes, ranks)[:few])
    among = sparse.csr_array(edges[nodes][:, nodes])
    sides = []
    for values in (np.arange(len(nodes)), _fiedler(among, rng)):
        first = np.zeros(len(nodes), dtype=bool)
        first[np.argsort(values, kind="stable")[:size]] = True
        sides.append(first)
    first = min(sides, key=lambda side: float(side @ (among @ (~side).astype(float))))
    return [*_bisect(edges, nodes[first], few, rng), *_bisect(edges, nodes[~first], ranks - few, rng)]


def _fiedler(edges: sparse.csr_array, rng: np.random.Generator) -> NDArray[np.float64]:
    """The eigenvector of the Laplacian's second smallest eigenvalue."""
    n, degrees = edges.shape[0], np.asarray(edges.sum(axis=1)).ravel()
    laplacian = sparse.csr_array(sparse.diags_array(degrees) - edges)
    if n <= DENSE:
        return np.asarray(linalg.eigh(laplacian.toarray(), subset_by_index=[1, 1])[1][:, 0])
    turned = sparse.csr_array((2 * float(degrees.max()) + 1) * sparse.eye_array(n) - laplacian)
    try:
        values, vectors = eigsh(turned, k=2, which="LA", v0=rng.standard_normal(n), tol=1e-3, maxiter=10 * n)
    except ArpackError:
        return np.asarray(rng.standard_normal(n))
    return np.asarray(vectors[:, np.argmin(values)])
