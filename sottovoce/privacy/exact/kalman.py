"""The exact loss from innovations, round by round: best for small graphs, long runs and topologies that change.

Shapes: T rounds, P observations of one round, Q observations of some rounds, X state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from sottovoce.core.arrays import dense_if_small
from sottovoce.core.final_models import FinalModels
from sottovoce.core.progress import expect_work, report_work
from sottovoce.core.threads import one_thread
from sottovoce.privacy.exact.elimination import begins_alike
from sottovoce.privacy.exact.whitening import (
    SPARSE,
    Array,
    Groups,
    Singular,
    Weigh,
    add_products_,
    cholesky_,
    products,
    products_work,
    responses,
    rounding_error,
    search_work,
    starts,
)
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.privacy.views import View
from sottovoce.tracing.linear_system import map_equal_steps


class Filter(NamedTuple):
    """One round of the whitening filter: what whitens observations, P x P, and what they say of the state, P x X."""

    whiten: Array
    gain: Array


class Spread(NamedTuple):
    """The covariance of the state: given what was observed, and by itself. Rounding is a share of the second."""

    left_XX: Array
    whole_XX: Array


class Innovations(NamedTuple):
    """What a filter has found for rounds that are all alike: M before it is rounded up, and where the filter stood."""

    step: ObservedStep
    victims: NDArray[np.intp]
    filters: list[Filter]
    before_last: Spread
    M_VTT: Array
    rounding: float


Known = dict[View, Innovations]
"""Of views without final models: those with them see the same, and then the models."""


def kalman(observation: Observation, apart: int = 1, known: Known | None = None) -> Groups:
    """M from the innovations: what each round tells that was not known before. Of rounds `apart`, see `products`.

    What is found for all victims at once is noted in `known`, and used where it is there. A view with final models is
    then always found in two parts, so that its figures do not depend on which views came before, in any bit.
    """
    earlier = None if known is None else _without_models(observation, apart, known)
    if earlier is not None:
        yield slice(None), _with_models(observation, apart, earlier)
        return
    expect_work(_filter_work(observation) + products_work(observation) + search_work(observation))
    filters, before_last, rounding = _filters(observation)
    first, view = observation.steps[0], observation.view
    alike = view.final_models is FinalModels.NONE and all(step is first for step in observation.steps)
    for group, M_VTT in products(observation, _weigh(observation, filters), apart):
        if known is not None and len(M_VTT) == len(observation.victims) and alike:
            known[view] = Innovations(first, observation.victims, filters, before_last, M_VTT.copy(), rounding)
        M_VTT *= 1 + rounding
        yield group, M_VTT


def _without_models(observation: Observation, apart: int, known: Known) -> Innovations | None:
    """What is known of a view's rounds, which are alike, before it sees final models; None where there are none."""
    T, first, last = len(observation.steps), observation.steps[0], observation.steps[-1]
    if observation.view.final_models is FinalModels.NONE or T < 2:
        return None
    if any(step is not first for step in observation.steps[:-1]) or not begins_alike(first, last):
        return None
    view = replace(observation.view, final_models=FinalModels.NONE)
    before = replace(observation, view=view, steps=(first,) * T)
    if view not in known or not _is_about(known[view], before):
        for _ in kalman(before, apart, known):
            pass
    return known[view] if view in known and _is_about(known[view], before) else None


def _is_about(earlier: Innovations, observation: Observation) -> bool:
    """Whether the same victims were seen in as many rounds that are stored alike."""
    step = observation.steps[0]
    same = len(earlier.filters) == len(observation.steps) and np.array_equal(earlier.victims, observation.victims)
    return same and begins_alike(earlier.step, step) and begins_alike(step, earlier.step)


def _with_models(observation: Observation, apart: int, earlier: Innovations) -> Array:
    """M of a view that sees models after the last round: their innovations are added."""
    T, seen = len(observation.steps), earlier.step.observed.state.shape[0]
    last, error, _ = _filter(earlier.before_last, _mixture(observation.steps[-1]))
    observation = replace(observation, steps=(*(earlier.step,) * (T - 1), observation.steps[-1]))
    weigh = _weigh(observation, [*earlier.filters[:-1], last])
    white_TVQ = responses(observation, weigh, slice(None), range(T - 1, T))
    M_VTT = earlier.M_VTT.copy()
    add_products_(M_VTT, white_TVQ[:, :, seen:], apart, slice(None))
    M_VTT *= 1 + max(earlier.rounding, T * error)
    return M_VTT


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
def _filters(observation: Observation) -> tuple[list[Filter], Spread, float]:
    """The filter of every round, the covariance of the state before the last, and a bound on relative rounding."""
    nothing = np.zeros((observation.steps[0].observed.state.shape[1],) * 2)
    now = before_last = Spread(nothing, nothing)
    filters: list[Filter] = []
    rounding, begun, each = 0.0, False, _filter_work(observation) / len(observation.steps)
    mixtures = map_equal_steps(_mixture, observation.steps)
    for step, mixture in zip(observation.steps, mixtures, strict=True):
        before_last = now
        found, error, now = _filter(now, mixture, None if begun else step.observed.gradient)
        filters.append(found)
        report_work(each)
        rounding, begun = max(rounding, error), begun or step.takes_gradients
    return filters, before_last, len(observation.steps) * rounding


def _filter_work(observation: Observation) -> float:
    """About how many multiplications the filters of all rounds take."""
    T, step = len(observation.steps), observation.steps[-1]
    X, rows = step.out.state.shape[0], float(starts(observation.steps)[-1])
    return 2 * rows * X**2 + 4 * SPARSE * T * step.out.state.nnz * X


def _filter(before: Spread, mixture: _Mixture, first: sparse.csr_array | None = None) -> tuple[Filter, float, Spread]:
    """The filter of one round, its rounding error, and the covariance of the state after the round.

    Before the `first` gradients are taken, observations may be known for sure, but for those that hold one of them.
    """
    H, F, seen_noise, cross, out_noise = mixture
    P_XX, whole_XX = before
    HP_PX = H @ P_XX
    variances = seen_noise.diagonal() + _own(H, H @ whole_XX)
    S_PP = HP_PX @ H.T + seen_noise
    cross_PX = HP_PX @ F.T + cross
    alive = S_PP.diagonal() > 0
    if alive.all():
        factor = cholesky_(S_PP, variances)
        whiten = _inverse(factor)
        gain = whiten @ cross_PX
    else:
        if first is None or first[np.flatnonzero(~alive)].nnz:
            raise Singular("a signal without noise")
        factor = cholesky_(S_PP[np.ix_(alive, alive)], variances[alive])
        whiten, gain = np.zeros_like(S_PP), np.zeros_like(cross_PX)
        whiten[np.ix_(alive, alive)] = inverse = _inverse(factor)
        gain[alive] = inverse @ cross_PX[alive]
    following = F @ (F @ P_XX.T).T + out_noise - gain.T @ gain
    after = Spread((following + following.T) / 2, F @ (F @ whole_XX.T).T + out_noise)
    return Filter(whiten, gain), rounding_error(factor), after


def _own(H: Array | sparse.csr_array, HU_PX: Array) -> Array:
    """The diagonal of `H U H^T`."""
    product = H * HU_PX if isinstance(H, np.ndarray) else H.multiply(HU_PX)
    return np.asarray(product.sum(axis=1)).ravel()


def _inverse(factor: Array) -> Array:
    """Of a lower triangular matrix."""
    return np.asarray(lapack.dtrtri(factor, lower=1)[0]) if len(factor) else factor


class _Mixture(NamedTuple):
    """A step's matrices: what is seen of the state, how it goes on, and covariances of new noise in both and across."""

    seen: Array | sparse.csr_array
    on: Array | sparse.csr_array
    seen_noise: Array
    cross: Array
    out_noise: Array


def _mixture(step: ObservedStep) -> _Mixture:
    Ez, Kz = step.observed.noise, step.out.noise
    covariances = ((Ez @ Ez.T).toarray(), (Ez @ Kz.T).toarray(), (Kz @ Kz.T).toarray())
    return _Mixture(dense_if_small(step.observed.state), dense_if_small(step.out.state), *covariances)
