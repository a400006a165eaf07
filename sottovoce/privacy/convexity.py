"""Whether local steps `x -> x - eta g(x)` drive models apart: the condition of `convex-training`, on a run's own data.

For convex, L-smooth losses a step of at most 2/L does not. L comes from the features themselves: the mean loss of any
batch has `L <= c max ||x_i||^2 + r`, with c = 1 for squared error (halved), 1/4 for logistic, 1/2 for softmax
regression, and r from a ridge `r/2 ||x||^2` outside of the clip; with full batches the largest eigenvalue of the
features' second moments takes the place of the largest norm.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

from sottovoce.errors import InputError, Unaccountable
from sottovoce.tracing.linear_system import LinearSystem

CURVATURE = {"linear": 1.0, "logistic": 0.25, "softmax": 0.5}
"""Largest second derivative of the loss along one linear output (softmax: of the vector of outputs)."""

CLIPPING = ("none", "per-example", "whole-gradient")


def smoothness(
    model: str, shards: Iterable[NDArray[np.float64]], *, full_batch: bool = False, ridge: float = 0.0
) -> float:
    """The largest L over the nodes' shards of features, one row per example, rounded up.

    >>> smoothness("logistic", [np.array([[3.0, 4.0]])])
    6.25...
    """
    if model not in CURVATURE:
        raise Unaccountable(f"{model} is not known to be convex; convex-training is for {', '.join(CURVATURE)} models")
    sizes = [_second_moment(np.asarray(rows, dtype=float), full_batch) for rows in shards]
    if not sizes:
        raise InputError("no shards of features", "L comes from the data", "give one array per node")
    return float(CURVATURE[model] * max(sizes) + ridge) * (1 + 1e-9)


def _second_moment(rows: NDArray[np.float64], full_batch: bool) -> float:
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"features of shape {rows.shape}", "finite numbers, one row per example", "check the data")
    if not full_batch or min(rows.shape) < 2:
        return float((rows**2).sum(axis=1).max(initial=0.0))
    if min(rows.shape) <= 400:
        return float(np.linalg.norm(rows, 2) ** 2 / len(rows))
    return float(svds(rows, k=1, return_singular_vectors=False)[0] ** 2 / len(rows)) * (1 + 1e-6)


def least_weight(system: LinearSystem) -> float:
    """The smallest push-sum weight w of a run, whose gradients are taken at `x / w`; 1 without push-sum."""
    points = [step.split(step.point)[0] for step in dict.fromkeys(system.steps) if step.point is not None]
    return 1 / max((float(abs(point).max()) for point in points), default=1.0)


def non_expansive(
    model: str,
    shards: Iterable[NDArray[np.float64]],
    *,
    step_size: float,
    clipping: str = "none",
    full_batch: bool = False,
    ridge: float = 0.0,
    weight: float = 1.0,
    excess: float = 1.0,
    momentum: float = 0.0,
) -> str:
    """The sentence that establishes the condition for a run, or a refusal that says what breaks it.

    `weight` is the run's `least_weight`: gradients are taken at `x / w`, so eta <= 2 w / L. `excess` is the largest
    number of examples of a batch over what their sum is divided by; where it is above 1, a step is that much longer
    than one on a mean.
    """
    if clipping not in CLIPPING:
        raise InputError(f"clipping {clipping!r}", f"known: {', '.join(CLIPPING)}", "choose one of them")
    if momentum:
        raise Unaccountable("momentum carries differences on; convex-training needs plain steps")
    if clipping == "whole-gradient":
        raise Unaccountable("clipping a whole gradient can drive models apart; clip per example, or use any-training")
    if clipping == "per-example" and model == "softmax":
        raise Unaccountable(
            "per-example clipping of softmax regression can drive models apart; normalise features instead of clipping"
        )
    L = smoothness(model, shards, full_batch=full_batch, ridge=ridge)
    L *= max(1.0, excess)
    if step_size <= 0:
        raise Unaccountable(f"step size {step_size:g} climbs; convex-training is for steps downhill")
    if step_size > 2 * weight / L:
        raise Unaccountable(
            f"step size {step_size:g} exceeds 2/L = {2 * weight / L:.4g} for this data; lower it to that"
        )
    how = "the largest eigenvalue of a node's second moments" if full_batch else "the largest feature norm"
    return f"checked: {model} regression, L = {L:.4g} from {how}, step size {step_size:g} <= 2/L, clipping {clipping}"
