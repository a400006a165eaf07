"""How far the models of a run may lie from those of others: judged by simulations of the same agreement.

Noise decides where a run ends. A simulation of an agreement draws its noise from a key, so that many undisturbed runs
show how the average of all models spreads, coordinate by coordinate, and how far members lie apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import NoiseKey
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.guarantees import build_agreement
from sottovoce.learning.tables import read_table
from tests.federation.clinics import Clinics

RUNS = 40
LEVEL = 1e-6
"""So often an undisturbed run would be found to be disturbed."""


@dataclass(frozen=True)
class Undisturbed:
    """Ends of undisturbed runs: the average of all models, and the root mean square distance of models from it."""

    averages: Reals
    distances: Reals

    def check(self, ends: Iterable[Reals], slack: float = 1.0) -> None:
        """Runs that were disturbed ended like these, on both sides: neither with more noise nor with less.

        `ends` has for each run the models of its members. Sums of squared standard scores follow chi-square, by a half
        wider because mean and deviation are those of `RUNS` runs. `slack` is by how much a fault may widen them.
        """
        found = [np.asarray(models) for models in ends]
        mean, deviation = self.averages.mean(axis=0), self.averages.std(axis=0, ddof=1)
        scores = np.array([(models.mean(axis=0) - mean) / deviation for models in found])
        least, largest = chi2.interval(1 - LEVEL, scores.size)
        assert least / 1.5 <= (scores**2).sum() <= 1.5 * slack**2 * largest, scores
        for models in found:
            distance = spread(models)
            assert self.distances.min() / 3 <= distance <= 3 * slack * self.distances.max(), distance


def spread(models: Reals) -> float:
    """How far models lie from their average: root mean square over members and coordinates."""
    return float(np.sqrt(((models - models.mean(axis=0)) ** 2).mean()))


def undisturbed(clinics: Clinics, agreement: Agreement) -> Undisturbed:
    """Simulate an agreement again and again, with other noise."""
    columns = agreement.data.columns
    tables = {name: read_table(clinics.folder / f"{name}.csv", columns) for name in clinics.names}
    training_run = build_agreement(agreement, tables).training_run
    averages, distances = [], []
    for seed in range(RUNS):
        run = training_run.keyed(NoiseKey.of_seed(seed))
        *_, (_, state) = run.play(run.before())
        models = run.models(state).numpy()
        averages.append(models.mean(axis=0))
        distances.append(spread(models))
    return Undisturbed(np.array(averages), np.array(distances))


def models_at_the_end(clinics: Clinics, agreement: Agreement, names: Iterable[str] | None = None) -> Reals:
    """The models that members of a real run wrote."""
    chosen = clinics.names if names is None else names
    return np.array([np.load(clinics.run_folder(agreement, name) / "model.npz")["model"] for name in chosen])
