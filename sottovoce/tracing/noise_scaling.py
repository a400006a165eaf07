"""By how much all noise of a traced system grows with another size of it, so that figures follow without an account.

It is read from the noise itself, at both sizes.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import Noise
from sottovoce.tracing.linear_system import LinearSystem

SAME = 2e-14
"""Share by which factors may differ by rounding."""


def common_factor(system: LinearSystem, noise: Noise) -> float | None:
    """By how much all noise of a system grows with another size of it; None where its parts do not grow alike.

    >>> from sottovoce.algorithms.registry import algorithm
    >>> from sottovoce.core.topologies import metropolis
    >>> from sottovoce.tracing.tracer import trace
    >>> system = trace(algorithm("decor", sigma=1.0, sigma_pair=2.0), metropolis("ring:4"), rounds=2)
    >>> print(common_factor(system, system.algorithm.noise.with_sigma(3.0)))  # pair noise stays as it is
    None
    >>> common_factor(system, algorithm("decor", sigma=3.0, sigma_pair=6.0).noise)
    3.0
    """
    old = system.algorithm.noise
    if old.correlation is not noise.correlation:
        return None
    factors = [np.zeros(0)]
    for step in dict.fromkeys(system.steps):
        before, after = _matrices(old, step.mixings), _matrices(noise, step.mixings)
        if before.keys() != after.keys():
            return None
        for place, matrix in before.items():
            found = after[place]
            alike = [np.array_equal(matrix.indptr, found.indptr), np.array_equal(matrix.indices, found.indices)]
            if not (all(alike) and matrix.data.all()):
                return None
            factors.append(found.data / matrix.data)
    every = np.concatenate(factors)
    least = float(every.min(initial=np.inf))
    return least if 0 < least < np.inf and every.max() <= least * (1 + SAME) else None


def _matrices(noise: Noise, mixings: tuple[Mixing, ...]) -> dict[tuple[int, str], sparse.csr_array]:
    """The matrices of a round's noise, by gossip step and kind of sources, of which no step has two."""
    terms = [(0, term) for term in noise.local(mixings[0])]
    terms += [(number, term) for number, mixing in enumerate(mixings) for term in noise.edge(mixing, number)]
    return {(number, term.sources.kind): term.matrix.whole() for number, term in terms}
