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
from scipy.linalg import lapack

from sottovoce.core.participation import Participation
from sottovoce.core.threads import WORKERS, one_thread
from sottovoce.privacy.interior_point import semidefinite_values

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

SMALL_SHARE = 1e-5
"""Of the largest direction of a worst change: smaller ones are what an interior point is off the boundary."""

AT_ONCE = 2e6
"""About how many entries of M a thread works on: with ten times as many, copies take new memory every time, which made
most of the cost."""


def worst_case(M_VTT: NDArray[np.float64], scheme: Participation, rounds: int, gap: float = GAP) -> NDArray[np.float64]:
    """mu^2 of each victim: the largest over patterns of the semidefinite value, as a sound upper bound."""
    alike: dict[int, list[NDArray[np.intp]]] = {}
    for pattern in scheme.patterns(rounds):
        alike.setdefault(len(pattern), []).append(pattern)
    size = max(1, int(AT_ONCE / rounds**2))
    some = [slice(first, first + size) for first in range(0, len(M_VTT), size)]

    def largest(group: slice) -> NDArray[np.float64]:
        held = M_VTT[group]
        found = []
        for some in alike.values():
            stacked = np.concatenate([held[:, pattern[:, None], pattern] for pattern in some])
            found.append(largest_bound(stacked, len(some), gap))
        return np.max(found, axis=0)

    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        found = np.concatenate([np.zeros(0), *(pool.map if len(some) > 1 else map)(largest, some)])
    return np.minimum(found, once_in_each_epoch(M_VTT, scheme.apart)) if scheme.shuffled else found


def once_in_each_epoch(M_VTT: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    """A bound for changes that show once in each epoch of `apart` rounds, in any of them.

    Whichever rounds these are, `sum |M[s,t]|` over pairs of them is at most the largest entry of each pair of epochs.
    """
    starts = np.arange(0, M_VTT.shape[1], apart)
    by_row = np.maximum.reduceat(np.abs(M_VTT), starts, axis=1)
    return np.asarray(np.maximum.reduceat(by_row, starts, axis=2).sum(axis=(1, 2)))


def absolute_sum(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum |M|`: sound, and quick."""
    return np.abs(M_VTT).sum(axis=(1, 2))


def bound(M_VTT: NDArray[np.float64], gap: float = GAP) -> NDArray[np.float64]:
    """The semidefinite value of each matrix, from above, within the gap."""
    return largest_bound(M_VTT, 1, gap)


def largest_bound(M_VTT: NDArray[np.float64], patterns: int, gap: float = GAP) -> NDArray[np.float64]:
    """The largest semidefinite value of each victim, from above, within the gap; pattern after pattern.

    `sum |M|` is the value of matrices without negative entries, and near enough for many others. The pattern that costs
    most is searched first. Its certificate often shows that others of its victim cost less: these are not searched.
    """
    search = DualSearch((M_VTT + M_VTT.transpose(0, 2, 1)) / 2, patterns, gap)
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

    def __init__(self, M_VTT: NDArray[np.float64], patterns: int, gap: float) -> None:
        self.M_VTT, self.gap = M_VTT, gap
        self.best, self.y_VT = absolute_sum(M_VTT), np.abs(M_VTT).sum(axis=2)
        self.open = self.best - M_VTT.sum(axis=(1, 2)) > gap * self.best
        self._victims = max(1, len(M_VTT) // patterns)
        self._widest_V, self._reached_V = self.y_VT.max(axis=1, initial=0.0), np.zeros(len(M_VTT))

    def try_signs(self) -> None:
        """Note where signs are within the gap, and how far they reach elsewhere."""
        some = np.flatnonzero(self.open)
        M_VTT, T = self.M_VTT[some], self.M_VTT.shape[1]
        signs_VT = _signs(M_VTT)
        y_VT = signs_VT * np.einsum("vst,vt->vs", M_VTT, signs_VT)
        value = self._reached_V[some] = y_VT.sum(axis=1)
        lift, rounding = 0.9 * self.gap * value / T, _rounding(self._widest_V[some], y_VT)
        near = rounding < 0.1 * self.gap * value / T
        for number, at in enumerate(some.tolist()):
            if near[number] and _is_psd(y_VT[number] + lift[number], M_VTT[number]):
                self.open[at] = False
                self._take(at, y_VT[number] + (lift[number] + rounding[number]))
        self.open[some] &= self.best[some] - value > self.gap * self.best[some]

    def first_of_each_victim(self, some: NDArray[np.intp]) -> NDArray[np.intp]:
        """The one of each victim for which signs have reached most."""
        by_value = some[np.argsort(-self._reached_V[some], kind="stable")]
        return np.sort(by_value[np.unique(by_value % self._victims, return_index=True)[1]])

    def not_bounded(self) -> NDArray[np.intp]:
        """What is open, and not shown to cost less than what is known of its victim, by more than the gap."""
        some = np.flatnonzero(self.open)
        known = self._largest_known()[some % self._victims]
        bounded = [
            not self.open[one] and self._bounds(one, at) for one, at in zip(known.tolist(), some.tolist(), strict=True)
        ]
        return some[~np.array(bounded, dtype=bool)]

    def _largest_known(self) -> NDArray[np.intp]:
        """Of every victim the matrix that costs most among those that are known."""
        costs = np.where(self.open, 0.0, self.best).reshape(-1, self._victims)
        return np.asarray(costs.argmax(axis=0) * self._victims + np.arange(self._victims))

    def _bounds(self, one: int, other: int) -> bool:
        """Whether the certificate of one matrix, made smaller, bounds another."""
        if self.best[other] <= self.best[one]:
            return True
        y = (1 - 2 * self.gap) * self.y_VT[one]
        return _is_psd(y - _rounding(self._widest_V[other], y), self.M_VTT[other])

    def solve(self, some: NDArray[np.intp]) -> None:
        """Bound each within the gap, or below what is known of its victim."""
        if not some.size:
            return
        known = self._largest_known()[some % self._victims]
        enough = np.where(self.open[known], 0.0, (1 - 2 * self.gap) * self.best[known])
        found = semidefinite_values(self.M_VTT[some], 0.9 * self.gap, enough)
        for at, y in zip(some.tolist(), found.y_VT, strict=True):
            self._take(at, _feasible(self.M_VTT[at], y))
            self.open[at] = False

    def _take(self, at: int, y_T: NDArray[np.float64]) -> None:
        """Note a certificate where it is better."""
        if (value := float(y_T.sum())) < self.best[at]:
            self.best[at], self.y_VT[at] = value, y_T


def _signs(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """Good signs for every matrix, from its leading eigenvector: each step can only raise `x^T M x`."""
    x_VT = np.ones(M_VTT.shape[:2])
    for _ in range(30):
        x_VT = np.einsum("vst,vt->vs", M_VTT, x_VT)
        x_VT /= np.maximum(np.linalg.norm(x_VT, axis=1, keepdims=True), 1e-300)
    x_VT = np.where(x_VT < 0, -1.0, 1.0)
    for _ in range(20):
        before, x_VT = x_VT, np.where(np.einsum("vst,vt->vs", M_VTT, x_VT) < 0, -1.0, 1.0)
        if np.array_equal(before, x_VT):
            break
    return x_VT


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


def _is_psd(y_T: NDArray[np.float64], M_TT: NDArray[np.float64]) -> bool:
    """Whether `diag(y) - M` has a Cholesky factor."""
    slack = np.negative(M_TT)
    slack.flat[:: len(slack) + 1] += y_T
    return bool(lapack.dpotrf(slack.T, lower=1, overwrite_a=1)[1] == 0)


def _feasible(M_TT: NDArray[np.float64], y_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """y, lifted until `diag(y) - M` is psd, rounding included."""
    rounding = _rounding(np.abs(M_TT).sum(axis=1).max(), y_T)
    if _is_psd(y_T, M_TT):
        return y_T + rounding
    missing = max(0.0, -float(np.linalg.eigvalsh(np.diag(y_T) - M_TT)[0]))
    return y_T + (missing + rounding)


def _rounding(widest: float | NDArray[np.float64], y_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far rounding can move an eigenvalue, or a pivot, of `diag(y) - M`; `widest` is the largest row of `|M|`."""
    return np.asarray(8 * y_VT.shape[-1] * np.finfo(float).eps * (widest + np.abs(y_VT).max(axis=-1)))
