"""The round loop: the one place where the maps of an algorithm follow each other.

    point -> gradient -> local step -> ( message -> deliver -> absorb ) as often as there are gossip steps

The algorithm supplies the maps. The loop does not know two things. *What flows through it*: a `LoopInputs` answers what
the gradient, the noise and the compressed rows are. `NoiseFeed` answers with numbers, and the loop trains; the tracer
answers with basis rows, and the messages are the matrices A and B. *Where nodes live*: a `Transport` delivers their
messages, in this process or between several.

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
from sottovoce.core.algorithm import Algorithm, Message, State, Weighted, sums_over_all, sums_over_neighbours
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.grid import check_models, message_grid, noise_on_grid, why_not_exact
from sottovoce.core.integer_sums import IntegerSums, model_grid, sum_grid
from sottovoce.core.loop_inputs import Gradient, LoopInputs
from sottovoce.core.messages import LoopState, PlayedRound, PlayedStep, value_of
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.round_watch import UNWATCHED, RoundWatch
from sottovoce.core.sensitivity import check_nodes, in_units_of_largest, largest
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import InProcess, Transport, mixed_weight
from sottovoce.errors import InputError, SumFailed, Unaccountable
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
    algorithm = algorithm.on(topology)
    _check_noise(algorithm, topology, rounds)
    models = message_grid(algorithm, topology.at(0))
    if models is not None and arrays.is_plain(x0):
        check_models(algorithm, x0, models.largest_model)
    state = algorithm.init(arrays.read_only(x0))
    if isinstance(algorithm.compression, Identity):
        return algorithm, LoopState(state, None)
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
    return algorithm, LoopState(state, value_of(algorithm.message(state)))


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
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or rounds < 1:
        raise InputError(f"{rounds!r:.60} rounds", "it must be a whole number, 1 or more", "give 100, for example")


def _check_noise(algorithm: Algorithm, topology: Topology, rounds: int) -> None:
    """Refuse noise that would be drawn twice or could not be drawn at all."""
    mixing = topology.at(0)
    if sums_over_neighbours(algorithm):
        _check_neighbour_sums(algorithm, mixing)
    kinds = [part.sources.kind for part in (*algorithm.noise.local(mixing), *algorithm.noise.edge(mixing))]
    twice = {kind for kind in kinds if kinds.count(kind) > 1}
    if twice:
        raise InputError(
            f"two noises from sources of kind '{twice.pop()}'",
            "they would draw the same numbers",
            "add their variances into one noise",
        )
    refusal = why_not_exact(algorithm, topology) if algorithm.exact_noise else None
    if refusal is not None:
        raise InputError(f"exact_noise with {algorithm.name}", refusal, "leave exact_noise out")
    if algorithm.noise.correlation is not None:
        if algorithm.averaging:
            raise InputError(f"{algorithm.name} with correlated noise", "it adds noise only once", "use Independent")
        algorithm.noise.correlation.bands(rounds)  # refuses a C that is too short


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
    transport = transport or InProcess(topology.n)
    state, copies = loop_state
    point = None
    topology.at(round, 0).require(algorithm.requires)
    watch.begins(round, state)
    if round == 0 or not algorithm.averaging:
        point, state = _step_locally(algorithm, topology.at(round, 0), state, inputs, round, watch)
    steps = []
    for step in range(algorithm.gossip_steps):
        gossip_step = _gossip_step(algorithm, topology, round, step)
        message = _checked_message(algorithm, state)
        watch.sends(gossip_step, value_of(message))
        try:
            played = _exchange(algorithm.compression, gossip_step, message, copies, inputs, transport)
        except SumFailed:
            return PlayedRound(round, point, (), loop_state, algorithm)
        watch.receives(gossip_step, played.mixed)
        state = _after(gossip_step.mixing, algorithm.absorb(state, _absorbed(played)), state)
        copies = played.copies
        steps.append(played)
    watch.ends(state)
    return PlayedRound(round, point, tuple(steps), LoopState(state, copies), algorithm)


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


def _step_locally(
    algorithm: Algorithm, mixing: Mixing, state: State, inputs: LoopInputs, round: int, watch: RoundWatch
) -> tuple[Rows, State]:
    """Where the gradient was taken, and the state after the local step."""
    point = algorithm.point(state)
    gradient = inputs.gradient(round, point)
    if algorithm.exact_noise and not algorithm.noise.edge(mixing):
        if sums_over_all(algorithm):
            released = inputs.released(gradient, sum_grid(algorithm, mixing).noise, round)
        else:
            released = inputs.released(gradient, noise_on_grid(algorithm, mixing), round)
        watch.takes(mixing, point, gradient, released, 0.0)
        return point, _after(mixing, algorithm.local(state, released, 0.0), state)
    noise = _local_noise(algorithm, mixing, inputs, round)
    watch.takes(mixing, point, gradient, gradient, noise)
    return point, _after(mixing, algorithm.local(state, gradient, noise), state)


def _local_noise(algorithm: Algorithm, mixing: Mixing, inputs: LoopInputs, round: int) -> Rows | float:
    total: Rows | float = 0.0
    terms = in_units_of_largest(algorithm.noise.local(mixing), algorithm.sensitivity)
    for number, term in enumerate(terms):
        matrix, correlation = term.matrix.scaled(largest(algorithm.sensitivity)), algorithm.noise.correlation
        if correlation is None:
            noise = inputs.noise(term.sources, matrix, round, 0)
        else:
            noise = inputs.correlated(correlation, term.sources, matrix, round)
        total = total + noise if number else noise
    return total


def _gossip_step(algorithm: Algorithm, topology: Topology, round: int, step: int) -> GossipStep:
    mixing = topology.at(round, step)
    mixing.require(algorithm.requires)
    scale = algorithm.step_size * largest(algorithm.sensitivity)
    noise = in_units_of_largest(algorithm.noise.edge(mixing), algorithm.sensitivity)
    return GossipStep(
        mixing, noise, scale, sums_over_all(algorithm), round, step,
        integer_sums(algorithm, mixing), message_grid(algorithm, mixing),
    )  # fmt: skip


def integer_sums(algorithm: Algorithm, mixing: Mixing) -> IntegerSums | None:
    """In which integers messages are summed up; None where they are sent one by one, or nothing is exact."""
    if not (algorithm.secure_sum and algorithm.exact_noise):
        return None
    return sum_grid(algorithm, mixing) if sums_over_all(algorithm) else model_grid(mixing)


def _check_neighbour_sums(algorithm: Algorithm, mixing: Mixing) -> None:
    """Refuse what sums over neighbours cannot be."""
    if not isinstance(algorithm.compression, Identity) or algorithm.noise.edge(mixing):
        raise InputError(
            f"{algorithm.name} with secure sums, and compression or noise on single messages",
            "sums are over uncompressed messages that are the same for all receivers",
            "use identity compression and noise on gradients",
        )  # fmt: skip


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


def _absorbed(played: PlayedStep) -> Message:
    """What reaches nodes: the mix of messages, and that of their public weights."""
    return played.mixed if played.mixed_weight is None else Weighted(played.mixed, played.mixed_weight)


def _checked_message(algorithm: Algorithm, state: State) -> Message:
    message = algorithm.message(state)
    if isinstance(message, Weighted) and not (
        arrays.is_plain(message.weight) and tuple(message.weight.shape) == (message.value.shape[0], 1)
    ):
        raise Unaccountable(
            "the weight beside a message is public: one number for each node, which depends on no gradient and no "
            "noise; "
            "send private values as the message itself"
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
    new = new if old is None else arrays.in_precision_of(old, new)
    if active is not None and old is not None:
        new = arrays.where(active, new, old)
    return arrays.read_only(new)
