"""What the machine has, and which threads work: chosen, not inherited.

Many small products run best with one BLAS thread each, and one thread of our own per core. Two threads that share a
product gain at most the number of cores, and lose far more when another process holds a core, because they wait for
each other: that made the accountant thirty times slower than one thread alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from sottovoce.errors import require_whole

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Block = TypeVar("Block")


class _Here(threading.local):
    """The threads that help this one, how many there are, and whether it has limited products to one thread already."""

    pool: ThreadPoolExecutor | None = None
    helpers = 0
    products_are_limited = False


_here = _Here()

OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""What OpenBLAS, which numpy and scipy bring, reads when it is loaded."""

WORKERS = min(4, os.cpu_count() or 1)
"""Threads of our own: sparse and batched products leave the others free to run."""


def physical_memory() -> float:
    """Bytes of physical memory; 8 GB where the platform does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 8e9


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  its BLAS must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def begin_with_one_thread() -> None:
    """Have numpy's and scipy's products take one thread from the start, where the user has not said how many."""
    os.environ.setdefault(OPENBLAS_THREADS, "1")


@contextmanager
def one_thread() -> Iterator[None]:
    """A context, or a decorator, in which numpy's and scipy's products take one thread.

    Within itself it has nothing to do, and costs nothing.
    """
    if _here.products_are_limited:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        _here.products_are_limited = True
        try:
            yield
        finally:
            _here.products_are_limited = False


@contextmanager
def threads(count: int | None = None) -> Iterator[int]:
    """Run on `count` threads, one unless told, and restore what was set before. Only this loads torch.

    Blocks of nodes are divided among so many threads (`for_each`); where there is one block, torch divides its work.

    >>> import torch
    >>> with threads() as used:
    ...     used, torch.get_num_threads()
    (1, 1)
    """
    used = 1 if count is None else count
    require_whole(used, f"{count!r} threads", 1, "leave it out for one thread")
    with _torch_threads(used), ThreadPoolExecutor(max(1, used - 1), thread_name_prefix="nodes") as pool:
        before = _here.pool, _here.helpers
        _here.pool, _here.helpers = pool, used - 1
        try:
            yield used
        finally:
            _here.pool, _here.helpers = before


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_threads() -> Iterator[None]:
    """Within `threads`, a context in which torch takes one thread, but for what it divides (`torch_divides`).

    After each operation torch's own threads wait in a loop for milliseconds, on the cores that ours need.
    """
    with _torch_threads(1) if _here.helpers else nullcontext():
        yield


@contextmanager
def torch_divides() -> Iterator[None]:
    """Within `threads`, a context in which torch divides each operation among all of them."""
    with _torch_threads(workers()) if _here.helpers else nullcontext():
        yield


def workers() -> int:
    """How many threads `for_each` has here."""
    return 1 + _here.helpers


def chunks(total: int, at_once: int) -> Iterator[slice]:
    """`range(total)` in slices of so many, one at least."""
    size = max(1, at_once)
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def for_each(act: Callable[[Block], object], blocks: Iterable[Block], *, alone: bool = False) -> None:
    """`act` on every block, in any order, on the threads that `threads` gave: this one, and those that help it.

    Each takes the next block when it is done with one, so that a thread whose core is taken holds up the others by one
    block at most. Within a block, torch takes one thread. What a block raises, this raises. Where blocks cannot be
    taken at once, this thread takes them `alone`, and torch divides the work within each.
    """
    left, pool = deque(blocks), _here.pool
    wanted = min(_here.helpers, len(left) - 1)
    if pool is None or wanted < 1 or alone:
        with torch_divides():
            for block in left:
                act(block)
        return

    def work() -> None:
        while left:
            try:
                block = left.popleft()
            except IndexError:  # another thread took the last one
                return
            act(block)

    with own_threads():
        helping = [pool.submit(work) for _ in range(wanted)]
        try:
            work()
        finally:
            left.clear()
            for helper in helping:
                if not helper.cancel():
                    helper.result()
