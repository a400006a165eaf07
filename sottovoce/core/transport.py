"""How messages travel in one gossip step: along which edges, with which noise on each, or only as a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix, NoiseTerm

if TYPE_CHECKING:
    from sottovoce.core.loop_inputs import LoopInputs


@dataclass(frozen=True)
class GossipStep:
    """One gossip step of a round. `edge` is the noise on single messages, in units of `scale`.

    With `secure_sum` single messages stay hidden and only their sum is seen.
    """

    mixing: Mixing
    edge: tuple[NoiseTerm, ...]
    scale: float
    secure_sum: bool
    round: int
    step: int

    def deliver(self, rows: Rows, feed: LoopInputs) -> Rows:
        """`sum_v W[u,v] (rows_v + noise on v -> u)`. Rows that are spread over processes add noise before they send."""
        return self.sums(rows, feed) if arrays.is_real(rows) else rows.delivered(self, feed)

    def sums(self, rows: Rows, feed: LoopInputs) -> Rows:
        """The same, where all rows are at hand."""
        mixed = self.mixing @ rows
        for term in self.edge:
            mixed = mixed + feed.noise(term.sources, self.received(term), self.round, self.step)
        return mixed

    def received(self, term: NoiseTerm, among: NDArray[np.bool_] | None = None) -> FactoredMatrix:
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
        carry = sparse.csr_array((self.scale * weight, where), shape=(mixing.n, len(sender)))
        carry.eliminate_zeros()
        return term.matrix.after(carry)

    def on_edges(self, term: NoiseTerm, sender: NDArray[Any], receiver: NDArray[Any]) -> FactoredMatrix:
        """The rows of an injection for the given edges."""
        assert term.edges is not None
        n = self.mixing.n
        planned = term.edges.sender * n + term.edges.receiver
        at = np.searchsorted(planned, sender * n + receiver)
        where = (np.arange(len(at)), at)
        pick = sparse.csr_array((np.full(len(at), self.scale), where), shape=(len(at), len(planned)))
        return term.matrix.after(pick)
