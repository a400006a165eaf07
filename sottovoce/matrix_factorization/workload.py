"""What the graph contributes: the T x T Gram matrix H, with `trace(V H)` the error that noise of covariance V causes.

Noise of round s is in the models after round t as `W_t ... W_s`, so for the error of all models

    H[s,s'] = sum_{t >= max(s,s')} trace( (W^(t-s+1))^T W^(t-s'+1) )

Routes to it: the spectrum of a fixed W that is symmetric, or similar to one that is; columns of powers in general, a
block of nodes at a time; and the same for topologies that change.

    >>> from sottovoce.core.topologies import metropolis
    >>> workload(metropolis("complete:4"), 3)
    array([[3., 2., 1.],
           [2., 2., 1.],
           [1., 1., 1.]])

Shapes: N nodes, T rounds, M columns at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.support.limits import Cost, check_cost

Array = NDArray[np.float64]

OBJECTIVES = ("all", "last", "average")
"""Error of all models of all rounds; of all models after the last round; of the network average in all rounds."""

EIGENVALUES = 8000
"""Up to this many nodes the spectrum of a symmetric W is computed."""

PRODUCT_SECONDS = 1e-9
"""Of a multiplication in columns of powers."""

AT_ONCE = 1.2e7
"""About how many numbers a block of columns may take."""


def workload(
    topology: Topology,
    rounds: int,
    objective: str = "all",
    *,
    nodes: NDArray[np.intp] | None = None,
) -> Array:
    """H of a topology; with `nodes`, of the noise of these nodes only."""
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r}", f"known: {', '.join(OBJECTIVES)}", "choose one of them")
    if nodes is not None and not np.isin(nodes, np.arange(topology.n)).all():
        raise InputError(f"nodes {nodes.tolist()}", f"there are {topology.n}, counted from 0", "name some of these")
    for t in range(1 if topology.static else rounds):
        topology.at(t).require("row-stochastic")
    if not topology.static:
        return _changing(topology, rounds, objective, nodes)
    if objective == "average":
        return _of_powers(_average_powers(topology, rounds, nodes), "average")
    if nodes is None and topology.n <= EIGENVALUES:
        if topology.at(0).symmetric:
            return _of_powers(_spectral_powers(topology, rounds), objective)
        if (root := _balance(topology)) is not None:
            return _of_powers(_reversible_powers(topology, rounds, root), objective)
    return _of_powers(_column_powers(topology, rounds, nodes), objective)


def _of_powers(P: Array, objective: str) -> Array:
    """H from `P[p-1, q-1] = trace((W^p)^T W^q)`: round t contributes P of the lags t-s+1."""
    H = P[::-1, ::-1].copy()
    if objective != "last":
        for s in range(len(P) - 2, -1, -1):
            H[s, :-1] += H[s + 1, 1:]
            H[s + 1 :, s] = H[s, s + 1 :]
    return np.asarray((H + H.T) / 2)


def _spectral_powers(topology: Topology, rounds: int) -> Array:
    """P[p, q] is a sum of powers of eigenvalues, and depends on p + q only."""
    values = linalg.eigvalsh(topology.at(0).weights.toarray(), overwrite_a=True, check_finite=False)
    sums, power = np.empty(2 * rounds - 1), values * values
    for lag in range(2 * rounds - 1):
        sums[lag] = power.sum()
        power = power * values
    return sums[np.add.outer(np.arange(rounds), np.arange(rounds))]


def _balance(topology: Topology) -> Array | None:
    """The r for which `diag(r) W diag(1/r)` is symmetric, as for averages over neighbourhoods; else None."""
    W = topology.at(0).weights
    root = np.sqrt(1.0 / W.max(axis=1).toarray().ravel())
    similar = sparse.csr_array(sparse.diags_array(root) @ W @ sparse.diags_array(1 / root))
    gap = abs(similar - similar.T)
    return root if gap.nnz == 0 or float(gap.max()) <= 1e-12 else None


def _reversible_powers(topology: Topology, rounds: int, root: Array) -> Array:
    """With `W = R^-1 U diag(l) U^T R`, R = diag(r): P[p,q] = sum_jk l_j^p l_k^q (U^T R^-2 U)[j,k] (U^T R^2 U)[j,k]."""
    W = topology.at(0).weights.toarray()
    values, U = linalg.eigh(root[:, None] * W / root, overwrite_a=True, check_finite=False)
    weights = (U.T @ (U / root[:, None] ** 2)) * (U.T @ (U * root[:, None] ** 2))
    powers = np.cumprod(np.broadcast_to(values, (rounds, len(values))), axis=0)
    return powers @ weights @ powers.T


def _average_powers(topology: Topology, rounds: int, nodes: NDArray[np.intp] | None) -> Array:
    """The average is one row, `1^T W^p / n`."""
    W, row, rows = topology.at(0).weights.T.tocsr(), np.full(topology.n, 1 / topology.n), []
    for _ in range(rounds):
        row = W @ row
        rows.append(row if nodes is None else row[nodes])
    return np.array(rows) @ np.array(rows).T


def _columns(topology: Topology, rounds: int, nodes: NDArray[np.intp] | None, products: float) -> Iterator[Array]:
    """Blocks of unit columns, one for each node; refused where powers of all of them take too many products."""
    n, there = topology.n, np.arange(topology.n) if nodes is None else nodes
    cost = Cost(seconds=PRODUCT_SECONDS * n * len(there) * products)
    check_cost(f"what noise does on {topology.name} in {rounds:,} rounds", cost, "take fewer rounds or a smaller graph")
    size = max(1, int(AT_ONCE / (n * rounds)))
    for first in range(0, len(there), size):
        some = there[first : first + size]
        block = np.zeros((n, len(some)))
        block[some, np.arange(len(some))] = 1.0
        yield block


def _column_powers(topology: Topology, rounds: int, nodes: NDArray[np.intp] | None) -> Array:
    """`sum over columns e of <W^p e, W^q e>`."""
    W, P = topology.at(0).weights, np.zeros((rounds, rounds))
    for block in _columns(topology, rounds, nodes, rounds**2):
        powers = np.empty((rounds, *block.shape))
        for p in range(rounds):
            block = powers[p] = W @ block
        flat = powers.reshape(rounds, -1)
        P += flat @ flat.T
    return P


def _changing(topology: Topology, rounds: int, objective: str, nodes: NDArray[np.intp] | None) -> Array:
    """Products of the W of all rounds; a node that is absent in a round adds no noise in it."""
    if objective == "average":
        grams = ((t, rows @ rows.T) for t, rows in enumerate(_average_rows(topology, rounds, nodes)))
    else:
        blocks = _columns(topology, rounds, nodes, rounds**3 / 3)
        grams = ((t, gram) for block in blocks for t, gram in enumerate(_responses(topology, rounds, block)))
    H = np.zeros((rounds, rounds))
    for t, gram in grams:
        if objective != "last" or t == rounds - 1:
            H[: t + 1, : t + 1] += gram
    return np.asarray((H + H.T) / 2)


def _responses(topology: Topology, rounds: int, block: Array) -> Iterator[Array]:
    """After each round: the Gram matrix of what noise of the rounds up to it has become."""
    N, M = block.shape
    state = np.zeros((N, 0))
    for t in range(rounds):
        mixing = topology.at(t)
        fresh = block if mixing.active is None else block * mixing.active[:, None]
        state = mixing.weights @ np.concatenate([state, fresh], axis=1)
        flat = state.reshape(N, t + 1, M).transpose(1, 0, 2).reshape(t + 1, -1)
        yield flat @ flat.T


def _average_rows(topology: Topology, rounds: int, nodes: NDArray[np.intp] | None) -> Iterator[Array]:
    """After each round: the row of the average for the noise of every round up to it."""
    for t in range(rounds):
        row, rows = np.full(topology.n, 1 / topology.n), []
        for s in range(t, -1, -1):
            mixing = topology.at(s)
            row = mixing.weights.T @ row
            heard = row if mixing.active is None else row * mixing.active
            rows.append(heard if nodes is None else heard[nodes])
        yield np.array(rows[::-1])
