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
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sottovoce.core.participation import Change
from sottovoce.errors import InputError
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.guarantee import Guarantee
from sottovoce.privacy.loss_distributions import Releases, epsilon_of_releases
from sottovoce.support.text import JSON, from_json, to_json

if TYPE_CHECKING:
    from sottovoce.support.config import Document


LEAST = 0.3
"""Below this noise multiplier sampling is not counted: epsilon is beyond any use, and loss distributions are huge."""


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

    Without `size` batches are Poisson, and the loss is about a record that is made to count as nothing. So it is where
    the record takes part in one of `among` rounds that follow each other, drawn at random: such a group is a release.
    """

    noise: float
    share: float
    rounds: int
    size: int | None = None
    among: int = 1

    def __post_init__(self) -> None:
        counts = min(self.size or 1, self.among)
        if not self.noise >= 0 or not 0 < self.share <= 1 or not self.rounds >= 0 or counts < 1:
            raise InputError(f"{self}", "noise and rounds are 0 or more, shares in (0, 1]", "check where it comes from")

    @property
    def change(self) -> Change:
        """What sampling of this kind is about."""
        return Change.ZERO_OUT if self.size is None else Change.REPLACE

    @property
    def mu(self) -> float:
        """mu of the same releases without sampling, which is at least as much."""
        if self.rounds == 0 or self.noise == math.inf:
            return 0.0
        return math.sqrt(self.rounds) / self.noise if self.noise > 0 else math.inf

    @property
    def releases(self) -> Releases:
        """Batches of a fixed size have a whole number of records; of a share that is none, the next larger one."""
        if self.size is None:
            return Releases(self.noise, self.share, self.rounds, among=self.among)
        return Releases(
            self.noise, math.ceil(self.share * self.size * (1 - 1e-12)) / self.size, self.rounds, replaced=True
        )


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
        return SampledLoss(noise, document["share"], document["rounds"], document["size"], document.get("among", 1))
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
        parts = _parts(self.losses)
        return Rule.SUMS if parts.stated else Rule.DISTRIBUTIONS if parts.sampled else Rule.GAUSSIAN

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


class _Parts(NamedTuple):
    """mu of all Gaussian losses, those of sampled batches, and those that are added."""

    mu: float
    sampled: tuple[SampledLoss, ...]
    stated: tuple[StatedLoss, ...]


def _parts(losses: Iterable[Loss]) -> _Parts:
    """Sampling is not counted where it is none, or where noise is too small for it to count."""
    mus, sampled, stated = list[float](), list[SampledLoss](), list[StatedLoss]()
    for loss in losses:
        if isinstance(loss, StatedLoss):
            stated.append(loss)
        elif isinstance(loss, GaussianLoss) or loss.rounds == 0 or not LEAST <= loss.noise < math.inf:
            mus.append(loss.mu)
        else:
            sampled.append(loss)
    if _joint_mu(mus) > 1 / LEAST:
        mus, sampled = [*mus, *(loss.mu for loss in sampled)], []
    return _Parts(_joint_mu(mus), tuple(sampled), tuple(stated))


def _joint_mu(mus: Iterable[float]) -> float:
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
    mu, sampled, stated = _parts(losses)
    unused = Fraction(delta) - sum(Fraction(loss.delta) for loss in stated)
    if unused < 0 or (unused == 0 and (mu or sampled)):
        return math.inf
    left = math.nextafter(float(unused), 0.0) if stated else delta
    found = [loss.epsilon for loss in stated]
    if sampled:
        gaussian = [Releases(math.nextafter(1 / mu, 0.0), 1.0, 1)] if mu else []
        found.append(epsilon_of_releases([*gaussian, *(loss.releases for loss in sampled)], left))
    elif mu:
        found.append(epsilon_of(mu, left))
    return sum(found) if len(found) < 2 else _up(math.fsum(found))
