"""Models and messages on one fine grid, so that figures by absorption cover rounding, too.

A node with model x, gradient g and noise z sends, and keeps, multiples of the step h:

    y  = round((x - eta g - eta z) / h) h  =  x + round((-eta g - eta z) / h) h       as if z had infinitely many digits
    x' = round(sum_v W[u,v] y_v / h) h

What is sent is a function of the real number `x - eta (g + z)`: for whoever is given all noisy gradients, rounding adds
nothing. In the coupling of the absorption bound, what nodes do not absorb grows by rounding. So h is far below what
single noise would need, and the noise has millions of steps. The proof stands in docs/guarantees.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.arrays import Reals, Rows, mapped
from sottovoce.core.grid import NoiseOnGrid, grid_step, power_of_two_below
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import NoiseTerm
from sottovoce.core.sensitivity import in_units_of_largest, largest

FINE_PARAMETERS = 10**7
"""What rounding adds is for models of up to so many."""

SHARE = 2.0**-12
"""Of the sensitivity that rounding moves `FINE_PARAMETERS` by at each of N nodes, times the root of N."""

LARGEST_MULTIPLE = 2.0**45
"""Parameters are at most so many steps: sums of d messages are right to d / 2^8 of a step in float64."""


@dataclass(frozen=True, eq=False)
class FineGrid:
    """Messages and models are multiples of `step`; `noise` is what a round adds to models, in steps."""

    step: float
    noise: NoiseOnGrid
    neighbours: int

    @property
    def largest_model(self) -> float:
        """Parameters are between this and its negative."""
        return LARGEST_MULTIPLE * self.step

    def rounded(self, models: Rows) -> Rows:
        """Models on the grid; while tracing, as they are."""
        return mapped(models, self._rounded)

    def _rounded(self, models_ND: Reals) -> Reals:
        return np.clip(np.rint(models_ND / self.step) * self.step, -self.largest_model, self.largest_model)

    def added(self, rounds: int) -> float:
        """What rounding adds to mu by absorption, for models of up to `FINE_PARAMETERS`; rounded up.

        In a round distances grow by h for what is sent, h for the next model, and what float64 loses of sums. Each node
        absorbs it with its own noise.
        """
        grows = (2 + (self.neighbours + 3) / 128) * math.sqrt(FINE_PARAMETERS)
        (term,) = self.noise.terms
        sizes = np.abs(term.matrix.plain.diagonal())
        return float(grows * math.sqrt(rounds * (1 / sizes**2).sum())) * (1 + 1e-6)


def released_step(algorithm: Algorithm, mixing: Mixing) -> float | None:
    """The step that messages, or noisy gradients, are multiples of; None without exact noise."""
    if not algorithm.exact_noise:
        return None
    fine = fine_grid(algorithm, mixing)
    return grid_step(algorithm, mixing) if fine is None else fine.step


def fine_grid(algorithm: Algorithm, mixing: Mixing) -> FineGrid | None:
    """The grid of an algorithm with exact noise on a fine one; None where it has none."""
    if algorithm.exact_noise != "fine":
        return None
    (term,) = in_units_of_largest(algorithm.noise.local(mixing), algorithm.sensitivity)
    scale = -algorithm.step_size * largest(algorithm.sensitivity)
    least = abs(algorithm.step_size) * float(np.min(algorithm.sensitivity))
    return _fine_grid(term, scale, power_of_two_below(least * SHARE / math.sqrt(FINE_PARAMETERS * mixing.n)), mixing)


@lru_cache(maxsize=8)
def _fine_grid(term: NoiseTerm, scale: float, step: float, mixing: Mixing) -> FineGrid:
    in_steps = replace(term, matrix=term.matrix.scaled(scale).scaled(1 / step))
    most = int(np.diff(mixing.weights.indptr).max(initial=0))
    return FineGrid(step, NoiseOnGrid(step, (in_steps,), None), most)
