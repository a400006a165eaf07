"""Participation: in which rounds a change of data can show."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError

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

        >>> [p.tolist() for p in parse_participation("2x3").patterns(6)]
        [[0, 3], [1, 4], [2, 5]]
        >>> [p.tolist() for p in parse_participation("2x3").patterns(8)]
        [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7]]
        """
        if self.times is None:
            return [np.arange(rounds)]
        length = self.times * self.apart
        every = [np.arange(start, min(rounds, start + length), self.apart) for start in range(rounds)]
        return [pattern for pattern in every if pattern[0] < self.apart or len(pattern) == self.times]

    def count(self, rounds: int) -> int:
        """How many patterns there are.

        >>> parse_participation("2x3").count(6), parse_participation("2x3").count(8)
        (3, 5)
        """
        if self.times is None:
            return 1
        return max(min(self.apart, rounds), rounds - (self.times - 1) * self.apart)

    def within(self, rounds: int) -> Participation:
        """What is left of the scheme in a run of so many rounds."""
        return self if self.times is None else Participation(min(self.times, -(-rounds // self.apart)), self.apart)

    def check(self, rounds: int) -> None:
        """Refuse a scheme that is longer than the run."""
        if self.times is not None and (self.times - 1) * self.apart >= rounds:
            raise InputError(
                f"participation {self} in {rounds} rounds",
                "k times, b apart, must fit into the run",
                f"use at least {(self.times - 1) * self.apart + 1} rounds",
            )


def parse_participation(spec: str | Participation) -> Participation:
    """`every`, or `KxB`: K times, B rounds apart."""
    if isinstance(spec, Participation):
        return spec
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", spec) if isinstance(spec, str) else None
    if not isinstance(spec, str) or (spec != "every" and not found):
        raise InputError(f"participation {spec!r:.60}", "it is 'every' or KxB, such as 4x16", "correct it")
    if found is None:
        return Participation()
    times, apart = (int(part) for part in found.groups())
    if times * apart > LONGEST:
        raise InputError(f"participation {spec}", f"no run has more than {LONGEST} rounds", "correct it")
    return Participation(times, apart)
