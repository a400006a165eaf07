"""The exact loss from innovations, round by round: best for many observations, long runs and changing topologies.

Shapes: V victims, T rounds, P observations of one round, X state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.privacy import whiten
from sottovoce.privacy.views import Seen, SeenStep
from sottovoce.privacy.whiten import Array, Singular, cholesky, inverse_of, rounding_error

STILL = 1e-11
"""Relative change of the filter's covariance below which rounds count as repeating."""


class Filter(NamedTuple):
    """One round of the whitening filter, the same for all victims: what a shift of the state and a new signal become.

    `told @ shift` and `told_new` are whitened innovations; `kept @ shift` and `kept_new` what the state's shift is
    after the round, given what was seen.
    """

    told: Array
    told_new: Array
    kept: Array
    kept_new: Array


def kalman(seen: Seen) -> Array:
    """M from the innovations: what each round tells that was not known before."""
    filters, rounding = _filters(seen)
    own = _settled_filters(filters, seen)
    V, T = len(seen.victims), seen.gradient_rounds
    M_VTT = np.zeros((V, T, T))
    widest = max(max(f.kept.shape[0], f.kept.shape[1]) for f in filters)
    size = min(V, max(1, int(whiten.AT_ONCE / (max(widest, 256) * T))))
    for first in range(0, V, size):
        _filter_group(filters, seen, own, M_VTT, slice(first, min(V, first + size)))
    return M_VTT * (1 + rounding)


def _filters(seen: Seen) -> tuple[list[Filter], float]:
    """The filter of every round, and a bound on the relative rounding error; settled rounds share one object."""
    P_XX = np.zeros((seen.steps[0].seen.state.shape[1],) * 2)
    filters: list[Filter] = []
    rounding, begun = 0.0, False
    parts = {id(step): _dense_parts(step) for step in dict.fromkeys(seen.steps)}
    for t, step in enumerate(seen.steps):
        H, F, seen_noise, cross, out_noise = parts[id(step)]
        S_PP = H @ P_XX @ H.T + seen_noise
        alive = np.diag(S_PP) > 0
        if not alive.all() and (begun or step.seen.gradient[np.flatnonzero(~alive)].nnz):
            raise Singular("a signal without noise")
        factor = cholesky(S_PP[np.ix_(alive, alive)])
        inverse = inverse_of(factor) if len(factor) else factor
        gain_PX = inverse @ (H @ P_XX @ F.T + cross)[alive]
        told, told_new = inverse @ H[alive], inverse @ step.seen.gradient.toarray()[alive]
        rounding = max(rounding, rounding_error(factor) if len(factor) else 0.0)
        filters.append(Filter(told, told_new, F - gain_PX.T @ told, step.out.gradient.toarray() - gain_PX.T @ told_new))
        following = F @ P_XX @ F.T + out_noise - gain_PX.T @ gain_PX
        if begun and t + 1 < len(seen.steps) and _repeats(P_XX, following, seen.steps[t:]):
            return filters + [filters[-1]] * (len(seen.steps) - t - 1), len(seen.steps) * rounding + 30 * STILL
        P_XX = (following + following.T) / 2
        begun = begun or step.takes_gradients
    return filters, len(seen.steps) * rounding


def _dense_parts(step: SeenStep) -> tuple[Array, Array, Array, Array, Array]:
    """Observation and transition, and the covariances of new noise: in what is seen, across, and in the state."""
    Ez, Kz = step.seen.noise, step.out.noise
    covariances = (Ez @ Ez.T, Ez @ Kz.T, Kz @ Kz.T)
    H, F, *rest = (matrix.toarray() for matrix in (step.seen.state, step.out.state, *covariances))
    return H, F, rest[0], rest[1], rest[2]


def _repeats(before: Array, after: Array, rest: tuple[SeenStep, ...]) -> bool:
    same = before.shape == after.shape and all(step is rest[0] for step in rest)
    return same and float(np.abs(after - before).max(initial=0.0)) <= STILL * float(np.abs(after).max(initial=0.0))


def _settled_filters(filters: list[Filter], seen: Seen) -> int:
    """How many impulses have a response of their own: from the first settled round on they repeat."""
    last = len(filters) - 1
    while last > 0 and filters[last - 1] is filters[-1]:
        last -= 1
    return sum(step.takes_gradients for step in seen.steps[: last + 1])


def _filter_group(filters: list[Filter], seen: Seen, own: int, M_VTT: Array, group: slice) -> None:
    """Carry the shifts of some victims through all rounds and add their products to M."""
    c, T = group.stop - group.start, M_VTT.shape[1]
    shift = np.zeros((filters[0].kept.shape[1], own * c))
    history: list[Array] = []
    pending: list[Array] = []
    number = 0
    for step, (told, told_new, kept, kept_new) in zip(seen.steps, filters, strict=True):
        k = min(number, own)
        white = np.zeros((len(told), T * c))
        np.matmul(told, shift[:, : k * c], out=white[:, : k * c])
        moved = np.zeros((len(kept), own * c))
        np.matmul(kept, shift[:, : k * c], out=moved[:, : k * c])
        if step.takes_gradients:
            if number < own:
                white[:, number * c : (number + 1) * c] = told_new[:, group]
                moved[:, number * c : (number + 1) * c] = kept_new[:, group]
            number += 1
        shift = moved
        if number >= own:
            history.append(white[:, (own - 1) * c : own * c].copy())
            for late in range(own, number):
                white[:, late * c : (late + 1) * c] = history[len(history) - 1 - (late - own + 1)]
        pending.append(white[:, : number * c].reshape(-1, number, c) if number else white[:0].reshape(0, 0, c))
        if sum(len(block) for block in pending) >= 128:
            _add_pending_(M_VTT, group, pending)
    _add_pending_(M_VTT, group, pending)


def _add_pending_(M_VTT: Array, group: slice, pending: list[Array]) -> None:
    """Add the products of whitened blocks, padded to the most impulses among them."""
    most = max((block.shape[1] for block in pending), default=0)
    if most:
        rows = np.zeros((group.stop - group.start, most, sum(len(block) for block in pending)))
        at = 0
        for block in pending:
            rows[:, : block.shape[1], at : at + len(block)] = block.transpose(2, 1, 0)
            at += len(block)
        M_VTT[group, :most, :most] += rows @ rows.transpose(0, 2, 1)
    pending.clear()
