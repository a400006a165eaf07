"""The condition of convex-training: constants against numerical curvature, and steps that really do not expand."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError, Unaccountable
from sottovoce.privacy.convexity import CURVATURE, non_expansive, smoothness
from tests.selection import in_turn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4))
Y = RNG.integers(0, 3, size=30)
R = float(np.linalg.norm(X, axis=1).max())


def gradient(model, w, rows, labels, clip=None):
    """Mean gradient over a batch, each example's clipped to norm `clip` if given; softmax with 3 classes."""
    if model == "softmax":
        scores = rows @ w.reshape(4, 3)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = p / p.sum(axis=1, keepdims=True) - np.eye(3)[labels]
        return (rows.T @ errors / len(rows)).ravel()
    z = rows @ w
    slope = z - labels if model == "linear" else 1 / (1 + np.exp(-z)) - (labels > 1)
    each = slope[:, None] * rows
    if clip is not None:
        each = each * np.minimum(1, clip / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-300))
    return each.mean(axis=0)


def expansion(model, eta, batch, clip=None, trials=3000, spread=1.0):
    worst = 0.0
    size = 12 if model == "softmax" else 4
    for _ in range(trials):
        a = RNG.standard_normal(size) * spread
        b = a + RNG.standard_normal(size) * spread * RNG.choice([0.01, 1.0])
        rows = RNG.choice(30, size=batch, replace=False)
        step = [w - eta * gradient(model, w, X[rows], Y[rows], clip) for w in (a, b)]
        worst = max(worst, np.linalg.norm(step[0] - step[1]) / np.linalg.norm(a - b))
    return worst


@pytest.mark.parametrize(("model", "batch"), in_turn(CURVATURE, [3, 30]))
def test_steps_up_to_2_over_L_do_not_expand(model, batch):
    assert expansion(model, 2 / smoothness(model, R), batch) <= 1 + 1e-9


@pytest.mark.parametrize("model", CURVATURE)
def test_the_curvature_is_reached(model):
    """No smaller constant would do: two outputs at even odds, along the row, curve as much as is said."""
    row, step = np.array([[R, 0.0, 0.0, 0.0]]), 1e-4
    along = np.kron([1.0, 0.0, 0.0, 0.0], [1.0, -1.0, 0.0]) / np.sqrt(2) if model == "softmax" else np.eye(4)[0]
    base = np.kron([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -50.0]) if model == "softmax" else np.zeros(4)
    up, down = (gradient(model, base + sign * step * along, row, np.array([0])) for sign in (1, -1))
    assert (up - down) @ along / (2 * step) == pytest.approx(smoothness(model, R), rel=1e-4)


def test_larger_steps_do():
    row = np.array([[R, 0.0, 0.0, 0.0]])
    apart = [w - 2.5 / smoothness("linear", R) * gradient("linear", w, row, np.zeros(1)) for w in (row[0], 0 * row[0])]
    assert np.linalg.norm(apart[0] - apart[1]) > 1.4 * R


def test_per_example_clipping_of_scalar_models_does_not_expand():
    for model in ("linear", "logistic"):
        assert expansion(model, 2 / smoothness(model, R), 3, clip=0.7, spread=3.0) <= 1 + 1e-9


def test_L_contains_the_ridge():
    assert smoothness("linear", 2.0, ridge=0.5) == pytest.approx(4.5)
    assert smoothness("linear", 2.0) >= 4.0


def test_the_sentence_and_the_refusals():
    L = smoothness("logistic", R)
    assert non_expansive("logistic", R, step_size=1.9 / L, clipping="per-example").startswith("checked: logistic")
    assert non_expansive("softmax", R, step_size=0.9 / L, clipping="bounded").startswith("checked: softmax")
    for settings, reason in (
        ({"step_size": 2.1 / L}, "exceeds 2/L"),
        ({"step_size": 1.9 / L, "weight": 0.5}, "exceeds 2/L"),
        ({"step_size": 0.1 / L, "clipping": "whole-gradient"}, "whole gradient"),
        ({"step_size": 0.1 / L, "momentum": 0.9}, "momentum"),
    ):
        with pytest.raises(Unaccountable, match=reason):
            non_expansive("logistic", R, **settings)
    with pytest.raises(Unaccountable, match='use clip = "bounded"'):
        non_expansive("softmax", R, step_size=0.1 / L, clipping="per-example")
    with pytest.raises(Unaccountable, match="mlp is not known to be convex"):
        non_expansive("mlp", R, step_size=0.1)
    with pytest.raises(Unaccountable, match=r"no bound on the norm of rows is declared; set data\.unit_norm = true"):
        non_expansive("logistic", None, step_size=0.1)
    for norm in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="finite bound"):
            smoothness("linear", norm)
    with pytest.raises(InputError, match="clipping 'hard'"):
        non_expansive("linear", R, step_size=0.1, clipping="hard")


def test_clipping_a_whole_gradient_expands():
    """The contract's warning: a quadratic at eta = 2/L, clipped as a whole."""
    H = np.diag([1.0, 0.01])
    worst = 0.0
    for _ in range(20000):
        a = RNG.standard_normal(2) * np.array([1.0, 40.0])
        b = a + RNG.standard_normal(2) * 0.5
        moved = []
        for w in (a, b):
            g = H @ w
            moved.append(w - 2.0 * g * min(1.0, 0.3 / np.linalg.norm(g)))
        worst = max(worst, np.linalg.norm(moved[0] - moved[1]) / np.linalg.norm(a - b))
    assert worst > 1.05
