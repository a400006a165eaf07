"""Which adversaries a headline must hold for.

A figure about whoever hears every message covers every single node, unless neighbours share secrets (DECOR): a node
knows its own, and so can learn more than a stranger who hears everything. This module has that rule, once.

    >>> from sottovoce import algorithm, metropolis
    >>> ring, decor = metropolis("ring:4"), algorithm("decor", sigma=1.0, sigma_pair=1.0)
    >>> [str(view) for view in covering_views(views.everyone(), decor, ring, nodes=[2])]
    ['everyone', 'node:2', 'everyone with the secrets of 0,1,2,3']
    >>> [str(view) for view in covering_views(views.everyone(), algorithm("dp-d-sgd", sigma=1.0), ring, nodes=[2])]
    ['everyone']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sottovoce.core.topologies import Topology
from sottovoce.privacy import views
from sottovoce.privacy.views import View, ViewKind

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm


def shares_secrets(algorithm: Algorithm, topology: Topology) -> bool:
    """Whether neighbours share noise."""
    return any(part.sources.kind == "pair" for part in algorithm.noise.local(topology.at(0)))


def lacks_secrets(view: View, algorithm: Algorithm, topology: Topology) -> bool:
    """Whether some node knows secrets that this adversary does not, and may learn more than it."""
    return not view.members and len(view.secrets_of) < topology.n and shares_secrets(algorithm, topology)


def covering_views(
    view: View, algorithm: Algorithm, topology: Topology, *, nodes: Sequence[int] = ()
) -> tuple[View, ...]:
    """The adversaries for which a headline about `view` must hold.

    Where neighbours share secrets, a headline about everyone must hold for each node: for those of `nodes` by their own
    views, and for the rest by one adversary that hears everything and knows all secrets. Secure summation is not
    counted on there.
    """
    if view.kind is not ViewKind.EVERYONE or view.secrets_of or not lacks_secrets(view, algorithm, topology):
        return (view,)
    found = (views.everyone(), *(views.node(node) for node in nodes))
    if len(nodes) >= topology.n:
        return found
    return (*found, views.everyone(secrets_of=tuple(range(topology.n))))
