"""The exact loss from the covariance of all observations, by lags: best while they are few.

What is said in a round is a sum of lagged responses to earlier inputs; with fixed W one sparse product per lag gives
them all, products of repeated rounds are shifts of each other, and one triangular inverse serves all victims.

Shapes: V victims, T rounds, R observations, P observations of one round, S noise sources, X state.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce.core.correlation import Correlation, groups_of
from sottovoce.privacy.exact import whitening
from sottovoce.privacy.exact.whitening import (
    Array,
    Groups,
    Singular,
    cholesky_,
    inverse_factor,
    losses,
    reached,
    rounding_error,
    starts,
)
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.support.threads import chunks
from sottovoce.tracing.linear_system import map_equal_steps

Columns = list[list[Array]]
"""For each round, what its inputs do to the observations of that round and of each later one."""


def gram(observation: Observation) -> Groups:
    """M from the covariance of all observations."""
    few = are_few(observation)
    columns, at = effects(observation, gradients=few), starts(observation.steps)
    G_RR = covariance(observation, columns)
    alive = np.diag(G_RR) > 0
    if np.any(np.concatenate(reached(observation))[:, 0] & ~alive):
        raise Singular("a signal without noise")
    factor = cholesky_(G_RR[np.ix_(alive, alive)])
    rounding = rounding_error(factor)
    inverse_RR = np.zeros((len(alive),) * 2)
    inverse_RR[np.ix_(alive, alive)] = inverse_factor(factor)

    def weigh(rounds: range, s: int, _: Array) -> Array:
        return inverse_RR[at[rounds.start] : at[rounds.stop], at[s] : at[s + 1]].T

    for group, M_VTT in _products(observation, columns, inverse_RR) if few else losses(observation, weigh):
        M_VTT *= 1 + rounding
        yield group, M_VTT


def are_few(observation: Observation) -> bool:
    """Whether the signals of the victims, whitened one by one, cost less than going back in time for all of them."""
    signals = observation.rows * len(observation.victims)
    return signals < observation.links and signals * observation.gradient_rounds < whitening.RESPONSES


def effects(observation: Observation, *, gradients: bool) -> Columns:
    """The effects of noise and, one column more for each victim, of gradients if asked for.

    They are found from the observations' side, lag by lag: `H F^j` is one sparse product for all rounds that are alike,
    and their effects are one object.
    """

    def entering(inputs: Inputs) -> sparse.csr_array:
        return sparse.csr_array(sparse.hstack([inputs.noise, inputs.gradient])) if gradients else inputs.noise

    steps = observation.steps
    out = map_equal_steps(lambda step: entering(step.out), steps)
    shown = map_equal_steps(lambda step: step.observed.state.toarray(), steps)
    found = [[block] for block in map_equal_steps(lambda step: entering(step.observed).toarray(), steps)]
    for _ in range(1, len(steps)):
        known: dict[tuple[int, ObservedStep], tuple[Array, Array]] = {}
        after = []
        for s, shown_PX in enumerate(shown[1:]):
            key = id(shown_PX), steps[s]
            if key not in known:
                known[key] = _times(shown_PX, out[s]), _times(shown_PX, steps[s].out.state)
            found[s].append(known[key][0])
            after.append(known[key][1])
        shown = tuple(after)
    return found


def _times(dense: Array, matrix: sparse.csr_array) -> Array:
    return np.asarray((matrix.T @ dense.T).T)


def _products(observation: Observation, columns: Columns, inverse_RR: Array) -> Groups:
    """M of a few victims at once, from what their gradients do to all observations."""
    V, at, signals = len(observation.victims), starts(observation.steps), list[Array]()
    for s, step in enumerate(observation.steps):
        if step.takes_gradients:
            signals.append(inverse_RR[:, at[s] :] @ np.concatenate([block[:, -V:] for block in columns[s]]))
    white_RTV = np.stack(signals, axis=1)
    yield slice(None), np.einsum("rsv,rtv->vst", white_RTV, white_RTV)


def covariance(observation: Observation, columns: Columns) -> Array:
    """`B B^T`: rounds that repeat, from round `tail` on, add the same products, shifted by one round.

    What is published after the last round makes that another one, which begins at `end`.
    """
    steps, at = observation.steps, starts(observation.steps)
    if (correlation := observation.system.correlation) is not None:
        return _correlated_covariance(observation, correlation, columns)
    T = len(steps)
    last = T - (T > 1 and steps[-1] is not steps[-2])
    tail = next(t for t in range(last) if all(step is steps[t] for step in steps[t:last]))
    begin, end, width = at[tail], at[last], at[tail + 1] - at[tail]
    G_RR = np.zeros((at[-1], at[-1]))
    lags = _noise(observation, columns, tail)[: end - begin]
    np.matmul(lags, lags.T, out=G_RR[begin:end, begin:end])
    for row in range(begin + width, end, width or 1):
        G_RR[row : row + width, begin + width : end] += G_RR[row - width : row, begin : end - width]
    for s in range(T):
        column = _noise(observation, columns, s) if s < tail or last < T else np.zeros((0, 0))
        if s < tail:
            G_RR[at[s] :, at[s] :] += column @ column.T
        elif last < T:
            G_RR[end:, at[s] :] += column[end - at[s] :] @ column.T
    G_RR[begin:end, end:] = G_RR[end:, begin:end].T
    return G_RR


def _noise(observation: Observation, columns: Columns, s: int) -> Array:
    """What the noise of a round does to all observations from it on."""
    S = observation.steps[s].observed.noise.shape[1]
    return np.concatenate([block[:, :S] for block in columns[s]])


def _correlated_covariance(observation: Observation, correlation: Correlation, columns: Columns) -> Array:
    """`B B^T` for noise that is correlated over rounds, some sources after others."""
    at, T = starts(observation.steps), len(observation.steps)
    G_RR = np.zeros((at[-1], at[-1]))
    for part, places in groups_of(correlation, observation.steps[0].noise_columns):
        inverse_TT = part.inverse(T)
        for some in chunks(len(places), int(whitening.RESPONSES / (at[-1] * T))):
            plain = np.zeros((T, some.stop - some.start, at[-1]))
            for s in range(T):
                plain[s, :, at[s] :] = _noise(observation, columns, s)[:, places[some]].T
            mixed = np.tensordot(inverse_TT, plain, axes=(0, 0)).reshape(-1, at[-1])
            G_RR += mixed.T @ mixed
    return G_RR
