"""What minimum separation could be worth beside parts: an estimate, not a guarantee.

A record that was drawn waits B - 1 rounds, and is drawn with probability p in every other round. With C of B bands its
contributions fall on disjoint rows, and the likelihood of all its schedules is a sum over rounds. delta is estimated
from draws, for contributions that are the same in every round, and the noise is chosen so that the estimate meets the
target. Parts are `cyclic-poisson:SHARExB`, which is proven. Errors are over cyclic batches with independent noise.

    python -m benchmarks.separation --graph file:facebook_ego/414.edges.gz,component=giant --rounds 380 --parts 19
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from sottovoce import factorize, metropolis
from sottovoce.matrix_factorization.sampled_noise import best_in_band
from sottovoce.privacy.amplification import noise_for, releases
from sottovoce.privacy.gaussian_dp import mu_of

RUNS = 40_000

Array = NDArray[np.floating]


class Waiting:
    """A record that is drawn with this probability, and waits after each draw; it begins anywhere in its cycle."""

    def __init__(self, bands: int, chance: float) -> None:
        self.bands, self.chance = bands, chance
        free = (1 / chance) / (bands - 1 + 1 / chance)
        self.start = np.array([free, *([(1 - free) / (bands - 1)] * (bands - 1))])

    def schedules(self, rng: np.random.Generator, rounds: int) -> Array:
        """In which rounds it is drawn, for each run."""
        waits = rng.choice(self.bands, size=RUNS, p=self.start)
        drawn = np.zeros((RUNS, rounds), dtype=np.float32)
        for t in range(rounds):
            now = (waits == 0) & (rng.random(RUNS) < self.chance)
            drawn[:, t] = now
            waits = np.where(now, self.bands - 1, np.maximum(waits - 1, 0))
        return drawn

    def log_mean(self, gains_RT: Array) -> Array:
        """Log of the mean, over schedules, of exp of the sum of gains where it is drawn; by the wait that is left."""
        by_wait = [np.full(len(gains_RT), math.log(share)) for share in self.start]
        for gains in gains_RT.T:
            drawn, free = by_wait[0] + math.log(self.chance) + gains, by_wait[0] + math.log1p(-self.chance)
            by_wait = [*by_wait[1:], drawn]
            by_wait[0] = np.logaddexp(by_wait[0], free)
        return np.asarray(np.logaddexp.reduce(by_wait, axis=0))


def estimated_delta(C_TT: Array, sigma: float, epsilon: float, record: Waiting) -> float:
    """The larger of both directions."""
    found, squares = [], (C_TT**2).sum(axis=0)
    for there in (True, False):
        rng = np.random.default_rng([1, there])
        rows = sigma * rng.standard_normal((RUNS, len(C_TT)), dtype=np.float32)
        if there:
            rows += record.schedules(rng, len(C_TT)) @ C_TT.T
        loss = record.log_mean((rows @ C_TT - squares / 2) / sigma**2)
        found.append(float(np.maximum(-np.expm1(epsilon - (loss if there else -loss)), 0.0).mean()))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True, help="a batch has one in so many records, on average")
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[10.0])
    parser.add_argument("--bands", type=int, nargs="+", default=[2, 3, 4])
    asked = parser.parse_args()
    net = metropolis(asked.graph)
    independent = factorize(net, rounds=asked.rounds, participation=f"{asked.rounds // asked.parts}x{asked.parts}")
    print("epsilon | bands | parts | minimum separation", flush=True)
    for epsilon in asked.epsilons:
        over = independent.independent / mu_of(epsilon, asked.delta) ** 2
        for bands in asked.bands:
            found = best_in_band(net, asked.rounds, bands)
            C, record = found.correlation.matrix(asked.rounds), Waiting(bands, 1 / (asked.parts + 1 - bands))
            count = releases(asked.rounds, apart=bands)
            proven = noise_for(epsilon, share=bands / asked.parts, rounds=count, delta=asked.delta)
            low, high = 0.5 * proven, 1.1 * proven
            for _ in range(6):
                middle = math.sqrt(low * high)
                enough = estimated_delta(C.astype(np.float32), middle, epsilon, record) <= asked.delta
                low, high = (low, middle) if enough else (middle, high)
            errors = (noise**2 * found.objective / over for noise in (proven, high))
            print(epsilon, bands, *(f"{error:.4f}" for error in errors), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
