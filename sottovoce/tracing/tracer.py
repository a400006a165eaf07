"""Tracing: the round loop fed with basis rows, so that its messages are the matrices of `O = A G + B Z`.

`trace` plays each round once, from a basis of the state, and keeps the sparse step matrices. `LinearSystem.dense`
unrolls them for small systems; tests compare it with a whole run on basis rows.

    >>> from sottovoce.algorithms.registry import algorithm
    >>> from sottovoce.core.topologies import metropolis
    >>> system = trace(algorithm("dp-d-sgd", sigma=2.0, step_size=1.0), metropolis("path:2"), rounds=2)
    >>> A, B, labels = system.dense()
    >>> A
    array([[-1. ,  0. ,  0. ,  0. ],
           [ 0. , -1. ,  0. ,  0. ],
           [-0.5, -0.5, -1. ,  0. ],
           [-0.5, -0.5,  0. , -1. ]])
    >>> bool((B == 2 * A).all())
    True

Columns of A: (round, node). Columns of B: sources, in the order they are first used. All for one coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from sottovoce.core.algorithm import is_own, leaves, linear_part, rule_of, ruled_by_sum
from sottovoce.core.arrays import to_numpy
from sottovoce.core.compression import Identity
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.messages import LoopState, PlayedRound
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import LARGEST, SMALLEST
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.core.sparsity import same_matrix
from sottovoce.core.topologies import Changing, Topology
from sottovoce.errors import Unaccountable
from sottovoce.support.progress import counted, report_progress
from sottovoce.tracing.basis import FIRST, Basis, Coordinate, Coordinates, MapInputs, RowLocal, Unmixed
from sottovoce.tracing.coordinate_classes import covering_all_coordinates
from sottovoce.tracing.linear_forms import LinearRows, as_linear, slots, with_slots
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, TracedMessages
from sottovoce.tracing.round_maps import (
    ClassMaps,
    Combination,
    Facts,
    Numbers,
    RoundMaps,
    combination_of,
    combined,
    noise_deviation,
)

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm, State

Result = TypeVar("Result")


MOST_CLASSES = 64
"""Each class of coordinates is traced, and watched in runs, by itself."""

SAME = 1e-9
"""Share of the terms of a sum up to which two ways to form it differ by rounding alone."""

LOST, LOOKED_AHEAD, SOME = 1e-10, 30, 1_000
"""Share of what is told that rounding may make up, and for how many rounds and nodes that is tried."""


def trace(
    algorithm: Algorithm,
    topology: Topology,
    *,
    rounds: int,
    seed: int = 0,
    coordinate: Coordinate = FIRST,
) -> LinearSystem:
    """The step matrices of every round, from the loop itself.

    The starting point x0 is public and adds a public offset to what is sent; it has no columns. `seed` matters only
    with random-k compression, whose positions differ by coordinate. Without a `coordinate`, the system tells about all
    of them (`tracing.coordinate_classes`); with one it is about that alone.
    """
    coordinates = Coordinates(coordinate)
    if ruled_by_sum(algorithm):
        algorithm = linear_part(algorithm)
    system = _trace(algorithm, topology, rounds, seed, coordinates)
    if coordinate is not FIRST:
        return system
    return covering_all_coordinates([system, *_trace_others(algorithm, topology, rounds, coordinates)])


def _trace_others(
    algorithm: Algorithm, topology: Topology, rounds: int, coordinates: Coordinates
) -> Iterator[LinearSystem]:
    """The systems of all other classes of coordinates."""
    _check_classes(algorithm, coordinates)
    for other in coordinates.others:
        again = Coordinates(other)
        yield _trace(algorithm, topology, rounds, 0, again)
        _check_alike(algorithm, again, coordinates)


def _check_classes(algorithm: Algorithm, coordinates: Coordinates) -> None:
    if len(coordinates.others) >= MOST_CLASSES:
        raise Unaccountable(
            f"{algorithm.name} has {len(coordinates.others) + 1} classes of coordinates with different factors; "
            f"at most {MOST_CLASSES} are traced"
        )


def _check_alike(algorithm: Algorithm, some: Coordinates, others: Coordinates) -> None:
    if some.labels is None or others.labels is None or not np.array_equal(some.labels, others.labels):
        raise Unaccountable(
            f"{algorithm.name} changes from round to round outside of its state; keep its memory in its state"
        )


def _trace(algorithm: Algorithm, topology: Topology, rounds: int, seed: int, coordinates: Coordinates) -> LinearSystem:
    """The system of one coordinate."""
    algorithm, loop_state = start_run(algorithm, topology, LinearRows((_nodes(topology), 0)), rounds)
    uncompressed = isinstance(algorithm.compression, Identity)
    played: list[_Traced] = []
    steps: list[StepMatrices] = []
    with counted("traced rounds", rounds):
        for round in range(rounds):
            now = _Known.of(loop_state, topology, algorithm, round)
            alike = bool(played) and now.same_as(played[-1].known)
            if not (alike and uncompressed):
                maps = played[-1].step.maps if alike else _trace_maps(algorithm, now, loop_state, round, coordinates)[0]
                feed = Basis(topology.n, seed, coordinates)
                step, after = _trace_round(algorithm, now.mixings, loop_state, feed, round, maps)
                played.append(_Traced(round, now, _emptied(loop_state), step))
                loop_state = after
            steps.append(played[-1].step)
            report_progress(1)
        for one in reversed(played):
            feed = Basis(topology.n, seed, coordinates)
            again, _ = _trace_round(algorithm, one.known.mixings, one.before, feed, one.round, one.step.maps)
            if not (_same_rounds(again, one.step) and _follows_from_maps(one.step, algorithm)):
                raise Unaccountable(
                    f"{algorithm.name} changes from round to round outside of its state; keep its memory in its state"
                )
    _check_noise_in_gradients(algorithm, topology, [step.maps for step in steps], coordinates.traced)
    if not _is_told_from_rounding(steps[:LOOKED_AHEAD]):
        raise Unaccountable(
            f"{algorithm.name}: values cancel, and what is left of them cannot be told from rounding; keep apart in "
            "the state what is to be told apart, and scale by numbers nearer to 1"
        )
    return LinearSystem(topology.n, tuple(steps), algorithm.noise.correlation, algorithm, topology)


def _check_noise_in_gradients(
    algorithm: Algorithm, topology: Topology, played: Sequence[RoundMaps], coordinate: Coordinate
) -> None:
    """Refuse exact noise, which is in the gradient, where steps of one's own do something else with noise beside it."""
    if not algorithm.exact_noise or not is_own(algorithm):
        return
    apart = replace(algorithm, exact_noise=False)  # type: ignore[type-var]
    for round, maps in enumerate(_maps_of_rounds(apart, topology, len(played), Coordinates(coordinate)).rounds):
        if not played[round].does_as(maps):
            raise Unaccountable(
                f"{algorithm.name} does something else with noise than with gradients in round {round}, and exact "
                "noise is in the gradient; set exact_noise to false, or scale both by one number"
            )


class _Traced(NamedTuple):
    """A round that was played: what it depends on, the public part of the state before it, and what came of it."""

    round: int
    known: _Known
    before: LoopState
    step: StepMatrices


def _same_rounds(one: StepMatrices, other: StepMatrices) -> bool:
    """Whether two plays of a round came to the same, bit for bit: sent, point, state and models with all noise."""
    return all(map(same_matrix, one.matrices, other.matrices)) and all(
        np.array_equal(a.sender, b.sender) and np.array_equal(a.receiver, b.receiver)
        for a, b in zip(one.sent, other.sent, strict=True)
    )


def _emptied(loop_state: LoopState) -> LoopState:
    """The public part of a state, with zeros in place of rows."""
    return with_slots(loop_state, lambda slot: LinearRows((slot.matrix.shape[0], 0)))


def _nodes(topology: object) -> int:
    return int(getattr(topology, "n", 0))


class _Known(NamedTuple):
    """All that the matrices of a round depend on besides the algorithm: public values, the mixings, the first round."""

    public: list[object]
    mixings: list[Mixing]
    takes_gradients: bool

    @classmethod
    def of(cls, loop_state: LoopState, topology: Topology, algorithm: Algorithm, round: int) -> _Known:
        public = [leaf.matrix.shape[0] if isinstance(leaf, LinearRows) else leaf for leaf in leaves(loop_state)]
        mixings = [topology.at(round, step) for step in range(algorithm.gossip_steps)]
        takes = round == 0 or not algorithm.averaging
        return cls([rule_of(algorithm).factor(round), *public], mixings, takes)

    def same_as(self, other: _Known) -> bool:
        return (
            self.takes_gradients == other.takes_gradients
            and all(a is b for a, b in zip(self.mixings, other.mixings, strict=True))
            and len(self.public) == len(other.public)
            and all(_equal(a, b) for a, b in zip(self.public, other.public, strict=True))
        )


def _equal(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _held(mixings: Sequence[Mixing]) -> Topology:
    """The mixings of one round, as they were when it was first played."""
    return Changing(lambda _, step: mixings[step], n=mixings[0].n, name="one round")


def _trace_round(
    algorithm: Algorithm,
    mixings: Sequence[Mixing],
    loop_state: LoopState,
    feed: Basis,
    round: int,
    maps: RoundMaps,
) -> tuple[StepMatrices, LoopState]:
    topology = _held(mixings)
    loop_state = with_slots(loop_state, lambda _: feed.fresh("state", topology.n))
    played = play_round(RowLocal(algorithm, feed), topology, loop_state, feed, round)
    width = feed.width
    step = StepMatrices(
        state_size=feed.columns("state").size,
        gradients=feed.columns("gradient").size,
        sources=tuple((number, sources) for _, number, sources in feed.sources),
        state_out=sparse.vstack([slot.wide(width) for slot in slots(played.loop_state)], format="csr"),
        point=as_linear(played.point).wide(width) if played.point is not None else None,
        models=as_linear(played.models).wide(width),
        sent=tuple(sent for _, _, sent in _traced_messages(played, width)),
        mixings=tuple(step.mixing for step in played.steps),
        step_size=algorithm.step_size,
        sensitivity=algorithm.sensitivity,
        maps=maps,
    )
    return step, played.loop_state


def _traced_messages(played: PlayedRound, width: int) -> Iterator[tuple[int, int, TracedMessages]]:
    for step in played.steps:
        sender, receiver, rows = step.sent_messages()
        messages = TracedMessages(sender, receiver, as_linear(rows).wide(width))
        yield step.gossip_step.round, step.gossip_step.step, messages


def _trace_maps(
    algorithm: Algorithm, known: _Known, before: LoopState, round: int, coordinates: Coordinates
) -> tuple[RoundMaps, LoopState]:
    """The maps of a round by themselves: what is mixed is an input, so that no row has values of two nodes.

    Compression and clipping lie between a message and what is mixed, and are left out. Of the state, only the public
    part counts.
    """
    mixings, n = known.mixings, known.mixings[0].n
    facts, algorithm = Facts.of(algorithm, mixings[0]), linear_part(algorithm)
    feed = MapInputs(n, coordinates)
    state, _, memory = before = with_slots(before._replace(copies=None), lambda _: feed.fresh("state", n))
    held = (state, memory)
    played = play_round(RowLocal(algorithm, feed), _held(mixings), before, feed, round, Unmixed(n))
    held_after = (played.loop_state.state, played.loop_state.memory)
    maps = RoundMaps(
        slots=len(slots(held)),
        takes_gradients=bool(feed.columns("gradient").size),
        adds_noise=bool(feed.columns("noise").size),
        point=None if played.point is None else combination_of(as_linear(played.point), n),
        sent=tuple(combination_of(as_linear(step.sent), n) for step in played.steps),
        state_out=tuple(combination_of(slot, n) for slot in slots(held_after)),
        models=combination_of(as_linear(played.models), n),
        mixings=tuple(mixings),
        deviation=noise_deviation(algorithm.noise, algorithm.sensitivity, mixings[0]),
        edge_noise=tuple(step.gossip_step.edge_noise for step in played.steps),
        weights=tuple(None if step.weight is None else np.ravel(to_numpy(step.weight)) for step in played.steps),
        facts=facts,
        private=_private(held),
        private_out=_private(held_after),
    )
    _check_sizes(algorithm, maps.made)
    return maps, played.loop_state


def _check_sizes(algorithm: Algorithm, combinations: Sequence[Combination]) -> None:
    """Refuse coefficients whose squares, and products with sizes of noise, are no numbers."""
    sizes = np.abs(np.concatenate([np.zeros(0), *(each for one in combinations for _, each in one)]))
    sizes = sizes[sizes > 0]
    if sizes.size and not SMALLEST <= sizes.min() <= sizes.max() <= LARGEST:
        raise Unaccountable(
            f"{algorithm.name} multiplies values by {sizes.min():.3g} to {sizes.max():.3g} in a round; use numbers "
            f"between {SMALLEST:g} and {LARGEST:g}"
        )


def _private(state: State) -> tuple[bool, ...]:
    return tuple(isinstance(leaf, LinearRows) for leaf in leaves(state))


def trace_all_maps(algorithm: Algorithm, topology: Topology, *, rounds: int) -> tuple[ClassMaps, ...]:
    """The maps of every round, for each class of coordinates, of however large a run: nothing is mixed."""
    coordinates = Coordinates(FIRST)
    found = [_maps_of_rounds(algorithm, topology, rounds, coordinates)]
    _check_classes(algorithm, coordinates)
    classes = [FIRST.index]
    for other in coordinates.others:
        again = Coordinates(other)
        found.append(_maps_of_rounds(algorithm, topology, rounds, again))
        _check_alike(algorithm, again, coordinates)
        classes.append(other.index)
    labels = coordinates.labels
    if labels is None:
        return tuple(found)
    return tuple(
        maps._replace(coordinates=np.flatnonzero(labels == labels[index]))
        for maps, index in zip(found, classes, strict=True)
    )


def _maps_of_rounds(algorithm: Algorithm, topology: Topology, rounds: int, coordinates: Coordinates) -> ClassMaps:
    """The maps of every round, for one coordinate. Rounds that are alike share theirs."""
    zeros = LinearRows((_nodes(topology), 0))
    algorithm, before = start_run(algorithm, topology, zeros, rounds)
    before = before._replace(memory=rule_of(linear_part(algorithm)).init(zeros))
    each: list[RoundMaps] = []
    known: _Known | None = None
    for round in range(rounds):
        before = before._replace(copies=None)
        now = _Known.of(before, topology, algorithm, round)
        if known is None or not now.same_as(known):
            known = now
            maps, before = _trace_maps(algorithm, now, before, round, coordinates)
        each.append(maps)
    feed = MapInputs(topology.n, coordinates)
    stands = RowLocal(algorithm, feed).point(with_slots(before.state, lambda _: feed.fresh("state", topology.n)))
    return ClassMaps(tuple(each), combination_of(as_linear(stands), topology.n))


def _follows_from_maps(step: StepMatrices, algorithm: Algorithm) -> bool:
    """Whether the maps, with mixing between them, send what was traced, for numbers at random: they were played apart.

    Noise on single messages is left out of both, and so is compression.
    """
    maps, n = step.maps, step.mixings[0].n
    if not isinstance(algorithm.compression, Identity):
        return True
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(n) for _ in range(maps.slots + maps.takes_gradients)]
    given = [*inputs]
    noise = np.zeros(step.noise_size)
    if maps.takes_gradients:
        terms = in_units_of_largest(algorithm.noise.local(step.mixings[0]), algorithm.sensitivity)
        spread = [term.matrix.scaled(largest(algorithm.sensitivity)).whole() for term in terms]
        local = sum(part.shape[1] for part in spread)
        noise[:local] = rng.standard_normal(local)
        added = sparse.hstack(spread) @ noise[:local] if spread else np.zeros(n)
        given[maps.gradient :] = [given[-1], added] if maps.adds_noise else [given[-1] + added]
    everything = np.concatenate([*inputs, noise])
    close = _Close(everything)
    for number, (messages, mixing) in enumerate(zip(step.sent, step.mixings, strict=True)):
        sent = combined(maps.sent[number], given, slice(None))
        given.append(mixing.weights @ sent)
        expected = given[-1][:1] if messages.sender[:1].tolist() == [-1] else sent[messages.sender]
        if not close.to(messages.rows, expected):
            return False
    out = np.concatenate([combined(slot, given, slice(None)) for slot in maps.state_out])
    found = [(step.state_out, out), (step.models, combined(maps.models, given, slice(None)))]
    if step.point is not None and maps.point is not None:
        found.append((step.point, combined(maps.point, given, slice(None))))
    return all(close.to(matrix, expected) for matrix, expected in found)


def _is_told_from_rounding(steps: Sequence[StepMatrices]) -> bool:
    """Whether points and messages of the first rounds are the same in float64 and with more digits.

    Where they are not, large values cancel, and so do the entries of step matrices when rounds are put together.
    """
    pairs = zip(_told_in(steps, np.float64), _told_in(steps, np.longdouble), strict=True)
    return all((np.abs(one - other) <= LOST * np.abs(other).max(initial=0.0)).all() for one, other in pairs)


def _told_in(steps: Sequence[StepMatrices], dtype: DTypeLike) -> Iterator[Numbers]:
    """Points and messages of some nodes, from gradients and noise at random. They mix with one other, whatever W is."""
    nodes = np.arange(min(SOME, steps[0].mixings[0].n))
    rng = np.random.default_rng(0)
    state = [np.zeros(len(nodes), dtype=dtype) for _ in range(steps[0].maps.slots)]
    for step in steps:
        maps = step.maps
        if maps.point is not None:
            yield combined(maps.point, state, nodes)
        entering = range(maps.takes_gradients + maps.adds_noise)
        inputs = [*state, *(rng.standard_normal(len(nodes)).astype(dtype) for _ in entering)]
        for sent in maps.sent:
            message = combined(sent, inputs, nodes)
            yield message
            inputs.append((message + np.roll(message, 1)) / 2)
        state = [combined(slot, inputs, nodes) for slot in maps.state_out]


class _Close(NamedTuple):
    """Whether matrices make the expected of some inputs, up to rounding."""

    inputs: NDArray[np.float64]

    def to(self, matrix: sparse.csr_array, expected: Numbers) -> bool:
        terms = abs(matrix) @ np.abs(self.inputs)
        return bool((np.abs(matrix @ self.inputs - expected) <= SAME * (1.0 + terms.max(initial=0.0))).all())
