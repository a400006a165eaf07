"""What the whitening routes share: a Cholesky factor to be trusted, its rounding error, the products of all victims.

Whitened observations are `L^-1 O`, `L L^T` being the covariance of O. The row of `L^-1` for round t weighs the
rounds s <= t by blocks `C[t, s]`; what a gradient of round s does to it follows by going back in time,

    u <- u F_s + C[t, s] H_s,        whitened response = u K_s + C[t, s] E_s   (u before the step),

with `H, E` what is seen of state and gradients, `F, K` how the state goes on. There are as many rows as observations,
however many victims there are; all victims come out of one pass.

Shapes: V victims, T gradient rounds, P observations of one round, Q observations of the rounds at hand, X state.
"""

from __future__ import annotations

import itertools
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
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.support.memo import once_for_each
from sottovoce.support.progress import report_work
from sottovoce.support.threads import WORKERS, one_thread
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

PARTS = 4
"""Parts of a product that threads take: as many on every machine, so that no bit depends on it."""

ALONE = 1e8
"""Up to so many products a thread is through with them before another one has begun."""

EPS = float(np.finfo(float).eps)

Groups = Iterator[tuple[slice, Array]]
"""M of some victims after others: which, and V x T x T."""

Weigh = Callable[[range, int, Array], Array]
"""`C[t, s]^T` for the observations of some rounds t, P x Q; given those rounds, s, and u^T so far."""


class Singular(SottovoceError):
    """The covariance of the observations is too close to singular for this route."""


def quiet_warnings(observation: Observation) -> Groups:
    """M where nothing is heard that could tell anything."""
    yield slice(None), np.zeros((len(observation.victims), observation.gradient_rounds, observation.gradient_rounds))


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


def starts(steps: tuple[ObservedStep, ...]) -> NDArray[np.intp]:
    """Where the observations of each round begin."""
    return np.concatenate([[0], np.cumsum([step.observed.state.shape[0] for step in steps])]).astype(np.intp)


def products(observation: Observation, weigh: Weigh) -> Groups:
    """M of all victims, from the rows of `L^-1`; as many victims at once as memory allows. It is one unit of work."""
    V, T = len(observation.victims), observation.gradient_rounds
    size = max(1, min(V, int(LOSSES_AT_ONCE / T**2)))
    passes = -(-V // size)
    size = -(-V // passes)
    at = starts(observation.steps)
    rows = max(1, min(IN_CACHE, int(RESPONSES / (size * T))))
    widest = max(rows, int(np.diff(at).max()))
    blocks = list(_consecutive(at, rows))
    workers = min(WORKERS, len(blocks)) if size * T**2 * float(at[-1]) > ALONE else 1
    rooms = [np.empty(T * size * widest) for _ in range(workers)]
    with one_thread(), ThreadPoolExecutor(workers) as pool:
        spread = pool.map if workers > 1 else map
        for first in range(0, V, size):
            group = slice(first, min(V, first + size))
            back = _backwards(observation, group)
            M_VTT = np.zeros((group.stop - first, T, T))
            for begin in range(0, len(blocks), workers):
                together = blocks[begin : begin + workers]
                shaped = [
                    _shaped(room, observation.steps, len(M_VTT), at, block)
                    for room, block in zip(rooms, together, strict=False)
                ]
                for white_TVQ in spread(partial(_responses, observation, weigh, back), together, shaped):
                    list(spread(partial(_add_products_, M_VTT, white_TVQ), shares(len(M_VTT), workers)))
                report_work(len(together) / len(blocks) / passes)
            yield group, M_VTT


def _add_products_(M_VTT: Array, white_TVQ: Array, some: slice) -> None:
    """Add the products of the responses of some victims."""
    begun, white = len(white_TVQ), white_TVQ[:, some]
    M_VTT[some, :begun, :begun] += white.transpose(1, 0, 2) @ white.transpose(1, 2, 0)


def shares(count: int, parts: int) -> list[slice]:
    ends = np.linspace(0, count, parts + 1).astype(int)
    return [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]


def _shaped(room: Array, steps: tuple[ObservedStep, ...], V: int, at: NDArray[np.intp], rounds: range) -> Array:
    """Room for the responses of some rounds' observations to the impulses so far, T x V x Q."""
    begun = sum(step.takes_gradients for step in steps[: rounds.stop])
    width = int(at[rounds.stop] - at[rounds.start])
    return room[: begun * V * width].reshape(begun, V, width)


def _consecutive(at: NDArray[np.intp], rows: int) -> Iterator[range]:
    """Rounds one after the other, together of at most so many observations where one alone is not more."""
    begin = 0
    for end in range(1, len(at)):
        if end == len(at) - 1 or at[end + 1] - at[begin] > rows:
            if at[end] > at[begin]:
                yield range(begin, end)
            begin = end


class _Back(NamedTuple):
    """A step's matrices, transposed, with the gradients of some victims."""

    state: sparse.csr_array | Array
    seen_state: sparse.csr_array | Array
    gradient: sparse.csr_array | Array | None
    columns: NDArray[np.intp] | None
    sent: NDArray[np.intp]
    heard_gradient: sparse.csr_array | Array

    @classmethod
    def of(cls, step: ObservedStep, group: slice) -> _Back:
        """Where gradients enter the state just as state does (`K = F` by columns), one product serves for both."""
        some = group if step.takes_gradients else slice(0)
        state, gradient = step.out.state.T.tocsr(), step.out.gradient.T.tocsr()[some]
        columns = _same_rows(gradient, state)
        seen_gradient = step.observed.gradient.T.tocsr()[some]
        sent = np.flatnonzero(np.diff(seen_gradient.indptr))
        apart = dense_if_small(gradient) if columns is None else None
        seen_state, heard_gradient = step.observed.state.T.tocsr(), seen_gradient[sent]
        return cls(
            dense_if_small(state), dense_if_small(seen_state), apart, columns, sent, dense_if_small(heard_gradient)
        )


def _backwards(observation: Observation, group: slice) -> tuple[_Back, ...]:
    """Every round, transposed, with the gradients of some victims."""
    if len(observation.victims[group]) == len(observation.victims):
        return map_equal_steps(_with_all_victims, observation.steps)
    return map_equal_steps(partial(_Back.of, group=group), observation.steps)


@once_for_each
def _with_all_victims(step: ObservedStep) -> _Back:
    return _Back.of(step, slice(None))


def _same_rows(few: sparse.csr_array, many: sparse.csr_array) -> NDArray[np.intp] | None:
    """Where the rows of one matrix stand in another, in order; None unless all do."""
    places = {_row(many, i): i for i in reversed(range(many.shape[0]))}
    found = [places.get(_row(few, i)) for i in range(few.shape[0])]
    return None if None in found else np.array(found, dtype=np.intp)


def _row(matrix: sparse.csr_array, i: int) -> tuple[bytes, bytes]:
    part = slice(matrix.indptr[i], matrix.indptr[i + 1])
    order = np.argsort(matrix.indices[part])
    return matrix.indices[part][order].tobytes(), matrix.data[part][order].tobytes()


def responses(observation: Observation, weigh: Weigh, group: slice, rounds: range) -> Array:
    """Whitened responses of some rounds' observations to the gradients of some victims, T x V x Q."""
    back = _backwards(observation, group)
    at = starts(observation.steps)
    V, width = len(observation.victims[group]), int(at[rounds.stop] - at[rounds.start])
    begun = sum(step.takes_gradients for step in observation.steps[: rounds.stop])
    return _responses(observation, weigh, back, rounds, np.empty((begun, V, width)))


def _responses(
    observation: Observation, weigh: Weigh, back: tuple[_Back, ...], rounds: range, white_TVQ: Array
) -> Array:
    """Whitened responses of some rounds' observations to every impulse so far, written into `white_TVQ`."""
    u_XQ = np.zeros((back[rounds.stop - 1].state.shape[1], white_TVQ.shape[2]))
    number = len(white_TVQ)
    for s in range(rounds.stop - 1, -1, -1):
        step = back[s]
        weights_PQ = weigh(rounds, s, u_XQ)
        moved = np.asarray(step.state @ u_XQ)
        if observation.steps[s].takes_gradients:
            number -= 1
            if step.columns is not None:
                np.take(moved, step.columns, axis=0, out=white_TVQ[number], mode="clip")
            else:
                white_TVQ[number] = step.gradient @ u_XQ
            white_TVQ[number, step.sent] += step.heard_gradient @ weights_PQ
        moved += step.seen_state @ weights_PQ
        u_XQ = moved
    return white_TVQ
