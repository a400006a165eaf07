"""Whitened observations: the filter that makes them round by round, and the losses of all victims from them.

Whitened observations are `L^-1 O`, `L L^T` being the covariance of O. The row of `L^-1` for round t weighs the
rounds s <= t by blocks `C[t, s]`; what a gradient of round s does to it follows by going back in time,

    u <- u F_s + C[t, s] H_s,        whitened response = u K_s + C[t, s] E_s   (u before the step),

with `H, E` what is seen of state and gradients, `F, K` how the state goes on. There are as many rows as observations,
however many victims there are; all victims come out of one pass.

The filter (`kalman`) knows `C[t, s]` by the gain of each round: best for small graphs, long runs and topologies that
change.

Shapes: V victims, T gradient rounds, P observations of one round, Q observations of the rounds at hand, X state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from sottovoce.core.arrays import dense_if_small
from sottovoce.errors import SottovoceError
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.support.threads import WORKERS, chunks, one_thread
from sottovoce.tracing.linear_system import map_equal_steps

Array = NDArray[np.float64]

CONDITION = 1e-6
"""A covariance with a pivot below this share of its diagonal is left to the orthogonal route."""

IN_CACHE = 128
"""Observations carried back in time together: more of them fall out of the processor's cache."""

LOSSES_AT_ONCE = 2.5e8
"""About how many entries of M may be alive at once: two gigabytes."""

RESPONSES = 1.2e8
"""About how many whitened responses may be alive at once."""

EPS = float(np.finfo(float).eps)

Groups = Iterator[tuple[slice, Array]]
"""M of some victims after others: which, and V x T x T."""

Weigh = Callable[[range, int, Array], Array]
"""`C[t, s]^T` for the observations of some rounds t, P x Q; given those rounds, s, and u^T so far."""


class Singular(SottovoceError):
    """The covariance of the observations is too close to singular for this route."""


def cholesky_(G_RR: Array, variances: Array | None = None) -> Array:
    """The lower factor, written over a covariance that nobody needs any more.

    `variances` are those from which it is what earlier observations leave; if there are none, its own.
    """
    if not len(G_RR):
        return G_RR
    variances = G_RR.diagonal().copy() if variances is None else variances
    factor, failed = lapack.dpotrf(G_RR.T, lower=1, overwrite_a=1)
    if failed:
        raise Singular("no Cholesky factor")
    if np.any(factor.diagonal() ** 2 < CONDITION * variances):
        raise Singular("nearly singular")
    return np.asarray(factor)


def rounding_error(factor: Array, terms: Array | None = None) -> float:
    """A bound on the relative error that rounding leaves in quantities whitened by this factor.

    `terms` are the variances of what was summed, if that is more than what is left of it in the factored covariance.
    """
    variances = np.einsum("ij,ij->i", factor, factor) if terms is None else terms
    ratios = variances / factor.diagonal() ** 2
    return 4 * len(factor) * EPS * float(ratios.max(initial=0.0))


def inverse_factor(factor: Array) -> Array:
    """Of a lower triangular matrix."""
    return np.asarray(lapack.dtrtri(factor, lower=1)[0]) if len(factor) else factor


def starts(steps: tuple[ObservedStep, ...]) -> NDArray[np.intp]:
    """Where the observations of each round begin."""
    return np.concatenate([[0], np.cumsum([step.observed.state.shape[0] for step in steps])]).astype(np.intp)


def reached(observation: Observation, *, each: bool = False) -> list[NDArray[np.bool_]]:
    """Of each round, which observations any gradient reaches, P x 1, or `each` victim's, P x V, unless terms cancel."""

    def entering(part: Inputs) -> Array:
        return abs(part.gradient).toarray() if each else np.asarray(abs(part.gradient).sum(axis=1))[:, None]

    X, V = observation.steps[0].observed.state.shape[1], len(observation.victims)
    touched, found = np.zeros((X, V if each else 1)), []
    for step in observation.steps:
        sent, on = (abs(part.state) @ touched for part in (step.observed, step.out))
        if step.takes_gradients:
            sent, on = sent + entering(step.observed), on + entering(step.out)
        touched = (on > 0).astype(float)
        found.append(sent > 0)
    return found


# --- all victims, back in time -------------------------------------------------------------------------------------


def losses(observation: Observation, weigh: Weigh) -> Groups:
    """M of all victims, from the rows of `L^-1`; as many victims at once as memory allows."""
    V, T, steps = len(observation.victims), observation.gradient_rounds, observation.steps
    size = max(1, min(V, int(LOSSES_AT_ONCE / T**2)))
    blocks = list(_consecutive(starts(steps), max(1, min(IN_CACHE, int(RESPONSES / (size * T))))))
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        for group in chunks(V, size):
            back = backwards(observation, group)
            M_VTT = np.zeros((group.stop - group.start, T, T))
            some = list(chunks(len(M_VTT), -(-len(M_VTT) // WORKERS)))
            for together in chunks(len(blocks), WORKERS):
                for white_TVQ in pool.map(partial(responses, observation, weigh, back), blocks[together]):
                    list(pool.map(partial(_add_products_, M_VTT, white_TVQ), some))
            yield group, M_VTT


def _add_products_(M_VTT: Array, white_TVQ: Array, some: slice) -> None:
    """Add the products of the responses of some victims."""
    begun, white = len(white_TVQ), white_TVQ[:, some]
    M_VTT[some, :begun, :begun] += white.transpose(1, 0, 2) @ white.transpose(1, 2, 0)


def _consecutive(at: NDArray[np.intp], rows: int) -> Iterator[range]:
    """Rounds one after the other, together of at most so many observations where one alone is not more."""
    begin = 0
    for end in range(1, len(at)):
        if end == len(at) - 1 or at[end + 1] - at[begin] > rows:
            if at[end] > at[begin]:
                yield range(begin, end)
            begin = end


Back = tuple[sparse.csr_array | Array, ...]
"""Of every round what takes `u` and `C[t, s]`, one below the other, to the next u and to whitened responses."""


def backwards(observation: Observation, group: slice) -> Back:
    """For the gradients of some victims."""

    def transposed(step: ObservedStep) -> sparse.csr_array | Array:
        some = group if step.takes_gradients else slice(0)
        rows = [[part.state, part.gradient.tocsc()[:, some]] for part in (step.out, step.observed)]
        return dense_if_small(sparse.block_array(rows).T.tocsr())

    return map_equal_steps(transposed, observation.steps)


def responses(observation: Observation, weigh: Weigh, back: Back, rounds: range) -> Array:
    """Whitened responses of some rounds' observations to every impulse so far, T x V x Q."""
    at, steps, found = starts(observation.steps), observation.steps, []
    u_XQ = np.zeros((steps[rounds.stop - 1].out.state.shape[0], int(at[rounds.stop] - at[rounds.start])))
    for s in range(rounds.stop - 1, -1, -1):
        moved = np.asarray(back[s] @ np.concatenate([u_XQ, weigh(rounds, s, u_XQ)]))
        X = steps[s].out.state.shape[1]
        u_XQ = moved[:X]
        if steps[s].takes_gradients:
            found.append(moved[X:])
    return np.stack(found[::-1])


# --- the filter, round by round ------------------------------------------------------------------------------------


class Filter(NamedTuple):
    """One round of the filter: what whitens its observations, P x P, and what they say of the state, P x X."""

    whiten: Array
    gain: Array


def kalman(observation: Observation) -> Groups:
    """M from the innovations: what each round tells that was not known before."""
    filters, rounding = _filters(observation)
    at = starts(observation.steps)

    def weigh(rounds: range, s: int, u_XQ: Array) -> Array:
        weights_PQ = -(filters[s].whiten.T @ (filters[s].gain @ u_XQ))
        if s in rounds:
            weights_PQ[:, at[s] - at[rounds.start] : at[s + 1] - at[rounds.start]] = filters[s].whiten.T
        return weights_PQ

    for group, M_VTT in losses(observation, weigh):
        M_VTT *= 1 + rounding
        yield group, M_VTT


@one_thread()
def _filters(observation: Observation) -> tuple[list[Filter], float]:
    """The filter of every round, and a bound on relative rounding.

    Next to the covariance of the state given what was observed goes what it would be by itself if no terms could
    cancel: rounding is a share of that.
    """
    left_XX = terms_XX = np.zeros((observation.steps[0].observed.state.shape[1],) * 2)
    filters: list[Filter] = []
    rounding = 0.0
    mixtures = map_equal_steps(_mixtures, observation.steps)
    for (mixed, sizes), told in zip(mixtures, reached(observation), strict=True):
        terms = sizes.seen_noise.diagonal() + np.asarray((sizes.seen @ terms_XX * sizes.seen).sum(axis=1))
        found, factor, alive = _filter(mixed, left_XX, terms, told[:, 0])
        left_XX = mixed.moved(left_XX) - found.gain.T @ found.gain
        left_XX, terms_XX = (left_XX + left_XX.T) / 2, sizes.moved(terms_XX)
        rounding = max(rounding, rounding_error(factor, None if sizes is mixed else terms[alive]))
        filters.append(found)
    return filters, len(filters) * rounding


def _filter(
    mixed: _Mixture, left_XX: Array, terms: Array, told: NDArray[np.bool_]
) -> tuple[Filter, Array, NDArray[np.bool_]]:
    """The filter of one round, its factor, and which observations are not known for sure: none that is `told`."""
    seen_PX = mixed.seen @ left_XX
    covariance_PP = (mixed.seen @ seen_PX.T).T + mixed.seen_noise
    alive = covariance_PP.diagonal() > 0
    if np.any(told & ~alive):
        raise Singular("a signal without noise")
    factor = cholesky_(covariance_PP[np.ix_(alive, alive)], terms[alive])
    whiten_PP = np.zeros_like(covariance_PP)
    whiten_PP[np.ix_(alive, alive)] = inverse_factor(factor)
    return Filter(whiten_PP, whiten_PP @ ((mixed.on @ seen_PX.T).T + mixed.cross)), factor, alive


class _Mixture(NamedTuple):
    """A step's matrices: what is seen of the state, how it goes on, and covariances of new noise in both and across."""

    seen: Array | sparse.csr_array
    on: Array | sparse.csr_array
    seen_noise: Array
    cross: Array
    out_noise: Array

    @classmethod
    def of(cls, seen: Inputs, out: Inputs) -> _Mixture:
        both = ((seen.noise, seen.noise), (seen.noise, out.noise), (out.noise, out.noise))
        covariances = ((one @ other.T).toarray() for one, other in both)
        return cls(dense_if_small(seen.state), dense_if_small(out.state), *covariances)

    def moved(self, state_XX: Array) -> Array:
        """The covariance of the state after the round, from that before it."""
        return np.asarray(self.on @ (self.on @ state_XX).T) + self.out_noise


def _mixtures(step: ObservedStep) -> tuple[_Mixture, _Mixture]:
    """Of a round, and of absolute values: the same object where all are positive, so that nothing can cancel."""
    mixed = _Mixture.of(step.observed, step.out)
    if all((part.data >= 0).all() for inputs in (step.observed, step.out) for part in (inputs.state, inputs.noise)):
        return mixed, mixed
    seen, out = (Inputs(*map(abs, inputs)) for inputs in (step.observed, step.out))
    return mixed, _Mixture.of(seen, out)
