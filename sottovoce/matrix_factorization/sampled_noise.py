"""Noise for batches drawn by chance: in how many parts to deal records, and the C for that, at a target.

A batch holds a share of a node's records on average. Dealt into B parts, each record of the next part is drawn with
probability `B * share`: the more parts, the less chance hides, and the more bands C may have. B = 1 is Poisson batches
with independent noise; where all of a part is drawn, it is a cycle, and C may be any.

    >>> from sottovoce.core.topologies import metropolis
    >>> found = sampled_noise(metropolis("ring:4"), rounds=24, share=0.25, epsilon=20.0, delta=1e-5, cache=False)
    >>> [choice.batches for choice in found.tried]
    ['cyclic-poisson:0.25x1', 'cyclic-poisson:0.5x2', 'cyclic-poisson:0.75x3', 'cyclic-poisson:1.0x4']
    >>> found.best.batches, found.gap < 0.01
    ('cyclic-poisson:1.0x4', True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sottovoce.core.participation import LEAST_SHARE, SAMPLED, Participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.matrix_factorization.banded_columns import BandedColumns, banded_columns, modes_of, search_cost
from sottovoce.matrix_factorization.factorization import GAP, factorize
from sottovoce.matrix_factorization.result import Factorization
from sottovoce.privacy.amplification import noise_for
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.text import JSON

EVERY = 8
"""Up to so many parts each number is tried, beyond that one in four, five, ..."""

RISING = 3
"""After so many numbers of parts with more error than the best, larger ones are left out."""

DENSE = 1500
"""Up to so many rounds a cycle gets the best C of all; beyond that the best with as many bands as it has parts."""

MOST_ROUNDS = 10**7
"""Each number of parts takes time and memory in proportion to rounds."""

WHOLE = 1e-9
"""So far a share may be from one by rounding."""


@dataclass(frozen=True, eq=False)
class SampledChoice:
    """One number of parts, with the best C for it.

    `noise` is the noise multiplier that each release takes for the target. Errors are expected squared distances by
    which noise moves models, summed over what the objective names, in units of what a record moves a gradient by.
    """

    parts: int
    share: float
    noise: float
    factorization: BandedColumns | Factorization

    @property
    def batches(self) -> str:
        """How a run names these batches."""
        return f"{SAMPLED}:{self.share!r}x{self.parts}"

    @property
    def error(self) -> float:
        """At the noise that meets the target."""
        return self.noise**2 * self.factorization.objective

    @property
    def lower_bound(self) -> float:
        """No C with so many bands has less error at the target; of a share of one, no C at all (up to DENSE rounds)."""
        return self.noise**2 * self.factorization.lower_bound

    def document(self, over: float) -> dict[str, JSON]:
        """As JSON, errors over that of independent noise."""
        return {
            "batches": self.batches, "parts": self.parts, "share": self.share, "noise": self.noise,
            "error": self.error / over, "lower_bound": self.lower_bound / over, "gap": self.factorization.gap,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class SampledNoise:
    """What each number of parts leaves in models at a target, fewest parts first."""

    tried: tuple[SampledChoice, ...]

    @property
    def best(self) -> SampledChoice:
        """The one with the least error; of equal ones that with the fewest parts."""
        return min(self.tried, key=lambda choice: choice.error)

    @property
    def independent(self) -> float:
        """The error of Poisson batches with independent noise, that of one part."""
        first = self.tried[0]
        return first.noise**2 * first.factorization.independent

    @property
    def lower_bound(self) -> float:
        """No number of parts that was tried has less error, with any C that sampling counts for."""
        return min(choice.lower_bound for choice in self.tried)

    @property
    def gap(self) -> float:
        """How far, relatively, the best may be above the optimum within the class."""
        return max(0.0, self.best.error / self.lower_bound - 1)

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        return {
            "batches": self.best.batches, "error": self.best.error / self.independent, "gap": self.gap,
            "tried": [choice.document(self.independent) for choice in self.tried],
        }  # fmt: skip


def sampled_noise(
    topology: Topology,
    *,
    rounds: int,
    share: float,
    epsilon: float,
    delta: float,
    objective: str = "all",
    gap: float = GAP,
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> SampledNoise:
    """The number of parts, the share and C that leave the least error in models, against an adversary that sees all.

    A batch holds `share` of a node's records on average. The target is about a record that is made to count as nothing.
    Each choice has a certificate; larger numbers of parts are left out once the error only rises. Minimises
    `noise(B)^2 trace((C^T C)^-1 H)` over B and C of B bands with columns of norm 1.
    """
    if not LEAST_SHARE <= share <= 1:
        raise InputError(
            f"share {share}",
            f"it must lie between {LEAST_SHARE:g} and 1",
            "give the batch size divided by the number of records",
        )
    if rounds > MOST_ROUNDS:
        raise InputError(f"{rounds} rounds", f"batches are chosen for at most {MOST_ROUNDS:,}", "give fewer")
    mu_of(epsilon, delta)
    tried: list[SampledChoice] = []
    numbers = list(numbers_of_parts(share, rounds))
    cost = sum((search_cost(topology, rounds, parts) for parts in numbers), Cost())
    what = f"choosing among {len(numbers)} numbers of parts up to {numbers[-1]:,}, {rounds:,} rounds,"
    check_cost(what, cost, "take fewer rounds or a larger share")

    def choose(parts: int) -> None:
        target = (epsilon, delta)
        settings = {"objective": objective, "gap": gap, "cache": cache}
        tried.append(_choice(topology, rounds, parts, parts * share, target, settings))
        if progress is not None:
            progress(len(tried), len(numbers))

    for parts in numbers:
        choose(parts)
        if _only_rises(tried):
            break
    if tried[-1].parts < numbers[-1] and _certain(numbers[-1] * share):
        choose(numbers[-1])
    return SampledNoise(tuple(tried))


def _choice(
    topology: Topology, rounds: int, parts: int, share: float, target: tuple[float, float], settings: dict[str, Any]
) -> SampledChoice:
    """The best C for one number of parts, and the noise that it takes."""
    epsilon, delta = target
    times, mu = -(-rounds // parts), mu_of(epsilon, delta)
    if _certain(share) and rounds <= DENSE:
        found = factorize(topology, rounds=rounds, participation=Participation(times, parts), **settings)
        return SampledChoice(parts, 1.0, 1 / mu, found)
    banded = best_in_band(topology, rounds, parts, **settings)
    if _certain(share):
        return SampledChoice(parts, 1.0, math.sqrt(times) / mu, banded)
    noise = noise_for(epsilon, share=share, rounds=times, delta=delta)
    return SampledChoice(parts, share, noise, banded)


def best_in_band(
    topology: Topology, rounds: int, bands: int, *, objective: str = "all", gap: float = GAP, cache: bool = True
) -> BandedColumns | Factorization:
    """The best C with which sampling counts: so many bands, and no column longer than 1.

    That is the sensitivity of a record that shows once, which each release of a sampled record is. Where W is symmetric
    and does not change, time and memory grow with rounds alone.
    """
    cost = search_cost(topology, rounds, bands)
    check_cost(f"C of {rounds:,} rounds and {bands:,} bands", cost, "take fewer rounds, or batches with fewer parts")
    modes = modes_of(topology, rounds, objective)
    if modes is not None:
        return banded_columns(topology, rounds=rounds, bands=bands, gap=gap, modes=modes)
    return factorize(topology, objective=objective, gap=gap, cache=cache, **settings_in_band(rounds, bands))


def settings_in_band(rounds: int, bands: int) -> dict[str, Any]:
    """Of `factorize`, for a C with which sampling counts."""
    scheme = Participation(1, rounds)
    return {"rounds": rounds, "structure": "banded", "bands": min(bands, rounds), "participation": scheme}


def _certain(share: float) -> bool:
    """Whether all of a part is drawn, but for rounding of the share."""
    return share >= 1 - WHOLE


def numbers_of_parts(share: float, rounds: int) -> Iterator[int]:
    """Numbers of parts in question: all small ones, some larger ones, and the largest."""
    most = max(1, min(rounds, math.floor(1 / share + WHOLE)))
    parts = 1
    while parts < most:
        yield parts
        parts = parts + max(1, parts // EVERY * EVERY // 4)
    yield most


def _only_rises(tried: list[SampledChoice]) -> bool:
    """Whether the last few all have more error than the best, each more than the one before."""
    errors = [choice.error for choice in tried]
    last = errors[-RISING - 1 :]
    return len(last) > RISING and last == sorted(last) and min(errors) < errors[-RISING]
