"""Equivalent systems that are smaller: without what follows from messages that were received.

An adversary may subtract from the state any multiple of what it has just seen: `x' - L y` is as good a state as x'.
Where a message shows one component of the state (with the gradient and the noise that join it), the multiple that
stands for everything that component goes on to do removes it. What is left is the state of those who are not heard.
Observations that then hold no state but only a fresh gradient and noise of their own stand alone, and their share of M
is diagonal.

A hub of 1,045 neighbours of which 46 know anybody else is left with 46 observations a round.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.sparsity import begins_with, submatrix
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
