"""C and the error over rounds, drawn with characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHADES = " .:-=+*#%@"
BARS = "▁▂▃▄▅▆▇█"


def matrix(C: Array, *, most: int = 40) -> str:
    """The size of C's entries, darker for larger, on a logarithmic scale of three decades; large C by blocks.

    >>> print(matrix(np.array([[1.0, 0.0], [0.5, 1.0]])))
    @@
    %%@@
    """
    size = -(-len(C) // most)
    edges = range(0, len(C), size)
    shown = np.array([[np.abs(C[i : i + size, j : j + size]).max() for j in edges] for i in edges])
    with np.errstate(divide="ignore"):
        level = 1 + np.log10(shown / shown.max()) / 3
    index = np.where(level > 0, np.maximum(1, np.round(level * (len(SHADES) - 1))), 0).astype(int)
    return "\n".join("".join(2 * SHADES[k] for k in row).rstrip() for row in index)


def curve(values: Array, *, most: int = 72) -> str:
    """A line of bars, from zero to the largest value.

    >>> curve(np.array([0.0, 1.0, 2.0]))
    '▁▅█'
    """
    size = -(-len(values) // most)
    shown = np.array([values[i : i + size].mean() for i in range(0, len(values), size)])
    index = np.round(shown / max(shown.max(), 1e-300) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[k] for k in index)
