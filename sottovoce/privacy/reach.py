"""Which gradients can reach a view at all, whatever nodes make of what they hear: decided by the graph alone.

What reaches it is followed back in time, as a set of components of the state: those that a message of the view holds,
those that such a component is made of, and those that a node takes a gradient from which reaches the view. So the set
has all that an observation can depend on, for any model and any reaction; a weight counts unless it is stored as zero.
It takes one sparse product for each round that differs, for all victims together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.sparsity import columns_touched
from sottovoce.privacy.observation import Observation
from sottovoce.support.memo import once_for_each


@once_for_each
def reaching_gradients(observation: Observation) -> NDArray[np.bool_]:
    """Which (gradient round, victim) reach the view, directly or through another's query point."""
    n, V = observation.steps[0].out.state.shape[0], len(observation.victims)
    seen = {step: tuple(map(columns_touched, step.observed[:2])) for step in observation.distinct_steps}
    wanted = np.zeros(n, dtype=bool)  # components of the state that reach it
    out: list[NDArray[np.bool_]] = []
    later, settled = None, False
    for step in reversed(observation.steps):
        settled = later is not None and step is later[0] and (settled or np.array_equal(wanted, later[1]))
        if settled:
            out += out[-1:] if step.takes_gradients else []  # nothing changes from here on while rounds are equal
            continue
        later = (step, wanted)
        of_state, of_gradient = seen[step]
        carried = columns_touched(step.out.state, wanted) | of_state
        if step.takes_gradients:
            reaches = columns_touched(step.out.gradient, wanted) | of_gradient
            out.append(reaches)
            if step.point is not None:
                asked = np.zeros(step.point.shape[0], dtype=bool)
                asked[observation.victims[reaches]] = True
                carried |= columns_touched(step.point, asked)
        wanted = carried
    return np.array(out[::-1]).reshape(-1, V)
