"""An orthonormal basis of the noise a view has seen, one message after another: the route that decides about rank.

What is heard again and again (averaging, several gossip steps per gradient) soon looks alike, and what tells it apart
would drown in rounding. So what is known is taken out of the hidden state *before* that state moves on:
`X (I - Q Q^T)`, then `F X`; every later message shows only what is new in it, at its own size. Signals follow the same
eliminations.

Which of these directions are rounding is decided on fractions, in `rank`.

Shapes: X state, Z noise columns, G gradient columns, P observations at once, K directions of the basis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.core.correlation import groups_of
from sottovoce.core.final_models import FinalModels
from sottovoce.core.sparsity import columns_touched, last_row, submatrix
from sottovoce.privacy.exact.rank import rank_of_gossip
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep, reduced_inputs, selected_messages
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import StepMatrices, map_equal_steps

Array = NDArray[np.float64]

ROUNDING = 4 * np.finfo(float).eps

DOUBT = 100.0
"""A row within this many times its rounding error is nothing, and a part of one outside the others is nothing new."""

CLEAR = 1e-7
"""Rounding error of a direction, as a share of it, above which it is not known well enough for an exact figure."""

COVERED = 16.0
"""So many times the largest rounding error of a direction, as a share of it, is added to M."""

UNCOVERED = 1e-7
"""Share of a signal that may lie outside the noise, as rounding, before the loss is infinite."""


class Unknown:
    """The hidden state as a map from noise and gradients, less what has been seen of it: that is spanned by `basis`,
    Z x K, whose directions carry the signals `white`."""

    def __init__(self, noise_XZ: Array, gradient_XG: Array) -> None:
        self.noise, self.gradient = noise_XZ, gradient_XG
        self.error, self.signal = np.zeros(len(noise_XZ)), np.abs(gradient_XG).max(axis=1, initial=0.0)
        self.basis, self.white = np.zeros((noise_XZ.shape[1], 0)), np.zeros((0, gradient_XG.shape[1]))
        self.uncovered = np.zeros(gradient_XG.shape[1], dtype=bool)
        self.doubt = 0.0

    def see(self, shown: sparse.csr_array, noise_PZ: Array, gradient_PG: Array) -> Array:
        """Take note of `shown` of the state, with what joins it; the new directions, Z x K."""
        noise, gradient = shown @ self.noise + noise_PZ, shown @ self.gradient + gradient_PG
        error = self._error(shown, noise)
        signal = np.maximum(abs(shown) @ self.signal + np.abs(gradient_PG).max(axis=1, initial=0.0), 1e-300)
        for _ in range(2):
            again = noise @ self.basis
            noise, gradient = noise - again @ self.basis.T, gradient - again @ self.white
        sizes = np.linalg.norm(noise, axis=1)
        there = sizes > DOUBT * error
        self._bare(gradient[~there], signal[~there])
        if not there.any():
            return np.zeros((noise.shape[1], 0))
        scale = 1 / sizes[there, None]
        rounding = max(ROUNDING, float(np.max(error[there] * scale[:, 0])))
        return self._add(noise[there] * scale, gradient[there] * scale, signal[there] * scale[:, 0], rounding)

    def _add(self, unit_PZ: Array, signal_PG: Array, size_P: Array, rounding: float) -> Array:
        Q_ZP, R_PP, order = linalg.qr(unit_PZ.T, mode="economic", pivoting=True, check_finite=False)
        parts = np.abs(np.diag(R_PP))
        K = max(1, int(np.sum(parts > DOUBT * rounding)))
        dropped = 1.0 if np.any(parts[K:] > DOUBT * ROUNDING) else 0.0
        self.doubt = max(self.doubt, rounding / parts[K - 1], dropped)
        first, others = order[:K], order[K:]
        white = linalg.solve_triangular(R_PP[:K, :K].T, signal_PG[first], lower=True, check_finite=False)
        self._bare(signal_PG[others] - R_PP[:K, K:].T @ white, size_P[others])
        self.basis = np.concatenate([self.basis, Q_ZP[:, :K]], axis=1)
        self.white = np.concatenate([self.white, white])
        return Q_ZP[:, :K]

    def _bare(self, gradient_PG: Array, scale_P: Array) -> None:
        """Signals in messages that hold no new noise."""
        self.uncovered |= (np.abs(gradient_PG) > UNCOVERED * scale_P[:, None]).any(axis=0)

    def _error(self, matrix: sparse.csr_array, noise: Array) -> Array:
        """About how large the rounding error of each row is: errors of many sums add up by their squares."""
        return np.sqrt(matrix.power(2) @ self.error**2 + (ROUNDING * np.linalg.norm(noise, axis=1)) ** 2)

    def without(self, rows: sparse.csr_array, new_ZK: Array) -> Left:
        """What is left of rows of the state, the directions just seen taken out too."""
        noise, gradient = rows @ self.noise, rows @ self.gradient
        size = np.maximum(np.linalg.norm(noise, axis=1), np.abs(gradient).max(axis=1, initial=0.0))
        error = DOUBT * (self._error(rows, noise) + ROUNDING * size)
        known = noise @ new_ZK
        gradient = gradient - known @ self.white[len(self.white) - new_ZK.shape[1] :]
        return Left(np.linalg.norm(noise - known @ new_ZK.T, axis=1), gradient, error)

    def move(self, on: sparse.csr_array, noise_XZ: Array, gradient_XG: Array, new_ZK: Array) -> None:
        """Let the state go on, without the directions just seen."""
        noise, gradient = on @ self.noise + noise_XZ, on @ self.gradient + gradient_XG
        self.error = self._error(on, noise)
        self.signal = abs(on) @ self.signal + np.abs(gradient_XG).max(axis=1, initial=0.0)
        if new_ZK.shape[1]:
            known = noise @ new_ZK
            noise, gradient = noise - known @ new_ZK.T, gradient - known @ self.white[-new_ZK.shape[1] :]
        self.noise, self.gradient = noise, gradient

    def turn(self, sources: int, gradients: int) -> None:
        """Turn the noise so that the state needs no more columns than it has rows, and add those of what is new.

        What was seen is forgotten, for noise that is independent from round to round: no later message holds any of it.
        """
        turned = self.noise
        if turned.shape[1] > turned.shape[0]:
            turned = linalg.qr(turned.T, mode="r", check_finite=False)[0][: len(turned)].T
            self.error = np.hypot(self.error, ROUNDING * np.linalg.norm(turned, axis=1))
        self.noise = np.concatenate([turned, np.zeros((len(turned), sources))], axis=1)
        self.basis = np.zeros((self.noise.shape[1], 0))
        self.gradient = np.concatenate([self.gradient, np.zeros((len(turned), gradients))], axis=1)
        self.uncovered = np.concatenate([self.uncovered, np.zeros(gradients, dtype=bool)])
        self.white = np.zeros((0, self.gradient.shape[1]))


class Left(NamedTuple):
    """What rows still hold when all that was seen is taken out: sizes of noise, gradients, and what is rounding."""

    noise: Array
    gradient: Array
    error: Array


class Entering:
    """What joins each round, over independent noise and all gradients: for what is seen, and for the state.

    `unknown` is the state, which these columns are meant for. Where noise is independent from round to round it is
    `turned` between rounds: columns are what is left of earlier noise and a round's own sources, so that later rounds
    take no longer.
    """

    def __init__(self, observation: Observation) -> None:
        correlation = observation.system.correlation
        self.turned, self._seen = correlation is None, observation
        self._Z = 0 if self.turned else observation.sources
        self._G = 0 if self.turned else len(observation.victims) * observation.gradient_rounds
        self._correlated: list[tuple[Array, NDArray[np.intp]]] = []
        if correlation is not None:
            groups = groups_of(correlation, observation.steps[0].noise_columns)
            self._correlated = [(part.inverse(len(observation.steps)), places) for part, places in groups]
        self.unknown = Unknown(*self._nothing(observation.steps[0].observed.state.shape[1]))

    def _nothing(self, rows: int) -> tuple[Array, Array]:
        """No noise and no gradients."""
        return np.zeros((rows, self._Z)), np.zeros((rows, self._G))

    def __iter__(self) -> Iterator[tuple[tuple[Array, Array], tuple[Array, Array]]]:
        g = z = 0
        for t, step in enumerate(self._seen.steps):
            S, V = step.observed.noise.shape[1], step.observed.gradient.shape[1]
            if self.turned:
                self.unknown.turn(S, V)
                self._Z, self._G = self.unknown.noise.shape[1], self.unknown.gradient.shape[1]
                z = self._Z - S
            yield self._wide(step.observed, t, g, z), self._wide(step.out, t, g, z)
            g, z = g + V, z + S

    def _wide(self, part: Inputs, t: int, g: int, z: int) -> tuple[Array, Array]:
        noise, gradient = self._nothing(part.noise.shape[0])
        S = part.noise.shape[1]
        if not self._correlated:
            noise[:, z : z + S] = part.noise.toarray()
        for inverse_TT, places in self._correlated:
            own = part.noise.toarray()[:, places]
            noise.reshape(len(noise), len(inverse_TT), S)[:, :, places] = inverse_TT[t][None, :, None] * own[:, None, :]
        gradient[:, g : g + part.gradient.shape[1]] = part.gradient.toarray()
        return noise, gradient


class Deflated(NamedTuple):
    """M of every victim, V x T x T, infinite throughout where noise does not cover a signal; the number of directions
    of the noise that were found; and whether all of them stand clear of rounding.
    """

    losses: Array
    rank: int
    clear: bool


@one_thread()
def deflated(observation: Observation) -> Deflated:
    """M by the basis. Dense: small systems."""
    V, T, steps = len(observation.victims), observation.gradient_rounds, observation.steps
    inputs, M_VTT, rank = Entering(observation), np.zeros((V, T, T)), 0
    unknown = inputs.unknown
    for round, (step, (seen_new, out_new)) in enumerate(zip(steps, inputs, strict=True), start=1):
        unknown.move(step.out.state, *out_new, unknown.see(step.observed.state, *seen_new))
        if inputs.turned or round == len(steps):
            begun, rank = unknown.white.shape[1] // V, rank + len(unknown.white)
            white_KTV = unknown.white.reshape(-1, begun, V)
            M_VTT[:, :begun, :begun] += np.einsum("ksv,ktv->vst", white_KTV, white_KTV, optimize=True)
    M_VTT[unknown.uncovered.reshape(T, V).any(axis=0)] = np.inf
    return Deflated(M_VTT * (1 + COVERED * unknown.doubt), rank, unknown.doubt < CLEAR)


class BasisSize(NamedTuple):
    """What a basis of the noise of all rounds takes: entries that are held at once, and multiplications."""

    entries: float
    multiplications: float

    @classmethod
    def of(cls, observation: Observation) -> BasisSize:
        """X state, P observations of a round, Z and G columns of noise and gradients, K directions."""
        each, T = observation.distinct_steps, len(observation.steps)
        X, P = observation.state, max(step.observed.state.shape[0] for step in each)
        G, Z = len(observation.victims) * observation.gradient_rounds, observation.sources
        if observation.system.correlation is not None:
            K = min(observation.rows, Z)
            return cls((K + 2.0 * X) * Z, T * P * (2.0 * K + 4 * P + 2 * X) * Z)
        Z = X + max(step.observed.noise.shape[1] for step in each)
        return cls((2.0 * X + 3 * P) * (Z + G), T * P * (6.0 * P * Z + (P + 2.0 * X) * G / 2))


# --- several gossip steps per gradient -----------------------------------------------------------------------------


def well_conditioned(observation: Observation) -> Observation:
    """The same view where rounds gossip more than once: a basis of what they tell of the first messages."""
    both = zip(observation.system.steps, observation.steps, strict=True)
    steps = map_equal_steps(lambda pair: _basis_step(observation, *pair), both)
    return observation if steps == observation.steps else replace(observation, steps=steps)


def _basis_step(observation: Observation, whole: StepMatrices, step: ObservedStep) -> ObservedStep:
    n = observation.system.n
    if len(whole.sent) < 2 or not _is_gossip(whole):
        return step
    each = [
        selected_messages(sent._replace(rows=sparse.eye_array(n, format="csr")), mixing, observation.view, False)
        for sent, mixing in zip(whole.sent, whole.mixings, strict=True)
    ]
    unknown, heard = Unknown(np.eye(n), np.zeros((n, 0))), np.zeros(n, dtype=bool)
    reach = sparse.eye_array(n, format="csr")
    for chosen, mixing in zip(each, whole.mixings, strict=True):
        nothing = np.zeros((chosen.shape[0], n)), np.zeros((chosen.shape[0], 0))
        unknown.move(mixing.weights, np.zeros((n, n)), np.zeros((n, 0)), unknown.see(chosen, *nothing))
        heard |= columns_touched(sparse.csr_array(abs(chosen) @ reach))
        reach = sparse.csr_array(abs(mixing.weights) @ reach)
    basis = sparse.csr_array(unknown.basis.T)
    if unknown.doubt > CLEAR or rank_of_gossip(zip(each, whole.mixings, strict=True), n) != basis.shape[0]:
        basis = submatrix(sparse.eye_array(n, format="csr"), heard, None)  # each first message by itself tells no less
    messages = reduced_inputs(whole, whole.sent[0].rows, observation.view, observation.victims)
    return replace(step, observed=Inputs(*(sparse.csr_array(basis @ part) for part in messages)))


@once_for_each
def _is_gossip(whole: StepMatrices) -> bool:
    """Whether every node says the same to all, and then a combination of what it received and what it said before."""
    maps, everybody = whole.maps, np.arange(whole.mixings[0].n)
    if any(not np.array_equal(sent.sender, everybody) or np.any(sent.receiver != -1) for sent in whole.sent):
        return False
    fixed = all(mixing is whole.mixings[0] for mixing in whole.mixings)
    for j, said in enumerate(maps.sent[1:]):
        shares, earlier = dict(said), dict(maps.sent[j - 1]) if fixed and j else {}
        received = shares.pop(maps.mixed(j), np.zeros(1))
        others = [shares.get(number, 0.0) / one for number, one in earlier.items()]
        if not received.all() or np.ptp(received) or not shares.keys() <= earlier.keys():
            return False
        if others and np.ptp(others) > ROUNDING * np.max(np.abs(others)):
            return False
    return True


# --- the average of the final models -------------------------------------------------------------------------------

NO_NOISE = 1e-24
"""Share of the variance of terms, none of them cancelling, below which what is left of them is rounding."""


@once_for_each
def noise_cancels_in_average(observation: Observation) -> bool:
    """Whether noise may cancel in the average of the final models: unless all of it goes in with one sign.

    Noise that neighbours share adds to one model what it takes from another, so none of it is in the average. In sums
    over models that are far apart only rounding is left of it, beside noise that may be a million times smaller and is
    all that protects the average. Routes that know squares of noise cannot tell the two apart.
    """
    steps, system = observation.steps, observation.system
    if system.final_models is not FinalModels.AVERAGE or system.correlation is not None or len(steps) < 2:
        return False
    shown, each = steps[-1].observed, dict.fromkeys(steps[:-1])
    if not shown.state.shape[0]:
        return False
    noise = [last_row(shown.noise), *(step.out.noise.data for step in each)]
    carried = [last_row(shown.state), *(step.out.state.data for step in each)]
    same = all((part >= 0).all() for part in noise) or all((part <= 0).all() for part in noise)
    return not (same and all((part >= 0).all() for part in carried))


def average_has_no_noise(observation: Observation) -> bool:
    """Whether all noise cancels in the average of the final models: what rounding leaves of it protects nobody.

    Squared coefficients of noise before the last round are summed as they are, and as they would be if none cancelled,
    until what is left is certain not to be rounding.
    """
    if not noise_cancels_in_average(observation):
        return False
    state, _, noise = map(last_row, observation.steps[-1].observed)
    left, sizes = float(noise @ noise), np.abs(state)
    terms = left
    for step in observation.steps[-2::-1]:
        left += float(np.sum((state @ step.out.noise) ** 2))
        terms += float(np.sum((sizes @ abs(step.out.noise)) ** 2))
        if left > NO_NOISE * terms:
            return False
        state, sizes = state @ step.out.state, sizes @ abs(step.out.state)
    return terms > 0
