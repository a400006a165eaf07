"""What the papers say: their privacy formulas as they are printed, for comparison only.

Nothing here is a guarantee and nothing calibrates: several of these figures are below what an attacker really learns,
and `compared.published` says so for each victim. All code here is apart from the tracer's, so that the two can be
compared.

Every function returns mu^2 for a change of size 1, so that the Renyi divergence is `alpha mu^2 / 2`: one figure per
node in node order, where the attacker's own means nothing. `mended=True` puts right what looks like a slip of the pen,
such as a missing square; errors of substance stay.

Symbols: W mixing weights, n nodes, T rounds, v attacker, u victim, w whoever the attacker hears, H_T what T rounds of
noise do to a view. Shapes: N nodes, T rounds, P observations of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable

Array = NDArray[np.float64]

RANK = 1e-12
"""Singular values below this share of the largest are rounding."""

LARGEST = 2e8
"""How many entries a view matrix may have; the papers' formulas are dense."""


# --- muffliato -----------------------------------------------------------------------------------------------------


def muffliato_theorem_1(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Averaging: the loss of every single message, added up.

        mu^2(u) = 1/sigma^2  sum_{t<T} sum_{w heard by v at t}  (W_{0:t})_wu^2 / ||(W_{0:t})_w||^2

    with `W_{0:t} = W_{t-1} ... W_0`, fixed or changing. Cyffers et al., Muffliato, NeurIPS 2022, Theorem 1, eq (6).

    Too small: messages carry the same noise again and again, and together tell more than their losses add up to.
    Printed with entry (u, w), which is the same for a fixed symmetric W; for products of different matrices we take
    u's share in w's message, as eq (5) and (7) do.
    """
    total = np.zeros(net.n)
    for rows_PN in _spoken(net, attacker, rounds):
        squares = rows_PN**2
        total += (squares / squares.sum(axis=1, keepdims=True)).sum(axis=0)
    return total / sigma**2


def muffliato_corollary_1(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Averaging on a fixed graph, by the random walk X with transitions W.

        mu^2(u) = n/sigma^2  max_{w heard by v} W_vw^-2  sum_{t=1..T} P(X_t = v | X_0 = u)^2

    Muffliato, Corollary 1. Looser than Theorem 1, from which it is derived, and with its flaw.
    """
    W = _fixed(net, "Corollary 1")
    least = W[attacker, _heard(W, attacker)].toarray().min(initial=math.inf)
    reach, total = _unit(net.n, attacker), np.zeros(net.n)
    for _ in range(rounds):
        reach = W @ reach
        total += reach**2
    return net.n * total / (least * sigma) ** 2


def muffliato_theorem_4(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Averaging on an Erdos-Renyi graph of which a node knows its own edges: 1 for neighbours, less for others.

        mu^2(u) = 1/sigma^2  (u and v neighbours),    2 T d_v / (n - d_v) / sigma^2  (else)

    Muffliato, Theorem 4, for edge probability `c ln(n) / n` with c > 1, and only for orders with
    `alpha (alpha - 1) <= 2 sigma^2`. It is about a secret graph: a fixed, known one may leak more.
    """
    neighbours = _heard(_fixed(net, "Theorem 4"), attacker)
    degree = len(neighbours)
    squares = np.full(net.n, 2 * rounds * degree / (net.n - degree))
    squares[neighbours] = 1.0
    return squares / sigma**2


def muffliato_theorem_6(net: Topology, attacker: int, rounds: int, sigma: float, *, gossip_steps: int = 1) -> Array:
    """Training with K gossip steps a gradient: T times Theorem 1 with K steps.

        mu^2(u) = T/sigma^2  sum_{k<K} sum_{w heard by v}  (W^k)_wu^2 / ||(W^k)_w||^2

    Muffliato, Theorem 6, eq (9), for one W. Beside Theorem 1's flaw, what one round leaves in the network is forgotten
    in the next: at K = 1, DP-D-SGD, all but direct neighbours are said to lose nothing at all.
    """
    _fixed(net, "Theorem 6")
    return rounds * muffliato_theorem_1(net, attacker, gossip_steps, sigma)


def _spoken(net: Topology, attacker: int, rounds: int) -> Iterator[Array]:
    """For each step the rows of `W_{0:t}` that the attacker hears."""
    if net.static:
        W = net.at(0).weights
        yield from _responses(W, _heard(W, attacker), rounds)
        return
    product = np.eye(net.n)
    for t in range(rounds):
        W = net.at(t).weights
        yield product[_heard(W, attacker)]
        product = W @ product


# --- threat models -------------------------------------------------------------------------------------------------


def threat_local_bound(net: Topology, rounds: int, sigma: float) -> Array:
    """Whoever hears all: one Gaussian mechanism a round, `mu^2 = T / sigma^2`.

    Koskela and Kulkarni, Differential privacy analysis of decentralized gossip averaging under varying threat models,
    2025, Lemma 4: the local bound that their figures are compared with.
    """
    return np.full(net.n, rounds / sigma**2)


def threat_theorem_8(net: Topology, attacker: int, rounds: int, sigma: float, *, mended: bool = False) -> Array:
    """Streams, secure summation: what v holds after each round, `(A, B, C) = (W, W, e_v)`.

        mu(u) = ||H_T^+ x_T|| / sigma,    H_T[t, s] = e_v W^(t-s+1),    x_T[t] = e_v (W + ... + W^t) e_u

    v's own noise removed (section 3.5). Threat models, Theorem 8, eq (3.2).

    Too small: all-ones is taken for the worst change (Lemma 7), which it is not where M has negative entries. As
    printed the last entry of x_T stops at W^(T-1); mended it is `H_T (1 x e_u)`, as the proof has it.
    """
    W = _fixed(net, "Theorem 8")
    H = _view(list(_responses(W, [attacker], rounds + 1))[1:])
    signals = np.stack([_all_ones(H, u, net.n, short=1 - mended) for u in range(net.n)], axis=1)
    squares = _projected(H, signals, net.n, attacker)
    squares[attacker] = math.nan
    return squares / sigma**2


def threat_theorem_9(net: Topology, attacker: int, rounds: int, sigma: float, *, mended: bool = False) -> Array:
    """Training, secure summation: what the closed neighbourhood of u holds, `(A, B, C) = (W, W, S(N_u))`.

    As Theorem 8 with the rows of u and all its neighbours in place of the attacker's. Threat models, Theorem 9, the
    attacker's own noise removed (section 3.5). All-ones again (Lemma 7), and the same slip in x_T.
    """
    W = _fixed(net, "Theorem 9")

    def square(u: int) -> float:
        members = np.union1d(_heard(W, u), [u])
        H = _view(list(_responses(W, members, rounds + 1))[1:])
        signal = _all_ones(H, u, net.n, short=len(members) * (1 - mended))
        return float(_projected(H, signal[:, None], net.n, attacker)[0])

    return _per_victim(square, net.n, attacker) / sigma**2


def threat_theorem_10(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Training or streams, plain messages: what u itself says, `(A, B, C) = (W, I, e_u)`.

        mu(u) = ||H_T^+ x_T|| / sigma,    H_T[t, s] = e_u W^(t-s),    x_T = H_T (1 x e_u)

    the attacker's own noise removed (section 3.5). Threat models, Theorem 10.

    Too small: the view of v is no post-processing of u's messages alone, for what v hears from others reveals noise
    that is counted as protection here; and all-ones again (Lemma 7).
    """
    W = _fixed(net, "Theorem 10")

    def square(u: int) -> float:
        H = _view(list(_responses(W, [u], rounds)))
        return float(_projected(H, _all_ones(H, u, net.n)[:, None], net.n, attacker)[0])

    return _per_victim(square, net.n, attacker) / sigma**2


def _responses(W: sparse.csr_array, rows: Sequence[int] | NDArray[np.intp], lags: int) -> Iterator[Array]:
    """`W^k` for k = 0, 1, ..., some rows of it."""
    response_PN = np.zeros((len(rows), W.shape[0]))
    response_PN[np.arange(len(rows)), rows] = 1.0
    for _ in range(lags):
        yield response_PN
        response_PN = (W.T @ response_PN.T).T


def _view(blocks_TPN: list[Array]) -> Array:
    """The block lower-triangular H_T: block (t, s) is the response at lag t - s."""
    T, (P, N) = len(blocks_TPN), blocks_TPN[0].shape
    if T * T * P * N > LARGEST:
        raise Unaccountable(f"a view matrix of {T * P} x {T * N}: the published formula is dense; use fewer rounds")
    H = np.zeros((T, P, T, N))
    for t in range(T):
        for s in range(t + 1):
            H[t, :, s] = blocks_TPN[t - s]
    return H.reshape(T * P, T * N)


def _all_ones(H: Array, victim: int, n: int, short: int = 0) -> Array:
    """`H (1 x e_u)`; with `short` rows of the last round repeated from the round before, as eq (3.2) prints it."""
    signal = H[:, victim::n].sum(axis=1)
    if short and len(signal) > short:
        signal[-short:] = signal[-2 * short : -short]
    return signal


def _projected(H: Array, signals: Array, n: int, attacker: int) -> Array:
    """`||H^+ x||^2` of every column x, the attacker's noise removed from H."""
    hidden = np.arange(H.shape[1]) % n != attacker
    return np.square(np.linalg.lstsq(H[:, hidden], signals, rcond=RANK)[0]).sum(axis=0)


def _per_victim(square: Callable[[int], float], n: int, attacker: int) -> Array:
    return np.array([math.nan if u == attacker else square(u) for u in range(n)])


# --- mafalda -------------------------------------------------------------------------------------------------------


def mafalda_theorem_8(
    net: Topology,
    attacker: int | None,
    rounds: int,
    sigma: float,
    *,
    correlation: Array | None = None,
    mended: bool = False,
) -> Array:
    """Noise `C^-1 Z` at every node, plain messages heard by v (None: all messages): the entries of M, made positive.

        mu(u) = 1/sigma sum_{s,t} |(C^T B^+ B C)_(s,u),(t,u)|,    B = P_v W_T (C^-1 x I)

    Unified privacy guarantees for decentralized learning via matrix factorization (MAFALDA), Theorem 8, eq (8) and
    (12), everyone taking part in every round; C = I is DP-D-SGD. v's own noise is known to it, as in appendix A.2.

    As printed the sum bounds the sensitivity; it bounds its square, and mended the root is taken. Then it is sound for
    gradients that are functions of what the attacker has seen; other nodes' gradients are not, seen by one node.
    """
    C = np.eye(rounds) if correlation is None else np.asarray(correlation, dtype=np.float64)
    if attacker is None:
        sums = np.full(net.n, np.abs(C.T @ C).sum())
    else:
        W = _fixed(net, "Theorem 8")
        M_NTT = _projected_squares(W, attacker, C)
        sums = np.abs(M_NTT).sum(axis=(1, 2))
        sums[attacker] = math.nan
    return (sums if mended else sums**2) / sigma**2


def _projected_squares(W: sparse.csr_array, attacker: int, C: Array) -> Array:
    """`C^T B^+ B C` of every node, from an orthonormal basis of the rows of B."""
    n, T = W.shape[0], len(C)
    H = _view(list(_responses(W, _heard(W, attacker), T))).reshape(-1, T, n)
    B = np.einsum("rsn,st->rtn", H, np.linalg.inv(C))
    B[:, :, attacker] = 0.0
    _, sizes, basis = np.linalg.svd(B.reshape(len(B), T * n), full_matrices=False)
    basis_KTN = basis[sizes > RANK * sizes.max(initial=0.0)].reshape(-1, T, n)
    encoded = np.einsum("ktn,ts->nks", basis_KTN, C)
    return encoded.transpose(0, 2, 1) @ encoded


# --- zip-dl --------------------------------------------------------------------------------------------------------


def zip_dl_theorem_5_9(
    net: Topology,
    attacker: int,
    rounds: int,
    zeta: float | Array,
    *,
    lipschitz: float,
    step_size: float,
    mended: bool = False,
) -> Array:
    """Training with zero-sum noise: one growing distance for all victims, over what each model carries of the noise.

        mu^2 = 4 g^2 / (L + 4 g^2 L^2)  sum_{t<T} sum_{w in N_v}  ((2 + 4 g^2 L)^t - 1) / D_w(t)
        D_w(t) = (X_t S X_t^T)_ww,    X_t = blocks (1 - g L)^k (M W)^k C,  k = 1..t

    over the closed neighbourhood of v, with g the step size and L the constant of Assumption 5.6: Biswas et al.,
    Low-cost privacy-preserving decentralized learning (ZIP-DL), PoPETs 2025, Theorem 5.9, eq (11). Terms without noise
    have no numerator either (t = 0) and count as 0.

    As printed S holds zeta^2 (section 5.2); mended it is what Algorithm 1 draws, (g zeta)^2. Assumption 5.6, the growth
    in T and the added-up marginals stay. Remark 5.10: for colluding nodes the sum is over all that any of them hears.
    """
    if not lipschitz > 0:
        raise InputError(f"lipschitz = {lipschitz}", "Assumption 5.6 needs a positive L", "give lipschitz=1.0")
    W = _fixed(net, "Theorem 5.9").toarray()
    g, L = step_size, lipschitz
    spread = np.broadcast_to(np.asarray(zeta, dtype=np.float64), net.n) * (g if mended else 1.0)
    noise_TN = _carried(W, rounds, spread**2, decay=1 - g * L)
    with np.errstate(over="ignore"):
        growth_T = np.power(2 + 4 * g**2 * L, np.arange(rounds)) - 1
    closed = np.union1d(np.flatnonzero(W[attacker]), [attacker])
    total = _ratio(growth_T[:, None], noise_TN[:, closed]).sum()
    return np.full(net.n, 4 * g**2 / (L + 4 * g**2 * L**2) * total)


def zip_dl_theorem_5_12(
    net: Topology, attacker: int, rounds: int, zeta: float | Array, *, mended: bool = False
) -> Array:
    """Averaging with zero-sum noise: u's share in every model the attacker hears of, over the noise in it.

        mu^2(u) = sum_{t<T} sum_{w in N_v}  (W^t)_wu / D_w(t),    D_w(t) as in Theorem 5.9 with L = 0

    ZIP-DL, Theorem 5.12. Its numerator prints the power T in every term; t is meant (Remark 5.13), for with T every
    figure would be infinite. The term t = 0 has no noise: infinite for the neighbours of v, 0 for others.

    As printed the numerator lacks its square, which is loose, since entries of W^t are at most 1; mended it is
    `(W^t)_wu^2`. The marginals of single messages are added up as if they were independent.
    """
    W = _fixed(net, "Theorem 5.12").toarray()
    noise_TN = _carried(W, rounds, np.broadcast_to(np.asarray(zeta, dtype=np.float64), net.n) ** 2, decay=1.0)
    closed = np.union1d(np.flatnonzero(W[attacker]), [attacker])
    shares, total = np.eye(net.n)[closed], np.zeros(net.n)
    for t in range(rounds):
        total += _ratio(shares ** (1 + mended), noise_TN[t, closed, None]).sum(axis=0)
        shares = shares @ W
    return total


def _carried(W: Array, rounds: int, variances_N: Array, decay: float) -> Array:
    """D_w(t) for t = 0..T-1: the noise of t rounds in w's model.

    What node j sends to l enters with W_lj; `C_j` balances j's draws over its closed neighbourhood (zip-dl, eq (7)).
    """
    n = len(W)
    K = np.zeros((n, n))
    for j in range(n):
        around = np.flatnonzero(W[:, j])
        weight = W[j, around]
        balance = np.eye(len(around)) - np.outer(1 / weight, weight) / len(around)
        entering = W[around, j][:, None] * balance
        K[np.ix_(around, around)] += variances_N[j] * entering @ entering.T
    out, power = np.zeros((rounds, n)), np.eye(n)
    for t in range(1, rounds):
        out[t] = out[t - 1] + decay ** (2 * t) * ((power @ K) * power).sum(axis=1)
        power = power @ W
    return out


def _ratio(numerator: Array, denominator: Array) -> Array:
    """a / b, with 0 / 0 = 0 and a / 0 infinite."""
    a, b = np.broadcast_arrays(numerator, denominator)
    return np.where(b > 0, a / np.where(b > 0, b, 1.0), np.where(a > 0, math.inf, 0.0))


# --- small helpers -------------------------------------------------------------------------------------------------


def _fixed(net: Topology, statement: str) -> sparse.csr_array:
    if not net.static:
        raise InputError(f"{net.name} changes", f"{statement} is stated for one W", "use a fixed topology")
    return net.at(0).weights


def _heard(W: sparse.csr_array, node: int) -> NDArray[np.intp]:
    """Whom a node hears, itself left out."""
    row = W.indices[W.indptr[node] : W.indptr[node + 1]]
    return np.sort(row[row != node]).astype(np.intp)


def _unit(n: int, node: int) -> Array:
    return np.eye(1, n, node)[0]
