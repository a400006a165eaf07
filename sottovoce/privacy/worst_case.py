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

import math
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from sottovoce.core.participation import Participation
from sottovoce.core.threads import WORKERS, one_thread

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

STEPS, STEPS_FROM_NEAR = 2000, 25
"""Of an ascent, and of one from where that of a similar matrix has ended."""

DIMENSIONS = 16
"""Of the vectors in the ascent; the certificate does not depend on it."""

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
        search.begin()
        search.ascend(search.first_of_each_victim(search.not_bounded()))
        search.ascend(search.not_bounded())
    return np.asarray(np.where(search.open, 0.0, search.best).reshape(patterns, -1).max(axis=0))


class DualSearch:
    """For each of some matrices a y with `diag(y) - M` psd, and `best = sum y`; from the stationary point of an ascent.

    Unit vectors v_t maximise `f = sum M[s,t] <v_s, v_t>`. M is psd, so f is convex and moving every v_t along
    `sum_s M[s,t] v_s` at once can only raise it. Signs, vectors of one dimension, are tried first and are often best;
    elsewhere vectors of more dimensions are, with momentum. At the optimum `y_t = <v_t, sum_s M[s,t] v_s>` is dual
    feasible. What is missing to feasibility is added to every y and checked by a Cholesky factor, with its rounding
    error: the result is sound wherever the ascent stopped, and within `gap` of the optimum unless it ran out of steps.

    `open` are those that are not known within the gap.
    """

    def __init__(self, M_VTT: NDArray[np.float64], patterns: int, gap: float) -> None:
        self.M_VTT, self.gap = M_VTT, gap
        self.best, self.y_VT = absolute_sum(M_VTT), np.abs(M_VTT).sum(axis=2)
        self.open = self.best - M_VTT.sum(axis=(1, 2)) > gap * self.best
        self._pattern, self._victim = np.divmod(np.arange(len(M_VTT)), max(1, len(M_VTT) // patterns))
        self._widest_V, self._reached_V = self.y_VT.max(axis=1, initial=0.0), np.zeros(len(M_VTT))
        self._place_V = np.full(len(M_VTT), -1)
        self._vectors_VTK = np.zeros((0, *M_VTT.shape[1:]))

    def begin(self) -> None:
        """Try signs, and place the vectors of what is left."""
        some = np.flatnonzero(self.open)
        M_VTT = self.M_VTT[some]
        signs_VT1 = _signs(M_VTT)[:, :, None]
        self._certify(some, M_VTT, signs_VT1)
        left = self.open[some]
        self._place_V[some[left]] = np.arange(left.sum())
        self._vectors_VTK = 0.3 * _starts(self._pattern[some[left]], M_VTT.shape[1]) + signs_VT1[left]
        _to_unit_(self._vectors_VTK)

    def first_of_each_victim(self, some: NDArray[np.intp]) -> NDArray[np.intp]:
        """The one of each victim for which signs have reached most."""
        by_value = some[np.argsort(-self._reached_V[some], kind="stable")]
        return np.sort(by_value[np.unique(self._victim[by_value], return_index=True)[1]])

    def not_bounded(self) -> NDArray[np.intp]:
        """What is open, and not shown to cost less than what is known of its victim, by more than the gap."""
        some = np.flatnonzero(self.open)
        largest = np.where(self.open, 0.0, self.best).reshape(-1, self._victim[-1] + 1).argmax(axis=0)
        known = largest[self._victim[some]] * (self._victim[-1] + 1) + self._victim[some]
        bounded = [
            not self.open[one] and self._bounds(one, at) for one, at in zip(known.tolist(), some.tolist(), strict=True)
        ]
        some, known = some[~np.array(bounded, dtype=bool)], known[~np.array(bounded, dtype=bool)]
        near = ~self.open[known] & (self._place_V[known] >= 0)
        trial = copy(self)
        trial.best, trial.y_VT, trial.open = self.best.copy(), self.y_VT.copy(), self.open.copy()
        trial.ascend(some[near], known[near], STEPS_FROM_NEAR)
        return some[~near | (trial.best[some] > (1 - 2 * self.gap) * self.best[known])]

    def _bounds(self, one: int, other: int) -> bool:
        """Whether the certificate of one matrix, made smaller, bounds another."""
        if self.best[other] <= self.best[one]:
            return True
        y = (1 - 2 * self.gap) * self.y_VT[one]
        return _is_psd(y - _rounding(self._widest_V[other], y), self.M_VTT[other])

    def ascend(self, some: NDArray[np.intp], near: NDArray[np.intp] | None = None, steps: int = STEPS) -> None:
        """Move vectors until each value is known within the gap, or steps run out; from where those of others ended."""
        v_VTK, M_VTT = self._vectors_VTK[self._place_V[some if near is None else near]], self.M_VTT[some]
        before_VTK, room_VTK = v_VTK.copy(), np.empty_like(v_VTK)
        for step in range(steps):
            if not some.size:
                break
            ahead_VTK = np.subtract(v_VTK, before_VTK, out=before_VTK)
            ahead_VTK *= step / (step + 3)
            ahead_VTK += v_VTK
            _to_unit_(ahead_VTK)
            _to_unit_(np.matmul(M_VTT, ahead_VTK, out=room_VTK))
            before_VTK, v_VTK, room_VTK = v_VTK, room_VTK, ahead_VTK
            if step % 25 == 24:
                self._certify(some, M_VTT, v_VTK)
                going = self.open[some]
                if near is None:
                    self._vectors_VTK[self._place_V[some[~going]]] = v_VTK[~going]
                if not going.all():
                    some, M_VTT = some[going], M_VTT[going]
                    v_VTK, before_VTK, room_VTK = v_VTK[going], before_VTK[going], room_VTK[going]
        for at, y in zip(some, _duals(M_VTT, v_VTK), strict=True):
            self._take(at, _feasible(self.M_VTT[at], y))
            self.open[at] = False

    def _certify(self, some: NDArray[np.intp], M_VTT: NDArray[np.float64], v_VTK: NDArray[np.float64]) -> None:
        """Note what is proven within the gap, and so no longer open."""
        T = M_VTT.shape[1]
        y_VT = _duals(M_VTT, v_VTK)
        value = self._reached_V[some] = y_VT.sum(axis=1)
        lift, rounding = 0.9 * self.gap * value / T, _rounding(self._widest_V[some], y_VT)
        near = rounding < 0.1 * self.gap * value / T
        for number, at in enumerate(some):
            if near[number] and _is_psd(y_VT[number] + lift[number], M_VTT[number]):
                self.open[at] = False
                self._take(at, y_VT[number] + (lift[number] + rounding[number]))
        self.open[some] &= self.best[some] - value > self.gap * self.best[some]

    def _take(self, at: int, y_T: NDArray[np.float64]) -> None:
        """Note a certificate where it is better."""
        if (value := float(y_T.sum())) < self.best[at]:
            self.best[at], self.y_VT[at] = value, y_T


def _starts(pattern: NDArray[np.intp], T: int) -> NDArray[np.float64]:
    """Where ascents begin; the matrices of each pattern, which follow each other, begin alike."""
    counts = np.unique(pattern, return_counts=True)[1]
    draws = [np.random.default_rng(0).standard_normal((count, T, min(T, DIMENSIONS))) for count in counts]
    return np.concatenate([np.zeros((0, T, min(T, DIMENSIONS))), *draws])


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
        v_TK = _ascended(M)
        whole = np.zeros((T, v_TK.shape[1]))
        whole[pattern] = v_TK
        found.append((_value(M, v_TK), whole))
    return max(found, key=lambda pair: pair[0])[1]


def _ascended(M_TT: NDArray[np.float64]) -> NDArray[np.float64]:
    signs_T1 = _signs(M_TT[None])[0][:, None]
    most = bound(M_TT[None])[0] * (1 - 10 * GAP)
    if _value(M_TT, signs_T1) >= most:
        return signs_T1
    K = math.ceil((math.sqrt(8 * len(M_TT) + 1) - 1) / 2)
    v_TK = 0.3 * np.random.default_rng(0).standard_normal((1, len(M_TT), K)) + signs_T1
    _to_unit_(v_TK)
    for _ in range(STEPS):
        v_TK = M_TT @ v_TK
        _to_unit_(v_TK)
    leading = np.linalg.svd(v_TK[0])[0][:, :1]
    signs_T1 = np.where(leading * leading[0] < 0, -1.0, 1.0)
    return signs_T1 if _value(M_TT, signs_T1) >= most else v_TK[0]


def _value(M_TT: NDArray[np.float64], v_TK: NDArray[np.float64]) -> float:
    return float(np.sum((M_TT @ v_TK) * v_TK))


def _duals(M_VTT: NDArray[np.float64], v_VTK: NDArray[np.float64]) -> NDArray[np.float64]:
    """`<v_t, sum_s M[s,t] v_s>`."""
    return np.einsum("vtk,vtk->vt", M_VTT @ v_VTK, v_VTK)


def _to_unit_(v_VTK: NDArray[np.float64]) -> None:
    sizes_VT = np.einsum("vtk,vtk->vt", v_VTK, v_VTK)
    np.sqrt(sizes_VT, out=sizes_VT)
    np.maximum(sizes_VT, 1e-300, out=sizes_VT)
    v_VTK /= sizes_VT[:, :, None]


def _is_psd(y_T: NDArray[np.float64], M_TT: NDArray[np.float64]) -> bool:
    """Whether `diag(y) - M` has a Cholesky factor."""
    slack = np.negative(M_TT)
    slack.flat[:: len(slack) + 1] += y_T
    return bool(lapack.dpotrf(slack.T, lower=1, overwrite_a=1)[1] == 0)


def _feasible(M_TT: NDArray[np.float64], y_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """y, lifted until `diag(y) - M` is psd, rounding included."""
    missing = max(0.0, -float(np.linalg.eigvalsh(np.diag(y_T) - M_TT)[0]))
    return y_T + (missing + _rounding(np.abs(M_TT).sum(axis=1).max(), y_T))


def _rounding(widest: float | NDArray[np.float64], y_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far rounding can move an eigenvalue, or a pivot, of `diag(y) - M`; `widest` is the largest row of `|M|`."""
    return np.asarray(8 * y_VT.shape[-1] * np.finfo(float).eps * (widest + np.abs(y_VT).max(axis=-1)))
