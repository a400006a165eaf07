"""What the machine has, and which threads work.

Many small products run best with one BLAS thread each, and one thread of our own per core.

On a busy machine two BLAS threads wait for each other on every small product; that made the accountant thirty times
slower than one thread alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

WORKERS = min(4, os.cpu_count() or 1)
"""Threads of our own: sparse and batched products leave the others free to run."""


def memory() -> float:
    """Bytes of physical memory; 8 GB where the platform does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 8e9


@lru_cache(maxsize=1)
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  its BLAS must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """A context, or a decorator, in which numpy's and scipy's products take one thread."""
    with _controller().limit(limits=1, user_api="blas"):
        yield
