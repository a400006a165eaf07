"""How far a plan is: which algorithm it is at, and the share of its estimated time that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sottovoce.errors import InputError, Unaccountable
from sottovoce.planning.candidates import Candidate
from sottovoce.support.progress import share_heard

LEAST_SECONDS = 0.01
"""What any algorithm takes, also one that is refused at once."""


class PlanProgress(NamedTuple):
    """So many of all algorithms are done; the one at hand, if there is any; and the share of all time that is done."""

    done: int
    total: int
    algorithm: str
    share: float


class CountedPlan:
    """Counts algorithms, and the seconds that each was estimated to take; all alike where none were."""

    def __init__(
        self, every: Sequence[Candidate], seconds: Sequence[float] | None, hear: Callable[[PlanProgress], None] | None
    ) -> None:
        self._seconds = [max(LEAST_SECONDS, one) for one in seconds or [1.0] * len(every)]
        self._hear, self._done, self._before, self._share = hear, 0, 0.0, 0.0

    @contextmanager
    def candidate(self, one: Candidate) -> Iterator[None]:
        """The next algorithm, done or refused when this ends."""
        seconds = self._seconds[self._done]
        with share_heard(lambda share: self._tell(one.name, self._before + seconds * share)):
            try:
                yield
            except (InputError, Unaccountable):
                self._finish(seconds)
                raise
        self._finish(seconds)

    def _finish(self, seconds: float) -> None:
        self._done += 1
        self._before += seconds
        self._tell("", self._before)

    def _tell(self, algorithm: str, seconds: float) -> None:
        """What is told never falls: an account that is made again is no step back."""
        self._share = max(self._share, min(1.0, seconds / sum(self._seconds)))
        if self._hear is not None:
            self._hear(PlanProgress(self._done, len(self._seconds), algorithm, self._share))
