"""The exact loss from the covariance of all observations, by lags: best while they are few.

With fixed W what is said in a round is a sum of lagged responses to earlier inputs; one sparse product per lag gives
them all, products of repeated rounds are shifts of each other, and one triangular inverse serves all victims.

Shapes: V victims, T rounds, R observations, P observations of one round, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from sottovoce.core.class_correlation import groups_of
from sottovoce.privacy.exact import whitening
from sottovoce.privacy.exact.stationary import settled_
from sottovoce.privacy.exact.whitening import (
    Array,
    Groups,
    Singular,
    cholesky_,
    products,
    quiet_warnings,
    rounding_error,
)
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.support.progress import expect_work, report_work

BOTH = ("gradient", "noise")

CHEAP = 3e9
"""Multiplications that exact passes back in time may take, where one whitening could serve all rounds."""


class Effects:
    """The effects of each round's inputs, gradients and noise, on the observations of that round and of later ones.

    Built from the observations' side: `H F^j` needs one sparse product per lag once rounds repeat, from round `tail` on
    and before round `end`: what is published after the last round makes that another one.
    """

    def __init__(self, observation: Observation) -> None:
        self.steps = observation.steps
        self.end = len(self.steps) - (len(self.steps) > 2 and self.steps[-1] is not self.steps[-2])
        self.tail = self.end - 1
        while self.tail > 0 and self.steps[self.tail - 1] is self.steps[self.tail]:
            self.tail -= 1
        self._rows: dict[tuple[int, int], Array] = {}
        self._blocks: dict[tuple[str, int, int], Array] = {}
        self.starts = whitening.starts(self.steps)
        self._alike = self.tail == 0 and self.end == len(self.steps)
        self._lags: dict[str, Array] = {}

    def _key(self, t: int, s: int) -> tuple[int, int]:
        return (self.tail + t - s, self.tail) if s >= self.tail and t < self.end else (t, s)

    def _of_state(self, t: int, s: int) -> Array:
        """The effect of the state after round s on round t, P x X."""
        t, s = self._key(t, s) if s + 1 >= self.tail else (t, s)
        if (t, s) not in self._rows:
            if t == s + 1:
                self._rows[t, s] = self.steps[t].observed.state.toarray()
            else:
                for later in range(t - 1, s + 1, -1) if t >= self.end and (t, s + 1) not in self._rows else ():
                    self._of_state(t, later)  # from the last on, so that calls do not pile up
                self._rows[t, s] = _times(self._of_state(t, s + 1), self.steps[s + 1].out.state)
        return self._rows[t, s]

    def _block(self, part: str, t: int, s: int) -> Array:
        t, s = self._key(t, s)
        if (part, t, s) not in self._blocks:
            step = self.steps[s]
            if t == s:
                block = getattr(step.observed, part).toarray()
            else:
                block = _times(self._of_state(t, s), getattr(step.out, part))
            self._blocks[part, t, s] = block
        return self._blocks[part, t, s]

    def column(self, part: str, s: int) -> Array:
        """The effect of round s, its `gradient` or its `noise`, on all observations from round s on."""
        if self._alike:
            return self._lagged(part)[: self.starts[len(self.steps) - s]]
        return np.concatenate([self._block(part, t, s) for t in range(s, len(self.steps))])

    def _lagged(self, part: str) -> Array:
        """Effects by lag; those of a few gradients are found along with those of noise."""
        if part not in self._lags:
            self._lags |= _by_lag(self.steps[0], len(self.steps), BOTH if self._few_gradients else (part,))
        return self._lags[part]

    @property
    def _few_gradients(self) -> bool:
        step = self.steps[0]
        return step.observed.gradient.shape[1] < step.observed.noise.shape[1] / 8

    def noise_by_lag(self) -> Iterator[Array]:
        """The effects of noise lag by lag, where all rounds are alike; those of a few gradients are kept on the way.

        Only one lag is alive: on a graph of a million nodes the effects of noise alone are some gigabytes.
        """
        gradients = []
        for found in _lag_by_lag(self.steps[0], len(self.steps), BOTH if self._few_gradients else ("noise",)):
            if self._few_gradients:
                gradients.append(found["gradient"])
            report_work(1 / len(self.steps))
            yield found["noise"]
        if self._few_gradients:
            self._lags["gradient"] = np.concatenate(gradients)

    @cached_property
    def turns_back(self) -> bool:
        """Whether the covariance of effects depends on the sum of their lags alone."""
        return self._alike and turns_back(self.steps[0])

    def signals(self) -> NDArray[np.bool_]:
        """Which observations any gradient reaches."""
        reached = np.zeros(self.starts[-1], dtype=bool)
        for s, step in enumerate(self.steps):
            if step.takes_gradients:
                reached[self.starts[s] :] |= self.column("gradient", s).any(axis=1)
        return reached


def _by_lag(step: ObservedStep, rounds: int, parts: Sequence[str]) -> dict[str, Array]:
    """The effects of some inputs after 0, 1, ... rounds, one below the other, where all rounds are alike."""
    P = step.observed.state.shape[0]
    found = {part: np.empty((rounds * P, getattr(step.observed, part).shape[1])) for part in parts}
    for lag, effects in enumerate(_lag_by_lag(step, rounds, parts)):
        for part, effect in effects.items():
            found[part][lag * P : (lag + 1) * P] = effect
    return found


def _lag_by_lag(step: ObservedStep, rounds: int, parts: Sequence[str]) -> Iterator[dict[str, Array]]:
    """The effects of some inputs after 0, 1, ... rounds, of which one lag is alive."""
    yield {part: getattr(step.observed, part).toarray() for part in parts}
    state_PX = step.observed.state.toarray()
    for lag in range(1, rounds):
        yield {part: np.ascontiguousarray(_times(state_PX, getattr(step.out, part))) for part in parts}
        if lag < rounds - 1:
            state_PX = _times(state_PX, step.out.state)


def _times(dense: Array, matrix: sparse.csr_array) -> Array:
    return np.asarray((matrix.T @ dense.T).T)


def gram(observation: Observation) -> Groups:
    """M from the covariance of all observations; where one whitening serves all rounds, a little above M."""
    expect_work(4)
    effects = Effects(observation)
    factor, alive = _factor(observation, effects)
    report_work(1)
    if not alive.any():
        yield from quiet_warnings(observation)
        return
    rounding = rounding_error(factor)
    if alive.all() and settles(observation) and not are_few(observation, len(factor)):
        groups = settled_(observation, factor, rounding)
        if groups is not None:
            del factor, effects
            yield from groups
            return
        factor, _ = _factor(observation, effects)
    inverse_RR, failed = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    assert not failed
    report_work(1)
    if not alive.all():
        inverse_RR = _with_gaps(inverse_RR, alive)
    if are_few(observation, len(inverse_RR)):
        white_RTV = (inverse_RR @ _signals(observation, effects)).reshape(
            len(inverse_RR), observation.gradient_rounds, -1
        )
        yield slice(None), np.einsum("rsv,rtv->vst", white_RTV, white_RTV) * (1 + rounding)
        return
    at = effects.starts
    del effects

    def weigh(rounds: range, s: int, _: Array) -> Array:
        return inverse_RR[at[rounds.start] : at[rounds.stop], at[s] : at[s + 1]].T

    for group, M_VTT in products(observation, weigh):
        M_VTT *= 1 + rounding
        yield group, M_VTT


def are_few(observation: Observation, rows: int) -> bool:
    """Whether the signals of the victims, whitened one by one, cost less than going back in time for all of them."""
    signals = rows * len(observation.victims)
    return signals < observation.links and signals * observation.gradient_rounds < whitening.RESPONSES


def settles(observation: Observation) -> bool:
    """Whether all rounds are alike, and a pass back in time for each observation would cost more than one whitening."""
    steps, rows = observation.steps, observation.rows
    if (
        len(observation.distinct_steps) > 1
        or not steps[0].takes_gradients
        or observation.system.correlation is not None
    ):
        return False
    passes = len(steps) * (10 * observation.links + len(steps) * len(observation.victims) / 3)
    return max(CHEAP, rows**3) < rows * passes


def _factor(observation: Observation, effects: Effects) -> tuple[Array, NDArray[np.bool_]]:
    """The lower factor of the covariance of those observations that hold noise, and which these are."""
    correlation = observation.system.correlation
    if correlation is None:
        G_RR = _covariance(effects)
    else:
        first = effects.steps[0].noise_columns
        G_RR = np.zeros((effects.starts[-1],) * 2)
        for part, places in groups_of(correlation, first):
            G_RR += _correlated_covariance(effects, part.inverse(len(observation.steps)), places)
    alive = np.diag(G_RR) > 0
    if not alive.all():  # what is said without noise tells nothing as long as it holds no data either
        if np.any(effects.signals() & ~alive):
            raise Singular("a signal without noise")
        G_RR = G_RR[np.ix_(alive, alive)]
    return cholesky_(G_RR), alive


def _signals(observation: Observation, effects: Effects) -> Array:
    """What each gradient of each victim does to all observations, R x (T V)."""
    columns = []
    for s, step in enumerate(observation.steps):
        if step.takes_gradients:
            column = np.zeros((effects.starts[-1], len(observation.victims)))
            column[effects.starts[s] :] = effects.column("gradient", s)
            columns.append(column)
    return np.concatenate(columns, axis=1)


def _with_gaps(matrix: Array, alive: NDArray[np.bool_]) -> Array:
    out = np.zeros((len(alive),) * 2)
    out[np.ix_(alive, alive)] = matrix
    return out


def _covariance(effects: Effects) -> Array:
    """`B B^T`: rounds that repeat add the same products, shifted by one round."""
    starts, tail, end, T = effects.starts, effects.tail, effects.end, len(effects.steps)
    G_RR = np.zeros((starts[-1], starts[-1]))
    stop = starts[end]
    if effects.steps[tail].observed.noise.shape[1]:
        at, width = starts[tail], starts[tail + 1] - starts[tail]
        if effects.turns_back:
            _products_of_lags_(G_RR, effects.noise_by_lag(), width)
        else:
            lags = effects.column("noise", tail)[: stop - starts[tail]]
            np.matmul(lags, lags.T, out=G_RR[at:stop, at:stop])
            report_work(1)
        for t in range(tail + 1, end):
            here, before = slice(starts[t], starts[t + 1]), slice(starts[t - 1], starts[t])
            G_RR[here, at + width : stop] += G_RR[before, at : stop - width]
    if end < T:
        _add_last_round_(G_RR, effects)
    for s in range(tail):
        column = effects.column("noise", s)
        G_RR[starts[s] :, starts[s] :] += column @ column.T
    return G_RR


def _products_of_lags_(G_RR: Array, lags: Iterable[Array], P: int) -> None:
    """Write `lags lags^T` where the product of the effects of lags i and j depends on i + j alone, unless one is 0."""
    T = len(G_RR) // P

    def write(both: int, product_PP: Array) -> None:
        for i in range(max(1, both - T + 1), min(T - 1, both - 1) + 1):
            j = both - i
            G_RR[i * P : (i + 1) * P, j * P : (j + 1) * P] = product_PP

    lags = iter(lags)
    first_PS = before_PS = next(lags)
    G_RR[:P, :P] = first_PS @ first_PS.T
    for lag, now_PS in enumerate(lags, start=1):
        here = slice(lag * P, (lag + 1) * P)
        G_RR[here, :P] = now_PS @ first_PS.T
        G_RR[:P, here] = G_RR[here, :P].T
        if lag > 1:
            write(2 * lag - 1, before_PS @ now_PS.T)
        write(2 * lag, now_PS @ now_PS.T)
        before_PS = now_PS


def turns_back(step: ObservedStep) -> bool:
    """Whether noise enters the state just as state does, by the same factor, through weights that are symmetric.

    With `F = W U` and `K = c F`, U zero or one on the diagonal and `U W U` symmetric, `F (K K^T) = (K K^T) F^T`. So
    `F^i K K^T F^jT` depends on i + j alone: a message takes as much from u to v as from v to u.
    """
    (state, used), (noise, _) = map(_columns_in_use, (step.out.state, step.out.noise))
    if not used.size or not (
        np.array_equal(state.indptr, noise.indptr) and np.array_equal(state.indices, noise.indices)
    ):
        return False
    factor = noise.data[0] / state.data[0]
    if not np.allclose(noise.data, factor * state.data, rtol=4 * np.finfo(float).eps, atol=0.0):
        return False
    within = state.tocsr()[used]
    return bool((within != within.T).nnz == 0)


def _columns_in_use(matrix: sparse.csr_array) -> tuple[sparse.csc_array, NDArray[np.intp]]:
    """Those columns that have entries, and which they are."""
    by_column = sparse.csc_array(matrix)
    by_column.eliminate_zeros()
    by_column.sort_indices()
    used = np.flatnonzero(np.diff(by_column.indptr))
    return by_column[:, used], used


def _add_last_round_(G_RR: Array, effects: Effects) -> None:
    """The covariance of the last round's observations with all others, as far as rounds from `tail` on make it."""
    first, last = effects.starts[effects.tail], effects.starts[effects.end]
    for s in range(effects.tail, len(effects.steps)):
        column = effects.column("noise", s)
        G_RR[last:, effects.starts[s] :] += column[last - effects.starts[s] :] @ column.T
    G_RR[first:last, last:] = G_RR[last:, first:last].T


def _correlated_covariance(effects: Effects, inverse_TT: Array, sources_S: NDArray[np.intp]) -> Array:
    """`B B^T` for noise of these sources, correlated over rounds, one group of sources at a time."""
    R, T = effects.starts[-1], len(effects.steps)
    S = len(sources_S)
    G_RR = np.zeros((R, R))
    size = max(1, int(whitening.RESPONSES / (R * T)))
    for first in range(0, S, size):
        group = sources_S[first : first + size]
        plain = np.zeros((T, len(group), R))
        for s in range(T):
            plain[s, :, effects.starts[s] :] = effects.column("noise", s)[:, group].T
        mixed = np.tensordot(inverse_TT, plain, axes=(0, 0)).reshape(-1, R)
        G_RR += mixed.T @ mixed
        report_work(len(group) / effects.steps[0].observed.noise.shape[1])
    return G_RR
