"""Mixing: one gossip step as a sparse matrix W, what it is fit for, and its spectrum.

`W[u, v]` is the weight that node u gives to what node v says, so one gossip step is `x <- W @ x`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import ArpackNoConvergence, eigs, eigsh

from sottovoce.core import arrays
from sottovoce.errors import InputError

TOLERANCE = 1e-9
"""How far a row of W may be from summing to one."""

DENSE_SPECTRUM = 600
"""Up to this many nodes the spectrum comes from a dense solver."""

Requirement: TypeAlias = Literal[
    "row-stochastic", "column-stochastic", "undirected", "symmetric", "complete average", "one aggregator"
]


class MixableRows(arrays.Rows, Protocol):
    """Rows that are no plain array, and know themselves how they are mixed."""

    def mixed_by(self, mixing: Mixing) -> arrays.Rows:
        """`W @ rows`."""


class Edges(NamedTuple):
    """Directed edges of a mixing step, sorted by sender, then receiver; a node's edge to itself is among them."""

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    weight: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Mixing:
    """One gossip step: `mixing @ x` is what every node holds after it.

    `active` marks the nodes that take part (None: all). `planned` is the W that senders assumed, if it differs: then a
    node dropped out unannounced.
    """

    weights: sparse.csr_array
    active: NDArray[np.bool_] | None = None
    planned: sparse.csr_array | None = None
    _operators: dict[tuple[str, str, str], arrays.Operator] = field(default_factory=dict, repr=False)
    _met: set[Requirement] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _checked(self.weights))
        if self.planned is not None:
            object.__setattr__(self, "planned", _checked(self.planned))
            unplanned = np.isin(_codes(self.weights), _codes(self.planned), invert=True)
            if unplanned.any():
                raise InputError(
                    "an edge that was not planned",
                    "only messages that were planned can be delivered",
                    "add it to planned",
                )
        if self.active is not None and (self.active.dtype != bool or self.active.shape != (self.n,)):
            raise InputError(
                f"active of type {self.active.dtype}, shape {self.active.shape}", "one true or false per node", "fix it"
            )
        if self.active is not None:
            sender, receiver, _ = _edges(self.weights)
            absent = ~self.active[sender] & (sender != receiver)
            if absent.any():
                raise InputError(
                    f"a message from node {int(sender[absent][0])}, which takes no part",
                    "what is received was sent, and counts as seen", "mark it as active, or take its weight away",
                )  # fmt: skip

    def __matmul__(self, rows: arrays.Rows) -> arrays.Rows:
        if not arrays.is_plain(rows):
            return cast("MixableRows", rows).mixed_by(self)
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

    @property
    def sent_weights(self) -> sparse.csr_array:
        """Of what leaves its sender, if that takes part: also to receivers that do not."""
        return self.weights if self.planned is None else self.planned

    @cached_property
    def planned_edges(self) -> Edges:
        """Along which edges senders meant to send."""
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
        """Whether u receives from v exactly when v receives from u."""
        pattern = self.weights != 0
        return (pattern != pattern.T).nnz == 0

    @cached_property
    def spectral_gap(self) -> float:
        """`1 - |lambda|` for the second largest eigenvalue in magnitude: 0 if parts of the graph are never mixed."""
        return max(0.0, 1.0 - _second_eigenvalue(self))

    def require(self, rule: Requirement) -> None:
        """Refuse weights that an algorithm cannot use, and say which entry breaks which rule."""
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
                "this algorithm sends both ways along every edge",
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
        if rule == "one aggregator" and not _has_one_aggregator(self.weights):
            raise InputError(
                "weights by which several nodes average",
                "in each step one node hears all others, or all take over what it has",
                f"use rotating weights on complete:{self.n}",
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


def _checked(weights: ArrayLike | sparse.sparray) -> sparse.csr_array:
    """W as sorted CSR without stored zeros: square, finite, non-negative."""
    try:
        matrix = sparse.csr_array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("weights are not a matrix of numbers", "W must be one", "give an n x n array") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"W has shape {matrix.shape}", "W must be square", "give one row and one column for each node")
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
    line, remedy = (
        ("row", "metropolis(graph), or uniform(graph) if it is directed") if axis == 1 else ("column", "push(graph)")
    )
    raise InputError(f"{line} {off[0]} of W sums to {off[1]:.6g}", "expected 1", f"use {remedy}")


def _is_complete_average(weights: sparse.csr_array) -> bool:
    n = weights.shape[0]
    return weights.nnz == n * n and bool(np.allclose(weights.data, 1 / n, rtol=0, atol=TOLERANCE))


def _has_one_aggregator(weights: sparse.csr_array) -> bool:
    """Whether only one node takes over anything; or all take over one node's value, and keep nothing."""
    row, column = (index[weights.tocoo().row != weights.tocoo().col] for index in weights.tocoo().coords)
    return len(set(row)) <= 1 or (len(set(column)) == 1 and weights.nnz == weights.shape[0])


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


def clipped_average(
    weights: sparse.csr_array, own: NDArray[np.floating], rows: NDArray[np.floating], radius: float
) -> NDArray[np.floating]:
    """`own_u + sum_v W[u,v] clip(rows_v - own_u, radius)` for each row u of the weights, which sum to one.

    The same as the average where nothing is further away; what is not finite counts as one's own.

    >>> W = sparse.csr_array(np.array([[0.5, 0.25, 0.25]]))
    >>> clipped_average(W, np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.8]]), radius=1.0)
    array([[0.15, 0.4 ]])
    """
    mixed = np.empty_like(own)
    for node in range(len(own)):
        part = slice(weights.indptr[node], weights.indptr[node + 1])
        away = rows[weights.indices[part]] - own[node]
        away[~np.isfinite(away).all(axis=1)] = 0
        length = np.sqrt(np.square(away, dtype=np.float64).sum(axis=1))
        kept = weights.data[part] * np.minimum(1.0, radius / np.maximum(length, radius))
        mixed[node] = own[node] + kept.astype(own.dtype) @ away
    return mixed
