"""The exact loss of averaging: noise once, then gossip, of which a view hears some messages.

Every message is a combination `m S` of the noise, with S the sizes of the noise of honest nodes, and `m` of the values
themselves. So with P the projector onto the row space of `M S`, M all that is heard and known columns removed,

    mu_u^2 = Delta_u^2 P_uu / sigma_u^2,     sum_u P_uu = rank M.

Where the weights W are the same in all rounds, split each walk at its last visit to the adversary: if all to whom it
listens are heard, the row space is that of `e_v^T W_a^t`, v heard and t below the number of rounds, with `W_a` the
weights without the adversary. Chebyshev gossip spans the same. Where weights change, rows are products of them.

That it is gossip of noisy values shows in the maps of every round (`RoundMaps`), which have been checked against what
runs.

Weights stand for the simple fractions next to them, and a diagonal for what is left of one; where some are next to
none, all are the binary fractions that are stored. Either way arithmetic is exact: `row_space`.

Shapes: N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.final_models import FinalModels
from sottovoce.core.sparsity import columns_touched
from sottovoce.privacy.observation import Observation, selected_messages
from sottovoce.privacy.row_space import SIMPLE, Block, Exact, TooLarge, meant, projector_bounds
from sottovoce.privacy.views import View
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, map_equal_steps
from sottovoce.tracing.round_maps import Combination

Floats = NDArray[np.float64]
Nodes = NDArray[np.intp]

EPS = float(np.finfo(float).eps)


class AveragingLoss(NamedTuple):
    """mu^2 of every victim, from above by what rounding is, or a bound where the view is too large for that.

    `rational` says whether weights are the simple fractions next to them.
    """

    squares: Floats
    exact: bool
    rational: bool


@once_for_each
@one_thread()
def averaging_loss(observation: Observation) -> AveragingLoss | None:
    """mu^2 of every victim of a view of averaging; None where messages are no gossip of values with their own noise."""
    system, view = observation.system, observation.view
    values = _values(system)
    if values is None:
        return None
    heard = _heard(system, view)
    powers = _spans_powers(system, view, heard)
    honest = np.setdiff1d(np.flatnonzero(values.entering), view.members)
    if np.any(values.noise[honest] == 0) or not (_is_gossip(system, values) or (powers and _is_recurrence(system))):
        return None
    touched, reached = _touched(system, heard)
    columns, entries, exact = np.intersect1d(honest, reached), np.zeros(system.n), True
    weights, rational = _weights(system, touched)
    if columns.size:
        sizes = np.abs(values.entering) * values.noise
        fractions = [Fraction(size) / Fraction(sizes.max()) for size in sizes[columns].tolist()]
        meant_by = meant if rational else Fraction
        starts = [Exact.near(rows[:, touched], meant_by) for rows in heard]
        blocks = _blocks(weights, starts, np.searchsorted(touched, columns), fractions, powers)
        try:
            entries[columns] = projector_bounds(blocks, len(columns))
        except TooLarge:
            entries[columns], exact = 1.0, False
    told = np.divide(system.steps[0].sensitivity, values.noise, out=np.zeros(system.n), where=values.noise > 0) ** 2
    return AveragingLoss((entries * told)[observation.victims], exact, rational)


# --- what runs -----------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """How each node's value enters, with its noise: zero where it does not; and that noise."""

    entering: Floats
    noise: Floats


def _values(system: LinearSystem) -> _Values | None:
    """The values that are averaged, if each enters once, with its own noise, and nodes say one number to all."""
    first, each = system.steps[0], dict.fromkeys(system.steps)
    if not system.algorithm.averaging or system.only_gradients or first.gradients != system.n:
        return None
    if any(step.noise_size or step.gradients for step in system.steps[1:]):
        return None
    if any(
        len(step.maps.sent) != 1 or np.any(step.sent[0].receiver != -1) or any(step.maps.edge_noise) for step in each
    ):
        return None
    if any(of.kind != "node" or np.any(np.diff(of.holders.indptr) != 1) for _, of in first.sources):
        return None
    if first.maps.deviation is None or not first.maps.released:
        return None
    entering = dict(first.maps.sent[0]).get(first.maps.gradient, np.zeros(system.n))
    return _Values(entering.astype(float), first.maps.deviation.astype(float))


def _said(system: LinearSystem) -> int | None:
    """The slot of the state that nodes say in every round but the first; None if they say anything else."""
    said = [step.maps.sent[0] for step in dict.fromkeys(system.steps[1:])]
    slots = {number for sent in said for number, _ in sent}
    plain = len(slots) < 2 and all(len(sent) == 1 and np.all(sent[0][1] == 1) for sent in said)
    return max(slots, default=0) if plain else None


def _is_gossip(system: LinearSystem, values: _Values) -> bool:
    """Whether nodes hold, and publish, the weighted sum of what they hear, or what they have if they hear nobody."""
    slot, published = _said(system), system.final_models is not FinalModels.NONE
    if slot is None:
        return False
    for t, step in enumerate(system.steps if published else system.steps[:-1]):
        maps, zeros = step.maps, np.zeros(system.n)
        held = dict(maps.models if t == system.rounds - 1 else maps.state_out[slot])
        mixed, kept = held.pop(maps.mixed(0), zeros), held.pop(slot, zeros)
        if t == 0:  # what is there before is public
            kept = np.where(values.entering == 0, 1 - mixed, 0.0)
            held = {number: share for number, share in held.items() if number >= maps.slots}
        silent = np.flatnonzero(mixed == 0)
        alone = step.mixings[0].weights[silent] != sparse.eye_array(system.n, format="csr")[silent]
        if held or np.any(mixed + kept != 1) or np.any(mixed * kept) or alone.nnz:
            return False
    return True


def _is_recurrence(system: LinearSystem) -> bool:
    """Whether `m' = a W m + b m + c m_before` for what all nodes say, a not zero; of models nothing is known then."""
    slot, before = _said(system), list[int]()
    if slot is None or system.final_models is not FinalModels.NONE:
        return False
    for t, step in enumerate(system.steps[:-1]):
        maps = step.maps
        shares = {k: v for k, v in maps.state_out[slot] if t or k >= maps.slots}
        known = {maps.mixed(0), slot, *before}
        if not shares.keys() <= known or any(np.ptp(share) for share in shares.values()):
            return False
        if len(step.sent[0].sender) != system.n or not np.all(shares.get(maps.mixed(0), 0)):
            return False
        before = [k for k, held in enumerate(maps.state_out) if _is_same(held, maps.sent[0])]
    return True


def _is_same(one: Combination, other: Combination) -> bool:
    return len(one) == len(other) and all(
        a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(one, other, strict=True)
    )


# --- what is heard -------------------------------------------------------------------------------------------------


def _heard(system: LinearSystem, view: View) -> list[sparse.csr_array]:
    """What a view gets in each round, as rows of what nodes hold before it; and last, final models."""
    n = system.n
    found = list(map_equal_steps(lambda step: _selected(step, view), system.steps))
    if system.final_models is FinalModels.AVERAGE:
        found.append(sparse.csr_array(np.full((1, n), 1 / n)))
    elif system.final_models is FinalModels.ALL:
        found.append(_selection(np.setdiff1d(np.arange(n), view.members), n))
    return found


def _selected(step: StepMatrices, view: View) -> sparse.csr_array:
    sent, mixing = step.sent[0], step.mixings[0]
    return selected_messages(sent._replace(rows=_selection(sent.sender, mixing.n)), mixing, view, False)


def _selection(rows: Nodes, n: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(rows)), rows, np.arange(len(rows) + 1)), shape=(len(rows), n))


def _touched(system: LinearSystem, heard: Sequence[sparse.csr_array]) -> tuple[Nodes, Nodes]:
    """Through whom anything goes that is heard, and whose values can have come into it, by structure."""
    now = ever = np.zeros(system.n, dtype=bool)
    for t in range(len(heard) - 1, -1, -1):
        now = now | columns_touched(heard[t])
        ever = ever | now
        if t:
            now = columns_touched(system.steps[t - 1].mixings[0].weights, now)
    return np.flatnonzero(ever), np.flatnonzero(now)


def _spans_powers(system: LinearSystem, view: View, heard: Sequence[sparse.csr_array]) -> bool:
    """Whether messages span the powers of the weights without the adversary, from what it hears in a round.

    That takes weights that do not change, and a view that gets all that its members hear from outside, or its sum.
    """
    messages, mixing, members = heard[: len(system.steps)], system.steps[0].mixings[0], list(view.members)
    if any(step.mixings[0] is not mixing for step in system.steps):
        return False
    if any(one.shape != messages[0].shape or (one != messages[0]).nnz for one in messages):
        return False
    outside = columns_touched(mixing.weights[members])
    outside[members] = False
    return view.secure_sum or bool(columns_touched(messages[0])[outside].all())


# --- rows as fractions ---------------------------------------------------------------------------------------------


def _blocks(
    weights: Sequence[Exact], starts: Sequence[Exact], columns: Nodes, sizes: Sequence[Fraction], powers: bool
) -> list[Block]:
    """The rows of all rounds about the values in some columns, in units of the largest noise.

    Of so many powers at most as many as there are columns add anything.
    """
    T, n = len(weights), weights[0].places.shape[0]
    powers = powers and starts[0].places.nnz > 0
    pick = _selection(columns, n)
    to_noise = Exact.of(sparse.csr_array(pick.T), sizes)
    each = [
        Block(start, (*(weights[s] for s in range(t - 1, -1, -1)), to_noise))
        for t, start in enumerate(starts)
        if start.places.nnz and (t in (0, T) or not powers)
    ]
    if not powers:
        return each
    step: tuple[Exact, ...] = (Exact.of(pick, [1 / size for size in sizes]), weights[0], to_noise)
    if len(set(sizes)) == 1:
        step = (Exact(weights[0].places[columns][:, columns], weights[0].values),)
    return [*each[:1], *[Block(None, step)] * min(T - 1, len(columns)), *each[1:]]


def _weights(system: LinearSystem, nodes: Nodes) -> tuple[list[Exact], bool]:
    """The weights of every round among some nodes, and whether they are simple fractions; else they are as stored."""
    mixings = [step.mixings[0] for step in system.steps]
    simple = {mixing: _simple_fractions(mixing.weights[nodes], nodes) for mixing in dict.fromkeys(mixings)}
    rational = None not in simple.values()
    each = {}
    for mixing, found in simple.items():
        rows = mixing.weights[nodes]
        whole = Exact.of(rows, found) if rational and found is not None else Exact.near(rows, Fraction)
        each[mixing] = Exact(whole.places[:, nodes], whole.values)
    return [each[mixing] for mixing in mixings], rational


def _simple_fractions(rows: sparse.csr_array, nodes: Nodes) -> list[Fraction] | None:
    """What is meant by each entry of some rows of W; None where some are next to no simple fraction.

    On the diagonal, what is left of one, if it is that.
    """
    counts = np.diff(rows.indptr)
    row, found = np.repeat(np.arange(len(nodes)), counts), [meant(value) for value in rows.data.tolist()]
    own, left = rows.indices == nodes[row], [Fraction(1)] * len(nodes)
    for place in np.flatnonzero(~own).tolist():
        left[row[place]] -= found[place]
    simple = True
    for place, i, is_own in zip(range(len(found)), row.tolist(), own.tolist(), strict=True):
        if is_own and abs(left[i] - Fraction(float(rows.data[place]))) <= 2 * int(counts[i]) * EPS:
            found[place] = left[i]
        else:
            simple = simple and found[place].denominator <= SIMPLE
    return found if simple else None
