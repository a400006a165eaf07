"""The round loop: the one place where point, gradient, local, message, mix and absorb follow each other.

The loop does not know what flows through it. A `Feed` answers its three questions: what is the gradient here, what
is the noise now, what does compression keep. `Draws` answers with numbers, and the loop trains; the tracer's feed
answers with basis rows, and the messages are the matrices A and B.

    >>> import numpy as np
    >>> from sottovoce.algorithms import algorithm
    >>> from sottovoce.topology import metropolis
    >>> pull = lambda round, x: x - np.arange(4.0)[:, None]          # node u wants to be at u
    >>> end = final(algorithm("d-psgd", step_size=0.5), metropolis("ring:4"), np.zeros((4, 1)), pull, rounds=50)
    >>> float(end.mean().round(6))
    1.5

Shapes: N nodes, D parameters, E directed edges, S noise sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce import arrays
from sottovoce.arrays import Rows
from sottovoce.compression import Compression, Identity
from sottovoce.correlation import Correlation
from sottovoce.draws import Draws, Gradient
from sottovoce.errors import InputError, Unaccountable
from sottovoce.mixing import Mixing
from sottovoce.noise import Injection, Spread
from sottovoce.sources import Sources
from sottovoce.topology import Topology
from sottovoce.ways import Way

if TYPE_CHECKING:
    from sottovoce.algorithms import Algorithm


class Weighted(NamedTuple):
    """A message with a public weight beside it, mixed alike: push-sum's."""

    value: Rows
    weight: Rows


class Traffic(NamedTuple):
    """What left the nodes."""

    messages: int
    bits: int


class Carry(NamedTuple):
    """All that passes from round to round: the algorithm's state, and the copies that receivers hold of each node."""

    state: Any
    copies: Rows | None


class Feed(Protocol):
    """What flows through the loop."""

    def gradient(self, round: int, point: Rows) -> Rows:
        """The gradient of round `round`, taken at `point`."""

    def noise(self, sources: Sources, matrix: Spread, round: int, step: int) -> Rows:
        """`matrix @ Z` for the sources of this step."""

    def correlated(self, correlation: Correlation, sources: Sources, matrix: Spread, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_round`."""

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Every row compressed."""


class RunFeed(Feed, Protocol):
    """The feed of a whole run: a context, which may be told what it will be asked for."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def expect(self, injection: Injection, rounds: range) -> None:
        """Each of these rounds will ask for this noise in turn."""


class Heard(NamedTuple):
    """Messages as they travel: row i goes from `sender[i]` to `receiver[i]`.

    A receiver of -1 stands for all whom the sender speaks to in this step; a sender of -1 for a sum over all nodes.
    What is sent to a node that dropped out unannounced is among them: it left its sender.
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    rows: Rows


class Held(NamedTuple):
    """What nodes hold of others after a step: `receiver[i]` holds row `row[i]` of `rows`, which is of `sender[i]`."""

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    row: NDArray[np.intp]
    rows: Rows


@dataclass(frozen=True)
class Step:
    """One gossip step as it happened: what was said, and what an observer can take from it."""

    way: Way
    said: Rows
    mixed: Rows
    feed: Feed
    copies: Rows | None = None
    weight: Rows | None = None

    @property
    def mixing(self) -> Mixing:
        """The weights of this step."""
        return self.way.mixing

    @property
    def messages(self) -> int:
        """How many messages are sent; a secure sum takes one to the sum and one back for every node."""
        return 2 * self.mixing.n if self.way.secure_sum else len(self._spoken()[0])

    def _spoken(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        sender, receiver, _ = self.mixing.planned_edges
        speaks = sender != receiver
        if self.mixing.active is not None:
            speaks &= self.mixing.active[sender]
        return sender[speaks], receiver[speaks]

    def heard(self) -> Heard:
        """Every message that leaves a node in this step; messages to oneself do not."""
        if self.way.secure_sum:
            return Heard(np.array([-1]), np.array([-1]), arrays.take(self.mixed, np.array([0])))
        sender, receiver = self._spoken()
        if not self.way.edge:
            sender = np.unique(sender)
            return Heard(sender, np.full(len(sender), -1), arrays.take(self.said, sender))
        return Heard(sender, receiver, self._with_noise(arrays.take(self.said, sender), sender, receiver))

    def held(self, by: NDArray[np.intp]) -> Held:
        """What some nodes can make of what reaches them in this step, as models.

        Messages as received, or what differences add up to, over the public weight if there is one; of a secure sum the
        average, from sender -1. Noise on single messages is drawn for these messages alone.
        """
        if self.way.secure_sum:
            nobody = np.full(len(by), -1)
            return Held(nobody, np.asarray(by), np.zeros_like(nobody), arrays.take(self.mixed, np.asarray(by)[:1]))
        sender, receiver, _ = self.mixing.edges
        theirs = np.isin(receiver, by) & (sender != receiver)
        sender, receiver = sender[theirs], receiver[theirs]
        one, row = (sender, np.arange(len(sender))) if self.way.edge else np.unique(sender, return_inverse=True)
        if self.way.edge and not arrays.is_real(self.said):
            rows = self.said.noisy(self.way, self.feed, sender, receiver)
        else:
            rows = arrays.take(self.said if self.copies is None else self.copies, one)
            rows = self._with_noise(rows, sender, receiver) if self.way.edge and len(one) else rows
        return Held(sender, receiver, row, rows if self.weight is None else rows / arrays.take(self.weight, one))

    def _with_noise(self, rows: Rows, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> Rows:
        for injection in self.way.edge:
            matrix = self.way.on_edges(injection, sender, receiver)
            rows = rows + self.feed.noise(injection.sources, matrix, self.way.round, self.way.step)
        return rows


@dataclass(frozen=True)
class Round:
    """One round as it happened: where gradients were taken, the gossip steps, and the state after them."""

    round: int
    point: Rows | None
    steps: tuple[Step, ...]
    carry: Carry
    algorithm: Algorithm

    @property
    def models(self) -> Rows:
        """Where every node stands after the round."""
        return self.algorithm.point(self.carry.state)

    @property
    def traffic(self) -> Traffic:
        """Messages and bits that left nodes."""
        return self.traffic_of(_value(self.algorithm.message(self.carry.state)).shape[1])

    def traffic_of(self, dimension: int) -> Traffic:
        """The same for models of so many parameters; a public weight beside a message counts as one more number."""
        messages = sum(step.messages for step in self.steps)
        weighted = isinstance(self.algorithm.message(self.carry.state), Weighted)
        beside = Identity().bits(1) if weighted else 0
        return Traffic(messages, messages * (self.algorithm.compression.bits(dimension) + beside))


def begin(algorithm: Algorithm, topology: Topology, x0: Rows, rounds: int) -> tuple[Algorithm, Carry]:
    """The algorithm fitted to the topology, and the state before the first round; refuses what does not fit."""
    check_kinds(algorithm, topology, rounds)
    arrays.check_start(x0, topology.n)
    if algorithm.once and arrays.is_real(x0) and bool((x0 != 0).any()):
        raise InputError(
            f"{algorithm.name} from a starting point that is not zero",
            "values to average are private: they enter as the gradient of round 0",
            "start from zeros and give the values in the gradient",
        )
    algorithm = algorithm.on(topology)
    _check_noise(algorithm, topology.at(0), rounds)
    state = algorithm.init(arrays.read_only(x0))
    if isinstance(algorithm.compression, Identity):
        return algorithm, Carry(state, None)
    if not topology.static:
        raise InputError(
            f"{algorithm.compression.name} on {topology.name}",
            "compressed differences need receivers that miss none",
            "use a fixed topology, or identity compression",
        )
    if algorithm.noise.edge(topology.at(0)):
        raise InputError(
            f"{algorithm.compression.name} with noise on single messages",
            "differences are sent alike to all",
            "use identity compression",
        )
    return algorithm, Carry(state, _value(algorithm.message(state)))


def check_kinds(algorithm: Algorithm, topology: Topology, rounds: int) -> None:
    """Refuse a name instead of an algorithm, a graph without weights, or no rounds."""
    if isinstance(algorithm, str):
        raise InputError(
            f"{algorithm!r} instead of an algorithm", "it is built first", f"algorithm({algorithm!r}, ...)"
        )
    if not isinstance(topology, Topology):
        raise InputError(
            f"a {type(topology).__name__} instead of a topology", "a graph needs weights", "give metropolis(graph)"
        )
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise InputError(f"{rounds} rounds", "a whole number from 1 is needed", "give 100, say")


def _check_noise(algorithm: Algorithm, mixing: Mixing, rounds: int) -> None:
    """Refuse noise that would be drawn twice or could not be drawn at all."""
    if algorithm.secure_sum and algorithm.requires != "complete average":
        raise InputError(
            f"{algorithm.name} with secure_sum on '{algorithm.requires}' weights",
            "one sum over everyone needs the complete average",
            "set requires='complete average', or use a view with secure_sum",
        )
    kinds = [part.sources.kind for part in (*algorithm.noise.local(mixing), *algorithm.noise.edge(mixing))]
    twice = {kind for kind in kinds if kinds.count(kind) > 1}
    if twice:
        raise InputError(
            f"two noises from sources of kind '{twice.pop()}'",
            "they would draw the same numbers",
            "add their variances into one noise",
        )
    if algorithm.noise.correlation is not None:
        if algorithm.once:
            raise InputError(f"{algorithm.name} with correlated noise", "it adds noise only once", "use Independent")
        algorithm.noise.correlation.matrix(rounds)


def play(algorithm: Algorithm, topology: Topology, carry: Carry, feed: Feed, round: int) -> Round:
    """One round: local step, then `gossip_steps` times message, mix, absorb."""
    state, copies = carry
    mixing = topology.at(round, 0)
    mixing.require(algorithm.requires)
    point = None
    if round == 0 or not algorithm.once:
        point = algorithm.point(state)
        grad = feed.gradient(round, point)
        noise = _local_noise(algorithm, mixing, feed, round)
        state = _next(mixing, algorithm.local(state, grad, noise), state)
    steps = []
    for step in range(algorithm.gossip_steps):
        mixing = topology.at(round, step)
        mixing.require(algorithm.requires)
        message = _checked_message(algorithm, state)
        scale = algorithm.step_size * algorithm.sensitivity
        way = Way(mixing, algorithm.noise.edge(mixing), scale, algorithm.secure_sum, round, step)
        said, copies, mixed = _transmit(algorithm.compression, way, message, copies, feed)
        weight = message.weight if isinstance(message, Weighted) else None
        steps.append(Step(way, said, mixed, feed, copies, weight))
        took = Weighted(mixed, mixing @ message.weight) if isinstance(message, Weighted) else mixed
        state = _next(mixing, algorithm.absorb(state, took), state)
    return Round(round, point, tuple(steps), Carry(state, copies), algorithm)


def rounds_of(
    algorithm: Algorithm,
    topology: Topology,
    x0: Rows,
    gradient: Gradient,
    *,
    rounds: int,
    seed: int = 0,
    after: tuple[int, Carry] | None = None,
    make: Callable[[int, Gradient, Rows], RunFeed] = Draws,
) -> Iterator[Round]:
    """Run round by round, as `final` does; each `Round` tells what was said and carries the state.

    `after` goes on where an earlier run stopped: the number of rounds that were played, and what the last one carried.
    `make` gives the feed of this run.
    """
    algorithm, carry = begin(algorithm, topology, x0, rounds)
    topology.require_connected()
    first, carry = after or (0, carry)
    with make(seed, gradient, x0) as feed:
        if topology.static and not algorithm.once:
            for injection in algorithm.noise.local(topology.at(0))[:1]:
                feed.expect(injection, range(0 if algorithm.noise.correlation else first, rounds))
        for round in range(first, rounds):
            played = play(algorithm, topology, carry, feed, round)
            carry = played.carry
            yield played


def final(
    algorithm: Algorithm, topology: Topology, x0: Rows, gradient: Gradient, *, rounds: int, seed: int = 0
) -> Rows:
    """Run and return where every node ends: one row per node.

    `x0` has a row per node, numpy or torch, and is public. `gradient(round, points)` gets where each node stands and
    gives back a row for each, clipped by you: see docs/algorithms.md. All noise follows from `seed`.
    """
    for played in rounds_of(algorithm, topology, x0, gradient, rounds=rounds, seed=seed):
        last = played
    return last.models


# --- within a round ------------------------------------------------------------------------------------------------


def _local_noise(algorithm: Algorithm, mixing: Mixing, feed: Feed, round: int) -> Rows | float:
    total: Any = 0.0
    for number, injection in enumerate(algorithm.noise.local(mixing)):
        matrix, correlation = injection.matrix.scaled(algorithm.sensitivity), algorithm.noise.correlation
        if correlation is None:
            noise = feed.noise(injection.sources, matrix, round, 0)
        else:
            noise = feed.correlated(correlation, injection.sources, matrix, round)
        total = total + noise if number else noise
    return total


def _transmit(
    operator: Compression, way: Way, message: Any, copies: Rows | None, feed: Feed
) -> tuple[Rows, Rows | None, Rows]:
    """What is said, the receivers' copies after it, and the mix; with compression the error stays with the sender."""
    value = _value(message)
    if copies is None:
        return value, None, way.deliver(value, feed)
    said = feed.compress(operator, value - copies, way.round, way.step)
    copies = copies + said
    return said, copies, way.mixing @ copies + (value - copies)


def _value(message: Any) -> Rows:
    return message.value if isinstance(message, Weighted) else message


def _checked_message(algorithm: Algorithm, state: Any) -> Any:
    message = algorithm.message(state)
    if isinstance(message, Weighted) and not (
        arrays.is_real(message.weight) and tuple(message.weight.shape) == (message.value.shape[0], 1)
    ):
        raise Unaccountable(
            "the weight beside a message is public: one number per node that depends on no gradient and no noise; "
            "send private values as the message itself"
        )
    return message


def _next(mixing: Mixing, new: Any, old: Any) -> Any:
    """The state after a map: new where nodes are active, old elsewhere, and protected from changes."""
    here = None if mixing.active is None or mixing.active.all() else mixing.active
    return _keep(here, new, old)


def _keep(active: NDArray[np.bool_] | None, new: Any, old: Any) -> Any:
    if isinstance(new, tuple):
        before = old if isinstance(old, tuple) else [None] * len(new)
        leaves = [_keep(active, a, b) for a, b in zip(new, before, strict=True)]
        return type(new)(*leaves) if hasattr(new, "_fields") else tuple(leaves)
    if new is None or isinstance(new, bool | int | float):
        return new
    if not hasattr(new, "shape"):
        raise InputError(
            f"a {type(new).__name__} in an algorithm's state",
            "states are tuples of arrays and numbers",
            "use a NamedTuple",
        )
    if active is None or old is None:
        return arrays.read_only(new)
    here = arrays.column(active, new)
    return arrays.read_only(new * here + old * (1 - here))
