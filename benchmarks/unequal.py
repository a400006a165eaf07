"""What noise by each node's own sensitivity buys: eight hospitals of 17 to 126 records, epsilon 5 for each.

`python -m benchmarks.unequal` prints a table in the form of docs/benchmarks.md. `one noise level` gives every node the
noise of the smallest, as versions did that had one sensitivity for all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer

from sottovoce import algorithm, from_arrays, metropolis, model, partition, simulate, task
from sottovoce.core.random_streams import NoiseKey
from sottovoce.privacy.calibration import calibrate

HELD = (17, 22, 30, 41, 55, 70, 94, 126)
ROUNDS, EPSILON, DELTA, STEP = 60, 5.0, 1e-5, 2.0
SEEDS = range(5)


def final_accuracy(seed: int, noise: str, weigh_nodes: str) -> tuple[float, float]:
    """Test accuracy and loss of the average model."""
    total, net = sum(HELD), metropolis("ring:8")
    order = np.random.default_rng(seed).permutation(569)
    inputs, targets = load_breast_cancer(return_X_y=True)
    scaled = ((inputs - inputs.mean(0)) / inputs.std(0) / np.sqrt(30)).astype(np.float32)[order]
    data = from_arrays(
        scaled[:total], targets[order][:total], test=(scaled[total:], targets[order][total:]),
        groups=np.repeat(np.arange(8), HELD),
    )  # fmt: skip
    job = task(data, partition(data, 8, "user"), model("logistic", data))
    gradient = job.gradients("full", "per-example", 1.0, weigh_nodes=weigh_nodes)
    least = calibrate(algorithm("dp-d-sgd", sigma=1.0), net, rounds=ROUNDS, epsilon=EPSILON, delta=DELTA)
    own = np.atleast_1d(gradient.sensitivities())
    sizes = {"own": least, "one": tuple((least * own.max() / own).tolist())}
    built = algorithm("d-psgd", step_size=STEP)
    if noise != "none":
        built = algorithm("dp-d-sgd", sigma=sizes[noise], step_size=STEP)
    run = simulate(
        built, net, gradient, rounds=ROUNDS, seed=seed, delta=DELTA, noise_key=NoiseKey.of_seed(seed), every=ROUNDS
    )
    last = run.metrics[-1]
    return last.metric.average, last.loss.average


def table() -> Iterator[str]:
    yield "| noise | nodes count | test accuracy of the average model, mean over 5 seeds (each) | test loss |"
    yield "|---|---|---|---|"
    for name, noise, weigh_nodes in (
        ("one level for all: that of the smallest node", "one", "equal"),
        ("each node its own", "own", "equal"),
        ("each node its own", "own", "size"),
        ("none", "none", "equal"),
    ):
        found = [final_accuracy(seed, noise, weigh_nodes) for seed in SEEDS]
        accuracy, loss = np.mean(found, axis=0)
        each = ", ".join(f"{one:.3f}" for one, _ in found)
        count = "alike" if weigh_nodes == "equal" else "by records"
        yield f"| {name} | {count} | {accuracy:.4f} ({each}) | {loss:.4f} |"


if __name__ == "__main__":
    for line in table():
        print(line)
