"""Guarantees: mu-GDP for a victim, with the kind of proof and its assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sottovoce.privacy import gaussian_dp

KINDS = ("any-training", "convex-training", "fixed-streams")
"""The kinds that are accounted for; `as-published` comes on request, for comparison only."""


PUBLISHED = "as-published"


@dataclass(frozen=True)
class Guarantee:
    """mu-GDP for one victim (None: the worst of a view), with the kind of proof and what it assumes.

    `distance` counts hops from the view to the victim. `proven_for_training` is true, false, or "convex": true if the
    assumption about local steps is.
    """

    victim: int | None
    distance: int | None
    kind: str
    mu: float
    proven_for_training: bool | str
    assumptions: tuple[str, ...]

    def epsilon(self, delta: float) -> float:
        """Epsilon at this delta, rounded up."""
        return gaussian_dp.epsilon_of(self.mu, delta)

    def rdp(self, alpha: float) -> float:
        """Renyi divergence of order alpha."""
        return gaussian_dp.renyi_of(self.mu, alpha)

    def document(self, delta: float) -> dict[str, Any]:
        """As JSON: an infinite figure is the word "inf"."""
        numbers = {"mu": self.mu, "epsilon": self.epsilon(delta)}
        return {
            "victim": self.victim,
            "distance": self.distance,
            "kind": self.kind,
            **{name: "inf" if math.isinf(value) else value for name, value in numbers.items()},
            "proven_for_training": self.proven_for_training,
            "assumptions": list(self.assumptions),
        }
