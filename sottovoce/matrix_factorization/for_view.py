"""Beyond the paper: noise that costs least against given nodes or coalitions instead of against everyone.

For C = C(V), V = C^-1 C^-T the covariance of a node's noise over rounds, the exact loss of a view is

    M_u(V) = A_u^T ( B (V x I) B^T )^+ A_u,    mu^2(V) = max over victims u, patterns and directions R of <M_u(V), R>

It is convex in V, and `trace(V H)` is linear: `min mu^2(V) trace(V H)` is a convex problem up to scale. The search runs
over all lower-triangular C, with a p-norm in place of the maximum over victims and `sum |M|`, rounded off at zero, in
place of that over directions. Its certificate: M is matrix-fractional, so with the gradient -N of any convex
combination of its terms at V0, `mu^2(V) >= <N, V0>^2 / <N, V>`, and

    mu^2(V) trace(V H)  >=  <N, V0>^2 / lambda_max(H^-1/2 N H^-1/2)        for every V.

The loss is that of fixed streams (docs/guarantees.md): for training, one node's view of a general graph is no proof.

Shapes: R observations, K directions, T rounds, S sources, V victims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.core.algorithm import Gossip
from sottovoce.core.correlation import Triangular
from sottovoce.core.noise import Temporal
from sottovoce.core.participation import Participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import Unaccountable
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.threads import one_thread
from sottovoce.tracing.policy import check_trace_cost
from sottovoce.tracing.tracer import trace

Array = NDArray[np.float64]

EVALUATIONS, PRODUCT_SECONDS = 500, 2e-9
"""Of the loss in a search, as a rule, and seconds of each product of two numbers in one."""

RANK = 1e-9
"""Directions of what a view observes below this share of the largest are left out of the search, never of accounts."""

NORMS = ((16.0, 0.3), (32.0, 0.1), (64.0, 0.03), (128.0, 0.01), (256.0, 3e-3), (1024.0, 1e-3), (4096.0, 3e-4))
"""How closely the maximum over victims and the absolute value are followed, from coarse to fine."""


@dataclass(frozen=True, eq=False)
class ObservedView:
    """A view as A and B with orthonormal rows of B: R x T x V and R x T x S."""

    A: Array
    B: Array


@dataclass(frozen=True, eq=False)
class ViewOptimum:
    """The C that was found, and a bound on the objective of any other."""

    C: Array
    lower_bound: float


def _gossip(C: Array) -> Gossip:
    """Gossip with noise of size 1, correlated over rounds by C."""
    return Gossip(name="mf-d-sgd", noise=Temporal(1.0, Triangular(C)))


def exact_loss(C: Array, topology: Topology, views: Sequence[View], scheme: Participation) -> float:
    """mu^2 at sigma 1 of the worst victim of these views, from the accountant."""
    system = trace(_gossip(C), topology, rounds=len(C))
    return max(float(routes.squared(observe(system, each), scheme).max()) for each in views)


def proven_for_training(C: Array, topology: Topology, views: Sequence[View]) -> bool:
    """Whether the loss of all these views is proven for training: their views are closed."""
    system = trace(_gossip(C), topology, rounds=len(C))
    return all((status := closedness(system, each)).closed and not status.user_level_only for each in views)


@one_thread()
def optimise_for_views(
    observed: Sequence[ObservedView],
    H: Array,
    scheme: Participation,
    start: Array,
    gap: float,
    progress: Callable[[float], None] | None = None,
) -> ViewOptimum:
    """The C with the least `mu^2 trace(V H)` against views as `observed_views` has them, from `start`."""
    T = len(H)
    problem = _Problem(observed, H, scheme)
    at = np.tril_indices(T)
    C, bound, value = start / np.sqrt(problem.loss(start)), 0.0, np.inf
    for norm, rounding in NORMS:

        def objective(entries: Array, norm: float = norm, rounding: float = rounding) -> tuple[float, Array]:
            trial = np.zeros((T, T))
            trial[at] = entries
            logarithm, slope = problem.value(trial, norm, rounding)
            return logarithm, slope[at]

        found = optimize.minimize(objective, C[at], jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxcor": 30})
        trial = np.zeros((T, T))
        trial[at] = found.x
        bound = max(bound, problem.bound(trial, norm, rounding))
        now = problem.loss(trial) * problem.error(trial)
        if now < value:
            C, value = trial / np.sqrt(problem.loss(trial)), now
        if progress is not None:
            progress(value / bound - 1 if bound else np.inf)
        if value <= (1 + gap) * bound:
            break
    signs = np.sign(np.diag(C))
    return ViewOptimum(C * signs[:, None], bound)


def observed_views(topology: Topology, views: Sequence[View], rounds: int) -> list[ObservedView]:
    """A and B of views without correlation; refused where the search would take too much."""
    gossip = _gossip(np.eye(rounds))
    check_trace_cost(gossip, topology, rounds)
    system = trace(gossip, topology, rounds=rounds)
    others = f" and {len(views) - 1:,} more" if len(views) > 1 else ""
    what = f"choosing noise against {views[0]}{others} over {rounds:,} rounds"
    check_cost(what, _search_cost(observe(system, views[0]), len(views)), "take fewer rounds, or optimise for everyone")
    return [_orthonormal(observe(system, each)) for each in views]


def _search_cost(observation: Observation, views: int) -> Cost:
    """What a search for views like this one takes: by far most of it are products with its rows."""
    rows, sources = observation.rows, len(observation.steps[0].noise_columns)
    columns = len(observation.steps) * sources
    entries = rows * columns
    memory, seconds = 6 * views * entries + 2 * columns**2, PRODUCT_SECONDS * views * entries * rows
    return Cost(memory=8.0 * memory, seconds=EVALUATIONS * seconds)


def _orthonormal(observation: Observation) -> ObservedView:
    """A and B of a view in an orthonormal basis of the noise it observes."""
    rounds, sources = len(observation.steps), len(observation.steps[0].noise_columns)
    if not observation.rows:
        raise Unaccountable(f"{observation.view} receives nothing, so there is no noise to optimise")
    A_RTV, B_RZ = observation.dense()
    left, sizes, right = linalg.svd(B_RZ, full_matrices=False, check_finite=False)
    keep = sizes > RANK * sizes[0]
    A_RTV = np.einsum("rk,rtv->ktv", left[:, keep] / sizes[keep], A_RTV)
    return ObservedView(A_RTV, right[keep].reshape(-1, rounds, sources))


class _Term(NamedTuple):
    """One view, victim and pattern: its loss, and the R with which it is `<M, R>`."""

    view: int
    victim: int
    pattern: NDArray[np.intp]
    value: float
    R: Array


class _Problem:
    """Loss and error as functions of C."""

    def __init__(self, views: Sequence[ObservedView], H: Array, scheme: Participation) -> None:
        self._views, self._H, self._patterns = views, H, scheme.patterns(len(H))

    def error(self, C: Array) -> float:
        """`trace(V H)`."""
        return float(np.vdot(_covariance(C)[1], self._H))

    def loss(self, C: Array) -> float:
        """mu^2 of the worst victim, by `sum |M|`: not below the truth."""
        return max(term.value for term in self._terms(_covariance(C)[1], 0.0)[0])

    def value(self, C: Array, norm: float, rounding: float) -> tuple[float, Array]:
        """Logarithm of the objective and its gradient in C, smoothed."""
        if not np.all(np.diag(C)):
            return np.inf, np.zeros_like(C)
        inverse, V = _covariance(C)
        terms, whitened_views = self._terms(V, rounding)
        values = np.array([term.value for term in terms])
        weights = (values / values.max()) ** (norm - 1)
        loss = values.max() * float(((values / values.max()) ** norm).sum()) ** (1 / norm)
        share = weights * (loss / values.max()) ** (1 - norm)
        N = self._gradient(terms, whitened_views, share, [term.R for term in terms])
        error = float(np.vdot(V, self._H))
        by_V = self._H / error - N / loss
        return float(np.log(loss) + np.log(error)), -2 * np.tril(inverse.T @ by_V @ V)

    def bound(self, C: Array, norm: float, rounding: float) -> float:
        """A lower bound on the objective of every C."""
        _, V = _covariance(C)
        terms, whitened_views = self._terms(V, rounding)
        values = np.array([term.value for term in terms])
        weights = (values / values.max()) ** (norm - 1)
        weights /= weights.sum()
        N = self._gradient(terms, whitened_views, weights, [_correlation(term.R) for term in terms])
        try:
            top = float(linalg.eigh(N, self._H, eigvals_only=True, check_finite=False)[-1])
        except linalg.LinAlgError:
            return 0.0
        return float(np.vdot(N, V)) ** 2 / (top * (1 + 1e-9))

    def _gradient(
        self, terms: list[_Term], whitened_views: list[Array], weights: Array, directions: list[Array]
    ) -> Array:
        """Minus the gradient in V of the weighted sum of `<M, R>`."""
        N = np.zeros_like(self._H)
        for term, weight, R in zip(terms, weights, directions, strict=True):
            if weight > 1e-12:
                B = self._views[term.view].B
                moved = np.tensordot(B, whitened_views[term.view][:, term.pattern, term.victim], axes=(0, 0))
                N += weight * np.tensordot(moved @ R, moved, axes=((1, 2), (1, 2)))
        return N

    def _terms(self, V: Array, rounding: float) -> tuple[list[_Term], list[Array]]:
        """All losses under V, and for each view `(B (V x I) B^T)^-1 A`."""
        terms, whitened_views = [], []
        for number, view in enumerate(self._views):
            K = len(view.B)
            mixed = np.einsum("kts,tu->kus", view.B, V).reshape(K, -1)
            factor = linalg.cho_factor(mixed @ view.B.reshape(K, -1).T, lower=True, check_finite=False)
            whitened = linalg.cho_solve(factor, view.A.reshape(K, -1), check_finite=False).reshape(view.A.shape)
            whitened_views.append(whitened)
            M_VTT = np.einsum("ksv,ktv->vst", view.A, whitened)
            for victim in range(view.A.shape[2]):
                for pattern in self._patterns:
                    M = M_VTT[victim][np.ix_(pattern, pattern)]
                    terms.append(_Term(number, victim, pattern, *_rounded_sum(M, rounding)))
        return terms, whitened_views


def _covariance(C: Array) -> tuple[Array, Array]:
    """C^-1, and the covariance C^-1 C^-T."""
    inverse = linalg.solve_triangular(C, np.eye(len(C)), lower=True, check_finite=False)
    return inverse, inverse @ inverse.T


def _rounded_sum(M: Array, rounding: float) -> tuple[float, Array]:
    """`sum |M|` with its corner at zero rounded, and its gradient R: the sum is `<M, R>`."""
    corner = rounding * float(np.trace(M)) / len(M)
    sizes = np.sqrt(M**2 + corner**2)
    R = np.divide(M, sizes, out=np.ones_like(M), where=sizes > 0)
    np.fill_diagonal(sizes, np.diag(M))
    off = sizes - np.diag(np.diag(M))
    by_corner = float(np.divide(corner, off, out=np.zeros_like(M), where=off > 0).sum())
    np.fill_diagonal(R, 1.0 + rounding / len(M) * by_corner)
    return float(sizes.sum()), (R + R.T) / 2


def _correlation(R: Array) -> Array:
    """The same made semidefinite, with ones on the diagonal."""
    R = R.copy()
    np.fill_diagonal(R, 1.0)
    least = min(0.0, float(linalg.eigvalsh(R, check_finite=False)[0]) - 1e-14)
    return (R - least * np.eye(len(R))) / (1.0 - least)
