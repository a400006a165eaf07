"""What the messages of an agreement are, and whether one may be missing: read from the algorithm that runs."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from sottovoce.core.algorithm import Algorithm, Weighted
from sottovoce.core.arrays import Precision, Reals
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.mixing import Mixing
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.federation.links import MemberNumber
from sottovoce.federation.mailbox import LinkRules, PayloadRule
from sottovoce.federation.masked_sums import WORD, check_sums

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
    if not topology.static:
        raise InputError(
            f"a federation on {topology.name}",
            "its members must have the same neighbours in every round",
            "use a fixed graph",
        )
    if algorithm.secure_sum:
        check_sums(algorithm, topology)
    sender, receiver, _ = topology.at(0).edges
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
