"""One gossip step: along which edges messages go, with which noise on each, or only as a sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.grid import MessageGrid
from sottovoce.core.integer_sums import IntegerSums
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix, NoiseTerm


@dataclass(frozen=True)
class GossipStep:
    """Gossip step `step` of a round. `edge_noise` is the noise on single messages, in units of `scale`.

    With `secure_sum` all see one sum over all nodes, and no single message. With a `grid`, sums are of integers: over
    all nodes, or over each node's neighbours. With a `message_grid`, noisy messages and models are on it.
    """

    mixing: Mixing
    edge_noise: tuple[NoiseTerm, ...]
    scale: float
    secure_sum: bool
    round: int
    step: int
    grid: IntegerSums | None = None
    message_grid: MessageGrid | None = None

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
