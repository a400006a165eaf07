"""What whoever starts a run may be called with while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sottovoce.core.messages import PlayedRound
    from sottovoce.run.training_run import RunState

Progress: TypeAlias = Callable[[int, int], None]
"""`progress(done, total)`: how far it is."""

Note: TypeAlias = Callable[[str], None]
"""`note(line)`: something that whoever started it should know."""

RoundCallback: TypeAlias = "Callable[[PlayedRound, RunState], None]"
"""Called after each round with the round as it was played, and where the run stands after it."""


def call_all(*callbacks: RoundCallback | None) -> RoundCallback:
    """One callback that calls all of these that are given, in turn."""

    def call(played: PlayedRound, state: RunState) -> None:
        for callback in callbacks:
            if callback is not None:
                callback(played, state)

    return call
