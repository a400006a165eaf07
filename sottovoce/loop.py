"""The round loop: the one place where point, gradient, local, message, mix and absorb follow each other.

The loop does not know what flows through it. A `Feed` answers its three questions: what is the gradient here, what
is the noise now, what does compression keep. `Draws` answers with numbers, and the loop trains; the tracer's feed
answers with basis rows, and the messages are the matrices A and B.

    >>> import numpy as np
    >>> from sottovoce.algorithms import algorithm
    >>> from sottovoce.topology import metropolis
    >>> pull = lambda round, x: x - np.arange(4.0)[:, None]          # node u wants to be at u
    >>> end = run(algorithm("d-psgd", step_size=0.5), metropolis("ring:4"), np.zeros((4, 1)), pull, rounds=50)
    >>> float(end.mean().round(6))
    1.5

Shapes: N nodes, D parameters, E directed edges, S noise sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce import arrays
from sottovoce.arrays import Rows
from sottovoce.compression import Compression, Identity
from sottovoce.errors import InputError
from sottovoce.noise import Correlation, Injection, Sources, generator
from sottovoce.topology import Mixing, Topology

if TYPE_CHECKING:
    from sottovoce.algorithms import Algorithm

Gradient = Callable[[int, Rows], Rows]
"""`gradient(round, points)`: every node's gradient at its own point, one row per node, clipped to the sensitivity.

It must not change `points`.
"""

CHUNK = 1 << 22
"""At most about this many noise values are alive at once, whatever the number of edges."""


class Weighted(NamedTuple):
    """A message with a public weight beside it, mixed alike: push-sum's."""

    value: Rows
    weight: Rows


class Carry(NamedTuple):
    """All that passes from round to round: the algorithm's state, and the copies that receivers hold of each node."""

    state: Any
    copies: Rows | None


class Feed(Protocol):
    """What flows through the loop."""

    def gradient(self, round: int, point: Rows) -> Rows:
        """The gradient of round `round`, taken at `point`."""

    def noise(self, sources: Sources, matrix: sparse.csr_array, round: int, step: int) -> Rows:
        """`matrix @ Z` for the sources of this step."""

    def correlated(self, correlation: Correlation, sources: Sources, matrix: sparse.csr_array, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_round`."""

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Every row compressed."""


class Heard(NamedTuple):
    """Messages as they travel: row i goes from `sender[i]` to `receiver[i]`.

    A receiver of -1 stands for all whom the sender speaks to in this step; a sender of -1 for a sum over all nodes.
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    rows: Rows


@dataclass(frozen=True)
class Step:
    """One gossip step as it happened: what was said, and what an observer can take from it."""

    round: int
    step: int
    mixing: Mixing
    said: Rows
    mixed: Rows
    edge: tuple[Injection, ...]
    scale: float
    secure_sum: bool
    feed: Feed

    def heard(self) -> Heard:
        """Every message that leaves a node in this step; messages to oneself do not."""
        if self.secure_sum:
            return Heard(np.array([-1]), np.array([-1]), self.mixed[np.array([0])])
        sender, receiver, _ = self.mixing.edges
        out = sender != receiver
        sender, receiver = sender[out], receiver[out]
        if not self.edge:
            sender = np.unique(sender)
            return Heard(sender, np.full(len(sender), -1), self.said[sender])
        rows = self.said[sender]
        for injection in self.edge:
            matrix = _on_edges(injection, self.scale, self.mixing.n, sender, receiver)
            rows = rows + self.feed.noise(injection.sources, matrix, self.round, self.step)
        return Heard(sender, receiver, rows)


@dataclass(frozen=True)
class Round:
    """One round as it happened: where gradients were taken, what was released locally, and the gossip steps."""

    round: int
    point: Rows | None
    steps: tuple[Step, ...]
    carry: Carry


def begin(algorithm: Algorithm, topology: Topology, x0: Rows, rounds: int) -> tuple[Algorithm, Carry]:
    """The algorithm fitted to the topology, and the state before the first round; refuses what does not fit."""
    if not isinstance(topology, Topology):
        raise InputError(
            f"a {type(topology).__name__} instead of a topology", "a graph needs weights", "give metropolis(graph)"
        )
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise InputError(f"{rounds} rounds", "a whole number from 1 is needed", "give 100, say")
    arrays.check_start(x0, topology.n)
    if algorithm.once and arrays.is_real(x0) and bool((x0 != 0).any()):
        raise InputError(
            f"{algorithm.name} from a starting point that is not zero",
            "values to average are private: they enter as the gradient of round 0",
            "start from zeros and give the values in the gradient",
        )
    if algorithm.noise.correlation is not None:
        algorithm.noise.correlation.matrix(rounds)
    algorithm = algorithm.on(topology)
    state = algorithm.init(x0)
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
        state = _keep(mixing.active, algorithm.local(state, grad, noise), state)
    steps = []
    for step in range(algorithm.gossip_steps):
        mixing = topology.at(round, step)
        mixing.require(algorithm.requires)
        message = algorithm.message(state)
        said, copies, mixed = _transmit(algorithm.compression, mixing, message, copies, feed, round, step)
        edge, scale = algorithm.noise.edge(mixing), algorithm.step_size * algorithm.sensitivity
        for injection in edge:
            mixed = mixed + feed.noise(injection.sources, _received(injection, scale, mixing), round, step)
        steps.append(Step(round, step, mixing, said, mixed, edge, scale, algorithm.secure_sum, feed))
        took = Weighted(mixed, mixing @ message.weight) if isinstance(message, Weighted) else mixed
        state = _keep(mixing.active, algorithm.absorb(state, took), state)
    return Round(round, point, tuple(steps), Carry(state, copies))


def rounds_of(
    algorithm: Algorithm, topology: Topology, x0: Rows, gradient: Gradient, *, rounds: int, seed: int = 0
) -> Iterator[Round]:
    """Run round by round; each `Round` tells what was said and carries the state."""
    algorithm, carry = begin(algorithm, topology, x0, rounds)
    topology.require_connected()
    feed = Draws(seed, gradient, x0)
    for round in range(rounds):
        played = play(algorithm, topology, carry, feed, round)
        carry = played.carry
        yield played


def run(algorithm: Algorithm, topology: Topology, x0: Rows, gradient: Gradient, *, rounds: int, seed: int = 0) -> Rows:
    """Run and return where every node ends: one row per node."""
    for played in rounds_of(algorithm, topology, x0, gradient, rounds=rounds, seed=seed):
        state = played.carry.state
    return algorithm.point(state)


# --- within a round ------------------------------------------------------------------------------------------------


def _local_noise(algorithm: Algorithm, mixing: Mixing, feed: Feed, round: int) -> Rows | float:
    total: Any = 0.0
    for injection in algorithm.noise.local(mixing):
        matrix = algorithm.sensitivity * injection.matrix
        correlation = algorithm.noise.correlation
        if correlation is None:
            total = total + feed.noise(injection.sources, matrix, round, 0)
        else:
            total = total + feed.correlated(correlation, injection.sources, matrix, round)
    return total


def _transmit(
    operator: Compression, mixing: Mixing, message: Any, copies: Rows | None, feed: Feed, round: int, step: int
) -> tuple[Rows, Rows | None, Rows]:
    """What is said, the receivers' copies after it, and the mix; with compression the error stays with the sender."""
    value = _value(message)
    if copies is None:
        return value, None, mixing @ value
    said = feed.compress(operator, value - copies, round, step)
    copies = copies + said
    return said, copies, mixing @ copies + (value - copies)


def _value(message: Any) -> Rows:
    return message.value if isinstance(message, Weighted) else message


def _received(injection: Injection, scale: float, mixing: Mixing) -> sparse.csr_array:
    """How the sources of noisy messages reach the receivers' sums, N x S: only what is delivered, by its weight."""
    assert injection.edges is not None
    sender, receiver, _ = injection.edges
    weight = np.asarray(mixing.weights[receiver, sender]).ravel()
    if mixing.planned is not None:  # a receiver's kept weight applies to its own state, which has only planned noise
        own = sender == receiver
        weight[own] = np.asarray(mixing.planned[receiver[own], sender[own]]).ravel()
    carry = sparse.csr_array((scale * weight, (receiver, np.arange(len(sender)))), shape=(mixing.n, len(sender)))
    return sparse.csr_array(carry @ injection.matrix)


def _on_edges(
    injection: Injection, scale: float, n: int, sender: NDArray[Any], receiver: NDArray[Any]
) -> sparse.csr_array:
    """The rows of an injection for the given edges."""
    assert injection.edges is not None
    planned = injection.edges.sender * n + injection.edges.receiver
    matrix = injection.matrix[np.searchsorted(planned, sender * n + receiver)]
    matrix.data *= scale
    return matrix


def _keep(active: NDArray[np.bool_] | None, new: Any, old: Any) -> Any:
    """The new state where nodes are active, the old one elsewhere."""
    if active is None or active.all() or old is None:
        return new
    if isinstance(new, tuple):
        return type(new)(*(_keep(active, a, b) for a, b in zip(new, old, strict=True)))
    if not hasattr(new, "shape"):
        return new
    here = arrays.column(active, new)
    return new * here + old * (1 - here)


# --- the feed of a real run ----------------------------------------------------------------------------------------


class Draws:
    """Real gradients, and noise drawn by (seed, source, round)."""

    def __init__(self, seed: int, gradient: Gradient, like: Rows) -> None:
        self.seed, self._gradient, self._like = seed, gradient, like
        self._past: list[Any] = []
        self._next_round = 0

    def gradient(self, round: int, point: Rows) -> Rows:
        """Asks the task; refuses what would poison every neighbour."""
        grad = self._gradient(round, arrays.read_only(point))
        if arrays.is_torch(grad) != arrays.is_torch(point) or not arrays.is_real(grad):
            raise InputError(
                f"gradient of type {type(grad).__name__}", f"points are {type(point).__name__}", "return the same kind"
            )
        if tuple(grad.shape) != tuple(point.shape):
            raise InputError(
                f"gradient of shape {tuple(grad.shape)}", f"points have {tuple(point.shape)}", "one row per node"
            )
        if not math.isfinite(float(grad.sum())):
            raise InputError(
                f"gradient with nan or infinity in round {round}",
                "it would spread to every node",
                "clip it, lower the step size",
            )
        return grad

    def noise(self, sources: Sources, matrix: sparse.csr_array, round: int, step: int) -> Rows:
        """`matrix @ Z`, a chunk of sources at a time."""
        D, dtype = self._like.shape[1], arrays.numpy_dtype(self._like)
        out = np.zeros((matrix.shape[0], D), dtype=dtype)
        by_source = sparse.csc_array(matrix, dtype=dtype)
        needed = np.diff(by_source.indptr) > 0
        for which, rows in sources.draw(self.seed, round, step, D, dtype, needed, CHUNK):
            block = by_source[:, which]
            touched, row = np.unique(block.indices, return_inverse=True)
            small = sparse.csc_array((block.data, row, block.indptr), shape=(len(touched), len(which)))
            out[touched] += small @ rows
        return arrays.convert(out, self._like)

    def correlated(self, correlation: Correlation, sources: Sources, matrix: sparse.csr_array, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_t`: earlier rounds are remembered as far as C looks back, or drawn again."""
        if round < self._next_round:
            self._past, self._next_round = [], 0
        eye = sparse.eye_array(sources.size, format="csr")
        for t in range(self._next_round, round + 1):
            fresh = self.noise(sources, eye, t, 0)
            result, keep = correlation.next(t, fresh, self._past)
            self._past = [*self._past, keep][-correlation.memory :] if correlation.memory else []
        self._next_round = round + 1
        return arrays.operator(matrix, self._like) @ result

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Each node's row with its own random stream."""
        values = rows.detach().cpu().numpy() if arrays.is_torch(rows) else rows
        streams = [generator(self.seed, "compression", [node], round, step) for node in range(len(values))]
        return arrays.convert(operator.apply(values, streams), rows)
