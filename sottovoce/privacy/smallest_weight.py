"""How small a share of a value the weights of a round can leave: what is smaller than rounding, rounding hides."""

from __future__ import annotations

import numpy as np

from sottovoce.core.mixing import Mixing
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

SMALLEST = 1e-9
"""What the weights of a round may make of a value, at least, where sizes are compared with those of rounding errors."""

NOTHING = 1e-13
"""Singular values below this share of the largest are zero: such a combination of values leaves nothing."""

LARGEST = 1_000
"""Nodes up to which singular values are computed."""


@once_for_each
def smallest_weight(system: LinearSystem) -> float:
    """The least share of a value, or of a combination of values, that a round can leave, over all its gossip steps.

    Where a round gossips once, that is its smallest weight. Several times, and combinations that shrink at every step,
    as differences between alike neighbours do, may be smaller: then the smallest singular value counts for every step.
    """
    smallest = 1.0
    for step in dict.fromkeys(system.steps):
        gossip = _gossip(step)
        share = _singular_share if len(gossip) > 1 else _smallest_share
        smallest = min(smallest, float(np.prod([share(mixing) for mixing in gossip])))
    return smallest


def gossips_once(system: LinearSystem) -> bool:
    """Whether no round has more than one gossip step."""
    return all(len(_gossip(step)) <= 1 for step in dict.fromkeys(system.steps))


def _gossip(step: StepMatrices) -> list[Mixing]:
    """The weights of all messages of a round that are not for all to see, as sums and published models are."""
    both = zip(step.sent, step.mixings, strict=True)
    return [mixing for sent, mixing in both if not sent.sender.size or sent.sender[0] != -1]


def _smallest_share(mixing: Mixing) -> float:
    sizes = np.abs(mixing.weights.data[mixing.weights.data != 0])
    return float(sizes.min() / sizes.max()) if sizes.size else 1.0


@once_for_each
def _singular_share(mixing: Mixing) -> float:
    """Zero, which is no more than the truth, for graphs that are too large."""
    if mixing.n > LARGEST:
        return 0.0
    with one_thread():
        values = np.linalg.svd(mixing.weights.toarray(), compute_uv=False)
    values = values[values > NOTHING * values[0]]
    return min(_smallest_share(mixing), float(values[-1] / values[0])) if values.size else 1.0
