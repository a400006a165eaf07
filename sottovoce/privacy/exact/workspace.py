"""Arrays that a thread makes once and uses again, for new memory costs more than what is computed in it."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Workspace(threading.local):
    """Each thread's own arrays, by name. Take one again only when nobody needs what was in it.

    >>> workspace = Workspace()
    >>> first = workspace.take("squares", (2, 3))
    >>> np.shares_memory(first, workspace.take("squares", (3, 1)))
    True
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, np.dtype[Any]], NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
        """An array of this shape, with anything in it."""
        key, size = (name, np.dtype(dtype)), math.prod(shape)
        if key not in self._held or self._held[key].size < size:
            self._held.pop(key, None)
            self._held[key] = np.empty(size, dtype)
        return self._held[key][:size].reshape(shape)


WORKSPACE = Workspace()
