"""What the papers say: their privacy formulas as they are printed, for comparison only.

Nothing here is a guarantee and nothing calibrates: several of these figures are below what an attacker really learns,
and `published` says so for each victim. All formulas are apart from the tracer, so that the two can be compared.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("muffliato", sigma=1.0), metropolis("path:10"), rounds=10)
    >>> theorem_1 = published(system, "node:0")[0]
    >>> print(theorem_1.guarantees[-1].assumptions[-1])
    BELOW the exact loss by a factor 6.89e+05 in mu^2: not a bound

Every function returns mu^2 for a change of size 1, so that the Renyi divergence is `alpha mu^2 / 2`: one figure per
node in node order, where the attacker's own means nothing. `mended=True` puts right what looks like a slip of the pen,
such as a missing square; errors of substance stay.

Symbols: W mixing weights, n nodes, T rounds, v attacker, u victim, w whoever the attacker hears, H_T what T rounds of
noise do to a view. Shapes: N nodes, T rounds, P observations of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.correlation import ClassCorrelation
from sottovoce.core.final_models import FinalModels
from sottovoce.core.noise import Independent, Temporal, ZeroSum
from sottovoce.core.participation import Participation
from sottovoce.core.sensitivity import relative
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.assumptions import Assumption, AssumptionKind
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import Figure, Guarantee, Kind, TrainingProof
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, ViewKind, parse_view
from sottovoce.privacy.worst_case import GAP
from sottovoce.tracing.linear_system import LinearSystem

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
    reach, total = np.eye(1, net.n, attacker)[0], np.zeros(net.n)
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


def muffliato_theorem_11(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Training with one gossip step a gradient: each gradient's own part in all later messages, added up.

        mu^2(u) = 1/sigma^2  min(T, sum_{k<T} (T - k) sum_{w heard by v}  (W^k)_wu / ||(W^k)_w||^2)

    Theorem 11 of Muffliato's revised text, arXiv 2206.05091. That text could not be had: this is the formula by which
    MAFALDA's authors compute it (github.com/dimiarbre/MFDL), with their limit of T, what everyone learns.

    Its proof was not seen. The numerator has no square, as printed in that code. On no graph that was tried is it below
    the exact loss of fixed streams.
    """
    W, total = _fixed(net, "Theorem 11"), np.zeros(net.n)
    for k, rows_PN in enumerate(_responses(W, _heard(W, attacker), rounds)):
        total += (rounds - k) * (rows_PN / (rows_PN**2).sum(axis=1, keepdims=True)).sum(axis=0)
    return np.minimum(total, rounds) / sigma**2


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
    squares = _all_ones_losses(W, [attacker], rounds, range(net.n), attacker, first=1, short=1 - mended)
    squares[attacker] = math.nan
    return squares / sigma**2


def threat_theorem_9(net: Topology, attacker: int, rounds: int, sigma: float, *, mended: bool = False) -> Array:
    """Training, secure summation: what the closed neighbourhood of u holds, `(A, B, C) = (W, W, S(N_u))`.

    As Theorem 8 with the rows of u and all its neighbours in place of the attacker's. Threat models, Theorem 9, the
    attacker's own noise removed (section 3.5). All-ones again (Lemma 7), and the same slip in x_T.
    """
    W = _fixed(net, "Theorem 9")
    closed = [np.union1d(_heard(W, u), [u]) for u in range(net.n)]
    each = [
        _all_ones_losses(W, rows, rounds, [u], attacker, first=1, short=len(rows) * (1 - mended))
        for u, rows in enumerate(closed)
    ]
    squares = np.concatenate(each)
    squares[attacker] = math.nan
    return squares / sigma**2


def threat_theorem_10(net: Topology, attacker: int, rounds: int, sigma: float) -> Array:
    """Training or streams, plain messages: what u itself says, `(A, B, C) = (W, I, e_u)`.

        mu(u) = ||H_T^+ x_T|| / sigma,    H_T[t, s] = e_u W^(t-s),    x_T = H_T (1 x e_u)

    the attacker's own noise removed (section 3.5). Threat models, Theorem 10.

    Too small: the view of v is no post-processing of u's messages alone, for what v hears from others reveals noise
    that is counted as protection here; and all-ones again (Lemma 7).
    """
    W = _fixed(net, "Theorem 10")
    squares = np.concatenate([_all_ones_losses(W, [u], rounds, [u], attacker) for u in range(net.n)])
    squares[attacker] = math.nan
    return squares / sigma**2


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


def _all_ones_losses(
    W: sparse.csr_array,
    rows: Sequence[int] | NDArray[np.intp],
    rounds: int,
    victims: Sequence[int],
    attacker: int,
    *,
    first: int = 0,
    short: int = 0,
) -> Array:
    """`||H^+ x||^2` with `x = H (1 x e_u)` of each victim u, the attacker's noise removed from H.

    H has some rows of powers of W from the `first` on. With `short` rows of x for the last round repeated from the
    round before, as eq (3.2) prints it.
    """
    n, H = W.shape[0], _view(list(_responses(W, rows, rounds + first))[first:])
    signals = np.stack([H[:, victim::n].sum(axis=1) for victim in victims], axis=1)
    if short and len(signals) > short:
        signals[-short:] = signals[-2 * short : -short]
    hidden = np.arange(H.shape[1]) % n != attacker
    return np.asarray(np.square(np.linalg.lstsq(H[:, hidden], signals, rcond=RANK)[0]).sum(axis=0))


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


# --- beside the exact loss -------------------------------------------------------------------------------------------


class Formula(NamedTuple):
    """A formula: its name, where it stands and how it was read, and what computes mu^2 of every node."""

    name: str
    source: str
    squares: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class Published:
    """A published figure for every victim of a view, with the exact loss of fixed streams beside it, both as mu^2.

    Where that loss is known as a bound only, nothing is said to be below it: `exact` is 0 there.
    """

    name: str
    victims: NDArray[np.intp]
    squares: Array
    exact: Array
    guarantees: tuple[Guarantee, ...]

    @property
    def below(self) -> NDArray[np.bool_]:
        """For which victims the figure is below the exact loss, and so no bound."""
        return _below(self.squares, self.exact)


def published(
    system: LinearSystem,
    adversary: str | View = "everyone",
    *,
    lipschitz: float | None = None,
    victims: Sequence[int] | None = None,
) -> list[Published]:
    """Every formula that its paper states for this algorithm and view: one node, or everyone.

    `lipschitz` is L of ZIP-DL's Assumption 5.6, which nothing in a run determines. For small systems: the formulas of
    the threat models and of MAFALDA are dense.
    """
    adversary = parse_view(adversary, labels=system.topology.names)
    figures = list(formulas(system, adversary, lipschitz=lipschitz))
    if not figures:
        return []
    observation = observe(system, adversary, victims=victims)
    (squares, figure), distances = routes.exact_loss(observation, Participation()), observation.distances()
    if figure is Figure.BOUND:
        squares = np.zeros(len(squares))
    return [_beside(figure, observation, squares, distances) for figure in figures]


def formulas(system: LinearSystem, adversary: View, *, lipschitz: float | None = None) -> Iterator[Formula]:
    """Those formulas, not computed yet."""
    plain = adversary.kind in (ViewKind.EVERYONE, ViewKind.COALITION) and not adversary.secrets_of
    if not plain or len(adversary.members) > 1 or adversary.final_models is not FinalModels.NONE:
        return
    name, noise, net = system.algorithm.name, system.algorithm.noise, system.topology
    if relative(system.algorithm.sensitivity) is not None:
        raise Unaccountable(
            f"{name} on nodes with different sensitivities: the published formulas need one for all nodes"
        )
    attacker = adversary.members[0] if adversary.members else None
    plain = not adversary.secure_sum
    if isinstance(noise, ZeroSum) and attacker is not None and plain and net.static:
        yield from _of_zip_dl(system, attacker, noise, lipschitz)
    if not isinstance(noise, Independent | Temporal):
        return
    sigma = _one_size(noise.sigma, name)
    if name == "muffliato" and attacker is not None and plain:
        yield from _of_averaging(net, attacker, system.rounds, sigma)
    if name in ("dp-d-sgd", "muffliato-sgd"):
        bound = partial(threat_local_bound, net, system.rounds, sigma)
        yield Formula("local bound", "gossip threat models, Lemma 4", bound)
        if attacker is not None and net.static:
            yield from _of_training(system, attacker, sigma, plain)
    if isinstance(system.correlation, ClassCorrelation):
        return
    if name in ("dp-d-sgd", "anti-pgd", "mf-d-sgd", "mafalda") and plain and (net.static or attacker is None):
        C = None if system.correlation is None else system.correlation.matrix(system.rounds)
        formula = partial(mafalda_theorem_8, net, attacker, system.rounds, sigma, correlation=C)
        yield from _variants("mafalda Theorem 8", "MAFALDA, Theorem 8, eq (8)", "no root taken", formula)


def _of_averaging(net: Topology, attacker: int, T: int, sigma: float) -> Iterator[Formula]:
    where, source = (net, attacker, T, sigma), "Muffliato, Theorem 1, eq (6): losses of single messages added up"
    yield Formula("muffliato Theorem 1", source, partial(muffliato_theorem_1, *where))
    if not net.static:
        return
    source = "Muffliato, Corollary 1: by the random walk on the graph"
    yield Formula("muffliato Corollary 1", source, partial(muffliato_corollary_1, *where))
    if net.graph is not None and net.graph.name.startswith("erdos-renyi"):
        source = "Muffliato, Theorem 4: for a secret random graph and orders with alpha (alpha - 1) <= 2 sigma^2"
        yield Formula("muffliato Theorem 4", source, partial(muffliato_theorem_4, *where))


def _of_training(system: LinearSystem, attacker: int, sigma: float, plain: bool) -> Iterator[Formula]:
    where, K = (system.topology, attacker, system.rounds, sigma), system.algorithm.gossip_steps
    if plain:
        added_up = partial(muffliato_theorem_6, *where, gossip_steps=K)
        yield Formula("muffliato Theorem 6", "Muffliato, Theorem 6, eq (9)", added_up)
        if K == 1:
            source = "Muffliato, arXiv 2206.05091 revised, Theorem 11, as MAFALDA's authors compute it"
            yield Formula("muffliato Theorem 11", source, partial(muffliato_theorem_11, *where))
            source = "gossip threat models, Theorem 10: the victim's messages alone, own noise removed"
            yield Formula("threat models Theorem 10", source, partial(threat_theorem_10, *where))
    elif K == 1:
        for number, formula in ((8, threat_theorem_8), (9, threat_theorem_9)):
            source = f"gossip threat models, Theorem {number}, own noise removed"
            yield from _variants(
                f"threat models Theorem {number}", source, "x_T one power short", partial(formula, *where)
            )


def _of_zip_dl(system: LinearSystem, attacker: int, noise: ZeroSum, lipschitz: float | None) -> Iterator[Formula]:
    name, net = system.algorithm.name, system.topology
    where = (net, attacker, system.rounds, noise.zetas(net.at(0)))
    if name == "zip-dl-averaging":
        slip = "the share without its square"
        formula = partial(zip_dl_theorem_5_12, *where)
        yield from _variants("zip-dl Theorem 5.12", "ZIP-DL, Theorem 5.12", slip, formula)
    if name == "zip-dl":
        if lipschitz is None:
            raise Unaccountable(
                "zip-dl Theorem 5.9 needs L of its Assumption 5.6; give lipschitz (for example --lipschitz 1)"
            )
        source = f"ZIP-DL, Theorem 5.9, Assumption 5.6 with L = {lipschitz:g}"
        trained = partial(zip_dl_theorem_5_9, *where, lipschitz=lipschitz, step_size=system.algorithm.step_size)
        yield from _variants("zip-dl Theorem 5.9", source, "variances without the square of the step size", trained)


def _variants(name: str, source: str, slip: str, formula: Callable[..., Array]) -> Iterator[Formula]:
    """A formula as printed, and with its slip mended."""
    yield Formula(name, f"{source}, as printed: {slip}", formula)
    yield Formula(f"{name}, mended", f"{source}, mended", partial(formula, mended=True))


def _beside(figure: Formula, observation: Observation, known: Array, distances: list[int | None]) -> Published:
    victims = observation.victims
    squares, paper = figure.squares()[victims], AssumptionKind.PAPER.of(source=figure.source)
    guarantees = tuple(
        Guarantee(
            int(victim), distance, Kind.AS_PUBLISHED, math.sqrt(square), TrainingProof.NOT_PROVEN,
            (paper, *_shortfall(square, loss)), observation.view, FinalModels.NONE, Figure.CLOSED_FORM,
        )
        for victim, distance, square, loss in zip(victims, distances, squares, known, strict=True)
    )  # fmt: skip
    return Published(figure.name, victims, squares, known, guarantees)


def _below(squares: Array, known: Array) -> NDArray[np.bool_]:
    """The exact figure is rounded up by at most GAP; a shortfall within that proves nothing."""
    return squares < known * (1 - 2 * GAP)


def _shortfall(square: float, loss: float) -> tuple[Assumption, ...]:
    """By how much a figure is below the exact loss, if it is."""
    if not _below(np.array(square), np.array(loss)):
        return ()
    by = f" by a factor {loss / square:.3g} in mu^2" if square else f", 0 against mu = {math.sqrt(loss):.3g}"
    return (AssumptionKind.BELOW_EXACT_LOSS.of(by=by),)


def _one_size(sigma: float | tuple[float, ...], name: str) -> float:
    sizes = np.unique(sigma)
    if len(sizes) > 1:
        raise Unaccountable(
            f"{name} with sigma {sizes[0]:g} to {sizes[-1]:g}: the published formulas need one for all nodes"
        )
    if sizes[0] == 0:
        raise Unaccountable(f"{name} without noise: the published formulas divide by sigma")
    return float(sizes[0])
