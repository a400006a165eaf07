"""Amplification by sampling: Poisson and fixed-size mini-batches, by loss distributions.

A node's record takes part in a round with probability q. The figure is that of an adversary who has every noisy
gradient, of which all that anybody sees is a function: so it holds for whoever hears everything, and for every node.
For noise that is independent over rounds, or correlated by a C with at most B bands where a record may be drawn every B
rounds (docs/guarantees.md has the proof); for other C, and on top of what distance hides, nothing is proven.

    >>> round(epsilon_of_batches(noise=2.0, share=0.01, rounds=1000, delta=1e-5), 3)
    0.622
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.noise import PerNode
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.calibration import Answer, Search, least_noise
from sottovoce.privacy.covering_views import hides_in_sums, shares_secrets
from sottovoce.privacy.gaussian_dp import epsilon_of, mu_of
from sottovoce.privacy.loss_distributions import Releases, epsilon_of_releases
from sottovoce.privacy.views import View, ViewKind, everyone, with_final_models
from sottovoce.tracing.linear_system import LinearSystem

LEAST = 0.3
"""Below this noise multiplier sampling is not counted: epsilon is beyond any use, and loss distributions are huge."""

LARGEST = 1e6
"""A target that no noise multiplier below this meets is refused."""


def epsilon_of_batches(*, noise: float, share: float, rounds: int, delta: float, size: int | None = None) -> float:
    """Epsilon of `rounds` Gaussian releases on sampled batches.

    `noise` is the noise multiplier. Without `size`, each record joins each batch with probability `share` (Poisson; add
    or remove one record). With `size` records in all, batches have `share * size` of them, drawn without replacement
    (replace one record).
    """
    if not 0 < share <= 1:
        raise InputError(
            f"batch share {share}", "it must lie in (0, 1]", "give the batch size divided by the number of records"
        )
    if not noise > 0:
        return float("inf")
    if noise == float("inf"):  # nothing that was sent depends on a record
        return 0.0
    if noise < LEAST:
        return epsilon_of(rounds**0.5 / noise, delta)
    return epsilon_of_releases([releases_of(noise, share, rounds, size)], delta)


def releases_of(noise: float, share: float, rounds: int, size: int | None) -> Releases:
    """Releases on batches that are drawn by chance: Poisson, or of a whole number of records among `size`."""
    if size is None:
        return Releases(noise, share, rounds)
    return Releases(noise, max(1, round(share * size)) / size, rounds, replaced=True)


@lru_cache(maxsize=256)
def noise_for(epsilon: float, *, share: float, rounds: int, delta: float, size: int | None = None) -> float:
    """The least noise multiplier that meets a target, up to one part in a thousand, on the safe side.

    >>> noise = noise_for(0.622, share=0.01, rounds=1000, delta=1e-5)
    >>> 2.0 <= noise < 2.01
    True
    """

    def ask(noise: float) -> Answer:
        found = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=delta, size=size)
        return Answer(found, found <= epsilon)

    search, unsampled = Search(ask, epsilon), rounds**0.5 / mu_of(epsilon, delta)
    search.approach(unsampled, max(share * unsampled, 1e-3), close=1e-4)
    return least_noise(
        search.meets, unsampled, tolerance=1e-3, smallest=1e-3, largest=LARGEST,
        name="noise multiplier", target=f"epsilon {epsilon} with sampled batches",
    )  # fmt: skip


def noise_multipliers(
    system: LinearSystem, view: View, *, apart: int = 1, certain: bool = False
) -> NDArray[np.float64]:
    """Noise over sensitivity of each node in each release; refused where sampling has no proof.

    Of an adversary who has all noisy gradients, and knows what `view` knows: its members, who hide nothing from
    themselves, count as if their noise was infinite.

    With C of at most `apart` bands, rounds in which a record may be drawn are told apart by different draws of noise:
    a release is all that one of these rounds brings about, and its noise that of the longest column of C. If a record
    is drawn `certain`ly whenever it may be, all these rounds are one release, whatever C is.
    """
    from sottovoce.core.participation import Participation
    from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients

    view.check(system.n)
    if view.kind is ViewKind.ANY_COALITION:
        if shares_secrets(system):
            raise Unaccountable(
                f"sampling together with {view} of nodes that share secrets is not accounted for; name one coalition"
            )
        view = with_final_models(everyone(), view.final_models)
    if hides_in_sums(system):
        raise Unaccountable("sampling together with secure sums is not accounted for; the figure without it holds")
    bands = 1 if system.correlation is None else system.correlation.bands(system.rounds)
    if bands > apart and not certain:
        when = "in every round" if apart == 1 else f"every {apart} rounds"
        raise Unaccountable(
            f"sampling together with noise correlated over rounds ({system.algorithm.name}): C has {bands} bands, and "
            f"a record may be drawn {when}: no proof; use batches cyclic-poisson:SHAREx{bands}, or mafalda, which "
            "finds a C for the batches"
        )
    shown = Participation.sampled(1.0, apart) if certain else Participation(1, system.rounds)
    with np.errstate(divide="ignore"):
        return np.asarray(loss_given_noisy_gradients(system, view, np.arange(system.n), shown) ** -0.5)


def releases(rounds: int, *, apart: int = 1, certain: bool = False) -> int:
    """How many releases of `noise_multipliers` there are of a record that may be drawn every `apart` rounds."""
    return 1 if certain else -(-rounds // apart)


def sampled_epsilon(
    system: LinearSystem,
    view: View,
    *,
    share: float,
    delta: float,
    size: int | None = None,
    sensitivity: PerNode | None = None,
    apart: int = 1,
) -> float:
    """Epsilon of a traced system under sampling, for the node with the least noise; refused if nothing is proven.

    `sensitivity` is how far the change that sampling is about moves a gradient: adding or removing a record (Poisson)
    or replacing one (fixed size); the algorithm's own unless given. A record may be drawn every `apart` rounds.
    """
    certain, own = share == 1 and size is None, np.asarray(system.algorithm.sensitivity)
    noises = noise_multipliers(system, view, apart=apart, certain=certain)
    noise = float((noises * (own / (own if sensitivity is None else np.asarray(sensitivity)))).min())
    count = releases(system.rounds, apart=apart, certain=certain)
    if certain:
        return epsilon_of(1 / noise, delta) if noise > 0 else float("inf")
    return epsilon_of_batches(noise=noise, share=share, rounds=count, delta=delta, size=size)
