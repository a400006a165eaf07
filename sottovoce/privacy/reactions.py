"""What nodes can react to: which gradients reach a view, and whether the states that nodes react from follow from
what it has just seen.

Structure decides: a weight counts unless it is stored as zero, however small it is, because a node may amplify what it
receives. So a state follows from observations if some combination of them equals it entry by entry, up to the rounding
of the very terms that make up the entry.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.mixing import Mixing
from sottovoce.core.sparsity import columns_touched, rows_touching
from sottovoce.privacy.observation import Inputs, Observation, ObservedStep
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

ROUNDING = 1e-13
"""Share of the terms of an entry below which a difference is rounding."""

SMALL = 4_000_000
"""Largest number of entries of a round's rows for a dense check."""


@once_for_each
def open_by_steps(observation: Observation) -> int | None:
    """The first honest node whose state after a round is no combination of what was just seen, if there is one.

    Nor of what was just seen and of states before the round that are known in turn: they began in public.
    """
    victims = set(observation.victims.tolist())
    for step in dict.fromkeys(observation.steps[:-1]):
        missing = _not_combined(step)
        nodes = np.unique(np.flatnonzero(missing) % observation.system.n)
        found = next((int(node) for node in nodes if int(node) in victims), None)
        if found is not None:
            return None if _known_throughout(observation, observation.victims) else found
    return None


@once_for_each
def knows_every_state(observation: Observation) -> bool:
    """Whether a view knows the states of all nodes before every round, from what it has seen: then rounds stand alone.

    False, too, where that cannot be shown.
    """
    steps = observation.distinct_steps
    if any(_holds_more(_fresh(step.out), _fresh(step.observed)).any() for step in steps):
        return False
    return _known_throughout(observation, np.arange(observation.system.n))


def nothing_fresh(rows: Inputs, seen: Inputs) -> bool:
    """Whether what is fresh in some rows of a round, gradients and noise, is a combination of that in others."""
    if _holds_more(rows.gradient, seen.gradient).any() or _holds_more(rows.noise, seen.noise).any():
        return False
    return not _differs_from_all(_fresh(rows), _fresh(seen)).any()


def _fresh(parts: Inputs) -> sparse.csr_array:
    """Gradients and noise of rows, without states."""
    return sparse.csr_array(sparse.hstack([parts.gradient, parts.noise], format="csr"))


def _known_throughout(observation: Observation, nodes: NDArray[np.intp]) -> bool:
    """Whether all states of these nodes follow, round after round, from what was seen and from such states before.

    So do those in the largest set of components of the state in which each goes on from others of the set, and what is
    new in it is a combination of what is new in observations that hold no other state. It is sought from above.
    """
    steps = observation.distinct_steps
    X = steps[0].out.state.shape[0]
    if any(step.out.state.shape != (X, X) or _entries(step) > SMALL for step in steps):
        return len(nodes) == 0
    asked = np.isin(np.arange(X) % observation.system.n, nodes)
    known, before = np.ones(X, dtype=bool), np.zeros(X, dtype=bool)
    for step in steps:
        known &= ~_holds_more(_fresh(step.out), _fresh(step.observed))
    while known[asked].all() and not np.array_equal(known, before):
        before = known
        for step in steps:
            known = known & ~rows_touching(step.out.state, ~known) & ~_new_and_unseen(step, known)
    return bool(known[asked].all())


def _entries(step: ObservedStep) -> int:
    fresh = step.observed.gradient.shape[1] + step.observed.noise.shape[1]
    return int((step.out.state.shape[0] + step.observed.state.shape[0]) * fresh)


def _new_and_unseen(step: ObservedStep, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """In which components what is new is no combination of what is new in observations of known states."""
    usable = np.flatnonzero(~rows_touching(step.observed.state, ~known))
    return _differs_from_all(_fresh(step.out), _fresh(step.observed)[usable])


def _differs_from_all(wanted: sparse.csr_array, rows: sparse.csr_array) -> NDArray[np.bool_]:
    """Which wanted rows are no combination of others, the one of least squares."""
    fitted = np.zeros((wanted.shape[0], 0))
    if rows.shape[0]:
        fitted = np.linalg.lstsq(rows.toarray().T, wanted.toarray().T, rcond=1e-12)[0].T
    return _differs(wanted, sparse.csr_array(fitted), rows)


@once_for_each
def _not_combined(step: ObservedStep) -> NDArray[np.bool_]:
    """Which components of the state after a round no combination of its observations gives."""
    rows, out = _joined(step.observed), _joined(step.out)
    missing = _holds_more(out, rows)
    some = np.flatnonzero(~missing)
    left = out[some]
    open_ = np.ones(len(some), dtype=bool)
    for combination in _combinations(step, rows, left, step.out.state[some]) if some.size else ():
        open_ &= _differs(left, combination, rows)
        if not open_.any():
            break
    missing[some] = open_
    return missing


def _holds_more(wanted: sparse.csr_array, rows: sparse.csr_array) -> NDArray[np.bool_]:
    """Which wanted rows have an entry in a column where all rows have none: no combination gives these."""
    return rows_touching(wanted, ~columns_touched(rows))


def _joined(parts: Inputs) -> sparse.csr_array:
    return sparse.hstack(parts, format="csr")


def _combinations(
    step: ObservedStep, rows: sparse.csr_array, out: sparse.csr_array, state_out: sparse.csr_array
) -> Iterator[sparse.csr_array]:
    """Candidates: by observations that show one component each; in small systems by least squares, small parts left out
    or not.
    """
    shown = np.flatnonzero(np.diff(step.observed.state.indptr) == 1)
    state = step.observed.state[shown]
    components, first = np.unique(state.indices, return_index=True)
    shares = state_out.tocsc()[:, components] @ sparse.diags_array(1 / state.data[first])
    place = (np.ones(len(first)), (np.arange(len(first)), shown[first]))
    yield sparse.csr_array(shares @ sparse.csr_array(place, shape=(len(first), rows.shape[0])))
    if 0 < rows.shape[0] * rows.shape[1] <= SMALL:
        fitted = np.linalg.lstsq(rows.toarray().T, out.toarray().T, rcond=1e-12)[0].T
        large = np.abs(fitted) > 1e-12 * np.abs(fitted).max(axis=1, keepdims=True, initial=0.0)
        yield sparse.csr_array(np.where(large, fitted, 0.0))
        yield sparse.csr_array(fitted)


def _differs(wanted: sparse.csr_array, combination: sparse.csr_array, rows: sparse.csr_array) -> NDArray[np.bool_]:
    """Which wanted rows are not what the combination gives, entry by entry."""
    difference = abs(sparse.csr_array(wanted - combination @ rows))
    terms = sparse.csr_array(abs(wanted) + abs(combination) @ abs(rows))
    return np.diff(sparse.csr_array((difference - ROUNDING * terms) > 0).indptr) > 0


# --- which gradients reach a view ------------------------------------------------------------------------------------


@once_for_each
def reaching_gradients(observation: Observation) -> NDArray[np.bool_]:
    """Which (gradient round, victim) reach the view, directly or through another's query point: by the graph alone.

    What reaches it is followed back in time, as a set of components of the state: those that a message of the view
    holds, those that such a component is made of, and those that a node takes a gradient from which reaches the view.
    So the set has all that an observation can depend on, for any model and any reaction.
    """
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


# --- how small a share weights leave ---------------------------------------------------------------------------------

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
