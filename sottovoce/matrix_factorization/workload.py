"""What the graph contributes: the T x T Gram matrix H, with `trace(V H)` the error that noise of covariance V causes.

Noise of round s is in the models after round t as `W_t ... W_s`, so for the error of all models

    H[s,s'] = sum_{t >= max(s,s')} trace( (W^(t-s+1))^T W^(t-s'+1) )

Routes to it: the spectrum of a fixed W that is symmetric, or similar to one that is; columns of powers in general, a
block of nodes at a time, exactly; the same for topologies that change; and random probes in place of columns where
there are too many nodes (Hutchinson's estimator of a trace), with the standard error.

    >>> from sottovoce.core.topologies import metropolis
    >>> workload(metropolis("complete:4"), 3).H
    array([[3., 2., 1.],
           [2., 2., 1.],
           [1., 1., 1.]])

Shapes: N nodes, T rounds, M columns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError

Array = NDArray[np.float64]

OBJECTIVES = ("all", "last", "average")
"""Error of all models of all rounds; of all models after the last round; of the network average in all rounds."""

EIGENVALUES = 8000
"""Up to this many nodes the spectrum of a symmetric W is computed."""

PRODUCTS = 5e11
"""Up to this many multiplications columns of powers are all computed."""

AT_ONCE = 1.2e7
"""About how many numbers a block of columns may take."""

PROBES = 64


@dataclass(frozen=True, eq=False)
class Workload:
    """H, its relative standard error (0 where it is exact), and what noise of a covariance does after each round."""

    H: Array
    error: float
    errors: Callable[[Array], Array]


def workload(
    topology: Topology,
    rounds: int,
    objective: str = "all",
    *,
    nodes: NDArray[np.intp] | None = None,
    probes: int | None = None,
    seed: int = 0,
) -> Workload:
    """H of a topology; with `nodes`, of the noise of these nodes only."""
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r}", f"known: {', '.join(OBJECTIVES)}", "choose one of them")
    if nodes is not None and not np.isin(nodes, np.arange(topology.n)).all():
        raise InputError(f"nodes {nodes.tolist()}", f"there are {topology.n}, counted from 0", "name some of these")
    for t in range(1 if topology.static else rounds):
        topology.at(t).require("row-stochastic")
    if not topology.static:
        return _changing(topology, rounds, objective, nodes, probes, seed)
    if objective == "average":
        return _of_powers(_average_powers(topology, rounds, nodes), "average", 0.0)
    if probes is None and nodes is None and topology.at(0).symmetric and topology.n <= EIGENVALUES:
        return _of_powers(_spectral_powers(topology, rounds), objective, 0.0)
    if probes is None and nodes is None and topology.n <= EIGENVALUES and (root := _balance(topology)) is not None:
        return _of_powers(_reversible_powers(topology, rounds, root), objective, 0.0)
    columns = topology.n if nodes is None else len(nodes)
    if probes is None and topology.n * columns * rounds**2 > PRODUCTS:
        probes = PROBES
    powers, error = _column_powers(topology, rounds, _columns(topology.n, rounds, nodes, probes, seed), probes)
    return _of_powers(powers, objective, error)


def _of_powers(P: Array, objective: str, error: float) -> Workload:
    """H from `P[p-1, q-1] = trace((W^p)^T W^q)`: round t contributes P of the lags t-s+1."""
    T = len(P)
    last = P[::-1, ::-1]
    H = last.copy()
    if objective != "last":
        for s in range(T - 2, -1, -1):
            H[s, :-1] += H[s + 1, 1:]
            H[s + 1 :, s] = H[s, s + 1 :]

    def errors(V: Array) -> Array:
        return np.array([float(np.vdot(V[:t, :t], last[T - t :, T - t :])) for t in range(1, T + 1)])

    return Workload((H + H.T) / 2, error, errors)


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


def _columns(n: int, rounds: int, nodes: NDArray[np.intp] | None, probes: int | None, seed: int) -> Iterator[Array]:
    """Blocks of unit columns, one for each node; or of random signs on the nodes."""
    there = np.arange(n) if nodes is None else np.asarray(nodes)
    size = max(1, int(AT_ONCE / (n * rounds)))
    rng = np.random.default_rng(seed)
    count = len(there) if probes is None else probes
    for first in range(0, count, size):
        width = min(size, count - first)
        block = np.zeros((n, width))
        if probes is None:
            block[there[first : first + width], np.arange(width)] = 1.0
        else:
            block[there] = rng.choice([-1.0, 1.0], size=(len(there), width))
        yield block


def _column_powers(
    topology: Topology, rounds: int, columns: Iterator[Array], probes: int | None
) -> tuple[Array, float]:
    """`sum over columns e of <W^p e, W^q e>`; for probes their mean, and the error of its trace."""
    W, P, traces = topology.at(0).weights, np.zeros((rounds, rounds)), []
    for block in columns:
        N, M = block.shape
        powers = np.empty((rounds, N, M))
        for p in range(rounds):
            block = powers[p] = W @ block
        traces += np.einsum("pnm,pnm->m", powers, powers).tolist()
        flat = powers.reshape(rounds, -1)
        P += flat @ flat.T
    return (P, 0.0) if probes is None else (P / probes, _standard_error(traces))


def _standard_error(values: list[float]) -> float:
    if len(values) < 2:
        raise InputError(f"{len(values)} probe", "an error bar needs at least two", f"use {PROBES}")
    return float(np.std(values, ddof=1) / np.sqrt(len(values)) / np.mean(values))


def _changing(
    topology: Topology, rounds: int, objective: str, nodes: NDArray[np.intp] | None, probes: int | None, seed: int
) -> Workload:
    """Products of the W of all rounds; a node that is absent in a round adds no noise in it."""
    count = topology.n if nodes is None else len(nodes)
    if probes is None and objective != "average" and topology.n * count * rounds**3 / 3 > PRODUCTS:
        probes = PROBES

    def parts() -> Iterator[tuple[int, Array, Array]]:
        if objective == "average":
            for t, rows in enumerate(_average_rows(topology, rounds, nodes)):
                yield t, rows @ rows.T, np.zeros(0)
            return
        for block in _columns(topology.n, rounds, nodes, probes, seed):
            for t, (gram, traces) in enumerate(_responses(topology, rounds, block)):
                yield t, gram / (probes or 1), traces

    def errors(V: Array) -> Array:
        out = np.zeros(rounds)
        for t, gram, _ in parts():
            out[t] += np.vdot(V[: t + 1, : t + 1], gram)
        return out

    H, by_probe = np.zeros((rounds, rounds)), []
    for t, gram, traces in parts():
        if t == 0:
            by_probe.append(np.zeros_like(traces))
        if objective != "last" or t == rounds - 1:
            H[: t + 1, : t + 1] += gram
            by_probe[-1] += traces
    exact = probes is None or objective == "average"
    return Workload((H + H.T) / 2, 0.0 if exact else _standard_error(np.concatenate(by_probe).tolist()), errors)


def _responses(topology: Topology, rounds: int, block: Array) -> Iterator[tuple[Array, Array]]:
    """After each round: the Gram matrix of what noise of the rounds up to it has become, and each column's share."""
    N, M = block.shape
    state = np.zeros((N, 0))
    for t in range(rounds):
        mixing = topology.at(t)
        fresh = block if mixing.active is None else block * mixing.active[:, None]
        state = mixing.weights @ np.concatenate([state, fresh], axis=1)
        flat = state.reshape(N, t + 1, M).transpose(1, 0, 2).reshape(t + 1, -1)
        yield flat @ flat.T, np.einsum("ntm,ntm->m", *2 * [state.reshape(N, t + 1, M)])


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
