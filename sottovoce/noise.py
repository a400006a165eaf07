"""Noise: which independent Gaussian sources feed which node or message, who knows them, and how they are drawn.

A noise is a table: for one step it lists its `Sources` (unit Gaussians Z) and a sparse matrix that carries them to
nodes (`local`) or to single messages (`edge`). The loop multiplies that matrix with draws; the tracer reads it. So
what runs is what is accounted for.

Draws are keyed by (seed, source, round): a restart, another process or another transport gives the same numbers,
and no draw is ever used for two rounds.

Sizes are in units of a gradient's sensitivity; the loop scales by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.errors import InputError
from sottovoce.topology import Edges, Mixing

PerNode: TypeAlias = float | tuple[float, ...]
"""One number for all nodes, or one for each."""


# --- sources and draws ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sources:
    """Unit Gaussians of one step, in groups that are drawn together because the same party draws them.

    `holders[s, u]` says that node u knows source s: it drew it, or shares the secret it comes from.
    """

    kind: str
    groups: NDArray[np.int64]
    counts: NDArray[np.int64]
    holders: sparse.csr_array

    @property
    def size(self) -> int:
        """Number of sources."""
        return int(self.holders.shape[0])

    def draw(
        self,
        seed: int,
        round: int,
        step: int,
        dimension: int,
        dtype: Any = np.float64,
        needed: NDArray[np.bool_] | None = None,
        at_once: int | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """The draws of one step: (which sources, their rows), in blocks of about `at_once` values.

        Groups in which no source is needed are left out.
        """
        stops = np.cumsum(self.counts)
        starts = stops - self.counts
        if needed is None:
            wanted = np.arange(len(stops))
        else:
            wanted = np.flatnonzero(np.add.reduceat(needed, starts) if len(starts) else [])
        limit = self.size if at_once is None else max(1, at_once // dimension)
        for groups in _batches(wanted, self.counts, limit):
            sources = np.concatenate([np.arange(starts[g], stops[g]) for g in groups])
            rows = np.empty((len(sources), dimension), dtype=dtype)
            filled = 0
            for g in groups:
                rng = generator(seed, self.kind, self.groups[g].tolist(), round, step)
                rng.standard_normal(out=rows[filled : filled + self.counts[g]], dtype=dtype)
                filled += self.counts[g]
            yield sources, rows


def _batches(groups: NDArray[np.intp], counts: NDArray[np.int64], limit: int) -> Iterator[NDArray[np.intp]]:
    """Consecutive groups whose counts add up to about `limit`."""
    if len(groups):
        number = (np.cumsum(counts[groups]) - 1) // limit
        yield from np.split(groups, np.flatnonzero(np.diff(number)) + 1)


def generator(seed: int, kind: str, ids: Sequence[int], round: int, step: int = 0) -> np.random.Generator:
    """The random stream of one source in one step: a hash of its name is the key of a counter-based generator."""
    name = f"{seed}|{kind}|{','.join(map(str, ids))}|{round}|{step}"
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


@dataclass(frozen=True, eq=False)
class Spread:
    """A matrix `plain + left @ right`, kept in parts: a hub's messages each depend on all of its draws."""

    plain: sparse.csr_array
    left: sparse.csr_array | None = None
    right: sparse.csr_array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Targets and sources."""
        return self.plain.shape

    def after(self, matrix: sparse.csr_array) -> Spread:
        """`matrix @ self`."""
        left = None if self.left is None else sparse.csr_array(matrix @ self.left)
        return Spread(sparse.csr_array(matrix @ self.plain), left, self.right)

    def whole(self) -> sparse.csr_array:
        """The product multiplied out."""
        if self.left is None:
            return self.plain
        return sparse.csr_array(self.plain + self.left @ self.right)


@dataclass(frozen=True, eq=False)
class Injection:
    """`matrix @ Z` is added to the nodes; or, with `edges`, row e of it to the message on edge e."""

    sources: Sources
    matrix: Spread
    edges: Edges | None = None


class Noise(Protocol):
    """What every noise answers. Hashable, so that its tables are made once per mixing."""

    @property
    def correlation(self) -> Correlation | None:
        """How a source is correlated with itself over rounds; None: fresh every round."""

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        """What nodes add to their gradients, once a round."""

    def edge(self, mixing: Mixing) -> tuple[Injection, ...]:
        """What the loop adds to single messages, in every gossip step."""

    def with_sigma(self, sigma: float) -> Noise:
        """The same noise at another size; pair secrets beside a node's own noise keep theirs."""


class _Fresh:
    """Nothing added and nothing correlated; the noises below override what they do."""

    @property
    def correlation(self) -> Correlation | None:
        return None

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        return ()

    def edge(self, mixing: Mixing) -> tuple[Injection, ...]:
        return ()


# --- kinds ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silent(_Fresh):
    """No noise."""

    def with_sigma(self, sigma: float) -> Noise:
        raise InputError("an algorithm without noise", "it has no sigma to choose", "use a private one")


@dataclass(frozen=True)
class Independent(_Fresh):
    """Every node adds its own fresh `sigma * N(0, 1)` to its gradient.

    >>> from sottovoce.topology import metropolis
    >>> Independent(0.5).local(metropolis("path:2").at(0))[0].matrix.whole().toarray()
    array([[0.5, 0. ],
           [0. , 0.5]])
    """

    sigma: PerNode

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _size("sigma", self.sigma))

    def with_sigma(self, sigma: float) -> Noise:
        return replace(self, sigma=sigma)

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        return _own(self.sigma, mixing.n)


@dataclass(frozen=True)
class Temporal(_Fresh):
    """Every node adds `sigma (C^-1 Z)_t` in round t: its own noise, correlated over rounds (mafalda, section 3)."""

    sigma: PerNode
    over_rounds: Correlation

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _size("sigma", self.sigma))

    @property
    def correlation(self) -> Correlation | None:
        return self.over_rounds

    def with_sigma(self, sigma: float) -> Noise:
        return replace(self, sigma=sigma)

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        return _own(self.sigma, mixing.n)


@dataclass(frozen=True)
class Pairwise(_Fresh):
    """Each pair of neighbours shares a secret, fresh every round: one adds it, the other subtracts it (DECOR).

    The secrets cancel over the network. They are not scaled by W.
    """

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _size("sigma of pairs", self.sigma, single=True))

    def with_sigma(self, sigma: float) -> Noise:
        return replace(self, sigma=sigma)

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        return _pairs(self.sigma, mixing)


@dataclass(frozen=True)
class Central(_Fresh):
    """One trusted party adds `sigma * N(0, 1)` to the sum over all nodes; nobody knows the draw."""

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _size("sigma", self.sigma, single=True))

    def with_sigma(self, sigma: float) -> Noise:
        return replace(self, sigma=sigma)

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        if not self.sigma:
            return ()
        n = mixing.n
        sources = Sources("server", np.array([[0]]), np.array([1]), sparse.csr_array((1, n), dtype=bool))
        return (Injection(sources, Spread(sparse.csr_array(np.full((n, 1), self.sigma / n)))),)


@dataclass(frozen=True)
class ZeroSum(_Fresh):
    """A different noise on each message, summing to zero at the sender (zip-dl, Algorithm 1).

        Z_{a->v} = Y_{a->v} - 1 / (d_a W_av) sum_j W_aj Y_{a->j},    Y ~ N(0, zeta_a^2)

    over a's neighbourhood of d_a nodes, with a itself in it when `closed`. Either `zeta` is given, or
    `message_sigma`, the least standard deviation that any message of a node shall carry: zeta_a then follows from
    Lemma 3.3 (Remark 3.4 is its case of equal weights).
    """

    zeta: PerNode | None = None
    message_sigma: PerNode | None = None
    closed: bool = True

    def __post_init__(self) -> None:
        if (self.zeta is None) == (self.message_sigma is None):
            raise InputError(
                f"zeta={self.zeta}, message_sigma={self.message_sigma}", "exactly one is given", "drop or add one"
            )
        given = "zeta" if self.zeta is not None else "message_sigma"
        object.__setattr__(self, given, _size(given, getattr(self, given)))

    def with_sigma(self, sigma: float) -> Noise:
        return replace(self, zeta=sigma) if self.zeta is not None else replace(self, message_sigma=sigma)

    def edge(self, mixing: Mixing) -> tuple[Injection, ...]:
        return _zero_sum(self, mixing)

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
        mute = np.flatnonzero((least <= 0) & (wanted > 0))
        if mute.size:
            raise InputError(
                f"node {mute[0]} has one neighbour",
                "zero-sum noise over an open neighbourhood of one is no noise",
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
        bare = np.flatnonzero(speaks & ~own)
        if bare.size:
            raise InputError(
                f"W[{bare[0]},{bare[0]}] = 0",
                "zero-sum noise over the closed neighbourhood needs a weight for oneself",
                "use metropolis weights",
            )
        return mixing.planned_edges


@dataclass(frozen=True)
class Together(_Fresh):
    """Several noises of different kinds at once; one correlated over rounds stands alone."""

    parts: tuple[Noise, ...]

    def __post_init__(self) -> None:
        if any(part.correlation is not None for part in self.parts):
            raise InputError("temporal noise beside another", "it stands alone", "use it by itself")

    def with_sigma(self, sigma: float) -> Noise:
        return Together((self.parts[0].with_sigma(sigma), *self.parts[1:]))

    def local(self, mixing: Mixing) -> tuple[Injection, ...]:
        return tuple(injection for part in self.parts for injection in part.local(mixing))

    def edge(self, mixing: Mixing) -> tuple[Injection, ...]:
        return tuple(injection for part in self.parts for injection in part.edge(mixing))


def _size(name: str, value: Any, *, single: bool = False) -> PerNode:
    """A standard deviation, one for all nodes or (unless `single`) one for each, in a form that can be hashed."""
    try:
        values = np.asarray(value, dtype=float)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} = {value!r}", "a standard deviation is a number", "correct it") from None
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any() or values.ndim > (0 if single else 1):
        shown = values[bad].ravel()[0] if bad.any() else f"an array of shape {values.shape}"
        raise InputError(f"{name} = {shown}", "a standard deviation is finite and not negative", "correct it")
    return tuple(values.tolist()) if values.ndim else float(values)


def _per_node(name: str, value: PerNode | None, n: int) -> NDArray[np.float64]:
    values = np.asarray(value, dtype=float)
    if values.ndim and values.shape != (n,):
        raise InputError(f"{name} for {values.size} nodes", f"there are {n}", "give one number, or one for each node")
    return np.broadcast_to(values, (n,)).copy()


@lru_cache(maxsize=32)
def _own(sigma: PerNode, n: int) -> tuple[Injection, ...]:
    sizes = _per_node("sigma", sigma, n)
    if not sizes.any():
        return ()
    nodes = np.arange(n)
    sources = Sources("node", nodes[:, None], np.ones(n, dtype=np.int64), sparse.eye_array(n, dtype=bool, format="csr"))
    return (Injection(sources, Spread(sparse.csr_array(sparse.diags_array(sizes)))),)


@lru_cache(maxsize=32)
def _pairs(sigma: float, mixing: Mixing) -> tuple[Injection, ...]:
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
    return (Injection(Sources("pair", pairs, np.ones(len(pairs), dtype=np.int64), holders), Spread(matrix)),)


@lru_cache(maxsize=8)
def _zero_sum(noise: ZeroSum, mixing: Mixing) -> tuple[Injection, ...]:
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
    return (Injection(sources, Spread(plain, left, right), edges),)


# --- correlation over rounds ---------------------------------------------------------------------------------------


@runtime_checkable
class Correlation(Protocol):
    """A lower-triangular C: in round t a node adds `(C^-1 Z)_t`, which depends on the draws of rounds up to t."""

    @property
    def memory(self) -> int:
        """How many earlier rounds `next` looks at."""

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        """C for that many rounds."""

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        """C^-1 for that many rounds."""

    def next(self, round: int, fresh: Any, past: Sequence[Any]) -> tuple[Any, Any]:
        """`(C^-1 Z)_t` from the draw of round t and what was kept of earlier rounds, newest last; and what to keep."""


@dataclass(frozen=True)
class Differences:
    """AntiPGD: a node takes back in each round what it added in the last, `z_t - z_{t-1}`; C is all ones below.

    >>> Differences().inverse(3)
    array([[ 1.,  0.,  0.],
           [-1.,  1.,  0.],
           [ 0., -1.,  1.]])
    """

    @property
    def memory(self) -> int:
        return 1

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        return np.tril(np.ones((rounds, rounds)))

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        return np.eye(rounds) - np.eye(rounds, k=-1)

    def next(self, round: int, fresh: Any, past: Sequence[Any]) -> tuple[Any, Any]:
        return (fresh - past[-1] if past else fresh), fresh


class Triangular:
    """Any lower-triangular C with a non-zero diagonal, dense or banded; a band of b looks back b - 1 rounds.

    >>> C = Triangular([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]])
    >>> C.memory
    1
    >>> C.inverse(2)
    array([[ 1. ,  0. ],
           [-0.5,  1. ]])
    """

    def __init__(self, matrix: Any) -> None:
        try:
            if np.iscomplexobj(matrix):
                raise TypeError
            C = np.array(matrix, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError):
            raise InputError("correlation matrix is not an array of numbers", "C is one", "give a 2-D array") from None
        if C.ndim != 2 or C.shape[0] != C.shape[1] or not C.size:
            raise InputError(f"correlation matrix of shape {C.shape}", "C is square, one row a round", "reshape it")
        if not np.isfinite(C).all() or np.triu(C, 1).any():
            where = "not finite" if not np.isfinite(C).all() else "not lower triangular"
            raise InputError(f"correlation matrix is {where}", "noise can only look back", "take its triangular factor")
        if not np.diag(C).all():
            row = int(np.flatnonzero(np.diag(C) == 0)[0])
            raise InputError(f"C[{row},{row}] = 0", "C must be invertible", "give a diagonal without zeros")
        sizes = np.abs(C[C != 0])
        if sizes.max() > 1e100 or sizes.min() < 1e-100:
            raise InputError("entries of C beyond 1e100 or below 1e-100", "its square must be a number", "rescale C")
        self._matrix = C
        self._matrix.flags.writeable = False
        below, above = np.nonzero(C)
        self._memory = int((below - above).max())

    def __repr__(self) -> str:
        return f"Triangular({len(self._matrix)} rounds, {self._memory + 1} bands)"

    @property
    def memory(self) -> int:
        return self._memory

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        if rounds > len(self._matrix):
            raise InputError(
                f"{rounds} rounds with a correlation matrix for {len(self._matrix)}",
                "C needs a row for each round",
                "make a larger C or run fewer rounds",
            )
        return self._matrix[:rounds, :rounds]

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        C = self.matrix(rounds)
        return np.asarray(linalg.solve_triangular(C, np.eye(rounds), lower=True))

    def next(self, round: int, fresh: Any, past: Sequence[Any]) -> tuple[Any, Any]:
        """Forward substitution: `(z_t - sum_{s<t} C[t,s] result_s) / C[t,t]`."""
        row = self.matrix(round + 1)[round]
        result = fresh
        for back, earlier in enumerate(reversed(past), start=1):
            if row[round - back]:
                result = result - float(row[round - back]) * earlier
        result = result / float(row[round])
        return result, result
