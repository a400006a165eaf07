"""Who sends to whom in secure sums, and how many of them may collude.

A set is a receiver and those whose messages it gets as one sum. Colluders count all who work together, the receiver
among them. Whoever of a set does not collude has to hide among others who do not: two at least.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.core.integer_weights import integer_weights
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError


def check_sum_sets(topology: Topology, colluders: int) -> None:
    """Refuse sets in which some coalition of this size, the receiver in it, leaves fewer than two honest senders.

    >>> from sottovoce.core.topologies import metropolis
    >>> check_sum_sets(metropolis("ring:5"), 1)
    >>> check_sum_sets(metropolis("ring:5"), 2)
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: node 0 gets a sum over nodes 1, 4; with 2 colluders every sum is over at least 3 ...
    """
    if isinstance(colluders, bool) or not isinstance(colluders, int) or colluders < 1:
        raise InputError(
            f"{colluders!r} colluders",
            "a receiver knows its own noise, so there is always at least one",
            "give 1 or more",
        )
    if not topology.static:
        raise InputError(
            f"secure sums on {topology.name}", "who sends to whom must be fixed before the first round",
            "use a fixed topology",
        )  # fmt: skip
    weights = integer_weights(topology.at(0))
    for receiver in range(topology.n):
        senders = weights.senders(receiver)
        if len(senders) <= colluders:
            raise InputError(
                f"{_named([receiver], topology)} gets a sum over {_named(senders, topology)}",
                f"with {colluders} colluder{'s' * (colluders > 1)} every sum is over at least {colluders + 1} others",
                "give it more neighbours, or assume fewer colluders",
            )  # fmt: skip


def _named(nodes: Sequence[int], topology: Topology) -> str:
    """Nodes as their graph calls them."""
    if not nodes:
        return "nobody"
    if topology.names is not None:
        return ", ".join(topology.names[node] for node in nodes)
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
