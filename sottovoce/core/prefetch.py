"""Noise drawn ahead: while a block is used, or a gradient computed, a thread draws the next; the numbers are the same.

Draws do not depend on gradients, and numpy leaves other threads free to run while it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Generic, TypeVar

Block = TypeVar("Block")


class Prefetcher(Generic[Block]):
    """The blocks of one round after the other. One block is drawn before it is asked for, never more.

    `draw(round)` makes the blocks of a round; what it raises, `take` raises. The thread lives until `close`.
    """

    def __init__(self, draw: Callable[[int], Iterator[Block]], rounds: range) -> None:
        self.round = rounds.start
        self._blocks: Iterator[Block | None] = (block for round in rounds for block in chain(draw(round), [None]))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._next = self._start()

    def take(self) -> Iterator[Block]:
        """The blocks of round `self.round`, which is over when they are."""
        while (block := self._next.result()) is not None:
            self._next = self._start()
            yield block
        self.round += 1
        self._next = self._start()

    def _start(self) -> Future[Block | None]:
        return self._thread.submit(next, self._blocks, None)

    def close(self) -> None:
        """Wait for the draw that is under way, and end the thread."""
        self._thread.shutdown(cancel_futures=True)
