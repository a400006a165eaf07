"""Changes of data: by what the two data sets of a guarantee differ, in which rounds that can show, and how likely."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError


class Adjacency(StrEnum):
    """Whose data differs: all data of a node, or one of its records."""

    USER = "user"
    RECORD = "record"


class Change(StrEnum):
    """How it differs: replaced by other data, or made to count as nothing while the number of records stays public."""

    REPLACE = "replace"
    ZERO_OUT = "zero-out"


Choice = TypeVar("Choice", Adjacency, Change)


def parse_adjacency(spec: str) -> Adjacency:
    """`user` or `record`.

    >>> parse_adjacency("record")
    <Adjacency.RECORD: 'record'>
    """
    return _parse("adjacency", spec, Adjacency)


def parse_change(spec: str) -> Change:
    """`replace` or `zero-out`."""
    return _parse("change", spec, Change)


def _parse(name: str, spec: str, known: type[Choice]) -> Choice:
    try:
        return known(spec)
    except (ValueError, TypeError):
        raise InputError(f"{name} {spec!r:.60}", f"known: {', '.join(known)}", "choose one of them") from None


# --- participation ---------------------------------------------------------------------------------------------------


LONGEST = 10**9
"""More rounds than any run has."""

LEAST_SHARE = 1e-9
"""A node with ten million records that draws a smaller share of them draws none in a hundred rounds."""

SHUFFLED = "shuffle"
"""In every epoch of B rounds each record takes part once, in any of them."""

SAMPLED = "cyclic-poisson"
"""Records are dealt into B parts, and each record of the next part is drawn with probability SHARE."""

ALLOCATED = "allocate"
"""Each record draws by itself in which rounds it takes part: KxB, in one of B rounds of each of K epochs; or k/b, in k
of b rounds in all."""


@dataclass(frozen=True)
class Participation:
    """In which rounds a changed record or user can show: every round, or k times, b rounds apart.

    With a `share` below 1 it shows in each of these rounds with that probability, drawn by itself: what counts on that
    asks for it, and all other figures are about a change that shows whenever it can. `shuffled`: once in each epoch of
    `apart` rounds, in any of them, so that it may show in two rounds that follow each other.
    """

    times: int | None = None
    apart: int = 1
    share: float = 1.0
    shuffled: bool = False

    def __str__(self) -> str:
        if self.shuffled:
            return f"{SHUFFLED}:{self.apart}"
        if self.share < 1:
            return f"{SAMPLED}:{self.share!r}x{self.apart}"
        return "every" if self.times is None else f"{self.times}x{self.apart}"

    @classmethod
    def sampled(cls, share: float, apart: int) -> Participation:
        """Every `apart` rounds with probability `share`, for as long as the run lasts."""
        return cls(max(1, LONGEST // apart), apart, share)

    def patterns(self, rounds: int) -> list[NDArray[np.intp]]:
        """The sets of rounds, one for each first round; patterns inside another are left out.

        Shuffled epochs have too many to list. They are within all rounds, which stand for them: see `largest_sum` and
        `privacy.worst_case` for what is less.

        >>> [p.tolist() for p in parse_participation("2x3").patterns(6)]
        [[0, 3], [1, 4], [2, 5]]
        >>> [p.tolist() for p in parse_participation("2x3").patterns(8)]
        [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7]]
        """
        return [np.arange(rounds)[pattern] for pattern in self._slices(rounds)]

    def _slices(self, rounds: int) -> list[slice]:
        """The patterns as slices of all rounds."""
        if self.times is None:
            return [slice(None)]
        length, starts = self.times * self.apart, range(self.count(rounds))
        return [slice(start, start + length, self.apart) for start in starts]

    def possible(self, rounds: int) -> list[NDArray[np.intp]]:
        """Patterns in which a change can really show: `patterns`, and of shuffled epochs the first rounds of all."""
        return [np.arange(0, rounds, self.apart)] if self.shuffled else self.patterns(rounds)

    def largest_sum(self, each_TV: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest sum over the rounds of a pattern, of what each round counts for by itself.

        >>> each = np.array([[1.0], [5.0], [2.0], [3.0]])
        >>> [float(parse_participation(word).largest_sum(each)[0]) for word in ("every", "2x2", "shuffle:2")]
        [11.0, 8.0, 8.0]
        """
        T = len(each_TV)
        if self.shuffled:
            return np.add.reduce([each_TV[first : first + self.apart].max(axis=0) for first in range(0, T, self.apart)])
        return np.asarray(np.max([each_TV[pattern].sum(axis=0) for pattern in self._slices(T)], axis=0))

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
        return self if self.times is None else replace(self, times=min(self.times, -(-rounds // self.apart)))

    def check(self, rounds: int) -> None:
        """Refuse a scheme that is longer than the run; one of `sampled` ends with the run."""
        if (
            self != self.sampled(self.share, self.apart)
            and self.times is not None
            and (self.times - 1) * self.apart >= rounds
        ):
            raise InputError(
                f"participation {self} in {rounds} rounds",
                "K times, B rounds apart, must fit into the run",
                f"use at least {(self.times - 1) * self.apart + 1} rounds",
            )


@dataclass(frozen=True)
class Sampling:
    """How a record comes into a batch: with probability `share`, or as one of `share * size` out of `size`.

    It may be drawn every `apart` rounds. Or it is in `times` rounds of every `epoch`, which it draws by itself.
    """

    share: float
    size: int | None = None
    apart: int = 1
    epoch: int = 1
    times: int = 1

    @property
    def certain(self) -> bool:
        """Whether a record is drawn whenever it may be, so that chance hides nothing."""
        return self.size is None and self.share == 1 and self.among == 1

    @property
    def among(self) -> int:
        """Out of how many rounds a record draws one."""
        return self.epoch // self.times

    def releases(self, rounds: int) -> int:
        """Of how many releases by chance a run consists; of a record that is drawn for certain, of one."""
        return 1 if self.certain else -(-rounds // (self.apart * self.epoch)) * self.times

    @property
    def change(self) -> Change:
        """What amplification by this sampling is about: Poisson batches a record that counts as nothing or not, and
        batches of a fixed size one that is replaced.
        """
        return Change.ZERO_OUT if self.size is None else Change.REPLACE


def draws_by_chance(participation: str) -> bool:
    """Whether batches are drawn by chance, rather than as `every` and `KxB` say."""
    return participation.partition(":")[0] in ("poisson", "fixed", SAMPLED, ALLOCATED)


def parse_participation(spec: str | Participation) -> Participation:
    """`every`, `KxB`: K times, B rounds apart; `shuffle:B`: once in each epoch of B rounds, in any of them; or
    `cyclic-poisson:SHARExB`: every B rounds with probability SHARE.

    >>> parse_participation("cyclic-poisson:0.2x4").within(10)
    Participation(times=3, apart=4, share=0.2, shuffled=False)
    """
    if isinstance(spec, Participation):
        return spec
    if isinstance(spec, str) and spec.startswith(f"{SAMPLED}:"):
        return Participation.sampled(*parse_cyclic_poisson(spec))
    if isinstance(spec, str) and spec.startswith(f"{SHUFFLED}:"):
        return Participation(apart=parse_shuffle(spec), shuffled=True)
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", spec) if isinstance(spec, str) else None
    if not isinstance(spec, str) or (spec != "every" and not found):
        raise InputError(
            f"participation {spec!r:.60}",
            f"it must be 'every', KxB, {SHUFFLED}:B or {SAMPLED}:SHARExB; commands and plans also take poisson:SHARE "
            "and fixed:SIZE",
            "write 4x16, for example: 4 times, 16 rounds apart",
        )
    if found is None:
        return Participation()
    times, apart = (int(part) for part in found.groups())
    if times * apart > LONGEST:
        raise InputError(f"participation {spec}", f"no run has more than {LONGEST} rounds", "correct it")
    return Participation(times, apart)


def parse_shuffle(spec: str) -> int:
    """B of `shuffle:B`."""
    found = re.fullmatch(rf"{SHUFFLED}:([1-9]\d{{0,8}})", spec)
    if found is None:
        raise InputError(
            f"{spec:.60}", f"it must be {SHUFFLED}:B, with B rounds in an epoch", f"write {SHUFFLED}:10, for example"
        )
    return int(found[1])


def parse_cyclic_poisson(spec: str) -> tuple[float, int]:
    """SHARE and B of `cyclic-poisson:SHARExB`."""
    found = re.fullmatch(rf"{SAMPLED}:([\d.]+(?:[eE][+-]?\d+)?)x([1-9]\d{{0,8}})", spec)
    try:
        share = float(found[1]) if found else 0.0
    except ValueError:
        share = 0.0
    if found is None or not LEAST_SHARE <= share <= 1:
        raise InputError(
            f"{spec:.60}", f"it must be {SAMPLED}:SHARExB, with SHARE from {LEAST_SHARE:g} to 1 and B parts",
            f"write {SAMPLED}:0.2x4, for example",
        )  # fmt: skip
    return share, int(found[2])


def parse_allocation(spec: str) -> tuple[int, int, int]:
    """Epochs, rounds in each, and in how many of these a record takes part: of `allocate:KxB`, or `allocate:k/b`.

    >>> parse_allocation("allocate:4x16"), parse_allocation("allocate:2/50")
    ((4, 16, 1), (1, 50, 2))
    """
    found = re.fullmatch(rf"{ALLOCATED}:([1-9]\d{{0,8}})([x/])([1-9]\d{{0,8}})", spec)
    first, second = (int(found[1]), int(found[3])) if found else (2, 1)
    if found is None or (found[2] == "/" and second % first) or first * second > LONGEST:
        raise InputError(
            f"{spec:.60}",
            f"it must be {ALLOCATED}:KxB, K epochs of B rounds, or {ALLOCATED}:k/b, k of b rounds, b a multiple of k",
            f"write {ALLOCATED}:4x16, for example",
        )
    return (first, second, 1) if found[2] == "x" else (1, second, first)
