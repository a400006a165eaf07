"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

`exact_loss` is the whole way: a closed form where there is one, else M by the route that fits the size, and of M the
worst change. Routes to the same numbers:

| route | what it takes | chosen |
|---|---|---|
| `gram` | the covariance of all observations by lags | up to `GRAM_ROWS` observations |
| `kalman` | a filter over rounds | up to `FILTER_STATE` components of the state, if that is less work |
| `deflated` | an orthonormal basis of the noise, which decides about rank | where the others find none |

Noise is poorer than what is said where it is averaged or masked.

Shapes: V victims, T gradient rounds, R observations, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.core.noise import ZeroSum
from sottovoce.core.participation import Participation
from sottovoce.errors import Unaccountable
from sottovoce.privacy.exact.averaging import averaging_loss
from sottovoce.privacy.exact.deflation import (
    UNCOVERED,
    BasisSize,
    Deflated,
    average_has_no_noise,
    deflated,
    noise_cancels_in_average,
    well_conditioned,
)
from sottovoce.privacy.exact.elimination import eliminate_known_messages, without_implied_models
from sottovoce.privacy.exact.gram import gram
from sottovoce.privacy.exact.rank import Rank, exact_rank, seen_without_noise
from sottovoce.privacy.exact.whitening import Array, Groups, Singular, kalman, reached
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients, matrices_given_noisy_gradients
from sottovoce.privacy.observation import Observation, ObservedStep, observe
from sottovoce.privacy.reactions import SMALLEST, knows_every_state, open_by_steps, smallest_weight
from sottovoce.privacy.views import ViewKind
from sottovoce.privacy.worst_case import worst_case
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.memo import once_for_each
from sottovoce.support.progress import report_progress
from sottovoce.tracing.linear_system import map_equal_steps

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route may be taken: its matrices have their square in entries."""

FILTER_STATE = 6_000
"""Up to this many components of the state the filter may be taken."""

MULTIPLICATIONS, SPARSE = 1.5e10, 10.0
"""Multiplications in a second, and how many of them a product with an entry of a sparse matrix is worth: for limits."""

LESS = "ask for other kinds, as with --kind any-training, or take fewer rounds or a smaller graph"
"""What takes less than an exact loss."""

LARGEST_RATIO = 1e5
"""Of the noise of nodes, where it is on single messages."""

CANCELLED = 1e15
"""mu^2 for noise of size one above which it counts as infinite, where noise cancels in sums or in an average of final
models: it is left as rounding, which protects nobody."""


class Loss(NamedTuple):
    """mu^2 of every victim, and what these figures are: the loss, a bound, or a formula."""

    squares: Array
    figure: Figure


def exact_loss(observation: Observation, scheme: Participation) -> Loss:
    """mu^2 for the worst direction and pattern; infinite where a signal is not covered by noise."""
    _check_sizes_of_messages(observation)
    averaged = averaging_loss(observation)
    if averaged is not None:
        return Loss(averaged.squares, Figure.EXACT if averaged.exact else Figure.BOUND)
    bare = seen_without_noise(observation)
    observation = without_implied_models(observation)
    found = _closed_form(observation, scheme) or _by_matrices(observation, scheme)
    found = found._replace(squares=np.where(bare, np.inf, found.squares))
    return found._replace(figure=Figure.BOUND) if scheme.shuffled else found


def squared(observation: Observation, scheme: Participation) -> Array:
    """mu^2 of every victim."""
    return exact_loss(observation, scheme).squares


def _by_matrices(observation: Observation, scheme: Participation) -> Loss:
    out, exact = np.zeros(len(observation.victims)), True
    view = _reduced(observation)
    if view is not None and not view.observation.rows:
        direct = np.broadcast_to(view.direct, (observation.gradient_rounds, len(out)))
        return Loss(scheme.largest_sum(direct), Figure.EXACT)
    if view is not None:
        check_cost(f"the exact loss of {observation.view}", _cost(view.observation, scheme), LESS)
    cancels = observation.view.final_models is not FinalModels.NONE or _shares_noise(observation)
    for group, M_VTT, is_exact in _matrices(observation, view):
        found, covered = np.full(len(M_VTT), np.inf), np.isfinite(M_VTT).all(axis=(1, 2))
        if covered.any():
            some = M_VTT if covered.all() else M_VTT[covered]
            found[covered] = worst_case(some, scheme, observation.gradient_rounds)
        if cancels:
            found[found * _largest_noise(observation) ** 2 > CANCELLED] = np.inf
        out[group], exact = found, exact and is_exact
        report_progress(len(M_VTT))
    return Loss(out, Figure.EXACT if exact else Figure.BOUND)


def losses(observation: Observation) -> Array:
    """M of every victim, V x T x T; infinite throughout where a signal is not covered by noise."""
    T = observation.gradient_rounds
    M_VTT = np.zeros((len(observation.victims), T, T))
    for group, found, _ in _matrices(observation, _reduced(observation)):
        M_VTT[group] = found
    return M_VTT


def loss_cost(observation: Observation, scheme: Participation) -> Cost:
    """What `exact_loss` takes, from the sizes of what is left of the view; nothing where there is a closed form."""
    observation = without_implied_models(observation)
    if averaging_loss(observation) is not None or _closed_form(observation, scheme) is not None:
        return Cost()
    view = _reduced(observation)
    return Cost() if view is None else _cost(view.observation, scheme)


def _cost(observation: Observation, scheme: Participation) -> Cost:
    """What M of all victims takes by the route that fits the size, and the search for their worst changes."""
    T, R, X, V = len(observation.steps), float(observation.rows), observation.state, len(observation.victims)
    G, links, route = observation.gradient_rounds, observation.links, route_of(observation)
    among = scheme.times or G
    search = float(scheme.count(T) * V * among**2) * (150 + 2 * among)
    passes = R * T * (SPARSE / 2 * links + G * V / 3)
    if route is kalman:
        memory, work = X**2 + R * (X + R / T) / 3, R * (2 * X**2 + R * X) + 4 * SPARSE * T * links * X + passes
    else:
        memory, work = 5 / 3 * R**2, R**3 + passes + R * (SPARSE * links + R * observation.sources / T)
    return Cost(memory=24 * memory + min(24.0 * V * G**2, 24.0 * G**2 + 4e9), seconds=(work + search) / MULTIPLICATIONS)


# --- closed forms --------------------------------------------------------------------------------------------------


def _closed_form(observation: Observation, scheme: Participation) -> Loss | None:
    """mu^2 of every victim where no M is needed; None elsewhere."""
    without_noise = not any(part.noise.nnz for step in observation.distinct_steps for part in (step.observed, step.out))
    if without_noise or average_has_no_noise(observation):
        rows = np.concatenate(reached(observation, each=True))
        return Loss(np.where(rows.any(axis=0), np.inf, 0.0), Figure.EXACT)
    found = loss_of_noisy_gradients(observation, scheme)
    if found is None and sees_one_fresh_sum(observation):
        found = _of_fresh_sums(observation, scheme)
    return None if found is None else Loss(found, Figure.CLOSED_FORM)


def loss_of_noisy_gradients(observation: Observation, scheme: Participation) -> Array | None:
    """mu^2 of every victim if the view is exactly that of all noisy gradients, which has a closed form; None if not.

    It is when all hear everything, the state after each round follows from what was just said, noise travels with its
    gradient, and every gradient stands alone in some message.
    """
    view = observation.view
    if view.kind is not ViewKind.EVERYONE or observation.system.algorithm.averaging:
        return None
    if not all(_shows_single_gradients(step) for step in observation.distinct_steps if step.takes_gradients):
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


# --- matrices ------------------------------------------------------------------------------------------------------


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


class _Reduced(NamedTuple):
    """A view without what follows from earlier messages, and what is added to the diagonal of every M of that."""

    observation: Observation
    direct: Array


def _reduced(observation: Observation) -> _Reduced | None:
    """None where only a route will do that knows noise itself, not its squares."""
    if noise_cancels_in_average(observation):
        return None
    return _Reduced(*eliminate_known_messages(well_conditioned(observation)))


def _matrices(observation: Observation, view: _Reduced | None) -> Iterator[tuple[slice, Array, bool]]:
    """M of some victims after others, and whether it is exact; by deflation where the view is singular."""
    if view is not None:
        try:  # what is singular shows before the first group
            for group, M_VTT in _by_route(view.observation):
                np.einsum("vtt->vt", M_VTT)[:] += view.direct[group, None]
                yield group, M_VTT, True
            return
        except Singular:
            pass
    yield slice(None), *_deflated(observation)


def _by_route(observation: Observation) -> Groups:
    V, T = len(observation.victims), observation.gradient_rounds
    if not observation.rows or not T:  # nothing is heard that could tell anything
        return iter([(slice(None), np.zeros((V, T, T)))])
    return route_of(observation)(observation)


def route_of(observation: Observation) -> Callable[[Observation], Groups]:
    """By memory, then by the number of multiplications; only the covariance takes correlated noise."""
    T, rows, X = len(observation.steps), observation.rows, observation.state
    by_gram = rows**2 * X + 2 / 3 * rows**3
    by_filter = 2 * rows * X**2 + 40 * T * observation.links * X + rows**2 * X
    cheaper = rows > GRAM_ROWS or (by_filter < by_gram and X <= FILTER_STATE)
    return kalman if cheaper and observation.system.correlation is None else gram


def _deflated(observation: Observation) -> tuple[Array, bool]:
    """Deflation with everyone as a victim: what is rounding is told by all signals, not by those of a few.

    Directions of the noise that it takes for rounding must be none. That is so if it finds as many as there are;
    else all noisy gradients, which tell no less, stand for the view, and M is not exact.
    """
    whole = observe(observation.system, observation.view)
    n, size = len(whole.victims), BasisSize.of(whole)
    memory = 32 * size.entries + 16.0 * n * whole.gradient_rounds**2
    cost = Cost(memory=memory, seconds=size.multiplications / MULTIPLICATIONS)
    check_cost(f"a basis of all noise that reaches {whole.view}", cost, LESS)
    found = deflated(well_conditioned(whole))
    exact = _rank_of(whole, found)
    if exact is None:
        M_VTT = _matrices_of_noisy_gradients(whole)
    else:
        M_VTT = found.losses
        M_VTT[exact.uncovered.reshape(-1, n).any(axis=0)] = np.inf
    return M_VTT[np.searchsorted(whole.victims, observation.victims)], exact is not None


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


def _matrices_of_noisy_gradients(observation: Observation) -> Array:
    try:
        return matrices_given_noisy_gradients(observation.system, observation.view, observation.victims)
    except Unaccountable:
        T = observation.gradient_rounds
        return np.full((len(observation.victims), T, T), np.inf)


# --- small systems -------------------------------------------------------------------------------------------------


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
