"""The average of the final models as a component of the state of its own, without the noise that cancels in it.

Noise that neighbours share adds to one model what it takes from another, so none of it is in the average. In sums over
models that are far apart only rounding is left of it, beside noise that may be a million times smaller and is all that
protects the average; a filter, which knows squares, cannot tell the two apart. With `r` for how much of each component
of the state goes into the average, and `r F = r` where weights are doubly stochastic,

    s' = s + (r K) [gradients, noise]

is the average so far. Entries of `r K` in which all terms cancel are zero, whatever rounding leaves of them.

What is set to zero changes the average by at most `eps` in standard deviation, for noise of size one. Noise of the last
round that nothing else shows protects the average with at least `left`. So no combination v of observations has a
variance that is changed by more than

    |v^T B| >= |v^T B'| - |v_s| eps >= (1 - eps / left) |v^T B'|

and M is at most that of the system without such noise, divided by `(1 - eps / left)^2`: that is the `factor`.

Shapes: X state, K noise sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.final_models import FinalModels
from sottovoce.core.sparsity import last_row
from sottovoce.privacy.exact.deflation import well_conditioned
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.support.memo import once_for_each

Array = NDArray[np.float64]

UNIT = float(np.finfo(float).eps) / 2
"""Unit roundoff."""

LONG = float(np.finfo(np.longdouble).eps)

HARMLESS = 1e4
"""Variance of terms, none of them cancelling, in units of what protects the average, up to which the view is left as it
is."""

LOST = 16 * UNIT
"""Share of that variance that bounds what rounding leaves of it in a filter: a hundred times what was measured."""

NO_NOISE = 1e-24
"""Share of the variance of terms, none of them cancelling, below which what is left of them is rounding."""

LARGEST_SHARE = 1e-2
"""Of what protects the average, above which what is set to zero is not known well enough."""


class Separated(NamedTuple):
    """The view with the average apart, and by how much M may be larger than that of this view: infinite where a route
    has to be taken that knows noise itself, not its squares."""

    observation: Observation
    factor: float
    apart: bool


class _Row(NamedTuple):
    """How inputs of a round go into the average, noise that cancels being zero; and what was set to zero, at most."""

    gradient: Array
    noise: Array
    zeroed: float
    terms: float


def separated(observation: Observation) -> Separated:
    """The view, well-conditioned, with the average of the final models apart if noise cancels in it."""
    observation = well_conditioned(observation)
    unchanged = Separated(observation, 1.0, False)
    if not _sees_an_average(observation) or _adds_up(observation):
        return unchanged
    steps, last = observation.steps, observation.steps[-1]
    shares = _shares(steps)
    fixed = all(share is shares[-1] for share in shares)
    rows = _rows(steps, shares)
    if not sum(row.zeroed for row in rows) > 0:
        return unchanged
    left = sum(float(row.noise @ row.noise) for row in rows)
    terms = sum(row.terms for row in rows)
    protected = _protected(last, rows[-1].noise)
    least = protected**2 if protected > 0 else left
    if terms <= HARMLESS * least:
        return Separated(observation, 1 + LOST * terms / least, False)
    share = float(np.sqrt(sum(row.zeroed for row in rows)) / protected) if protected > 0 else np.inf
    if share > LARGEST_SHARE:
        return Separated(observation, np.inf, False)
    known: dict[tuple[ObservedStep, int], ObservedStep] = {}
    apart = []
    for number, (step, row) in enumerate(zip(steps[:-1], rows[:-1], strict=True)):
        key = step, 0 if fixed else number
        if key not in known:
            known[key] = _with_average(step, row)
        apart.append(known[key])
    end = _showing_average(last, rows[-1], _last_like(last, steps[-2], apart[-1]))
    return Separated(replace(observation, steps=(*apart, end)), (1 - share) ** -2, True)


def average_has_no_noise(observation: Observation) -> bool:
    """Whether all noise cancels in the average of the final models: what rounding leaves of it protects nobody.

    Squared coefficients of noise before the last round are summed as they are, and as they would be if none cancelled,
    until what is left is certain not to be rounding.
    """
    seen = observation.steps[-1].observed
    if (
        observation.view.final_models is not FinalModels.AVERAGE
        or len(observation.steps) < 2
        or not seen.state.shape[0]
        or _adds_up(observation)
    ):
        return False
    state, _, noise = map(last_row, seen)
    left, sizes = float(noise @ noise), np.abs(state)
    terms = left
    for step in observation.steps[-2::-1]:
        left += float(np.sum((state @ step.out.noise) ** 2))
        terms += float(np.sum((sizes @ abs(step.out.noise)) ** 2))
        if left > NO_NOISE * terms:
            return False
        state, sizes = state @ step.out.state, sizes @ abs(step.out.state)
    return terms > 0


def _sees_an_average(observation: Observation) -> bool:
    """Whether the last observation is an average of models, after more rounds than one."""
    if observation.view.final_models is not FinalModels.AVERAGE or len(observation.steps) < 2:
        return False
    if observation.system.final_models is not FinalModels.AVERAGE or observation.system.correlation is not None:
        return False
    return bool(last_row(observation.steps[-1].observed.state).any())


@once_for_each
def _adds_up(observation: Observation) -> bool:
    """Whether all noise goes into the last observation, the average, with one sign, so that none of it cancels."""
    shown, each = observation.steps[-1].observed, dict.fromkeys(observation.steps[:-1])
    noise = [last_row(shown.noise), *(step.out.noise.data for step in each)]
    carried = [last_row(shown.state), *(step.out.state.data for step in each)]
    same = all((part >= 0).all() for part in noise) or all((part <= 0).all() for part in noise)
    return same and all((part >= 0).all() for part in carried)


def _shares(steps: Sequence[ObservedStep]) -> list[Array]:
    """How much of each component of the state after each round, but for the last, goes into the average.

    One object for all rounds where that is the same: when nothing is lost or gained from round to round, as far as
    rounding allows to tell.
    """
    last = last_row(steps[-1].observed.state)
    inner = steps[1:-1]
    if all(_drift(step, last) <= _rounding(step) for step in dict.fromkeys(inner)):
        return [last] * (len(inner) + 1)
    found = [last]
    for step in reversed(inner):
        found.append(np.asarray(found[-1] @ step.out.state))
    return found[::-1]


def _drift(step: ObservedStep, share: Array) -> float:
    """How much of a sum of the state with these weights a round loses or gains, at most, as a share of its terms."""
    if step.out.state.shape != (len(share), len(share)):
        return np.inf
    moved, sizes = _sums(share, step.out.state)
    there = (sizes > 0) | (share != 0)
    change = np.abs(moved - share)[there] / np.maximum(np.abs(share), sizes)[there]
    return float(change.max(initial=0.0)) + LONG * _most_terms(step)


def _most_terms(step: ObservedStep) -> float:
    return float(max(np.bincount(part.indices).max(initial=0) for part in (step.out.state, step.out.noise))) + 2


def _rounding(step: ObservedStep) -> float:
    """A bound on the rounding error of sums over the state, as a share of their terms: weights are rounded too."""
    return 2 * UNIT * _most_terms(step)


def _sums(share: Array, matrix: sparse.csr_array) -> tuple[Array, Array]:
    """`share @ matrix`, with more digits where the machine has them, and the same of absolute values."""
    columns = matrix.tocsc()
    terms = share[columns.indices].astype(np.longdouble) * columns.data
    filled = np.flatnonzero(np.diff(columns.indptr))
    sums, sizes = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
    if filled.size:
        begin = columns.indptr[filled]
        sums[filled], sizes[filled] = np.add.reduceat(terms, begin), np.add.reduceat(np.abs(terms), begin)
    return sums, sizes


def _rows(steps: Sequence[ObservedStep], shares: Sequence[Array]) -> list[_Row]:
    """What every round adds to the average."""
    fixed = all(share is shares[-1] for share in shares)
    last, known = steps[-1], dict[ObservedStep, tuple[Array, Array, Array]]()
    gradient, noise = map(last_row, last.observed[1:])
    widest = float(np.abs(shares[-1]).max(initial=0.0))
    sizes = np.maximum(np.abs(noise), widest * np.asarray(abs(last.out.noise).sum(axis=0)).ravel())
    rounding, drift = _rounding(last), 2 * UNIT
    found = [_row(gradient, noise, sizes, rounding, drift)]
    each = {step: (_rounding(step), _drift(step, shares[-1]) if fixed else _rounding(step)) for step in set(steps[:-1])}
    for step, share in zip(steps[-2::-1], reversed(shares), strict=True):
        if not fixed or step not in known:
            known[step] = np.asarray(share @ step.out.gradient), *_sums(share, step.out.noise)
        found.append(_row(*known[step], rounding, drift))
        rounding, drift = rounding + each[step][0], drift + each[step][1]
    return found[::-1]


def _row(gradient: Array, noise: Array, sizes: Array, rounding: float, drift: float) -> _Row:
    """Sums of terms of these sizes are zero if they are not larger than their rounding error.

    Weights of the average are right up to the `drift`, as a share.
    """
    cancels = (sizes > 0) & (np.abs(noise) <= rounding * sizes)
    off = np.where(cancels, np.abs(noise), 0.0) + drift * sizes
    zeroed = float(off @ off) if cancels.any() else 0.0
    return _Row(gradient, np.where(cancels, 0.0, noise), zeroed, float(sizes @ sizes))


def _protected(last: ObservedStep, noise: Array) -> float:
    """The size of the noise of the last round that is in the average and in nothing else that is seen."""
    seen = last.observed.noise[:-1]
    elsewhere = np.zeros(len(noise), dtype=bool)
    elsewhere[seen.indices[seen.data != 0]] = True
    return float(np.linalg.norm(noise[~elsewhere]))


def _with_average(step: ObservedStep, row: _Row) -> ObservedStep:
    """A round with the average so far as the last component of the state."""
    seen = step.observed._replace(state=_wider(step.observed.state))
    X = step.out.state.shape[1]
    kept = sparse.csr_array(([1.0], ([0], [X])), shape=(1, X + 1))
    parts = (_wider(step.out.state), step.out.gradient, step.out.noise)
    added = (kept, _as_row(row.gradient), _as_row(row.noise))
    out = Inputs(*(sparse.vstack(both, format="csr") for both in zip(parts, added, strict=True)))
    return replace(step, observed=seen, out=out, point=None)


def _last_like(last: ObservedStep, before: ObservedStep, apart: ObservedStep) -> Inputs | None:
    """How the state goes on after the last round, which is of no account, if it is as in the round before."""
    return apart.out if last.out is before.out else None


def _showing_average(last: ObservedStep, row: _Row, out: Inputs | None) -> ObservedStep:
    """The last round, after which the average is seen."""
    wide = _with_average(last, row)
    X = last.observed.state.shape[1]
    shown = sparse.csr_array(([1.0], ([0], [X])), shape=(1, X + 1))
    parts = (wide.observed.state[:-1], wide.observed.gradient[:-1], wide.observed.noise[:-1])
    added = (shown, _as_row(row.gradient), _as_row(row.noise))
    observed = Inputs(*(sparse.vstack(both, format="csr") for both in zip(parts, added, strict=True)))
    return replace(wide, observed=observed, out=wide.out if out is None else out)


def _wider(matrix: sparse.csr_array) -> sparse.csr_array:
    """With one more column, which is empty."""
    return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], matrix.shape[1] + 1))


def _as_row(values: Array) -> sparse.csr_array:
    return sparse.csr_array(values[None])
