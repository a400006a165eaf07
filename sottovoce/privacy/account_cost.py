"""What an account takes, estimated from sizes alone: how many nodes, rounds, messages and sources of noise there are.

Seconds are those of one core of 2020, where work of more than a few seconds took from a third of them to three times
as many. They follow from public settings, so that they may decide which figures a run reports.

Shapes: V victims, T rounds, N nodes, P messages that are seen in a round, R in all rounds, S noise sources of a round,
X state.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.core.mixing import Mixing
from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption import may_couple
from sottovoce.privacy.absorption_policy import IN_CACHE, ITERATIONS, SWEEPS, Policy
from sottovoce.privacy.clipped_growth import AT_ONCE, LATE
from sottovoce.privacy.closedness import may_be_closed
from sottovoce.privacy.covering_views import hides_in_sums
from sottovoce.privacy.exact.reversible import ROWS
from sottovoce.privacy.exact.stationary import ETA
from sottovoce.privacy.exact.work import (
    Route,
    Sizes,
    carrying_work,
    conjugate_work,
    filter_work,
    goes_with_others,
    gram_work,
    is_small,
    products_work,
    route_of,
    search_work,
    weighing_work,
)
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.limits import Cost
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import WORKERS
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

MULTIPLICATIONS, PRODUCTS = 3e9, 1.5e10
"""Multiplications a second: of many small things, and in large products of dense matrices."""

ROUND_SECONDS, COUPLING_SECONDS = 1e-4, 3e-5
"""Seconds that a round takes whatever its size, in an account and in one iteration of the absorption bound."""

LINK_SECONDS, NODE_SECONDS = 8e-10, 1.2e-8
"""Seconds for one victim and one weight of the graph, and for one victim and one node, in a round of an iteration."""

ROUGH_SEARCH = 100
"""Multiplications for each entry of M in the search for a worst change that may be rounded up."""

ADVERSARY_SECONDS, ABOUT_NODE_SECONDS = 1e-3, 1.6e-5
"""For each adversary that is accounted for, and for each of its victims and each kind, whatever else they take."""

ASKED_SECONDS = 5.0
"""Whether a view is closed is asked where the exact loss, which is computed then, takes longer than this."""

USUAL_SHARE = 0.15
"""The share of the most iterations after which policies have usually settled."""

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
    T, each = system.rounds, ADVERSARY_SECONDS + ABOUT_NODE_SECONDS * V * len(kinds)
    whole = Cost(memory=T * (200.0 + 24 * system.n), seconds=ROUND_SECONDS * T + each)
    if system.only_gradients:
        return whole
    if _has_exact_loss(system, view):
        exact = (_rough_cost if rough and _has_filter(system, view) else _exact_cost)(system, view, V, scheme)
        whole += exact if _takes_exact_loss(system, view, kinds, exact) else Cost()
    coupled = Cost()
    alike = _sizes(system).alike and view.final_models is not FinalModels.ALL  # whoever sees models hears all
    if Kind.ANY_TRAINING in kinds and system.n * V <= AT_ONCE and not alike:
        late = _coupling_cost(system, V, scheme, min(LATE, T) ** 2 / 2 + T)
        coupled += Cost(memory=64.0 * V * system.n, seconds=late.seconds)
    if Kind.CONVEX_TRAINING in kinds:
        policy = policy_for(system, V, scheme, optimised=optimised)
        most = _most_policy_cost(system, V, scheme, policy)
        share = USUAL_SHARE if policy is Policy.OPTIMISED else 1.0
        coupled += Cost(memory=most.memory, seconds=share * most.seconds)
    return whole + coupled if coupled.seconds and may_couple(system, view) else whole


def policy_for(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> Policy:
    """Which policies of the absorption bound are affordable for so many victims."""
    affordable = _most_policy_cost(system, victims, scheme, Policy.OPTIMISED).seconds <= OPTIMISED_SECONDS
    return Policy.OPTIMISED if optimised or affordable else Policy.SWEPT


def _most_policy_cost(system: LinearSystem, V: int, scheme: Participation, policy: Policy) -> Cost:
    """What policies take that settle after the most iterations."""
    passes = 2 * ITERATIONS if policy is Policy.OPTIMISED else 2 * SWEEPS + 1
    at_once = min(V, max(1, IN_CACHE // system.n)) * WORKERS
    memory = 8.0 * (9 if policy is Policy.OPTIMISED else 5) * at_once * system.rounds * system.n
    return Cost(memory=memory, seconds=_coupling_cost(system, V, scheme, passes / 2 * system.rounds).seconds)


def _count(system: LinearSystem, victims: Sequence[int] | None) -> int:
    return system.n if victims is None else len(victims) if isinstance(victims, Sized) else 1


def _has_exact_loss(system: LinearSystem, view: View) -> bool:
    """Whether an exact loss has to be sought: there is noise, and no closed form."""
    return bool(_sizes(system).sources) and not _has_closed_form(system, view)


def _takes_exact_loss(system: LinearSystem, view: View, kinds: Sequence[Kind], exact: Cost) -> bool:
    """Whether the exact loss is computed, which costs so much: for its own kind, and for any training where the view
    may be closed.

    It is not where some node is not heard, whose own noise nobody else has.
    """
    if Kind.FIXED_STREAMS in kinds or Kind.AS_PUBLISHED in kinds:
        return True
    if Kind.ANY_TRAINING not in kinds or system.algorithm.averaging:
        return False
    unheard = min(_seen(step, view) for step in _sizes(system).steps) < system.n - len(view.members)
    if _adds_noise_to_gradients(system, view) and unheard:
        return False
    return exact.seconds <= ASKED_SECONDS or may_be_closed(system, view)


class _Sizes(NamedTuple):
    """What no view changes: the rounds that differ, and the largest of their sizes; whether all rounds are alike, and
    all nodes have noise of one size; whether noise is added to gradients alone, and hides what a sum shows."""

    steps: tuple[StepMatrices, ...]
    sources: int
    state: int
    links: int
    gradient_rounds: int
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
        gradient_rounds=sum(bool(step.gradients) for step in system.steps),
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


def _adds_noise_to_gradients(system: LinearSystem, view: View) -> bool:
    """Whether nodes hear states to which noise was added before they were sent, and fresh noise in every round."""
    if _sizes(system).hidden_in_sums:
        return False
    return view.kind is ViewKind.COALITION and system.correlation is None and _sizes(system).only_local_noise


def _exact_cost(system: LinearSystem, view: View, V: int, scheme: Participation) -> Cost:
    """The exact loss, by the route that `exact.routes` takes, and the worst change of every victim."""
    heard = _heard_sizes(system, view, V)
    left = _sizes_left(system, view, heard)
    T, G, steps = left.rounds, left.gradient_rounds, _sizes(system).steps
    if _stand_alone(system, view, left.rows):
        return Cost(memory=24.0 * V * T, seconds=V * T * scheme.count(T) / MULTIPLICATIONS)
    sought = (scheme.times or G, scheme.count(T) * V)
    found = _route_cost(system, heard, left, scheme)
    found += Cost(memory=min(24.0 * V * G**2, 24.0 * G**2 + 4e9), seconds=search_work(sought[1], sought[0]) / PRODUCTS)
    if left.rows > _published(system, view) and _implies_messages(system, view):
        found += _deflation_cost(system, max(_seen(step, view) for step in steps))
    return found


def _heard_sizes(system: LinearSystem, view: View, V: int) -> Sizes:
    """About how large a view is, as it is observed."""
    T, sizes, correlated = system.rounds, _sizes(system), system.correlation is not None
    published = _published(system, view)
    return Sizes(
        rounds=T, gradient_rounds=sizes.gradient_rounds,
        rows=T * max(_seen(step, view) for step in sizes.steps) + published,
        state=sizes.state, links=sizes.links, sources=sizes.sources, victims=V,
        alike=len(sizes.steps) == 1 and not published and not correlated, correlated=correlated,
    )  # fmt: skip


def _published(system: LinearSystem, view: View) -> int:
    """How many models, or averages of them, a view sees after the last round."""
    return {FinalModels.NONE: 0, FinalModels.AVERAGE: 1, FinalModels.ALL: system.n}[view.final_models]


def _sizes_left(system: LinearSystem, view: View, heard: Sizes) -> Sizes:
    """About what is left of a view when known messages are eliminated, as they are unless it is small."""
    steps = _sizes(system).steps
    if len(steps) > 1 or not _adds_noise_to_gradients(system, view):
        return heard
    eliminated = system.rounds * (_seen(steps[0], view) - _surprising(steps[0], view))
    left = heard._replace(rows=heard.rows - eliminated)
    return heard if is_small(heard) and left.rows else left


def _route_cost(system: LinearSystem, heard: Sizes, left: Sizes, scheme: Participation) -> Cost:
    """M of all victims."""
    route, apart, R = route_of(left), 1 if scheme.times is None else scheme.apart, float(left.rows)
    if route is Route.NOTHING:
        return Cost()
    if route is Route.CONJUGATE:
        return Cost(memory=24.0 * R * left.gradient_rounds, seconds=conjugate_work(left) / PRODUCTS)
    if route is Route.GRAM:
        turns_back = left.alike and len(system.steps[0].mixings) == 1 and _is_symmetric(system.steps[0])
        return Cost(memory=24 * R**2, seconds=gram_work(left, ETA, turns_back) / PRODUCTS)
    P, X = R / left.rounds, left.state
    together = is_small(heard) and goes_with_others(left, apart)
    work = carrying_work(left, apart) if together else weighing_work(left) + products_work(left)
    return Cost(memory=8 * (3.0 * X**2 + 12.0 * P * left.sources), seconds=(filter_work(left) + work) / PRODUCTS)


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
    if len(_sizes(system).steps) > 1 or len(step.mixings) > 1 or not _adds_noise_to_gradients(system, view):
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
    step, published = system.steps[0], view.final_models is not FinalModels.NONE
    if published or view.kind is not ViewKind.COALITION or len(step.mixings) > 1 or len(_sizes(system).steps) > 1:
        return False
    if _adds_noise_to_gradients(system, view) and not view.secure_sum:
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
