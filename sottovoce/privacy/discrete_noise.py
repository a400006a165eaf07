"""What sums of integers with discrete Gaussian noise cost beyond sums of real numbers with Gaussian noise.

Honest nodes u add discrete Gaussians of sigma_u steps to integers k_u, and `S = sum w_u (k_u + z_u)` is seen, with
whole numbers w_u of greatest common divisor g and `V = sum w_u^2 sigma_u^2`. Three things are not as with real numbers:

1. *S is not quite a discrete Gaussian.* Given S, the noise lies on a translate of the lattice `L = {z : w . z = 0}`.
   Gaussian sums over translates of L differ by at most (1 + e) / (1 - e), where e is the Gaussian sum over the dual of
   L without 0; its vectors are no shorter than the least sigma over sqrt(2) times the largest w / g. For equal weights
   this is the term tau of Kairouz, Liu and Steinke (2021), Theorem 1.
2. *A discrete Gaussian is not quite a Gaussian.* Take a real Gaussian of variance `V - (r g)^2`, and from it an integer
   multiple X of g with probability proportional to exp(-(X - .)^2 / (2 (r g)^2)): the result is a discrete Gaussian of
   variance V, again up to a factor, with `e = 2 exp(-2 pi^2 r^2)` (Peikert 2010). So S is made of a real Gaussian of a
   little less variance, by chance alone, which tells nothing more.
3. *Values are rounded to whole steps*, which moves a change of size Delta by up to `h sqrt(D)`.

Factors e^eta on the probabilities of everything that is seen add at most `eta (1 + e^epsilon)` to delta. With e below
exp(-3600) that is less than float64 can show, for any delta above 1e-300; grids for which it would not be are refused.
What is left is variance and rounding: mu grows by the factor that `discrete_factor` gives.
"""

from __future__ import annotations

import math

from sottovoce.core.encoded_sums import Encoding
from sottovoce.core.grid import PARAMETERS
from sottovoce.core.integer_sums import SumGrid, sum_grid
from sottovoce.errors import Unaccountable
from sottovoce.tracing.linear_system import LinearSystem

SMOOTHING = 16.0
"""r: the standard deviation, in steps, of what makes integers of real numbers. 2 exp(-2 pi^2 r^2) is exp(-5052)."""

SMALLEST_EXPONENT = 3600.0
"""e is below exp of minus this. Of 10^9 parameters, 10^7 rounds and 10^4 nodes, exp(-3550) is left."""


def factor_of_sums(system: LinearSystem) -> float:
    """`discrete_factor` of a system whose sums are over all nodes, encoded or not."""
    grid = sum_grid(system.algorithm, system.topology.at(0))
    rows = 1.0 if system.correlation is None else Encoding(system.correlation).rounding(system.rounds)
    return discrete_factor(grid, rows)


def discrete_factor(grid: SumGrid, rows: float = 1.0) -> float:
    """By what mu is multiplied, rounded up, where at least one honest node adds noise to every sum.

    Rounding counts `rows` times as much where a change shows in several (`Encoding.rounding`).
    """
    least = min(grid.sigma_N)
    largest = int(max(abs(grid.weights.numerators.data)))  # over g, which is at least 1
    _check_lattice(least, largest, len(grid.sigma_N))
    variance = 1 - SMOOTHING**2 / float(least) ** 2
    rounding = 1 + rows * math.sqrt(PARAMETERS) * grid.step / grid.least_sensitivity * (1 + 2**-20)
    return rounding / math.sqrt(variance) * (1 + 1e-12)


def lattice_exponent(least_sigma: float, largest_weight: int, nodes: int) -> float:
    """`-ln e` at least: 2 pi^2 lambda^2 for the shortest dual vectors, at most 5^N of which are not much longer."""
    shortest = least_sigma / (math.sqrt(2) * largest_weight)
    return 2 * math.pi**2 * shortest**2 - nodes * math.log(5) - math.log(2)


def _check_lattice(least_sigma: int, largest_weight: int, nodes: int) -> None:
    exponent = min(lattice_exponent(least_sigma, largest_weight, nodes), 2 * math.pi**2 * SMOOTHING**2 - math.log(4))
    if exponent < SMALLEST_EXPONENT:
        raise Unaccountable(
            f"secure sums with noise of {least_sigma} steps and weights up to {largest_weight}: such sums of integers "
            "are not close enough to a Gaussian; use more noise, or weights with a smaller common denominator"
        )
