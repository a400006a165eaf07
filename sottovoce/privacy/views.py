"""Views: what an adversary sees of a run, and what it knows already.

A view selects messages of the traced system and removes the columns it knows: the gradients and the noise of its
members, and the secrets they share. What remains is the linear system that its loss is computed from.

    >>> view("coalition:3,5")
    View(kind='coalition', members=(3, 5), edges=(), secrets_of=(), secure_sum=False)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from sottovoce.errors import InputError, Unaccountable
from sottovoce.loop import Heard
from sottovoce.mixing import Mixing
from sottovoce.sources import Sources
from sottovoce.system import LinearSystem, StepMatrices

NAMED = 8
"""Of more nodes than this whose secrets are known, their number is said."""


@dataclass(frozen=True)
class View:
    """An adversary.

    - `everyone`: hears all messages and knows nobody's secrets (but those of `secrets_of`: SecLDP);
    - `coalition`: hears what its members receive, knows their gradients, their noise and the secrets they share;
    - `eavesdropper`: hears what travels along some directed edges (sender, receiver).

    With `secure_sum` a receiver learns only the weighted sum of what it receives in a step.
    """

    kind: str
    members: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    secrets_of: tuple[int, ...] = ()
    secure_sum: bool = False

    def __str__(self) -> str:
        if self.kind == "everyone":
            of = self.secrets_of
            named = f"{len(of)} nodes" if len(of) > NAMED else ",".join(map(str, of))
            return f"everyone with the secrets of {named}" if of else "everyone"
        if self.kind == "eavesdropper":
            return "eavesdropper:" + ",".join(f"{a}>{b}" for a, b in self.edges)
        return f"{'node' if len(self.members) == 1 else 'coalition'}:{','.join(map(str, self.members))}"

    def check(self, n: int) -> None:
        """Refuse nodes that are not there."""
        for node in (*self.members, *self.secrets_of, *(end for edge in self.edges for end in edge)):
            if not 0 <= node < n:
                raise InputError(f"node {node} in view {self}", f"nodes are 0..{n - 1}", "choose one of them")
        if self.kind == "coalition" and len(set(self.members)) >= n:
            raise InputError(f"view {self} has all {n} nodes", "somebody must be left to protect", "leave one out")


def everyone(*, secrets_of: tuple[int, ...] = (), secure_sum: bool = False) -> View:
    """Whoever hears all messages; with `secrets_of`, one who knows the secrets of these nodes besides."""
    return View("everyone", secrets_of=secrets_of, secure_sum=secure_sum)


def node(a: int, *, secure_sum: bool = False) -> View:
    """One curious node: it hears what is sent to it, and knows its own gradients, noise and secrets."""
    return View("coalition", (a,), secure_sum=secure_sum)


def coalition(*members: int, secure_sum: bool = False) -> View:
    """Several nodes that put together what they hear and know."""
    return View("coalition", tuple(sorted(set(members))), secure_sum=secure_sum)


def eavesdropper(*edges: tuple[int, int]) -> View:
    """Whoever taps some directed edges, (sender, receiver)."""
    return View("eavesdropper", edges=tuple(edges))


def view(spec: str | View, *, secure_sum: bool = False) -> View:
    """A view from its name: `everyone`, `node:3`, `coalition:3,5`, `eavesdropper:0>1,1>0`."""
    if isinstance(spec, View):
        return spec
    if spec == "everyone":
        return everyone(secure_sum=secure_sum)
    if re.fullmatch(r"node:\d+", spec):
        return node(int(spec[5:]), secure_sum=secure_sum)
    if re.fullmatch(r"coalition:\d+(,\d+)*", spec):
        return coalition(*(int(a) for a in spec[10:].split(",")), secure_sum=secure_sum)
    if re.fullmatch(r"eavesdropper:\d+>\d+(,\d+>\d+)*", spec):
        if secure_sum:
            raise Unaccountable(
                f"{spec} with secure summation: whoever taps a wire sees ciphertext; drop one of the two"
            )
        pairs = (edge.split(">") for edge in spec[13:].split(","))
        return eavesdropper(*((int(a), int(b)) for a, b in pairs))
    raise InputError(f"view {spec!r}", "known: everyone, node:A, coalition:A,B, eavesdropper:A>B", "write node:0, say")


# --- what is left of a traced system -------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """A matrix split by what its columns stand for."""

    state: sparse.csr_array
    gradient: sparse.csr_array
    noise: sparse.csr_array


@dataclass(frozen=True, eq=False)
class SeenStep:
    """One round as the adversary sees it: `seen` rows, and how the hidden state goes on; known columns are gone."""

    seen: Inputs
    out: Inputs
    point: Inputs | None
    noise_columns: NDArray[np.intp]
    takes_gradients: bool


@dataclass(frozen=True, eq=False)
class Seen:
    """A traced system through the eyes of a view. Equal rounds share one object.

    `victims` are the nodes whose gradients are unknown; they are the gradient columns of every step that takes any.
    """

    system: LinearSystem
    view: View
    victims: NDArray[np.intp]
    steps: tuple[SeenStep, ...]

    def dense(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A (rows, gradient rounds, victims) and B, unrolled; for small systems."""
        rounds = [t for t, step in enumerate(self.steps) if step.takes_gradients]
        V = len(self.victims)
        G_total, Z_total = V * len(rounds), sum(len(step.noise_columns) for step in self.steps)
        state = np.zeros((self.steps[0].seen.state.shape[1], G_total + Z_total))
        rows, g, z = [], 0, G_total
        for step in self.steps:
            inputs_g = np.zeros((step.seen.gradient.shape[1], G_total + Z_total))
            inputs_g[:, g : g + len(inputs_g)] = np.eye(len(inputs_g))
            inputs_z = np.zeros((step.seen.noise.shape[1], G_total + Z_total))
            inputs_z[:, z : z + len(inputs_z)] = np.eye(len(inputs_z))
            g, z = g + len(inputs_g), z + len(inputs_z)
            rows.append(step.seen.state @ state + step.seen.gradient @ inputs_g + step.seen.noise @ inputs_z)
            state = step.out.state @ state + step.out.gradient @ inputs_g + step.out.noise @ inputs_z
        O = np.concatenate(rows)
        A, B = O[:, :G_total].reshape(len(O), len(rounds), V), O[:, G_total:]
        correlation = self.system.correlation
        if correlation is not None:
            B = B @ np.kron(correlation.inverse(len(self.steps)), np.eye(len(self.steps[0].noise_columns)))
        return A, B

    def distances(self) -> list[int | None]:
        """Hops from each victim to the nearest member, along the direction messages travel; None if none arrive."""
        graph, members = self.system.topology.graph, list(self.view.members)
        if graph is None or not members:
            return [None] * len(self.victims)
        hops = csgraph.shortest_path(graph.adjacency.T, unweighted=True, indices=members).min(axis=0)
        return [int(h) if np.isfinite(h) else None for h in hops[self.victims]]

    @cached_property
    def picks(self) -> list[sparse.csr_array]:
        """For each round the matrix that takes its messages, gossip steps one below the other, to its `seen` rows.

        For views as `see` makes them, without `own`.
        """
        made = {id(step): _pick(step, self.view, self.victims) for step in dict.fromkeys(self.system.steps)}
        return [made[id(step)] for step in self.system.steps]

    @property
    def gradient_rounds(self) -> int:
        """In how many rounds gradients enter."""
        return sum(step.takes_gradients for step in self.steps)


def see(system: LinearSystem, adversary: View, *, own: bool = False, victims: Sequence[int] | None = None) -> Seen:
    """What `adversary` sees of `system`, as far as it concerns `victims` (None: all whom it does not know).

    With `own`, also what its members say, which they know anyway.
    """
    adversary.check(system.n)
    _check_edges(system, adversary)
    concerned = np.setdiff1d(np.arange(system.n), adversary.members)
    if victims is not None:
        missing = [node for node in victims if not 0 <= node < system.n]
        if missing:
            raise InputError(f"victim {missing[0]}", f"nodes are 0..{system.n - 1}", "choose one of them")
        own_side = np.setdiff1d(victims, concerned)
        if own_side.size:
            raise InputError(
                f"victim {own_side[0]} is of {adversary}", "who attacks knows its own data", "name another"
            )
        concerned = np.unique(np.asarray(victims, dtype=np.intp))
    made: dict[int, SeenStep] = {}
    for step in system.steps:
        if id(step) not in made:
            made[id(step)] = _see_step(step, adversary, concerned, own)
    return Seen(system, adversary, concerned, tuple(made[id(step)] for step in system.steps))


def _check_edges(system: LinearSystem, adversary: View) -> None:
    """Refuse to tap where no edge is."""
    graph = system.topology.graph
    for a, b in adversary.edges:
        if a == b or (graph is not None and graph.adjacency[a, b] == 0):
            raise InputError(f"{adversary} taps {a}>{b}", "the graph has no such edge", "name one of its edges")


def _see_step(step: StepMatrices, adversary: View, victims: NDArray[np.intp], own: bool) -> SeenStep:
    seen, _ = _informative(step, adversary, victims, own)
    point = reduce(step, step.point, adversary, victims) if step.point is not None else None
    out = reduce(step, step.state_out, adversary, victims)
    return SeenStep(seen, out, point, np.flatnonzero(~known_noise(step, adversary)), bool(step.gradients))


def _informative(
    step: StepMatrices, adversary: View, victims: NDArray[np.intp], own: bool
) -> tuple[Inputs, NDArray[np.intp]]:
    """What the adversary gets in a round, and which rows of it hold anything that it does not know."""
    rows = sparse.vstack(
        [select(heard, mixing, adversary, own) for heard, mixing in zip(step.heard, step.mixings, strict=True)],
        format="csr",
    )
    seen = reduce(step, rows, adversary, victims)
    there = np.flatnonzero(sum(np.diff(part.indptr) for part in seen))
    return Inputs(*(part[there] for part in seen)), there


def _pick(step: StepMatrices, adversary: View, victims: NDArray[np.intp]) -> sparse.csr_array:
    each = [
        select(heard._replace(rows=sparse.eye_array(heard.rows.shape[0], format="csr")), mixing, adversary, False)
        for heard, mixing in zip(step.heard, step.mixings, strict=True)
    ]
    _, there = _informative(step, adversary, victims, False)
    return sparse.csr_array(sparse.block_diag(each, format="csr"))[there]


def reduce(step: StepMatrices, rows: sparse.csr_array, adversary: View, victims: NDArray[np.intp]) -> Inputs:
    """Rows of a round by their inputs, without what the adversary knows."""
    state, gradient, noise = step.split(rows)
    unknown = np.flatnonzero(~known_noise(step, adversary))
    columns = victims if step.gradients else np.empty(0, dtype=np.intp)
    return Inputs(state, gradient.tocsc()[:, columns].tocsr(), noise.tocsc()[:, unknown].tocsr())


def known_noise(step: StepMatrices, adversary: View) -> NDArray[np.bool_]:
    """Which noise columns of a round the adversary knows."""
    return np.concatenate([np.zeros(0, dtype=bool), *(known_of(sources, adversary) for _, sources in step.sources)])


def known_of(sources: Sources, adversary: View) -> NDArray[np.bool_]:
    """Which of some sources the adversary knows."""
    holders = sources.holders.tocsc()
    found = np.zeros(sources.size, dtype=bool)
    by = adversary.members if sources.kind != "pair" else (*adversary.members, *adversary.secrets_of)
    for member in by:
        found[holders.indices[holders.indptr[member] : holders.indptr[member + 1]]] = True
    return found


def select(heard: Heard, mixing: Mixing, adversary: View, own: bool) -> sparse.csr_array:
    """The rows of one gossip step that an adversary gets, or their sums; with `own`, also what its members say."""
    sender, receiver, rows = heard
    if sender.size == 0 or sender[0] == -1:  # a sum over everyone is there for all to see
        return rows
    if adversary.secure_sum:
        return _sums(heard, mixing, adversary)
    if adversary.kind == "everyone":
        return rows
    if adversary.kind == "eavesdropper":
        return rows[np.flatnonzero(_tapped(sender, receiver, mixing, adversary.edges))]
    members = np.asarray(adversary.members, dtype=np.intp)
    if receiver[0] == -1:
        reaches = np.asarray((mixing.weights[members] != 0).sum(axis=0)).ravel() > 0
        got = reaches[sender]
    else:
        got = np.isin(receiver, members)
        if mixing.active is not None:
            got &= mixing.active[receiver]
    said = np.isin(sender, members)
    return rows[np.flatnonzero(got | said if own else got & ~said)]


def _tapped(
    sender: NDArray[np.intp], receiver: NDArray[np.intp], mixing: Mixing, edges: tuple[tuple[int, int], ...]
) -> NDArray[np.bool_]:
    left = mixing.weights if mixing.planned is None else mixing.planned  # what left its sender can be tapped
    live = [(a, b) for a, b in edges if a != b and left[b, a] != 0]
    if receiver[0] == -1:
        return np.isin(sender, [a for a, _ in live])
    codes = sender * mixing.n + receiver
    return np.isin(codes, [a * mixing.n + b for a, b in live])


def _sums(heard: Heard, mixing: Mixing, adversary: View) -> sparse.csr_array:
    """`sum_v W[a, v] message_v` for each listening a, over what arrives from others."""
    listeners = np.arange(mixing.n) if adversary.kind == "everyone" else np.asarray(adversary.members)
    own = sparse.diags_array(mixing.weights.diagonal(), format="csr")
    weights = (mixing.weights - own)[listeners]
    if heard.receiver[0] == -1:
        return sparse.csr_array(weights.tocsc()[:, heard.sender] @ heard.rows)
    position = np.full(mixing.n, -1)
    position[listeners] = np.arange(len(listeners))
    to = position[heard.receiver]
    used = np.flatnonzero(to >= 0)
    value = mixing.weights[heard.receiver[used], heard.sender[used]] if used.size else np.zeros(0)
    pick = sparse.csr_array((value, (to[used], used)), shape=(len(listeners), len(heard.sender)))
    return sparse.csr_array(pick @ heard.rows)
