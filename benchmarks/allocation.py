"""How far sharper accounting could move the line between sampling and correlation: an estimate, not a guarantee.

A record that is allocated to one of B residues at random, and takes part in all rounds of it (balls in bins), is hidden
for every C: what everyone sees is a mixture of B Gaussians, whose loss is a sum over residues. Its delta is estimated
here from draws, for contributions that are the same in every round, and the noise is chosen so that the estimate meets
the target. `sotto noise --sampled` is what is proven. Errors are over cyclic batches with independent noise.

    python -m benchmarks.allocation --graph file:facebook_ego/414.edges.gz,component=giant --rounds 380 --parts 19
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from sottovoce import factorize, metropolis, sampled_noise
from sottovoce.core.correlation import Correlation
from sottovoce.matrix_factorization.sampled_noise import best_in_band
from sottovoce.privacy.gaussian_dp import mu_of

DRAWS = 300_000


def residue_gram(C_TT: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """Inner products of what the residues add up to."""
    means = np.array([C_TT[:, residue::parts].sum(axis=1) for residue in range(parts)])
    return means @ means.T


def estimated_delta(gram: NDArray[np.float64], sigma: float, epsilon: float, rng: np.random.Generator) -> float:
    """The larger of both directions, from draws of the mixture and of noise alone."""
    parts = len(gram)
    factor = np.linalg.cholesky(gram + 1e-12 * np.trace(gram) * np.eye(parts))
    noise = rng.standard_normal((DRAWS, parts)) @ factor.T / sigma
    drift = gram[rng.integers(parts, size=DRAWS)] / sigma**2
    half = np.diag(gram) / (2 * sigma**2)
    found = []
    for there, sign in ((drift, 1.0), (0.0, -1.0)):
        loss = sign * (np.logaddexp.reduce(noise + there - half, axis=1) - math.log(parts))
        found.append(float(np.maximum(-np.expm1(epsilon - loss), 0.0).mean()))
    return max(found)


def least_sigma(gram: NDArray[np.float64], epsilon: float, delta: float) -> float:
    """With the same draws at every sigma."""
    low, high = 1e-3, math.sqrt(float(gram.diagonal().max())) / mu_of(epsilon, delta)
    for _ in range(14):
        middle = math.sqrt(low * high)
        enough = estimated_delta(gram, middle, epsilon, np.random.default_rng(0)) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
    asked = parser.parse_args()
    net, times = metropolis(asked.graph), asked.rounds // asked.parts
    cyclic = factorize(net, rounds=asked.rounds, participation=f"{times}x{asked.parts}")
    bands: dict[str, tuple[Correlation, float]] = {
        f"{count} bands": (found.correlation, found.objective)
        for count in (1, 2, 4, 8)
        for found in [best_in_band(net, asked.rounds, count)]
    }
    bands["cycle's C"] = (cyclic.correlation, cyclic.objective)
    print("epsilon", "cyclic", "proven", *bands, sep=" | ", flush=True)
    for epsilon in asked.epsilons:
        mu = mu_of(epsilon, asked.delta)
        over = cyclic.independent / mu**2
        proven = sampled_noise(net, rounds=asked.rounds, share=1 / asked.parts, epsilon=epsilon, delta=asked.delta)
        row = []
        for correlation, objective in bands.values():
            sigma = least_sigma(residue_gram(correlation.matrix(asked.rounds), asked.parts), epsilon, asked.delta)
            row.append(sigma**2 * objective / over)
        shown = (cyclic.objective / mu**2 / over, proven.best.error / over, *row)
        print(epsilon, *(f"{value:.4f}" for value in shown), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
