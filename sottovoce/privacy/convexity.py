"""Whether local steps `x -> x - eta g(x)` drive models apart: the condition of `convex-training`.

For convex, L-smooth losses a step of at most 2/L does not. L follows from a declared bound R on the norm of features,
which the rows are made to satisfy, and never from the rows: the noise of a run depends on the answer.

    L <= c R^2 + r

The Hessian of one example's loss is `H x x^T` (softmax: the Kronecker product of H and `x x^T`), where H is the second
derivative by the outputs, so its largest eigenvalue is at most c ||x||^2 with c that of H:

- squared error (halved): H = 1, so c = 1;
- logistic: H = p (1 - p) <= 1/4; hazards: a diagonal matrix of such, one for each period, or of zeros;
- softmax: H = diag(p) - p p^T. For a unit vector v, `v^T H v` is the variance of a variable that is v_k with
  probability p_k, at most (max v - min v)^2 / 4 <= 2 / 4, because (a - b)^2 <= 2 (a^2 + b^2). So c = 1/2.

The mean over a batch has no larger curvature than its worst example. A bias is a feature that is always 1 and adds 1 to
R^2. A ridge `r/2 ||x||^2`, outside of the clip, adds r. Weights of classes multiply H, and c by at most the largest.
"""

from __future__ import annotations

import math

from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_down
from sottovoce.tracing.linear_system import LinearSystem

CURVATURE = {"linear": 1.0, "logistic": 0.25, "softmax": 0.5, "hazards": 0.25}
"""Largest second derivative of the loss along one linear output (softmax: of the vector of outputs)."""

SEVERAL_OUTPUTS = ("softmax", "hazards")
"""A clipped gradient of these is no gradient of a convex function."""

CLIPPING = ("none", "per-example", "bounded", "whole-gradient")

DECLARE_NORM = "set data.unit_norm = true, or data.max_norm to a bound that is public"
"""How a run declares a bound on the norm of its rows."""


def smoothness(model: str, feature_norm: float, *, ridge: float = 0.0, loss_weight: float = 1.0) -> float:
    """L for features of at most this norm, where losses are multiplied with at most this weight, rounded up.

    >>> smoothness("logistic", 5.0)
    6.25...
    """
    if model not in CURVATURE:
        raise Unaccountable(f"{model} is not known to be convex; convex-training is for {', '.join(CURVATURE)} models")
    if not 0 < feature_norm < float("inf"):
        raise InputError(f"features of norm {feature_norm}", "L follows from a finite bound", "give 1.0, for example")
    return (loss_weight * CURVATURE[model] * feature_norm**2 + ridge) * (1 + 1e-9)


def least_weight(system: LinearSystem) -> float:
    """The smallest push-sum weight w of a run, whose gradients are taken at `x / w`; 1 without push-sum.

    Infinite where they are taken at one point, whatever nodes hold.
    """
    points = [step.split(step.point)[0] for step in dict.fromkeys(system.steps) if step.point is not None]
    if any(point.nnz and point.min() < 0 for point in points):
        raise Unaccountable(
            f"{system.algorithm.name} takes gradients at minus a node's model, which moves models apart"
        )
    largest = max((float(abs(point).max()) for point in points), default=1.0)
    return 1 / largest if largest else math.inf


def taken_step_size(system: LinearSystem) -> float:
    """The longest step that a node takes with its gradient before it speaks, negative if one climbs.

    It is read from what is sent, and not below the step size that the algorithm states: its maps may scale gradients.
    """
    steps = dict.fromkeys(system.steps)
    sent = [
        step.sent[0].rows.tocsc()[:, step.state_size : step.state_size + step.gradients] for step in steps if step.sent
    ]
    taken = [-float(scale) for gradients in sent if gradients.nnz for scale in (gradients.min(), gradients.max())]
    return min(taken) if any(step < 0 for step in taken) else max([system.algorithm.step_size, *taken])


def non_expansive(
    model: str,
    feature_norm: float | None,
    *,
    step_size: float,
    clipping: str = "none",
    ridge: float = 0.0,
    weight: float = 1.0,
    excess: float = 1.0,
    momentum: float = 0.0,
    loss_weight: float = 1.0,
) -> str:
    """The sentence that establishes the condition for a run, or a refusal that says what breaks it.

    `feature_norm` is the declared bound on the norm of what the model sees of a row; None where nothing is declared.
    `weight` is the run's `least_weight`: gradients are taken at `x / w`, so eta <= 2 w / L. `excess` is the largest
    number of examples of a batch over what their sum is divided by; where it is above 1, a step is that much longer
    than one on a mean. `loss_weight` is the largest of a class. Clipping `bounded` never acts, so it does nothing
    to any of these models.
    """
    if clipping not in CLIPPING:
        raise InputError(f"clipping {clipping!r}", f"known: {', '.join(CLIPPING)}", "choose one of them")
    if momentum:
        raise Unaccountable("momentum carries differences into later steps; convex-training needs plain steps")
    if clipping == "whole-gradient":
        raise Unaccountable("clipping a whole gradient can move models apart; clip per example, or use any-training")
    if clipping == "per-example" and model in SEVERAL_OUTPUTS:
        raise Unaccountable(
            f'per-example clipping of {model} regression can move models apart; use clip = "bounded", which never acts'
        )
    if feature_norm is None:
        raise Unaccountable(f"no bound on the norm of rows is declared; {DECLARE_NORM}")
    L = smoothness(model, feature_norm, ridge=ridge, loss_weight=loss_weight) * max(1.0, excess)
    if step_size <= 0:
        raise Unaccountable(f"step size {step_size:g} goes uphill; convex-training is for descent steps")
    if step_size > 2 * weight / L:
        raise Unaccountable(
            f"step size {step_size:g} exceeds 2/L, which is {round_down(2 * weight / L)} for features of norm "
            f"{feature_norm:.4g}; lower it to that"
        )
    return (
        f"checked: {model} regression, L = {L:.4g} from the declared norm of rows, step size {step_size:g} <= 2/L, "
        f"clipping {clipping}"
    )
