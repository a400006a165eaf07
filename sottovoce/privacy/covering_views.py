"""Which adversaries a headline must hold for.

A figure about whoever hears every message covers every single node, unless neighbours share secrets (DECOR): a node
knows its own, and so can learn more than a stranger who hears everything. `account`, `calibrate`, `plan` and runs all
ask here, so that they agree.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("decor", sigma=1.0, sigma_pair=1.0), metropolis("ring:3"), rounds=2)
    >>> [str(view) for view in covering_views(views.everyone(), system)]
    ['everyone', 'node:0', 'node:1', 'node:2']
    >>> system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:3"), rounds=2)
    >>> [str(view) for view in covering_views(views.everyone(), system)]
    ['everyone']
"""

from __future__ import annotations

from sottovoce.privacy import views
from sottovoce.privacy.views import View, ViewKind
from sottovoce.tracing.linear_system import LinearSystem

NODE_ROUNDS = 40_000
"""Adversaries times nodes times rounds that are accounted for unasked: some seconds to a minute."""


def shares_secrets(system: LinearSystem) -> bool:
    """Whether neighbours share noise in any round."""
    return any(
        sources.kind == "pair" and sources.size for step in dict.fromkeys(system.steps) for _, sources in step.sources
    )


def lacks_secrets(view: View, system: LinearSystem) -> bool:
    """Whether some node knows secrets that this adversary does not, and may learn more than it."""
    return not view.members and len(view.secrets_of) < system.n and shares_secrets(system)


def covering_views(view: View, system: LinearSystem) -> tuple[View, ...]:
    """The adversaries for which a headline about `view` must hold, itself first.

    Where neighbours share secrets, a headline about everyone must hold for each node. Each is an adversary of its own
    where so many are affordable; else one that hears everything and knows all secrets stands for them. Secure summation
    is not counted on there.
    """
    if view.kind is not ViewKind.EVERYONE or view.secrets_of or not lacks_secrets(view, system):
        return (view,)
    n = system.n
    if n > 1 and n * n * system.rounds <= NODE_ROUNDS:
        return (views.everyone(), *(views.node(node) for node in range(n)))
    return (views.everyone(), views.everyone(secrets_of=tuple(range(n))))
