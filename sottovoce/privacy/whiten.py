"""What the whitening routes share: a Cholesky factor to be trusted, its rounding error, how much to do at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.errors import SottovoceError

Array = NDArray[np.float64]

CONDITION = 1e-6
"""A covariance with a pivot below this share of its diagonal is left to the orthogonal route."""

AT_ONCE = 1.2e7
"""About how many numbers a block of victims may take."""


class Singular(SottovoceError):
    """The covariance of the observations is too close to singular for this route."""


def cholesky(G_RR: Array) -> Array:
    try:
        factor = linalg.cholesky(G_RR, lower=True, check_finite=False)
    except linalg.LinAlgError:
        raise Singular("no Cholesky factor") from None
    if np.any(np.diag(factor) ** 2 < CONDITION * np.diag(G_RR)):
        raise Singular("nearly singular")
    return factor


def rounding_error(factor: Array) -> float:
    """A bound on the relative error that rounding leaves in quantities whitened by this factor."""
    sizes = np.diag(factor) ** 2
    return 4 * len(factor) * np.finfo(float).eps * float(np.max(np.einsum("ij,ij->i", factor, factor) / sizes))


def inverse_of(triangle: Array) -> Array:
    return np.asarray(linalg.solve_triangular(triangle, np.eye(len(triangle)), lower=True, check_finite=False))
