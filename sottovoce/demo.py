"""The smallest real thing: softmax regression on scikit-learn's digits, 16 nodes, with and without noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sottovoce.algorithms import algorithm
from sottovoce.draws import Gradient
from sottovoce.loop import rounds_of
from sottovoce.topology import Topology, metropolis

GRAPH = "erdos-renyi:16,p=0.3,seed=1"
CLIP = 1.0
SIGMA = 3.0
STEP_SIZE = 4.0


class Outcome(NamedTuple):
    """Test accuracy of one algorithm after a round: of the nodes' mean model, and of the worst node."""

    algorithm: str
    round: int
    mean_model: float
    worst_node: float


class Digits(NamedTuple):
    """1,797 handwritten digits, 8 x 8: N equal shares to train on, and a test set."""

    x_NMF: torch.Tensor
    y_NM: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def share_digits(n: int) -> Digits:
    """Digits in n equal random shares, each image scaled to norm one, with a constant for the bias."""
    images, labels = load_digits(return_X_y=True)
    images = np.concatenate([images / np.linalg.norm(images, axis=1, keepdims=True), np.ones((len(images), 1))], axis=1)
    parts = train_test_split(images / np.sqrt(2), labels, test_size=0.25, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
    each = len(train_x) // n
    x = train_x[: n * each].float().reshape(n, each, -1)
    return Digits(x, train_y[: n * each].reshape(n, each), test_x.float(), test_y)


def clipped_gradient(digits: Digits, classes: int = 10) -> Gradient:
    """Mean over a node's images of cross-entropy gradients, each clipped to norm CLIP.

    An image's gradient is the outer product of its features and of its class errors, so its norm is a product too.
    """
    n, each, features = digits.x_NMF.shape
    target = torch.nn.functional.one_hot(digits.y_NM, classes).float()

    def gradient(round: int, points: torch.Tensor) -> torch.Tensor:
        errors = (digits.x_NMF @ points.view(n, features, classes)).softmax(-1) - target
        norms = errors.norm(dim=-1) * digits.x_NMF.norm(dim=-1)
        errors = errors * (CLIP / norms.clamp(min=CLIP)).unsqueeze(-1) / each
        return (digits.x_NMF.transpose(1, 2) @ errors).view(n, -1)

    return gradient


def train(rounds: int = 100, every: int = 20, seed: int = 0) -> Iterator[Outcome]:
    """D-PSGD, DP-D-SGD and ZIP-DL in turn, with accuracies every few rounds."""
    topology: Topology = metropolis(GRAPH)
    digits = share_digits(topology.n)
    x0 = torch.zeros(topology.n, digits.x_NMF.shape[2] * 10)
    per_record = 2 * CLIP / digits.x_NMF.shape[1]  # replacing one image moves a node's mean by at most this
    common = {"sigma": SIGMA, "sensitivity": per_record, "step_size": STEP_SIZE}
    for name, settings in (("d-psgd", {"step_size": STEP_SIZE}), ("dp-d-sgd", common), ("zip-dl", common)):
        built = algorithm(name, **settings)
        for played in rounds_of(built, topology, x0, clipped_gradient(digits), rounds=rounds, seed=seed):
            if (played.round + 1) % every == 0:
                models = built.point(played.carry.state)
                worst = min(accuracy(model, digits) for model in models)
                yield Outcome(name, played.round + 1, accuracy(models.mean(dim=0), digits), worst)


def accuracy(model: torch.Tensor, digits: Digits) -> float:
    """Share of test images that a model names rightly."""
    scores = digits.test_x @ model.view(digits.test_x.shape[1], -1)
    return float((scores.argmax(dim=1) == digits.test_y).double().mean())
