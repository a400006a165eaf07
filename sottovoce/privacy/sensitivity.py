"""Who takes part when, and what the worst change of a victim's gradients costs.

For a victim the loss is `max sum_{s,t} M[s,t] <delta_s, delta_t>` over changes with `||delta_t|| <= 1` in the rounds
of a participation pattern. Its value is a semidefinite programme, `max {<M, R> : R psd, R_tt = 1}`; any y with
`diag(y) - M` psd bounds it by `sum y`, and that dual value is what is reported.

    >>> M = np.array([[1.0, -0.9], [-0.9, 1.0]])
    >>> float(worst_case(M[None], participation("every"), rounds=2)[0].round(6))
    3.8

All-ones would say 0.2 here: it is no bound (ACCOUNTING, section 2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError

GAP = 1e-5
"""How far, relatively, a reported value may be above the optimum; `sum |M|` is reported where it is near enough."""

STEPS = 2000

LONGEST = 10**9
"""More rounds than any run has."""


@dataclass(frozen=True)
class Participation:
    """In which rounds a changed record or user can show: every round, or k times, b rounds apart."""

    times: int | None = None
    apart: int = 1

    def __str__(self) -> str:
        return "every" if self.times is None else f"{self.times}x{self.apart}"

    def patterns(self, rounds: int) -> list[NDArray[np.intp]]:
        """The sets of rounds, one for each first round; patterns inside another are left out.

        >>> [p.tolist() for p in participation("2x3").patterns(6)]
        [[0, 3], [1, 4], [2, 5]]
        >>> [p.tolist() for p in participation("2x3").patterns(8)]
        [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7]]
        """
        if self.times is None:
            return [np.arange(rounds)]
        every = [np.arange(start, rounds, self.apart)[: self.times] for start in range(rounds)]
        return [pattern for pattern in every if pattern[0] < self.apart or len(pattern) == self.times]

    def check(self, rounds: int) -> None:
        """Refuse a scheme that is longer than the run."""
        if self.times is not None and (self.times - 1) * self.apart >= rounds:
            raise InputError(
                f"participation {self} in {rounds} rounds",
                "k times, b apart, must fit into the run",
                f"use at least {(self.times - 1) * self.apart + 1} rounds",
            )


def participation(spec: str | Participation) -> Participation:
    """`every`, or `KxB`: K times, B rounds apart."""
    if isinstance(spec, Participation):
        return spec
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", spec)
    if spec != "every" and not found:
        raise InputError(f"participation {spec!r}", "it is 'every' or KxB, such as 4x16", "correct it")
    if found is None:
        return Participation()
    times, apart = (int(part) for part in found.groups())
    if times * apart > LONGEST:
        raise InputError(f"participation {spec}", f"no run has more than {LONGEST} rounds", "correct it")
    return Participation(times, apart)


def worst_case(M_VTT: NDArray[np.float64], scheme: Participation, rounds: int) -> NDArray[np.float64]:
    """mu^2 of each victim: the largest over patterns of the semidefinite value, as a sound upper bound."""
    values = [bound(M_VTT[:, pattern[:, None], pattern]) for pattern in scheme.patterns(rounds)]
    return np.max(values, axis=0)


def absolute_sum(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum |M|`: sound, and quick."""
    return np.abs(M_VTT).sum(axis=(1, 2))


def bound(M_VTT: NDArray[np.float64]) -> NDArray[np.float64]:
    """The semidefinite value of each matrix, from above."""
    M_VTT = (M_VTT + M_VTT.transpose(0, 2, 1)) / 2
    quick, plain = absolute_sum(M_VTT), M_VTT.sum(axis=(1, 2))
    out = quick.copy()
    loose = np.flatnonzero(quick - plain > GAP * quick)
    if loose.size:
        out[loose] = np.minimum(quick[loose], dual_bound(M_VTT[loose]))
    return out


def dual_bound(M_VTT: NDArray[np.float64], gap: float = GAP) -> NDArray[np.float64]:
    """`sum y` with `diag(y) - M` psd, y from the stationary point of a low-rank ascent.

    Unit vectors v_t in enough dimensions maximise `f = sum M[s,t] <v_s, v_t>`. M is psd, so f is convex and moving
    every v_t along `sum_s M[s,t] v_s` at once can only raise it; taking M's smallest eigenvalue off its diagonal,
    which changes f by a constant, and momentum make that quick. At the optimum `y_t = <v_t, sum_s M[s,t] v_s>` is
    dual feasible. What is missing to feasibility is added to every y, with the rounding error of the eigenvalue: the
    result is sound wherever the ascent stopped, and within `gap` of the optimum unless it ran out of steps.
    """
    best = np.full(len(M_VTT), np.inf)
    open_ = np.arange(len(M_VTT))
    least, directions = np.linalg.eigh(M_VTT)
    T = M_VTT.shape[1]
    lifted_VTT = M_VTT - 0.999 * np.maximum(least[:, :1, None], 0) * np.eye(T)
    v_VTK = 0.3 * np.random.default_rng(0).standard_normal((len(M_VTT), T, min(T, int(np.sqrt(2 * T)) + 2)))
    v_VTK = _unit(v_VTK + np.sign(directions[:, :, -1:]))
    before_VTK = v_VTK
    for step in range(STEPS):
        ahead = _unit(v_VTK + step / (step + 3) * (v_VTK - before_VTK))
        before_VTK, v_VTK = v_VTK, _unit(lifted_VTT[open_] @ ahead)
        if step % 25 == 24:
            y_VT = np.einsum("vtk,vtk->vt", M_VTT[open_] @ v_VTK, v_VTK)
            best[open_] = np.minimum(best[open_], _feasible(M_VTT[open_], y_VT))
            going = best[open_] - y_VT.sum(axis=1) > gap * best[open_]
            open_, v_VTK, before_VTK = open_[going], v_VTK[going], before_VTK[going]
            if not open_.size:
                break
    return best


def _unit(v_VTK: NDArray[np.float64]) -> NDArray[np.float64]:
    return v_VTK / np.maximum(np.linalg.norm(v_VTK, axis=2, keepdims=True), 1e-300)


def _feasible(M_VTT: NDArray[np.float64], y_VT: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sum y` after lifting y until `diag(y) - M` is psd, rounding included."""
    T = y_VT.shape[1]
    slack = -M_VTT
    slack[:, np.arange(T), np.arange(T)] += y_VT
    scale = np.abs(M_VTT).sum(axis=2).max(axis=1) + y_VT.max(axis=1)
    missing = np.maximum(0.0, -np.linalg.eigvalsh(slack)[:, 0]) + 8 * T * np.finfo(float).eps * scale
    return y_VT.sum(axis=1) + T * missing
