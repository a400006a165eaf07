"""Noise: which independent Gaussian sources feed which node or message, and who knows them.

A noise is a table: for one step it lists its `Sources` (unit Gaussians Z) and a sparse matrix that carries them to
nodes (`local`) or to single messages (`edge`). The loop multiplies that matrix with draws; the tracer reads it. So
what runs is what is accounted for.

Sizes are in units of a gradient's sensitivity (`sensitivity.py` says whose); the loop scales by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sottovoce.core.correlation import Correlation
from sottovoce.core.mixing import Edges, Mixing
from sottovoce.core.noise_sources import Sources
from sottovoce.errors import InputError

PerNode: TypeAlias = float | tuple[float, ...]
"""One number for all nodes, or one for each."""


# --- tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """A matrix `plain + left @ right`, kept in parts: a hub's messages each depend on all of its draws."""

    plain: sparse.csr_array
    left: sparse.csr_array | None = None
    right: sparse.csr_array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Targets and sources."""
        return self.plain.shape

    @property
    def entries(self) -> int:
        """At most so many entries has it multiplied out."""
        if self.left is None or self.right is None:
            return int(self.plain.nnz)
        uses = np.bincount(self.left.indices, minlength=self.left.shape[1])
        return int(self.plain.nnz + uses @ np.diff(self.right.indptr))

    def after(self, matrix: sparse.csr_array) -> FactoredMatrix:
        """`matrix @ self`."""
        left = None if self.left is None else sparse.csr_array(matrix @ self.left)
        return FactoredMatrix(sparse.csr_array(matrix @ self.plain), left, self.right)

    def scaled(self, factor: float) -> FactoredMatrix:
        """`factor * self`."""
        return FactoredMatrix(self.plain * factor, None if self.left is None else self.left * factor, self.right)

    def by_source(self, factors: NDArray[np.float64]) -> FactoredMatrix:
        """`self @ diag(factors)`: every source with a factor of its own."""
        each = sparse.diags_array(factors)
        right = None if self.right is None else sparse.csr_array(self.right @ each)
        return FactoredMatrix(sparse.csr_array(self.plain @ each), self.left, right)

    def diagonal(self) -> NDArray[np.float64] | None:
        """The diagonal, where that is all there is: every target has a source of its own."""
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.plain.indptr))
        if self.left is not None or self.shape[0] != self.shape[1] or (row != self.plain.indices).any():
            return None
        return np.asarray(self.plain.diagonal())

    def absolute_sums(self) -> NDArray[np.float64]:
        """For each target the sum of its coefficients without their signs, in the parts as they are multiplied."""
        total = abs(self.plain).sum(axis=1)
        if self.left is not None and self.right is not None:
            total = total + abs(self.left) @ abs(self.right).sum(axis=1)
        return np.asarray(total).ravel()

    def used(self) -> NDArray[np.bool_]:
        """Which sources reach a target."""
        found = np.zeros(self.shape[1], dtype=bool)
        found[self.plain.indices] = True
        if self.left is not None and self.right is not None:
            found[self.right[np.unique(self.left.indices)].indices] = True
        return found

    def whole(self) -> sparse.csr_array:
        """The product multiplied out."""
        if self.left is None:
            return self.plain
        return sparse.csr_array(self.plain + self.left @ self.right)


@dataclass(frozen=True, eq=False)
class NoiseTerm:
    """`matrix @ Z` is added to the nodes; or, with `edges`, row e of it to the message on edge e."""

    sources: Sources
    matrix: FactoredMatrix
    edges: Edges | None = None


class Noise:
    """What every noise answers: nothing is added and nothing correlated, unless it says so.

    Noises are hashable by their settings, so that their tables are made once per mixing.
    """

    @property
    def correlation(self) -> Correlation | None:
        """How a source is correlated with itself over rounds; None: fresh every round."""
        return None

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        """What nodes add to their gradients, once a round."""
        return ()

    def edge(self, mixing: Mixing, step: int = 0) -> tuple[NoiseTerm, ...]:
        """What the loop adds to single messages in gossip step `step` of a round."""
        return ()

    def with_sigma(self, sigma: PerNode) -> Noise:
        """The same noise at another size; pair secrets beside a node's own noise keep theirs."""
        raise InputError("an algorithm without noise", "it has no sigma", "use a private algorithm")


# --- kinds ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoNoise(Noise):
    """No noise."""


@dataclass(frozen=True)
class _Sized(Noise):
    """Noise of one kind, of standard deviation `sigma`; where nodes share it, there is one for all."""

    sigma: PerNode
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checked_sizes("sigma", self.sigma, single=self.shared))

    def with_sigma(self, sigma: PerNode) -> Noise:
        return replace(self, sigma=sigma)


@dataclass(frozen=True)
class Independent(_Sized):
    """Every node adds its own fresh `sigma * N(0, 1)` to its gradient.

    >>> from sottovoce.core.topologies import metropolis
    >>> Independent(0.5).local(metropolis("path:2").at(0))[0].matrix.whole().toarray()
    array([[0.5, 0. ],
           [0. , 0.5]])
    """

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        return _own_terms(self.sigma, mixing.n)


@dataclass(frozen=True)
class Temporal(_Sized):
    """Every node adds `sigma (C^-1 Z)_t` in round t: its own noise, correlated over rounds (mafalda, section 3)."""

    over_rounds: Correlation

    @property
    def correlation(self) -> Correlation | None:
        return self.over_rounds

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        return _own_terms(self.sigma, mixing.n)


@dataclass(frozen=True)
class Pairwise(_Sized):
    """Each pair of neighbours shares a secret, fresh every round: one adds it, the other subtracts it (DECOR).

    The secrets cancel over the network. They are not scaled by W.
    """

    sigma: float
    shared = True

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        return _pair_terms(self.sigma, mixing)


@dataclass(frozen=True)
class Central(_Sized):
    """One trusted party adds `sigma * N(0, 1)` to the sum over all nodes; nobody knows the draw."""

    sigma: float
    shared = True

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        if not self.sigma:
            return ()
        n = mixing.n
        sources = Sources("server", np.array([[0]]), np.array([1]), sparse.csr_array((1, n), dtype=bool))
        return (NoiseTerm(sources, FactoredMatrix(sparse.csr_array(np.full((n, 1), self.sigma / n)))),)


@dataclass(frozen=True)
class ZeroSum(Noise):
    """A different noise on each message, summing to zero at the sender (zip-dl, Algorithm 1).

        Z_{a->v} = Y_{a->v} - 1 / (d_a W_av) sum_j W_aj Y_{a->j},    Y ~ N(0, zeta_a^2)

    over a's neighbourhood of d_a nodes, with a itself in it when `closed`. Either `zeta` is given, or
    `message_sigma`, the least standard deviation that any message of a node shall carry: zeta_a then follows from
    Lemma 3.3 (Remark 3.4 is its case of equal weights). Only the first gossip step of a round is noisy.
    """

    zeta: PerNode | None = None
    message_sigma: PerNode | None = None
    closed: bool = True

    def __post_init__(self) -> None:
        if (self.zeta is None) == (self.message_sigma is None):
            raise InputError(
                f"zeta={self.zeta}, message_sigma={self.message_sigma}",
                "exactly one of them must be given",
                "give one of them",
            )
        given = "zeta" if self.zeta is not None else "message_sigma"
        object.__setattr__(self, given, checked_sizes(given, getattr(self, given)))

    def with_sigma(self, sigma: PerNode) -> Noise:
        return replace(self, zeta=sigma) if self.zeta is not None else replace(self, message_sigma=sigma)

    def edge(self, mixing: Mixing, step: int = 0) -> tuple[NoiseTerm, ...]:
        return () if step else _zero_sum(self, mixing)

    def gains(self, mixing: Mixing) -> NDArray[np.float64]:
        """Standard deviation of `Z_{a->v}` per unit of zeta_a, for each edge of `mixing` (Lemma 3.3)."""
        sender, _, weight = edges = self._neighbourhood(mixing)
        degree = np.bincount(sender, minlength=mixing.n)[sender]
        squares = np.bincount(sender, weights=weight**2, minlength=mixing.n)[sender] - edges.weight**2
        return np.sqrt(((degree - 1) / degree) ** 2 + squares / (degree * weight) ** 2)

    def zetas(self, mixing: Mixing) -> NDArray[np.float64]:
        """zeta of each node."""
        if self.zeta is not None:
            return _per_node("zeta", self.zeta, mixing.n)
        wanted = _per_node("message_sigma", self.message_sigma, mixing.n)
        sender, receiver, _ = self._neighbourhood(mixing)
        others = sender != receiver
        least = np.full(mixing.n, np.inf)
        np.minimum.at(least, sender[others], self.gains(mixing)[others])
        silent = np.flatnonzero((least <= 0) & (wanted > 0))
        if silent.size:
            raise InputError(
                f"node {silent[0]} has one neighbour",
                "zero-sum noise over a single neighbour is no noise",
                "use the closed neighbourhood, or a graph of minimum degree 2",
            )
        return np.where(np.isfinite(least), wanted / least, 0.0)

    def _neighbourhood(self, mixing: Mixing) -> Edges:
        sender, receiver, weight = mixing.planned_edges
        if not self.closed:
            others = sender != receiver
            return Edges(sender[others], receiver[others], weight[others])
        own = np.zeros(mixing.n, dtype=bool)
        own[sender[sender == receiver]] = True
        speaks = np.zeros(mixing.n, dtype=bool)
        speaks[sender[sender != receiver]] = True
        missing = np.flatnonzero(speaks & ~own)
        if missing.size:
            raise InputError(
                f"W[{missing[0]},{missing[0]}] = 0",
                "zero-sum noise over the closed neighbourhood needs a self-weight",
                "use metropolis weights",
            )
        return mixing.planned_edges


@dataclass(frozen=True)
class CombinedNoise(Noise):
    """Several noises of different kinds at once; one correlated over rounds stands alone."""

    parts: tuple[Noise, ...]

    def __post_init__(self) -> None:
        require_near(
            f"noise of {len(self.parts)} kinds",
            [size for part in self.parts for size in _sizes_of(part)],
            FARTHEST_KINDS,
        )
        if any(part.correlation is not None for part in self.parts):
            raise InputError(
                "noise correlated over rounds together with other noise", "it cannot be combined", "use it alone"
            )

    def with_sigma(self, sigma: PerNode) -> Noise:
        return CombinedNoise((self.parts[0].with_sigma(sigma), *self.parts[1:]))

    def nearest_sigma(self, sigma: float) -> float:
        """The size of the first kind, as near as possible to this one, at which others are near enough."""
        others = [size for part in self.parts[1:] for size in _sizes_of(part) if size > 0]
        if not others:
            return sigma
        far = FARTHEST_KINDS * (1 - 1e-12)
        return min(max(sigma, max(others) / far), min(others) * far)

    def local(self, mixing: Mixing) -> tuple[NoiseTerm, ...]:
        return tuple(term for part in self.parts for term in part.local(mixing))

    def edge(self, mixing: Mixing, step: int = 0) -> tuple[NoiseTerm, ...]:
        return tuple(term for part in self.parts for term in part.edge(mixing, step))


SMALLEST, LARGEST = 1e-50, 1e50
"""Standard deviations lie between these, or are 0; so do step sizes and sensitivities. Squares of their products, and
sums of squares, are still numbers."""

FARTHEST_NODES, FARTHEST_KINDS = 1e12, 1e7
"""So much larger than the least may sizes be at most: of nodes, and of kinds of noise in one algorithm. Figures are
checked up to there. Sums of noise of different kinds lose what is smaller: beyond the second they are too large by more
than 1e-7 of themselves."""


def checked_sizes(
    name: str, value: ArrayLike, *, signed: bool = False, positive: bool = False, single: bool = False
) -> PerNode:
    """A size, one for all nodes or (unless `single`) one for each, in a form that can be hashed."""
    try:
        if np.ma.is_masked(value) or np.asarray(value).dtype.kind not in "iuf":
            raise TypeError
        values = np.asarray(value, dtype=float)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name} = {value!r:.60}", "it must be a number", "correct it") from None
    if not values.size or values.ndim > (0 if single else 1):
        rule = f"one number is needed{'' if single else ', or one for each node'}"
        raise InputError(f"{name} of shape {values.shape}", rule, "correct it")
    sizes = np.abs(values) if signed else values
    wrong = values[~((sizes >= SMALLEST) & (sizes <= LARGEST) | (sizes == 0) & (not positive))]
    if wrong.size:
        rule = f"it must lie between {SMALLEST:g} and {LARGEST:g}{'' if positive else ', or be 0'}"
        raise InputError(f"{name} = {wrong[0]:g}", f"{rule}, so that its square is a number", "choose other units")
    require_near(name, values.ravel().tolist(), FARTHEST_NODES)
    return tuple(values.tolist()) if values.ndim else float(values)


def require_near(name: str, sizes: Sequence[float], at_most: float) -> None:
    """Refuse sizes that lie farther apart than figures are checked for."""
    some = [size for size in sizes if size > 0]
    if some and max(some) > at_most * min(some):
        raise InputError(
            f"{name} from {min(some):g} to {max(some):g}",
            f"the largest must be at most {at_most:g} times the least, or figures are not verified",
            "choose sizes that are nearer to each other, or 0",
        )


def _sizes_of(noise: Noise) -> list[float]:
    """All that its settings say of standard deviations."""
    given = (getattr(noise, name, None) for name in ("sigma", "zeta", "message_sigma"))
    return [float(size) for value in given if value is not None for size in np.atleast_1d(value)]


def _per_node(name: str, value: PerNode | None, n: int) -> NDArray[np.float64]:
    values = np.asarray(value, dtype=float)
    if values.ndim and values.shape != (n,):
        raise InputError(f"{name} for {values.size} nodes", f"there are {n}", "give one number, or one for each node")
    return np.broadcast_to(values, (n,)).copy()


@lru_cache(maxsize=32)
def _own_terms(sigma: PerNode, n: int) -> tuple[NoiseTerm, ...]:
    sizes = _per_node("sigma", sigma, n)
    if not sizes.any():
        return ()
    nodes = np.arange(n)
    sources = Sources("node", nodes[:, None], np.ones(n, dtype=np.int64), sparse.eye_array(n, dtype=bool, format="csr"))
    return (NoiseTerm(sources, FactoredMatrix(sparse.csr_array(sparse.diags_array(sizes)))),)


@lru_cache(maxsize=32)
def _pair_terms(sigma: float, mixing: Mixing) -> tuple[NoiseTerm, ...]:
    sender, receiver, _ = mixing.planned_edges
    once = sender < receiver
    pairs = np.stack([sender[once], receiver[once]], axis=1).astype(np.int64)
    if not sigma or not len(pairs):
        return ()
    column = np.arange(len(pairs))
    ends, both = pairs.T.ravel(), np.concatenate([column, column])
    signs = np.repeat([sigma, -sigma], len(pairs))
    matrix = sparse.csr_array((signs, (ends, both)), shape=(mixing.n, len(pairs)))
    holders = sparse.csr_array((np.ones(2 * len(pairs), dtype=bool), (both, ends)), shape=matrix.shape[::-1])
    return (NoiseTerm(Sources("pair", pairs, np.ones(len(pairs), dtype=np.int64), holders), FactoredMatrix(matrix)),)


@lru_cache(maxsize=8)
def _zero_sum(noise: ZeroSum, mixing: Mixing) -> tuple[NoiseTerm, ...]:
    edges = noise._neighbourhood(mixing)
    sender, _, weight = edges
    zeta = noise.zetas(mixing)
    degree = np.bincount(sender, minlength=mixing.n)
    zeta = np.where(degree > 1, zeta, 0.0)  # alone in its neighbourhood, a node's noise cancels itself
    if not zeta.any():
        return ()
    E, each = len(sender), np.arange(len(sender))
    plain = sparse.diags_array(zeta[sender], format="csr")
    left = sparse.csr_array((-zeta[sender] / (degree[sender] * weight), (each, sender)), shape=(E, mixing.n))
    right = sparse.csr_array((weight, (sender, each)), shape=(mixing.n, E))
    nodes = np.flatnonzero(degree)
    holders = sparse.csr_array((np.ones(E, dtype=bool), (each, sender)), shape=(E, mixing.n))
    sources = Sources("edge", nodes[:, None], degree[nodes].astype(np.int64), holders)
    return (NoiseTerm(sources, FactoredMatrix(plain, left, right), edges),)
