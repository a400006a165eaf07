"""How a node's noisy quantity becomes what it releases: real numbers, multiples of a step, or integers that are summed.

Three siblings of one protocol. The settings of an algorithm say which one it is (`release_of`); the round loop knows
none of them. A release says what enters the local step of a round, and how the messages of a gossip step travel.

- `RealNumbers`: the local step adds noise to gradients in floating point; messages may have noise of their own.
- `OnGrid`: with exact noise, gradients plus noise are rounded before the local step; or messages are, and models.
- `SummedIntegers`: with exact noise and secure sums, messages travel as integers of which only sums are seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core import arrays
from sottovoce.core.algorithm import (
    Algorithm,
    radius_of,
    rule_of,
    ruled_by_sum,
    sums_over_all,
    sums_over_neighbours,
)
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import MessageGrid, NoiseOnGrid, check_models, message_grid, noise_on_grid, why_not_exact
from sottovoce.core.integer_sums import IntegerSums, model_grid, sum_grid
from sottovoce.core.mixing import Mixing, clipped_average
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.noise_sources import Sources
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable


class LoopInputs(Protocol):
    """What the round loop asks for: gradients, noise and compressed rows, for all nodes whose rows go through it.

    The loop does not know what flows through it. Whoever answers with numbers trains; whoever answers with basis rows
    traces.
    """

    def gradient(self, round: int, point: Rows) -> Rows:
        """The gradient of round `round`, taken at `point`."""

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """`matrix @ Z` for the sources of this step."""

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_round`."""

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """Values plus noise as multiples of a step: rounded as if both were real numbers, or whole steps in float64."""

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Every row compressed, with the random stream of its node."""


class RunInputs(LoopInputs, Protocol):
    """The inputs of a whole run."""

    def knows_noise_before(self, round: int) -> bool:
        """Whether noise that is correlated over rounds can go on in this round."""

    def finish(self, round: int) -> None:
        """The round is over, and its noise will not be asked for again."""


Gradient: TypeAlias = Callable[[int, Any], Rows]
"""`gradient(round, points)`: every node's gradient at its own point, one row per node, clipped to the sensitivity.

It must not change `points`. What it is given and returns are plain arrays, numpy or torch as the starting point is.
"""


class Entering(NamedTuple):
    """What a local step is given: a gradient, and the noise beside it, 0.0 where there is none or it is in there."""

    gradient: Rows
    noise: Rows | float


class Release(Protocol):
    """How what nodes release is made."""

    def step(self, gradient: Rows, mixing: Mixing, inputs: LoopInputs, round: int) -> Entering:
        """What enters the local step of a round."""

    def message(self, mixing: Mixing, round: int, step: int) -> GossipStep:
        """How the messages of a gossip step travel."""


CLIPPED = "averages that are clipped are not linear: what is proven is proven given all noisy gradients"


@dataclass(frozen=True)
class RealNumbers:
    """In floating point, with the noise of all nodes beside their gradients."""

    algorithm: Algorithm

    def step(self, gradient: Rows, mixing: Mixing, inputs: LoopInputs, round: int) -> Entering:
        noise, sensitivity = self.algorithm.noise, self.algorithm.sensitivity
        total: Rows | float = 0.0
        for number, term in enumerate(in_units_of_largest(noise.local(mixing), sensitivity)):
            matrix = term.matrix.scaled(largest(sensitivity))
            if noise.correlation is None:
                drawn = inputs.noise(term.sources, matrix, round, 0)
            else:
                drawn = inputs.correlated(noise.correlation, term.sources, matrix, round)
            total = total + drawn if number else drawn
        return Entering(gradient, total)

    def message(self, mixing: Mixing, round: int, step: int) -> GossipStep:
        return _gossip_step(self.algorithm, mixing, round, step)


@dataclass(frozen=True)
class OnGrid:
    """Gradients plus noise, or messages plus theirs, as multiples of a step, as if all were real numbers."""

    algorithm: Algorithm

    def step(self, gradient: Rows, mixing: Mixing, inputs: LoopInputs, round: int) -> Entering:
        if self.algorithm.noise.edge(mixing):
            return RealNumbers(self.algorithm).step(gradient, mixing, inputs, round)
        return Entering(inputs.released(gradient, noise_on_grid(self.algorithm, mixing), round), 0.0)

    def message(self, mixing: Mixing, round: int, step: int) -> GossipStep:
        return _gossip_step(self.algorithm, mixing, round, step, message_grid=message_grid(self.algorithm, mixing))


@dataclass(frozen=True)
class SummedIntegers:
    """Of sums over all nodes, gradients plus discrete Gaussians; of sums over neighbours, models of noisy gradients."""

    algorithm: Algorithm

    def step(self, gradient: Rows, mixing: Mixing, inputs: LoopInputs, round: int) -> Entering:
        if not sums_over_all(self.algorithm):
            return Entering(inputs.released(gradient, noise_on_grid(self.algorithm, mixing), round), 0.0)
        noise, rule = sum_grid(self.algorithm, mixing).noise, rule_of(self.algorithm)
        if rule.encoding is None or not rule.applied:  # not encoded, noise is traced as sums are worth it
            noise = replace(noise, correlation=self.algorithm.noise.correlation)
        return Entering(inputs.released(gradient, noise, round), 0.0)

    def message(self, mixing: Mixing, round: int, step: int) -> GossipStep:
        return _gossip_step(self.algorithm, mixing, round, step, grid=integer_sums(self.algorithm, mixing))


def release_of(algorithm: Algorithm) -> Release:
    """The one that an algorithm's settings ask for."""
    if not algorithm.exact_noise:
        return RealNumbers(algorithm)
    return SummedIntegers(algorithm) if algorithm.secure_sum else OnGrid(algorithm)


def integer_sums(algorithm: Algorithm, mixing: Mixing) -> IntegerSums:
    """In which integers messages are summed up, with exact noise."""
    return sum_grid(algorithm, mixing) if sums_over_all(algorithm) else model_grid(mixing)


def _gossip_step(
    algorithm: Algorithm,
    mixing: Mixing,
    round: int,
    step: int,
    grid: IntegerSums | None = None,
    message_grid: MessageGrid | None = None,
) -> GossipStep:
    scale = algorithm.step_size * largest(algorithm.sensitivity)
    noise = in_units_of_largest(algorithm.noise.edge(mixing, step), algorithm.sensitivity)
    radius = radius_of(algorithm)
    if radius < math.inf and (noise or grid is not None or mixing.planned is not None):
        raise Unaccountable(
            f"{algorithm.name} with clipped averages; only what is noisy before it is sent may be compared with one's "
            "own: use dp-d-sgd or muffliato-sgd, without secure sums, on a graph of which all take part"
        )
    return GossipStep(mixing, noise, scale, sums_over_all(algorithm), round, step, grid, message_grid, radius)


def check_release(algorithm: Algorithm, topology: Topology, x0: Rows, rounds: int) -> None:
    """Refuse noise that would be drawn twice, or could not be drawn or released as the algorithm asks for."""
    mixing = topology.at(0)
    local, edge = algorithm.noise.local(mixing), algorithm.noise.edge(mixing)
    if sums_over_neighbours(algorithm) and (edge or not isinstance(algorithm.compression, Identity)):
        raise InputError(
            f"{algorithm.name} with secure sums, and compression or noise on single messages",
            "sums are over uncompressed messages that are the same for all receivers",
            "use identity compression and noise on gradients",
        )  # fmt: skip
    if (
        not rule_of(algorithm).linear
        and not ruled_by_sum(algorithm)
        and (edge or (local and not algorithm.exact_noise))
    ):
        raise InputError(
            f"optimizer adam with {algorithm.name}, whose noise is not in its gradients exactly",
            "it is no linear map, and may see nothing but gradients with all of their noise",
            "use an algorithm with noise on gradients and exact_noise, or momentum",
        )
    kinds = [part.sources.kind for part in (*local, *edge)]
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
    models = message_grid(algorithm, mixing)
    if models is not None and arrays.is_plain(x0):
        check_models(algorithm, x0, models.largest_model)


@dataclass(frozen=True)
class GossipStep:
    """Gossip step `step` of a round. `edge_noise` is the noise on single messages, in units of `scale`.

    With `secure_sum` all see one sum over all nodes, and no single message. With a `grid`, sums are of integers: over
    all nodes, or over each node's neighbours. With a `message_grid`, noisy messages and models are on it. With a
    `radius` no message moves a node further than that from its own.
    """

    mixing: Mixing
    edge_noise: tuple[NoiseTerm, ...]
    scale: float
    secure_sum: bool
    round: int
    step: int
    grid: IntegerSums | None = None
    message_grid: MessageGrid | None = None
    radius: float = math.inf

    def mixed(self, rows: Rows) -> Rows:
        """What all nodes make of rows without noise of their own, which all arrive."""
        if self.radius == math.inf:
            return self.mixing @ rows
        if not arrays.is_plain(rows):
            raise Unaccountable(CLIPPED)
        values = arrays.to_numpy(rows)
        return arrays.convert(clipped_average(self.mixing.weights, values, values, self.radius), rows)

    def noise_in_sums(self, term: NoiseTerm, among: NDArray[np.bool_] | None = None) -> FactoredMatrix:
        """How the sources of noisy messages reach the receivers' sums, N x S: only what is delivered, by its weight.

        `among` leaves out messages to or from other nodes.
        """
        assert term.edges is not None
        mixing, (sender, receiver, _) = self.mixing, term.edges
        weight = np.asarray(mixing.weights[receiver, sender]).ravel()
        if mixing.planned is not None:  # a receiver's kept weight applies to its own state, which has planned noise
            own = sender == receiver
            weight[own] = np.asarray(mixing.planned[receiver[own], sender[own]]).ravel()
        if among is not None:
            weight = weight * (among[sender] & among[receiver])
        where = (receiver, np.arange(len(sender)))
        to_receivers = sparse.csr_array((self.scale * weight, where), shape=(mixing.n, len(sender)))
        to_receivers.eliminate_zeros()
        return term.matrix.after(to_receivers)

    def noise_on_edges(self, term: NoiseTerm, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> FactoredMatrix:
        """How the sources of noisy messages reach the messages along some edges: one row for each edge."""
        assert term.edges is not None
        n = self.mixing.n
        planned = term.edges.sender * n + term.edges.receiver
        at = np.searchsorted(planned, sender * n + receiver)
        where = (np.arange(len(at)), at)
        chosen = sparse.csr_array((np.full(len(at), self.scale), where), shape=(len(at), len(planned)))
        return term.matrix.after(chosen)
