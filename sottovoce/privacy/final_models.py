"""Whether the models at the end are made of what was sent, so that a figure about messages covers them as well.

Figures are about what an adversary sees: messages, and final models where its view has them. A model holds more than
messages where a node keeps something to itself: the last gradient of DP2SGD, the message of ZIP-DL to oneself, the step
of a node that had dropped out in the last round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.final_models import FinalModels
from sottovoce.core.sparsity import columns_touched, rows_touching
from sottovoce.privacy.row_space import PRIMES, SIMPLE, Echelon, Exact, Modulo, TooLarge, dense, meant, random_prime
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.memo import once_for_each
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices

ROUNDING = 2.0**-50
"""Of a sum of products of stored weights, rounding leaves at most this share of its terms."""

ENTRIES, ELIMINATIONS = 5e7, 2e9
"""Entries of messages and models, and multiplications modulo a prime, up to which it is decided by elimination."""


def covered_final_models(system: LinearSystem, view: View) -> FinalModels:
    """The final models that a figure about a view covers: those that it sees, or all where its messages give them.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> from sottovoce.privacy.views import parse_view
    >>> system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), rounds=3)
    >>> [covered_final_models(system, parse_view(name)).value for name in ("everyone", "node:0")]
    ['all', 'none']
    """
    hears_all = _hears_all(system, view)
    if hears_all and view.final_models is not FinalModels.ALL and models_follow_from_messages(system):
        return FinalModels.ALL
    return view.final_models


def published(system: LinearSystem, view: View) -> LinearSystem:
    """The system in which a view sees the final models that it has.

    An average may hold noise that no message showed. Whoever hears every message stands for any number of nodes
    together, and these take off the noise that they know: all but one of them have the last one's model. So all models
    are counted there.
    """
    which = view.final_models
    if system.final_models is FinalModels.ALL and which is FinalModels.AVERAGE:
        return system
    if which is FinalModels.AVERAGE and _hears_all(system, view):
        heard = system.publishing(FinalModels.NONE)
        return system.publishing(which if models_follow_from_messages(heard) else FinalModels.ALL)
    return system.publishing(which)


def _hears_all(system: LinearSystem, view: View) -> bool:
    """Whether a view has all that is told to anybody: of one secure sum over all nodes, every node has it."""
    if sums_over_all(system.algorithm) and view.kind is ViewKind.COALITION:
        return True
    return view.kind is ViewKind.EVERYONE


def models_follow_from_messages(system: LinearSystem) -> bool:
    """Whether all models at the end are linear combinations of messages; False where that cannot be shown.

    Either of the last messages alone, or in every round of its messages and of the state before, which began in public.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> names, ring = ("dp-d-sgd", "dp2sgd", "zip-dl"), metropolis("ring:5")
    >>> [models_follow_from_messages(trace(algorithm(name, sigma=1.0), ring, rounds=3)) for name in names]
    [True, False, False]
    """
    if _models_are_in_messages(system.steps[-1]):
        return True
    return all(_made_of_messages(step) for step in dict.fromkeys(system.steps))


@once_for_each
def _models_are_in_messages(last: StepMatrices) -> bool:
    """Also where models are made of the last messages alone, to which no noise is added and all nodes send one."""
    maps, number = last.maps, len(last.sent) - 1
    averaged = {of for of, _ in maps.models} == {maps.mixed(number)} and not maps.edge_noise[number]
    if averaged and len(set(last.sent[number].sender.tolist()) - {-1}) == last.mixings[number].n:
        return True
    return spanned(_of_inputs(last, last.models, 0), _messages(last, 0))


@once_for_each
def _made_of_messages(step: StepMatrices) -> bool:
    after = sparse.vstack([step.state_out, step.models], format="csr")
    return spanned(_of_inputs(step, after, 1), _messages(step, 1))


def _messages(step: StepMatrices, first: int) -> list[sparse.csr_array]:
    return [_of_inputs(step, sent.rows, first) for sent in step.sent]


def _of_inputs(step: StepMatrices, rows: sparse.csr_array, first: int) -> sparse.csr_array:
    """Rows of a round over its inputs, without the `first` of state, gradients and noise."""
    return sparse.csr_array(sparse.hstack(step.split(rows)[first:], format="csr"))


def spanned(rows: sparse.csr_array, by: Sequence[sparse.csr_array]) -> bool:
    """Whether all `rows` are combinations of those of `by`: by structure, whatever the size of noise.

    Rows of one of `by` are taken out by columns that they alone have, and what is left of an entry is nothing if
    rounding of the terms of that very entry may leave as much. Where that is not enough, and weights are simple
    fractions, elimination modulo primes decides. What neither shows is not shown: the answer is no.

    >>> sent = sparse.csr_array([[1 / 3, 1e6, 0.0], [1.0, 0.0, 2e6]])
    >>> spanned(sparse.csr_array([[4 / 3, 1e6, 2e6]]), [sent]), spanned(sparse.csr_array([[1.0, 1e6, 2e6]]), [sent])
    (True, False)
    """
    rows, *by = map(_without_zeros, (rows, *by))
    every = sparse.vstack(by, format="csr")
    if rows_touching(rows, ~columns_touched(every)).any():
        return False
    return any(_spanned_by_own_columns(rows, others) for others in by) or _spanned_exactly(rows, every)


def _without_zeros(rows: sparse.csr_array) -> sparse.csr_array:
    found = rows.copy()
    found.eliminate_zeros()
    return found


def _spanned_by_own_columns(left: sparse.csr_array, others: sparse.csr_array) -> bool:
    terms = abs(left)
    while others.shape[0]:
        single = np.bincount(others.indices, minlength=others.shape[1]) == 1
        row = np.repeat(np.arange(others.shape[0]), np.diff(others.indptr))
        alone = single[others.indices]
        which, first = np.unique(row[alone], return_index=True)
        if not which.size:
            break
        own, values = others.indices[alone][first], others.data[alone][first]
        factors = sparse.csr_array(left.tocsc()[:, own] @ sparse.diags_array(1 / values))
        taken = others[which]
        left, terms = left - factors @ taken, terms + abs(factors) @ abs(taken)
        others = others[np.setdiff1d(np.arange(others.shape[0]), which)]
    over = abs(left) - ROUNDING * terms
    return not over.nnz or float(over.max()) <= 0


def _spanned_exactly(rows: sparse.csr_array, by: sparse.csr_array) -> bool:
    """Columns stand for inputs in units of their own, so each is measured by its own largest entry."""
    both = sparse.vstack([by, rows], format="csr")
    if float(both.shape[0]) * both.shape[1] > ENTRIES:
        return False
    both.data /= abs(both).max(axis=0).toarray().ravel()[both.indices]
    whole = Exact.near(both, meant)
    if any(value.denominator > SIMPLE for value in whole.values):
        return False
    for _ in range(PRIMES):
        modulo = Modulo(random_prime())
        echelon, residues = Echelon(modulo, both.shape[1], most=ELIMINATIONS), dense(modulo, whole)
        try:
            echelon.add(residues[: by.shape[0]])
            if echelon.add(residues[by.shape[0] :]):
                return False
        except TooLarge:
            return False
    return True
