"""One member's part in secure sums: what it sends to whom under masks, and what it makes of what it receives.

A receiver and its senders are a set, and sets are those of the agreement. Sender u gives receiver v

    w[v,u] * (its integers) + masks of u with every other sender of v   modulo 2^64

and v adds up what all of its senders gave, and its own integers times its own weight. Where one of them is missing, or
the sum is out of range, v knows nothing, and does not ask again.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.fixed_point import Integers, Words, weighted
from sottovoce.core.integer_weights import IntegerWeights, integer_weights
from sottovoce.core.loop import integer_sums
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.pair_masks import Place as MaskPlace
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.federation.frames import MemberNumber
from sottovoce.ledger.payloads import Place

WORD = np.dtype("<u8")
"""As integers travel."""


def check_sums(algorithm: Algorithm, topology: Topology) -> None:
    """Refuse secure sums that members cannot make: sets too small, sums that do not fit, or sums of a server's noise.

    Sets have one sender more than colluders, and at least two honest ones whoever colludes; sums stay within their
    integers but for a chance below 2^-100.
    """
    fitted = algorithm.on(topology)
    if not fitted.exact_noise:
        raise InputError(
            f"{algorithm.name} in a federation", "its noise is added by a trusted server, and a federation has none",
            "use secure-average, in which every member adds noise of its own",
        )  # fmt: skip
    if fitted.gossip_steps != 1:
        raise InputError(
            f"{algorithm.name} with {fitted.gossip_steps} gossip steps",
            "secure sums allow one gossip step in each round", "use one",
        )  # fmt: skip
    integer_sums(fitted, topology.at(0))


def mask_partners(topology: Topology, member: MemberNumber) -> frozenset[MemberNumber]:
    """The members with which a member shares a receiver: it has masks with each of them."""
    weights = integer_weights(topology.at(0))
    sets = [weights.senders(receiver) for receiver in range(topology.n)]
    return frozenset(one for senders in sets if member in senders for one in senders) - {member}


@dataclass(frozen=True)
class MaskedSums:
    """One member's sums, with the masks that it has in common with others. `names` are all members'."""

    member: MemberNumber
    names: tuple[str, ...]
    masks: PairMasks
    over_all: bool

    def frames(self, weights: IntegerWeights, integers_D: Integers, place: Place) -> dict[MemberNumber, bytes]:
        """What leaves for each receiver: uniformly random to all who lack one of the masks."""
        found = {}
        for receiver, name in enumerate(self.names):
            senders = weights.senders(receiver)
            if self.member in senders:
                others = [self.names[one] for one in senders if one != self.member]
                mask = self.masks.mask(MaskPlace(*place, name), others, len(integers_D))
                masked = weighted(integers_D, weights.weight(receiver, self.member)) + mask
                found[receiver] = masked.astype(WORD, copy=False).tobytes()
        return found

    def missing(self, weights: IntegerWeights, heard: Set[MemberNumber]) -> frozenset[MemberNumber]:
        """Which senders of this member were not heard: with one of them missing the sum is random."""
        return frozenset(weights.senders(self.member)) - heard

    def total(self, weights: IntegerWeights, integers_D: Integers, received: Mapping[MemberNumber, bytes]) -> Words:
        """The sum over the whole set and this member itself."""
        total = weighted(integers_D, weights.weight(self.member, self.member))
        for sender in weights.senders(self.member):
            total = total + np.frombuffer(received[sender], dtype=WORD)
        return total
