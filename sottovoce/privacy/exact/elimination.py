"""Equivalent systems, of which more is known: without messages that were received, and with the average apart.

An adversary may subtract from the state any multiple of what it has just seen: `x' - L y` is as good a state as x'.
Where a message shows one component of the state (with the gradient and the noise that join it), the multiple that
stands for everything that component goes on to do removes it. What is left is the state of those who are not heard.
Observations that then hold no state but only a fresh gradient and noise of their own stand alone, and their share of M
is diagonal.

A hub of 1,045 neighbours of which 46 know anybody else is left with 46 observations a round.

The average of the final models becomes a component of the state of its own, without the noise that cancels in it.
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
from sottovoce.core.sparsity import begins_with, last_row, submatrix
from sottovoce.privacy.exact.deflation import well_conditioned
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.privacy.reactions import knows_every_state, nothing_fresh
from sottovoce.support.memo import once_for_each

Array = NDArray[np.float64]

ROUNDING = 1e-14
"""Share of the terms of a difference below which it is zero."""


def eliminate_known_messages(observation: Observation) -> tuple[Observation, NDArray[np.float64]]:
    """The smaller system, and what has to be added to the diagonal of every victim's M.

    All rounds are alike, but that models may be published after the last one.
    """
    untouched = observation, np.zeros(len(observation.victims))
    step = observation.steps[0]
    if not has_equal_rounds(observation) or observation.system.correlation is not None:
        return untouched
    if step.out.state.shape[0] != step.out.state.shape[1]:  # a first round that begins to remember
        return untouched
    if not np.any(np.diff(step.observed.state.indptr) == 1):
        return untouched
    models = _subtract(step, _published(observation))
    step, models = _moving(replace(step, out=_subtract(step, step.out), point=None), models)
    alone = _alone(step.observed, step.out, models)
    direct = np.zeros(len(observation.victims))
    if alone.any():
        noise = step.observed.noise[alone].power(2).sum(axis=1)
        direct = (sparse.diags_array(1 / noise) @ step.observed.gradient[alone].power(2)).sum(axis=0)
    step, models = _needed(replace(step, observed=Inputs(*(part[~alone] for part in step.observed))), models)
    return replace(observation, steps=(*(step,) * (len(observation.steps) - 1), _publishing(step, models))), direct


@once_for_each
def has_equal_rounds(observation: Observation) -> bool:
    """Whether all rounds are alike, but that more may be seen after the last one."""
    first, last = observation.steps[0], observation.steps[-1]
    return all(step is first for step in observation.steps[1:-1]) and begins_alike(first, last)


def _published(observation: Observation) -> Inputs:
    """What is seen after the last of equal rounds beyond what is seen of every round."""
    seen, last = observation.steps[0].observed.state.shape[0], observation.steps[-1].observed
    models = np.arange(last.state.shape[0]) >= seen
    return Inputs(*(submatrix(part, models, None) for part in last))


def _publishing(step: ObservedStep, models: Inputs) -> ObservedStep:
    """A round after which models are seen as well."""
    if not models.state.shape[0]:
        return step
    return replace(step, observed=_stacked(step.observed, models))


def _stacked(one: Inputs, other: Inputs) -> Inputs:
    return Inputs(*(sparse.vstack(parts, format="csr") for parts in zip(one, other, strict=True)))


def without_implied_models(observation: Observation) -> Observation:
    """The view without models that are published after the last round, where these tell nothing that is new.

    Then all rounds are alike again. What can be computed from the rest of a view adds nothing to its loss.
    """
    if len(observation.steps) < 2:
        return observation
    before, last = observation.steps[-2:]
    if before is last or not has_equal_rounds(observation):
        return observation
    alike = replace(observation, steps=(*observation.steps[:-1], before))
    implied = nothing_fresh(_published(observation), before.observed) and knows_every_state(alike)
    return alike if implied else observation


def begins_alike(before: ObservedStep, last: ObservedStep) -> bool:
    """Whether a round is another one, entry by entry, but for more that may be seen at its end."""
    return before is last or (
        np.array_equal(before.noise_columns, last.noise_columns)
        and before.takes_gradients == last.takes_gradients
        and (before.out is last.out or _equal(before.out, last.out))
        and all(map(begins_with, last.observed, before.observed))
    )


def _equal(one: Inputs, other: Inputs) -> bool:
    alike = all(part.shape == same.shape for part, same in zip(one, other, strict=True))
    return alike and all(map(begins_with, one, other))


def _subtract(step: ObservedStep, made: Inputs) -> Inputs:
    """What is made of the state, less the multiples of observations that show one of its components each."""
    H, F = step.observed.state, made.state
    if not F.shape[0]:
        return made
    rows = np.flatnonzero(np.diff(H.indptr) == 1)
    columns, first = np.unique(H.indices[H.indptr[rows]], return_index=True)
    rows = rows[first]
    multiples = F.tocsc()[:, columns] @ sparse.diags_array(1 / H.data[H.indptr[rows]])
    hidden = np.ones(F.shape[1])
    hidden[columns] = 0
    state = sparse.csr_array(F @ sparse.diags_array(hidden))
    state.eliminate_zeros()
    gradient, noise = (
        _difference(new, sparse.csr_array(multiples @ seen[rows]))
        for new, seen in ((made.gradient, step.observed.gradient), (made.noise, step.observed.noise))
    )
    return Inputs(state, gradient, noise)


def _difference(one: sparse.csr_array, other: sparse.csr_array) -> sparse.csr_array:
    """`one - other`, where what only rounding leaves is zero."""
    left = sparse.csr_array(one - other)
    real = (abs(left) - ROUNDING * (abs(one) + abs(other))) > 0
    left = sparse.csr_array(left.multiply(real))
    left.eliminate_zeros()
    return left


def _alone(observation: Inputs, out: Inputs, models: Inputs) -> NDArray[np.bool_]:
    """Which observations hold no state, and noise that is nowhere else."""
    reached = sum(np.diff(sparse.csr_array(abs(observation.state) @ abs(part)).indptr) for part in out)
    overlap = sparse.csr_array(abs(observation.noise) @ abs(observation.noise).T)
    own = np.diff(overlap.indptr) == 1
    elsewhere = sparse.vstack([out.noise, models.noise], format="csr")
    travels = np.diff(sparse.csr_array(abs(observation.noise) @ abs(elsewhere).T).indptr) > 0
    return (reached == 0) & own & ~travels


def _moving(step: ObservedStep, models: Inputs) -> tuple[ObservedStep, Inputs]:
    """Only those components of the state that gradients or noise ever reach."""
    fed = np.flatnonzero(np.diff(step.out.gradient.indptr) + np.diff(step.out.noise.indptr))
    return _keep(step, models, _closure(step.out.state.T.tocsr(), fed))


def _needed(step: ObservedStep, models: Inputs) -> tuple[ObservedStep, Inputs]:
    """Only those components of the state that observations or models can ever show."""
    shown = np.union1d(step.observed.state.indices, models.state.indices)
    return _keep(step, models, _closure(step.out.state, shown))


def _closure(links: sparse.csr_array, begin: NDArray[np.intp]) -> NDArray[np.intp]:
    found = np.zeros(links.shape[0], dtype=bool)
    new = begin
    while new.size:
        found[new] = True
        next_to = np.unique(links[new].indices)
        new = next_to[~found[next_to]]
    return np.flatnonzero(found)


def _keep(step: ObservedStep, models: Inputs, kept: NDArray[np.intp]) -> tuple[ObservedStep, Inputs]:
    out = Inputs(step.out.state[kept].tocsc()[:, kept].tocsr(), step.out.gradient[kept], step.out.noise[kept])
    observed, models = (part._replace(state=part.state.tocsc()[:, kept].tocsr()) for part in (step.observed, models))
    return replace(step, observed=observed, out=out), models


# --- the average of the final models -------------------------------------------------------------------------------

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
            known[key] = _with_average(step, row, shown=False)
        apart.append(known[key])
    end = _with_average(last, rows[-1], shown=True)
    if last.out is steps[-2].out:  # how the state goes on after the last round is of no account
        end = replace(end, out=apart[-1].out)
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


def _with_average(step: ObservedStep, row: _Row, *, shown: bool) -> ObservedStep:
    """A round with the average so far as the last component of the state; `shown` at its end."""
    X = step.out.state.shape[1]

    def wider(part: Inputs) -> Inputs:
        state = part.state
        wide = sparse.csr_array((state.data, state.indices, state.indptr), shape=(state.shape[0], X + 1))
        return part._replace(state=wide)

    kept = sparse.csr_array(([1.0], ([0], [X])), shape=(1, X + 1))
    average = Inputs(kept, sparse.csr_array(row.gradient[None]), sparse.csr_array(row.noise[None]))
    observed = wider(step.observed)
    if shown:
        observed = _stacked(Inputs(*(part[:-1] for part in observed)), average)
    return replace(step, observed=observed, out=_stacked(wider(step.out), average), point=None)
