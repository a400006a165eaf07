"""Amplification by sampling: what it is worth that batches are drawn by chance, Poisson or of a fixed size.

A node's record takes part in a round with probability q. The figure is that of an adversary who has every noisy
gradient, of which all that anybody sees is a function: so it holds for whoever hears everything, and for every node.
For noise that is independent over rounds, or correlated by a C with at most B bands where a record may be drawn every B
rounds (docs/guarantees.md has the proof); for other C, and on top of what distance hides, nothing is proven.

Each node is accounted for by its own sampling and its own noise; the figure is that of the node that is worst off.

    >>> round(epsilon_of_batches(noise=2.0, share=0.01, rounds=1000, delta=1e-5), 3)
    0.622
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.noise import CombinedNoise, Independent, PerNode, Temporal
from sottovoce.core.participation import Change, Participation, Sampling
from sottovoce.core.sensitivity import per_node
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.assumptions import CHANGED_RECORD, AssumptionKind, rounding
from sottovoce.privacy.calibration import LARGEST, Answer, Search, Target, least_noise
from sottovoce.privacy.composition import Composition, SampledLoss
from sottovoce.privacy.covering_views import covering_views, hides_in_sums, lacks_secrets, shares_secrets
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.gaussian_dp import epsilon_of, mu_of
from sottovoce.privacy.guarantee import Figure, Kind, PrivacyFigure, TrainingProof
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.views import View, ViewKind, everyone, with_final_models
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import trace_with_noise

LARGEST_MULTIPLIER = 1e6
"""A target that no noise multiplier below this meets is refused."""

ROUNDING = 1e-9
"""Sizes of noise and figures that differ by less, relatively, are the same."""


def epsilon_of_batches(
    *, noise: float, share: float, rounds: int, delta: float, size: int | None = None, among: int = 1
) -> float:
    """Epsilon of `rounds` Gaussian releases on sampled batches.

    `noise` is the noise multiplier. Without `size`, each record joins each batch with probability `share` (Poisson; add
    or remove one record). With `size` records in all, batches have `share * size` of them, drawn without replacement
    (replace one record). With `among`, a release is a group of so many rounds; the record is in one.
    """
    if not 0 < share <= 1:
        raise InputError(
            f"batch share {share}", "it must lie in (0, 1]", "give the batch size divided by the number of records"
        )
    return Composition((SampledLoss(noise, share, rounds, size, among),)).epsilon(delta) if noise > 0 else math.inf


@lru_cache(maxsize=256)
def noise_for(
    epsilon: float, *, share: float, rounds: int, delta: float, size: int | None = None, among: int = 1
) -> float:
    """The least noise multiplier that meets a target, up to one part in a thousand, on the safe side.

    >>> noise = noise_for(0.622, share=0.01, rounds=1000, delta=1e-5)
    >>> 2.0 <= noise < 2.01
    True
    """

    def ask(noise: float) -> Answer:
        found = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=delta, size=size, among=among)
        return Answer(found, found <= epsilon)

    search, unsampled = Search(ask, epsilon), rounds**0.5 / mu_of(epsilon, delta)
    search.approach(unsampled, max(share * unsampled / among**0.5, 1e-3), close=1e-4)
    return least_noise(
        search.meets, unsampled, tolerance=1e-3, smallest=1e-3, largest=LARGEST_MULTIPLIER,
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


@dataclass(frozen=True)
class SampledNodes:
    """How each node draws its records. `sensitivity` is how far the change that this sampling is about moves what a
    node releases, in the units of the algorithm's own sensitivity.
    """

    samplings: tuple[Sampling, ...]
    sensitivity: PerNode

    @property
    def change(self) -> Change:
        """What may change: the same at all nodes."""
        return self.samplings[0].change

    @property
    def differ(self) -> bool:
        """Whether some nodes sample unlike others."""
        return len(set(self.samplings)) > 1

    def least_noise(self, system: LinearSystem, view: View) -> dict[Sampling, float]:
        """For each sampling the least noise multiplier of the nodes that sample so."""
        own, change = np.asarray(system.algorithm.sensitivity), np.asarray(self.sensitivity)
        one = self.samplings[0]  # nodes share settings, so that shares and sizes alone can differ
        noises = noise_multipliers(system, view, apart=one.apart, certain=one.certain) * (own / change)
        found: dict[Sampling, float] = {}
        for how, noise in zip(self.samplings, noises, strict=True):
            found[how] = min(float(noise), found.get(how, math.inf))
        return found


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
    change = system.algorithm.sensitivity if sensitivity is None else sensitivity
    return _worst_epsilon(system, view, SampledNodes((Sampling(share, size, apart),) * system.n, change), delta)


def _worst_epsilon(system: LinearSystem, view: View, nodes: SampledNodes, delta: float) -> float:
    """Of each sampling; or, if that is less, of the same noise in every round, where nodes differ in that."""
    found = []
    for how, noise in nodes.least_noise(system, view).items():
        count = how.releases(system.rounds)
        unsampled = epsilon_of(count**0.5 / noise, delta) if noise > 0 else math.inf
        if not how.certain:
            sampled = epsilon_of_batches(
                noise=noise, share=how.share, size=how.size, rounds=count, delta=delta, among=how.among
            )
            unsampled = min(sampled, unsampled) if nodes.differ else sampled
        found.append(unsampled)
    return max(found)


def sampled_figure(system: LinearSystem, view: View, nodes: SampledNodes, delta: float) -> PrivacyFigure:
    """The figure that counts on chance, for the node that is worst off.

    What a node or a coalition sees is a function of all noisy gradients, so that this figure holds for it as well.
    Refused where sampling has no proof for this system. Where nodes share secrets, the figure about everyone is about
    an outsider: it says so, and is no headline.
    """
    epsilon = _worst_epsilon(system, view, nodes, delta)
    assumptions = [AssumptionKind.SAMPLED_BATCHES.of(changed=CHANGED_RECORD[nodes.change])]
    if lacks_secrets(view, system):
        assumptions.append(AssumptionKind.NO_SHARED_SECRETS.of())
    assumptions.append(rounding(system, covered=bool(system.algorithm.exact_noise)))  # noisy gradients alone
    return PrivacyFigure(
        view=view, change=nodes.change, victim=None, distance=None, kind=Kind.ANY_TRAINING, mu=None, epsilon=epsilon,
        proven_for_training=TrainingProof.PROVEN, assumptions=tuple(assumptions),
        final_models=covered_final_models(system, view), figure=Figure.BOUND,
    )  # fmt: skip


def better_figure(sampled: PrivacyFigure | None, unsampled: PrivacyFigure) -> PrivacyFigure:
    """The one with less epsilon. Where chance is worth nothing, the one without: its loss is Gaussian."""
    if sampled is None:
        return unsampled
    return sampled if sampled.epsilon < unsampled.epsilon * (1 - ROUNDING) else unsampled


def sampled_loss(system: LinearSystem, view: View, nodes: SampledNodes) -> SampledLoss | None:
    """What the sampled figure is made of, so that it can be composed with others; None where it has no such form.

    Of Poisson batches that differ between nodes, the largest share with the least noise: no node's record loses more.
    Batches of a fixed size that differ have no such worst case.
    """
    sizes = {how.size for how in nodes.samplings}
    if len(sizes) > 1 or (nodes.differ and None not in sizes):
        return None
    noise, one = min(nodes.least_noise(system, view).values()), nodes.samplings[0]
    share = max(how.share for how in nodes.samplings)
    return SampledLoss(noise, share, one.releases(system.rounds), sizes.pop(), one.among)


def sampled_sigma(
    at: Callable[[float], LinearSystem], nodes: SampledNodes, target: Target, view: View
) -> PerNode | None:
    """The least sigma with which every node's sampling meets a target, where `at` gives the system of a sigma.

    Noise of each node's own is chosen node by node. None where sampling counts for nothing.
    """
    reference = at(1.0)
    try:
        there = nodes.least_noise(reference, view)
        needed = {how: _needed(how, reference.rounds, target, or_unsampled=nodes.differ) for how in there}
    except Unaccountable:
        return None
    if min(there.values()) == 0 or max(there.values()) == math.inf:
        return None
    sigmas = {how: (1 + 1e-12) * needed[how] / noise for how, noise in there.items()}
    noise, most = reference.algorithm.noise, max(sigmas.values())
    if isinstance(noise, Independent | Temporal):
        return per_node([sigmas[how] for how in nodes.samplings])
    if not isinstance(noise, CombinedNoise):
        return most

    def enough(sigma: float) -> bool:
        found = nodes.least_noise(at(noise.nearest_sigma(sigma)), view)
        return all(least >= needed[how] for how, least in found.items())

    return noise.nearest_sigma(least_noise(enough, most, tolerance=1e-3, smallest=1e-9, largest=LARGEST))


class SampledCalibration(NamedTuple):
    """A sigma, for all nodes or for each, the system there, and the figure that shows it meets the target."""

    sigma: PerNode
    system: LinearSystem
    figure: PrivacyFigure


def calibrate_sampled(
    reference: LinearSystem, view: View, nodes: SampledNodes | None, target: Target, unsampled: float
) -> SampledCalibration | None:
    """The least sigma that meets a target by chance, from the system at sigma 1; None where the `unsampled` one does.

    That is so where nothing is drawn by chance, and where somebody who shares secrets learns more than everyone.
    """
    if nodes is None or len(covering_views(view, reference)) > 1:
        return None

    def at(sigma: PerNode) -> LinearSystem:
        return trace_with_noise(reference, reference.algorithm.noise.with_sigma(sigma))

    sigma = sampled_sigma(at, nodes, target, view)
    if sigma is None or not saves_noise(sigma, unsampled):
        return None
    system = at(sigma)
    return SampledCalibration(sigma, system, sampled_figure(system, view, nodes, target.delta))


def saves_noise(sampled: PerNode, unsampled: float) -> bool:
    """Whether the sigma that counts on chance is smaller for some node, and larger for none."""
    each = np.atleast_1d(sampled)
    return bool(each.max() <= unsampled * (1 + ROUNDING) and each.min() < unsampled * (1 - ROUNDING))


def _needed(how: Sampling, rounds: int, target: Target, *, or_unsampled: bool) -> float:
    """The noise multiplier that a sampling needs; or, if that is less, the one that needs no sampling."""
    count = how.releases(rounds)
    unsampled = count**0.5 / target.mu * (1 + 1e-12)
    if how.certain:
        return unsampled
    found = noise_for(target.epsilon, share=how.share, size=how.size, rounds=count, delta=target.delta, among=how.among)
    return min(found, unsampled) if or_unsampled else found
