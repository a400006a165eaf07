"""Matrices of losses for tests: the definition itself, and what a route gives, put together."""

from __future__ import annotations

import numpy as np

from sottovoce.privacy.covering_views import as_sums
from sottovoce.privacy.exact import routes
from sottovoce.privacy.exact.whitening import Array, Groups
from sottovoce.privacy.observation import Observation
from sottovoce.privacy.views import View, ViewKind
from sottovoce.tracing.linear_system import LinearSystem


def single(system: LinearSystem, *asked: View) -> list[View]:
    """Those views that are about one adversary: where nodes get sums, everyone stands for coalitions."""
    return [view for view in asked if as_sums(view, system).kind is not ViewKind.ANY_COALITION]


def dense(observation: Observation, *, rank: float = 1e-11) -> Array:
    """M by the pseudo-inverse of B B^T: the definition itself."""
    white = routes.whitened(observation, rank=rank)
    M_VTT = np.einsum("ksv,ktv->vst", white.signal_KTV, white.signal_KTV)
    M_VTT[white.uncovered_V] = np.inf
    return M_VTT


def whole(observation: Observation, groups: Groups) -> Array:
    """Groups of victims put together."""
    M_VTT = np.zeros((len(observation.victims), observation.gradient_rounds, observation.gradient_rounds))
    for group, found in groups:
        M_VTT[group] = found
    return M_VTT
