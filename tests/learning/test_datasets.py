"""Data sets: what every one of them promises, known facts of the real files, the page and the command."""

from __future__ import annotations

import gzip
import json
import re
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from sottovoce import InputError
from sottovoce.learning import catalogue
from sottovoce.learning.catalogue import CATALOGUE, held_out, household_averages
from sottovoce.learning.datasets import Dataset, dataset_names, from_arrays, load
from tests.learning.test_readers import cifar, write, write_mnist, write_npz
from tests.test_package import in_new_process

ROOT = Path(__file__).parents[2]
MNIST = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@pytest.fixture
def real(data):
    """`real("mnist")` loads it from the real files, or the test is skipped."""
    stored = {
        "mnist": [f"mnist/{part}-ubyte.gz" for part in MNIST],
        "mnist-writers": ["mnist/train-images-idx3-ubyte.gz", "mnist/mnist_writers.npz"],
        "fashion-mnist": [f"fashion_mnist/{part}-ubyte.gz" for part in MNIST],
        "housing-price": ["housing/cal_housing.csv.gz"],
        "housing-longitude": ["housing/openml_823_houses.arff.gz"],
        "cifar10": ["cifar10/cifar10_subset_10k_2k.npz"],
        "movielens": ["movielens/ml-latest-small/ratings.csv.gz"],
    }

    def read(name: str) -> Dataset:
        for file in stored.get(name, []):
            data(file)
        return load(name, data(".") if name in stored else None)

    return read


# --- what every data set promises ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dataset_names())
def test_every_data_set_keeps_the_promises_of_its_class(real, name):
    dataset = real(name)
    entry = CATALOGUE[name]
    assert entry.rows in (None, (len(dataset.inputs), len(dataset.test_inputs)))
    for inputs, targets, groups in (
        (dataset.inputs, dataset.targets, dataset.groups),
        (dataset.test_inputs, dataset.test_targets, dataset.test_groups),
    ):
        assert inputs.dtype == np.float32
        assert inputs.flags.c_contiguous
        assert inputs.flags.writeable
        assert inputs.shape == (len(targets), np.prod(dataset.shape))
        assert np.isfinite(inputs).all()
        assert targets.dtype == (np.int64 if dataset.kind == "classes" else np.float32)
        assert groups is None or (groups.shape == targets.shape and groups.dtype == np.int64)
    if dataset.kind == "classes":
        assert set(dataset.targets) == set(dataset.test_targets) == set(range(len(dataset.classes)))
    assert all("\n" not in line for line in (entry.trap, entry.licence, entry.source, *dataset.notes))


@pytest.mark.parametrize("name", ["breast-cancer", "housing-price", "housing-longitude"])
def test_features_have_mean_0_and_deviation_1_on_training_rows(real, name):
    dataset = real(name)
    np.testing.assert_allclose(dataset.inputs.mean(axis=0, dtype=float), 0, atol=1e-5)
    np.testing.assert_allclose(dataset.inputs.std(axis=0, dtype=float), 1, atol=1e-5)
    assert not np.allclose(dataset.test_inputs.mean(axis=0), 0, atol=1e-3)
    assert any("public" in note for note in dataset.notes)


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "cifar10"])
def test_pixels_have_mean_0_and_deviation_1_per_channel(real, name):
    dataset = real(name)
    for channel in np.split(dataset.inputs, dataset.shape[0], axis=1):
        assert channel.mean(dtype=float) == pytest.approx(0, abs=1e-5)
        assert channel.std(dtype=float) == pytest.approx(1, abs=1e-5)
    assert any("public" in note for note in dataset.notes)


def test_embedded_data_needs_no_folder_and_a_seed_moves_only_the_split(monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", "/no/such/folder")
    first, again, other = load("digits"), load("digits", seed=0), load("digits", seed=1)
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(np.bincount(first.test_targets), np.bincount(other.test_targets))
    assert not np.array_equal(first.test_inputs, other.test_inputs)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize(
    ("name", "file", "heading"), [("digits", "digits.csv.gz", 0), ("breast_cancer", "breast_cancer.csv", 1)]
)
def test_shipped_rows_are_those_that_scikit_learn_loads(name, file, heading, found, monkeypatch):
    if not found:
        monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    expected = getattr(datasets, f"load_{name}")(return_X_y=True)
    for mine, theirs in zip(catalogue.shipped_rows(name, file, heading=heading), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)


def test_a_run_on_shipped_rows_loads_neither_scikit_learn_nor_scipys_statistics():
    code = (
        "import sys; import sottovoce.run.execute; from sottovoce.learning.datasets import load; load('digits')\n"
        "sys.exit('sklearn' in sys.modules or 'scipy.stats' in sys.modules)"
    )
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr


def test_held_out_rows_are_a_fifth_of_every_stratum():
    strata = np.random.default_rng(0).integers(0, 7, size=5000)
    mask = held_out(strata, seed=3)
    for stratum in range(7):
        assert mask[strata == stratum].sum() == np.rint(0.2 * (strata == stratum).sum())
    np.testing.assert_array_equal(mask, held_out(strata, seed=3))
    assert (mask != held_out(strata, seed=4)).any()


def test_data_half_does_not_load_torch():
    done = in_new_process("import sys; from sottovoce.learning.partitioning import *\nsys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


# --- facts about the real files --------------------------------------------------------------------------------------


def test_mnist_has_its_known_counts_and_statistics(real):
    dataset = real("mnist")
    assert np.bincount(dataset.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(dataset.test_targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert dataset.targets[:4].tolist() == [5, 0, 4, 1]
    assert dataset.inputs.min() == pytest.approx(-0.1307 / 0.3081, rel=1e-3)
    assert dataset.inputs.max() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-3)


def seconds(act):
    before = time.process_time()
    act()
    return time.process_time() - before


def test_mnist_loads_in_little_more_time_than_its_files_are_unpacked(data):
    folder = data("mnist/train-images-idx3-ubyte.gz").parents[1]
    files = [path.read_bytes() for path in (folder / "mnist").glob("*ubyte.gz")]
    unpacked = seconds(lambda: [gzip.decompress(file) for file in files])
    assert seconds(lambda: load("mnist", folder)) < 5 * unpacked


def test_mnist_needs_little_more_memory_than_it_keeps(data):
    folder = data("mnist/train-images-idx3-ubyte.gz").parents[1]
    tracemalloc.start()
    dataset = load("mnist", folder)
    _, some = tracemalloc.get_traced_memory()
    inputs = dataset.inputs
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert some < 0.8 * inputs.nbytes
    assert peak < 1.4 * (inputs.nbytes + dataset.test_inputs.nbytes)


@pytest.mark.parametrize("unit", [False, True])
def test_some_rows_are_those_of_all(unit):
    digits = load("digits").unit_norm() if unit else load("digits")
    rows = np.random.default_rng(0).choice(len(digits.examples), 700, replace=False)
    np.testing.assert_array_equal(digits.examples[rows], digits.inputs[rows])
    np.testing.assert_array_equal(np.concatenate(list(digits.examples.chunks())), digits.inputs)
    few = digits.only(rows)
    np.testing.assert_array_equal(few.inputs, digits.inputs[rows])
    np.testing.assert_array_equal(few.targets, digits.targets[rows])
    assert len(few.examples) == 700
    assert np.allclose(np.linalg.norm(few.inputs, axis=1), 1, atol=1e-6) == unit


def test_fashion_mnist_is_balanced(real):
    dataset = real("fashion-mnist")
    assert set(np.bincount(dataset.targets)) == {6000}
    assert set(np.bincount(dataset.test_targets)) == {1000}


def test_writers_of_mnist_train_or_test_never_both(real):
    dataset = real("mnist-writers")
    assert (len(set(dataset.groups)), len(set(dataset.test_groups))) == (539, 297)
    assert not set(dataset.groups) & set(dataset.test_groups)
    per_writer = np.unique(dataset.groups, return_counts=True)[1]
    assert (per_writer.min(), np.median(per_writer), per_writer.max()) == (19, 116, 131)


def test_cifar10_says_how_much_of_it_is_there(real):
    dataset = real("cifar10")
    assert set(np.bincount(dataset.targets)) == {1000}
    assert dataset.classes[dataset.targets[0]] == "frog"
    assert "10,000 of the 50,000 training and 2,000 of the 10,000 test images" in dataset.notes


def test_housing_is_scikit_learns(data, real):
    raw = np.loadtxt(data("housing/cal_housing.csv.gz"), delimiter=",", skiprows=1)
    features = household_averages(raw)
    known = [8.3252, 41, 6.98412698, 1.02380952, 322, 2.55555556, 37.88, -122.23]
    np.testing.assert_allclose(features[0], known, rtol=1e-8)
    dataset = real("housing-price")
    test = held_out(np.zeros(len(raw)), seed=0)
    train = features[~test]
    np.testing.assert_allclose(dataset.inputs * train.std(axis=0) + train.mean(axis=0), train, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(dataset.test_targets, raw[test, 8] / 1e5, rtol=1e-6)
    assert "965 prices are capped at 500,001 dollars" in dataset.notes


def test_openml_823_asks_for_longitude(data, real):
    longitude = np.loadtxt(data("housing/cal_housing.csv.gz"), delimiter=",", skiprows=1)[:, 0]
    west = (longitude < longitude.mean()).astype(int)
    dataset = real("housing-longitude")
    test = held_out(west, seed=0)
    np.testing.assert_array_equal(dataset.targets, west[~test])
    np.testing.assert_array_equal(dataset.test_targets, west[test])
    assert west.sum() == 8914
    assert any("longitude < mean" in note for note in dataset.notes)


def test_movielens_counts(real):
    dataset = real("movielens")
    assert dataset.entities == (610, 9724)
    users = np.concatenate([dataset.groups, dataset.test_groups])
    assert (np.bincount(users).min(), np.bincount(users).max(), len(users)) == (20, 2698, 100_836)
    assert np.concatenate([dataset.targets, dataset.test_targets]).mean() == pytest.approx(3.5016, abs=1e-4)
    np.testing.assert_array_equal(dataset.inputs[:, 0], dataset.groups)
    assert set(dataset.test_groups) == set(range(610))
    pairs = np.concatenate([dataset.inputs, dataset.test_inputs])
    assert len(np.unique(pairs, axis=0)) == 100_836
    assert pairs.max(axis=0).tolist() == [609, 9723]


# --- the page and the command ----------------------------------------------------------------------------------------


def recipes():
    text = (ROOT / "docs" / "data.md").read_text()
    return [code for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if ">>>" not in code]


def test_the_page_makes_the_two_files_that_are_not_published(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    for part, rows in (("train", 60_000), ("test", 60_000)):
        table = np.zeros((rows, 8), dtype=">i4")
        table[:, 0], table[:, 2] = np.arange(rows) % 10, np.arange(rows) // 100
        head = np.array([0x0C02, rows, 8], dtype=">u4").tobytes()
        write(tmp_path, f"mnist/qmnist-{part}-labels-idx2-int.gz", gzip.compress(head + table.tobytes(), 1))
    for batch in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        rows = np.arange(4 * 3073, dtype=np.uint8).reshape(4, 3073)
        rows[:, 0] = 3
        write(tmp_path, f"cifar10/cifar-10-batches-bin/{batch}.bin", rows.tobytes())
    for code, folder in zip(recipes(), ("mnist", "cifar10"), strict=True):
        monkeypatch.chdir(tmp_path / folder)
        exec(code, {})
    assert load("mnist-writers", tmp_path).test_groups.max() == 99
    assert load("cifar10", tmp_path).inputs.shape == (20, 3072)


def test_the_page_names_every_data_set():
    page = (ROOT / "docs" / "data.md").read_text()
    assert all(f"| `{name}` |" in page for name in dataset_names())


def test_command_lists_every_data_set(sotto, tmp_path):
    write_npz(tmp_path, "cifar10/cifar10.npz", cifar())
    code, out, err = sotto("data --json --data", str(tmp_path))
    assert (code, err) == (0, "")
    document = json.loads(out)
    listed = {entry["name"]: entry for entry in document["data"]}
    assert document["folder"] == str(tmp_path)
    assert tuple(listed) == dataset_names()
    assert listed["digits"]["found"]
    assert not listed["mnist"]["found"]
    assert listed["mnist"]["missing"][0] == "mnist/train-images-idx3-ubyte"
    assert (listed["cifar10"]["training_rows"], listed["cifar10"]["test_rows"]) == (20, 10)
    assert listed["cifar10"]["bytes"] == (tmp_path / "cifar10/cifar10.npz").stat().st_size


def test_command_says_in_words_what_is_missing_and_what_to_beware_of(sotto, tmp_path):
    code, out, _ = sotto("data --data", str(tmp_path))
    assert code == 0
    assert "housing-longitude: the label of OpenML 823 is longitude < mean" in out
    assert "movielens: put movielens/ml-latest-small/ratings.csv into the folder; from GroupLens" in out


def test_command_refuses_a_folder_that_is_not_there(sotto):
    code, out, err = sotto("data --data /no/such")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("sotto: folder /no/such: no such folder; ")


@pytest.mark.parametrize("size", [1e-25, 1e-12, 1.0, 1e12, 1e30])
def test_rows_of_any_size_are_scaled_to_norm_one(size):
    rows = np.random.default_rng(0).standard_normal((20, 3)) * size
    rows[7] = 0.0
    scaled = from_arrays(rows, ["cat", "dog"] * 10, name="pets").unit_norm()
    norms = np.linalg.norm(np.concatenate([scaled.inputs, scaled.test_inputs]), axis=1)
    assert sorted(norms.tolist())[0] == 0.0
    np.testing.assert_allclose(sorted(norms.tolist())[1:], 1.0, rtol=1e-6)


@pytest.mark.parametrize("bound", [1e-12, 1.0, 3.7, 1e12])
def test_no_row_is_longer_than_the_declared_norm(bound):
    """In exact arithmetic, for rows from far below the bound to far above it; those within stay as they are."""
    sizes = bound * np.array([1e-6, 0.5, 1 - 1e-7, 1 + 1e-7, 3.0, 1e6, 1e20])[:, None]
    rows = np.random.default_rng(0).standard_normal((70, 40))
    rows = (np.tile(sizes, (10, 1)) * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    plain = from_arrays(rows, ["cat", "dog"] * 35, test=(rows, ["cat", "dog"] * 35))
    found = plain.max_norm(bound)
    for clipped in (found.inputs, found.test_inputs, found.only(np.arange(30)).inputs):
        assert np.linalg.norm(clipped.astype(np.longdouble), axis=1).max() <= bound
    short = np.linalg.norm(rows.astype(np.longdouble), axis=1) <= bound
    np.testing.assert_array_equal(found.inputs[short], rows[short])
    np.testing.assert_array_equal(found.examples.clipped(bound)[:], found.inputs)
    assert np.linalg.norm(found.inputs[4::7].astype(float), axis=1) == pytest.approx(bound, rel=1e-5)
    assert plain.examples.norm_bound is None
    assert found.examples.norm_bound == found.only(np.arange(3)).examples.norm_bound == bound


def test_unit_norm_declares_what_it_enforces():
    scaled = load("digits").unit_norm()
    assert np.linalg.norm(scaled.inputs.astype(float), axis=1).max() <= scaled.examples.norm_bound < 1.0001
    assert scaled.examples.then(lambda rows: 2 * rows).norm_bound is None


def test_norms_that_cannot_be_declared_are_refused():
    for bound in (0.0, -1.0, float("nan"), float("inf"), 1e-40):
        with pytest.raises(InputError, match="max_norm = "):
            load("digits").max_norm(bound)
    pairs = replace(load("digits"), entities=(3, 4))
    for act in (pairs.unit_norm, lambda: pairs.max_norm(1.0)):
        with pytest.raises(InputError, match="positions, not features"):
            act()
