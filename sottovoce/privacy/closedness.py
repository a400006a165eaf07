"""Closed views: training where every reaction is a function of what the adversary has already seen.

Then adaptive gradients cost nothing and the exact loss is proven for any training. With F_t the observations sent
before any message that holds a gradient of round t, the point where an honest node k takes that gradient must be
`c [A|B]_(F_t) + r`, where

1. r has no noise part;
2. r has no columns of a victim other than k;
3. nor of k itself, unless the sensitivity bounds the difference of k's gradients over all pairs of points (user level).

Batches, compression and mixing never depend on data or noise here: the tracer refuses what does (rule 4).

Two checks: by the step matrices, where the state after a round is a combination of what was just seen; and round after
round, by what is left of the state when all that was seen is taken out. Both take linear algebra. Of systems that are
too large for it nothing is known, and the view counts as open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.exact.deflation import BasisSize, Entering, Left
from sottovoce.privacy.observation import Observation, observe, with_own_messages
from sottovoce.privacy.reactions import SMALLEST, gossips_once, open_by_steps, reaching_gradients, smallest_weight
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem

Array = NDArray[np.float64]


ENTRIES = 60_000_000
"""Largest number of entries, of noise and of gradients, that the check over all rounds holds at once."""

MULTIPLICATIONS = 4e10
"""Largest number of multiplications that the check over all rounds takes, unless it is `SMALL`: some seconds."""

SMALL = 40_000_000
"""Number of entries of a basis of the noise of all rounds, and of the state over it, up to which all is checked."""


@dataclass(frozen=True)
class Closedness:
    """Whether a view is closed, at which level, and what stands in the way.

    A view that could not be checked is not `closed`, nor is it `decided`.
    """

    closed: bool
    user_level_only: bool = False
    reason: str = ""
    decided: bool = True


def closedness(system: LinearSystem, view: View, observed: Observation | None = None) -> Closedness:
    """Check the rules on the traced system, the adversary's own messages counted as seen.

    `observed` is what the view sees, if that is known already.
    """
    observation = observe(system, view, own=True) if observed is None else with_own_messages(observed)
    return _by_steps(observation) or _unrolled(observation)


def _by_steps(observation: Observation) -> Closedness | None:
    """Whether a view, with its own messages, is closed; None where the check over all rounds decides."""
    system, view = observation.system, observation.view
    open_node, hears_all = open_by_steps(observation), view.kind is ViewKind.EVERYONE
    if open_node is None and (hears_all or gossips_once(system)):
        return Closedness(True)
    weight = smallest_weight(system)
    if open_node is None and weight >= SMALLEST:
        return Closedness(True)
    if weight < SMALLEST:
        found = "a node" if open_node is None else f"node {open_node}"
        return Closedness(False, reason=f"{found} may react to what reaches it by a weight of {weight:.3g}")
    if not _is_affordable(observation):
        too_many = f"{observation.rows:,} messages over {len(observation.steps):,} rounds are too many"
        unknown = f"it could not be checked whether nodes react to what the view has not seen: {too_many}"
        return Closedness(False, reason=unknown, decided=False)
    return None


def _is_affordable(observation: Observation) -> bool:
    """Whether the check over all rounds is begun: by what it holds at once, and how many multiplications it takes."""
    sources, size = observation.sources, BasisSize.of(observation)
    if (min(observation.rows, sources) + 2 * observation.state) * sources <= SMALL:
        return True
    return size.entries <= ENTRIES and size.multiplications <= MULTIPLICATIONS


@one_thread()
def _unrolled(observation: Observation) -> Closedness:
    """The rules on what is left of every query point when all that was seen before it is taken out."""
    V, T = len(observation.victims), observation.gradient_rounds
    reaching = reaching_gradients(observation)
    inputs = Entering(observation)
    unknown = inputs.unknown
    number, only_user = 0, False
    for round, (step, (seen_new, out_new)) in enumerate(zip(observation.steps, inputs, strict=True)):
        fresh = np.diff(step.observed.gradient.indptr) > 0
        quiet, loud = np.flatnonzero(~fresh), np.flatnonzero(fresh)
        new = unknown.see(step.observed.state[quiet], *(part[quiet] for part in seen_new))
        if step.point is not None:
            rows = step.point[observation.victims]
            left = unknown.without(rows, new)
            for k in np.flatnonzero(reaching[number]):
                verdict = _reacts(observation, round, int(k), left, V)
                if verdict is not None and not verdict.closed:
                    return verdict
                only_user = only_user or verdict is not None
            number += 1
        new = np.concatenate([new, unknown.see(step.observed.state[loud], *(part[loud] for part in seen_new))], axis=1)
        unknown.move(step.out.state, *out_new, new)
    assert number == T
    return Closedness(True, user_level_only=only_user)


def _reacts(observation: Observation, round: int, k: int, left: Left, V: int) -> Closedness | None:
    """Whether victim k's query point holds anything unseen: closed at user level only if it is its own past."""
    node = int(observation.victims[k])
    if left.noise[k] > left.error[k]:
        return Closedness(False, reason=f"node {node} reacts in round {round} to noise the view has not seen")
    others = np.abs(left.gradient[k].reshape(-1, V)).max(axis=0, initial=0.0)
    own, others[k] = others[k], 0.0
    if others.max(initial=0.0) > left.error[k]:
        sent = int(observation.victims[int(np.argmax(others))])
        return Closedness(False, reason=f"node {node} reacts in round {round} to node {sent} unseen")
    return Closedness(True, user_level_only=True) if own > left.error[k] else None
