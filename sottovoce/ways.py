"""How messages travel in one gossip step: along which edges, with which noise on each, or only as a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce import arrays
from sottovoce.arrays import Rows
from sottovoce.mixing import Mixing
from sottovoce.noise import Injection, Spread

if TYPE_CHECKING:
    from sottovoce.loop import Feed


@dataclass(frozen=True)
class Way:
    """One gossip step of a round. `edge` is the noise on single messages, in units of `scale`.

    With `secure_sum` single messages stay hidden and only their sum is seen.
    """

    mixing: Mixing
    edge: tuple[Injection, ...]
    scale: float
    secure_sum: bool
    round: int
    step: int

    def deliver(self, rows: Rows, feed: Feed) -> Rows:
        """`sum_v W[u,v] (rows_v + noise on v -> u)`. Rows that are spread over processes add noise before they send."""
        return self.sums(rows, feed) if arrays.is_real(rows) else rows.delivered(self, feed)

    def sums(self, rows: Rows, feed: Feed) -> Rows:
        """The same, where all rows are at hand."""
        mixed = self.mixing @ rows
        for injection in self.edge:
            mixed = mixed + feed.noise(injection.sources, self.received(injection), self.round, self.step)
        return mixed

    def received(self, injection: Injection, among: NDArray[np.bool_] | None = None) -> Spread:
        """How the sources of noisy messages reach the receivers' sums, N x S: only what is delivered, by its weight.

        `among` leaves out messages to or from other nodes.
        """
        assert injection.edges is not None
        mixing, (sender, receiver, _) = self.mixing, injection.edges
        weight = np.asarray(mixing.weights[receiver, sender]).ravel()
        if mixing.planned is not None:  # a receiver's kept weight applies to its own state, which has planned noise
            own = sender == receiver
            weight[own] = np.asarray(mixing.planned[receiver[own], sender[own]]).ravel()
        if among is not None:
            weight = weight * (among[sender] & among[receiver])
        where = (receiver, np.arange(len(sender)))
        carry = sparse.csr_array((self.scale * weight, where), shape=(mixing.n, len(sender)))
        carry.eliminate_zeros()
        return injection.matrix.after(carry)

    def on_edges(self, injection: Injection, sender: NDArray[Any], receiver: NDArray[Any]) -> Spread:
        """The rows of an injection for the given edges."""
        assert injection.edges is not None
        n = self.mixing.n
        planned = injection.edges.sender * n + injection.edges.receiver
        at = np.searchsorted(planned, sender * n + receiver)
        where = (np.arange(len(at)), at)
        pick = sparse.csr_array((np.full(len(at), self.scale), where), shape=(len(at), len(planned)))
        return injection.matrix.after(pick)
