"""The exact loss from innovations, round by round: best for small graphs, long runs and topologies that change.

Shapes: T rounds, P observations of one round, Q observations of some rounds, X state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from sottovoce.core.threads import one_thread
from sottovoce.privacy.exact.whitening import (
    Array,
    Groups,
    Singular,
    cholesky_,
    products,
    rounding_error,
    starts,
)
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.tracing.linear_system import map_equal_steps


class Filter(NamedTuple):
    """One round of the whitening filter: what whitens observations, P x P, and what they say of the state, P x X."""

    whiten: Array
    gain: Array


def kalman(observation: Observation) -> Groups:
    """M from the innovations: what each round tells that was not known before."""
    filters, rounding = _filters(observation)
    at = starts(observation.steps)

    def weigh(rounds: range, s: int, u_XQ: Array) -> Array:
        weights_PQ = -(filters[s].whiten.T @ (filters[s].gain @ u_XQ))
        if s in rounds:
            here = slice(at[s] - at[rounds.start], at[s + 1] - at[rounds.start])
            weights_PQ[:, here] = filters[s].whiten.T
        return weights_PQ

    for group, M_VTT in products(observation, weigh):
        M_VTT *= 1 + rounding
        yield group, M_VTT


@one_thread()
def _filters(observation: Observation) -> tuple[list[Filter], float]:
    """The filter of every round, and a bound on the relative rounding error."""
    P_XX = np.zeros((observation.steps[0].observed.state.shape[1],) * 2)
    filters: list[Filter] = []
    rounding, begun = 0.0, False
    covariances = map_equal_steps(_covariances, observation.steps)
    for step, (seen_noise, cross, out_noise) in zip(observation.steps, covariances, strict=True):
        H, F = step.observed.state, step.out.state
        HP_PX = H @ P_XX
        S_PP = HP_PX @ H.T + seen_noise
        alive = np.diag(S_PP) > 0
        if not alive.all() and (begun or step.observed.gradient[np.flatnonzero(~alive)].nnz):
            raise Singular("a signal without noise")
        factor = cholesky_(S_PP[np.ix_(alive, alive)])
        whiten, gain = np.zeros((len(S_PP),) * 2), np.zeros(HP_PX.shape[:1] + F.shape[:1])
        if len(factor):
            inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True, check_finite=False)
            whiten[np.ix_(alive, alive)] = inverse
            gain[alive] = inverse @ (HP_PX @ F.T + cross)[alive]
            rounding = max(rounding, rounding_error(factor))
        filters.append(Filter(whiten, gain))
        following = F @ (F @ P_XX.T).T + out_noise - gain.T @ gain
        P_XX = (following + following.T) / 2
        begun = begun or step.takes_gradients
    return filters, len(observation.steps) * rounding


def _covariances(step: ObservedStep) -> tuple[Array, Array, Array]:
    """Of new noise: in what is seen, across, and in the state."""
    Ez, Kz = step.observed.noise, step.out.noise
    return (Ez @ Ez.T).toarray(), (Ez @ Kz.T).toarray(), (Kz @ Kz.T).toarray()
