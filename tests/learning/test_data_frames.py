"""Data frames as data sets: the same rows as from a file, whatever types their columns have."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest
import torch

from sottovoce import from_table, from_tables, model, partition, task
from sottovoce.errors import InputError
from tests.learning.test_tables import COLUMNS, CSV, columns


def test_a_frame_gives_the_rows_of_its_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    (tmp_path / "columns.toml").write_text(COLUMNS)
    wanted = from_table(path, tmp_path / "columns.toml", name="t", seed=3)
    frame = pandas.read_csv(path, skipinitialspace=True)
    kinds = [frame, frame.convert_dtypes(), frame.astype({"again": "category"}), frame.astype(object)]
    for given in [*kinds, {name: frame[name].tolist() for name in frame.columns}]:
        found = from_table(given, columns(), name="t", seed=3)
        np.testing.assert_array_equal(found.inputs, wanted.inputs)
        np.testing.assert_array_equal(found.test_inputs, wanted.test_inputs)
        np.testing.assert_array_equal(found.targets, wanted.targets)


def test_truth_values_and_whole_numbers_may_be_missing():
    frame = pandas.DataFrame({"age": pandas.array([20, None, 100, 60, 60], dtype="Int64"), "ward": "east"})
    frame["again"] = pandas.array([True, False, True, False, True], dtype="boolean")
    described = columns(COLUMNS.replace('["no", "yes"]', '["false", "true"]'), drop=[])
    data = from_tables({"Hill": frame}, described, rows={"Hill": 4}, seed=0)
    ages = np.concatenate([data.dataset.inputs[1:, 0], data.dataset.test_inputs[:, 0]])
    assert sorted(ages.tolist()) == [0.0, 0.25, 0.5, 0.5, 1.0]
    assert data.shards.indices[0].tolist() == [1, 2, 3, 4]


def test_a_table_for_each_node_keeps_a_fifth_for_testing():
    frame = pandas.DataFrame({"age": np.linspace(20, 100, 10), "ward": "west", "again": "no", "patient": 0})
    data = from_tables({"Hill": frame, "Mercy": frame[:6]}, columns())
    assert [len(rows) for rows in data.shards.indices] == [8, 5]
    assert len(data.dataset.test_inputs) == 3


def test_errors_of_values_are_in_the_units_of_the_target():
    """A model that says 0 says the middle of the target's range, 60, of every row."""
    text = COLUMNS.replace('target = "again"', 'target = "age"').replace("missing = 40\n", "")
    described = columns(text)
    described = described.model_copy(update={"scale_to": [-1.0, 1.0]})
    ages = np.linspace(20, 100, 20)
    frame = pandas.DataFrame({"age": ages, "ward": "west", "again": "no", "patient": 0})
    data = from_table(frame, described, seed=1)
    job = task(data, partition(data, 2), model("linear", data))
    found = job.score(torch.zeros(job.model.layout.size))
    held_out = 60 + 40 * data.test_targets
    assert set(held_out.round(3)) <= set(ages.astype(np.float32).round(3))
    assert found["mae"] == pytest.approx(np.abs(held_out - 60).mean(), rel=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(held_out - 60).mean()), rel=1e-6)


GOOD = {"age": [30], "ward": ["east"], "again": ["no"]}
WRONG = [
    (3, "a int; a table is a data frame"),
    ({"age": [1, 2], "ward": ["east"], "again": ["no"]}, "column 'ward' has 1 of 2 cells"),
    (GOOD | {"age": [1j]}, "column 'age' holds complex"),
    (GOOD | {"age": [[1, 2]]}, "column 'age' of shape"),
    (GOOD | {"age": pandas.to_datetime(["2020-01-01"])}, "column 'age' holds datetime"),
    (GOOD | {"age": ["old"]}, "row 1, column 'age': 'old'; a finite number is needed here"),
    (GOOD | {"height": [1.8]}, "column 'height'; a table must have exactly the columns that are described"),
    (pandas.DataFrame([[1, 2]]), "a column called 0"),
    (pandas.DataFrame([[1, 2]], columns=["age", "age"]), "two columns called 'age'"),
]


@pytest.mark.parametrize(("given", "reason"), WRONG, ids=[reason[:30] for _, reason in WRONG])
def test_what_does_not_fit_is_named(given, reason):
    with pytest.raises(InputError, match=reason.replace("[", r"\[")):
        from_table(given, columns(), name="mine")


def test_pandas_is_not_imported_for_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    assert len(from_table(path, columns()).inputs) == 5
