"""A traced system at another size of its noise, without tracing again: noise enters what is sent linearly.

Which factor each source's column gets is read from the noise itself, at both sizes. Where one factor does not turn the
old column into the new one, nothing is scaled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix, Noise
from sottovoce.core.sensitivity import in_units_of_largest
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices
from sottovoce.tracing.round_maps import noise_deviation

ROUNDING = 1e-13
"""Scaled noise is made smaller by this share, so that a figure never falls below that of a new trace by rounding."""

SAME = 1e-14
"""Share of an entry below which a difference is rounding."""

Factors = NDArray[np.float64]


def scale_noise(system: LinearSystem, noise: Noise) -> LinearSystem | None:
    """The system of the same algorithm with another size of its noise; None where it does not just scale.

    >>> from sottovoce.algorithms.registry import algorithm
    >>> from sottovoce.core.topologies import metropolis
    >>> from sottovoce.tracing.tracer import trace
    >>> system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4"), rounds=2)
    >>> larger = scale_noise(system, system.algorithm.noise.with_sigma(3.0))
    >>> bool(np.allclose(larger.dense()[1], 3 * system.dense()[1], rtol=1e-12))
    True
    """
    old = system.algorithm.noise
    if old.correlation is not noise.correlation:
        return None
    scaled: dict[StepMatrices, StepMatrices] = {}
    for step in dict.fromkeys(system.steps):
        factors = _factors(step, old, noise)
        if factors is None:
            return None
        scaled[step] = _scaled(step, factors * (1 - ROUNDING), noise)
    algorithm = replace(system.algorithm, noise=noise)  # type: ignore[type-var]
    return replace(system, steps=tuple(scaled[step] for step in system.steps), algorithm=algorithm)


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
    if system.algorithm.noise.correlation is not noise.correlation:
        return None
    each = [_factors(step, system.algorithm.noise, noise) for step in dict.fromkeys(system.steps)]
    if any(factors is None for factors in each):
        return None
    every = np.concatenate([factors for factors in each if factors is not None])
    least = float(every.min(initial=np.inf))
    return least if 0 < least < np.inf and every.max() <= least * (1 + 2 * SAME) else None


def _factors(step: StepMatrices, old: Noise, new: Noise) -> Factors | None:
    """For each noise column of a round, by how much it grows."""
    before, after = _matrices(old, step.mixings), _matrices(new, step.mixings)
    if before.keys() != after.keys():
        return None
    found = [np.zeros(0)]
    for number, sources in step.sources:
        factors = _growth(before[number, sources.kind], after[number, sources.kind])
        if factors is None:
            return None
        found.append(factors)
    return np.concatenate(found)


def _matrices(noise: Noise, mixings: tuple[Mixing, ...]) -> dict[tuple[int, str], FactoredMatrix]:
    """The matrices of a round's noise, by gossip step and kind of sources, of which no step has two."""
    terms = [(0, term) for term in noise.local(mixings[0])]
    terms += [(number, term) for number, mixing in enumerate(mixings) for term in noise.edge(mixing, number)]
    return {(number, term.sources.kind): term.matrix for number, term in terms}


def _growth(before: FactoredMatrix, after: FactoredMatrix) -> Factors | None:
    """The factor of each column; None where no factor does."""
    old, new = before.whole().tocsc(), after.whole().tocsc()
    places = all(np.array_equal(one, other) for one, other in ((old.indptr, new.indptr), (old.indices, new.indices)))
    if not places or not old.data.all():
        return None
    column = np.repeat(np.arange(old.shape[1]), np.diff(old.indptr))
    factors = np.ones(old.shape[1])
    factors[column] = new.data / old.data
    same = np.abs(new.data - old.data * factors[column]) <= SAME * np.abs(new.data)
    return factors if same.all() else None


def _scaled(step: StepMatrices, factors: Factors, noise: Noise) -> StepMatrices:
    """The same round with its noise columns multiplied, and maps that say how large the noise is."""
    every = np.concatenate([np.ones(step.state_size + step.gradients), factors])

    def scaled(matrix: sparse.csr_array) -> sparse.csr_array:
        found = matrix.copy()  # with indices of its own: scipy may sort them in place
        found.data *= every[found.indices]
        return found

    deviation = noise_deviation(noise, step.sensitivity, step.mixings[0])
    edge_noise = tuple(
        in_units_of_largest(noise.edge(mixing, number), step.sensitivity)
        for number, mixing in enumerate(step.maps.mixings)
    )
    maps = replace(
        step.maps, deviation=None if deviation is None else deviation * (1 - ROUNDING), edge_noise=edge_noise
    )
    return replace(
        step,
        maps=maps,
        state_out=scaled(step.state_out),
        point=None if step.point is None else scaled(step.point),
        models=scaled(step.models),
        sent=tuple(messages._replace(rows=scaled(messages.rows)) for messages in step.sent),
    )
