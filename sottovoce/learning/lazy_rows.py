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

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 500
"""So many rows are turned into numbers at a time: looking them up makes copies of eight bytes a value."""

Floats = NDArray[np.float32]

UNIT_NORM = 1 + 2.0**-16
"""The norm that is declared for rows scaled to norm one: they are rounded to float32."""

SMALLEST_NORM, LARGEST_NORM = 1e-30, 1e30
"""Bounds on norms lie between these: within the range of float32, with room for rounding."""


def clip_to_norm(rows: Floats, bound: float) -> Floats:
    """Each row scaled down to a norm of at most `bound`, by itself; rows within the bound stay as they are, to the bit.

    Norms are computed in float64, and scaled rows end so far below the bound that rounding to float32 keeps it. A row
    with a value that is not finite becomes zero: no factor would bring it within the bound.
    """
    norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    finite = np.where(np.isfinite(norms), rows, 0)
    scaled = finite * (bound * (1 - 2.0**-20) / np.maximum(norms, SMALLEST_NORM))
    return np.where(norms > bound, scaled, finite).astype(np.float32)


def scale_to_norm_one(rows: Floats) -> Floats:
    """Each row over its norm; rows of zeros stay. In float64, so that no square leaves the range."""
    precise = rows.astype(np.float64)
    lengths = np.linalg.norm(precise, axis=1, keepdims=True)
    return (precise / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


class Examples:
    """Rows as they are stored, flat, and what makes float32 of some of them; without that they are float32 already."""

    def __init__(
        self, stored: NDArray[Any], act: Callable[[NDArray[Any]], Floats] | None = None, width: int | None = None
    ) -> None:
        self._stored, self._act, self._width = stored, act, width
        self._norm_bound: float | None = None

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def norm_bound(self) -> float | None:
        """The declared bound on the Euclidean norm of every row, which `clipped` has made true; None without one.

        It depends on settings only, never on the rows.
        """
        return self._norm_bound

    @property
    def width(self) -> int:
        """Values of one row."""
        return int(self._stored.shape[1]) if self._width is None else self._width

    def digest(self) -> bytes:
        """Of the rows as they are read: the same stored rows may be scaled in several ways."""
        digest = hashlib.blake2b(repr((len(self), self.width)).encode())
        for some in self.chunks():
            digest.update(np.ascontiguousarray(some).data)
        return digest.digest()

    def __getitem__(self, rows: slice | list[int] | NDArray[np.int64]) -> Floats:
        chosen = self._stored[rows]
        if self._act is None:
            return chosen
        found = np.empty((len(chosen), self.width), dtype=np.float32)
        for start in range(0, len(chosen), AT_ONCE):
            with np.errstate(over="ignore", invalid="ignore"):  # of hostile rows, which become zeros
                found[start : start + AT_ONCE] = self._act(chosen[start : start + AT_ONCE])
        return found

    def chunks(self) -> Iterator[Floats]:
        """All rows in order, some at a time."""
        return (self[start : start + AT_ONCE] for start in range(0, len(self), AT_ONCE))

    def then(self, act: Callable[[Floats], Floats], width: int | None = None) -> Examples:
        """The same rows, changed by `act`, each by itself; `width` if they have another one then."""
        before, wide = self._act, self.width if width is None else width
        return Examples(self._stored, act if before is None else lambda some: act(before(some)), wide)

    def clipped(self, norm_bound: float) -> Examples:
        """The same rows, none longer than the bound, which is declared by it."""
        found = self.then(partial(clip_to_norm, bound=norm_bound))
        found._norm_bound = norm_bound
        return found

    def unit_norm(self) -> Examples:
        """The same rows, each scaled to norm one."""
        return self.then(scale_to_norm_one).clipped(UNIT_NORM)

    def only(self, rows: NDArray[np.int64]) -> Examples:
        """Some of the rows, in that order, with what is declared about all of them; nothing is kept of the others."""
        found = Examples(self[rows])
        found._norm_bound = self._norm_bound
        return found
