"""Two data sets that differ in one record: nothing that is public tells them apart.

Public are the settings, `privacy.json`, what a run prints and logs, and the promises on its page. Kept apart, and named
as not covered, are metrics (functions of noisy models and of held-out rows), wall-clock times, and what is computed
from all rows before a run: how features were scaled, which rows are held out, who holds which rows. So here one record
of a node is replaced after all of that.
"""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError, algorithm, metropolis
from sottovoce.learning import models
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.privacy import views
from sottovoce.run.calibrate_run import calibrate_run
from sottovoce.run.privacy_report import report_privacy, sigma_of
from sottovoce.run.training_run import prepare_run

DELTA = 1e-5
LISTENER = views.node(0, secure_sum=True)
"""Convex training protects even direct neighbours from it."""

EXTREME = 1e4
"""The replaced record is so many times as long as it was; its label is another."""


def worlds(rows: np.ndarray, labels: np.ndarray) -> tuple[Dataset, Dataset]:
    """A data set, and the same with one record replaced by an extreme one."""
    longer, other = rows.copy(), labels.copy()
    longer[0], other[0] = EXTREME * longer[0], 1 - other[0]
    return made_of(rows, labels), made_of(longer, other)


def made_of(rows: np.ndarray, labels: np.ndarray) -> Dataset:
    return Dataset(
        name="clinics", kind="classes", examples=Examples(rows), targets=labels, test_inputs=rows[-4:],
        test_targets=labels[-4:], shape=rows.shape[1:], classes=("a", "b"), groups=None, test_groups=None, entities=(),
        licence="", source="", notes=(),
    )  # fmt: skip


def calibrated(data: Dataset, name: str, clip: str, bound: float | None):
    job = task(data, partition(data, 7), models.model(name, data))
    run = prepare_run(
        algorithm("dp-d-sgd", sigma=1.0, step_size=0.5), metropolis("ring:7"), job.gradients("full", clip, bound),
        rounds=4,
    )  # fmt: skip
    return calibrate_run(run, epsilon=1.0, delta=DELTA, view=LISTENER)


RNG = np.random.default_rng(0)
ROWS, LABELS = RNG.standard_normal((42, 3)).astype(np.float32), RNG.integers(0, 2, 42)
DECLARED = {
    "nothing declared": lambda data: data,
    "unit_norm": lambda data: data.unit_norm(),
    "max_norm": lambda data: data.max_norm(0.5),
}


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize(("name", "clip", "bound"), [("logistic", "per-example", 1.0), ("softmax", "bounded", None)])
def test_the_size_of_the_noise_does_not_tell_which_data_it_was_chosen_for(declared, name, clip, bound):
    """A record decided once whether training counts as convex, and so sigma: the first message gave it away."""
    if declared == "nothing declared" and clip == "bounded":
        with pytest.raises(InputError, match="without a declared norm"):
            calibrated(made_of(ROWS, LABELS), name, clip, bound)
        return
    found = [calibrated(DECLARED[declared](data), name, clip, bound) for data in worlds(ROWS, LABELS)]
    one, other = (sigma_of(each.training_run.algorithm.noise) for each in found)
    assert one == other
    first, second = (report_privacy(each, delta=DELTA, attackers="none", target=LISTENER).document() for each in found)
    assert first == second
    assert ("convex-training" in {each["kind"] for each in first["views"][1]["guarantees"]}) is (
        declared != "nothing declared"
    )
