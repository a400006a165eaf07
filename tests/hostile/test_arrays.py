"""Arrays as callers have them: what is meant is taken whatever its layout, the rest is refused in one line."""

from __future__ import annotations

import io
import warnings
import zipfile

import numpy as np
import pytest

from sottovoce import Graph, InputError, account, algorithm, metropolis, simulate, trace
from sottovoce.learning.datasets import from_arrays
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.support.npz import read_npz

ROWS = np.arange(120.0).reshape(40, 3) / 120
CLASSES = np.arange(40) % 2

with warnings.catch_warnings():  # numpy advises against matrices, and callers have them
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    MATRIX = np.asmatrix(ROWS)

SAME = {
    "negative strides": ROWS[::-1, ::-1].copy()[::-1, ::-1],
    "by columns": np.asfortranarray(ROWS),
    "big-endian": ROWS.astype(">f8"),
    "long double": ROWS.astype(np.longdouble),
    "read-only": np.frombuffer(ROWS.tobytes()).reshape(40, 3),
    "every other row": np.repeat(ROWS, 2, axis=0)[::2],
    "a matrix": MATRIX,
    "masked nowhere": np.ma.array(ROWS),
    "lists": ROWS.tolist(),
    "a generator": (row for row in ROWS.tolist()),
}

ODD = {
    "nan": np.where(ROWS > 0.5, np.nan, ROWS), "inf": np.where(ROWS > 0.5, np.inf, ROWS), "huge": ROWS * 1e300,
    "masked": np.ma.masked_greater(ROWS, 0.5), "objects": ROWS.astype(object), "complex": ROWS + 1j,
    "mixed": np.array([[1, "a", None]] * 40, dtype=object), "words": np.full((40, 3), "1.0"),
    "bytes": np.full((40, 3), b"1"), "dates": np.full((40, 3), np.datetime64("2020-01-01")),
    "durations": np.full((40, 3), np.timedelta64(1, "D")), "records": np.zeros(40, dtype=[("a", "f8"), ("b", "i4")]),
    "void": np.zeros((40, 3), dtype="V4"), "no rows": np.zeros((0, 3)), "no columns": np.zeros((40, 0)),
    "one number": 5.0, "None": None, "a word": "abc", "ragged": [[1, 2], [3], [4, 5, 6]], "a dict": {"a": 1},
    "a set": {1, 2}, "an object": object(), "a function": len, "huge whole numbers": [[10**400] * 3] * 40,
    "nested": [[[[[[]]]]]],
}  # fmt: skip


MEANT = {
    ("sigma", "one number"), ("step size", "one number"), ("test", "None"), ("groups", "None"),
    ("victims", "None"), ("edges", "no rows"), ("edges", "no columns"), ("edges", "nested"),
}  # fmt: skip
"""What an argument may well be, odd as it is for others."""


def refused(act) -> None:
    with pytest.raises(InputError) as refusal:
        act()
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def all_refused(name: str, calls: dict) -> None:
    for argument, call in calls.items():
        if (argument, name) not in MEANT:
            refused(lambda call=call: call(ODD[name]))


@pytest.mark.parametrize("name", SAME)
def test_the_layout_of_rows_makes_no_difference(name):
    mine, plain = (from_arrays(rows, CLASSES, seed=3) for rows in (SAME[name], ROWS))
    np.testing.assert_array_equal(mine.inputs, plain.inputs)
    np.testing.assert_array_equal(mine.test_inputs, plain.test_inputs)


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_are_refused(name):
    calls = {
        "inputs": lambda odd: from_arrays(odd, CLASSES),
        "targets": lambda odd: from_arrays(ROWS, odd),
        "test": lambda odd: from_arrays(ROWS, CLASSES, test=odd),
        "test inputs": lambda odd: from_arrays(ROWS, CLASSES, test=(odd, CLASSES)),
        "test targets": lambda odd: from_arrays(ROWS, CLASSES, test=(ROWS, odd)),
        "groups": lambda odd: from_arrays(ROWS, CLASSES, groups=odd),
        "seed": lambda odd: from_arrays(ROWS, CLASSES, seed=odd),
    }
    all_refused(name, calls)


NET = metropolis("ring:4")
NOISY = algorithm("dp-d-sgd", sigma=1.0)


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments_of_an_account_are_refused(name):
    system = trace(NOISY, NET, rounds=2)
    calls = {
        "sigma": lambda odd: algorithm("dp-d-sgd", sigma=odd),
        "step size": lambda odd: algorithm("dp-d-sgd", sigma=1.0, step_size=odd),
        "correlation": lambda odd: algorithm("mf-d-sgd", sigma=1.0, correlation=odd),
        "view": lambda odd: account(system, odd),
        "participation": lambda odd: account(system, participation=odd),
        "adjacency": lambda odd: account(system, adjacency=odd),
        "victims": lambda odd: account(system, victims=odd),
        "edges": Graph.from_edges,
    }
    all_refused(name, calls)


@pytest.fixture(scope="module")
def job():
    data = from_arrays(ROWS, CLASSES)
    return task(data, partition(data, 4), model("softmax", data))


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments_of_a_simulation_are_refused(name, job):
    calls = {
        "task": lambda odd: simulate(NOISY, NET, odd, rounds=1),
        "rounds": lambda odd: simulate(NOISY, NET, job, rounds=odd),
        "seed": lambda odd: simulate(NOISY, NET, job, rounds=1, seed=odd),
        "adjacency": lambda odd: simulate(NOISY, NET, job, rounds=1, adjacency=odd),
    }
    all_refused(name, calls)


def archive(header: bytes, content: bytes) -> bytes:
    """An npz file with right checksums, whatever its one array says of itself."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
        file.writestr("inputs.npy", b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + content)
    return packed.getvalue()


LIES = {
    "more than any memory": b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }",
    "longer": b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }",
    "shorter": b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }",
    "negative": b"{'descr': '<f8', 'fortran_order': False, 'shape': (-2,), }",
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "no type": b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (2,), }",
    "deep": b"(" * 5000,
    "code": b"__import__('os').system('true')",
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name, tmp_path):
    path = tmp_path / "rows.npz"
    path.write_bytes(archive(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(16)))
    np.testing.assert_array_equal(read_npz(path)["inputs"], [0.0, 0.0])
    path.write_bytes(archive(LIES[name], bytes(16)))
    refused(lambda: read_npz(path))
