"""The absorption bound: what a node or a coalition can learn when honest local steps do not drive models apart.

Couple the run on a victim's data with the run on other data. `p[k]` bounds how far node k's two states are apart after
its local step. Each node's own fresh noise absorbs a part `a` of that, at a cost; the rest travels on.

    p = 0;  each round:  p[u] += r[u];  absorb 0 <= a <= p, all of it at nodes that are heard
            cost += sum (a / d)^2;  p = |W| (p - a)                       mu^2 = cost

in units of eta Delta, eta the longest step, Delta the largest sensitivity of a node, r[u] how far the victim's own data
moves its step, d the size of a node's fresh noise. It holds for every choice of `a`, which is called a policy;
`absorption_policy` looks for one that costs little. Here is what a round is to the coupling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.core.final_models import FinalModels
from sottovoce.core.grid import grid_step, least_noise
from sottovoce.core.sensitivity import relative
from sottovoce.core.sparsity import columns_touched
from sottovoce.errors import Unaccountable
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.memo import once_for_each
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, map_equal_steps

Array = NDArray[np.float64]

PLAIN_NOISE = "use dp-d-sgd, for example"
"""Where noise or messages are such that the bound is not proven: an algorithm for which it is."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """One round for the coupling: who absorbs how cheaply, who must, and what travels on.

    Lengths are in units of the longest step of all rounds times Delta; `scale` is the longest of this round, and
    `fresh[w]` is the size of w's own new noise (0: it cannot absorb), `must_absorb[w]` says that w is heard before it
    adds noise again, `jump[w]` is how far a change of w's data moves its step, 0 if it takes none, `transition` is the
    matrix of weights. Of secure sums, and of a published average, nobody must absorb all: `summed @ q` is what sums
    that are seen make nodes absorb of what travels on, and `left @ q` is what they leave.
    """

    honest: NDArray[np.bool_]
    fresh: Array
    must_absorb: NDArray[np.bool_]
    jump: Array
    scale: float
    transition: sparse.csr_array
    summed: sparse.csr_array | None = None
    left: sparse.csr_array | None = None

    @cached_property
    def transfer(self) -> sparse.csr_array:
        """The matrix of absolute weights among honest nodes, by which what is not absorbed travels on."""
        keep = sparse.diags_array(self.honest.astype(float))
        absolute = sparse.csr_array(keep @ abs(self.transition) @ keep)
        return absolute if self.left is None else sparse.csr_array(absolute @ self.left)

    @cached_property
    def takes(self) -> NDArray[np.bool_]:
        """Which nodes step at all."""
        return self.jump > 0

    @cached_property
    def transfer_back(self) -> sparse.csr_array:
        """The transpose of `transfer`."""
        return sparse.csr_array(self.transfer.T)


def couple(system: LinearSystem, view: View) -> tuple[Coupling, ...]:
    """The rounds of a system as the coupling sees them; refuses what the bound is not proven for."""
    local = steps_to_couple(system, view)
    steps = system.publishing(view.final_models).steps
    return map_equal_steps(lambda step: _couple_step(system.n, local[step], view), steps)


def steps_to_couple(system: LinearSystem, view: View) -> dict[StepMatrices, _LocalSteps]:
    """The rounds that differ; refuses what the bound is not proven for, as far as no sums are looked at."""
    if view.kind is not ViewKind.COALITION:
        raise Unaccountable(
            f"it bounds what single nodes and coalitions learn, and the view is {view}; take the view node:0, for "
            "example"
        )
    if system.correlation is not None:
        raise Unaccountable(
            f"{system.algorithm.name}: noise that is correlated over rounds is not fresh, so it cannot absorb a "
            f"difference; {PLAIN_NOISE}"
        )
    return _local_steps(system.publishing(view.final_models))


def rounding_is_bounded(system: LinearSystem) -> bool:
    """Whether `rounding_cost` is proven: one gossip step of single messages on a grid, with weights that sum to 1."""
    algorithm = system.algorithm
    plain = algorithm.exact_noise is True and algorithm.gossip_steps == 1 and not algorithm.secure_sum
    return plain and all(mixing.row_stochastic for step in dict.fromkeys(system.steps) for mixing in step.mixings)


def rounding_cost(system: LinearSystem) -> float:
    """What rounding models to the grid of messages would add to mu, over the square root of the number of parameters.

    Distances grow by 2 h sqrt(D) in a round, which every node absorbs in the next one: docs/guarantees.md.
    """
    algorithm, mixing = system.algorithm, system.topology.at(0)
    steps = grid_step(algorithm, mixing) / least_noise(algorithm, mixing)
    return 2 * steps * math.sqrt(system.n * system.rounds) * (1 + 1e-12)


@dataclass(frozen=True)
class _LocalSteps:
    """A round as it is for every view: its messages, without published models; what nodes add to their states before
    they send them; the longest step; how states travel on; and of which states published models are made."""

    step: StepMatrices
    fresh: Array
    jump: Array
    scale: float
    transition: sparse.csr_array
    models: sparse.csr_array | None


@once_for_each
def _local_steps(system: LinearSystem) -> dict[StepMatrices, _LocalSteps]:
    """Of every round that differs; refuses what the bound is not proven for."""
    published = None if system.final_models is FinalModels.NONE else system.steps[-1]
    found = {step: _local_step(system, step, step is published) for step in dict.fromkeys(system.steps)}
    longest = max(one.scale for one in found.values()) or 1e-300
    return {
        step: replace(one, fresh=one.fresh / longest, jump=one.jump / longest, scale=one.scale / longest or 1.0)
        for step, one in found.items()
    }


def _local_step(system: LinearSystem, step: StepMatrices, publishes: bool) -> _LocalSteps:
    n, name = system.n, system.algorithm.name
    if publishes:
        models = step.split(step.sent[-1].rows)
        step = replace(step, sent=step.sent[:-1], mixings=step.mixings[:-1])
    if step.state_size != n or step.state_out.shape[0] != n or step.gradients != n:
        raise Unaccountable(
            f"{name}: the absorption bound needs one model per node and a gradient in every round; {PLAIN_NOISE}"
        )
    transition, gradient, noise = step.split(step.state_out)
    sent, sent_gradient, sent_noise = step.split(_states_sent(step, n))
    eta = -sent_gradient.diagonal()
    fresh = _own_noise(step, sent_noise, n)
    takes = eta != 0
    scale = sparse.diags_array(eta)
    ok = (
        step.maps.released
        and _close(sent, sparse.eye_array(n))
        and _close(sent_gradient, -scale)
        and _close(gradient, -(transition @ scale))
        and _close(noise, transition @ sent_noise)
    )
    for later in step.sent[1:]:
        kept, kept_gradient, kept_noise = step.split(later.rows)
        ok = ok and _close(kept_gradient, -(kept @ scale)) and _close(kept_noise, kept @ sent_noise)
    if not ok:
        raise Unaccountable(
            f"{name}: the absorption bound needs a local step with fresh own noise, then gossip; {PLAIN_NOISE}"
        )
    own = relative(step.sensitivity)
    shares = np.ones(n) if own is None else own
    steps = np.abs(eta[takes]) / shares[takes]
    size = steps.max(initial=0.0)
    if takes.any() and not np.allclose(steps, size):
        raise Unaccountable(f"{name}: the absorption bound needs one step size for all nodes; {PLAIN_NOISE}")
    made_of = _made_of_states(name, models, scale, sent_noise) if publishes else None
    return _LocalSteps(step, fresh, np.where(takes, size * shares, 0.0), size, transition, made_of)


def _couple_step(n: int, local: _LocalSteps, view: View) -> Coupling:
    if view.secure_sum and len(local.step.mixings) > 1:
        raise Unaccountable("the absorption bound with secure summation is for one gossip step per gradient; take one")
    honest = np.ones(n, dtype=bool)
    honest[list(view.members)] = False
    must, sums = _seen_apart_and_summed(local.step, view, local.models)
    must &= honest
    free, jump = honest & ~must, np.where(honest, local.jump, 0.0)
    summed = left = None
    if sums and free.any():
        summed, left = _projections(sparse.csr_array(sparse.vstack(sums)), free, local.fresh)
    return Coupling(honest, local.fresh, must, jump, local.scale, local.transition, summed, left)


def _seen_apart_and_summed(
    step: StepMatrices, view: View, published: sparse.csr_array | None
) -> tuple[NDArray[np.bool_], list[sparse.csr_array]]:
    """Whose states are seen one by one, and of which combinations only the value is seen."""
    members = np.asarray(view.members, dtype=np.intp)
    apart, sums = np.zeros(step.mixings[0].n, dtype=bool), []
    if view.secure_sum:
        sums.append(step.mixings[0].weights[members])
    else:
        apart |= _heard_nodes(step, members)
    if published is not None and view.final_models is FinalModels.ALL:
        apart |= np.diff(published.tocsc().indptr) > 0
    elif published is not None:
        sums.append(published)
    return apart, sums


def _made_of_states(
    name: str, models: tuple[sparse.csr_array, ...], scale: sparse.sparray, sent_noise: sparse.csr_array
) -> sparse.csr_array:
    """Published models as combinations of the states that nodes had after their last local step."""
    state, gradient, noise = models
    if not (_close(gradient, -(state @ scale)) and _close(noise, state @ sent_noise)):
        raise Unaccountable(f"{name}: the absorption bound needs final models that follow from the last states")
    return state


def _projections(
    sums: sparse.csr_array, free: NDArray[np.bool_], fresh: Array
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """What sums H y make nodes absorb, and what stays: absolute values of `D P D^-1` and of the rest.

    P projects on the rows of H D. Each row is scaled to one, so that a sum over nodes with little noise is not lost
    beside others. A direction more than the rows have would be absorbed in vain, one less would be too little.
    """
    near = np.flatnonzero(np.asarray((sums != 0).sum(axis=0)).ravel() * free)
    H = sums.tocsc()[:, near].toarray()
    if np.any(fresh[near] == 0):
        raise Unaccountable("sums over nodes without noise of their own")
    rows = H * fresh[near]
    sizes = np.linalg.norm(rows, axis=1)
    n, index = len(free), np.ix_(near, near)
    absorbed, left = np.zeros((n, n)), np.eye(n)
    if sizes.any():
        basis, pivots, _ = linalg.qr((rows[sizes > 0] / sizes[sizes > 0, None]).T, mode="economic", pivoting=True)
        kept = np.abs(np.diag(pivots)) > 4 * max(rows.shape) * np.finfo(float).eps
        P = basis[:, kept] @ basis[:, kept].T
        ratio = fresh[near][:, None] / fresh[near]
        absorbed[index], left[index] = np.abs(ratio * P), np.abs(ratio * (np.eye(len(near)) - P))
    return sparse.csr_array(absorbed), sparse.csr_array(left)


def _states_sent(step: StepMatrices, n: int) -> sparse.csr_array:
    """Every node's state after its local step, from what it says in the first gossip step."""
    sender, receiver, rows = step.sent[0]
    if not np.all(receiver == -1) or np.any(sender < 0):
        raise Unaccountable(
            f"nodes send different messages to their neighbours; the absorption bound needs one for all; {PLAIN_NOISE}"
        )
    place = sparse.csr_array((np.ones(len(sender)), (sender, np.arange(len(sender)))), shape=(n, len(sender)))
    sent = sparse.csr_array(place @ rows)
    silent = np.setdiff1d(np.arange(n), sender)
    if not silent.size:
        return sent
    # who speaks to nobody keeps its state, which is read from where its own weight leads, or its step leads nowhere
    weights = step.mixings[0].weights
    lost = np.diff(weights.tocsc().indptr)[silent] == 0
    if len(step.mixings) > 1 or not np.allclose(weights.diagonal()[silent[~lost]], 1.0):
        raise Unaccountable("the absorption bound needs every node to be heard, to be isolated or to be overwritten")
    kept, gone = (np.isin(np.arange(n), some).astype(float) for some in (silent[~lost], silent[lost]))
    as_before = sparse.eye_array(n, step.state_out.shape[1])
    return sparse.csr_array(sent + sparse.diags_array(kept) @ step.state_out + sparse.diags_array(gone) @ as_before)


def _own_noise(step: StepMatrices, sent_noise: sparse.csr_array, n: int) -> Array:
    """The size of each node's fresh noise; refused where a source reaches two nodes."""
    if any(number != 0 or sources.kind != "node" for number, sources in step.sources):
        raise Unaccountable(f"the absorption bound needs noise that each node draws on its own; {PLAIN_NOISE}")
    if sent_noise.nnz and (np.diff(sent_noise.tocsc().indptr) > 1).any():
        raise Unaccountable(f"the absorption bound needs noise that reaches one node first; {PLAIN_NOISE}")
    return np.sqrt(np.asarray(sent_noise.multiply(sent_noise).sum(axis=1)).ravel())


def _close(a: sparse.sparray, b: sparse.sparray) -> bool:
    """Equal but for rounding. A column is one node's, or one source's, and their sizes may be far apart."""
    a, b = sparse.csc_array(a), sparse.csc_array(b)
    gap = abs(a - b).max(axis=0).toarray()
    return bool(np.all(gap <= 1e-12 * np.maximum(abs(a).max(axis=0).toarray(), abs(b).max(axis=0).toarray())))


def _heard_nodes(step: StepMatrices, members: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Nodes whose state a member hears in this round, directly or within the round's further gossip steps."""
    reach = np.zeros(step.mixings[0].n, dtype=bool)
    hearing = reach.copy()
    hearing[members] = True
    for mixing in reversed(step.mixings):
        heard = columns_touched(mixing.sent_weights, hearing)
        reach |= columns_touched(mixing.weights, reach) | (heard if mixing.active is None else heard & mixing.active)
    reach[members] = False
    return reach
