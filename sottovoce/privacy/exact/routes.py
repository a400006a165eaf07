"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

`squared` is the whole way: a closed form where there is one, else M by the route that fits the size, and of M the worst
change. Routes to the same numbers:

- `gram`: covariance of all observations by lags, one Cholesky factor and its inverse for all victims; in long runs of
  equal rounds one whitening for all of them instead (`stationary`), whose M is up to five parts in a million too large;
- `kalman`: a whitening filter over rounds, for small graphs, long runs and topologies that change;
- `conjugate`: conjugate gradients, victim by victim, where neither the observations nor the state fit in memory;
- `deflated`: an orthonormal basis of the noise that reaches the view, where noise is poorer than what is said
  (averaging, masks); the only one that decides about rank;
- `dense`: the pseudo-inverse, the oracle of the tests.

Shapes: V victims, T gradient rounds, R observations, S noise sources, X state.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.core.noise import ZeroSum
from sottovoce.core.participation import Participation
from sottovoce.errors import Unaccountable
from sottovoce.privacy.exact.average import Separated, average_has_no_noise, separated
from sottovoce.privacy.exact.averaging import averaging_loss
from sottovoce.privacy.exact.conjugate import conjugate
from sottovoce.privacy.exact.deflation import UNCOVERED, Deflated, Rank, deflated, exact_rank
from sottovoce.privacy.exact.elimination import eliminate_known_messages, without_implied_models
from sottovoce.privacy.exact.gram import gram
from sottovoce.privacy.exact.stationary import DIRECTIONS
from sottovoce.privacy.exact.whitening import Array, Groups, Singular, kalman
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients, matrices_given_noisy_gradients
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep, observe
from sottovoce.privacy.reactions import SMALLEST, knows_every_state, open_by_steps, smallest_weight
from sottovoce.privacy.views import View, ViewKind
from sottovoce.privacy.worst_case import worst_case
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.memo import once_for_each
from sottovoce.support.progress import report_progress
from sottovoce.tracing.linear_system import LinearSystem, map_equal_steps

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route may be taken: its matrices have their square in entries."""

FILTER_STATE = 6_000
"""Up to this many components of the state the filter may be taken."""

FEW_ROWS, FEW_COMPONENTS = 1_000, 64
"""Up to this many observations of a state of so many components a filter takes less time than to eliminate any."""

MULTIPLICATIONS, SPARSE = 1.5e10, 10.0
"""Multiplications in a second, and how many of them a product with an entry of a sparse matrix is worth: for limits."""

LESS = "ask for other kinds, as with --kind any-training, or take fewer rounds or a smaller graph"
"""What takes less than an exact loss."""

DEFLATED = 1e8
"""Largest number of entries that the hidden state may have as a map from noise where averaging, whose noise is always
poor, takes the route by deflation."""

LARGEST_RATIO = 1e5
"""Of the noise of nodes, where it is on single messages."""

SOLVED, FULL_RANK = 4_000_000, 1e-10
"""Entries up to which the sums of a round are solved for noise, and the least ratio of their singular values then."""

CANCELLED = 1e15
"""mu^2 for noise of size one above which it counts as infinite, where noise cancels in sums or in an average of final
models: it is left as rounding, which protects nobody."""


def squared(observation: Observation, scheme: Participation) -> Array:
    """mu^2 of every victim: the worst direction and pattern; infinite where a signal is not covered by noise."""
    _check_sizes_of_messages(observation)
    observation = without_implied_models(observation)
    closed = _closed_form(observation, scheme)
    if closed is not None:
        return closed
    view = separated(observation)
    reduced = None if _takes_deflation(observation, view) else _reduced(observation, view)
    if reduced is not None and not reduced.observation.rows:
        return scheme.largest_sum(np.broadcast_to(reduced.direct, (observation.gradient_rounds, len(reduced.direct))))
    if reduced is not None:
        check_cost(f"the exact loss of {observation.view}", _cost(reduced.observation, scheme), LESS)
    out = np.zeros(len(observation.victims))
    for group, M_VTT in _in_groups(observation, reduced):
        found, covered = np.full(len(M_VTT), np.inf), np.isfinite(M_VTT).all(axis=(1, 2))
        if covered.any():
            some = M_VTT if covered.all() else M_VTT[covered]
            found[covered] = worst_case(some, scheme, observation.gradient_rounds)
        published = observation.view.final_models is not FinalModels.NONE and not view.apart
        if published or _shares_noise(observation):
            found[found * _largest_noise(observation) ** 2 > CANCELLED] = np.inf
        out[group] = found
        report_progress(len(M_VTT))
    most = _largest_of_averaging(observation, scheme)
    if np.any(most < (1 - FULL_RANK) * out):
        _doubtful_views(observation.system).add(observation.view)
    return np.minimum(out, most)


def figure_of(observation: Observation, scheme: Participation) -> Figure:
    """What `squared` has given for a view: its loss, a bound, or a formula."""
    averaged = averaging_loss(observation)
    if averaged is not None:
        return Figure.EXACT if averaged.exact else Figure.BOUND
    if scheme.shuffled or observation.view in _doubtful_views(observation.system):
        return Figure.BOUND
    closed = loss_of_noisy_gradients(observation, scheme) is not None or sees_one_fresh_sum(observation)
    return Figure.CLOSED_FORM if closed else Figure.EXACT


def loss_cost(observation: Observation, scheme: Participation) -> Cost:
    """What `squared` takes, from the sizes of what is left of the view; nothing where there is a closed form."""
    observation = without_implied_models(observation)
    if _closed_form(observation, scheme) is not None:
        return Cost()
    view = separated(observation)
    return Cost() if _takes_deflation(observation, view) else _cost(_reduced(observation, view).observation, scheme)


def _cost(observation: Observation, scheme: Participation) -> Cost:
    """What M of all victims takes by the route that fits the size, and the search for their worst changes."""
    T, R, X, V = len(observation.steps), float(observation.rows), observation.state, len(observation.victims)
    G, links, route = observation.gradient_rounds, observation.links, route_of(observation)
    among = scheme.times or G
    search = float(scheme.count(T) * V * among**2) * (150 + 2 * among)
    products = R * T * (SPARSE / 2 * links + G * V / 3)
    if route is Route.NOTHING:
        return Cost()
    if route is Route.CONJUGATE:
        memory, work = R * G, V * SPARSE * 60 * T * G * float(links)
    elif route is Route.KALMAN:
        memory, work = X**2 + R * (X + R / T) / 3, R * (2 * X**2 + R * X) + 4 * SPARSE * T * links * X + products
    else:
        settled = 3 * R**3 + 4 * R**2 * DIRECTIONS + 7.0 * V * T**2 * (R / T + DIRECTIONS / 2)
        memory, work = R**2, min(R**3 + products, settled) + R * (SPARSE * links + R * observation.sources / T)
    return Cost(memory=24 * memory + min(24.0 * V * G**2, 24.0 * G**2 + 4e9), seconds=(work + search) / MULTIPLICATIONS)


def _closed_form(observation: Observation, scheme: Participation) -> Array | None:
    """mu^2 of every victim where no M is needed; None elsewhere."""
    without_noise = not any(part.noise.nnz for step in observation.distinct_steps for part in (step.observed, step.out))
    if without_noise or average_has_no_noise(observation):
        return np.where(_reached(observation), np.inf, 0.0)
    averaged = averaging_loss(observation)
    if averaged is not None:
        return averaged.squares
    of_noisy_gradients = loss_of_noisy_gradients(observation, scheme)
    if of_noisy_gradients is None and sees_one_fresh_sum(observation):
        return _of_fresh_sums(observation, scheme)
    return of_noisy_gradients


def _largest_of_averaging(observation: Observation, scheme: Participation) -> Array:
    """For averaging, what all noisy values together tell: nothing that is sent tells more. No bound otherwise.

    What is heard again and again looks alike, so directions of the noise that are nearly lost in rounding can make an
    exact loss far too large.
    """
    if observation.system.algorithm.averaging:
        try:
            return loss_given_noisy_gradients(observation.system, observation.view, observation.victims, scheme)
        except Unaccountable:
            pass
    return np.full(len(observation.victims), np.inf)


def _reached(observation: Observation) -> NDArray[np.bool_]:
    """Whose gradients come into any observation at all, unless terms cancel."""
    found = np.zeros(len(observation.victims), dtype=bool)
    touched = np.zeros((observation.steps[0].out.state.shape[1], len(observation.victims)))
    for step in observation.steps:
        sent, after = (_touched(part, touched) for part in (step.observed, step.out))
        found |= sent.any(axis=0)
        if found.all():
            break
        touched = after.astype(float)
    return found


def _touched(part: Inputs, touched: Array) -> NDArray[np.bool_]:
    there = abs(part.state) @ touched
    if part.gradient.shape[1]:
        there = there + abs(part.gradient).toarray()
    return np.asarray(there > 0)


def loss_of_noisy_gradients(observation: Observation, scheme: Participation) -> Array | None:
    """mu^2 of every victim if the view is exactly that of all noisy gradients, which has a closed form; None if not.

    It is when all hear everything, the state after each round follows from what was just said, noise travels with its
    gradient, and every gradient stands alone in some message, or in some combination of secure sums.
    """
    view = observation.view
    if view.kind is not ViewKind.EVERYONE or observation.system.algorithm.averaging:
        return None
    shown = _solves_for_noise if view.secure_sum else _shows_single_gradients
    if not all(shown(step) for step in observation.distinct_steps if step.takes_gradients):
        return None
    if open_by_steps(observation) is not None:
        return None
    try:
        return loss_given_noisy_gradients(observation.system, view, observation.victims, scheme)
    except Unaccountable:
        return None


@once_for_each
def _shows_single_gradients(step: ObservedStep) -> bool:
    gradient = step.observed.gradient
    alone = gradient[np.flatnonzero(np.diff(gradient.indptr) == 1)]
    return len(np.unique(alone.indices)) == gradient.shape[1]


@once_for_each
def _solves_for_noise(step: ObservedStep) -> bool:
    """Whether what is said in a round, less states, can be solved for all of its noise, with room for rounding."""
    rows, sources = step.observed.noise.shape
    if not 0 < sources <= rows or rows * sources > SOLVED:
        return False
    sizes = np.linalg.svd(step.observed.noise.toarray(), compute_uv=False)
    return bool(sizes[-1] > FULL_RANK * sizes[0])


def sees_one_fresh_sum(observation: Observation) -> bool:
    """Whether all that is new in a round is one sum of its own gradients and noise: then rounds stand alone."""
    steps = observation.distinct_steps
    if observation.system.correlation is not None or any(step.observed.state.shape[0] > 1 for step in steps):
        return False
    return not any(step.observed.state.nnz for step in steps) or knows_every_state(observation)


def _of_fresh_sums(observation: Observation, scheme: Participation) -> Array:
    """mu^2 of every victim: M is diagonal, with what each sum tells."""

    def told(step: ObservedStep) -> Array:
        variance = float(step.observed.noise.power(2).sum())
        signal = np.asarray(step.observed.gradient.power(2).sum(axis=0)).ravel()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(signal > 0, signal / variance, 0.0)

    each_TV = np.array(map_equal_steps(told, [step for step in observation.steps if step.takes_gradients]))
    return scheme.largest_sum(each_TV)


def losses(observation: Observation) -> Array:
    """M of every victim, V x T x T; infinite throughout where a signal is not covered by noise."""
    view = separated(observation)
    reduced = None if _takes_deflation(observation, view) else _reduced(observation, view)
    return whole(observation, _in_groups(observation, reduced))


def _check_sizes_of_messages(observation: Observation) -> None:
    """Noise that cancels over messages is known by differences, in which that of one node is lost beside far more."""
    algorithm, mixing = observation.system.algorithm, observation.system.topology.at(0)
    if not isinstance(algorithm.noise, ZeroSum):
        return
    sizes = algorithm.noise.zetas(mixing) * np.broadcast_to(algorithm.sensitivity, mixing.n)
    if sizes.max() > LARGEST_RATIO * sizes[sizes > 0].min(initial=np.inf):
        raise Unaccountable(
            f"{algorithm.name}: the noise of nodes differs by more than a factor of {LARGEST_RATIO:,.0f}, and the "
            "smaller would be lost in rounding; use sensitivities and sizes of noise that differ less"
        )


def _shares_noise(observation: Observation) -> bool:
    """Whether noise is added in one place and taken off in another, so that it cancels in sums."""
    parts = [part.noise for step in observation.distinct_steps for part in (step.observed, step.out)]
    return any(
        part.nnz and bool(np.any((part.max(axis=0).toarray() > 0) & (part.min(axis=0).toarray() < 0))) for part in parts
    )


def _largest_noise(observation: Observation) -> float:
    parts = [part.noise for step in observation.distinct_steps for part in (step.observed, step.out)]
    return max((float(np.abs(part.data).max()) for part in parts if part.nnz), default=0.0)


def whole(observation: Observation, groups: Groups) -> Array:
    """Groups of victims put together."""
    M_VTT = np.zeros((len(observation.victims), observation.gradient_rounds, observation.gradient_rounds))
    for group, found in groups:
        M_VTT[group] = found
    return M_VTT


def _takes_deflation(observation: Observation, view: Separated) -> bool:
    if np.isinf(view.factor):
        return True
    components = observation.steps[0].out.state.shape[0]
    return observation.system.algorithm.averaging and components * observation.sources <= DEFLATED


class _Reduced(NamedTuple):
    """A view without what follows from earlier messages; what has to be added to the diagonal of every M of that, and
    then by how much it may be larger."""

    observation: Observation
    direct: Array
    factor: float


def _reduced(observation: Observation, view: Separated) -> _Reduced:
    """Small views are left as they are."""
    if is_small(observation):
        return _Reduced(view.observation, np.zeros(len(observation.victims)), view.factor)
    return _Reduced(*eliminate_known_messages(view.observation), view.factor)


def _in_groups(observation: Observation, reduced: _Reduced | None) -> Groups:
    """M of some victims after others; by deflation where the view was not reduced, or is singular."""
    if reduced is None:
        yield slice(None), _deflated(observation)
        return
    try:  # what is singular shows before the first group
        for group, M_VTT in _by_route(reduced.observation):
            np.einsum("vtt->vt", M_VTT)[:] += reduced.direct[group, None]
            M_VTT *= reduced.factor
            yield group, M_VTT
    except Singular:
        yield slice(None), _deflated(observation)


def _deflated(observation: Observation) -> Array:
    """Deflation with everyone as a victim: what is rounding is told by all signals, not by those of a few.

    Directions of the noise that it takes for rounding must be none. That is so if it finds as many as there are;
    else all noisy gradients, which tell no less, stand for the view.
    """
    whole = observe(observation.system, observation.view)
    averaging = observation.system.algorithm.averaging
    apart = Separated(whole, 1.0, False) if averaging else separated(whole)
    T, n, Z = len(whole.steps), len(whole.victims), float(whole.sources)
    work = whole.rows**2 * (2 * Z + T * n) + 100 * T * (Z + T * n) * whole.state
    cost = Cost(memory=80 * whole.state * (Z + T * n), seconds=work / MULTIPLICATIONS)
    check_cost(f"a basis of all noise that reaches {whole.view}", cost, LESS)
    found = deflated(apart.observation)
    M_VTT = found.losses * (apart.factor if apart.apart else 1.0)
    exact = _rank_of(apart.observation if apart.apart else whole, found)
    if exact is None:
        _doubtful_views(observation.system).add(observation.view)
        M_VTT = _matrices_of_noisy_gradients(whole)
    else:
        M_VTT[exact.uncovered.reshape(-1, len(whole.victims)).any(axis=0)] = np.inf
    return M_VTT[np.searchsorted(whole.victims, observation.victims)]


def _rank_of(observation: Observation, found: Deflated) -> Rank | None:
    """What is known of a view without rounding, if deflation has found the same; None if it is in doubt.

    Where that cannot be computed for training, no weights may be so small that rounding hides what they leave.
    """
    if not found.clear:
        return None
    averaging = observation.system.algorithm.averaging
    exact = exact_rank(observation, stored=averaging)
    if exact is not None and exact.rank == found.rank:
        return exact
    if averaging or (exact is not None and exact.certain) or smallest_weight(observation.system) < SMALLEST:
        return None
    return Rank(found.rank, np.zeros(len(observation.victims) * observation.gradient_rounds, dtype=bool), False)


@once_for_each
def _doubtful_views(system: LinearSystem) -> set[View]:
    """Noted while their losses are computed: views whose rank is in doubt, so that noisy gradients stand for them."""
    return set()


def _matrices_of_noisy_gradients(observation: Observation) -> Array:
    try:
        return matrices_given_noisy_gradients(observation.system, observation.view, observation.victims)
    except Unaccountable:
        T = observation.gradient_rounds
        return np.full((len(observation.victims), T, T), np.inf)


class Route(Enum):
    """By what a loss is computed."""

    NOTHING = "nothing is heard that could tell anything"
    GRAM = "the covariance of all observations"
    KALMAN = "a whitening filter over rounds"
    CONJUGATE = "conjugate gradients"


def is_small(observation: Observation) -> bool:
    """Whether a filter takes less time than to eliminate any observations first."""
    return observation.rows <= FEW_ROWS and observation.state <= FEW_COMPONENTS


def route_of(observation: Observation) -> Route:
    """By memory, then by the number of multiplications, which are few in small views; only the covariance takes
    correlated noise."""
    T, rows, X = len(observation.steps), observation.rows, observation.state
    if not rows or not observation.gradient_rounds:
        return Route.NOTHING
    if rows > GRAM_ROWS and X > FILTER_STATE:
        return Route.CONJUGATE
    each = rows / T
    by_gram = rows**2 * X + 2 / 3 * rows**3
    by_filter = T * (2 * each * X**2 + 40 * observation.links * X) + rows * T * each * X
    cheaper = rows > GRAM_ROWS or (by_filter < by_gram and X <= FILTER_STATE) or is_small(observation)
    return Route.KALMAN if cheaper and observation.system.correlation is None else Route.GRAM


def _by_route(observation: Observation) -> Groups:
    """M by the route that fits the sizes of a view."""
    route = route_of(observation)
    if route is Route.NOTHING:
        T = observation.gradient_rounds
        return iter([(slice(None), np.zeros((len(observation.victims), T, T)))])
    if route is Route.GRAM:
        return gram(observation)
    return kalman(observation) if route is Route.KALMAN else conjugate(observation)


# --- oracle --------------------------------------------------------------------------------------------------------


class Whitened(NamedTuple):
    """Observations made white: `matrix @ O` is unit noise plus `signal`; `bare` is what of a signal no noise covers."""

    matrix_KR: Array
    signal_KTV: Array
    bare_RTV: Array
    uncovered_V: NDArray[np.bool_]


def whitened(observation: Observation, *, rank: float = 1e-11) -> Whitened:
    """A view's observations whitened by a singular value decomposition of B; for small systems."""
    A_RTV, B_RZ = observation.dense()
    R, T, V = A_RTV.shape
    left, sizes, _ = np.linalg.svd(B_RZ, full_matrices=False)
    keep = sizes > rank * (sizes[0] if sizes.size else 0.0)
    coordinates = (left[:, keep].T @ A_RTV.reshape(R, T * V)).reshape(-1, T, V)
    bare = A_RTV - np.einsum("rk,ktv->rtv", left[:, keep], coordinates)
    uncovered = np.abs(bare).max(axis=(0, 1), initial=0.0) > UNCOVERED * np.abs(A_RTV).max(axis=(0, 1), initial=1e-300)
    return Whitened(left[:, keep].T / sizes[keep, None], coordinates / sizes[keep][:, None, None], bare, uncovered)


def dense(observation: Observation, *, rank: float = 1e-11) -> Array:
    """M by the pseudo-inverse of B B^T: the definition itself."""
    white = whitened(observation, rank=rank)
    M_VTT = np.einsum("ksv,ktv->vst", white.signal_KTV, white.signal_KTV)
    M_VTT[white.uncovered_V] = np.inf
    return M_VTT
