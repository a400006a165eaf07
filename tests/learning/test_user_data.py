"""Data of your own: what goes in comes out, and what cannot be learned from is one line."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.learning.datasets import from_arrays, load
from sottovoce.learning.partitioning import partition

X, Y = np.arange(60.0).reshape(20, 3), np.tile([7, 3], 10)


def test_rows_come_out_as_they_went_in_and_a_fifth_of_each_class_is_for_testing():
    mine = from_arrays(X, Y)
    assert (mine.kind, mine.classes, mine.shape) == ("classes", ("3", "7"), (3,))
    assert mine.inputs.dtype == np.float32
    assert np.bincount(mine.test_targets).tolist() == [2, 2]
    rows, targets = np.concatenate([mine.inputs, mine.test_inputs]), np.concatenate([mine.targets, mine.test_targets])
    order = np.argsort(rows[:, 0])
    np.testing.assert_array_equal(rows[order], X)
    np.testing.assert_array_equal(np.array([3, 7])[targets[order]], Y)


def test_another_seed_holds_out_other_rows():
    assert (from_arrays(X, Y, seed=0).test_inputs != from_arrays(X, Y, seed=1).test_inputs).any()


def test_fractions_are_values_and_words_are_classes():
    assert from_arrays(X, Y / 2).kind == "value"
    assert from_arrays(X, Y / 2).classes == ()
    words = from_arrays(X, np.where(Y == 7, "well", "ill"), test=(X[:2], ["ill", "well"]))
    assert words.classes == ("ill", "well")
    assert words.test_targets.tolist() == [0, 1]
    assert len(words.inputs) == 20


def test_images_keep_their_shape_and_rows_are_flat():
    images = from_arrays(np.zeros((10, 1, 4, 4), dtype=np.uint8), np.tile([0, 1], 5))
    assert (images.shape, images.inputs.shape) == ((1, 4, 4), (8, 16))


def test_rows_of_one_group_stay_with_one_node():
    clinic = np.repeat(["north", "south", "east", "west"], 5)
    mine = from_arrays(X, Y, groups=clinic)
    shards = partition(mine, nodes=4, how="user")
    assert sorted(len(set(mine.groups[rows])) for rows in shards.indices) == [1, 1, 1, 1]
    assert mine.test_groups is not None
    assert len(mine.test_groups) == len(mine.test_inputs)


def test_a_file_is_the_same_as_its_arrays(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", inputs=X, targets=Y)
    found = load("file:mine.npz", tmp_path)
    assert repr(found) == "Dataset('mine', classes, 16 + 4 rows of 3)"
    np.testing.assert_array_equal(found.inputs, from_arrays(X, Y).inputs)
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(load("file:mine.npz").inputs, found.inputs)


def test_runs_read_a_changed_file_again(tmp_path, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    for rows in (20, 40):
        np.savez("mine.npz", inputs=np.resize(X, (rows, 3)), targets=np.resize(Y, rows))
        file = f'name = "of-{rows}"\ndata.name = "file:mine.npz"\ntopology.graph = "ring:4"\ntraining.rounds = 2\n'
        (tmp_path / "try.toml").write_text(f'{file}algorithm.name = "d-psgd"\nprivacy.attackers = "none"\n')
        assert sotto("run try.toml")[0] == 0
    code, _, err = sotto("run try.toml --set data.name=file:other.npz --set name=x")
    assert code == 2
    assert err.startswith("sotto: other.npz: No such file or directory; an .npz file of arrays is needed here; ")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs" / "x").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"inputs": X[:, 0]}, "inputs are float64 of shape (20,); they must be numbers, with a row for each example"),
        ({"inputs": np.full((20, 3), "a")}, "inputs are <U1 of shape (20, 3)"),
        ({"inputs": np.where(X == 4, np.nan, X)}, "row 1 holds nan or infinity; rows must be finite in float32"),
        ({"inputs": np.where(X == 4, 1e300, X)}, "row 1 holds nan or infinity; rows must be finite in float32"),
        (
            {"targets": Y[:-1]},
            "targets are int64 of shape (19,); they must be numbers or words, one for each of 20 rows",
        ),
        ({"targets": np.where(Y == 7, np.inf, 0.0)}, "target 0 is nan or infinite"),
        ({"targets": np.where(Y == 7, 1e39, 0.0)}, "target 0 is nan or infinite; targets must be finite in float32"),
        ({"targets": np.ones(20, dtype=int)}, "one class, 1; there is nothing to distinguish"),
        ({"groups": np.arange(3)}, "groups are int64 of shape (3,); they must say who each of the 20 rows comes from"),
        ({"test": (X[:, :2], Y)}, "test rows of shape (2,), classes 3, 7; training rows are of shape (3,)"),
        ({"test": (X, Y + 1)}, "test rows of shape (3,), classes 4, 8"),
        ({"test": (X, Y / 2)}, "test rows of shape (3,), classes none"),
        ({"test": (X, None)}, "test_inputs or test_targets alone"),
        ({"seed": -1}, "seed -1"),
        ({"targets": np.arange(20)}, "20 rows; a fifth of each class is held out, and no class has three rows"),
    ],
)
def test_one_clear_line_for_bad_arrays(change, line):
    with pytest.raises(InputError) as refused:
        from_arrays(**{"inputs": X, "targets": Y, **change})
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"inputs": X}, "no targets; both inputs and targets are needed"),
        ({"inputs": X, "targets": Y, "labels": Y}, "array 'labels'; arrays are inputs"),
        ({"inputs": X, "targets": Y.astype(object)}, "it holds Python objects, which are never unpickled"),
    ],
)
def test_one_clear_line_for_bad_files(tmp_path, arrays, line):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError) as refused:
        load(f"file:{tmp_path / 'mine.npz'}")
    assert line in str(refused.value)
