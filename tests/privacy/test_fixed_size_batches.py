"""Batches of a fixed size: the figure against likelihoods that are integrated over all batches, by code of their own.

One node with M records in the plane, one release a round: the sum over a batch of m of them, drawn without replacement,
and Gaussian noise. One record is replaced. All lie in a ball of diameter 1.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.gaussian_dp import delta_of

GRID = np.linspace(-7, 8, 1501)


def density(records, batch, noise):
    """Of what is released, on the grid: the mean over all batches."""
    sums = [sum(records[i] for i in drawn) for drawn in itertools.combinations(range(len(records)), batch)]
    return np.mean([stats.norm.pdf(GRID, mean, noise) for mean in sums], axis=0)


def composed_delta(one, other, epsilon, rounds):
    """Of so many rounds, from the distribution of the loss of each, exactly on the grid: both directions."""
    worst, cell = 0.0, GRID[1] - GRID[0]
    for p, q in ((one, other), (other, one)):
        loss, mass = np.log(p / q), p * cell
        if rounds == 1:
            worst = max(worst, float((mass * np.maximum(-np.expm1(epsilon - loss), 0)).sum()))
        else:
            both = loss[:, None] + loss
            worst = max(worst, float((mass[:, None] * mass * np.maximum(-np.expm1(epsilon - both), 0)).sum()))
    return worst


OTHERS = {"like the new one": 0.0, "like the old one": 1.0, "between": 0.5, "spread": None}


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize(("held", "batch", "noise"), [(4, 1, 0.8), (5, 2, 1.0)])
@pytest.mark.parametrize("rounds", [1, 2])
def test_no_data_tells_more_than_the_figure(others, held, batch, noise, rounds):
    where = OTHERS[others]
    rest = list(np.linspace(0, 1, held - 1)) if where is None else [where] * (held - 1)
    one, other = density([1.0, *rest], batch, noise), density([0.0, *rest], batch, noise)
    for delta in (0.05, 1e-3):
        stated = epsilon_of_batches(noise=noise, share=batch / held, size=held, rounds=rounds, delta=delta)
        assert composed_delta(one, other, stated, rounds) <= delta * (1 + 1e-4)
        if rounds == 1 and others.startswith("like"):
            assert composed_delta(one, other, 0.98 * stated, 1) > delta


@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.01), (0.5, 0.3), (5.0, 0.2)])
def test_one_release_has_its_closed_form(noise, share):
    """delta = q delta'(log(1 + (e^epsilon - 1) / q)) (Balle, Barthe and Gaboardi, 2018)."""
    for delta in (1e-3, 1e-6):
        epsilon = epsilon_of_batches(noise=noise, share=share, size=100, rounds=1, delta=delta)
        found = share * delta_of(1 / noise, math.log1p(math.expm1(epsilon) / share))
        assert 0.995 * delta < found <= delta * (1 + 1e-9)


def test_all_records_in_every_batch_is_no_sampling():
    found = epsilon_of_batches(noise=4.0, share=1.0, size=30, rounds=10, delta=1e-5)
    plain = epsilon_of_batches(noise=4.0, share=1.0, rounds=10, delta=1e-5)
    assert found == pytest.approx(plain, rel=1e-4)
