"""Grids: what nodes release are whole multiples of a step, so that no bit of a floating-point number betrays anything.

Sums of floating-point numbers show how they were rounded, and with that what was added. With `exact_noise` a node
releases

    round((g + z) / h) h,        g its gradient, z its noise, a real number

as if both had infinitely many digits (`rounded_sum`, `exact_gaussians`). That is a function of the real number g + z,
which is what guarantees are about: rounding costs nothing, whatever the step h is, however many parameters and rounds
there are. All that a node does afterwards, in any arithmetic, is a function of what it released.

It holds where noise is added to what is released before anything else is: to gradients, or to values that are averaged.
Where neighbours share noise, each rounds the sum of all its noises.

Noise on single messages is another matter: the state that it hides is sent again, in other messages, so that models are
rounded as well. It has to cancel at its sender (ZIP-DL). Node u has a model y after its step, sends `y + e_v` to each
neighbour v, and keeps the message to itself, whose noise makes up for the others'. With exact noise it keeps what that
comes to:

    m_v = round((y + e_v) / H) H                                   as if y and e_v had infinitely many digits
    x   = y + sum_v share(W[u,v] m of v to u) - sum_v share(W[v,u] m_v),        share(w) = round(w / h) h

So the next model is y, exactly, plus a function of what was sent. Models are multiples of the step h of models, which
float64 holds without error, and y itself is rounded to them. That is part of what a node contributes: it adds `extra`
to its sensitivity, relatively. The step H of messages adds nothing. The proof stands in docs/guarantees.md.

Shapes: N nodes, D parameters, E directed edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.algorithm import Algorithm, Gossip, leaves, rule_of, sums_over_all
from sottovoce.core.arrays import Plain, Reals, numpy_dtype, to_numpy
from sottovoce.core.compression import Identity
from sottovoce.core.correlation import Correlation, of_node
from sottovoce.core.local_rules import PLAIN
from sottovoce.core.mixing import TOLERANCE, Mixing
from sottovoce.core.noise import FactoredMatrix, Noise, NoiseTerm, PerNode, ZeroSum
from sottovoce.core.noise_sources import Sources
from sottovoce.core.sensitivity import in_units_of_largest, largest
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable

STEPS = 16
"""The noise of a node has a standard deviation of at least so many steps: rounding adds 0.03 % to its variance."""

PARAMETERS = 10**9
"""Where rounding adds to a figure, the figure holds for models of up to so many."""

ExactNoiseChoice: TypeAlias = bool | Literal["auto", "where-possible"]
"""Whether released values are put on a grid; `auto`: where the noise is fresh and each node adds some of its own.

`where-possible` is for noise that is correlated over rounds, and for noise on single messages, too.
"""


@dataclass(frozen=True, eq=False)
class NoiseOnGrid:
    """The noise of one round: what is added to gradients before they become multiples of `step`.

    Real numbers, and the sum is rounded; or, for sums of integers, `whole` steps: discrete Gaussians that are at least
    as large, added to rounded gradients.
    """

    step: float
    in_units: tuple[NoiseTerm, ...]
    correlation: Correlation | None = None
    whole: bool = False

    @cached_property
    def terms(self) -> tuple[NoiseTerm, ...]:
        """The same noise in steps. These are powers of two, so that nothing is rounded."""
        return tuple(replace(term, matrix=term.matrix.scaled(1 / self.step)) for term in self.in_units)

    def among(self, part: PartOfNoise) -> NoiseOnGrid:
        """What some nodes, or some sources, have of it."""
        here = (NoiseTerm(*part(term.sources, term.matrix)) for term in self.in_units)
        return replace(self, in_units=tuple(here))


PartOfNoise: TypeAlias = Callable[[Sources, FactoredMatrix], tuple[Sources, FactoredMatrix]]
"""Some of the sources of a noise, and what of its matrix they are for."""


def grid_step(algorithm: Algorithm, mixing: Mixing) -> float:
    """The step of the grid: the power of two that is `STEPS` times in the least noise that a node adds on its own.

    Of noise on single messages, the least on any message. It follows from public settings: the noise, the
    sensitivities and, for messages, the step size.

    >>> from sottovoce import algorithm, metropolis
    >>> grid_step(algorithm("dp-d-sgd", sigma=20.0, sensitivity=0.5), metropolis("ring:8").at(0))
    0.5
    """
    return _step_for(least_noise(algorithm, mixing))


def released_step(algorithm: Algorithm, mixing: Mixing) -> float | None:
    """The step that messages, or noisy gradients, are multiples of; None without exact noise."""
    return grid_step(algorithm, mixing) if algorithm.exact_noise else None


def least_noise(algorithm: Algorithm, mixing: Mixing) -> float:
    """The least noise that a node adds on its own, or has on a message."""
    noise, sensitivity = algorithm.noise, algorithm.sensitivity
    if isinstance(noise, ZeroSum):
        return abs(algorithm.step_size) * float(_message_noise(noise, mixing, sensitivity).min())
    terms = in_units_of_largest(noise.local(mixing), sensitivity)
    return largest(sensitivity) * _least_of_own(terms, noise.correlation)


def _least_of_own(terms: tuple[NoiseTerm, ...], correlation: Correlation | None) -> float:
    own = np.array(_own_noise(terms))
    if correlation is not None:
        own /= [abs(float(of_node(correlation, node).matrix(1)[0, 0])) for node in range(len(own))]
    return float(own.min())


def _step_for(least: float) -> float:
    return power_of_two_below(least) / STEPS


def power_of_two_below(value: float) -> float:
    """The largest one that is not above it."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)


def noise_on_grid(algorithm: Algorithm, mixing: Mixing) -> NoiseOnGrid:
    """The noise of a round, and the step of its grid."""
    return _on_grid(algorithm.noise, algorithm.sensitivity, mixing)


@lru_cache(maxsize=32)
def _on_grid(noise: Noise, sensitivity: PerNode, mixing: Mixing) -> NoiseOnGrid:
    terms, unit = in_units_of_largest(noise.local(mixing), sensitivity), largest(sensitivity)
    step = _step_for(unit * _least_of_own(terms, noise.correlation))
    in_units = tuple(replace(term, matrix=term.matrix.scaled(unit)) for term in terms)
    return NoiseOnGrid(step, in_units, noise.correlation)


def _own_noise(terms: tuple[NoiseTerm, ...]) -> tuple[float, ...]:
    """How large the noise is that each node adds on its own; empty where some node adds none."""
    for term in terms:
        sizes = term.matrix.diagonal()
        if sizes is not None and np.all(sizes > 0):
            return tuple(sizes.tolist())
    return ()


def _message_noise(noise: ZeroSum, mixing: Mixing, sensitivity: PerNode) -> NDArray[np.float64]:
    """The standard deviation of the noise on each message that leaves a node, for a step size of 1."""
    sender, receiver, _ = mixing.planned_edges
    sizes = noise.zetas(mixing) * np.broadcast_to(sensitivity, mixing.n)
    return (noise.gains(mixing) * sizes[sender])[sender != receiver]


def why_not_exact(algorithm: Algorithm, topology: Topology) -> str | None:
    """Why released values cannot be put on a grid so that rounding is covered; None where they can."""
    noise, mixing = algorithm.noise, topology.at(0)
    if noise.edge(mixing):
        return _why_not_on_messages(algorithm, topology)
    if not _own_noise(noise.local(mixing)):
        return "not every node adds noise of its own to what it releases"
    if sums_over_all(algorithm) and not _is_of_package(algorithm):
        return "secure sums add up whole multiples of a step, and its own maps may send other numbers"
    if not _adds_noise_to_gradients(algorithm, topology):
        return "its local step does something else with noise than with gradients, which exact noise is a part of"
    return None


def _is_of_package(algorithm: Algorithm) -> bool:
    return type(algorithm).__module__.startswith("sottovoce.")


def _adds_noise_to_gradients(algorithm: Algorithm, topology: Topology) -> bool:
    """Whether a local step depends on the sum of gradient and noise alone, so that noise may be in the gradient.

    Steps of the package do; one of the user's own may not, and would be another step with exact noise. Noise that takes
    a gradient away, number by number, has to leave nothing of it: every coefficient of both is the same.
    """
    if _is_of_package(algorithm):
        return True
    ready = algorithm.on(topology)
    noise = np.linspace(1.0, 5.0, topology.n)[:, None]
    state = ready.init(0 * noise)
    step, nothing, taken_away, again = (
        leaves(ready.local(state, gradient, added))
        for gradient, added in ((2 * noise, -noise), (0 * noise, 0.0), (-noise, noise), (2 * noise, -noise))
    )
    if not _equal(step, again):
        raise Unaccountable(
            f"{algorithm.name}: its local step gives another answer when it is asked again; what it does may depend on "
            "its state and on what it is given alone: keep counters and schedules in the state"
        )
    return _equal(nothing, taken_away)


def _equal(some: list[Any], others: list[Any]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def _why_not_on_messages(algorithm: Algorithm, topology: Topology) -> str | None:
    """The proof is about one algorithm: what a node keeps is what it had, less what it sent, plus what it got."""
    noise = algorithm.noise
    if not (isinstance(noise, ZeroSum) and noise.closed and _is_plain_gossip(algorithm)):
        return "its noise is on single messages, and what is hidden in one message is sent again in others"
    if not topology.static:
        return "noise on single messages has to cancel, and receivers may be missing"
    if not topology.at(0).column_stochastic:
        return "noise on single messages has to cancel, and what a node sends has weights that do not sum to 1"
    if not _message_noise(noise, topology.at(0), 1.0).all():
        return "not every node adds noise to its messages"
    return None


def _is_plain_gossip(algorithm: Algorithm) -> bool:
    """Whether its maps are those of `Gossip` itself, in one gossip step of whole messages."""
    if not isinstance(algorithm, Gossip) or algorithm.gossip_steps != 1 or algorithm.secure_sum:
        return False
    maps = ("init", "point", "local", "message", "absorb")
    unchanged = all(getattr(type(algorithm), name) is getattr(Gossip, name) for name in maps)
    return unchanged and isinstance(algorithm.compression, Identity) and rule_of(algorithm) == PLAIN


def with_exact_noise(
    algorithm: Algorithm, topology: Topology, wanted: ExactNoiseChoice = "auto", *, in_float64: bool = True
) -> Algorithm:
    """The algorithm with released values on a grid, or not; refused where that is asked for and cannot be.

    `auto` leaves noise that is correlated over rounds, or on single messages, as it is: it would take float64, which
    makes rounds slower. `where-possible` puts it on the grid, too; so do members of a federation. `in_float64` says
    whether models are: float32 does not hold those of noise on single messages.

    >>> from sottovoce import algorithm, metropolis
    >>> ring = metropolis("ring:5")
    >>> [with_exact_noise(algorithm(name, sigma=1.0), ring).exact_noise for name in ("dp-d-sgd", "anti-pgd", "zip-dl")]
    [True, False, False]
    """
    refusal = why_not_exact(algorithm, topology)
    remedy = "leave exact_noise out, or use dp-d-sgd, for example"
    on_messages = bool(algorithm.noise.edge(topology.at(0)))
    if refusal is None and on_messages and not in_float64:
        refusal, remedy = "models on its grid take more bits than float32 has", 'set machine.precision = "float64"'
    if wanted is True and refusal is not None:
        raise InputError(f"exact_noise with {algorithm.name}", refusal, remedy)
    fresh = (algorithm.noise.correlation is None or sums_over_all(algorithm)) and not on_messages
    by_default = algorithm.exact_noise or (refusal is None and fresh)
    exact = {"auto": by_default, "where-possible": refusal is None}.get(str(wanted), wanted is True)
    if exact == algorithm.exact_noise:
        return algorithm
    return replace(algorithm, exact_noise=exact)  # type: ignore[type-var]


def check_models(algorithm: Algorithm, x0: Plain, largest_model: float) -> None:
    """Refuse models that a grid of models does not hold. Starting points are public."""
    found, instead = f"{algorithm.name} with exact noise, and models", "or leave exact_noise out"
    if numpy_dtype(x0) != np.float64:
        raise InputError(
            f"{found} of {numpy_dtype(x0)}", "on its grid they take more bits than float32 has",
            f'set machine.precision = "float64", {instead}',
        )  # fmt: skip
    if x0.shape[1] > PARAMETERS:
        raise InputError(
            f"{found} of {x0.shape[1]:,} parameters", f"{PARAMETERS:,} are covered", "leave exact_noise out"
        )
    largest_start = float(np.abs(to_numpy(x0)).max())
    if largest_start > largest_model:
        raise InputError(
            f"{found} that start at {largest_start:.3g}", f"its grid reaches to {largest_model:.3g}",
            f"use a larger step size or clipping bound, {instead}",
        )  # fmt: skip


Nodes: TypeAlias = NDArray[np.intp]
"""Numbers of nodes, one for each edge."""

LARGEST_SHARE = 2.0**-8
"""Rounding to the step of models moves a model of `PARAMETERS` by at most this share of a sensitivity at each end."""

LARGEST_MULTIPLE = 2.0**49
"""Parameters are at most so many steps: sums of them are exact in float64, and steps are right to an eighth of h."""

AT_ONCE = 1 << 22
"""At most about so many numbers of messages are made at once, if no node sends more."""


@dataclass(frozen=True, eq=False)
class MessageGrid:
    """Messages are multiples of `step`, models of `model_step`; `term` is the noise on messages."""

    step: float
    model_step: float
    term: NoiseTerm
    mixing: Mixing
    least_sensitivity: float

    @property
    def largest_model(self) -> float:
        """Parameters are between this and its negative."""
        return LARGEST_MULTIPLE * self.model_step

    def extra(self, rounds: int) -> float:
        """What rounding adds to every sensitivity, relatively, for models of up to `PARAMETERS`; rounded up.

        At each end of a change h / 2, and an eighth of h that float64 loses of the step. A model passes from round to
        round as a whole, where weights that sum to 1 within a tolerance may pass on a little less.
        """
        rounding = 1.25 * self.model_step * math.sqrt(PARAMETERS) / self.least_sensitivity
        return (1 + rounding) * (1 + 2 * rounds * TOLERANCE) * (1 + 1e-12) - 1

    def rounded(self, models_ND: Reals) -> Reals:
        """Models on their grid."""
        return self._within(np.rint(models_ND / self.model_step) * self.model_step)

    def next_models(self, models_ND: Reals, shares_ND: Reals) -> Reals:
        """Models after a gossip step, from those before it and the sums of shares."""
        return self._within(models_ND + shares_ND)

    def _within(self, models_ND: Reals) -> Reals:
        return np.clip(models_ND, -self.largest_model, self.largest_model)

    def noise(self, sender: Nodes, receiver: Nodes) -> NoiseOnGrid:
        """The noise of some messages, in steps."""
        return _noise_of(self, sender.tobytes(), receiver.tobytes())

    def shares(self, messages_ED: Reals, sender: Nodes, receiver: Nodes) -> Reals:
        """What messages are worth to their receivers, and what their senders give away for them."""
        weights = np.asarray(self.mixing.weights[receiver, sender]).reshape(-1, 1)
        return np.rint(messages_ED * weights / self.model_step) * self.model_step

    def blocks(self, dimension: int) -> Iterator[tuple[Nodes, Nodes]]:
        """Senders and receivers of all messages, as many at a time as fit: those of one sender are together."""
        sender, receiver, _ = self.mixing.edges
        sender, receiver = sender[sender != receiver], receiver[sender != receiver]
        degree = np.bincount(sender, minlength=self.mixing.n)
        size = np.cumsum(degree * (dimension + 4 * degree))  # the matrix of a node's noise has degree squared entries
        last = np.cumsum(degree)
        start, done = 0, 0
        while done < len(sender):
            end = max(start + 1, int(np.searchsorted(size, (size[start - 1] if start else 0) + AT_ONCE, side="right")))
            yield sender[done : last[end - 1]], receiver[done : last[end - 1]]
            start, done = end, int(last[end - 1])


def sums_of_shares(shares_ED: Reals, gained_by: Nodes, given_by: Nodes, n: int) -> Reals:
    """For each of n rows the sum of the shares that it gains, less those that it gives; -1 stands for no row here."""
    row, column = np.concatenate([gained_by, given_by]), np.tile(np.arange(len(gained_by)), 2)
    signs, here = np.repeat([1.0, -1.0], len(gained_by)), row >= 0
    matrix = sparse.csr_array((signs[here], (row[here], column[here])), shape=(n, len(gained_by)))
    return np.asarray(matrix @ shares_ED)


def message_grid(algorithm: Algorithm, mixing: Mixing) -> MessageGrid | None:
    """The grids of an algorithm whose noise is on single messages; None where it is not, or nothing is exact."""
    terms = in_units_of_largest(algorithm.noise.edge(mixing), algorithm.sensitivity) if algorithm.exact_noise else ()
    if not terms:
        return None
    scale, step = algorithm.step_size * largest(algorithm.sensitivity), grid_step(algorithm, mixing)
    return _message_grid(terms, scale, abs(algorithm.step_size) * float(np.min(algorithm.sensitivity)), step, mixing)


@lru_cache(maxsize=8)
def _message_grid(
    terms: tuple[NoiseTerm, ...], scale: float, least_sensitivity: float, step: float, mixing: Mixing
) -> MessageGrid:
    (term,) = terms
    model_step = power_of_two_below(least_sensitivity * LARGEST_SHARE / math.sqrt(PARAMETERS))
    in_units = replace(term, matrix=term.matrix.scaled(scale))
    return MessageGrid(step, model_step, in_units, mixing, least_sensitivity)


@lru_cache(maxsize=64)
def _noise_of(grid: MessageGrid, sender_bytes: bytes, receiver_bytes: bytes) -> NoiseOnGrid:
    sender, receiver = (np.frombuffer(nodes, dtype=np.intp) for nodes in (sender_bytes, receiver_bytes))
    edges, n = grid.term.edges, grid.mixing.n
    assert edges is not None
    at = np.searchsorted(edges.sender * n + edges.receiver, sender * n + receiver)
    chosen = sparse.csr_array((np.ones(len(at)), (np.arange(len(at)), at)), shape=(len(at), len(edges.sender)))
    return NoiseOnGrid(grid.step, (NoiseTerm(grid.term.sources, grid.term.matrix.after(chosen)),))
