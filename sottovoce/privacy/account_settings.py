"""The settings of `account`, for functions that pass them on to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from sottovoce.core.participation import Participation


class AccountSettings(TypedDict, total=False):
    """The settings of `account` besides the system and the adversary, as many as are given; `account` explains them."""

    adjacency: str
    participation: str | Participation
    convex: bool
    kinds: Sequence[str]
    lipschitz: float | None
    victims: Sequence[int] | None
    final_models: str
    covering: bool
    optimised: bool
