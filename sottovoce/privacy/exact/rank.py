"""Ranks, decided on fractions: how many directions the noise of a view has, and which gradients it does not cover.

Rounds are played by the maps of the algorithm, modulo a prime: the rank is never above the true one, and below it only
if the prime divides a minor. A weight of 1/3 is stored as the nearest float. Three of these do not add up to one, so
that the rank of what is stored may be above that of what is meant: both can be asked for. Only where an algorithm
multiplies gradients and their noise by different numbers, its numbers count as they are stored: they differ as soon as
the last digit does.

Noise that is correlated over rounds is, source by source, an invertible combination of fresh noise, and counts as that.

Shapes: Z noise columns, G gradient columns, I = Z + G, N nodes, S sources of a round, E messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.compression import Identity
from sottovoce.core.mixing import Edges, Mixing
from sottovoce.core.noise import Noise, NoiseTerm
from sottovoce.core.noise_sources import Sources
from sottovoce.core.sparsity import submatrix
from sottovoce.errors import Unaccountable
from sottovoce.privacy.observation import Observation, known_of, selected_messages
from sottovoce.privacy.row_space import (
    SIMPLE,
    Echelon,
    Exact,
    Integers,
    Modulo,
    dense,
    meant,
    random_prime,
    times,
)
from sottovoce.privacy.views import View
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, TracedMessages, map_equal_steps
from sottovoce.tracing.round_maps import Combination, RoundMaps

_InFractions: TypeAlias = Callable[[float], Fraction]
"""What a stored number stands for."""

LARGEST, LONGEST = 2_000, 3e8
"""Noise sources up to which a rank is computed of weights as they are stored; multiplications, of fractions."""


class Rank(NamedTuple):
    """The rank of B, the map from noise to observations, and the columns of A, G of them, that are seen without noise:
    some combination of observations has an entry there, and no noise. It is `certain` what is meant if all numbers are
    next to simple fractions, or if some count as they are stored."""

    rank: int
    uncovered: NDArray[np.bool_]
    certain: bool


def exact_rank(observation: Observation, *, stored: bool) -> Rank | None:
    """Of weights as they are `stored`, or of the simple fractions next to them; None where that would take long."""
    system, victims = observation.system, observation.victims
    Z, V = observation.sources, len(victims)
    G = V * observation.gradient_rounds
    work = observation.rows * min(observation.rows, Z) * (Z + G)
    if (Z > LARGEST if stored else work > LONGEST) or not isinstance(system.algorithm.compression, Identity):
        return None

    released, weight = are_released(system), Fraction if stored else meant

    def in_fractions(step: StepMatrices) -> _ExactStep:
        coefficient = weight if released else Fraction
        return _exact_step(step, system.algorithm.noise, observation.view, weight, coefficient)

    modulo, each = Modulo(random_prime()), map_equal_steps(in_fractions, system.steps)
    echelon, nothing = Echelon(modulo, Z, G), np.zeros((Z + G, system.n), np.int64)
    state, z, g = [nothing] * system.steps[0].maps.slots, 0, Z
    for step, exact in zip(system.steps, each, strict=True):
        gradient, noise = nothing.copy(), []
        for part in exact.noise:
            noise.append(np.zeros((Z + G, part.places.shape[1]), np.int64))
            noise[-1][z : z + part.places.shape[0]] = dense(modulo, part)
            z += part.places.shape[0]
        if step.gradients:
            gradient[g + np.arange(V), victims] = 1
            g += V
        state, seen = exact.played(modulo, state, gradient, noise)
        for rows in seen:
            echelon.add(rows.T)
    certain = not stored and (not released or all(exact.is_simple for exact in each))
    return Rank(echelon.rank, echelon.bare, certain)


def are_released(system: LinearSystem) -> bool:
    """Whether all that is sent is a function of the sums of gradients and their noise."""
    return all(step.maps.released for step in dict.fromkeys(system.steps))


def seen_without_noise(observation: Observation) -> NDArray[np.bool_]:
    """Which victims' gradients some combination of observations shows without noise, as they came apart from it.

    Where all that is sent is a function of their sums, there is nothing to compute. Else weights as they are stored and
    those that they stand for are tried, and what shows with either counts.
    """
    system, V = observation.system, len(observation.victims)
    if are_released(system):
        return np.zeros(V, dtype=bool)
    found = [rank for rank in (exact_rank(observation, stored=stored) for stored in (False, True)) if rank is not None]
    if not found:
        raise Unaccountable(
            f"{system.algorithm.name} multiplies gradients and their noise by different numbers, and "
            f"{observation.view} sees too much to tell whether noise cancels somewhere; multiply the sum of both, or "
            "take fewer rounds or a smaller graph"
        )
    return np.any([rank.uncovered.reshape(-1, V).any(axis=0) for rank in found], axis=0)


def rank_of_gossip(steps: Iterable[tuple[sparse.csr_array, Mixing]], n: int) -> int:
    """How many combinations of first messages a view gets in some gossip steps: what it gets of each, and its weights,
    as the simple fractions next to them."""
    modulo = Modulo(random_prime())
    echelon, state_IX = Echelon(modulo, n), np.eye(n, dtype=np.int64)
    for seen, mixing in steps:
        echelon.add(times(modulo, state_IX, _transposed(seen, meant)).T)
        state_IX = times(modulo, state_IX, _transposed(mixing.weights, meant))
    return echelon.rank


# --- a round in fractions ------------------------------------------------------------------------------------------


_Terms: TypeAlias = tuple[tuple[int, Exact], ...]
"""A combination of inputs: which, each with its coefficient at every node on a diagonal."""


class _Gossip(NamedTuple):
    """One gossip step: what is sent and by whom, and what is seen of it and mixed, as matrices over messages,
    transposed.

    `noise` has by number which noise on single messages is on these, and how it is mixed. Of a sum over all there is
    one message, from -1.
    """

    sent: _Terms
    sender: NDArray[np.intp]
    seen: Exact
    weights: Exact
    noise: dict[int, tuple[NDArray[np.intp], Exact]]


class _ExactStep(NamedTuple):
    """A round: the unknown noise, S x N or S x E, in units of each source; its gossip steps; the state after it; and
    what is seen of models that are published then, -1 being their sum."""

    maps: RoundMaps
    noise: tuple[Exact, ...]
    gossip: tuple[_Gossip, ...]
    state_out: tuple[_Terms, ...]
    models: _Terms
    published: tuple[NDArray[np.intp], Exact] | None

    @property
    def is_simple(self) -> bool:
        """Whether all numbers are simple fractions."""
        terms = (*self.state_out, self.models, *(gossip.sent for gossip in self.gossip))
        each = [*self.noise, *(matrix for one in terms for _, matrix in one)]
        each += [matrix for gossip in self.gossip for matrix in (gossip.seen, gossip.weights)]
        return all(value.denominator <= SIMPLE for matrix in each for value in matrix.values)

    def played(
        self, modulo: Modulo, state: list[Integers], gradient: Integers, noise: list[Integers]
    ) -> tuple[list[Integers], list[Integers]]:
        """The state after the round, and what is seen of it, from the state before it and what enters."""

        def combined(terms: _Terms) -> Integers:
            each = (times(modulo, inputs[number], coefficients) for number, coefficients in terms)
            return sum(each, np.zeros_like(gradient)) % modulo.prime

        inputs, seen, on_messages = [*state], [], set().union(*(gossip.noise for gossip in self.gossip))
        if self.maps.takes_gradients:
            own = sum((rows for number, rows in enumerate(noise) if number not in on_messages), np.zeros_like(gradient))
            inputs += [gradient, own % modulo.prime] if self.maps.adds_noise else [(gradient + own) % modulo.prime]
        for gossip in self.gossip:
            said = combined(gossip.sent)
            messages, mixed = said[:, gossip.sender], times(modulo, said, gossip.weights)
            for number, (which, weights) in gossip.noise.items():
                messages = (messages + noise[number][:, which]) % modulo.prime
                mixed = (mixed + times(modulo, noise[number], weights)) % modulo.prime
            inputs.append(mixed)
            seen.append(times(modulo, mixed[:, :1] if gossip.sender[:1].tolist() == [-1] else messages, gossip.seen))
        if self.published is not None:
            (whose, shown), models = self.published, combined(self.models)
            total = models.sum(axis=1, keepdims=True) % modulo.prime
            seen.append(times(modulo, total if whose[:1].tolist() == [-1] else models[:, whose], shown))
        return [combined(slot) for slot in self.state_out], seen


def _exact_step(
    step: StepMatrices, noise: Noise, view: View, weight: _InFractions, coefficient: _InFractions
) -> _ExactStep:
    """A round with its weights and the coefficients of its maps as fractions."""

    def diagonals(combination: Combination) -> _Terms:
        return tuple(
            (number, Exact.near(sparse.diags_array(each, format="csr"), coefficient)) for number, each in combination
        )

    terms = [_term(noise, step.mixings[at], at, sources) for at, sources in step.sources]
    gossip, published = list[_Gossip](), None
    for at, (sent, mixing) in enumerate(zip(step.sent, step.mixings, strict=True)):
        each = sent._replace(rows=sparse.eye_array(len(sent.sender), format="csr"))
        seen = _transposed(selected_messages(each, mixing, view, False), weight)
        if at == len(step.maps.sent):
            published = sent.receiver, seen
            continue
        on_messages = {
            number: _on_messages(term.edges, sent, mixing, weight)
            for number, (term, (of, _)) in enumerate(zip(terms, step.sources, strict=True))
            if of == at and term.edges is not None
        }
        said = diagonals(step.maps.sent[at])
        gossip.append(_Gossip(said, sent.sender, seen, _transposed(mixing.weights, weight), on_messages))
    return _ExactStep(
        step.maps,
        tuple(
            _of_sources(term, ~known_of(of, view), weight) for term, (_, of) in zip(terms, step.sources, strict=True)
        ),
        tuple(gossip),
        tuple(map(diagonals, step.maps.state_out)),
        diagonals(step.maps.models),
        published,
    )


def _term(noise: Noise, mixing: Mixing, at: int, sources: Sources) -> NoiseTerm:
    """The noise that some sources are of; no step has two of one kind."""
    terms = (*(noise.local(mixing) if at == 0 else ()), *noise.edge(mixing, at))
    return next(term for term in terms if term.sources.kind == sources.kind)


def _on_messages(
    edges: Edges, sent: TracedMessages, mixing: Mixing, weight: _InFractions
) -> tuple[NDArray[np.intp], Exact]:
    """Which of the planned messages were sent, and with which weights noise on planned messages is mixed: E x N."""
    sender, receiver, _ = edges
    which = np.searchsorted(sender * mixing.n + receiver, sent.sender * mixing.n + sent.receiver)
    weights = np.asarray(mixing.weights[receiver, sender]).ravel()
    own = sender == receiver  # a receiver's kept weight applies to its own state, which has planned noise
    weights[own] = np.asarray(mixing.sent_weights[receiver[own], sender[own]]).ravel()
    mixed = sparse.csr_array((weights, (np.arange(len(sender)), receiver)), shape=(len(sender), mixing.n))
    return which, Exact.near(mixed, weight)


def _of_sources(term: NoiseTerm, chosen: NDArray[np.bool_], weight: _InFractions) -> Exact:
    """What some sources make of their targets, S x N or S x E, each in units of the largest."""
    found = submatrix(sparse.csr_array(term.matrix.whole().T), chosen, None)
    units = abs(found).max(axis=1).toarray().ravel()
    found.data = found.data / np.repeat(units, np.diff(found.indptr))
    return Exact.near(found, weight)


def _transposed(matrix: sparse.csr_array, weight: _InFractions) -> Exact:
    return Exact.near(sparse.csr_array(matrix.T), weight)
