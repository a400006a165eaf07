"""What several releases about the same data tell together.

Each release has a loss: Gaussian, of batches drawn by chance, or an epsilon at a delta and nothing more. Gaussian
losses add in mu squared, those of sampled batches by their distributions; a figure of which nothing
more is known is added as epsilon and delta, which always holds.

    >>> joint = compose([GaussianLoss(1.0), GaussianLoss(1.0)])
    >>> round(joint.mu, 4), round(joint.epsilon(1e-5), 3)
    (1.4142, 6.573)
    >>> joint.rule.value
    'mu squared adds'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from sottovoce.core.adjacency import Change
from sottovoce.errors import InputError
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.amplification import LEAST, releases_of
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.guarantee import Guarantee
from sottovoce.privacy.loss_distributions import Releases, epsilon_of_releases
from sottovoce.support.json_numbers import JSON, from_json, to_json

if TYPE_CHECKING:
    from sottovoce.support.config import Document


class Rule(StrEnum):
    """How losses were joined."""

    GAUSSIAN = "mu squared adds"
    DISTRIBUTIONS = "loss distributions are composed"
    SUMS = "epsilons and deltas add"


@dataclass(frozen=True)
class GaussianLoss:
    """A release that is mu-GDP, about data that is replaced by other data."""

    mu: float

    change = Change.REPLACE

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InputError(f"a loss of mu {self.mu}", "mu is 0 or more", "check where it comes from")


@dataclass(frozen=True)
class SampledLoss:
    """`rounds` Gaussian releases on randomly drawn batches: the arguments of `epsilon_of_batches`.

    Without `size` batches are Poisson, and the loss is about a record that is made to count as nothing.
    """

    noise: float
    share: float
    rounds: int
    size: int | None = None

    def __post_init__(self) -> None:
        if not self.noise >= 0 or not 0 < self.share <= 1 or not self.rounds >= 0 or (self.size or 1) < 1:
            raise InputError(f"{self}", "noise and rounds are 0 or more, shares in (0, 1]", "check where it comes from")

    @property
    def change(self) -> Change:
        """What sampling of this kind is about."""
        return Change.ZERO_OUT if self.size is None else Change.REPLACE


@dataclass(frozen=True)
class StatedLoss:
    """A release for which only an epsilon at one delta is known."""

    epsilon: float
    delta: float
    change: Change = Change.REPLACE

    def __post_init__(self) -> None:
        if not self.epsilon >= 0 or not 0 <= self.delta <= 1:
            raise InputError(
                f"a loss of epsilon {self.epsilon} at delta {self.delta}", "epsilon is 0 or more, delta in [0, 1]",
                "check where it comes from",
            )  # fmt: skip


Loss: TypeAlias = GaussianLoss | SampledLoss | StatedLoss

_KINDS: dict[str, type[Loss]] = {"gaussian": GaussianLoss, "sampled": SampledLoss, "stated": StatedLoss}


def loss_document(loss: Loss) -> dict[str, JSON]:
    """A loss as JSON."""
    name = next(name for name, kind in _KINDS.items() if isinstance(loss, kind))
    return {"kind": name, **{key: to_json(value) for key, value in asdict(loss).items()}}


def read_loss(document: Document) -> Loss:
    """The loss that `loss_document` wrote."""
    kind = document["kind"]
    if kind == "gaussian":
        return GaussianLoss(from_json(document["mu"]))
    if kind == "sampled":
        noise = from_json(document["noise"])
        return SampledLoss(noise, document["share"], document["rounds"], document["size"])
    return StatedLoss(from_json(document["epsilon"]), document["delta"], Change(document["change"]))


@dataclass(frozen=True)
class Composition:
    """The joint loss of several releases about the same data.

    It is about data that is replaced. If one of the losses is about a record that is made to count as nothing, it is
    about that smaller change, which the others cover as well.
    """

    losses: tuple[Loss, ...]

    @property
    def change(self) -> Change:
        """The change of data that the joint figure is about."""
        smaller = any(loss.change is Change.ZERO_OUT for loss in self.losses)
        return Change.ZERO_OUT if smaller else Change.REPLACE

    @property
    def mu(self) -> float | None:
        """mu of the joint loss; None where some loss is not Gaussian."""
        mus = [loss.mu for loss in self.losses if isinstance(loss, GaussianLoss)]
        return _joint_mu(mus) if len(mus) == len(self.losses) else None

    @property
    def rule(self) -> Rule:
        """How the losses are combined."""
        parts = _Parts.of(self.losses)
        if parts.stated:
            return Rule.SUMS
        gaussian = all(isinstance(loss, GaussianLoss) for loss in parts.with_distributions)
        return Rule.GAUSSIAN if gaussian else Rule.DISTRIBUTIONS

    def epsilon(self, delta: float) -> float:
        """Epsilon of all releases together at this delta, rounded up."""
        if not 0 < delta < 1:
            raise InputError(f"delta = {delta}", "it must lie between 0 and 1", "give 1e-5, for example")
        return _epsilon(tuple(sorted(self.losses, key=repr)), delta)


def compose(releases: Iterable[Loss | Guarantee | Account]) -> Composition:
    """The joint loss of releases about the same data: losses, or guarantees against one and the same view.

    >>> from sottovoce import account, algorithm, metropolis, trace
    >>> once = account(trace(algorithm("dp-d-sgd", sigma=4.0), metropolis("ring:10"), rounds=16))
    >>> round(compose([once, once]).mu, 4), once.mu
    (1.4142, 1.0)
    """
    found = tuple(releases)
    views = dict.fromkeys(str(one.view) for one in found if isinstance(one, Guarantee | Account))
    if len(views) > 1:
        raise InputError(
            f"figures against {' and '.join(views)}", "a joint figure must be about one adversary",
            "give the figures of one view, for example of everyone",
        )  # fmt: skip
    losses = (GaussianLoss(one.mu) if isinstance(one, Guarantee | Account) else one for one in found)
    return Composition(tuple(losses))


@dataclass(frozen=True)
class _Parts:
    """Losses by the rule that joins them: those with distributions, and those that are added."""

    with_distributions: tuple[GaussianLoss | SampledLoss, ...]
    stated: tuple[StatedLoss, ...]

    @classmethod
    def of(cls, losses: Sequence[Loss]) -> _Parts:
        plain = [_without_useless_sampling(loss) for loss in losses]
        stated = tuple(loss for loss in plain if isinstance(loss, StatedLoss))
        mus = [loss.mu for loss in plain if isinstance(loss, GaussianLoss) and loss.mu > 0]
        sampled = [loss for loss in plain if isinstance(loss, SampledLoss)]
        joint = _joint_mu(mus)
        if joint > 1 / LEAST:
            joint, sampled = _joint_mu([*mus, *(_unsampled(loss).mu for loss in sampled)]), []
        gaussian = (GaussianLoss(joint),) if joint > 0 else ()
        return cls((*gaussian, *sampled), stated)


def _without_useless_sampling(loss: Loss) -> Loss:
    """A sampled loss as a Gaussian one where it is none, or where the noise is too small for sampling to count."""
    if not isinstance(loss, SampledLoss):
        return loss
    if loss.rounds == 0 or loss.noise == math.inf:
        return GaussianLoss(0.0)
    return _unsampled(loss) if loss.noise < LEAST else loss


def _unsampled(loss: SampledLoss) -> GaussianLoss:
    return GaussianLoss(math.sqrt(loss.rounds) / loss.noise if loss.noise > 0 else math.inf)


def _joint_mu(mus: Sequence[float]) -> float:
    """The root of the sum of squares, rounded up; a single one is left as it is.

    `hypot` scales: the squares of small ones would vanish. It is right to a unit in the last place.
    """
    some = sorted(mu for mu in mus if mu)
    return _up(_up(math.hypot(*some))) if len(some) > 1 else sum(some, 0.0)


def _up(value: float) -> float:
    return math.nextafter(value, math.inf) if value else value


@lru_cache(maxsize=1024)
def _epsilon(losses: tuple[Loss, ...], delta: float) -> float:
    """Of the distributions, at what stated losses leave of delta, and theirs: the sum."""
    parts = _Parts.of(losses)
    unused = Fraction(delta) - sum(Fraction(loss.delta) for loss in parts.stated)
    if unused < 0 or (parts.with_distributions and unused == 0):
        return math.inf
    left = math.nextafter(float(unused), 0.0) if parts.stated else delta
    found = [loss.epsilon for loss in parts.stated]
    if parts.with_distributions:
        found.append(_joint_epsilon(parts.with_distributions, left))
    return sum(found) if len(found) < 2 else _up(math.fsum(found))


def _joint_epsilon(group: tuple[GaussianLoss | SampledLoss, ...], delta: float) -> float:
    first = group[0]
    if isinstance(first, GaussianLoss) and len(group) == 1:
        return epsilon_of(first.mu, delta)
    releases = (
        Releases(math.nextafter(1 / loss.mu, 0.0), 1.0, 1)
        if isinstance(loss, GaussianLoss)
        else releases_of(loss.noise, loss.share, loss.rounds, loss.size)
        for loss in group
    )
    return epsilon_of_releases(tuple(releases), delta)
