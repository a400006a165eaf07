"""Memory for the rows of all nodes: kept while rounds are played, and used again when nobody refers to it any more.

New memory costs more than what is done with it: the system clears every page, and a virtual machine may have to ask for
it first. With 10,000 models of 4,810 numbers a round took 40 % longer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

SMALLEST = 1 << 20
"""Bytes. What is smaller comes from the heap, which keeps it."""

UNUSED = (lambda arrays: sys.getrefcount(arrays[0]))([np.empty(0)])
"""References to an array that only a list refers to, and whoever asks, as this interpreter counts them."""


class RowMemory:
    """Arrays of bytes. Views, and tensors that share an array's memory, refer to it, so that it is not used twice."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.uint8]] = []
        self._lock = Lock()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array with whatever is in it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < SMALLEST:
            return np.empty(shape, dtype=dtype)
        with self._lock:
            for number in range(len(self._arrays)):
                if sys.getrefcount(self._arrays[number]) == UNUSED and len(self._arrays[number]) == size:
                    return self._arrays[number].view(dtype).reshape(shape)
            self._arrays.append(np.empty(size, dtype=np.uint8))
            return self._arrays[-1].view(dtype).reshape(shape)

    def drop_unused(self) -> None:
        """Keep only what is in use, before something else needs memory."""
        with self._lock:
            used = [sys.getrefcount(self._arrays[number]) > UNUSED for number in range(len(self._arrays))]
            self._arrays = [array for array, in_use in zip(self._arrays, used, strict=True) if in_use]

    def clear(self) -> None:
        """Keep nothing; whoever uses an array has it still."""
        with self._lock:
            self._arrays.clear()


ROW_MEMORY = RowMemory()


@contextmanager
def kept_memory() -> Iterator[None]:
    """While rounds are played; afterwards nothing is kept."""
    try:
        yield
    finally:
        ROW_MEMORY.clear()
