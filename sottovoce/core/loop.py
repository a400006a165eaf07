"""The round loop: the one place where the maps of an algorithm follow each other.

    point -> gradient -> rule -> local step -> ( message -> deliver -> absorb ) as often as there are gossip steps

The algorithm supplies the maps. What flows through the loop, a `LoopInputs` says: `NoiseFeed` answers with numbers, and
the loop trains; the tracer answers with basis rows, and the messages are the matrices A and B. What enters a local step
and how messages travel, a `Release` says. Where nodes live, a `Transport` knows, and delivers what they send.

    >>> import numpy as np
    >>> from sottovoce.algorithms.registry import algorithm
    >>> from sottovoce.core.topologies import metropolis
    >>> pull = lambda round, x: x - np.arange(4.0)[:, None]          # node u wants to be at u
    >>> end = train(algorithm("d-psgd", step_size=0.5), metropolis("ring:4"), np.zeros((4, 1)), pull, rounds=50)
    >>> float(end.mean().round(6))
    1.5

Shapes: N nodes, D parameters, E directed edges, S noise sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.algorithm import Algorithm, Message, State, Weighted, rule_of, ruled_by_sum, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.local_rules import PLAIN
from sottovoce.core.messages import UNWATCHED, LoopState, PlayedRound, PlayedStep, RoundWatch, value_of
from sottovoce.core.mixing import Mixing
from sottovoce.core.random_streams import NoiseKey, RandomSource
from sottovoce.core.release import Entering, GossipStep, Gradient, LoopInputs, check_release, release_of
from sottovoce.core.sensitivity import check_nodes
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import InProcess, Transport, mixed_weight
from sottovoce.errors import InputError, SumFailed, Unaccountable, require_whole
from sottovoce.support.threads import own_threads

RowsKind = TypeVar("RowsKind", bound=Rows)


def start_run(algorithm: Algorithm, topology: Topology, x0: Rows, rounds: int) -> tuple[Algorithm, LoopState]:
    """The algorithm fitted to the topology, and the state before the first round; refuses what does not fit."""
    check_arguments(algorithm, topology, rounds)
    arrays.check_start(x0, topology.n)
    if algorithm.averaging and arrays.is_plain(x0) and bool((x0 != 0).any()):
        raise InputError(
            f"{algorithm.name} from a starting point that is not zero",
            "values to average are private: they enter as the gradient of round 0",
            "start from zeros and give the values in the gradient",
        )
    check_nodes(algorithm.sensitivity, topology.n)
    check_nodes(rule_of(algorithm).node_factors, topology.n, "step_factors")
    algorithm = algorithm.on(topology)
    check_release(algorithm, topology, x0, rounds)
    start = arrays.read_only(x0)
    state, memory = algorithm.init(start), rule_of(algorithm).init(start)
    if isinstance(algorithm.compression, Identity):
        return algorithm, LoopState(state, None, memory)
    if not topology.static:
        raise InputError(
            f"{algorithm.compression.name} on {topology.name}",
            "receivers of compressed differences must not miss any",
            "use a fixed topology, or identity compression",
        )
    if algorithm.noise.edge(topology.at(0)):
        raise InputError(
            f"{algorithm.compression.name} with noise on single messages",
            "compressed differences are the same for all receivers",
            "use identity compression",
        )
    return algorithm, LoopState(state, value_of(algorithm.message(state)), memory)


def check_arguments(algorithm: Algorithm, topology: Topology, rounds: int) -> None:
    """Refuse a name instead of an algorithm, a graph without weights, or no rounds."""
    if isinstance(algorithm, str):
        raise InputError(
            f"{algorithm!r} instead of an algorithm",
            "an algorithm is built from its name first",
            f"algorithm({algorithm!r}, ...)",
        )
    if not isinstance(topology, Topology):
        raise InputError(
            f"a {type(topology).__name__} instead of a topology", "a graph needs weights", "give metropolis(graph)"
        )
    require_whole(rounds, f"{rounds!r:.60} rounds", 1, "give 100, for example")


def play_round(
    algorithm: Algorithm,
    topology: Topology,
    loop_state: LoopState,
    inputs: LoopInputs,
    round: int,
    transport: Transport | None = None,
    watch: RoundWatch = UNWATCHED,
) -> PlayedRound:
    """One round: local step, then `gossip_steps` times message, deliver, absorb; all in this process by default.

    Where a secure sum fails, the round leaves the state as it was before, the local step included: whoever kept that
    step would send it again under the noise of later sums, and a sender that makes sums fail could collect it.
    """
    transport, release = transport or InProcess(topology.n), release_of(algorithm)
    mixing, point, (state, copies, memory) = topology.at(round, 0), None, loop_state
    rule, by_sum = rule_of(algorithm), ruled_by_sum(algorithm)
    mixing.require(algorithm.requires)
    watch.begins(algorithm, round, (state, memory))
    if round == 0 or not algorithm.averaging:
        point = arrays.checked_kind(algorithm.point(state))
        gradient, memory = rule.enter(memory, inputs.gradient(round, point), round)
        entering = release.step(gradient, mixing, inputs, round)
        watch.takes(mixing, point, gradient, *entering)
        if rule != PLAIN and not by_sum:
            direction, kept = rule.step(memory, with_noise(*entering), point, round)
            if not rule.linear:
                watch.steps(direction)
            entering, memory = Entering(direction, 0.0), _after(mixing, kept, memory)
        state = _after(mixing, algorithm.local(state, *entering), state)
    steps = []
    for step in range(algorithm.gossip_steps):
        mixing = topology.at(round, step)
        mixing.require(algorithm.requires)
        gossip_step = release.message(mixing, round, step)
        message = watch.sends(gossip_step, _checked_message(algorithm, state))
        try:
            played = _exchange(algorithm.compression, gossip_step, message, copies, inputs, transport)
        except SumFailed:
            return PlayedRound(round, point, (), loop_state, algorithm)
        absorbed = played.absorbed
        if by_sum and point is not None:
            absorbed, memory = rule.step(memory, played.mixed, point, round)
        watch.receives(gossip_step, value_of(absorbed))
        state = _after(mixing, algorithm.absorb(state, absorbed), state)
        copies = played.copies
        steps.append(played)
    if rule.average:
        memory = _after(mixing, rule.after(memory, algorithm.point(state)), memory)
    watch.ends((state, memory))
    return PlayedRound(round, point, tuple(steps), LoopState(state, copies, memory), algorithm)


def iterate_rounds(
    algorithm: Algorithm,
    topology: Topology,
    x0: Rows,
    gradient: Gradient,
    *,
    rounds: int,
    seed: int = 0,
    noise_key: RandomSource | None = None,
    after: tuple[int, LoopState] | None = None,
    transport: Transport | None = None,
    watch: RoundWatch = UNWATCHED,
) -> Iterator[PlayedRound]:
    """Run round by round, as `train` does; each `PlayedRound` has what was sent and the state after it.

    `after` continues an earlier run: it is the number of rounds that were played, and the state after the last.
    `transport` says in which processes the nodes are, and made `x0`; by default all are in this process.
    `watch` is told what happens in every round.
    """
    algorithm, loop_state = start_run(algorithm, topology, x0, rounds)
    topology.require_connected()
    transport = transport or InProcess(topology.n)
    first, loop_state = after or (0, loop_state)
    source, correlated = NoiseKey.given_or_fresh(noise_key), algorithm.noise.correlation is not None
    correlated = correlated and rule_of(algorithm).encoding is None
    inputs = transport.open_inputs(seed, source, gradient, x0)
    if correlated and not inputs.knows_noise_before(first):
        raise InputError(
            f"{algorithm.name} with secret noise, from round {first + 1} on",
            "its noise depends on that of earlier rounds, which was erased", "start a new run in another folder",
        )  # fmt: skip
    for round in transport.rounds(first, rounds):
        with own_threads():
            played = play_round(algorithm, topology, loop_state, inputs, round, transport, watch)
        loop_state = played.loop_state
        yield played
        inputs.finish(round)


def train(
    algorithm: Algorithm,
    topology: Topology,
    x0: RowsKind,
    gradient: Gradient,
    *,
    rounds: int,
    seed: int = 0,
    noise_key: RandomSource | None = None,
) -> RowsKind:
    """Run and return where every node ends: one row per node.

    `x0` has a row for each node, numpy or torch, and is public. `gradient(round, points)` gets the point of each node
    and returns a row for each, clipped by you: see docs/algorithms.md. Noise is drawn from `noise_key`, which may be a
    `SecretSource`; by default a fresh key is made. Compression is drawn from `seed`, which is public.
    """
    for played in iterate_rounds(algorithm, topology, x0, gradient, rounds=rounds, seed=seed, noise_key=noise_key):
        last = played
    return cast("RowsKind", last.models)


# --- within a round ------------------------------------------------------------------------------------------------


def _exchange(
    operator: Compression,
    gossip_step: GossipStep,
    message: Message,
    copies: Rows | None,
    inputs: LoopInputs,
    transport: Transport,
) -> PlayedStep:
    """Send and mix. With compression, differences to the receivers' copies travel; the error stays with the sender."""
    value = value_of(message)
    weight = message.weight if isinstance(message, Weighted) else None
    if copies is None:
        mixed, sent, received_weight = transport.deliver(gossip_step, value, weight, inputs)
        return PlayedStep(gossip_step, sent, mixed, inputs, transport, None, weight, received_weight)
    sent = transport.deliver_compressed(operator, gossip_step, value - copies, inputs)
    copies = copies + sent
    mixed = gossip_step.mixing @ copies + (value - copies)
    received_weight = mixed_weight(gossip_step, weight)
    return PlayedStep(gossip_step, sent, mixed, inputs, transport, copies, weight, received_weight)


def _checked_message(algorithm: Algorithm, state: State) -> Message:
    message = algorithm.message(state)
    arrays.checked_kind(value_of(message))
    if isinstance(message, Weighted) and not (
        arrays.is_plain(message.weight) and tuple(message.weight.shape) == (message.value.shape[0], 1)
    ):
        raise Unaccountable(
            "the weight beside a message is public: one number for each node, which depends on no gradient and no "
            "noise; send private values as the message itself"
        )
    return message


def _after(mixing: Mixing, new: State, old: State) -> State:
    """The state after a map: new where nodes are active, old elsewhere, and protected from changes."""
    if type(new) is not type(old) and (new is None or isinstance(old, tuple)):
        found = "None" if new is None else f"a {type(new).__name__}"
        raise InputError(
            f"{found} as an algorithm's state", f"`local` and `absorb` give a {type(old).__name__}, as `init` does",
            "return such a state",
        )  # fmt: skip
    active = None if mixing.active is None or mixing.active.all() else mixing.active
    return _where_active(active, new, old)


def _where_active(active: NDArray[np.bool_] | None, new: State, old: State) -> State:
    if isinstance(new, tuple):
        before = old if isinstance(old, tuple) else [None] * len(new)
        leaves = [_where_active(active, a, b) for a, b in zip(new, before, strict=True)]
        return type(new)(*leaves) if hasattr(new, "_fields") else tuple(leaves)
    if new is None or isinstance(new, bool | int | float):
        return new
    if not hasattr(new, "shape"):
        raise InputError(
            f"a {type(new).__name__} in an algorithm's state",
            "states are tuples of arrays and numbers",
            "use a NamedTuple",
        )
    new = arrays.checked_kind(new)
    new = new if old is None else arrays.in_precision_of(old, new)
    if active is not None and old is not None:
        new = arrays.where(active, new, old)
    return arrays.read_only(new)
