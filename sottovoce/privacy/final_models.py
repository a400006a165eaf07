"""Whether the models at the end are made of what was sent, so that a figure about messages covers them as well.

Figures are about what an adversary sees: messages, and final models where its view has them. A model holds more than
messages where a node keeps something to itself: the last gradient of DP2SGD, the message of ZIP-DL to oneself, the step
of a node that had dropped out in the last round.
"""

from __future__ import annotations

from scipy import sparse

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.final_models import FinalModels
from sottovoce.privacy.spanned_rows import spanned
from sottovoce.privacy.views import View, ViewKind
from sottovoce.support.memo import once_for_each
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices


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
    return view.kind is ViewKind.EVERYONE and not view.secure_sum


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
