"""What the messages of an agreement are, who sends them to whom, whether one may be missing, and how sums are masked.

All of it follows from the agreement and the algorithm that runs.

In secure sums a receiver and its senders are a set, and sets are those of the agreement. Sender u gives receiver v

    w[v,u] * (its integers) + masks of u with every other sender of v   modulo 2^64

and v adds up what all of its senders gave, and its own integers times its own weight. Where one of them is missing, or
the sum is out of range, v knows nothing, and does not ask again.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm, Weighted
from sottovoce.core.arrays import Precision, Reals
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.integer_sums import Integers, IntegerWeights, Words, integer_weights, weighted
from sottovoce.core.mixing import Mixing
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.pair_masks import Place as MaskPlace
from sottovoce.core.release import integer_sums
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.federation.frames import Kind, MemberNumber, Reason, Refused
from sottovoce.ledger.payloads import Place

AHEAD = 2
"""So many places a neighbour may be ahead. Who sends the next message once the one before it is acknowledged stays
within: a message is acknowledged when at most one place is left before its own."""

KEPT = AHEAD + 2
"""For so many places, and for the whole of a round, what was sent is kept for those that have not acknowledged it."""


@dataclass(frozen=True)
class PayloadRule:
    """What the payload of every message must be: little-endian numbers of the run's precision, or a compressed row.

    With `masked` they are integers modulo 2^64 under masks, of which nothing but their number can be checked.
    With `largest_weight` the last number is push-sum's weight, which lies above 0. `decompress` gives the numbers of a
    compressed row, and may raise anything that indexing does.
    """

    length: int
    precision: Precision
    least: float = -math.inf
    largest: float = math.inf
    largest_weight: float | None = None
    decompress: Callable[[bytes], Reals] | None = None
    masked: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of frame that carries it."""
        return Kind.MASKED if self.masked else Kind.MESSAGE

    def check(self, payload: bytes) -> None:
        """Refuse what is too short or long, not finite, or beyond the agreed range."""
        if len(payload) != self.length:
            raise Refused(Reason.LENGTH)
        if self.masked:
            return
        numbers = self._numbers(payload)
        row = numbers if self.largest_weight is None else numbers[:-1]
        finite = np.finfo(self.precision)
        least, largest = max(self.least, float(finite.min)), min(self.largest, float(finite.max))
        if row.size and not (least <= row.min() and row.max() <= largest):
            raise Refused(Reason.RANGE)
        if self.largest_weight is not None and not 0 < numbers[-1] <= self.largest_weight:
            raise Refused(Reason.RANGE)

    def _numbers(self, payload: bytes) -> Reals:
        if self.decompress is None:
            return np.frombuffer(payload, dtype=self.precision.newbyteorder("<"))
        try:
            with np.errstate(all="ignore"):
                return self.decompress(payload)
        except (IndexError, ValueError):
            raise Refused(Reason.RANGE) from None


PROVEN = struct.Struct("<III")
"""A place and a receiver, as they enter a tag."""


class Earlier(NamedTuple):
    """An agreement that held before a round, and the numbers in it of those who are members now."""

    before: int
    agreement: bytes
    numbers: Mapping[MemberNumber, MemberNumber]


@dataclass(frozen=True)
class LinkRules:
    """What the agreement says about one member's links: who speaks to whom, and what messages must be.

    `earlier` are those that it amends, as this member has played them, the first of them first; who is `leaving` has no
    part in the one that amends it.
    """

    agreement: bytes
    member: MemberNumber
    senders: frozenset[MemberNumber]
    receivers: frozenset[MemberNumber]
    rounds: int
    steps: int
    payload: PayloadRule
    earlier: tuple[Earlier, ...] = ()
    leaving: frozenset[MemberNumber] = frozenset()

    @property
    def since(self) -> int:
        """The first round under this agreement."""
        return self.earlier[-1].before if self.earlier else 0

    def proven(self, place: Place, receiver: MemberNumber) -> bytes:
        """What a tag is about: the agreement that held then, the place, and the receiver's number in it."""
        for one in self.earlier:
            if place.round < one.before:
                number = one.numbers.get(receiver, receiver)
                return one.agreement + PROVEN.pack(*place, number)
        return self.agreement + PROVEN.pack(*place, receiver)

    @property
    def neighbours(self) -> frozenset[MemberNumber]:
        """All members that this one sends to or receives from."""
        return self.senders | self.receivers

    def index(self, place: Place) -> int:
        """How many places come before this one; the end of the run is a place too, at which nothing is sent."""
        if not 0 <= place.step < self.steps or place > Place(self.rounds, 0):
            raise Refused(Reason.PLACE)
        return place.round * self.steps + place.step

    def later(self, place: Place, places: int) -> Place:
        """The place that comes so many places after another, or before it, not before the first."""
        return Place(*divmod(max(0, self.index(place) + places), self.steps))

    def oldest_kept(self, place: Place) -> Place:
        """The first place whose messages whoever is at a place still has for others."""
        return min(Place(place.round, 0), self.later(place, -KEPT))


ANY = (-math.inf, math.inf)
"""All values that are finite."""


def why_all_are_needed(algorithm: Algorithm, mixing: Mixing) -> str | None:
    """Why no message of this algorithm may be missing; None where what is proven does not depend on who is heard.

    A secure sum is known only with the messages of all, but one that fails tells nobody anything.

    >>> from sottovoce import algorithm, metropolis
    >>> ring = metropolis("ring:5").at(0)
    >>> why_all_are_needed(algorithm("zip-dl", sigma=1.0), ring)
    'the noise on single messages cancels only over all of them'
    >>> why_all_are_needed(algorithm("dp-d-sgd", sigma=1.0), ring)
    """
    if algorithm.requires == "one aggregator":
        return "all go on from one mean, and who does not have it would take its gradients elsewhere"
    if not isinstance(algorithm.compression, Identity):
        return "compressed messages are differences, which receivers add up"
    if algorithm.noise.edge(mixing):
        return "the noise on single messages cancels only over all of them"
    if any((np.diff(term.sources.holders.indptr) > 1).any() for term in algorithm.noise.local(mixing)):
        return "neighbours share noise, which cancels only over all of them"
    return None


def link_rules(
    agreement: bytes,
    algorithm: Algorithm,
    topology: Topology,
    member: MemberNumber,
    *,
    rounds: int,
    dimension: int,
    precision: Precision,
    message_range: tuple[float, float] = ANY,
) -> LinkRules:
    """The rules of one member's links. `message_range` is how small and how large a value may be."""
    if algorithm.secure_sum:
        check_sums(algorithm, topology)
    sender, receiver = _edges(algorithm, topology, rounds)
    others = sender != receiver
    return LinkRules(
        agreement,
        member,
        frozenset(sender[others & (receiver == member)].tolist()),
        frozenset(receiver[others & (sender == member)].tolist()),
        rounds,
        algorithm.gossip_steps,
        _payload_rule(algorithm, topology, dimension, precision, message_range),
    )


def _edges(algorithm: Algorithm, topology: Topology, rounds: int) -> NDArray[np.intp]:
    """Senders and receivers of all rounds: they are the same in each, unless an aggregator rotates."""
    if topology.static:
        return np.array(topology.at(0).edges[:2])
    if algorithm.requires != "one aggregator":
        raise InputError(
            f"a federation on {topology.name}",
            "its members must have the same neighbours in every round",
            "use a fixed graph",
        )
    steps = (topology.at(round, step) for round in range(rounds) for step in range(algorithm.gossip_steps))
    return np.unique(np.concatenate([np.array(mixing.edges[:2]) for mixing in steps], axis=1), axis=1)


def _payload_rule(
    algorithm: Algorithm,
    topology: Topology,
    dimension: int,
    precision: Precision,
    message_range: tuple[float, float],
) -> PayloadRule:
    operator, (least, largest) = algorithm.compression, message_range
    if algorithm.secure_sum:
        return PayloadRule(dimension * WORD.itemsize, precision, masked=True)
    if not isinstance(operator, Identity):
        widest = largest - least
        read = partial(_decompressed, operator, dimension, precision)
        return PayloadRule(operator.payload(dimension, precision), precision, -widest, widest, decompress=read)
    fitted = algorithm.on(topology)
    if isinstance(fitted.message(fitted.init(np.zeros((topology.n, 1)))), Weighted):
        return PayloadRule((dimension + 1) * precision.itemsize, precision, least, largest, float(topology.n))
    return PayloadRule(dimension * precision.itemsize, precision, least, largest)


def _decompressed(operator: Compression, dimension: int, precision: Precision, payload: bytes) -> Reals:
    """The numbers of a compressed row, in places that only the stream of their sender gives."""
    sent = np.frombuffer(payload, dtype=np.uint8)[None]
    return operator.decode(sent, [np.random.default_rng(0)], dimension, precision)


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
