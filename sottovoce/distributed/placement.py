"""Which rank hosts which nodes: blocks of equal size between which few edges run.

Recursive bisection: nodes are put in order, cut where sizes are right, and pairs of nodes change sides as long as that
leaves fewer edges cut (Kernighan and Lin 1970). Orders are that of node numbers, that of the Fiedler vector, and those
of random mixtures of it with the next eigenvectors of the Laplacian; the best cut is kept.

    >>> from sottovoce.core.topologies import metropolis
    >>> [block.tolist() for block in place_nodes(metropolis("path:6"), 2)]
    [[0, 1, 2], [3, 4, 5]]
"""

from __future__ import annotations

from collections.abc import Iterator
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

MIXTURES = 3
"""So many mixtures of eigenvectors are tried: where the graph has symmetries no one of them is better than another."""

REFINED = 2
"""So many of the best cuts are refined."""

SWAPS = 200
"""At most so many pairs change sides in one pass, of which the best beginning is kept."""


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


def cut_edges(topology: Topology, placement: Placement) -> int:
    """Directed edges of the topology's first round that run between blocks."""
    owner = np.empty(topology.n, dtype=np.intp)
    for rank, block in enumerate(placement):
        owner[block] = rank
    sender, receiver, _ = topology.at(0).edges
    return int((owner[sender] != owner[receiver]).sum())


def _bisect(edges: sparse.csr_array, nodes: Nodes, ranks: int, rng: np.random.Generator) -> list[Nodes]:
    if ranks == 1:
        return [nodes]
    few = ranks // 2
    sizes = [len(part) for part in np.array_split(nodes, ranks)]
    among = sparse.csr_array(edges[nodes][:, nodes])
    tried = []
    for values in _orders(among, rng):
        first = np.zeros(len(nodes), dtype=bool)
        first[np.argsort(values, kind="stable")[: sum(sizes[:few])]] = True
        tried.append(first)
    tried.sort(key=lambda side: _cut_weight(among, side))
    first = min((_refine(among, side) for side in tried[:REFINED]), key=lambda side: _cut_weight(among, side))
    return [
        *_bisect(edges, nodes[first], few, rng),
        *_bisect(edges, nodes[~first], ranks - few, rng),
    ]


def _cut_weight(edges: sparse.csr_array, first: NDArray[np.bool_]) -> float:
    return float(first @ (edges @ (~first).astype(float)))


def _orders(edges: sparse.csr_array, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    n = edges.shape[0]
    yield np.arange(n, dtype=float)
    if n < 3:
        return
    vectors = _smoothest(edges, min(3, n - 2), rng)
    yield vectors[:, 0]
    for _ in range(MIXTURES):
        yield vectors @ rng.standard_normal(vectors.shape[1])


def _smoothest(edges: sparse.csr_array, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Eigenvectors of the Laplacian's smallest eigenvalues after the first, the Fiedler vector in front."""
    n, degrees = edges.shape[0], np.asarray(edges.sum(axis=1)).ravel()
    laplacian = sparse.csr_array(sparse.diags_array(degrees) - edges)
    if n <= DENSE:
        return np.asarray(linalg.eigh(laplacian.toarray(), subset_by_index=[1, count])[1])
    turned = sparse.csr_array((2 * float(degrees.max()) + 1) * sparse.eye_array(n) - laplacian)
    try:
        values, vectors = eigsh(turned, k=count + 1, which="LA", v0=rng.standard_normal(n), tol=1e-3, maxiter=10 * n)
    except ArpackError:
        return np.asarray(rng.standard_normal((n, count)))
    return np.asarray(vectors[:, np.argsort(-values)][:, 1:])


def _refine(edges: sparse.csr_array, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Passes of swaps, each of the pair that gains most or loses least, until a pass gains nothing."""
    while True:
        swaps, gains = _pass(edges, first)
        best = int(np.argmax(gains)) if gains else 0
        if not gains or gains[best] <= 0:
            return first
        first = first.copy()
        for pair in swaps[: best + 1]:
            first[list(pair)] ^= True


def _pass(edges: sparse.csr_array, first: NDArray[np.bool_]) -> tuple[list[tuple[int, int]], list[float]]:
    """Pairs that change sides one after the other, each node at most once, and what is gained up to each."""
    side = np.where(first, 1.0, -1.0)
    gain = -side * np.asarray(edges @ side).ravel()  # edges cut less edges kept, of each node
    free, swaps, gains, total = np.ones(len(side), dtype=bool), [], [], 0.0
    for _ in range(min(SWAPS, int(first.sum()), int((~first).sum()))):
        a = int(np.argmax(np.where(free & (side > 0), gain, -np.inf)))
        to_a = edges[[a]].toarray().ravel()
        b = int(np.argmax(np.where(free & (side < 0), gain - 2 * to_a, -np.inf)))
        total += gain[a] + gain[b] - 2 * to_a[b]
        free[[a, b]] = False
        for node, near in ((a, to_a), (b, edges[[b]].toarray().ravel())):
            gain += 2 * side * side[node] * near  # an edge to a node that leaves is cut, one to a node that comes kept
            gain[node] = -gain[node]
            side[node] = -side[node]
        swaps.append((a, b))
        gains.append(total)
    return swaps, gains
