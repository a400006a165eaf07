"""How large a view is, which route its exact loss takes by that, and how much work it is.

Whoever computes a loss asks here, and so does whoever estimates beforehand what it takes: an estimate has sizes without
a view, which are about the same.

Work is counted in multiplications as they are in products of large dense matrices; of other work, how long it takes in
these.

Shapes: V victims, T gradient rounds, R observations, P observations of one round, K directions, X state.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from sottovoce.privacy.observation import Observation
from sottovoce.support.memo import once_for_each

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route may be taken: its matrices have their square in entries."""

FILTER_STATE = 6_000
"""Up to this many components of the state the filter may be taken."""

FEW_ROWS, FEW_COMPONENTS = 1_000, 64
"""Up to this many observations of a state of so many components a filter takes less time than to eliminate any."""

RESPONSES = 1.2e8
"""About how many whitened responses may be alive at once."""

CHEAP = 3e9
"""Multiplications that exact passes back in time may take, where one whitening could serve all rounds."""

DIRECTIONS, COARSE = 1024, 128
"""How many directions of what one whitening lacks are looked for at first, and where M may be a part in 10,000 above
the truth; twice as many as long as all of them matter."""

COARSE_ETA = 1e-4
"""From this share that M may be above the truth, directions are coarse."""

PASSES, TRANSFORMS = 4, 7.0
"""How long it takes to multiply directions by what is lacking and to make them orthonormal, in products with as many;
and how long transforms and products of responses take, in products."""

USUAL = 1 / 4
"""The share of all directions that is usually left."""

SPARSE = 10.0
"""How long a product with an entry of a sparse matrix takes."""

ITERATIONS = 15
"""Conjugate gradients usually end after so many steps."""

CARRIED = 3e8
"""Multiplications for a small view beyond which rows of observations, carried back in time, take less (`whitening`)."""

SEARCH, ROUND_SEARCH = 150.0, 2.0
"""How long the search for the worst change takes for an entry of M, and for each round besides."""


class Route(Enum):
    """By what a loss is computed; see `routes`."""

    NOTHING = "nothing is heard that could tell anything"
    GRAM = "the covariance of all observations"
    KALMAN = "a whitening filter over rounds"
    CONJUGATE = "conjugate gradients"


class Sizes(NamedTuple):
    """Of a view: rounds, those in which gradients enter, observations in all, components of the state and weights by
    which they go on, sources of noise in a round, victims.

    Rounds are `alike` if they are all one, in which gradients enter, and noise is not `correlated` over them.
    """

    rounds: int
    gradient_rounds: int
    rows: int
    state: int
    links: int
    sources: int
    victims: int
    alike: bool
    correlated: bool


@once_for_each
def sizes_of(observation: Observation) -> Sizes:
    """The sizes of what a view sees."""
    steps, first, different = observation.steps, observation.steps[0], observation.distinct_steps
    correlated = observation.system.correlation is not None
    return Sizes(
        rounds=len(steps),
        gradient_rounds=observation.gradient_rounds,
        rows=observation.rows,
        state=max(max(step.out.state.shape) for step in different),
        links=max(int(step.out.state.nnz) for step in different),
        sources=max(int(step.observed.noise.shape[1]) for step in different),
        victims=len(observation.victims),
        alike=len(different) == 1 and first.takes_gradients and not correlated,
        correlated=correlated,
    )


def is_small(sizes: Sizes) -> bool:
    """Whether a filter takes less time than to eliminate any observations first."""
    return sizes.rows <= FEW_ROWS and sizes.state <= FEW_COMPONENTS


def route_of(sizes: Sizes) -> Route:
    """By memory, then by the number of multiplications, which are few in small views; only the covariance takes
    correlated noise."""
    T, rows, X = sizes.rounds, sizes.rows, sizes.state
    if not rows or not sizes.gradient_rounds:
        return Route.NOTHING
    if rows > GRAM_ROWS and X > FILTER_STATE:
        return Route.CONJUGATE
    each = rows / T
    by_gram = rows**2 * X + 2 / 3 * rows**3
    by_filter = T * (2 * each * X**2 + 40 * sizes.links * X) + rows * T * each * X
    cheaper = rows > GRAM_ROWS or (by_filter < by_gram and X <= FILTER_STATE) or is_small(sizes)
    return Route.KALMAN if cheaper and not sizes.correlated else Route.GRAM


def settles(sizes: Sizes) -> bool:
    """Whether all rounds are alike, and a pass back in time for each observation would cost more than one whitening."""
    T, rows = sizes.rounds, sizes.rows
    passes = T * (10 * sizes.links + T * sizes.victims / 3)
    return sizes.alike and max(CHEAP, rows**3) < rows * passes


def are_few(sizes: Sizes) -> bool:
    """Whether the signals of the victims, whitened one by one, cost less than going back in time for all of them."""
    signals = sizes.rows * sizes.victims
    return signals < sizes.links and signals * sizes.gradient_rounds < RESPONSES


def directions(eta: float) -> int:
    """How many directions of what one whitening lacks are looked for at first."""
    return DIRECTIONS if eta < COARSE_ETA else COARSE


def gram_work(sizes: Sizes, eta: float, turns_back: bool) -> float:
    """What a loss takes from the covariance of all observations, by the way that it goes, without the search.

    Where it `turns_back`, the covariance of effects depends on the sum of their lags alone.
    """
    rows, T = float(sizes.rows), sizes.rounds
    found = rows**3 / 3 + (correlated_work(sizes) if sizes.correlated else covariance_work(sizes, turns_back))
    if are_few(sizes):
        return found + rows**3 / 3 + rows**2 * T * sizes.victims
    if settles(sizes):
        return found + settled_work(sizes, eta)
    return found + rows**3 / 3 + products_work(sizes)


def covariance_work(sizes: Sizes, turns_back: bool) -> float:
    """The covariance of all observations, of noise that is not correlated."""
    rows = float(sizes.rows)
    wide = 2 * rows / sizes.rounds if turns_back else rows
    return rows * (SPARSE * sizes.links + wide * sizes.sources)


def correlated_work(sizes: Sizes) -> float:
    """The covariance of all observations, of correlated noise."""
    rows, T = float(sizes.rows), sizes.rounds
    return rows * T * sizes.sources * (T + rows)


def settled_work(sizes: Sizes, eta: float) -> float:
    """One whitening for all rounds, and what it lacks."""
    T, R, K = sizes.rounds, float(sizes.rows), directions(eta)
    P = R / T
    lacking = R**2 * P + R**3 + PASSES * R**2 * K + SPARSE * sizes.links * R
    return lacking + TRANSFORMS * sizes.victims * T**2 * (P + USUAL * K)


def kalman_work(sizes: Sizes) -> float:
    """What a loss takes by a filter over rounds, without the search."""
    return filter_work(sizes) + weighing_work(sizes) + products_work(sizes)


def filter_work(sizes: Sizes) -> float:
    """The filters of all rounds."""
    T, X, P = sizes.rounds, sizes.state, sizes.rows / sizes.rounds
    return sizes.rows * (2 * X**2 + P * X + 2 / 3 * P**2) + 4 * SPARSE * T * sizes.links * X


def weighing_work(sizes: Sizes) -> float:
    """How filters of earlier rounds weigh what a pass back in time carries."""
    T, P = sizes.rounds, sizes.rows / sizes.rounds
    return sizes.rows * T / 2 * P * (sizes.state + P)


def goes_with_others(sizes: Sizes, apart: int) -> bool:
    """Whether states of a small view are carried from round to round, its filters together with those of others."""
    return carrying_work(sizes, apart) <= CARRIED


def carrying_work(sizes: Sizes, apart: int) -> float:
    """What is left of each gradient of each victim in the states of all later rounds that are `apart`."""
    return sizes.victims * float(sizes.state * sizes.rounds) ** 2 / (2 * apart)


def conjugate_work(sizes: Sizes) -> float:
    """What a loss takes by conjugate gradients, victim by victim."""
    return sizes.victims * ITERATIONS * 4 * SPARSE * sizes.rounds * sizes.gradient_rounds * float(sizes.links)


def products_work(sizes: Sizes) -> float:
    """Passes back in time for each observation, and the products of all victims."""
    T = sizes.rounds
    return float(sizes.rows) * T * (SPARSE / 2 * sizes.links + sizes.gradient_rounds * sizes.victims / 3)


def search_work(victims: float, rounds: int) -> float:
    """The worst changes of so many victims, in so many rounds, which are sought in M."""
    return (SEARCH + ROUND_SEARCH * rounds) * victims * rounds**2
