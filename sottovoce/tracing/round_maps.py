"""What the maps of an algorithm make of a node's own values in one round: a few coefficients for each node.

A round is these maps, and mixing between them, which is the loop's. So whoever knows the inputs of a node - its state,
its gradient and noise, and what each gossip step gave it - knows what it has to send, and where it has to stand.

Shapes: N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm, radius_of, rule_of
from sottovoce.core.correlation import Correlation
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import Noise, NoiseTerm, PerNode
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.tracing.linear_forms import LinearRows

Numbers: TypeAlias = NDArray[np.floating]
"""One for each node."""

Combination: TypeAlias = tuple[tuple[int, Numbers], ...]
"""Which inputs, each with its coefficient at every node; inputs that are left out have none anywhere."""


class Facts(NamedTuple):
    """What the loop asks an algorithm for in a round besides its maps; noise by what it is made of."""

    local_noise: tuple[NoiseTerm, ...]
    correlation: Correlation | None
    settings: tuple[object, ...]

    @classmethod
    def of(cls, algorithm: Algorithm, mixing: Mixing) -> Facts:
        settings = (
            algorithm.compression, algorithm.gossip_steps, algorithm.step_size, algorithm.sensitivity,
            algorithm.requires, algorithm.averaging, algorithm.secure_sum, algorithm.colluders, algorithm.exact_noise,
            radius_of(algorithm), rule_of(algorithm),
        )  # fmt: skip
        return cls(algorithm.noise.local(mixing), algorithm.noise.correlation, settings)


@dataclass(frozen=True, eq=False)
class RoundMaps:
    """Combinations of these inputs, in this order: the slots of the state, the gradient, the noise beside it, what each
    gossip step gave.

    With exact noise the gradient is what was released, and there is no noise beside it. `deviation` is how large the
    noise is that the loop adds to each gradient, if it is fresh, `edge_noise` what it adds to single messages in each
    gossip step, `weights` the public weights beside messages, if there are any. `facts` are what the loop asks the
    algorithm for besides its maps. `private` says of each leaf of the state whether it is a slot; the others are
    public. `private_out` says it of the state after the round.
    """

    slots: int
    takes_gradients: bool
    adds_noise: bool
    point: Combination | None
    sent: tuple[Combination, ...]
    state_out: tuple[Combination, ...]
    models: Combination
    mixings: tuple[Mixing, ...]
    deviation: Numbers | None
    edge_noise: tuple[tuple[NoiseTerm, ...], ...]
    weights: tuple[Numbers | None, ...]
    facts: Facts
    private: tuple[bool, ...]
    private_out: tuple[bool, ...]

    @property
    def gradient(self) -> int:
        """Which input the gradient is."""
        return self.slots

    def mixed(self, step: int) -> int:
        """Which input is what gossip step `step` gave."""
        return self.slots + self.takes_gradients + self.adds_noise + step

    @property
    def released(self) -> bool:
        """Whether all that follows is a function of the sum of gradient and noise: both have one coefficient."""
        return not self.adds_noise or all(self._alike(one) for one in (*self.sent, *self.state_out, self.models))

    @property
    def made(self) -> tuple[Combination, ...]:
        """What is made of the inputs: messages, the state after the round, models, and the point of a gradient."""
        return (*self.sent, *self.state_out, self.models, *(() if self.point is None else (self.point,)))

    def does_as(self, apart: RoundMaps) -> bool:
        """Whether a round that has noise in its gradients is that of another in which it stands beside them."""
        if not apart.released or len(self.made) != len(apart.made):
            return False
        noise = apart.gradient + 1
        for one, other in zip(self.made, apart.made, strict=True):
            expected = {k - (apart.adds_noise and k > noise): share for k, share in other if k != noise}
            found = dict(one)
            if found.keys() != expected.keys() or any(not np.array_equal(found[k], expected[k]) for k in found):
                return False
        return True

    def _alike(self, combination: Combination) -> bool:
        found = dict(combination)
        gradient, noise = found.get(self.gradient), found.get(self.gradient + 1)
        if gradient is None or noise is None:
            return gradient is noise
        return np.array_equal(gradient, noise)


class ClassMaps(NamedTuple):
    """The maps of every round for a class of coordinates, and where nodes stand after the last, by its slots.

    `coordinates` is None where all coordinates are alike.
    """

    rounds: tuple[RoundMaps, ...]
    end: Combination
    coordinates: NDArray[np.intp] | None = None

    def models(self, played: int) -> tuple[Combination | None, tuple[bool, ...]]:
        """Where nodes stand after so many rounds, by the slots of the state, and which leaves of it these are."""
        if played == len(self.rounds):
            return self.end, self.rounds[-1].private_out
        return self.rounds[played].point, self.rounds[played].private


def combination_of(rows: LinearRows, n: int) -> Combination:
    """The coefficients of rows whose columns are inputs of n nodes each: every node's are of its own values alone."""
    entries = rows.matrix.tocoo()
    row, column = entries.coords
    there = entries.data != 0
    inputs, row, values = column[there] // n, row[there], entries.data[there]
    assert np.array_equal(column[there] % n, row)
    found = []
    for number in np.unique(inputs).tolist():
        coefficients = np.zeros(n)
        coefficients[row[inputs == number]] = values[inputs == number]
        found.append((number, coefficients))
    return tuple(found)


def combined(combination: Combination, inputs: Sequence[Numbers], nodes: NDArray[np.intp] | slice) -> Numbers:
    """The value at these nodes, from theirs of every input."""
    total = np.zeros_like(inputs[0])
    for number, coefficients in combination:
        total += coefficients[nodes] * inputs[number]
    return total


def noise_deviation(noise: Noise, sensitivity: PerNode, mixing: Mixing) -> Numbers | None:
    """How large the noise is that the loop adds to each gradient; not where it depends on that of other rounds."""
    if noise.correlation is not None:
        return None
    variance = np.zeros(mixing.n)
    for term in in_units_of_largest(noise.local(mixing), sensitivity):
        matrix = term.matrix.whole()
        variance += np.bincount(np.repeat(np.arange(mixing.n), np.diff(matrix.indptr)), matrix.data**2, mixing.n)
    return largest(sensitivity) * np.sqrt(variance)
