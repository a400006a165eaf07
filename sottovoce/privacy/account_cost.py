"""What an account takes, estimated from sizes alone: how many nodes, rounds, messages and sources of noise there are.

Seconds are those of one core of 2020, where measured work took from a fifth of them to a tenth more than all of them;
policies of the absorption bound that settle early take from a tenth of them. They follow from public settings, so that
they may decide which figures a run reports.

Shapes: V victims, T rounds, N nodes, P messages that are seen in a round, R in all rounds, S noise sources of a round,
X state.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.core.limits import Cost
from sottovoce.core.memo import once_for_each
from sottovoce.core.mixing import Mixing
from sottovoce.core.participation import Participation
from sottovoce.core.threads import WORKERS
from sottovoce.privacy.absorption_policy import IN_CACHE, ITERATIONS, SWEEPS, Policy
from sottovoce.privacy.clipped_growth import AT_ONCE, LATE
from sottovoce.privacy.covering_views import hides_in_sums
from sottovoce.privacy.exact.reversible import ROWS
from sottovoce.privacy.exact.routes import FILTER_STATE, GRAM_ROWS
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.views import View, ViewKind
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

MULTIPLICATIONS = 3e9
"""Multiplications a second, in products of dense matrices."""

ROUND_SECONDS, COUPLING_SECONDS = 1e-4, 3e-5
"""Seconds that a round takes whatever its size, in an account and in one iteration of the absorption bound."""

LINK_SECONDS, NODE_SECONDS = 8e-10, 1.2e-8
"""Seconds for one victim and one weight of the graph, and for one victim and one node, in a round of an iteration."""

SEARCH, ROUND_SEARCH, ROUGH_SEARCH = 600, 3, 100
"""Multiplications for each entry of M in the search for the worst change, and for each entry and round of a change; and
for each entry where it may be rounded up."""

SPARSE_MULTIPLICATIONS, ENTRY_SECONDS, DEFLATION_MULTIPLICATIONS = 1e9, 1e-8, 1e10
"""For a basis of all noise: multiplications a second by sparse matrices, seconds for an entry of the state in a round,
and multiplications a second of its large dense products and factors."""

FILTER_MULTIPLICATIONS = 1.5e10
"""Multiplications a second by one filter for all rounds (`exact.reversible`), in large products of dense matrices."""


OPTIMISED_SECONDS = 20.0
"""Policies of the absorption bound are optimised where that takes no longer than this, and unless asked for are swept
elsewhere."""


def account_cost(
    system: LinearSystem,
    view: View,
    kinds: Sequence[Kind],
    scheme: Participation,
    victims: Sequence[int] | None = None,
    *,
    optimised: bool = False,
    rough: bool = False,
) -> Cost:
    """The account of one adversary by some kinds of proof; `rough` if the exact loss may be rounded up."""
    view.check(system.n)
    known, asked = _known_costs(system), (view, tuple(kinds), scheme, _count(system, victims), optimised, rough)
    if asked not in known:
        known[asked] = _account_cost(system, *asked)
    return known[asked]


@once_for_each
def _known_costs(system: LinearSystem) -> dict[tuple[View, tuple[Kind, ...], Participation, int, bool, bool], Cost]:
    """Costs that were estimated before: a run asks for those of all its adversaries, then each account for its own."""
    return {}


def _account_cost(
    system: LinearSystem, view: View, kinds: Sequence[Kind], scheme: Participation, V: int, optimised: bool, rough: bool
) -> Cost:
    T = system.rounds
    whole = Cost(memory=T * (200.0 + 24 * system.n), seconds=ROUND_SECONDS * T)
    if system.only_gradients:
        return whole
    if _takes_exact_loss(system, view, kinds):
        whole += (_rough_cost if rough and _has_filter(system, view) else _exact_cost)(system, view, V, scheme)
    if _is_coupled(system, view):
        alike = _sizes(system).alike and view.final_models is not FinalModels.ALL  # whoever sees models hears all
        if Kind.ANY_TRAINING in kinds and system.n * V <= AT_ONCE and not alike:
            late = _coupling_cost(system, V, scheme, min(LATE, T) ** 2 / 2 + T)
            whole += Cost(memory=64.0 * V * system.n, seconds=late.seconds)
        if Kind.CONVEX_TRAINING in kinds:
            whole += _policy_cost(system, V, scheme, policy_for(system, V, scheme, optimised=optimised))
    return whole


def policy_for(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> Policy:
    """Which policies of the absorption bound are affordable for so many victims."""
    affordable = _policy_cost(system, victims, scheme, Policy.OPTIMISED).seconds <= OPTIMISED_SECONDS
    return Policy.OPTIMISED if optimised or affordable else Policy.SWEPT


def _policy_cost(system: LinearSystem, V: int, scheme: Participation, policy: Policy) -> Cost:
    passes = 2 * ITERATIONS if policy is Policy.OPTIMISED else 2 * SWEEPS + 1
    at_once = min(V, max(1, IN_CACHE // system.n)) * WORKERS
    memory = 8.0 * (9 if policy is Policy.OPTIMISED else 5) * at_once * system.rounds * system.n
    return Cost(memory=memory, seconds=_coupling_cost(system, V, scheme, passes / 2 * system.rounds).seconds)


def _count(system: LinearSystem, victims: Sequence[int] | None) -> int:
    return system.n if victims is None else len(victims) if isinstance(victims, Sized) else 1


def _takes_exact_loss(system: LinearSystem, view: View, kinds: Sequence[Kind]) -> bool:
    """Whether the exact loss is computed: for its own kind, and for any training where the view may be closed.

    It is not where some node is not heard, whose own noise nobody else has, and where there is no noise at all.
    """
    sizes = _sizes(system)
    if not sizes.sources or _has_closed_form(system, view):
        return False
    if Kind.FIXED_STREAMS in kinds or Kind.AS_PUBLISHED in kinds:
        return True
    unheard = min(_seen(step, view) for step in sizes.steps) < system.n - len(view.members)
    return Kind.ANY_TRAINING in kinds and not (_is_coupled(system, view) and unheard)


class _Sizes(NamedTuple):
    """What no view changes: the rounds that differ, and the largest of their sizes; whether all rounds are alike, and
    all nodes have noise of one size; whether noise is added to gradients alone, and hides what a sum shows."""

    steps: tuple[StepMatrices, ...]
    sources: int
    state: int
    links: int
    alike: bool
    only_local_noise: bool
    hidden_in_sums: bool


@once_for_each
def _sizes(system: LinearSystem) -> _Sizes:
    steps = tuple(dict.fromkeys(system.steps))
    first, noise = steps[0].mixings[0], system.algorithm.noise
    local = noise.local(first)
    sizes = [term.matrix.diagonal() for term in local]
    return _Sizes(
        steps,
        sources=max(step.noise_size for step in steps),
        state=max(step.state_size for step in steps),
        links=max(int(step.split(step.state_out)[0].nnz) for step in steps),
        alike=len(steps) == 1 and all(size is not None and bool(np.all(size == size[0])) for size in sizes),
        only_local_noise=not system.algorithm.averaging and bool(local) and not noise.edge(first),
        hidden_in_sums=hides_in_sums(system),
    )


def _has_closed_form(system: LinearSystem, view: View) -> bool:
    """Whether the loss is that of all noisy gradients, or of one sum of them a round.

    The former where all is heard, and noise is added to gradients alone.
    """
    if _sizes(system).hidden_in_sums:
        return True
    return view.kind is ViewKind.EVERYONE and not view.secure_sum and _sizes(system).only_local_noise


def _is_coupled(system: LinearSystem, view: View) -> bool:
    """Whether the bounds by coupling may apply."""
    if _sizes(system).hidden_in_sums:
        return False
    return view.kind is ViewKind.COALITION and system.correlation is None and _sizes(system).only_local_noise


def _exact_cost(system: LinearSystem, view: View, V: int, scheme: Participation) -> Cost:
    """The exact loss, by the route that `exact.routes` takes, and the worst change of every victim."""
    T, (steps, S, X, links, *_) = system.rounds, _sizes(system)
    seen = _surprising if len(steps) == 1 and _is_coupled(system, view) else _seen
    P = max(seen(step, view) for step in steps)
    if len(steps) == 1 and _stand_alone(system, view, P):
        return Cost(memory=24.0 * V * T, seconds=V * T * scheme.count(T) / MULTIPLICATIONS)
    R = float(T * P) + (system.n if view.final_models is FinalModels.ALL else 1)
    if R <= GRAM_ROWS:
        memory, work = 24 * R**2, R**2 * X + R**3
    else:
        memory = 8 * (3.0 * min(X, FILTER_STATE) ** 2 + 12.0 * P * S)
        work = T * (2.0 * P * X**2 + 40.0 * links * X + P**3 / 3 + 1.0 * P**2 * S) + R * T * P * X
    M, changes = float(V * T**2), float(V * scheme.count(T) * (scheme.times or T) ** 2)
    work += 2 * M * R + changes * (SEARCH + ROUND_SEARCH * (scheme.times or T))
    found = Cost(memory=memory + min(24 * M, 24 * T**2 + 4e9), seconds=work / MULTIPLICATIONS)
    if P and _implies_messages(system, view):
        found += _deflation_cost(system, max(_seen(step, view) for step in steps))
    return found


def _implies_messages(system: LinearSystem, view: View) -> bool:
    """Whether messages of the last round follow from the models after it, so that noise is poorer than what is seen.

    They do where every node says the same to all, but for weights that cannot be inverted.
    """
    last = system.steps[-1].sent[0]
    return view.final_models is FinalModels.ALL and len(last.sender) == system.n and bool((last.receiver < 0).all())


def _deflation_cost(system: LinearSystem, P: int) -> Cost:
    """The orthonormal basis of all noise (`exact.deflation`), with every node as a victim, for P messages a round."""
    T, (_, S, X, links, *_) = system.rounds, _sizes(system)
    Z, G, last = float(T * S), float(T * system.n), float(system.n + P)
    seconds = T * (Z + G) * (links / SPARSE_MULTIPLICATIONS + X * ENTRY_SECONDS)
    work = (4 * Z + G) * last**2 + T * P * (T * P + 2 * last) * (2 * Z + G) + 10 * (T * P + last) * T * G
    return Cost(memory=80 * X * (Z + G), seconds=seconds + work / DEFLATION_MULTIPLICATIONS)


def _has_filter(system: LinearSystem, view: View) -> bool:
    """Whether one filter may serve all rounds, and takes less than another route."""
    step = system.steps[0]
    if len(_sizes(system).steps) > 1 or len(step.mixings) > 1 or not _is_coupled(system, view):
        return False
    if view.secure_sum or view.final_models is not FinalModels.NONE:
        return False
    P = _surprising(step, view)
    return not _stand_alone(system, view, P) and system.rounds * P <= ROWS and _is_symmetric(step)


@once_for_each
def _is_symmetric(step: StepMatrices) -> bool:
    weights = step.mixings[0].weights
    return bool((weights != weights.T).nnz == 0)


def _rough_cost(system: LinearSystem, view: View, V: int, scheme: Participation) -> Cost:
    """The exact loss, rounded up, by one filter for all rounds."""
    T, X, P = system.rounds, system.steps[0].state_size, _surprising(system.steps[0], view)
    R, K = float(T * P), 1.5 * P + 60
    work = 4.0 * V * T * (P + T) * (P + K) + R**2 * (8 * P + 250) + 4.0 * R * _sizes(system).links
    work += ROUGH_SEARCH * float(V * scheme.count(T) * (scheme.times or T) ** 2)
    return Cost(memory=WORKERS * (4 * R**2 + 8.0 * R * X + 1e8), seconds=work / FILTER_MULTIPLICATIONS)


def _stand_alone(system: LinearSystem, view: View, left: int) -> bool:
    """Whether what is new in a round is all that it tells, since states before it follow from what was heard.

    They do where no message is `left` that hears somebody unheard, and where sums show states that are all equal.
    """
    step = system.steps[0]
    if view.final_models is not FinalModels.NONE or view.kind is not ViewKind.COALITION or len(step.mixings) > 1:
        return False
    if _is_coupled(system, view) and not view.secure_sum:
        return left == 0
    weights = step.mixings[0].weights
    alike = weights.nnz == system.n**2 and bool(np.all(weights.data == weights.data[0]))
    return alike and len(view.members) == 1 and _sizes(system).only_local_noise


def _seen(step: StepMatrices, view: View) -> int:
    """About how many messages of a round an adversary sees."""
    count, members = 0, np.asarray(view.members, dtype=np.intp)
    for sent, mixing in zip(step.sent, step.mixings, strict=True):
        if view.kind is ViewKind.COALITION:
            count += int(np.diff(mixing.weights.indptr)[members].sum())
        else:
            count += len(view.edges) if view.kind is ViewKind.EAVESDROPPER else sent.rows.shape[0]
    return count


def _surprising(step: StepMatrices, view: View) -> int:
    """About how many messages are left when what follows from earlier ones is taken off (`exact.elimination`).

    What a node says follows from what all its neighbours said before, up to its own step: those are left that hear
    somebody whom the adversary does not.
    """
    if len(step.mixings) > 1 or view.secure_sum:
        return _seen(step, view)
    if view.members not in (known := _known_surprises(step)):
        known[view.members] = _hearing_others(step.mixings[0], np.asarray(view.members, dtype=np.intp))
    return known[view.members]


@once_for_each
def _known_surprises(step: StepMatrices) -> dict[tuple[int, ...], int]:
    """What was counted before, by members: these are asked about with and without final models."""
    return {}


def _hearing_others(mixing: Mixing, members: NDArray[np.intp]) -> int:
    """How many of those whom members hear hear somebody else."""
    weights = mixing.weights
    heard = np.zeros(mixing.n, dtype=bool)
    heard[weights.indices[_entries(weights.indptr, members)[0]]] = True
    unheard = ~heard
    unheard[members] = False
    entries, rows = _entries(weights.indptr, np.flatnonzero(heard))
    return len(set(rows[unheard[weights.indices[entries]] & (weights.data[entries] != 0)].tolist()))


def _entries(indptr: NDArray[np.integer], rows: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.integer]]:
    """Where the entries of some rows of a sparse matrix are, and the row of each."""
    counts = indptr[rows + 1] - indptr[rows]
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(indptr[rows] - ends + counts, counts), np.repeat(
        rows, counts
    )


def _coupling_cost(system: LinearSystem, V: int, scheme: Participation, rounds: float) -> Cost:
    """So many rounds of the coupling for each pattern of participation, and what is carried in all rounds of one."""
    each = COUPLING_SECONDS + V * (LINK_SECONDS * _sizes(system).links + NODE_SECONDS * system.n)
    return Cost(memory=48.0 * V * system.rounds * system.n, seconds=scheme.count(system.rounds) * rounds * each)
