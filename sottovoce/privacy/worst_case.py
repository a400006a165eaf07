"""The worst change of a victim's gradients, and what it costs.

For a victim the loss is `max sum_{s,t} M[s,t] <delta_s, delta_t>` over changes with `||delta_t|| <= 1` in the rounds
of a participation pattern. Its value is a semidefinite programme, `max {<M, R> : R psd, R_tt = 1}`; any y with
`diag(y) - M` psd bounds it by `sum y`, and that dual value is what is reported.

    >>> from sottovoce.core.participation import parse_participation
    >>> M = np.array([[1.0, -0.9], [-0.9, 1.0]])
    >>> float(worst_case(M[None], parse_participation("every"), rounds=2)[0].round(6))
    3.8

All-ones would say 0.2 here: it is no bound (docs/guarantees.md).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.privacy.interior_point import are_definite_, semidefinite_values
from sottovoce.support.threads import WORKERS, chunks, one_thread

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

SMALL_SHARE = 1e-5
"""Of the largest direction of a worst change: smaller ones are what an interior point is off the boundary."""

AT_ONCE = 2e6
"""About how many entries of M a thread works on: with ten times as many, copies take new memory every time, which made
most of the cost."""


SUMMED = 1 << 15
"""Entries whose absolute values are summed at once."""


def worst_case(M_VTT: NDArray[np.float64], scheme: Participation, rounds: int) -> NDArray[np.float64]:
    """mu^2 of each victim: the largest over patterns of the semidefinite value, as a sound upper bound."""
    alike: dict[int, list[slice]] = {}
    for pattern in scheme.patterns(rounds):
        alike.setdefault(len(pattern), []).append(_spaced(pattern))
    V, T, _ = M_VTT.shape
    size = max(1, int(AT_ONCE / T**2))
    some = [slice(first, first + size) for first in range(0, V, size)]

    def largest(group: slice) -> NDArray[np.float64]:
        found = []
        for patterns in alike.values():
            stacked = np.concatenate([M_VTT[group, among, among] for among in patterns])
            found.append(largest_bound(stacked, len(patterns)))
        return np.max(found, axis=0)

    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        found = np.concatenate([np.zeros(0), *(pool.map if len(some) > 1 else map)(largest, some)])
    return np.minimum(found, once_in_each_epoch(M_VTT, scheme.apart)) if scheme.shuffled else found


def _spaced(numbers: NDArray[np.intp]) -> slice:
    """Numbers that are equally far from each other; unlike these, a slice copies nothing."""
    return slice(numbers[0], numbers[-1] + 1, numbers[1] - numbers[0] if len(numbers) > 1 else 1)


def once_in_each_epoch(M_VTT: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    """A bound for changes that show once in each epoch of `apart` rounds, in any of them.

    Whichever rounds these are, `sum |M[s,t]|` over pairs of them is at most the largest entry of each pair of epochs.
    """
    starts = np.arange(0, M_VTT.shape[1], apart)
    by_row = np.maximum.reduceat(np.abs(M_VTT), starts, axis=1)
    return np.asarray(np.maximum.reduceat(by_row, starts, axis=2).sum(axis=(1, 2)))


def absolute_sum(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum |M|`: sound, and quick."""
    return np.asarray(absolute_rows(M_VTT).sum(axis=1))


def absolute_rows(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum_t |M[s, t]|`, a few matrices at a time: new memory would cost more than the sums."""
    size = max(1, SUMMED // M_VTT.shape[1] ** 2)
    found = np.empty(M_VTT.shape[:2])
    for some in chunks(len(M_VTT), size):
        np.abs(M_VTT[some]).sum(axis=2, out=found[some])
    return found


def bound(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """The semidefinite value of each matrix, from above, within the gap."""
    return largest_bound(M_VTT, 1)


def largest_bound(M_VTT: NDArray[np.float64], patterns: int) -> NDArray[np.float64]:
    """The largest semidefinite value of each victim, from above, within the gap; pattern after pattern.

    `sum |M|` is the value of matrices without negative entries, and near enough for many others. The pattern that costs
    most is searched first. Its certificate often shows that others of its victim cost less: these are not searched.
    """
    if not np.array_equal(M_VTT, M_VTT.transpose(0, 2, 1)):
        M_VTT = (M_VTT + M_VTT.transpose(0, 2, 1)) / 2
    search = DualSearch(M_VTT, patterns)
    if search.open.any():
        search.try_signs()
        search.solve(search.first_of_each_victim(search.not_bounded()))
        search.solve(search.not_bounded())
    return np.asarray(np.where(search.open, 0.0, search.best).reshape(patterns, -1).max(axis=0))


class DualSearch:
    """For each of some matrices a y with `diag(y) - M` psd, and `best = sum y`; `open` are those not known within gap.

    Signs are tried first and are often best: with `y_t = s_t sum_u M[u,t] s_u`, lifted by less than the gap, they need
    one check. The rest is left to the interior-point method. Every y is checked by a Cholesky factor, and lifted by its
    rounding error: the result is sound whatever came before.
    """

    def __init__(self, M_VTT: NDArray[np.float64], patterns: int) -> None:
        self.M_VTT = M_VTT
        self._rows_VT = absolute_rows(M_VTT)
        self.best, self.y_VT = self._rows_VT.sum(axis=1), self._rows_VT.copy()
        self.open = self.best - M_VTT.sum(axis=(1, 2)) > GAP * self.best
        self._victims = max(1, len(M_VTT) // patterns)
        self._widest_V, self._reached_V = self._rows_VT.max(axis=1, initial=0.0), np.zeros(len(M_VTT))

    def try_signs(self) -> None:
        """Note where signs are within the gap, and how far they reach elsewhere."""
        some = np.flatnonzero(self.open)
        M_VTT, T = self.M_VTT[some], self.M_VTT.shape[1]
        signs_VT = _signs(M_VTT)
        y_VT = signs_VT * _times(M_VTT, signs_VT)
        value = self._reached_V[some] = y_VT.sum(axis=1)
        lift, rounding = 0.9 * GAP * value / T, _rounding(self._widest_V[some], y_VT)
        near = rounding < 0.1 * GAP * value / T
        shown = near & _are_psd(y_VT + lift[:, None], M_VTT)
        self._take(some[shown], y_VT[shown] + (lift + rounding)[shown, None])
        self.open[some] &= self.best[some] - value > GAP * self.best[some]

    def first_of_each_victim(self, some: NDArray[np.intp]) -> NDArray[np.intp]:
        """The one of each victim for which signs have reached most."""
        by_value = some[np.argsort(-self._reached_V[some], kind="stable")]
        return np.sort(by_value[np.unique(by_value % self._victims, return_index=True)[1]])

    def not_bounded(self) -> NDArray[np.intp]:
        """What is open, and not shown to cost less than what is known of its victim, by more than the gap."""
        some = np.flatnonzero(self.open)
        known = self._largest_known()[some % self._victims]
        bounded = ~self.open[known]
        bounded[bounded] = self._bound(known[bounded], some[bounded])
        return some[~bounded]

    def _largest_known(self) -> NDArray[np.intp]:
        """Of every victim the matrix that costs most among those that are known."""
        costs = np.where(self.open, 0.0, self.best).reshape(-1, self._victims)
        return np.asarray(costs.argmax(axis=0) * self._victims + np.arange(self._victims))

    def _bound(self, ones: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether the certificate of one matrix, made smaller and shared out as rows of another are, bounds that."""
        found = self.best[others] <= self.best[ones]
        ones, others = ones[~found], others[~found]
        rows_VT = self._rows_VT[ones]
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number bounds nothing
            shares_VT = np.divide(self._rows_VT[others], rows_VT, out=np.ones_like(rows_VT), where=rows_VT > 0)
            y_VT = self.y_VT[ones] * shares_VT
            sums = y_VT.sum(axis=1)
            most = (1 - 2 * GAP) * self.best[ones]
            y_VT *= np.divide(most, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
            found[~found] = _are_psd(y_VT - _rounding(self._widest_V[others], y_VT)[:, None], self.M_VTT[others])
        return found

    def solve(self, some: NDArray[np.intp]) -> None:
        """Bound each within the gap, or below what is known of its victim."""
        if not some.size:
            return
        known = self._largest_known()[some % self._victims]
        enough = np.where(self.open[known], 0.0, (1 - 2 * GAP) * self.best[known])
        M_VTT = self.M_VTT[some]
        self._take(some, _feasible(M_VTT, semidefinite_values(M_VTT, 0.9 * GAP, enough).y_VT))

    def _take(self, some: NDArray[np.intp], y_VT: NDArray[np.float64]) -> None:
        """Note certificates where they are better: these matrices are known."""
        values = y_VT.sum(axis=1)
        better = values < self.best[some]
        self.best[some[better]], self.y_VT[some[better]] = values[better], y_VT[better]
        self.open[some] = False


def _signs(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """Good signs for every matrix, from its leading eigenvector: each step can only raise `x^T M x`."""
    x_VT = np.ones(M_VTT.shape[:2])
    for _ in range(4):
        x_VT = _times(M_VTT, x_VT)
        x_VT /= np.maximum(np.linalg.norm(x_VT, axis=1, keepdims=True), 1e-300)
    x_VT = np.where(x_VT < 0, -1.0, 1.0)
    for _ in range(20):
        before, x_VT = x_VT, np.where(_times(M_VTT, x_VT) < 0, -1.0, 1.0)
        if np.array_equal(before, x_VT):
            break
    return x_VT


def _times(M_VTT: NDArray[np.float64], x_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    return (M_VTT @ x_VT[:, :, None])[:, :, 0]


def worst_change(M_TT: NDArray[np.float64], scheme: Participation) -> NDArray[np.float64]:
    """A change that costs the most: row t is delta_t, of norm one where the victim takes part and zero elsewhere.

    Signs where they reach the bound, else vectors of as many dimensions as the semidefinite value may need.

    >>> from sottovoce.core.participation import parse_participation
    >>> worst_change(np.array([[1.0, -0.9], [-0.9, 1.0]]), parse_participation("every")).ravel().tolist()
    [1.0, -1.0]
    """
    T = len(M_TT)
    found = []
    for pattern in scheme.possible(T):
        M = (M_TT + M_TT.T)[np.ix_(pattern, pattern)] / 2
        v_TK = _worst_vectors(M)
        whole = np.zeros((T, v_TK.shape[1]))
        whole[pattern] = v_TK
        found.append((_value(M, v_TK), whole))
    return max(found, key=lambda pair: pair[0])[1]


def _worst_vectors(M_TT: NDArray[np.float64]) -> NDArray[np.float64]:
    signs_T1 = _signs(M_TT[None])[0][:, None]
    most = bound(M_TT[None])[0] * (1 - 10 * GAP)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    sizes, vectors = np.linalg.eigh(semidefinite_values(M_TT[None], GAP).R_VTT[0])
    large = np.abs(vectors) > np.abs(vectors).max(axis=0) / 2
    vectors = vectors * np.sign(vectors[large.argmax(axis=0), np.arange(len(vectors))])  # whichever the processor chose
    signs_T1 = np.where(vectors[:, -1:] < 0, -1.0, 1.0)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    v_TK = (vectors * np.sqrt(np.maximum(sizes, 0.0)))[:, sizes > SMALL_SHARE * sizes[-1]]
    return np.asarray(v_TK / np.linalg.norm(v_TK, axis=1, keepdims=True))


def _value(M_TT: NDArray[np.float64], v_TK: NDArray[np.float64]) -> float:
    return float(np.sum((M_TT @ v_TK) * v_TK))


def _are_psd(y_VT: NDArray[np.float64], M_VTT: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each `diag(y) - M` has a Cholesky factor."""
    slack_VTT = np.negative(M_VTT)
    np.einsum("vtt->vt", slack_VTT)[:] += y_VT
    return are_definite_(slack_VTT)


def _feasible(M_VTT: NDArray[np.float64], y_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    """y, lifted until `diag(y) - M` is psd, rounding included."""
    lift = _rounding(absolute_rows(M_VTT).max(axis=1), y_VT)
    for number in np.flatnonzero(~_are_psd(y_VT, M_VTT)).tolist():
        least = float(np.linalg.eigvalsh(np.diag(y_VT[number]) - M_VTT[number])[0])
        lift[number] += max(0.0, -least)
    return y_VT + lift[:, None]


def _rounding(widest: float | NDArray[np.float64], y_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far rounding can move an eigenvalue, or a pivot, of `diag(y) - M`; `widest` is the largest row of `|M|`."""
    return np.asarray(8 * y_VT.shape[-1] * np.finfo(float).eps * (widest + np.abs(y_VT).max(axis=-1)))
