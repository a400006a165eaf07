"""The best C with so many bands and columns of norm 1, for any number of rounds: what sampled batches take.

L-BFGS on the entries of the band, each column scaled to norm 1, in time and memory that grow with rounds alone. The
bound: `trace(X^-1 H)` is convex in X, so it lies above its tangent at any X0. With G = X0^-1 H X0^-1, the best scale of
X0, and every X of the class (no diagonal entry above 1, so none above 1 at all),

    trace(X^-1 H)  >=  trace(X0^-1 H)^2 / ( sum of |G| within the band )

Equality holds at the optimum, where G is zero in the band but for its diagonal.

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
from sottovoce.matrix_factorization.banded_error import BandedError, Modes, banded_error
from sottovoce.support.limits import Cost
from sottovoce.support.threads import one_thread

Array = NDArray[np.float64]

EIGENVALUES = 8000
"""Up to this many nodes the spectrum of a symmetric W is computed."""

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
