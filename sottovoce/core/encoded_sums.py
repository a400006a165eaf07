"""Noise that is correlated over rounds inside secure sums: encode, add fresh noise, sum, decode.

In round t a node contributes `sum_s C[t,s] g_s + z_t`, of its own gradients up to then, with fresh noise z_t. All learn
the sum S_t over nodes, and everybody makes the same of it by the public C:

    ghat_t = (S_t - sum_(s<t) C[t,s] ghat_s) / C[t,t]

which is the sum of gradients plus that of `(C^-1 z)_t`. What is seen are sums with fresh noise, as whole steps.

A round whose sum failed is gone: its gradient and its ghat count as zeros from then on. A record that showed in it has
then told less than its whole column of C, if C has at most as many bands as rounds lie between two times that a record
shows, or no negative entry (`check_encoding`).

Gradients that are remembered have no noise: they are as secret as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.correlation import Correlation


class Remembered(NamedTuple):
    """Gradients and decoded sums of the last rounds, newest first, and how many rounds there were."""

    gradients: tuple[Rows | None, ...]
    sums: tuple[Rows | None, ...]
    rounds: int


@dataclass(frozen=True)
class Encoding:
    """By a lower-triangular C, as far back as its memory goes."""

    correlation: Correlation

    def nothing(self, zeros: Rows | None) -> Remembered:
        """Before the first round; None in place of zeros where nothing will be remembered."""
        none = (zeros,) * self.correlation.memory
        return Remembered(none, none, 0)

    def encode(self, before: Remembered, gradient: Rows, round: int) -> tuple[Rows, Remembered]:
        """What enters a sum, in float64, and what is remembered."""
        now = self._at(before, round)
        kept = (arrays.read_only(gradient), *now.gradients)[: len(now.gradients)]
        return self._combined(round, gradient, now.gradients, 1.0), now._replace(gradients=kept)

    def decode(self, now: Remembered, total: Rows, round: int) -> tuple[Rows, Remembered]:
        """What a sum of encoded gradients is worth, and what is remembered."""
        last = float(self.correlation.row(round)[round])
        found = self._combined(round, total, now.sums, -1.0) * (1 / last)
        kept = tuple(arrays.in_precision_of(one, found) for one in now.sums[:1] if one is not None)
        return found, Remembered(now.gradients, (kept + now.sums)[: len(now.sums)], round + 1)

    def _combined(self, round: int, newest: Rows, earlier: tuple[Rows | None, ...], sign: float) -> Rows:
        """The newest, times its entry of C where `sign` is positive, and what C makes of the earlier ones."""
        row = self.correlation.row(round)
        total = arrays.doubled(newest) * (float(row[round]) if sign > 0 else 1.0)
        for back, rows in enumerate(earlier[:round], start=1):
            if row[round - back] and rows is not None:
                total = total + arrays.doubled(rows) * (sign * float(row[round - back]))
        return total

    def _at(self, before: Remembered, round: int) -> Remembered:
        """Zeros for the rounds since the last, which failed."""
        missed = min(round - before.rounds, len(before.gradients))
        if missed <= 0:
            return before
        zeros = tuple(0.0 * one for one in before.gradients[:missed] if one is not None)
        kept = len(before.gradients) - missed
        return Remembered(zeros + before.gradients[:kept], zeros + before.sums[:kept], round)

    def rounding(self, rounds: int) -> float:
        """By how much more rounding counts than that of one value over the sensitivity of one.

        Every row of C that a record shows in is rounded, at most all of them, and the record moves them by at least
        its shortest column. Both ends of a change add errors of their own to C g, far below a step.
        """
        return float(1.125 * np.sqrt(rounds / self.correlation.column_squares(rounds).min()))
