"""The exact loss from innovations, round by round: best for small graphs, long runs and topologies that change.

Shapes: T rounds, P observations of one round, Q observations of some rounds, X state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from sottovoce.core.arrays import dense_if_small
from sottovoce.privacy.exact.whitening import (
    Array,
    Groups,
    Singular,
    Weigh,
    cholesky_,
    products,
    rounding_error,
    starts,
)
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.support.progress import expect_work, report_work
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import map_equal_steps


class Filter(NamedTuple):
    """One round of the whitening filter: what whitens observations, P x P, and what they say of the state, P x X."""

    whiten: Array
    gain: Array


class Spread(NamedTuple):
    """The covariance of the state given what was observed; and what it would be by itself if no terms could cancel:
    rounding is a share of that."""

    left_XX: Array
    terms_XX: Array


def kalman(observation: Observation) -> Groups:
    """M from the innovations: what each round tells that was not known before."""
    expect_work(2)
    filters, rounding = _filters(observation)
    for group, M_VTT in products(observation, _weigh(observation, filters)):
        M_VTT *= 1 + rounding
        yield group, M_VTT


def _weigh(observation: Observation, filters: list[Filter]) -> Weigh:
    at = starts(observation.steps)

    def weigh(rounds: range, s: int, u_XQ: Array) -> Array:
        weights_PQ = -(filters[s].whiten.T @ (filters[s].gain @ u_XQ))
        if s in rounds:
            here = slice(at[s] - at[rounds.start], at[s + 1] - at[rounds.start])
            weights_PQ[:, here] = filters[s].whiten.T
        return weights_PQ

    return weigh


@one_thread()
def _filters(observation: Observation) -> tuple[list[Filter], float]:
    """The filter of every round, and a bound on relative rounding."""
    nothing = np.zeros((observation.steps[0].observed.state.shape[1],) * 2)
    now = Spread(nothing, nothing)
    filters: list[Filter] = []
    rounding, begun = 0.0, False
    mixtures = map_equal_steps(_mixture, observation.steps)
    for step, mixed in zip(observation.steps, mixtures, strict=True):
        found, error, now = _filter_round(now, mixed, None if begun else step.observed.gradient)
        filters.append(found)
        report_work(1 / len(observation.steps))
        rounding, begun = max(rounding, error), begun or step.takes_gradients
    return filters, len(observation.steps) * rounding


def _filter_round(before: Spread, mixed: Mixture, first: sparse.csr_array | None) -> tuple[Filter, float, Spread]:
    """The filter of one round, its rounding error, and the covariance of the state after the round.

    Before the `first` gradients are taken, observations may be known for sure, but for those that hold one of them.
    """
    H, F, seen_noise, cross, out_noise, sizes = mixed
    P_XX, terms_XX = before
    HP_PX = H @ P_XX
    terms = sizes.seen_noise + _own(sizes.seen, sizes.seen @ terms_XX)
    S_PP = HP_PX @ H.T + seen_noise
    cross_PX = HP_PX @ F.T + cross
    alive = S_PP.diagonal() > 0
    if alive.all():
        factor = cholesky_(S_PP, terms)
        whiten = _inverse_factor(factor)
        gain = whiten @ cross_PX
    else:
        if first is None or first[np.flatnonzero(~alive)].nnz:
            raise Singular("a signal without noise")
        terms = terms[alive]
        factor = cholesky_(S_PP[np.ix_(alive, alive)], terms)
        whiten, gain = np.zeros_like(S_PP), np.zeros_like(cross_PX)
        whiten[np.ix_(alive, alive)] = inverse = _inverse_factor(factor)
        gain[alive] = inverse @ cross_PX[alive]
    following = F @ (F @ P_XX.T).T + out_noise - gain.T @ gain
    after = Spread((following + following.T) / 2, sizes.on @ (sizes.on @ terms_XX.T).T + sizes.out_noise)
    return Filter(whiten, gain), rounding_error(factor, terms if sizes.cancel else None), after


def _own(H: Array | sparse.csr_array, HU_PX: Array) -> Array:
    """The diagonal of `H U H^T`."""
    product = H * HU_PX if isinstance(H, np.ndarray) else H.multiply(HU_PX)
    return np.asarray(product.sum(axis=1)).ravel()


def _inverse_factor(factor: Array) -> Array:
    """Of a lower triangular matrix."""
    return np.asarray(lapack.dtrtri(factor, lower=1)[0]) if len(factor) else factor


class Sizes(NamedTuple):
    """A step's matrices with absolute entries; variances of what is seen; and whether that makes any difference."""

    seen: Array | sparse.csr_array
    on: Array | sparse.csr_array
    seen_noise: Array
    out_noise: Array
    cancel: bool


class Mixture(NamedTuple):
    """A step's matrices: what is seen of the state, how it goes on, and covariances of new noise in both and across."""

    seen: Array | sparse.csr_array
    on: Array | sparse.csr_array
    seen_noise: Array
    cross: Array
    out_noise: Array
    sizes: Sizes


def _mixture(step: ObservedStep) -> Mixture:
    """Of a round. Terms of noise cancel where some have another sign than others."""
    H, F = dense_if_small(step.observed.state), dense_if_small(step.out.state)
    Ez, Kz = step.observed.noise, step.out.noise
    seen_noise, cross, out_noise = ((one @ other.T).toarray() for one, other in ((Ez, Ez), (Ez, Kz), (Kz, Kz)))
    sizes = Sizes(H, F, seen_noise.diagonal(), out_noise, False)
    if any((part.data < 0).any() for part in (step.observed.state, step.out.state, Ez, Kz)):
        sizes = Sizes(abs(H), abs(F), (abs(Ez) @ abs(Ez).T).diagonal(), (abs(Kz) @ abs(Kz).T).toarray(), True)
    return Mixture(H, F, seen_noise, cross, out_noise, sizes)
