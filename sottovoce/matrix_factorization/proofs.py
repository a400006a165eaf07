"""What a matrix proves about the objective, wherever it comes from: a search, or a file that anybody may have written.

The bounds are those of `certificate` and `windows`. Each function here makes its matrix fit the theorem first, so that
any numbers at all give a bound that holds, and only those of a good search a bound that is close.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.matrix_factorization.certificate import nuclear, root
from sottovoce.matrix_factorization.feasible import Feasible

Array = NDArray[np.float64]


def bound_by_classes(F: Array, H: Array, classes: NDArray[np.intp], spans: Sequence[slice]) -> float:
    """The bound of Q = F F^T for every C that is block diagonal over `spans`: of all C, if there is one span.

    Entries of F between rounds of different classes or blocks are left out, and Q gets one diagonal for each class.
    """
    blocks = [np.where(np.equal.outer(classes[span], classes[span]), F[span, span], 0.0) for span in spans]
    scale, total = _common_diagonal(np.concatenate([(block**2).sum(axis=1) for block in blocks]), classes)
    parts = (nuclear(block * scale[span][:, None], H[span, span]) for span, block in zip(spans, blocks, strict=True))
    return sum(parts) ** 2 / total if total > 0 else 0.0


def bound_in_band(F: Array, H: Array, feasible: Feasible) -> float:
    """The bound of Q = F F^T for every C with the zeros of `feasible`.

    Where X may differ from zero, Q should not: what is left there by rounding counts against the bound, because no
    entry of X is larger than the sensitivity squared.
    """
    scale, total = _common_diagonal((F**2).sum(axis=1), feasible.classes)
    F = F * scale[:, None]
    total += float(np.abs((F @ F.T)[feasible.free]).sum())
    return nuclear(F, H) ** 2 / total if total > 0 else 0.0


def bound_by_windows(G: Array, H: Array, inside: Array) -> float:
    """The bound from a matrix G like X^-1 H X^-1: its diagonal weighs the windows, its correlations make R."""
    sizes = np.sqrt(np.maximum(np.diag(G), 1e-300))
    R = (G + G.T) / (2 * np.outer(sizes, sizes))
    np.fill_diagonal(R, 1.0)
    lifted = max(0.0, -float(linalg.eigvalsh(R, subset_by_index=(0, 0), check_finite=False)[0]))
    R = (R + lifted * np.eye(len(R))) / (1.0 + lifted)
    weights = optimize.nnls(inside, sizes**2)[0]
    total = float(weights.sum())
    return nuclear(root(R * ((inside * weights) @ inside.T)), H) ** 2 / total if total > 0 else 0.0


def _common_diagonal(squares: Array, classes: NDArray[np.intp]) -> tuple[Array, float]:
    """By what to scale rows with these squared norms to the mean of their class, and the sum of these means."""
    means = np.bincount(classes, weights=squares) / np.bincount(classes)
    return np.sqrt(means[classes] / np.maximum(squares, 1e-300)), float(means.sum())
