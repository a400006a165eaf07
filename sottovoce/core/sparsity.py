"""Where sparse matrices have entries. Structure decides: a weight counts unless it is stored as zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


def columns_touched(matrix: sparse.csr_array, rows: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """In which columns some of the rows (None: any) have an entry.

    >>> weights = sparse.csr_array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    >>> columns_touched(weights).tolist(), columns_touched(weights, np.array([True, False])).tolist()
    ([True, True, False], [False, True, False])
    """
    there = matrix.data != 0
    if rows is not None:
        there &= np.repeat(rows, np.diff(matrix.indptr))
    found = np.zeros(matrix.shape[1], dtype=bool)
    found[matrix.indices[there]] = True
    return found


def rows_touching(matrix: sparse.csr_array, columns: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have an entry in some of the columns.

    >>> rows_touching(sparse.csr_array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]), np.array([True, False, True])).tolist()
    [False, True]
    """
    there = columns[matrix.indices] & (matrix.data != 0)
    found = np.zeros(matrix.shape[0], dtype=bool)
    found[np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[there]] = True
    return found


def same_matrix(one: sparse.csr_array | None, other: sparse.csr_array | None) -> bool:
    """Whether two matrices are equal, entry by entry, or neither is there.

    >>> same_matrix(sparse.csr_array([[1.0, 0.0]]), sparse.csr_array([[1.0, 1e-300]])), same_matrix(None, None)
    (False, True)
    """
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and (one != other).nnz == 0


def submatrix(
    matrix: sparse.csr_array, rows: NDArray[np.bool_] | None, columns: NDArray[np.bool_] | None
) -> sparse.csr_array:
    """Some rows and columns (None: all) in their order, as `matrix[rows][:, columns]`; if it is all, the matrix itself.

    >>> both = np.array([True, False, True])
    >>> submatrix(sparse.csr_array([[0.0, 2.0, 3.0], [1.0, 0.0, 4.0], [5.0, 0.0, 0.0]]), both, both).toarray().tolist()
    [[0.0, 3.0], [5.0, 0.0]]
    """
    if (rows is None or rows.all()) and (columns is None or columns.all()):
        return matrix
    counts = np.diff(matrix.indptr)
    there = np.ones(len(matrix.indices), dtype=bool) if rows is None else np.repeat(rows, counts)
    place = matrix.indices
    if columns is not None:
        there &= columns[matrix.indices]
        place = (np.cumsum(columns) - 1).astype(place.dtype)[place]
    ends = np.concatenate([[0], np.cumsum(there)]).astype(matrix.indptr.dtype)[matrix.indptr]
    if rows is not None:
        ends = ends[np.concatenate([[True], rows])]
    width = matrix.shape[1] if columns is None else int(np.count_nonzero(columns))
    return sparse.csr_array((matrix.data[there], place[there], ends), shape=(len(ends) - 1, width))


def last_row(matrix: sparse.csr_array) -> NDArray[np.float64]:
    """The last row with all its zeros; zeros alone where there is no row.

    >>> last_row(sparse.csr_array([[0.0, 2.0, 3.0], [1.0, 0.0, 4.0]])).tolist()
    [1.0, 0.0, 4.0]
    """
    found = np.zeros(matrix.shape[1])
    begin = matrix.indptr[-2:][0]
    np.add.at(found, matrix.indices[begin:], matrix.data[begin:])
    return found


def begins_with(matrix: sparse.csr_array, first: sparse.csr_array) -> bool:
    """Whether the first rows of a matrix are stored as those of another one.

    >>> weights = sparse.csr_array([[0.0, 2.0, 3.0], [1.0, 0.0, 4.0]])
    >>> begins_with(weights, weights[:1]), begins_with(weights, weights[1:])
    (True, False)
    """
    rows, entries = first.shape[0], len(first.data)
    if matrix.shape[1] != first.shape[1] or matrix.shape[0] < rows:
        return False
    parts = (
        (matrix.indptr[: rows + 1], first.indptr),
        (matrix.indices[:entries], first.indices),
        (matrix.data[:entries], first.data),
    )
    return all(np.array_equal(one, other) for one, other in parts)
