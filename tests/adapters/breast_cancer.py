"""Logistic regression on the rows of breast cancer that a site holds: what the simulators of other frameworks train."""

import numpy as np
from sklearn.datasets import load_breast_cancer

STEPS, RATE = 10, 0.5


def rows_of(site, sites):
    """A site's rows for training, every `sites`-th of the first 400; the rest is for testing."""
    inputs, targets = load_breast_cancer(return_X_y=True)
    inputs = (inputs - inputs[:400].mean(0)) / inputs[:400].std(0) / np.sqrt(inputs.shape[1])
    order = np.random.default_rng(0).permutation(len(inputs))
    mine = order[:400][site::sites]
    return (inputs[mine], targets[mine]), (inputs[order[400:]], targets[order[400:]])


def start():
    return {"w": np.zeros(30, dtype=np.float32), "b": np.zeros(1, dtype=np.float32)}


def trained(model, inputs, targets):
    """Some steps of gradient descent."""
    w, b = (np.array(model[name], dtype=float) for name in ("w", "b"))
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-(inputs @ w + b))) - targets
        w, b = w - RATE * inputs.T @ error / len(error), b - RATE * error.mean()
    return {"w": w.astype(np.float32), "b": b.astype(np.float32)}


def accuracy(model, inputs, targets):
    return float(((inputs @ np.asarray(model["w"]) + np.asarray(model["b"]) > 0) == targets).mean())
