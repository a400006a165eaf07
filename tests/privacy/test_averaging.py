"""Averaging: entries of projectors against 300-digit arithmetic, and what must hold of them whatever the graph.

The oracle makes its own weights, walks all rounds, and solves with balls of 300 digits (python-flint): it shares no
code with the package but the list of a graph's edges.
"""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import flint
import mpmath
import numpy as np
import pytest
from scipy import sparse

from sottovoce import account, algorithm, metropolis, random_edges, trace
from sottovoce.core.topologies import Topology, dropout, fresh_erdos_renyi, from_matrix, uniform
from sottovoce.privacy import row_space
from sottovoce.privacy.exact.averaging import AveragingLoss, averaging_loss
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import parse_view, with_final_models

PRIME = 2305843009213693951
"""2^61 - 1."""

DIGITS = 300

Rows = list[list[Fraction]]


def metropolis_weights(net: Topology) -> Rows:
    """`1 / (1 + the larger degree)`, and what is left of one."""
    there = net.graph.adjacency.toarray() > 0
    np.fill_diagonal(there, False)
    degree = there.sum(axis=1).tolist()
    n = len(degree)
    W = [[Fraction(int(there[u, v]), 1 + max(degree[u], degree[v])) for v in range(n)] for u in range(n)]
    for u in range(n):
        W[u][u] = 1 - sum(W[u])
    return W


def uniform_weights(net: Topology) -> Rows:
    there = net.graph.adjacency.toarray() > 0
    np.fill_diagonal(there, True)
    return [[Fraction(int(one), int(row.sum())) for one in row] for row in there]


def as_matrix(rows: Rows) -> flint.fmpq_mat:
    return flint.fmpq_mat([[flint.fmpq(x.numerator, x.denominator) for x in row] for row in rows])


def heard_rows(weights: list[Rows], heard: list[list[int]]) -> flint.fmpq_mat:
    """What is heard in all rounds, as combinations of first values: `weights` and listeners' neighbours by round."""
    n = len(weights[0])
    state = as_matrix([[Fraction(int(i == j)) for j in range(n)] for i in range(n)])
    found = []
    for W, nodes in zip(weights, heard, strict=True):
        found += [[state[v, j] for j in range(n)] for v in nodes]
        state = as_matrix(W) * state
    return flint.fmpq_mat(found)


def projector(rows: flint.fmpq_mat, members: list[int], sizes: list[Fraction] | None = None) -> tuple[int, list[float]]:
    """The rank, and the diagonal of the projector onto the row space without members' columns, by 300-digit balls."""
    n = rows.ncols()
    keep = [j for j in range(n) if j not in members]
    scale = [Fraction(1)] * n if sizes is None else sizes
    residues = flint.nmod_mat(
        len(keep), rows.nrows(),
        [int(rows[i, j].p) * pow(int(rows[i, j].q), -1, PRIME) % PRIME for j in keep for i in range(rows.nrows())],
        PRIME,
    )  # fmt: skip
    reduced, rank = residues.rref()
    pivots = [next(i for i in range(rows.nrows()) if int(reduced[k, i])) for k in range(rank)]
    flint.ctx.dps = DIGITS
    M = flint.arb_mat(
        [[flint.arb(rows[i, j]) * flint.arb(flint.fmpq(scale[j].numerator, scale[j].denominator)) for j in keep]
         for i in pivots]
    )  # fmt: skip
    solved = (M * M.transpose()).solve(M)
    entries = [0.0] * n
    for place, j in enumerate(keep):
        ball = sum((M[k, place] * solved[k, place] for k in range(rank)), flint.arb(0))
        assert float(ball.rad()) < 1e-20
        entries[j] = float(ball.mid())
    return rank, entries


def neighbours(net: Topology, members: list[int]) -> list[int]:
    listens = net.graph.adjacency.toarray()[members].any(axis=0)
    return [v for v in np.flatnonzero(listens).tolist() if v not in members]


def fixed_oracle(net: Topology, members: list[int], T: int, weights: Callable[[Topology], Rows]) -> list[float]:
    heard = neighbours(net, members)
    return projector(heard_rows([weights(net)] * T, [heard] * T), members)[1]


def found(net: Topology, view: str, T: int, *, final_models: str = "none", **settings: object) -> AveragingLoss:
    system = trace(algorithm("muffliato", **({"sigma": 1.0} | settings)), net, rounds=T)
    loss = averaging_loss(observe(system, with_final_models(parse_view(view), final_models)))
    assert loss is not None
    return loss


GRAPHS = [
    ("ring:16", 2), ("ring:16", 5), ("ring:31", 30), ("path:24", 10), ("path:40", 30), ("hypercube:5", 4),
    ("hypercube:6", 12), ("hypercube:6", 16), ("hypercube:5", 30), ("torus:6x6", 3), ("torus:7x7", 12),
    ("torus:5x5", 30), ("erdos-renyi:40,p=0.1,seed=2", 4),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "T"), GRAPHS)
def test_entries_are_those_of_300_digits(graph: str, T: int) -> None:
    net = metropolis(graph)
    loss = found(net, "node:3", T)
    assert loss.exact
    assert loss.rational
    expected = np.delete(fixed_oracle(net, [3], T, metropolis_weights), 3)
    assert np.all(loss.squares >= expected * (1 - 1e-15))
    np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "T"), [("414", 2), ("414", 6), pytest.param("414", 30, marks=pytest.mark.slow), ("1912", 2)]
)
def test_entries_of_ego_graphs(name: str, T: int, data: Callable[[str], Path]) -> None:
    net = metropolis(f"file:{data(f'facebook_ego/{name}.edges.gz')}")
    loss = found(net, "node:5", T)
    hops = net.graph.reaching([5], T)
    far = np.delete(~np.isin(np.arange(net.n), [*hops, 5]), 5)
    assert loss.exact
    assert not loss.squares[far].any()
    if name == "414":
        expected = np.delete(fixed_oracle(net, [5], T, metropolis_weights), 5)
        np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("view", ["coalition:0,7", "eavesdropper:0>1", "node:4"])
@pytest.mark.parametrize("chebyshev", [False, True])
def test_other_views_and_chebyshev_span_what_walks_say(view: str, chebyshev: bool) -> None:
    net = metropolis("torus:4x5")
    members = list(parse_view(view).members)
    heard = neighbours(net, members) if members else [0]
    expected = projector(heard_rows([metropolis_weights(net)] * 4, [heard] * 4), members)[1]
    loss = found(net, view, 4, chebyshev=chebyshev)
    assert loss.exact
    np.testing.assert_allclose(loss.squares, np.delete(expected, members), rtol=0, atol=1e-12)


def test_weights_that_are_not_symmetric_and_unequal_noise() -> None:
    net = uniform("erdos-renyi:30,p=0.1,seed=4")
    np.testing.assert_allclose(
        found(net, "node:0", 5).squares, fixed_oracle(net, [0], 5, uniform_weights)[1:], rtol=0, atol=1e-12
    )
    sigma, sensitivity = [1.0 + u / 8 for u in range(30)], [1.0 + u % 3 for u in range(30)]
    rows = heard_rows([uniform_weights(net)] * 5, [neighbours(net, [0])] * 5)
    sizes = [Fraction(one) * Fraction(other) for one, other in zip(sigma, sensitivity, strict=True)]
    entries = projector(rows, [0], sizes)[1]
    expected = [entries[u] / sigma[u] ** 2 for u in range(1, 30)]  # sigma is in units of a node's own sensitivity
    loss = found(net, "node:0", 5, sigma=sigma, sensitivity=sensitivity)
    assert loss.exact
    np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "net", [random_edges("ring:9"), dropout("ring:9", rate=0.3, seed=1), fresh_erdos_renyi(12, 0.2)], ids=str
)
@pytest.mark.parametrize("T", [3, 14])
def test_changing_weights(net: Topology, T: int) -> None:
    system = trace(algorithm("muffliato", sigma=1.0), net, rounds=T)
    loss = averaging_loss(observe(system, parse_view("node:0")))
    assert loss is not None
    assert loss.exact
    assert loss.rational
    every, heard = [], []
    for t in range(T):
        W = system.topology.at(t).weights.toarray()
        rows = [[Fraction(float(x)).limit_denominator(1000) for x in row] for row in W]
        for u in range(len(rows)):
            rows[u][u] = 1 - sum(rows[u]) + rows[u][u]
        every.append(rows)
        heard.append([v for v in np.flatnonzero(W[0]).tolist() if v])
    active = system.topology.at(0).active
    expected = np.array(projector(heard_rows(every, heard), [0])[1])[1:]
    silent = np.zeros(len(expected), dtype=bool) if active is None else ~active[1:]
    if not silent.any():
        np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-12)
    assert not loss.squares[silent].any()


def test_final_models_and_sums() -> None:
    net = metropolis("hypercube:4")
    W, heard = metropolis_weights(net), neighbours(net, [0])
    rows = heard_rows([W] * 3, [heard, heard, list(range(1, 16))])
    np.testing.assert_allclose(
        found(net, "node:0", 2, final_models="all").squares, projector(rows, [0])[1][1:], rtol=0, atol=1e-12
    )
    complete = metropolis("complete:5")
    system = trace(algorithm("muffliato", sigma=1.0), complete, rounds=3)
    loss = averaging_loss(observe(system, parse_view("node:0", secure_sum=True)))
    assert loss is not None
    assert loss.exact
    np.testing.assert_allclose(loss.squares, 0.25, rtol=0, atol=1e-14)


@pytest.mark.parametrize("graph", ["erdos-renyi:20,p=0.2,seed=3", "path:9", "star:6"])
def test_sums_with_unequal_weights(graph: str) -> None:
    net = metropolis(graph)
    W = metropolis_weights(net)
    state, sums = (
        as_matrix([[Fraction(int(i == j)) for j in range(net.n)] for i in range(net.n)]),
        list[flint.fmpq_mat](),
    )
    listener = as_matrix([[weight if v != 1 else Fraction(0) for v, weight in enumerate(W[1])]])
    for _ in range(4):
        sums.append(listener * state)
        state = as_matrix(W) * state
    rows = flint.fmpq_mat([[one[0, j] for j in range(net.n)] for one in sums])
    system = trace(algorithm("muffliato", sigma=1.0), net, rounds=4)
    loss = averaging_loss(observe(system, parse_view("node:1", secure_sum=True)))
    assert loss is not None
    assert loss.exact
    np.testing.assert_allclose(loss.squares, np.delete(projector(rows, [1])[1], 1), rtol=0, atol=1e-12)


def test_weights_next_to_no_fraction_are_those_that_are_stored() -> None:
    rng = np.random.default_rng(5)
    weights = rng.random((8, 8)) * (np.abs(np.subtract.outer(range(8), range(8))) <= 1)
    weights /= weights.sum(axis=1, keepdims=True)
    net = from_matrix(weights)
    stored = [[Fraction(float(x)) for x in row] for row in net.at(0).weights.toarray()]
    loss = found(net, "node:0", 4)
    assert loss.exact
    assert not loss.rational
    expected = projector(heard_rows([stored] * 4, [[1]] * 4), [0])[1][1:]
    np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-12)


def test_hypercube_of_2048_after_two_steps() -> None:
    loss = found(metropolis("hypercube:11"), "node:0", 2)
    assert loss.exact
    assert loss.squares.mean() == pytest.approx(22 / 2047, abs=1e-12)


def _random_net(seed: int) -> tuple[Topology, int]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 300))
    kind = ("erdos-renyi:{n},p={p:.4f},seed={s}", "geometric:{n},r={r:.3f},seed={s}")[seed % 2]
    text = kind.format(n=n, p=min(1, rng.uniform(1, 4) / n), r=min(1.0, rng.uniform(0.5, 1.5) / math.sqrt(n)), s=seed)
    return metropolis(text), int(rng.integers(2, 9))


def _sums_to_rank(seed: int) -> None:
    net, T = _random_net(seed)
    node = int(np.argmax(net.graph.adjacency.sum(axis=0)))
    loss = found(net, f"node:{node}", T)
    assert loss.exact
    heard, members = neighbours(net, [node]), [node]
    W = np.array(
        [[int(x.numerator) * pow(int(x.denominator), -1, PRIME) % PRIME for x in r] for r in metropolis_weights(net)]
    )
    step = flint.nmod_mat(net.n, net.n, W.ravel().tolist(), PRIME)
    rows = flint.nmod_mat(len(heard), net.n, [int(v == j) for v in heard for j in range(net.n)], PRIME)
    every: list[int] = []
    for _ in range(T):
        every += [0 if j in members else int(rows[i, j]) for i in range(len(heard)) for j in range(net.n)]
        rows = rows * step
    rank = flint.nmod_mat(T * len(heard), net.n, every, PRIME).rank() if heard else 0
    assert loss.squares.sum() == pytest.approx(rank, rel=1e-9, abs=1e-9)
    unreached = np.delete(~np.isin(np.arange(net.n), [*net.graph.reaching([node], T), node]), node)
    assert not loss.squares[unreached].any()


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_entries_sum_to_the_rank(seed: int) -> None:
    _sums_to_rank(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_entries_sum_to_the_rank_on_200_graphs(seed: int) -> None:
    _sums_to_rank(seed)


@pytest.mark.parametrize("graph", ["path:30", "hypercube:6", "erdos-renyi:60,p=0.06,seed=1"])
def test_longer_views_never_tell_less(graph: str) -> None:
    net = metropolis(graph)
    each = [found(net, "node:2", T).squares for T in range(1, 16)]
    for shorter, longer in itertools.pairwise(each):
        assert np.all(longer >= shorter - 1e-12)


@pytest.mark.parametrize("bits", [64, 72, 80, 96, 128])
def test_too_few_digits_are_noticed(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Singular values on a path are as small as 1e-30: whatever digits it begins with, bounds hold and are near."""
    net, T = metropolis("path:40"), 30
    expected = np.delete(fixed_oracle(net, [3], T, metropolis_weights), 3)
    monkeypatch.setattr(row_space, "FEWEST_BITS", bits)
    loss = found(net, "node:3", T)
    assert loss.exact
    assert np.all(loss.squares >= expected * (1 - 1e-15))
    np.testing.assert_allclose(loss.squares, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bits", [72, 96, 160])
def test_rows_are_as_near_the_space_as_their_error_says(bits: int) -> None:
    """In 300 digits, block after block. Bounds of single errors add up to less than 1e5 times what is there."""
    kept, heard = np.arange(1, 20), [2, 11]
    exact = np.array(metropolis_weights(metropolis("erdos-renyi:20,p=0.3,seed=4")))[np.ix_(kept, kept)]
    W, start = (row_space.Exact.near(sparse.csr_array(one), row_space.meant)
                for one in (exact.astype(float), np.eye(19)[heard]))  # fmt: skip
    blocks = [row_space.Block(start, ()), *[row_space.Block(None, (W,))] * 2]
    fixed, basis, walks = row_space._Fixed(bits), list[row_space._Rows](), list[mpmath.matrix]()
    with mpmath.workdps(DIGITS):
        power = mpmath.matrix(np.eye(19)[heard].tolist())
        step = mpmath.matrix([[mpmath.mpf(x.numerator) / x.denominator for x in row] for row in exact.tolist()])
        for block, count in zip(blocks, row_space.block_ranks(blocks, 19), strict=True):
            found = row_space._orthonormal(fixed, row_space._block(fixed, block, basis), count, basis[-2:])
            assert count == 2
            assert found is not None
            basis.append(found)
            walks += [power[i, :] for i in range(2)]
            power = power * step
            Q = mpmath.qr(mpmath.matrix([list(row) for row in walks]).T, mode="skinny")[0]
            stored = mpmath.matrix(found.values.tolist())
            distance = mpmath.norm(stored - (stored * Q) * Q.T, 2)
            assert distance <= found.error <= 1e5 * (distance + 1)


def test_what_is_too_large_is_a_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_space, "ELIMINATIONS", 0)
    net = metropolis("hypercube:6")
    loss = found(net, "node:0", 2)
    assert not loss.exact
    hops = np.delete([bin(u).count("1") for u in range(64)], 0)
    assert np.array_equal(loss.squares, np.where(hops <= 2, 1.0, 0.0))


def test_missing_noise_is_left_to_the_general_route() -> None:
    system = trace(algorithm("muffliato", sigma=[0.0, 1.0, 1.0, 1.0]), metropolis("path:4"), rounds=2)
    assert averaging_loss(observe(system, parse_view("node:2"))) is None
    own = averaging_loss(observe(system, parse_view("node:0")))
    assert own is not None
    assert own.squares[0] == 1.0
    assert math.isinf(account(system, "node:1").of(0, "fixed-streams").mu)
