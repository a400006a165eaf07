"""The view given all noisy gradients: everything a node with its own noise can ever say is a function of them.

It bounds every view of an algorithm whose noise enters with the gradient, whatever the topology does, whatever is
compressed and however models react; and it is closed, so it is proven for any training.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph

from sottovoce.core.algorithm import Algorithm, is_linear
from sottovoce.core.correlation import Correlation, groups_of
from sottovoce.core.participation import Participation
from sottovoce.core.sensitivity import in_units_of_largest, relative
from sottovoce.errors import Unaccountable
from sottovoce.privacy.final_models import published
from sottovoce.privacy.observation import known_noise
from sottovoce.privacy.views import View
from sottovoce.privacy.worst_case import worst_case
from sottovoce.support.memo import once_for_each
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices, stack_equal_steps

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""Share of the terms of a sum below which what is left of noise is rounding, and protects nobody."""


def loss_given_noisy_gradients(
    system: LinearSystem,
    view: View,
    victims: NDArray[np.intp],
    scheme: Participation,
    reaching_TV: NDArray[np.bool_] | None = None,
) -> Array:
    """mu^2 of each victim if the adversary had every honest node's `g + noise`, with what it knows removed.

    With `reaching_TV`, only those that can reach the view: all that it sees is a function of them, and so are the
    points where they are taken.
    """
    system = published(system, view)
    per_round_TV = _per_round(system, view, victims)
    if reaching_TV is not None:
        per_round_TV = np.where(reaching_TV, per_round_TV, 0.0)
    if system.correlation is not None:
        losses_V = np.zeros(len(victims))
        for correlation, places in groups_of(system.correlation, victims):
            losses_V[places] = _correlated_loss(correlation, scheme, system.rounds)
        return losses_V * per_round_TV.max(axis=0)
    return scheme.largest_sum(per_round_TV)


def matrices_given_noisy_gradients(system: LinearSystem, view: View, victims: NDArray[np.intp]) -> Array:
    """M of each victim for the same adversary, V x T x T: no view that hears less has more."""
    system = published(system, view)
    per_round_TV = _per_round(system, view, victims)
    M_VTT = np.zeros((len(victims), len(per_round_TV), len(per_round_TV)))
    if system.correlation is None:
        np.einsum("vtt->vt", M_VTT)[:] = per_round_TV.T
        return M_VTT
    for correlation, places in groups_of(system.correlation, victims):
        C = correlation.matrix(system.rounds)
        M_VTT[places] = (C.T @ C) * per_round_TV.max(axis=0)[places, None, None]
    return M_VTT


def _per_round(system: LinearSystem, view: View, victims: NDArray[np.intp]) -> Array:
    """What the noisy gradients of each round tell of each victim, T x V."""
    rounds = [step for step in system.steps if step.gradients]
    precisions = stack_equal_steps(lambda step: _precision(system, step, view), rounds)
    return np.where(_leaving(system), precisions.reshape(-1, system.n), 0.0)[:, victims]


def _correlated_loss(correlation: Correlation, scheme: Participation, rounds: int) -> float:
    """mu^2 of the worst change at noise of size 1. Where a change shows no more often than C has bands, columns add."""
    if scheme.times is not None and correlation.bands(rounds) <= scheme.apart:
        squares = correlation.column_squares(rounds)
        return max(float(squares[pattern].sum()) for pattern in scheme.patterns(rounds))
    C = correlation.matrix(rounds)
    return float(worst_case((C.T @ C)[None], scheme, rounds)[0])


def _precision(system: LinearSystem, step: StepMatrices, view: View) -> Array:
    """What one noisy gradient tells about each node: the diagonal of the inverse covariance of unknown noise."""
    spread, unknown = _local_spreads(system)[step], ~known_noise(step, view)
    honest = np.ones(system.n, dtype=bool)
    honest[list(view.members)] = False
    node = np.repeat(np.arange(system.n), np.diff(spread.indptr))
    there = honest[node] & unknown[spread.indices] & (spread.data != 0)
    out = np.zeros(system.n)
    if np.bincount(spread.indices[there]).max(initial=0) > 1:
        hidden = sparse.csr_array(spread.tocsc()[:, np.flatnonzero(unknown[: spread.shape[1]])])
        hidden, shares = hidden[np.flatnonzero(honest)], relative(system.algorithm.sensitivity)
        added = hidden if shares is None else sparse.csr_array(sparse.diags_array(np.array(shares)[honest]) @ hidden)
        protected, found = ~_cancels(added), np.full(hidden.shape[0], np.inf)
        found[protected] = _joint_precision(hidden[np.flatnonzero(protected)])
        out[honest] = found
        return out
    with np.errstate(divide="ignore"):
        out[honest] = 1.0 / np.bincount(node[there], spread.data[there] ** 2, minlength=system.n)[honest]
    return out


def _cancels(added: sparse.csr_array) -> NDArray[np.bool_]:
    """For which nodes all noise is shared with others, and adds to nothing over all that share any.

    Then the sum over these nodes holds no noise. Rounding would leave a covariance that looks as if it could be
    inverted.
    """
    count, label = csgraph.connected_components(abs(added) @ abs(added).T)
    members = sparse.csr_array((np.ones(len(label)), (label, np.arange(len(label)))), shape=(count, len(label)))
    left = abs(members @ added) - ROUNDING * (members @ abs(added))
    return ~np.asarray(left.max(axis=1).toarray().ravel() > 0)[label]


def _joint_precision(spread: sparse.csr_array) -> Array:
    """The diagonal of the inverse covariance where nodes share sources."""
    covariance = sparse.csr_array(spread @ spread.T)
    off = covariance - sparse.diags_array(covariance.diagonal())
    off.eliminate_zeros()
    with np.errstate(divide="ignore"):
        return 1.0 / covariance.diagonal() if not off.nnz else _inverse_diagonal(spread, covariance)


WELL = 1e-6
"""A covariance whose pivots are all above this share of its diagonal is factored as it is."""


def _inverse_diagonal(spread: sparse.csr_array, covariance: sparse.csr_array) -> Array:
    """Diagonal of the inverse of `spread spread^T`, rounded up; infinite for a node that noise does not cover."""
    try:
        factor = linalg.cholesky(covariance.toarray(), lower=True, check_finite=False)
        least = float(np.min(np.diag(factor) ** 2 / covariance.diagonal()))
    except linalg.LinAlgError:
        least = 0.0
    if least < WELL:  # a factor from the spread itself has the root of the covariance's condition
        if spread.shape[1] < spread.shape[0]:
            return _covered(covariance.toarray())
        factor = linalg.qr(spread.toarray().T, mode="r", check_finite=False)[0][: spread.shape[0]].T
        sizes = np.abs(np.diag(factor))
        if np.any(sizes <= 1e-13 * np.linalg.norm(factor, axis=1)):
            return _covered(covariance.toarray())
        least = float(np.min(sizes / np.linalg.norm(factor, axis=1)))
    inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True, check_finite=False)
    return np.asarray((inverse**2).sum(axis=0)) * (1 + 16 * len(factor) * np.finfo(float).eps / least)


def _covered(covariance: Array) -> Array:
    sizes, vectors = np.linalg.eigh(covariance)
    there = sizes > 1e-10 * sizes[-1]
    inside = (vectors[:, there] ** 2).sum(axis=1)
    out = (vectors[:, there] ** 2 / sizes[there]).sum(axis=1)
    return np.where(inside < 1 - 1e-8, np.inf, out * (1 + 1e-5))


@once_for_each
def _leaving(system: LinearSystem) -> NDArray[np.bool_]:
    """For every round that takes gradients, which nodes' go anywhere: no view changes it.

    All of them, where averages are clipped or compressed: whoever averages such, keeps a part of what is its own,
    whatever its own weight is.
    """
    if not is_linear(system.algorithm):
        return np.ones((sum(step.gradients > 0 for step in system.steps), system.n), dtype=bool)
    rounds = [(step, t == system.rounds - 1) for t, step in enumerate(system.steps) if step.gradients]
    return stack_equal_steps(lambda round: _leaves(*round), rounds).reshape(-1, system.n)


def _leaves(step: StepMatrices, is_last: bool) -> NDArray[np.bool_]:
    """Which nodes' gradients go anywhere: into a message, or, before the last round, into a state."""
    used = np.zeros(step.gradients, dtype=bool)
    for matrix in (*(() if is_last else (step.state_out,)), *(sent.rows for sent in step.sent)):
        used[np.unique(step.split(matrix)[1].indices)] = True
    return used


@once_for_each
def _local_spreads(system: LinearSystem) -> dict[StepMatrices, sparse.csr_array]:
    """How sources reach a node's gradient, in units of its sensitivity, N x S: no view changes it.

    What nodes hold and send are functions of these sums: maps have one coefficient for a gradient and its noise.
    """
    return {step: _local_spread(system.algorithm, step) for step in dict.fromkeys(system.steps) if step.gradients}


def _local_spread(algorithm: Algorithm, step: StepMatrices) -> sparse.csr_array:
    terms = in_units_of_largest(algorithm.noise.local(step.mixings[0]), algorithm.sensitivity)
    if not terms:
        raise Unaccountable(f"{algorithm.name}: nothing is added to gradients themselves")
    spread, shares = sparse.hstack([term.matrix.whole() for term in terms], "csr"), relative(algorithm.sensitivity)
    if shares is not None:
        spread = sparse.csr_array(sparse.diags_array(1 / shares) @ spread)
    if not step.maps.released:
        raise Unaccountable(f"{algorithm.name}: noise does not travel with the gradient it was added to")
    return sparse.csr_array(spread)
