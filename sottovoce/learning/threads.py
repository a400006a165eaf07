"""How many threads torch uses: chosen, not inherited.

Small batched products gain at most the number of cores from threads, and lose far more when another process holds
a core, because the threads wait for each other. So one thread is the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sottovoce.errors import InputError

DEFAULT = 1


@contextmanager
def threads(count: int | None = None) -> Iterator[int]:
    """Run torch on `count` threads, one unless told, and restore what was set before.

    >>> with threads() as used:
    ...     used, torch.get_num_threads()
    (1, 1)
    """
    used = DEFAULT if count is None else count
    if isinstance(used, bool) or not isinstance(used, int) or used < 1:
        raise InputError(f"{count!r} threads", "a whole number from 1 is needed", "leave it out for one thread")
    before = torch.get_num_threads()
    torch.set_num_threads(used)
    try:
        yield used
    finally:
        torch.set_num_threads(before)
