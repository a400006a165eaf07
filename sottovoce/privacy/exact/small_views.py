"""The exact losses of small views whose rounds are all alike: filters of several views go from round to round together.

As in `kalman`, each round tells something that was not known before. Divided by the root of its covariance, a gradient
of round t shows in it as `E_t`, and the state as `H_t`. The gradient moves the state by `K_t`, and the state goes on as
`F_t`, less what was heard. So what all rounds from t on tell of the state is

    Psi_t = H_t^T H_t + F_t^T Psi_{t+1} F_t,

and M has the entries `M[t, t] = |E_t|^2 + K_t^T Psi_{t+1} K_t` and, with `z_t(s)` for what is left in round t of the
gradient of an earlier round s, `M[s, t] = z_t(s)^T (H_t^T E_t + F_t^T Psi_{t+1} K_t)`. All matrices are as small as the
state, and nothing is carried back in time for each observation, as larger views need it (`whitening`).

Models that are seen after the last round are more observations of that round: what they add is added to M.

Shapes: N views, V victims, T rounds, P observations of a round, X state, Q published models, R residues of rounds, J
rounds of one residue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.privacy.exact.elimination import begins_alike, has_equal_rounds
from sottovoce.privacy.exact.kalman import inverse_factor
from sottovoce.privacy.exact.whitening import CONDITION, EPS, Array, Singular, cholesky_, rounding_error
from sottovoce.privacy.exact.work import goes_with_others, sizes_of
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.privacy.views import View
from sottovoce.support.threads import chunks, one_thread

AT_ONCE = 1 << 22
"""About how many entries the filters of views that are taken together may have."""

MULTIPLIED = 4
"""Views whose filters are multiplied at once: with more, all products take new memory, which costs more than they."""


class _Shape(NamedTuple):
    """Views of one shape are filtered together."""

    rounds: int
    observed: int
    state: int
    victims: int


class _Asked(NamedTuple):
    """One of the views that are asked for: its place among them, and its last round, after which it may see models."""

    number: int
    last: ObservedStep


def small_losses(observations: Sequence[Observation], apart: int) -> list[Array | Singular | None]:
    """M of every victim for each view, R x V x J x J; None where a view needs another route, and `Singular` where it
    needs one that decides about rank.

    Only entries for two rounds that are a multiple of `apart` rounds from each other: `found[r, v, i, j]` is that of
    rounds `r + i apart` and `r + j apart`, and 0 where there is no such round. A view with final models and the same
    view without them are filtered once. No bit of a view's M depends on the views beside it.
    """
    found: list[Array | Singular | None] = [None] * len(observations)
    for group in _groups(observations, apart):
        for number, M_RVJJ in _losses(group, apart):
            found[number] = M_RVJJ
    return found


Group = dict[Observation, list[_Asked]]
"""Views of one shape, as they are before models are seen, and who is asked for of each."""


def _groups(observations: Sequence[Observation], apart: int) -> Iterable[Group]:
    """Those views that can be filtered here, by shape; as many at once as memory allows."""
    known: dict[View, Observation] = {}
    asked: Group = {}
    for number, observation in enumerate(observations):
        first = observation.steps[0]
        X, before = first.out.state.shape
        if not has_equal_rounds(observation) or before != X or not first.takes_gradients:
            continue
        if not goes_with_others(sizes_of(observation), apart):
            continue
        without = replace(observation.view, final_models=FinalModels.NONE)
        base = known.setdefault(without, observation)
        if not _same_rounds(base, observation):
            base = observation
        asked.setdefault(base, []).append(_Asked(number, observation.steps[-1]))
    alike: dict[_Shape, list[Observation]] = {}
    for base in asked:
        alike.setdefault(_shape(base), []).append(base)
    for shape, bases in alike.items():
        entries = shape.rounds * (shape.observed + shape.state) * (shape.state + shape.victims)
        for some in chunks(len(bases), AT_ONCE // entries):
            yield {base: asked[base] for base in bases[some]}


def _same_rounds(one: Observation, other: Observation) -> bool:
    """Whether two views see the same of as many rounds, but for models after the last."""
    if one is other:
        return True
    step, same = one.steps[0], other.steps[0]
    if len(one.steps) != len(other.steps) or not np.array_equal(one.victims, other.victims):
        return False
    return begins_alike(step, same) and begins_alike(same, step)


def _shape(observation: Observation) -> _Shape:
    """Observations are padded to a multiple of eight, so that there are few shapes."""
    step = observation.steps[0]
    P, X = step.observed.state.shape
    return _Shape(len(observation.steps), 8 * max(1, -(-P // 8)), X, len(observation.victims))


@one_thread()
def _losses(group: Group, apart: int) -> list[tuple[int, Array | Singular]]:
    bases = list(group)
    try:
        filters = _filters(bases)
    except np.linalg.LinAlgError:  # in one of them, at least
        return [] if len(bases) == 1 else [pair for base in bases for pair in _losses({base: group[base]}, apart)]
    told = _told_later(filters)
    found: list[tuple[int, Array | Singular]] = []
    for some in chunks(len(bases), MULTIPLIED):
        M_RNVJJ = _products(filters, told, some, apart)
        for place, M_RVJJ in zip(range(len(bases))[some], np.moveaxis(M_RNVJJ, 1, 0), strict=True):
            if filters.sound_N[place]:
                found += _with_rounding(M_RVJJ, filters, place, bases[place], group[bases[place]], apart)
    return found


def _with_rounding(
    M_RVJJ: Array, filters: _Filters, place: int, base: Observation, asked: Sequence[_Asked], apart: int
) -> Iterable[tuple[int, Array | Singular]]:
    """M of a view, and of the same view with models, each with what covers rounding."""
    rounding = float(filters.rounding_N[place])
    for number, last in asked:
        if last.observed.state.shape[0] == base.steps[0].observed.state.shape[0]:
            yield number, M_RVJJ * (1 + rounding)
            continue
        try:
            told_TQV, more = _told_by_models(filters, place, base, last)
        except Singular as refusal:
            yield number, refusal
            continue
        found = _squares(told_TQV, apart)
        found += M_RVJJ
        found *= 1 + max(rounding, more)
        yield number, found


class _Filters(NamedTuple):
    """What the head of this file calls H, E, F and K, T x N x ..., and the covariance with which the last round began.

    `terms` is as large as that would be if noise could not cancel, and `cancel_N` says where it can. `rounding_N`
    bounds relative rounding; `sound_N` says which views are not too close to singular, beside their terms.
    """

    H: Array
    E: Array
    F: Array
    K: Array
    before_last: Array
    terms: Array
    cancel_N: NDArray[np.bool_]
    rounding_N: Array
    sound_N: NDArray[np.bool_]


def _filters(bases: Sequence[Observation]) -> _Filters:
    """The covariance of the state goes forward, given what was seen."""
    T, P, X, _ = _shape(bases[0])
    N = len(bases)
    moves_NYX, gradients_NYV, noise_NYY, sizes_NYY = _stacked(bases)
    seen_NPV, back_NXY = gradients_NYV[:, :P], moves_NYX.transpose(0, 2, 1)
    spread_NXX = before_NXX = np.zeros((N, X, X))
    factors_TNPP, inverses_TNPP, gains_TNPX = (np.empty((T, N, P, width)) for width in (P, P, X))
    for t in range(T):
        before_NXX = spread_NXX
        joint_NYY = moves_NYX @ spread_NXX @ back_NXY + noise_NYY
        if t == 0:
            _ignore_what_is_known_(joint_NYY, seen_NPV)
        factors_TNPP[t] = np.linalg.cholesky(joint_NYY[:, :P, :P])
        inverses_TNPP[t] = _inverse_of_lower(factors_TNPP[t])
        gain_NPX = np.matmul(inverses_TNPP[t], joint_NYY[:, :P, P:], out=gains_TNPX[t])
        left_NXX = joint_NYY[:, P:, P:] - gain_NPX.transpose(0, 2, 1) @ gain_NPX
        spread_NXX = (left_NXX + left_NXX.transpose(0, 2, 1)) / 2
    pivots_TNP = np.einsum("tnpp->tnp", factors_TNPP) ** 2
    sizes_NYX = np.abs(moves_NYX)
    cancel_N = np.any(sizes_NYX != moves_NYX, axis=(1, 2)) | np.any(sizes_NYY != noise_NYY, axis=(1, 2))
    terms_NXX = _largest_spread(sizes_NYX[:, P:], sizes_NYY[:, P:, P:], T)
    with np.errstate(over="ignore", invalid="ignore"):
        terms_NYY = sizes_NYX @ terms_NXX @ sizes_NYX.transpose(0, 2, 1) + sizes_NYY
        terms_NP = np.einsum("nyy->ny", terms_NYY)[:, :P]
        sound_N = np.all(pivots_TNP >= CONDITION * terms_NP, axis=(0, 2))
        summed_TNP = np.where(cancel_N[:, None], terms_NP, (factors_TNPP**2).sum(axis=3))
        ratio_N = (summed_TNP / pivots_TNP).max(axis=(0, 2))
    inputs_NYW = np.concatenate([moves_NYX, gradients_NYV], axis=2)
    shown_TNPW = inverses_TNPP @ inputs_NYW[:, :P]
    left_TNXW = gains_TNPX.transpose(0, 1, 3, 2) @ shown_TNPW
    np.subtract(inputs_NYW[:, P:], left_TNXW, out=left_TNXW)
    (H, E), (F, K) = (np.split(part, [X], axis=3) for part in (shown_TNPW, left_TNXW))
    return _Filters(H, E, F, K, before_NXX, terms_NXX, cancel_N, 4 * T * (P + X) * EPS * ratio_N, sound_N)


def _inverse_of_lower(factors_NPP: Array) -> Array:
    """Of lower triangular matrices, from the upper ones: in these no rows are exchanged, so it is back substitution."""
    return np.asarray(np.linalg.inv(factors_NPP.transpose(0, 2, 1)).transpose(0, 2, 1))


def _largest_spread(moves_NXX: Array, noise_NXX: Array, rounds: int) -> Array:
    """The covariance of the state by itself after at least so many rounds: it grows from round to round, and that after
    twice as many follows from one product. Of it, not of what is left, rounding is a share.
    """
    found, moved = noise_NXX, moves_NXX
    with np.errstate(over="ignore", invalid="ignore"):  # of a state that explodes no view is sound
        for _ in range((rounds - 1).bit_length()):
            found = found + moved @ found @ moved.transpose(0, 2, 1)
            moved = moved @ moved
    return found


def _ignore_what_is_known_(joint_NYY: Array, gradients_NPV: Array) -> None:
    """Observations of the first round that are known for sure count as noise, unless they hold a gradient."""
    P = gradients_NPV.shape[1]
    known_NP = np.einsum("nyy->ny", joint_NYY)[:, :P] <= 0
    if gradients_NPV[known_NP].any():
        raise np.linalg.LinAlgError("a signal without noise")
    view, row = np.nonzero(known_NP)
    joint_NYY[view, row, row] = 1.0


def _stacked(bases: Sequence[Observation]) -> tuple[Array, Array, Array, Array]:
    """Of each view what is seen of the state and, below it, how the state goes on; gradients likewise; the covariance
    of new noise, and what it would be if none of it cancelled.

    What pads observations is noise of size one that nothing else has.
    """
    _, P, X, V = _shape(bases[0])
    moves, gradients, noise, sizes = (np.zeros((len(bases), P + X, width)) for width in (X, V, P + X, P + X))
    for number, base in enumerate(bases):
        step = base.steps[0]
        seen = step.observed.state.shape[0]
        for part, rows in ((step.observed, slice(seen)), (step.out, slice(P, None))):
            moves[number, rows], gradients[number, rows] = part.state.toarray(), part.gradient.toarray()
        sources = np.zeros((P + X, step.observed.noise.shape[1]))
        sources[:seen], sources[P:] = step.observed.noise.toarray(), step.out.noise.toarray()
        noise[number], sizes[number] = sources @ sources.T, np.abs(sources) @ np.abs(sources).T
        padding = np.arange(seen, P)
        noise[number, padding, padding] = sizes[number, padding, padding] = 1.0
    return moves, gradients, noise, sizes


def _products(filters: _Filters, told: Array, some: slice, apart: int) -> Array:
    """M of some views and all their victims, R x N x V x J x J; `told` is `Psi_{t+1} K_t`."""
    H, E, F, K, told = (of_TN[:, some] for of_TN in (*filters[:4], told))
    T, N, X, V = K.shape
    shown_TNVX = told.transpose(0, 1, 3, 2) @ F
    shown_TNVX += E.transpose(0, 1, 3, 2) @ H
    R, J = min(apart, T), -(-T // apart)
    before, left = np.empty((2, R, N, J * V, X))  # of the gradients of every earlier round, V rows for each
    M_RNVJJ = np.zeros((R, N, V, J, J))
    between = _moved_between(F, apart)
    for j in range(1, J):
        begin, r = (j - 1) * apart, min(R, T - j * apart)
        moved, earlier = between[begin : begin + r], slice(0, (j - 1) * V)
        before, left = left, before
        onwards = (moved @ F[begin : begin + r]).transpose(0, 1, 3, 2)
        np.matmul(before[:r, :, earlier], onwards, out=left[:r, :, earlier])
        left[:r, :, earlier.stop : j * V] = (moved @ K[begin : begin + r]).transpose(0, 1, 3, 2)
        shown = shown_TNVX[begin + apart : begin + apart + r]
        pairs = np.einsum("rnjvx,rnvx->rnvj", left[:r, :, : j * V].reshape(r, N, j, V, X), shown)
        M_RNVJJ[:r, :, :, :j, j] = M_RNVJJ[:r, :, :, j, :j] = pairs
    own_TNV = (E**2).sum(axis=2) + np.einsum("tnxv,tnxv->tnv", K, told)
    np.einsum("rnvjj->rnvj", M_RNVJJ)[:] = _by_residue(own_TNV, apart).transpose(0, 2, 3, 1)
    return M_RNVJJ


def _by_residue(of_rounds: Array, apart: int) -> Array:
    """What there is for each round, T x ..., as R x J x ...; zero for rounds that there are not."""
    T, *rest = of_rounds.shape
    R, J = min(apart, T), -(-T // apart)
    found = np.zeros((J * R, *rest))
    found[:T] = of_rounds
    return np.swapaxes(found.reshape(J, R, *rest), 0, 1)


def _squares(told_TQV: Array, apart: int) -> Array:
    """What observations add to M, R x V x J x J."""
    told_RVJQ = _by_residue(told_TQV, apart).transpose(0, 3, 1, 2)
    return told_RVJQ @ told_RVJQ.transpose(0, 1, 3, 2)


def _told_later(filters: _Filters) -> Array:
    """`Psi_{t+1} K_t` of each round, T x N x X x V."""
    H, F, K = filters.H, filters.F, filters.K
    found = np.empty_like(K)
    found[-1] = 0.0
    later = np.zeros_like(F[-1])
    for t in range(len(H) - 1, 0, -1):
        later = F[t].transpose(0, 2, 1) @ later @ F[t]
        later += H[t].transpose(0, 2, 1) @ H[t]
        np.matmul(later, K[t - 1], out=found[t - 1])
    return found


def _moved_between(F: Array, apart: int) -> Array:
    """How the state moves from the end of each round to the beginning of the one `apart` later."""
    T, _, X, _ = F.shape
    count = max(0, T - apart)
    if apart == 1:
        return np.broadcast_to(np.eye(X), F[:count].shape)
    moved, room = F[1 : 1 + count], (np.empty_like(F[:count]), np.empty_like(F[:count]))
    for after in range(2, apart):
        moved = np.matmul(F[after : after + count], moved, out=room[after % 2])
    return moved


def _told_by_models(filters: _Filters, place: int, base: Observation, last: ObservedStep) -> tuple[Array, float]:
    """What models tell of each round that the messages of the last one do not, and a bound on relative rounding.

    Noise may cancel in an average of models. What rounding leaves of it is no noise: its size is told by the terms.
    """
    T, (seen, X) = len(base.steps), base.steps[0].observed.state.shape
    H, E, Z = (part.toarray() for part in last.observed)
    S_PP = H @ filters.before_last[place] @ H.T + Z @ Z.T
    with np.errstate(over="ignore", invalid="ignore"):  # a state that explodes hides what is left of it
        terms = np.abs(H) @ filters.terms[place] @ np.abs(H).T + np.abs(Z) @ np.abs(Z).T
    factor = cholesky_(S_PP, np.concatenate([S_PP.diagonal()[:seen], terms.diagonal()[seen:]]))
    if not np.isfinite(terms.diagonal()).all():
        raise Singular("sums of large terms")
    models = inverse_factor(factor)[seen:]
    of_state_TQX = np.zeros((T, len(models), X))
    moved = models @ H
    for t in range(T - 2, -1, -1):
        of_state_TQX[t] = moved
        moved = moved @ filters.F[t, place]
    told_TQV = of_state_TQX @ filters.K[:, place]
    told_TQV[-1] = models @ E
    return told_TQV, T * rounding_error(factor, terms.diagonal() if filters.cancel_N[place] else None)
