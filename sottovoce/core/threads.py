"""What the machine has, and which threads work: chosen, not inherited.

Many small products run best with one BLAS thread each, and one thread of our own per core. Two threads that share a
product gain at most the number of cores, and lose far more when another process holds a core, because they wait for
each other: that made the accountant thirty times slower than one thread alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from sottovoce.errors import InputError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

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


@contextmanager
def one_thread() -> Iterator[None]:
    """A context, or a decorator, in which numpy's and scipy's products take one thread."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def threads(count: int | None = None) -> Iterator[int]:
    """Run torch on `count` threads, one unless told, and restore what was set before. Only this loads torch.

    >>> import torch
    >>> with threads() as used:
    ...     used, torch.get_num_threads()
    (1, 1)
    """
    used = 1 if count is None else count
    if isinstance(used, bool) or not isinstance(used, int) or used < 1:
        raise InputError(f"{count!r} threads", "it must be a whole number, 1 or more", "leave it out for one thread")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(used)
    try:
        yield used
    finally:
        torch.set_num_threads(before)
