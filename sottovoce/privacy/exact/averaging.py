"""The exact loss of averaging: noise once, then gossip, of which a view hears some messages.

Every message is a combination `m S` of the noise, with S the sizes of the noise of honest nodes, and `m` of the values
themselves. So with P the projector onto the row space of `M S`, M all that is heard and known columns removed,

    mu_u^2 = Delta_u^2 P_uu / sigma_u^2,     sum_u P_uu = rank M.

Where the weights W are the same in all rounds, split each walk at its last visit to the adversary: if all to whom it
listens are heard, the row space is that of `e_v^T W_a^t`, v heard and t below the number of rounds, with `W_a` the
weights without the adversary. Chebyshev gossip spans the same. Where weights change, rows are products of them.

Weights stand for the simple fractions next to them, and a diagonal for what is left of one; where some are next to
none, all are the binary fractions that are stored. Either way arithmetic is exact: `row_space`.

Shapes: N nodes, H honest nodes whose noise is unknown, M messages of a round, X state.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.final_models import FinalModels
from sottovoce.core.mixing import Mixing
from sottovoce.core.sparsity import columns_touched
from sottovoce.privacy.exact.row_space import Exact, Power, Product, TooLarge, projector_entries
from sottovoce.privacy.observation import Observation, selected_messages
from sottovoce.privacy.spanned_rows import SIMPLE, meant
from sottovoce.privacy.views import View
from sottovoce.support.memo import once_for_each
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import StepMatrices, TracedMessages, map_equal_steps

Floats = NDArray[np.float64]

EPS = float(np.finfo(float).eps)


class AveragingLoss(NamedTuple):
    """mu^2 of every victim: the upper ends of what encloses them, or a bound where the view is too large for that.

    `rational` says whether weights are the simple fractions next to them.
    """

    squares: Floats
    exact: bool
    rational: bool


@once_for_each
@one_thread()
def averaging_loss(observation: Observation) -> AveragingLoss | None:
    """mu^2 of every victim of a view of averaging; None where messages are no gossip of values with their own noise."""
    values = _values_of(observation)
    if values is None:
        return None
    weights = _Weights([step.mixings[0] for step in observation.system.steps])
    heard = _Heard(observation, weights)
    if not (values.by_gossip or heard.is_krylov):
        return None
    unknown = values.noise > 0
    unknown[list(observation.view.members)] = False
    columns = np.flatnonzero(unknown & heard.reached)
    entries, exact = np.zeros(observation.system.n), True
    if columns.size:
        try:
            entries[columns] = projector_entries(heard.blocks(columns, values.noise), len(columns)).above
        except TooLarge:
            entries[columns], exact = 1.0, False
    return AveragingLoss((entries * values.told)[observation.victims], exact, weights.rational)


# --- what runs -----------------------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """The noise of each node's value, and what a noisy value tells by itself: 0 where it never enters. Messages are
    what nodes hold `by_gossip`, or by a recurrence over two rounds."""

    noise: Floats
    told: Floats
    by_gossip: bool


def _values_of(observation: Observation) -> _Values | None:
    """The values that are averaged, if all that is sent is gossip of them; None if not, and where some lack noise."""
    system = observation.system
    steps, first, last = system.steps, system.steps[0], system.steps[-1]
    once = not any(step.noise_size or step.gradients for step in steps[1:])
    if not (system.algorithm.averaging and once and system.correlation is None and first.gradients == system.n):
        return None
    if any(len(_sent(step)) != 1 or np.any(_sent(step)[0].receiver != -1) for step in steps):
        return None
    published = observation.view.final_models is not FinalModels.NONE
    gossips = all(_is_gossip(step) for step in dict.fromkeys(steps)) and _publishes_state(last)
    if not gossips and (published or not _is_recurrence(steps)):
        return None
    entering = _entering(first, gossips)
    if entering is None:
        return None
    gradient, noise = map(np.abs, entering)
    bare = (gradient > 0) & (noise == 0)
    bare[list(observation.view.members)] = False
    if bare.any():
        return None
    told = np.divide(gradient, noise, out=np.zeros(system.n), where=noise > 0) ** 2
    return _Values(noise, told, gossips)


def _sent(step: StepMatrices) -> list[TracedMessages]:
    """The messages of a round, without models that are published after it."""
    return [sent for sent in step.sent if not _are_models(sent)]


def _are_models(sent: TracedMessages) -> bool:
    return bool(sent.sender.size and sent.sender[0] == -1)


def _is_gossip(step: StepMatrices) -> bool:
    """Whether nodes say the value that they hold, and then hold the weighted sum of what they hear."""
    sent, mixing = _sent(step)[0], step.mixings[0]
    if step.state_size != mixing.n:
        return False
    said, kept = (step.split(matrix)[0] for matrix in (sent.rows, step.state_out))
    return _is_same(said, _selection(sent.sender, mixing.n)) and _is_same(kept, mixing.weights)


def _publishes_state(last: StepMatrices) -> bool:
    """Whether models after the last round, if any are published, are what nodes hold, or the average of that."""
    n, state = last.mixings[0].n, last.state_out
    for sent in filter(_are_models, last.sent):
        shares = _mean(n) if sent.receiver[0] == -1 else _selection(sent.receiver, n)
        if not _is_same(sent.rows, sparse.csr_array(shares @ state), terms=int(np.diff(shares.indptr).max())):
            return False
    return True


@once_for_each
def _known_recurrences(step: StepMatrices) -> dict[tuple[int, int], bool]:
    """By the two steps after it, which are the same objects in most rounds."""
    return {}


def _is_recurrence(steps: Sequence[StepMatrices]) -> bool:
    """Whether `m' = a W m + b m_before`, a not zero, for what all nodes say, and W the same in all rounds."""
    mixing, everybody = steps[0].mixings[0], np.arange(steps[0].mixings[0].n)
    if any(step.mixings[0] is not mixing or not np.array_equal(_sent(step)[0].sender, everybody) for step in steps):
        return False
    if len(steps) > 1 and not _continues(None, *steps[:2]):
        return False
    for first, second, third in zip(steps[:-2], steps[1:-1], steps[2:], strict=True):
        known = _known_recurrences(first)
        if (id(second), id(third)) not in known:
            known[id(second), id(third)] = _continues(first, second, third)
        if not known[id(second), id(third)]:
            return False
    return True


def _continues(before: StepMatrices | None, step: StepMatrices, after: StepMatrices) -> bool:
    """Whether what is said `after` a step is such a combination, as rows over the inputs of the earliest step."""
    carried = None if before is None else before.state_out
    heard, said = _sent(step)[0].rows, after.split(_sent(after)[0].rows)[0] @ step.state_out
    size = abs(after.split(_sent(after)[0].rows)[0]) @ abs(step.state_out)
    terms = [sparse.csr_array(step.mixings[0].weights @ heard)]
    if before is not None and carried is not None:
        said, size, terms = said @ carried, size @ abs(carried), [terms[0] @ carried, _sent(before)[0].rows]
    products = np.array([[float(one.multiply(other).sum()) for other in terms] for one in terms])
    shares = np.linalg.lstsq(products, np.array([float(one.multiply(said).sum()) for one in terms]))[0]
    for share, term in zip(shares, terms, strict=True):
        said, size = said - share * term, size + abs(share) * abs(term)
    most = np.max(np.diff(step.mixings[0].weights.indptr)) + 8
    left = abs(sparse.csr_array(said)) - 8 * most * EPS * size
    return bool(abs(shares[0]) > 1e-3 and left.max() <= 0)


def _entering(first: StepMatrices, gossips: bool) -> tuple[Floats, Floats] | None:
    """By what each node's value and its own noise are multiplied when they enter, N each; None if others' enter too.

    Messages show it; of silent nodes, what they keep for themselves.
    """
    n, kinds = first.gradients, [sources for _, sources in first.sources]
    if len(kinds) != 1 or kinds[0].kind != "node" or np.any(np.diff(kinds[0].holders.indptr) != 1):
        return None
    own, sent, weights = kinds[0].holders.astype(float), _sent(first)[0], first.mixings[0].weights
    silent, found = np.setdiff1d(np.arange(n), sent.sender), list[Floats]()
    both = zip(first.split(sent.rows)[1:], first.split(first.state_out)[1:], (None, own), strict=True)
    for said, kept, holders in both:
        if holders is not None:
            if said.shape[1] != len(np.unique(own.indices)):
                return None
            said, kept = said @ holders, kept @ holders
        enters = np.zeros(n)
        enters[sent.sender] = sparse.csr_array(said[:, sent.sender]).diagonal()
        if silent.size:
            enters[silent] = kept.diagonal()[silent] / np.where(
                weights.diagonal()[silent] != 0, weights.diagonal()[silent], np.nan
            )
        spread = sparse.diags_array(enters, format="csr")
        if not _is_same(said, sparse.csr_array(_selection(sent.sender, n) @ spread)):
            return None
        if gossips and not _is_same(kept, sparse.csr_array(weights @ spread)):
            return None
        found.append(enters)
    return found[0], found[1]


def _selection(rows: NDArray[np.intp], n: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(rows)), rows, np.arange(len(rows) + 1)), shape=(len(rows), n))


def _mean(n: int) -> sparse.csr_array:
    return sparse.csr_array(np.full((1, n), 1 / n))


def _is_same(one: sparse.csr_array, other: sparse.csr_array, *, terms: int = 1) -> bool:
    """Whether two matrices have the same entries, up to what rounding of sums of so many terms leaves."""
    if one.shape != other.shape:
        return False
    left = abs(one - other) - 16 * terms * EPS * abs(other)
    return bool(left.nnz == 0 or left.max() <= 0)


# --- weights as fractions ------------------------------------------------------------------------------------------


class _Fractions(NamedTuple):
    """A matrix of fractions: numbers of `values`, counted from one, stand in place of its entries."""

    numbers: sparse.csr_array
    values: tuple[Fraction, ...]

    def part(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp], sizes: Sequence[Fraction]) -> Exact:
        """Some rows, divided by their sizes unless all are meant, and some columns, times theirs."""
        chosen = self.numbers if rows is None else self.numbers[rows]
        part = sparse.csc_array(chosen[:, columns])
        part.sort_indices()
        values, codes = self.values, part.data - 1
        if any(size != 1 for size in sizes):
            column = np.repeat(np.arange(len(columns)), np.diff(part.indptr))
            known: dict[Fraction, int] = {}
            scaled = (
                values[code] * sizes[columns[j]] / (1 if rows is None else sizes[rows[i]])
                for code, i, j in zip(codes.tolist(), part.indices.tolist(), column.tolist(), strict=True)
            )
            codes = np.array([known.setdefault(value, len(known)) for value in scaled], dtype=np.intp)
            values = tuple(known)
        return Exact(
            part.shape, part.indptr.astype(np.intp), part.indices.astype(np.intp), codes.astype(np.intp), values
        )


def _numbered(matrix: sparse.csr_array, fractions: Sequence[Fraction]) -> _Fractions:
    known: dict[Fraction, int] = {}
    numbers = np.array([known.setdefault(value, len(known)) for value in fractions], dtype=np.int64) + 1
    return _Fractions(sparse.csr_array((numbers, matrix.indices, matrix.indptr), shape=matrix.shape), tuple(known))


class _Weights:
    """The weights of all rounds as fractions: the simple ones next to them, or else those that are stored."""

    def __init__(self, mixings: Sequence[Mixing]) -> None:
        simple = {mixing: _simple_fractions(mixing.weights) for mixing in dict.fromkeys(mixings)}
        self.rational = None not in simple.values()
        self._of = {
            mixing: _numbered(mixing.weights, found if self.rational and found else _stored(mixing.weights))
            for mixing, found in simple.items()
        }

    def of(self, mixing: Mixing) -> _Fractions:
        """W."""
        return self._of[mixing]

    def like(self, rows: sparse.csr_array) -> _Fractions:
        """Rows whose entries are ones, or weights of some node for others."""
        data = rows.data.tolist()
        return _numbered(rows, [meant(value) if self.rational else Fraction(value) for value in data])


def _stored(weights: sparse.csr_array) -> list[Fraction]:
    return [Fraction(value) for value in weights.data.tolist()]


def _simple_fractions(weights: sparse.csr_array) -> list[Fraction] | None:
    """What is meant by each entry of W; None where some are next to no simple fraction.

    On the diagonal, what is left of one, if it is that.
    """
    row = np.repeat(np.arange(weights.shape[0]), np.diff(weights.indptr))
    found = [meant(value) for value in weights.data.tolist()]
    own = np.flatnonzero(row == weights.indices)
    others = [Fraction(1)] * weights.shape[0]
    for i, j, value in zip(row.tolist(), weights.indices.tolist(), found, strict=True):
        if i != j:
            others[i] -= value
    for place in own.tolist():
        left = others[int(row[place])]
        terms = int(weights.indptr[row[place] + 1] - weights.indptr[row[place]])
        if abs(left - Fraction(float(weights.data[place]))) <= 2 * terms * EPS:
            found[place] = left
    off = row != weights.indices
    simple = all(value.denominator <= SIMPLE for value, counts in zip(found, off.tolist(), strict=True) if counts)
    return found if simple and all(_is_exact(found[place], others[int(row[place])]) for place in own.tolist()) else None


def _is_exact(value: Fraction, left: Fraction) -> bool:
    return value == left or value.denominator <= SIMPLE


# --- what is heard -------------------------------------------------------------------------------------------------


class _Heard:
    """The rows that a view hears of the values, and `reached`: whose values can have come into any of them."""

    def __init__(self, observation: Observation, weights: _Weights) -> None:
        system = observation.system
        self._n, self._weights, self._view = system.n, weights, observation.view
        self._mixings = [step.mixings[0] for step in system.steps]
        self._heard = map_equal_steps(lambda step: _selected(step, observation.view), system.steps)
        self._models = _published_rows(system.steps[-1], observation.view)
        self.reached = self._reached()

    def _reached(self) -> NDArray[np.bool_]:
        """By structure, from the last round back to the first."""
        found = np.zeros(self._n, dtype=bool)
        if self._models is not None:
            found = columns_touched(self._mixings[-1].weights, columns_touched(self._models))
        for t in range(len(self._heard) - 1, -1, -1):
            found = found | columns_touched(self._heard[t])
            if t:
                found = columns_touched(self._mixings[t - 1].weights, found)
        return found

    def blocks(self, columns: NDArray[np.intp], noise: Floats) -> list[Product | Power]:
        """The rows of all rounds, in units of the largest noise; about these nodes."""
        largest = Fraction(float(noise.max()))
        sizes = [Fraction(float(one)) / largest for one in noise]
        found: list[Product | Power]
        if self.is_krylov:
            found = self._powers(columns, sizes)
        else:
            found = [self._product(rows, t, columns, sizes) for t, rows in enumerate(self._heard) if rows.nnz]
        if self._models is not None:
            found.append(self._product(self._models, len(self._heard), columns, sizes))
        return found

    @cached_property
    def is_krylov(self) -> bool:
        """Whether messages span the powers of the weights without the adversary, from what it hears in a round."""
        rows = self._heard[0]
        fixed = all(mixing is self._mixings[0] for mixing in self._mixings)
        each = {id(one): one for one in self._heard}.values()
        alike = all(one.shape == rows.shape and (one != rows).nnz == 0 for one in each)
        return fixed and alike and self._hears_all_it_listens_to()

    def _powers(self, columns: NDArray[np.intp], sizes: Sequence[Fraction]) -> list[Product | Power]:
        """Of so many powers at most as many as there are columns add anything."""
        step = Power(self._weights.of(self._mixings[0]).part(columns, columns, sizes))
        start = Product(self._weights.like(self._heard[0]).part(None, columns, sizes), ())
        return [start, *[step] * min(len(self._heard) - 1, len(columns))]

    def _hears_all_it_listens_to(self) -> bool:
        """Whether what members hear from outside is a combination of what the view gets."""
        members = list(self._view.members)
        if self._view.secure_sum or not members:
            return True
        listens = columns_touched(self._mixings[0].weights[members])
        listens[members] = False
        rows = self._heard[0]
        single = rows[np.flatnonzero(np.diff(rows.indptr) == 1)]
        return bool(columns_touched(single)[listens].all())

    def _product(
        self, rows: sparse.csr_array, rounds: int, columns: NDArray[np.intp], sizes: Sequence[Fraction]
    ) -> Product:
        """Rows of what nodes hold after so many rounds."""
        every, one = np.arange(self._n), [Fraction(1)] * self._n
        if not rounds:
            return Product(self._weights.like(rows).part(None, columns, sizes), ())
        factors = [self._part(mixing) for mixing in self._mixings[rounds - 1 : 0 : -1]]
        last = self._weights.of(self._mixings[0]).part(None, columns, sizes)
        return Product(self._weights.like(rows).part(None, every, one), (*factors, last))

    def _part(self, mixing: Mixing) -> Exact:
        """All of W; of each object once."""
        if mixing not in self._whole:
            self._whole[mixing] = self._weights.of(mixing).part(None, np.arange(self._n), [Fraction(1)])
        return self._whole[mixing]

    @cached_property
    def _whole(self) -> dict[Mixing, Exact]:
        return {}


def _selected(step: StepMatrices, view: View) -> sparse.csr_array:
    """What a view gets in a round, as rows of what nodes hold before it."""
    sent, mixing = _sent(step)[0], step.mixings[0]
    return selected_messages(sent._replace(rows=_selection(sent.sender, mixing.n)), mixing, view, False)


def _published_rows(last: StepMatrices, view: View) -> sparse.csr_array | None:
    """Final models that a view sees, as rows of what nodes hold after the last round."""
    for sent in filter(_are_models, last.sent):
        n = last.mixings[0].n
        others = sent.receiver[~np.isin(sent.receiver, view.members)]
        return _mean(n) if sent.receiver[0] == -1 else _selection(others, n)
    return None
