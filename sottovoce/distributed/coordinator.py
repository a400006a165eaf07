"""Who carries out a run: one process alone, or one of several ranks. What differs between them is asked here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.run.training_run import TrainingRun

Placed: TypeAlias = tuple[NDArray[np.intp], ...]

Answer = TypeVar("Answer")


class Coordinator(Protocol):
    """What a run asks of those who carry it out."""

    @property
    def rank(self) -> int:
        """Which of them this process is; rank 0 writes what is written once."""

    @property
    def size(self) -> int:
        """How many there are."""

    def agree(self, about: dict[str, Any]) -> None:
        """Refuse to begin where ranks differ in any of these, saying in what."""

    def first(self, act: Callable[[], Answer]) -> Answer:
        """What rank 0 makes of it, at all ranks; what it raises, all raise."""

    def each(self, act: Callable[[], Answer]) -> Answer:
        """What this rank makes of it; if any rank raises, all do."""

    def place(self, training_run: TrainingRun) -> Placed:
        """Each rank's nodes; refuses more ranks than nodes."""

    def share(self, training_run: TrainingRun, placed: Placed) -> TrainingRun:
        """This rank's part of a trial."""

    def gathered(self, thing: Any) -> list[Any]:
        """Something small of every rank, at every rank."""

    def most(self, *numbers: int) -> list[int]:
        """The largest over ranks of each number."""

    def failing(self) -> AbstractContextManager[None]:
        """While rounds are played: what one rank raises, all raise."""


class SingleProcess:
    """One process."""

    rank, size = 0, 1

    def agree(self, about: dict[str, Any]) -> None:
        """There is nobody to differ from."""

    def first(self, act: Callable[[], Answer]) -> Answer:
        """Done."""
        return act()

    def each(self, act: Callable[[], Answer]) -> Answer:
        """Done."""
        return act()

    def place(self, training_run: TrainingRun) -> Placed:
        """All of them."""
        return (np.arange(training_run.topology.n),)

    def share(self, training_run: TrainingRun, placed: Placed) -> TrainingRun:
        """All of it."""
        return training_run

    def gathered(self, thing: Any) -> list[Any]:
        """The one."""
        return [thing]

    def most(self, *numbers: int) -> list[int]:
        """The same."""
        return list(numbers)

    def failing(self) -> AbstractContextManager[None]:
        """There is nobody to tell."""
        return nullcontext()
