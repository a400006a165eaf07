"""Models and messages on grids, for noise on single messages that cancels at its sender (ZIP-DL).

Node u has a model y after its step, sends `y + e_v` to each neighbour v, and keeps the message to itself, whose noise
makes up for the others'. With exact noise it keeps what that comes to:

    m_v = round((y + e_v) / H) H                                   as if y and e_v had infinitely many digits
    x   = y + sum_v share(W[u,v] m of v to u) - sum_v share(W[v,u] m_v),        share(w) = round(w / h) h

So the next model is y, exactly, plus a function of what was sent. Models are multiples of the step h of models, which
float64 holds without error, and y itself is rounded to them. That is part of what a node contributes: it adds `extra`
to its sensitivity, relatively. The step H of messages adds nothing. The proof stands in docs/guarantees.md.

Shapes: N nodes, D parameters, E directed edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.arrays import Reals
from sottovoce.core.grid import PARAMETERS, NoiseOnGrid, grid_step, power_of_two_below
from sottovoce.core.mixing import TOLERANCE, Mixing
from sottovoce.core.noise import NoiseTerm
from sottovoce.core.sensitivity import in_units_of_largest, largest

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
    """Messages are multiples of `step`, models of `model_step`; `term` is the noise on messages, in steps of theirs."""

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
    in_steps = replace(term, matrix=term.matrix.scaled(scale).scaled(1 / step))
    return MessageGrid(step, model_step, in_steps, mixing, least_sensitivity)


@lru_cache(maxsize=64)
def _noise_of(grid: MessageGrid, sender_bytes: bytes, receiver_bytes: bytes) -> NoiseOnGrid:
    sender, receiver = (np.frombuffer(nodes, dtype=np.intp) for nodes in (sender_bytes, receiver_bytes))
    edges, n = grid.term.edges, grid.mixing.n
    assert edges is not None
    at = np.searchsorted(edges.sender * n + edges.receiver, sender * n + receiver)
    chosen = sparse.csr_array((np.ones(len(at)), (np.arange(len(at)), at)), shape=(len(at), len(edges.sender)))
    return NoiseOnGrid(grid.step, (replace(grid.term, matrix=grid.term.matrix.after(chosen), edges=None),), None)
