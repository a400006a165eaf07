"""The terms of an account: what may change, when it shows, and what is known of local steps."""

from __future__ import annotations

from typing import NamedTuple

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.participation import Participation


class Terms(NamedTuple):
    """What may change, in which rounds it shows, what is known of local steps, and how far policies are searched."""

    adjacency: Adjacency
    scheme: Participation
    convex: bool = False
    lipschitz: float | None = None
    optimised: bool = False
