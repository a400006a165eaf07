"""The exact loss by conjugate gradients: for few victims where neither all observations nor the state fit in memory.

`G w = a` is solved for each impulse of a victim, with products by `G = B B^T` that go back and forth in time and store
no matrix. Where the solution W leaves a residual R,

    M  <=  W^T A + R^T W + R^T R / lambda      (in the order of semidefinite matrices),

with lambda below the smallest eigenvalue of G: the figure is from above, and near.

Shapes: T rounds, R observations, S noise sources, X state, C columns solved for together.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce.errors import Unaccountable
from sottovoce.privacy.exact.whitening import Array, Groups, starts
from sottovoce.privacy.observation import Observation, ObservedStep
from sottovoce.tracing.linear_system import map_equal_steps

ENOUGH = 1e-7
"""How much, relatively, the residual may add to M's trace before the iteration stops."""

STEPS = 3000

NUMBERS = 1e8
"""About how many noise values may be alive at once."""


def conjugate(observation: Observation) -> Groups:
    """M of one victim after another."""
    least = least_eigenvalue(observation)
    for victim in range(len(observation.victims)):
        A_RT = _signals(observation, victim)
        M_TT = np.zeros((A_RT.shape[1],) * 2)
        if A_RT.any():
            W_RT = _solve(observation, A_RT, least)
            left = A_RT - _times_G(observation, W_RT)
            M_TT = W_RT.T @ A_RT + left.T @ W_RT + left.T @ left / least
        yield slice(victim, victim + 1), ((M_TT + M_TT.T) / 2)[None]


def _signals(observation: Observation, victim: int) -> Array:
    """What the impulses of a victim do to the observations, R x T."""
    count = observation.gradient_rounds
    impulses, number = [], 0
    for step in observation.steps:
        unit = np.zeros((step.observed.gradient.shape[1], count))
        if step.takes_gradients:
            unit[victim, number] = 1
            number += 1
        impulses.append(unit)
    return _forward(observation, "gradient", impulses)


def _forward(observation: Observation, part: str, inputs: list[Array]) -> Array:
    """Observations from inputs: B, or A with part `gradient`, times something."""
    state = np.zeros((observation.steps[0].observed.state.shape[1], inputs[0].shape[1]))
    out = []
    for step, given in zip(observation.steps, inputs, strict=True):
        out.append(step.observed.state @ state + getattr(step.observed, part) @ given)
        state = step.out.state @ state + getattr(step.out, part) @ given
    return np.concatenate(out)


def _times_G(observation: Observation, W_RC: Array) -> Array:
    """`B B^T W`: back in time for `B^T W`, forth for B; a few columns at once."""
    size = max(1, int(NUMBERS / observation.sources))
    return np.concatenate(
        [
            _forward(observation, "noise", _back(observation, W_RC[:, at : at + size]))
            for at in range(0, W_RC.shape[1], size)
        ],
        axis=1,
    )


def _back(observation: Observation, W_RC: Array) -> list[Array]:
    at = starts(observation.steps)
    u_XC = np.zeros((observation.steps[-1].out.state.shape[0], W_RC.shape[1]))
    out = []
    for t in range(len(observation.steps) - 1, -1, -1):
        step, given = observation.steps[t], W_RC[at[t] : at[t + 1]]
        out.append(step.out.noise.T @ u_XC + step.observed.noise.T @ given)
        u_XC = step.out.state.T @ u_XC + step.observed.state.T @ given
    return out[::-1]


def _solve(observation: Observation, A_RC: Array, least: float) -> Array:
    """Conjugate gradients, each column by itself, until the residuals can add no more than `ENOUGH`; else refused."""
    W, left = np.zeros_like(A_RC), A_RC.copy()
    direction = left.copy()
    size = np.einsum("rc,rc->c", left, left)
    for _ in range(STEPS):
        going = size > 0
        G_direction = _times_G(observation, direction)
        step = np.where(going, size / np.where(going, np.einsum("rc,rc->c", direction, G_direction), 1.0), 0.0)
        W += step * direction
        left -= step * G_direction
        after = np.einsum("rc,rc->c", left, left)
        if after.sum() / least <= ENOUGH * np.einsum("rc,rc->", W, A_RC):
            return W
        direction = left + np.where(going, after / np.where(going, size, 1.0), 0.0) * direction
        size = after
    raise Unaccountable(
        f"the exact loss of {observation.view}: {STEPS:,} steps of conjugate gradients did not come near it, as where "
        "sizes of noise are far apart; take fewer rounds or a smaller graph"
    )


def least_eigenvalue(observation: Observation) -> float:
    """A bound from below on the eigenvalues of G, from the noise that each observation has to itself.

    Given all other noise the covariance can only be smaller, and then the observations determine that noise: the
    inverse map is a recursion whose norm is bounded by those of absolute values, summed over rows and over columns.
    """
    maps = map_equal_steps(_inverse_map, observation.steps)
    X = observation.steps[0].observed.state.shape[1]
    state, across = np.zeros(X), 0.0
    for observed, on, enter, scale in maps:
        across = max(across, float(np.max(scale * (1 + observed @ state), initial=0.0)))
        state = on @ state + enter @ np.ones(len(scale))
    back, down = np.zeros(X), 0.0
    for observed, on, enter, scale in reversed(maps):
        down = max(down, float(np.max(scale + enter.T @ back, initial=0.0)))
        back = on.T @ back + observed.T @ scale
    return 1 / (across * down)


def _inverse_map(step: ObservedStep) -> tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array, Array]:
    """Absolute values of: what is seen of the state, how it goes on, how observations enter it; 1 / own noise."""
    noise = step.observed.noise.tocsc()
    single = np.flatnonzero(np.diff(noise.indptr) == 1)
    rows, first = np.unique(noise.indices[noise.indptr[single]], return_index=True)
    if len(rows) < noise.shape[0]:
        raise Unaccountable(
            "too many observations for an exact figure: observations without noise of their own need a smaller graph, "
            "fewer rounds or fewer members of the view"
        )
    own = single[first]
    scale = 1 / np.abs(noise.data[noise.indptr[own]])
    enter = sparse.csr_array(step.out.noise.tocsc()[:, own] @ sparse.diags_array(1 / noise.data[noise.indptr[own]]))
    on = sparse.csr_array(step.out.state - enter @ step.observed.state)
    return abs(step.observed.state), abs(on), abs(enter), scale
