"""What an adversary observes of a traced system, with the columns that it knows removed.

A view selects messages; the gradients and the noise of its members, and the secrets they share, are known to it. What
remains is the linear system that its loss is computed from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from sottovoce.core.arrays import given_array
from sottovoce.core.correlation import unrolled_inverse
from sottovoce.core.final_models import FinalModels
from sottovoce.core.graphs import Graph
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise_sources import Sources
from sottovoce.core.sparsity import columns_touched, rows_touching, submatrix
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.covering_views import as_sums
from sottovoce.privacy.final_models import published
from sottovoce.privacy.views import View, ViewKind, everyone
from sottovoce.support.memo import once_for_each
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, TracedMessages, map_equal_steps

EVERYONE = everyone()


class Inputs(NamedTuple):
    """A matrix split by what its columns stand for."""

    state: sparse.csr_array
    gradient: sparse.csr_array
    noise: sparse.csr_array


@dataclass(frozen=True, eq=False)
class ObservedStep:
    """One round as the adversary sees it: what it gets, and how the hidden state goes on, less what it knows.

    `point` is where gradients are taken, as combinations of the state before the round; None where none are.
    """

    observed: Inputs
    out: Inputs
    point: sparse.csr_array | None
    noise_columns: NDArray[np.intp]
    takes_gradients: bool


@dataclass(frozen=True, eq=False)
class Observation:
    """A traced system through the eyes of a view. Equal rounds share one object.

    `victims` are the nodes whose gradients are unknown; they are the gradient columns of every step that takes any.
    """

    system: LinearSystem
    view: View
    victims: NDArray[np.intp]
    steps: tuple[ObservedStep, ...]

    def dense(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A (rows, gradient rounds, victims) and B, unrolled; for small systems."""
        rounds = [t for t, step in enumerate(self.steps) if step.takes_gradients]
        V = len(self.victims)
        g, z = 0, V * len(rounds)
        units = np.eye(z + self.sources)
        state, rows = np.zeros((self.steps[0].observed.state.shape[1], len(units))), []
        for step in self.steps:
            G, Z = step.observed.gradient.shape[1], step.observed.noise.shape[1]
            inputs = np.concatenate([state, units[g : g + G], units[z : z + Z]])
            g, z = g + G, z + Z
            rows.append(sparse.hstack(step.observed, format="csr") @ inputs)
            state = sparse.hstack(step.out, format="csr") @ inputs
        O = np.concatenate(rows)
        A, B = O[:, : V * len(rounds)].reshape(len(O), len(rounds), V), O[:, V * len(rounds) :]
        correlation = self.system.correlation
        if correlation is not None:
            B = B @ unrolled_inverse(correlation, len(self.steps), self.steps[0].noise_columns)
        return A, B

    def distances(self) -> list[int | None]:
        """Hops from each victim to the nearest member, along the direction messages travel; None if none arrive."""
        graph, members = self.system.topology.graph, list(self.view.members)
        if graph is None or not members:
            return [None] * len(self.victims)
        hops = csgraph.dijkstra(_hearing(graph), unweighted=True, indices=members, min_only=True)
        return [int(h) if math.isfinite(h) else None for h in hops[self.victims].tolist()]

    @cached_property
    def picks(self) -> tuple[sparse.csr_array, ...]:
        """For each round the matrix that takes its messages, gossip steps one below the other, to what is observed.

        For views as `observe` makes them, without `own`. Final models are no messages of a round, and are refused.
        """
        if self.view.final_models is not FinalModels.NONE:
            raise Unaccountable(f"{self.view}: only messages were recorded; leave out the final models")
        return map_equal_steps(lambda step: _pick(step, self.view, self.victims), self.system.steps)

    @cached_property
    def distinct_steps(self) -> tuple[ObservedStep, ...]:
        """The rounds that differ, in their order."""
        return tuple(dict.fromkeys(self.steps))

    @cached_property
    def gradient_rounds(self) -> int:
        """In how many rounds gradients enter."""
        return sum(step.takes_gradients for step in self.steps)

    @cached_property
    def rows(self) -> int:
        """How much is observed, over all rounds."""
        return sum(step.observed.state.shape[0] for step in self.steps)

    @cached_property
    def state(self) -> int:
        """How many components the state has, at most."""
        return max(max(step.out.state.shape) for step in self.distinct_steps)

    @cached_property
    def links(self) -> int:
        """By how many weights the state goes on in a round, at most."""
        return max(int(step.out.state.nnz) for step in self.distinct_steps)

    @cached_property
    def sources(self) -> int:
        """How many noise sources are unknown, over all rounds."""
        return sum(step.observed.noise.shape[1] for step in self.steps)


@once_for_each
def _hearing(graph: Graph) -> sparse.csr_array:
    """`adjacency[j, i]`: whom each node hears; in the form in which paths are sought."""
    return sparse.csr_array(graph.adjacency.T).astype(float)


def observe(
    system: LinearSystem, adversary: View, *, own: bool = False, victims: Sequence[int] | None = None
) -> Observation:
    """What `adversary` sees of `system`, as far as it concerns `victims` (None: every node that is not a member of it).

    With `own`, also what its members say, which they know anyway. Where nodes get sums over neighbours, so does it.
    """
    adversary.check(system.n)
    _check_edges(system, adversary)
    adversary = as_sums(adversary, system)
    if adversary.kind is ViewKind.ANY_COALITION:
        raise InputError(
            f"view {adversary}", "this needs one adversary, and the view stands for many", "name its nodes"
        )
    concerned = np.setdiff1d(np.arange(system.n), adversary.members)
    if victims is not None:
        named = _node_numbers(victims, system.n)
        own_side = np.setdiff1d(named, concerned)
        if own_side.size:
            raise InputError(
                f"victim {own_side[0]} belongs to {adversary}", "an adversary knows its own data", "name another"
            )
        concerned = np.unique(named)
    steps = map_equal_steps(lambda step: _observe_step(step, adversary, concerned, own), system.steps)
    seen = published(system, adversary)
    if seen is not system:
        last = seen.steps[-1]  # the final models are its last messages
        models = _message_inputs(last, -1, adversary, _unknown_columns(last, adversary, concerned), False)
        observed = _stacked([steps[-1].observed, _holding_anything(models)[0]])
        steps = (*steps[:-1], replace(steps[-1], observed=observed))
    return Observation(seen, adversary, concerned, steps)


def _node_numbers(victims: Sequence[int], n: int) -> NDArray[np.intp]:
    """Victims as numbers of nodes; refuses those that are not there."""
    found = given_array(victims, "victims")
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InputError(
            f"victims of {found.dtype} and shape {found.shape}", "they must be numbers of nodes", "give a list"
        )
    missing = found[(found < 0) | (found >= n)]
    if missing.size:
        raise InputError(f"victim {missing[0]}", f"nodes are 0..{n - 1}", "choose one of them")
    return found.astype(np.intp)


def with_own_messages(observation: Observation) -> Observation:
    """`observe` with `own` and all victims, from what was observed without."""
    system, view = observation.system, observation.view
    everybody = len(observation.victims) == system.n - len(view.members)
    if everybody and (view.secure_sum or view.kind is not ViewKind.COALITION):  # it gets the same with `own`
        return observation
    return observe(system, view, own=True)


def _check_edges(system: LinearSystem, adversary: View) -> None:
    """Refuse to tap where no edge is."""
    graph = system.topology.graph
    for a, b in adversary.edges:
        if a == b or (graph is not None and graph.adjacency[a, b] == 0):
            raise InputError(f"{adversary} taps {a}>{b}", "the graph has no such edge", "name one of its edges")


def _observe_step(step: StepMatrices, adversary: View, victims: NDArray[np.intp], own: bool) -> ObservedStep:
    if replace(adversary, final_models=FinalModels.NONE) == EVERYONE and len(victims) == step.mixings[0].n:
        return _seen_by_everyone(step)
    return _seen(step, adversary, victims, own)


@once_for_each
def _seen_by_everyone(step: StepMatrices) -> ObservedStep:
    """Who hears everything and knows no secrets sees the same of a round in every system that has it."""
    return _seen(step, EVERYONE, np.arange(step.mixings[0].n), False)


def _seen(step: StepMatrices, adversary: View, victims: NDArray[np.intp], own: bool) -> ObservedStep:
    observation, _ = _informative(step, adversary, victims, own)
    unknown = _unknown_columns(step, adversary, victims)
    out = _reduced(step.split(step.state_out), None, unknown)
    point = None if step.point is None else step.split(step.point)[0]
    return ObservedStep(observation, out, point, np.flatnonzero(unknown.noise), bool(step.gradients))


def _informative(
    step: StepMatrices, adversary: View, victims: NDArray[np.intp], own: bool
) -> tuple[Inputs, NDArray[np.bool_]]:
    """What the adversary gets in a round, and which rows of it hold anything that it does not know."""
    unknown, each = _unknown_columns(step, adversary, victims), range(len(step.sent))
    return _holding_anything(_stacked([_message_inputs(step, number, adversary, unknown, own) for number in each]))


def _holding_anything(inputs: Inputs) -> tuple[Inputs, NDArray[np.bool_]]:
    """The rows that have any entry, and which they are."""
    there = np.sum([np.diff(part.indptr) for part in inputs], axis=0) > 0
    return Inputs(*(submatrix(part, there, None) for part in inputs)), there


def _message_inputs(step: StepMatrices, number: int, adversary: View, unknown: _Unknown, own: bool) -> Inputs:
    """What the adversary gets in one gossip step. Messages are split by their inputs once for all views."""
    sent, mixing = step.sent[number], step.mixings[number]
    rows = _selected_rows(sent, mixing, adversary, own)
    return _reduced(step.split(_sums(sent, mixing, adversary) if rows is None else sent.rows), rows, unknown)


def _stacked(inputs: Sequence[Inputs]) -> Inputs:
    if len(inputs) == 1:
        return inputs[0]
    return Inputs(*(sparse.vstack(parts, format="csr") for parts in zip(*inputs, strict=True)))


def _pick(step: StepMatrices, adversary: View, victims: NDArray[np.intp]) -> sparse.csr_array:
    each = [
        selected_messages(
            sent._replace(rows=sparse.eye_array(sent.rows.shape[0], format="csr")), mixing, adversary, False
        )
        for sent, mixing in zip(step.sent, step.mixings, strict=True)
    ]
    _, there = _informative(step, adversary, victims, False)
    return sparse.csr_array(sparse.block_diag(each, format="csr"))[np.flatnonzero(there)]


def reduced_inputs(step: StepMatrices, rows: sparse.csr_array, adversary: View, victims: NDArray[np.intp]) -> Inputs:
    """Rows of a round by their inputs, without what the adversary knows."""
    return _reduced(step.split(rows), None, _unknown_columns(step, adversary, victims))


class _Unknown(NamedTuple):
    """Which gradients and which noise of a round the adversary is to learn about."""

    gradient: NDArray[np.bool_]
    noise: NDArray[np.bool_]


def _unknown_columns(step: StepMatrices, adversary: View, victims: NDArray[np.intp]) -> _Unknown:
    of_victims = np.zeros(step.gradients, dtype=bool)
    of_victims[victims if step.gradients else victims[:0]] = True
    return _Unknown(of_victims, ~known_noise(step, adversary))


def _reduced(parts: tuple[sparse.csr_array, ...], rows: NDArray[np.bool_] | None, unknown: _Unknown) -> Inputs:
    state, gradient, noise = parts
    return Inputs(
        submatrix(state, rows, None), submatrix(gradient, rows, unknown.gradient), submatrix(noise, rows, unknown.noise)
    )


def known_noise(step: StepMatrices, adversary: View) -> NDArray[np.bool_]:
    """Which noise columns of a round the adversary knows."""
    return np.concatenate([np.zeros(0, dtype=bool), *(known_of(sources, adversary) for _, sources in step.sources)])


def known_of(sources: Sources, adversary: View) -> NDArray[np.bool_]:
    """Which of some sources the adversary knows."""
    knowing = np.zeros(sources.holders.shape[1], dtype=bool)
    knowing[list(adversary.members if sources.kind != "pair" else (*adversary.members, *adversary.secrets_of))] = True
    return rows_touching(sources.holders, knowing)


def selected_messages(sent: TracedMessages, mixing: Mixing, adversary: View, own: bool) -> sparse.csr_array:
    """The rows of one gossip step that an adversary gets, or their sums; with `own`, also what its members send."""
    rows = _selected_rows(sent, mixing, adversary, own)
    return _sums(sent, mixing, adversary) if rows is None else submatrix(sent.rows, rows, None)


def _selected_rows(sent: TracedMessages, mixing: Mixing, adversary: View, own: bool) -> NDArray[np.bool_] | None:
    """Which rows of one gossip step an adversary gets; None where it gets sums of them.

    What left its sender can be tapped, and arrives at a member's machine, whether or not that takes part in the round.
    """
    sender, receiver, rows = sent
    if sender.size == 0 or sender[0] == -1:  # a sum over everyone, and published models, are there for all to see
        return ~np.isin(receiver, adversary.members)  # members know their own models
    if adversary.secure_sum:
        return None
    if adversary.kind is ViewKind.EVERYONE:
        return np.ones(rows.shape[0], dtype=bool)
    if adversary.kind is ViewKind.EAVESDROPPER:
        return _tapped(sender, receiver, mixing, adversary.edges)
    if adversary.kind is not ViewKind.COALITION:
        raise Unaccountable(f"which messages {adversary} gets is not defined; define it in privacy/observation.py")
    members = np.zeros(mixing.n, dtype=bool)
    members[list(adversary.members)] = True
    if receiver[0] == -1:
        got = columns_touched(mixing.sent_weights, members)[sender]
    else:
        got = members[receiver] & (receiver >= 0)
    return got | members[sender] if own else got & ~members[sender]


def _tapped(
    sender: NDArray[np.intp], receiver: NDArray[np.intp], mixing: Mixing, edges: tuple[tuple[int, int], ...]
) -> NDArray[np.bool_]:
    live = [(a, b) for a, b in edges if a != b and mixing.sent_weights[b, a] != 0]
    if receiver[0] == -1:
        return np.isin(sender, [a for a, _ in live])
    codes = sender * mixing.n + receiver
    return np.isin(codes, [a * mixing.n + b for a, b in live])


def _sums(sent: TracedMessages, mixing: Mixing, adversary: View) -> sparse.csr_array:
    """`sum_v W[a, v] message_v` for each listening a, over what arrives from others."""
    listeners = np.asarray(adversary.members)
    own = sparse.diags_array(mixing.weights.diagonal(), format="csr")
    weights = (mixing.weights - own)[listeners]
    if sent.receiver[0] == -1:
        return sparse.csr_array(weights.tocsc()[:, sent.sender] @ sent.rows)
    position = np.full(mixing.n, -1)
    position[listeners] = np.arange(len(listeners))
    to = position[sent.receiver]
    used = np.flatnonzero(to >= 0)
    value = mixing.weights[sent.receiver[used], sent.sender[used]] if used.size else np.zeros(0)
    pick = sparse.csr_array((value, (to[used], used)), shape=(len(listeners), len(sent.sender)))
    return sparse.csr_array(pick @ sent.rows)
