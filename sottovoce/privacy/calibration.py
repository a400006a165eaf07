"""`calibrate`: the least sigma that meets a target, on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np
from scipy import sparse

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import CombinedNoise, Noise, PerNode
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.accountant import Account, AccountSettings, account
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import NO_KIND
from sottovoce.privacy.views import View, parse_view
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import trace_possible, trace_with_noise

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm


LARGEST = 1e12
"""A target that no sigma below this meets is refused."""

SAME_FACTOR = 2e-14
"""Share by which noise may grow more in one place than in another, as rounding."""

MARGIN = 1e-12
"""By this share a sigma in proportion is larger than computed: its account has roundings of its own."""


def with_sigma(algorithm: Algorithm, sigma: PerNode) -> Algorithm:
    """The same algorithm at another noise size; without noise there is none that could be exact."""
    noise: Noise = algorithm.noise.with_sigma(sigma)
    exact = algorithm.exact_noise if np.all(np.asarray(sigma) > 0) else False
    return replace(algorithm, noise=noise, exact_noise=exact)  # type: ignore[type-var]


class Calibrated(NamedTuple):
    """A sigma, and the account that shows it meets the target."""

    sigma: float
    account: Account


@dataclass(frozen=True)
class Target:
    """(epsilon, delta)-DP as the target of a calibration; `mu` is the largest that meets it."""

    epsilon: float
    delta: float
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", mu_of(self.epsilon, self.delta))

    def met_by(self, found: Account) -> bool:
        """Whether the headline of an account meets it."""
        return found.mu <= self.mu and found.epsilon(self.delta) <= self.epsilon


def calibrate(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    **settings: Unpack[AccountSettings],
) -> float:
    """The least sigma with which the headline of `account` is (epsilon, delta)-DP, rounded up.

    The algorithm's own sigma is replaced; `settings` are those of `account`, such as `adjacency` and `victims`.

    >>> from sottovoce import algorithm, metropolis
    >>> sigma = calibrate(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:8"), rounds=100, epsilon=1.0, delta=1e-5)
    >>> round(sigma, 4)
    37.3063
    """
    return calibrated(algorithm, topology, adversary, rounds=rounds, epsilon=epsilon, delta=delta, **settings).sigma


def calibrated(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    **settings: Unpack[AccountSettings],
) -> Calibrated:
    """`calibrate` with the account at that sigma; `settings` are those of `account`."""
    reference = trace_possible(with_sigma(algorithm, 1.0), topology, rounds=rounds)
    return calibrated_system(reference, adversary, Target(epsilon, delta), **settings)


def calibrated_system(
    reference: LinearSystem, adversary: str | View, target: Target, **settings: Unpack[AccountSettings]
) -> Calibrated:
    """The least sigma of a system that was traced at sigma 1, and the account there."""
    noise, view = reference.algorithm.noise, parse_view(adversary, labels=reference.topology.names)
    at = accounts_at(reference, noise.with_sigma, **settings)
    return least_sigma(lambda sigma: at(sigma, view), noise, target)


def accounts_at(
    reference: LinearSystem, noise_at: Callable[[float], Noise], **settings: Unpack[AccountSettings]
) -> Callable[[float, View], Account]:
    """How to account for a system at any sigma, where the reference was traced at sigma 1.

    Where all noise grows alike with sigma, a view is accounted for once, at sigma 1.
    """
    known: dict[View, Account] = {}

    def at(sigma: float, view: View) -> Account:
        if sigma == 1.0:
            known[view] = account(reference, view, **settings)
            return known[view]
        noise = noise_at(sigma)
        system = trace_with_noise(reference, noise)
        in_steps = sums_over_all(reference.algorithm) and bool(reference.algorithm.exact_noise)
        factor = common_factor(reference, noise) if view in known and not in_steps else None
        return account(system, view, **settings) if factor is None else known[view].with_noise_times(factor, system)

    return at


def common_factor(system: LinearSystem, noise: Noise) -> float | None:
    """By how much all noise of a system grows with another size of it; None where its parts do not grow alike."""
    old = system.algorithm.noise
    if old.correlation is not noise.correlation:
        return None
    factors = [np.zeros(0)]
    for step in dict.fromkeys(system.steps):
        before, after = _noise_matrices(old, step.mixings), _noise_matrices(noise, step.mixings)
        if before.keys() != after.keys():
            return None
        for place, matrix in before.items():
            found = after[place]
            alike = [np.array_equal(matrix.indptr, found.indptr), np.array_equal(matrix.indices, found.indices)]
            if not (all(alike) and matrix.data.all()):
                return None
            factors.append(found.data / matrix.data)
    every = np.concatenate(factors)
    least = float(every.min(initial=np.inf))
    return least if 0 < least < np.inf and every.max() <= least * (1 + SAME_FACTOR) else None


def _noise_matrices(noise: Noise, mixings: tuple[Mixing, ...]) -> dict[tuple[int, str], sparse.csr_array]:
    """The matrices of a round's noise, by gossip step and kind of sources, of which no step has two."""
    terms = [(0, term) for term in noise.local(mixings[0])]
    terms += [(number, term) for number, mixing in enumerate(mixings) for term in noise.edge(mixing, number)]
    return {(number, term.sources.kind): term.matrix.whole() for number, term in terms}


def least_sigma(at: Callable[[float], Account], noise: Noise, target: Target) -> Calibrated:
    """The least sigma that meets a target, where `at` accounts for a sigma: in proportion, or by bisection where a
    part of the noise does not scale with sigma.
    """
    reference = at(1.0)
    if reference.headline.proves_nothing:
        require_protection(reference)
    if reference.mu == 0:
        raise Unaccountable(
            f"nothing that {reference.view} observes depends on anybody's data, so no noise is needed against it, but "
            "the final models would be unprotected; count them among what it sees"
        )
    if isinstance(noise, CombinedNoise):
        return _bisected(at, reference, noise, target)
    return in_proportion(at, reference, target)


def require_protection(found: Account) -> None:
    """Refuse where no figure is proven, or where no size of noise makes it finite."""
    if found.headline.proves_nothing:
        raise Unaccountable(". ".join(found.refusals) or NO_KIND)
    if math.isinf(found.mu):
        raise Unaccountable(f"no sigma protects everybody from {found.view}: some signal is not covered by noise")


def in_proportion(
    at: Callable[[float], Account], reference: Account, target: Target, *, margin: float = MARGIN
) -> Calibrated:
    """The least sigma where mu is proportional to 1/sigma, from the account at sigma 1; larger by the given margin."""
    require_protection(reference)
    sigma = reference.mu / target.mu * (1 + margin)
    for _ in range(100):  # the next floats make up for rounding
        found = at(sigma)
        if target.met_by(found):
            return Calibrated(sigma, found)
        sigma *= 1 + MARGIN
    raise InputError(f"sigma {sigma} does not meet epsilon {target.epsilon}", "mu falls as 1/sigma", "report this")


def _bisected(at: Callable[[float], Account], reference: Account, noise: CombinedNoise, target: Target) -> Calibrated:
    """The least sigma where mu is not proportional to 1/sigma, from the account at sigma 1."""
    best = Calibrated(math.inf, reference)

    def ask(asked: float) -> Answer:
        nonlocal best
        sigma = noise.nearest_sigma(asked)
        found = reference if sigma == 1.0 else at(sigma)
        meets = target.met_by(found)
        if meets and sigma < best.sigma:
            best = Calibrated(sigma, found)
        return Answer(found.mu, meets)

    search = Search(ask, target.mu)
    search.approach(1.0, reference.mu / target.mu, close=1e-8)
    aim = f"epsilon {target.epsilon}"
    sigma = least_noise(search.meets, 1.0, tolerance=1e-6, smallest=1e-9, largest=LARGEST, target=aim)
    if sigma > best.sigma:  # it follows that it meets the target, and its account has to show it
        found = at(sigma)
        return Calibrated(sigma, found) if target.met_by(found) else best
    return best


# --- the least noise -------------------------------------------------------------------------------------------------


def least_noise(
    meets: Callable[[float], bool],
    start: float,
    *,
    tolerance: float,
    smallest: float,
    largest: float = math.inf,
    name: str = "sigma",
    target: str = "the target",
) -> float:
    """The least noise that `meets` a target, up to the relative `tolerance`, on the safe side.

    More noise must not break a target that less of it meets. The search begins at `start`; below `smallest` it stops,
    and a target that nothing up to `largest` meets is refused.

    >>> least_noise(lambda sigma: sigma >= 3, 1.0, tolerance=1e-3, smallest=1e-9)
    3.0
    """
    high = start
    while not meets(high):
        high *= 2
        if high > largest:
            raise Unaccountable(f"no {name} up to {largest:g} meets {target}")
    low = high / 2
    while low > smallest and meets(low):
        low, high = low / 2, low
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


SECANTS = 12
"""So many secants look for the least noise at most."""


class Answer(NamedTuple):
    """What one size of noise does: a figure that falls with noise, and whether the target is met."""

    figure: float
    meets: bool


class Search:
    """Which noise meets a target. What one meets, more of it meets too, so that few sizes are asked about.

    >>> asked = []
    >>> search = Search(lambda noise: asked.append(noise) or Answer(1 / noise**0.5, noise >= 9), limit=1 / 3)
    >>> search.approach(1.0, 2.0, close=1e-8)
    >>> sigma = least_noise(search.meets, 1.0, tolerance=1e-6, smallest=1e-9)
    >>> 9 <= sigma < 9.00001, len(asked) < 8
    (True, True)
    """

    def __init__(self, ask: Callable[[float], Answer], limit: float) -> None:
        self._ask, self._limit = ask, limit
        self._failing, self._meeting = 0.0, math.inf

    def meets(self, noise: float) -> bool:
        """Whether this much noise meets the target."""
        if noise >= self._meeting:
            return True
        return noise > self._failing and self._learn(noise).meets

    def approach(self, one: float, other: float, *, close: float) -> None:
        """Ask about noise just below the least and just above, found by secants of logarithms from two sizes."""
        before, now = self._learn(one).figure, other
        for _ in range(SECANTS):
            if not 0 < now < math.inf or abs(now - one) <= close * now:
                break
            figure = self._learn(now).figure
            one, before, now = now, figure, _secant(one, before, now, figure, self._limit)
        if 0 < now < math.inf:
            self.meets(now * (1 - close))
            self.meets(now * (1 + close))

    def _learn(self, noise: float) -> Answer:
        found = self._ask(noise)
        if found.meets:
            self._meeting = min(self._meeting, noise)
        else:
            self._failing = max(self._failing, noise)
        return found


def _secant(one: float, before: float, other: float, figure: float, limit: float) -> float:
    """Where the line through two points, in logarithms, reaches the limit; nan where it does not."""
    usable = min(before, figure) > 0 and max(before, figure) < math.inf and (before - figure) * (other - one) > 0
    if not usable:
        return math.nan
    slope = math.log(figure / before) / math.log(other / one)
    power = math.log(limit / figure) / slope
    return other * math.exp(power) if abs(power) < 50 else math.nan
