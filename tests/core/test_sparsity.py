"""Where sparse matrices have entries, against dense ones; a stored zero is none."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sottovoce.core.sparsity import columns_touched, rows_touching, submatrix


def test_entries_are_those_of_the_dense_matrix_stored_zeros_left_out():
    rng = np.random.default_rng(3)
    for _ in range(50):
        matrix = sparse.random_array(tuple(rng.integers(1, 9, 2)), density=0.3, format="csr", rng=rng)
        matrix.data[rng.random(matrix.nnz) < 0.3] = 0.0
        there = matrix.toarray() != 0
        rows, columns = (rng.random(size) < 0.5 for size in matrix.shape)
        np.testing.assert_array_equal(columns_touched(matrix), there.any(axis=0))
        np.testing.assert_array_equal(columns_touched(matrix, rows), there[rows].any(axis=0))
        np.testing.assert_array_equal(rows_touching(matrix, columns), there[:, columns].any(axis=1))


def test_submatrices_are_those_of_the_dense_matrix_in_order():
    rng = np.random.default_rng(4)
    for _ in range(50):
        matrix = sparse.random_array(tuple(rng.integers(1, 9, 2)), density=0.3, format="csr", rng=rng)
        rows, columns = (rng.random(size) < 0.6 for size in matrix.shape)
        found = submatrix(matrix, rows, columns)
        found.check_format(full_check=True)
        np.testing.assert_array_equal(found.toarray(), matrix.toarray()[rows][:, columns])
        np.testing.assert_array_equal(submatrix(matrix, rows, None).toarray(), matrix.toarray()[rows])
        np.testing.assert_array_equal(submatrix(matrix, None, columns).toarray(), matrix.toarray()[:, columns])
    assert submatrix(matrix, None, np.ones(matrix.shape[1], dtype=bool)) is matrix
