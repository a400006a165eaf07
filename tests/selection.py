"""Which cases of a law are fast: those that differ in kind. All others run with the slow tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import pytest

from tests.cases import FIXED, Case


def rest_slow(some: Iterable[Case]) -> list[object]:
    """All of these as parameters: every example on a fixed topology and on a changing one, which take turns; the rest
    with the slow tests.
    """
    found = []
    for number, (_, group) in enumerate(groupby(some, key=lambda case: str(case.example))):
        own = list(group)
        fixed, changing = ([case for case in own if (case.place in FIXED) is kind] for kind in (True, False))
        fast = [kind[number % len(kind)] for kind in (fixed, changing) if kind]
        found += [pytest.param(case, marks=() if case in fast else pytest.mark.slow, id=str(case)) for case in own]
    return found


def in_turn(rows: Iterable[object], columns: Sequence[object]) -> list[object]:
    """Every pair as parameters: each row with one column, which take turns; the rest with the slow tests."""
    return [
        pytest.param(row, column, marks=() if turn == number % len(columns) else pytest.mark.slow)
        for number, row in enumerate(rows)
        for turn, column in enumerate(columns)
    ]
