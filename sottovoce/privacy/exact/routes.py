"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

Routes to the same numbers:

- `gram`: covariance of all observations by lags, one Cholesky factor and its inverse for all victims; in long runs of
  equal rounds one whitening for all of them instead (`stationary`), whose M is up to one part in a million too large;
- `reversible`: where M may be a part in a thousand too large and weights are symmetric, as for all pairs, the same
  without any factor;
- `kalman`: a whitening filter over rounds, for small graphs, long runs and topologies that change; where rounds are
  alike, those of several small views together (`small_views`);
- `conjugate`: conjugate gradients, victim by victim, where neither the observations nor the state fit in memory;
- `deflated`: an orthonormal basis of the noise that reaches the view, where noise is poorer than what is said
  (averaging, masks); the only one that decides about rank;
- `dense`: the pseudo-inverse, the oracle of the tests.

Shapes: V victims, T gradient rounds, R observations, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
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
from sottovoce.privacy.exact.deflation import UNCOVERED, Deflated, deflated
from sottovoce.privacy.exact.elimination import eliminate_known_messages, without_implied_models
from sottovoce.privacy.exact.gram import gram
from sottovoce.privacy.exact.kalman import kalman
from sottovoce.privacy.exact.rank import Rank, exact_rank
from sottovoce.privacy.exact.reversible import reversible
from sottovoce.privacy.exact.small_views import small_losses
from sottovoce.privacy.exact.stationary import ETA
from sottovoce.privacy.exact.whitening import Array, Groups, Singular, quiet_warnings
from sottovoce.privacy.exact.work import Route, is_small, route_of, sizes_of
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients, matrices_given_noisy_gradients
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep, observe
from sottovoce.privacy.reactions import knows_every_state, open_by_steps
from sottovoce.privacy.smallest_weight import SMALLEST, smallest_weight
from sottovoce.privacy.views import View, ViewKind
from sottovoce.privacy.worst_case import GAP, worst_case_by_residue
from sottovoce.support.memo import once_for_each
from sottovoce.support.progress import report_progress
from sottovoce.tracing.linear_system import LinearSystem, map_equal_steps

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


def squared(observation: Observation, scheme: Participation, *, above: float | None = None) -> Array:
    """mu^2 of every victim: the worst direction and pattern; infinite where a signal is not covered by noise.

    With `above`, M may be larger than the truth by up to 1.6 times that, and the value of the worst direction by the
    rest of twice that, relatively, where it takes less time: so much the roots may be larger.
    """
    return squared_of_each([observation], scheme, above=above)[0]


def figure_of(observation: Observation, scheme: Participation) -> Figure:
    """What `squared` has given for a view: its loss, a bound, or a formula."""
    averaged = averaging_loss(observation)
    if averaged is not None:
        return Figure.EXACT if averaged.exact else Figure.BOUND
    if scheme.shuffled or observation.view in _doubtful_views(observation.system):
        return Figure.BOUND
    closed = loss_of_noisy_gradients(observation, scheme) is not None or sees_one_fresh_sum(observation)
    return Figure.CLOSED_FORM if closed else Figure.EXACT


def squared_of_each(
    observations: Sequence[Observation], scheme: Participation, *, above: float | None = None
) -> list[Array]:
    """`squared` of several views: those that are small are filtered together, and the worst directions of all are
    sought together."""
    searches = [_search(observation, scheme, above) for observation in observations]
    found = [np.zeros(0)] * len(searches)
    answers: dict[int, Array | Singular | None] = dict.fromkeys(range(len(searches)))
    while answers:
        filtered: dict[int, Observation] = {}
        asked: dict[int, _Asked] = {}
        for number, answer in answers.items():
            try:
                wanted = searches[number].send(answer)
            except StopIteration as end:
                found[number] = end.value
                continue
            if isinstance(wanted, Observation):
                filtered[number] = wanted
            else:
                asked[number] = wanted
        answers = dict(zip(filtered, small_losses(list(filtered.values()), _apart(scheme)), strict=True))
        answers |= zip(asked, _worst_of_each(list(asked.values()), scheme), strict=True)
    return found


class _Asked(NamedTuple):
    """M whose worst directions are asked for, in so many rounds and within a relative gap; R x V x J x J."""

    M_RVJJ: Array
    rounds: int
    gap: float


def _worst_of_each(asked: Sequence[_Asked], scheme: Participation) -> list[Array]:
    """mu^2 of the victims of each; those of one shape are sought together."""
    alike: dict[tuple[int, int, float], list[int]] = {}
    for number, (M_RVJJ, rounds, gap) in enumerate(asked):
        alike.setdefault((len(M_RVJJ), rounds, gap), []).append(number)
    found = [np.zeros(0)] * len(asked)
    for (_, rounds, gap), numbers in alike.items():
        each = [asked[number].M_RVJJ for number in numbers]
        values = worst_case_by_residue(each[0] if len(each) == 1 else np.concatenate(each, axis=1), scheme, rounds, gap)
        report_progress(len(values))
        ends = np.cumsum([M_RVJJ.shape[1] for M_RVJJ in each])[:-1]
        for number, part in zip(numbers, np.split(values, ends), strict=True):
            found[number] = part
    return found


def _apart(scheme: Participation) -> int:
    """Two rounds in which a change shows are a multiple of so many from each other."""
    return 1 if scheme.times is None else scheme.apart


def _search(
    observation: Observation, scheme: Participation, above: float | None
) -> Generator[Observation | _Asked, Array | Singular | None, Array]:
    """mu^2 of every victim; asks for M of a small view that it yields, and for the worst directions of each M."""
    _check_sizes_of_messages(observation)
    observation = without_implied_models(observation)
    if not any(part.noise.nnz for step in observation.distinct_steps for part in (step.observed, step.out)):
        return np.where(_reached(observation), np.inf, 0.0)
    if average_has_no_noise(observation):
        return np.where(_reached(observation), np.inf, 0.0)
    averaged = averaging_loss(observation)
    if averaged is not None:
        return averaged.squares
    of_noisy_gradients = loss_of_noisy_gradients(observation, scheme)
    if of_noisy_gradients is not None:
        return of_noisy_gradients
    if sees_one_fresh_sum(observation):
        return _of_fresh_sums(observation, scheme)
    reduced = None if _takes_deflation(observation) else _reduced(observation, always=above is not None)
    if reduced is not None and not reduced[0].rows:
        return scheme.largest_sum(np.broadcast_to(reduced[1], (observation.gradient_rounds, len(reduced[1]))))
    out = np.zeros(len(observation.victims))
    eta, gap = (ETA, GAP) if above is None else (1.6 * above, 0.4 * above)
    small = None
    if above is None and reduced is not None and _is_filtered_with_others(observation, reduced[0]):
        small = yield reduced[0]
    if isinstance(small, Singular):
        small, reduced = None, None
    elif small is not None:
        small *= separated(observation).factor
    groups = _in_groups(observation, reduced, eta, None if scheme.times is None else scheme.apart)
    whole = ((group, M_VTT[None]) for group, M_VTT in groups)
    for group, M_RVJJ in whole if small is None else [(slice(None), small)]:
        covered = np.isfinite(M_RVJJ).all(axis=(0, 2, 3))
        found = np.full(M_RVJJ.shape[1], np.inf)
        if covered.any():
            some = M_RVJJ if covered.all() else M_RVJJ[:, covered]
            found[covered] = yield _Asked(some, observation.gradient_rounds, gap)
        published = observation.view.final_models is not FinalModels.NONE and not separated(observation).apart
        if published or _shares_noise(observation):
            found[found * _largest_noise(observation) ** 2 > CANCELLED] = np.inf
        out[group] = found
    most = _largest_of_averaging(observation, scheme)
    if np.any(most < (1 - FULL_RANK) * out):
        _doubtful_views(observation.system).add(observation.view)
    return np.minimum(out, most)


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
    return whole(observation, in_groups(observation))


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


def in_groups(observation: Observation) -> Groups:
    """M of some victims after others, by the route that fits the size."""
    return _in_groups(observation, None if _takes_deflation(observation) else _reduced(observation))


def _takes_deflation(observation: Observation) -> bool:
    if np.isinf(separated(observation).factor):
        return True
    components = observation.steps[0].out.state.shape[0]
    return observation.system.algorithm.averaging and components * observation.sources <= DEFLATED


def _reduced(observation: Observation, *, always: bool = False) -> tuple[Observation, Array]:
    """The view without what follows from earlier messages, and what has to be added to the diagonal of every M.

    Small views are left as they are, unless they are `always` to be reduced, as the route `reversible` needs them.
    """
    conditioned = separated(observation).observation
    if is_small(sizes_of(observation)) and not always:
        return conditioned, np.zeros(len(observation.victims))
    return eliminate_known_messages(conditioned)


def _in_groups(
    observation: Observation,
    reduced: tuple[Observation, Array] | None,
    eta: float = ETA,
    apart: int | None = None,
) -> Groups:
    """M of some victims after others; without `apart`, of data that changes in every round."""
    if reduced is None:
        yield slice(None), _deflated(observation)
        return
    smaller, direct = reduced
    try:  # what is singular shows before the first group
        for group, M_VTT in _by_route(smaller, eta, apart):
            np.einsum("vtt->vt", M_VTT)[:] += direct[group, None]
            M_VTT *= separated(observation).factor
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


def _is_filtered_with_others(observation: Observation, smaller: Observation) -> bool:
    """Whether a view is small, and goes from round to round together with other small ones."""
    return is_small(sizes_of(observation)) and route_of(sizes_of(smaller)) is Route.KALMAN


def _by_route(observation: Observation, eta: float, apart: int | None) -> Groups:
    """M by the route that fits the sizes of a view."""
    route = route_of(sizes_of(observation))
    if route is Route.NOTHING:
        return quiet_warnings(observation)
    found = reversible(observation, eta, apart is None) if eta > ETA else None
    if found is not None:
        return found
    if route is Route.GRAM:
        return gram(observation, eta)
    return kalman(observation, apart or 1) if route is Route.KALMAN else conjugate(observation)


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
