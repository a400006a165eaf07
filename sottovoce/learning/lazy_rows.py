"""Training rows that become numbers when somebody asks for them.

Pixels stay bytes until then, so that a process which hosts a few nodes never holds the numbers of all:

    >>> bytes_ = np.array([[0, 255], [51, 102], [255, 0]], dtype=np.uint8)
    >>> pixels = Examples(bytes_, lambda some: some / np.float32(255))
    >>> pixels[[2, 0]]
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    >>> len(pixels), pixels.width
    (3, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 500
"""So many rows are turned into numbers at a time: looking them up makes copies of eight bytes a value."""

Floats = NDArray[np.float32]


class Examples:
    """Rows as they are stored, flat, and what makes float32 of some of them; without that they are float32 already."""

    def __init__(self, stored: NDArray[Any], act: Callable[[NDArray[Any]], Floats] | None = None) -> None:
        self._stored, self._act = stored, act

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def width(self) -> int:
        """Values of one row."""
        return int(self._stored.shape[1])

    def __getitem__(self, rows: Any) -> Floats:
        chosen = self._stored[rows]
        if self._act is None:
            return chosen
        found = np.empty(chosen.shape, dtype=np.float32)
        for start in range(0, len(chosen), AT_ONCE):
            found[start : start + AT_ONCE] = self._act(chosen[start : start + AT_ONCE])
        return found

    def chunks(self) -> Iterator[Floats]:
        """All rows in order, some at a time."""
        return (self[start : start + AT_ONCE] for start in range(0, len(self), AT_ONCE))

    def then(self, act: Callable[[Floats], Floats]) -> Examples:
        """The same rows, changed by `act`, each by itself."""
        before = self._act
        return Examples(self._stored, act if before is None else lambda some: act(before(some)))
