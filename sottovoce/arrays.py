"""Arrays whose rows are nodes: numpy, torch or traced, with the same few operations.

Only what plain operators cannot do alike on all three lives here. torch is never imported: a torch tensor brings
its own module along.

Shapes: N nodes, D parameters.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Rows: TypeAlias = Any
"""An N x D array: numpy, torch or traced."""


def is_torch(rows: Rows) -> bool:
    """Whether `rows` is a torch tensor."""
    return type(rows).__module__.partition(".")[0] == "torch"


def convert(values: NDArray[Any], like: Rows) -> Rows:
    """A numpy array as an array of the kind, precision and device of `like`."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)
    if isinstance(like, np.ndarray):
        return values.astype(like.dtype, copy=False)
    return values


def column(values: NDArray[Any], like: Rows) -> Rows:
    """One public number per node, N x 1, ready to multiply or divide `like`."""
    return convert(np.asarray(values, dtype=float).reshape(-1, 1), like)


def numpy_dtype(rows: Rows) -> np.dtype[Any]:
    """The numpy precision that matches `rows`; traced rows are float64."""
    if is_torch(rows):
        return np.dtype(str(rows.dtype).removeprefix("torch."))
    return np.dtype(rows.dtype) if isinstance(rows, np.ndarray) else np.dtype(np.float64)


def operator(matrix: sparse.csr_array, like: Rows) -> Any:
    """A sparse matrix in the form whose product with `like` is fast and keeps its precision."""
    if is_torch(like):
        torch = sys.modules["torch"]
        with warnings.catch_warnings():  # torch calls its CSR support beta; the products are checked against scipy's
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr.astype(np.int64)),
                torch.from_numpy(matrix.indices.astype(np.int64)),
                torch.from_numpy(matrix.data),
                size=matrix.shape,
            ).to(dtype=like.dtype, device=like.device)
    return matrix.astype(numpy_dtype(like), copy=False)
