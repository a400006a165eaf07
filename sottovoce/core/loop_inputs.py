"""What the round loop asks for: gradients, noise and compressed messages.

The loop does not know what flows through it. Whoever answers these questions with numbers trains; whoever answers with
basis rows traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources


class LoopInputs(Protocol):
    """Gradients, noise and compressed rows, for all nodes whose rows go through the loop."""

    def gradient(self, round: int, point: Rows) -> Rows:
        """The gradient of round `round`, taken at `point`."""

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """`matrix @ Z` for the sources of this step."""

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """`matrix @ (C^-1 Z)_round`."""

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """Values plus noise as multiples of a step: rounded as if both were real numbers, or whole steps in float64."""

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Every row compressed, with the random stream of its node."""


class RunInputs(LoopInputs, Protocol):
    """The inputs of a whole run."""

    def knows_noise_before(self, round: int) -> bool:
        """Whether noise that is correlated over rounds can go on in this round."""

    def finish(self, round: int) -> None:
        """The round is over, and its noise will not be asked for again."""


Gradient: TypeAlias = Callable[[int, Any], Rows]
"""`gradient(round, points)`: every node's gradient at its own point, one row per node, clipped to the sensitivity.

It must not change `points`. What it is given and returns are plain arrays, numpy or torch as the starting point is.
"""
