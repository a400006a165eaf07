"""The best C with so many bands and columns of norm 1, for any number of rounds: what sampled batches take.

L-BFGS on the entries of the band, each column scaled to norm 1, in time and memory that grow with rounds alone. The
bound: `trace(X^-1 H)` is convex in X, so it lies above its tangent at any X0. With G = X0^-1 H X0^-1, the best scale of
X0, and every X of the class (no diagonal entry above 1, so none above 1 at all),

    trace(X^-1 H)  >=  trace(X0^-1 H)^2 / ( sum of |G| within the band )

Equality holds at the optimum, where G is zero in the band but for its diagonal.

The error: noise `n_t = (z_t - sum_j C[t,t-j] n_{t-j}) / C[t,t]` enters a model along each eigenvector of a symmetric W
as `m_t = lambda (m_{t-1} + n_t)`, and the error is the sum of all E[m_t^2]. What rounds after t will cost is quadratic
in m_t and in the noise of the last few rounds; a pass backwards finds that, a pass forwards the covariances, and both
together the slope `-2 (C G)` in the band, where G = X^-1 H X^-1 and X = C^T C. No matrix has more than a band of C.

Shapes: T rounds, B bands, P = B - 1 earlier rounds, E eigenvalues. C is given by columns: `C_TB[s, j] = C[s+j, s]`.

    >>> from sottovoce.core.topologies import metropolis
    >>> found = banded_columns(metropolis("ring:8"), rounds=400, bands=3)
    >>> round(float(found.independent / found.objective), 2), bool(found.gap < 0.01)
    (2.71, True)
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from sottovoce.core.correlation import Banded
from sottovoce.core.topologies import Topology
from sottovoce.matrix_factorization.workload import EIGENVALUES
from sottovoce.support.limits import Cost
from sottovoce.support.threads import one_thread

Array = NDArray[np.float64]

NUMBERS = 2e8
"""Up to so many rounds times eigenvalues are kept."""

STEPS, AT_ONCE = 400, 10
"""Steps of the search at most, and between two bounds."""

EVALUATIONS, COPIES = 50, 60
"""Of the error in a search, as a rule; and arrays of the size of C that it holds."""

ROUND_SECONDS, BAND_SECONDS, MODE_SECONDS = 4.5e-5, 1e-6, 6e-9
"""Of an evaluation: each round, each round and band, and each round, band and eigenvalue."""

ROUNDING = 1e-9
"""What rounding may add to a bound, relatively: sums of T terms, each right to a few units in the last place."""


@dataclass(frozen=True, eq=False)
class Modes:
    """The eigenvalues of W, how much each counts, and how much the models after each round do."""

    eigenvalues_E: Array
    weights_E: Array
    rounds_T: Array


@dataclass(frozen=True, eq=False)
class BandedError:
    """`trace(X^-1 H)` at a C, with its slope by every entry of the band, by columns."""

    value: float
    slope_TB: Array
    C_TB: Array

    def dual_TB(self) -> Array:
        """`G[s+j, s]` of G = X^-1 H X^-1 within the band, by forward substitution in `C G = -slope / 2`."""
        rows_TB, CG_TB = by_rows(self.C_TB), by_rows(self.slope_TB) / -2
        T, B = rows_TB.shape
        symmetric = np.zeros((T, 2 * B - 1))  # row s: G[s-B+1 .. s+B-1, s]
        for s in range(T):
            for i in range(min(B, T - s)):
                known = symmetric[s, i : i + B - 1] @ rows_TB[s + i, :0:-1]
                symmetric[s, i + B - 1] = (CG_TB[s + i, i] - known) / rows_TB[s + i, 0]
                symmetric[s + i, B - 1 - i] = symmetric[s, i + B - 1]
        return symmetric[:, B - 1 :]


@dataclass(frozen=True, eq=False)
class BandedColumns:
    """A banded C with columns of norm 1 or less, and its proof: no C with so many bands and such columns has less error
    than `lower_bound`.
    """

    C_TB: Array = field(repr=False)
    objective: float
    lower_bound: float
    independent: float
    seconds: float

    @property
    def gap(self) -> float:
        """How far, relatively, the objective may be above the optimum."""
        return max(0.0, self.objective / self.lower_bound - 1.0)

    @property
    def correlation(self) -> Banded:
        """C as the noise takes it."""
        return Banded(self.C_TB)


def modes_of(topology: Topology, rounds: int, objective: str = "all") -> Modes | None:
    """How noise spreads where W is symmetric and does not change; None where it is not, or is too large."""
    counted = np.ones(rounds) if objective != "last" else np.eye(1, rounds, rounds - 1)[0]
    if not topology.static or not topology.at(0).symmetric or topology.n > EIGENVALUES:
        return None
    if objective == "average":
        return Modes(np.ones(1), np.full(1, 1 / topology.n), counted)
    if topology.n * rounds > NUMBERS:
        return None
    found = np.linalg.eigvalsh(topology.at(0).weights.toarray())
    return Modes(found, np.ones(len(found)), counted)


def search_cost(topology: Topology, rounds: int, bands: int) -> Cost:
    """What `banded_columns` takes, of one band a pass over rounds alone."""
    bands, eigenvalues = min(bands, rounds), min(topology.n, EIGENVALUES)
    evaluation = rounds * (ROUND_SECONDS + bands * (BAND_SECONDS + eigenvalues * MODE_SECONDS))
    if bands == 1:
        return Cost(memory=8.0 * rounds, seconds=evaluation)
    memory = 8.0 * rounds * (COPIES * bands + 3 * eigenvalues)
    return Cost(memory=memory, seconds=EVALUATIONS * evaluation)


@one_thread()
def banded_columns(
    topology: Topology,
    *,
    rounds: int,
    bands: int,
    objective: str = "all",
    gap: float = 1e-3,
    modes: Modes | None = None,
) -> BandedColumns:
    """The best C that is found, with a bound that is within `gap` of it unless the search ran out of steps."""
    started = time.perf_counter()
    modes = modes_of(topology, rounds, objective) if modes is None else modes
    assert modes is not None, "banded_columns needs a symmetric W that does not change"
    independent = _independent(modes)
    bands = min(bands, rounds)
    if bands == 1:
        return BandedColumns(np.ones((rounds, 1)), independent, independent, independent, 0.0)
    best, bound = _search(rounds, bands, modes, gap)
    seconds = time.perf_counter() - started
    return BandedColumns(best.C_TB, best.value, bound, independent, seconds)


def _search(rounds: int, bands: int, modes: Modes, gap: float) -> tuple[BandedError, float]:
    lag = np.arange(1, bands)
    x = np.tile(np.cumprod((2 * lag - 1) / (2 * lag)), rounds)  # the square root of prefix sums
    bounds, steps = [0.0], itertools.count(1)

    def stop_within_gap(now: Array) -> None:
        if next(steps) % AT_ONCE == 0:
            here = banded_error(_scaled(now, bands)[0], modes)
            bounds.append(lower_bound(here))
            if here.value <= (1 + gap) * max(bounds):
                raise StopIteration

    found = optimize.minimize(
        _log_error, x, (bands, modes), jac=True, method="L-BFGS-B", callback=stop_within_gap,
        options={"maxiter": STEPS, "ftol": 1e-13, "gtol": 0.0, "maxcor": 20},
    )  # fmt: skip
    best = banded_error(_scaled(found.x, bands)[0], modes)
    return best, max(*bounds, lower_bound(best))


def lower_bound(at: BandedError) -> float:
    """No C with these bands and columns of norm 1 or less has less error than this, wherever a search stands."""
    dual_TB = np.abs(at.dual_TB())
    total = float(dual_TB[:, 0].sum() + 2 * dual_TB[:, 1:].sum())
    return at.value**2 / total * (1 - ROUNDING)


def _log_error(x: Array, bands: int, modes: Modes) -> tuple[float, Array]:
    """The logarithm of the error, and its slope by the entries below the diagonal before columns are scaled."""
    C_TB, norms = _scaled(x, bands)
    found = banded_error(C_TB, modes)
    along = (found.slope_TB * C_TB).sum(axis=1, keepdims=True)
    slope_TB = _cut_off((found.slope_TB - C_TB * along) / norms)
    return float(np.log(found.value)), slope_TB[:, 1:].ravel() / found.value


def _scaled(x: Array, bands: int) -> tuple[Array, Array]:
    """Columns `(1, x)` scaled to norm 1, cut off where the run ends, and the norms before; where in doubt, below 1."""
    below = x.reshape(-1, bands - 1)
    C_TB = _cut_off(np.concatenate([np.ones((len(below), 1)), below], axis=1))
    norms = np.linalg.norm(C_TB, axis=1, keepdims=True) * (1 + 4 * bands * np.finfo(float).eps)
    return C_TB / norms, norms


def _cut_off(columns_TB: Array) -> Array:
    """The same without what would lie after the last round."""
    T, B = columns_TB.shape
    return np.where(np.add.outer(np.arange(T), np.arange(B)) < T, columns_TB, 0.0)


def _independent(modes: Modes) -> float:
    """The error of independent noise of size 1: noise of round s counts in all models from then on."""
    squares, total = modes.eigenvalues_E**2, 0.0
    left = np.zeros(len(squares))
    for counted in modes.rounds_T[::-1]:
        left = squares * (counted + left)
        total += float(modes.weights_E @ left)
    return total


def by_rows(columns_TB: Array) -> Array:
    """`C[t, t-j]` from `C[s+j, s]`."""
    rows_TB = np.zeros_like(columns_TB)
    T, B = columns_TB.shape
    for j in range(B):
        rows_TB[j:, j] = columns_TB[: T - j, j]
    return rows_TB


def by_columns(rows_TB: Array) -> Array:
    """`C[s+j, s]` from `C[t, t-j]`."""
    columns_TB = np.zeros_like(rows_TB)
    T, B = rows_TB.shape
    for j in range(B):
        columns_TB[: T - j, j] = rows_TB[j:, j]
    return columns_TB


def banded_error(C_TB: Array, modes: Modes) -> BandedError:
    """The error of noise of this C, two bands or more, and how it changes with C."""
    rows_TB = by_rows(C_TB)
    back_TP, size_T = rows_TB[:, 1:] / rows_TB[:, :1], 1 / rows_TB[:, 0]
    value, kappa_TE, h_TP = _backward(back_TP, size_T, modes)
    return BandedError(value, by_columns(_forward(back_TP, size_T, modes, kappa_TE, h_TP)), C_TB)


def _backward(back_TP: Array, size_T: Array, modes: Modes) -> tuple[float, Array, Array]:
    """The value, and what the derivative by noise of round t is in models and in noise of the last rounds.

    What is left to pay after round t is `sum_E w (K m^2 + 2 m L p) + p S p` for models m and the last noise p.
    """
    lam, w = modes.eigenvalues_E, modes.weights_E
    (T, P), E = back_TP.shape, len(lam)
    w1, w2 = w * lam, w * lam**2
    kappa_TE, h_TP, value = np.zeros((T, E)), np.zeros((T, P)), 0.0
    K, L, S = np.zeros(E), np.zeros((E, P)), np.zeros((P, P))
    for t in range(T - 1, -1, -1):
        if t < T - 1:
            a = back_TP[t + 1]
            L_next, paid = _through(L, a), lam**2 * K
            slope = w1 @ L_next
            cross = np.multiply.outer(a, slope)
            S = _through(_through(S, a).T, a) + (w @ paid) * np.multiply.outer(a, a) - cross - cross.T
            L = lam[:, None] * L_next - np.multiply.outer(paid, a)
            K = paid
        K = K + modes.rounds_T[t]
        kappa_TE[t] = w1 * K + w * L[:, 0]
        h_TP[t] = w1 @ L + S[0]
        value += size_T[t] ** 2 * float(w2 @ K + 2 * (w1 @ L[:, 0]) + S[0, 0])
    return value, kappa_TE, h_TP


def _through(rows: Array, a: Array) -> Array:
    """Each row, as a linear form in the last noise, one round earlier: the newest is `-a` times those before it."""
    out = np.multiply.outer(-rows[:, 0], a)
    out[:, :-1] += rows[:, 1:]
    return out


def _forward(back_TP: Array, size_T: Array, modes: Modes, kappa_TE: Array, h_TP: Array) -> Array:
    """The slope by rows of C, from covariances of the last noise with itself and with models."""
    lam, (T, P) = modes.eigenvalues_E, back_TP.shape
    N, Q, slope_TB = np.zeros((P + 1, P + 1)), np.zeros((len(lam), P + 1)), np.zeros((T, P + 1))
    for t in range(T):
        a = back_TP[t]
        with_past = -(a @ N[:P])
        own = size_T[t] ** 2 - float(with_past[:P] @ a)
        model = -(Q[:, :P] @ a)
        N[1:, 1:] = N[:-1, :-1].copy()
        N[0, 0], N[0, 1:], N[1:, 0] = own, with_past[:P], with_past[:P]
        Q[:, 1:] = Q[:, :-1] + with_past[:P]
        Q[:, 0] = model + own
        Q *= lam[:, None]
        slope_TB[t] = -2 * size_T[t] * (kappa_TE[t] @ Q + h_TP[t] @ N[:P])
    return slope_TB
