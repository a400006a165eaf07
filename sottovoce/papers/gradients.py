"""Gradients at models with noise, beside ZIP-DL's Assumption 5.6: normal, and of L times the noise's variance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

from sottovoce.papers.catalogue import NoisyGradients
from sottovoce.papers.cells import Cell, cell
from sottovoce.run.build import build_run
from sottovoce.run.sweep import SweepRun, last_word

Floats = NDArray[np.float64]

SHARES = np.linspace(0.0, 1.0, 21)
"""Of parameters, in the order of what is drawn of them."""


def gradient_cells(asked: NoisyGradients, run: SweepRun, data: Path | None) -> list[Cell]:
    """What node 0's gradient is made of once training has ended, for parameters that it depends on."""
    trained = build_run(run.experiment, data)
    *_, (_, last) = trained.play(trained.before())
    models, draws = trained.models(last), torch.Generator().manual_seed(run.experiment.seed)
    chosen = torch.randperm(models.shape[1], generator=draws)[: asked.parameters]

    def gradient(_: int) -> torch.Tensor:
        noise = torch.randn(models.shape, generator=draws, dtype=models.dtype)
        return trained.gradients(0, models + asked.noise * noise)[0, chosen].double()

    noisy = torch.stack(list(map(gradient, range(asked.draws)))).numpy()
    noisy = noisy[:, noisy.std(axis=0) > 0]
    normal = np.random.default_rng(run.experiment.seed).standard_normal(noisy.shape)
    found = {
        "distance from normal": distance_from_normal(noisy),
        "of as many normal draws": distance_from_normal(normal),
        "L": noisy.var(axis=0, ddof=1) / asked.noise**2,
    }
    name = ", ".join(f"{last_word(key)} {value}" for key, value in run.values)
    return [
        cell(f"{name}, {what}", share, [value])
        for what, values in found.items()
        for share, value in zip(SHARES, np.quantile(values, SHARES), strict=True)
    ]


def distance_from_normal(draws: Floats) -> Floats:
    """The Kolmogorov-Smirnov distance of each column from the normal distribution of its mean and variance."""
    ordered = np.sort((draws - draws.mean(axis=0)) / draws.std(axis=0, ddof=1), axis=0)
    steps, expected = np.arange(len(draws) + 1)[:, None] / len(draws), ndtr(ordered)
    return np.maximum(steps[1:] - expected, expected - steps[:-1]).max(axis=0)
