"""Files of data sets, good and bad: one line for every file that is missing, cut off or another."""

from __future__ import annotations

import gzip
from functools import cache

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.learning import catalogue
from sottovoce.learning.catalogue import CATALOGUE
from sottovoce.learning.datasets import dataset_names, list_datasets, load


def idx(shape, *, magic=None, values=None):
    head = np.array([magic if magic is not None else 0x0800 + len(shape), *shape], dtype=">u4").tobytes()
    return head + (bytes(int(np.prod(shape))) if values is None else np.asarray(values, dtype=np.uint8).tobytes())


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@cache
def black(rows):
    return gzip.compress(idx((rows, 28, 28)), 1)


def write_mnist(folder, **other):
    """Black images with labels 0, 1, ..., 9, 0, ...; `other` replaces whole files."""
    for part, rows in (("train", 60_000), ("t10k", 10_000)):
        files = {
            f"{part}-images-idx3": black(rows),
            f"{part}-labels-idx1": idx((rows,), values=np.arange(rows) % 10),
        }
        for stem, content in files.items():
            end = ".gz" if content[:2] == b"\x1f\x8b" else ""
            write(folder, f"mnist/{stem}-ubyte{end}", other.get(stem, content))


def test_plain_and_gzip_files_are_both_read_and_constant_pixels_become_0(tmp_path):
    write_mnist(tmp_path)
    dataset = load("mnist", tmp_path)
    assert dataset.targets[:12].tolist() == [*range(10), 0, 1]
    assert not dataset.inputs.any()


LABELS, IMAGES = "train-labels-idx1", "train-images-idx3"
BAD_IDX = {
    "empty": (LABELS, b"", "cut off after 0 bytes"),
    "garbage": (LABELS, b"<html>not found</html>", "magic number 1013478509 instead of 2049"),
    "wrong magic": (LABELS, idx((60_000,), magic=2051), "magic number 2051 instead of 2049"),
    "another count": (LABELS, idx((10_000,)), "its header says 10000"),
    "cut off": (LABELS, idx((60_000,))[:-1], "cut off after 60,007 of 60,008 bytes"),
    "too long": (LABELS, idx((60_000,)) + b"\0", "more than 60,008 bytes"),
    "no digit": (LABELS, idx((60_000,), values=np.full(60_000, 10)), "label 10"),
    "gzip cut off": (IMAGES, black(60_000)[:-9], "cut off or damaged gzip"),
    "gzip damaged": (IMAGES, gzip.compress(b"")[:10] + b"\xff" * 40, "cut off or damaged gzip"),
    "gzip of much more": (LABELS, gzip.compress(bytes(50_000_000), 1), "more than 60,008 bytes"),
    "another image size": (IMAGES, gzip.compress(idx((60_000, 28, 27)), 1), "its header says 60000 x 28 x 27"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_files_are_one_line(tmp_path, case):
    stem, content, found = BAD_IDX[case]
    write_mnist(tmp_path, **{stem: content})
    refused("mnist", tmp_path, f"{tmp_path}/mnist/{stem}-ubyte", found)


def refused(name, folder, *parts):
    """The one line: which file, what was found, what was expected, where to get it."""
    with pytest.raises(InputError) as caught:
        load(name, folder)
    line = str(caught.value)
    assert "\n" not in line
    assert "; expected " in line
    assert "; get it from " in line
    for part in parts:
        assert part in line


@pytest.mark.parametrize("name", [name for name in dataset_names() if CATALOGUE[name].files])
def test_missing_files_are_one_line_that_says_where_to_get_them(tmp_path, monkeypatch, name):
    refused(name, tmp_path, "no such file")
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    with pytest.raises(InputError, match=f"^data set '{name}' and no folder; .* set SOTTOVOCE_DATA; get it from "):
        load(name)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        load(name)
    with pytest.raises(InputError, match=r"^folder /no/such: no such folder"):
        load(name, "/no/such")


def test_a_folder_in_a_files_place_is_not_the_file(tmp_path):
    (tmp_path / "housing" / "cal_housing.csv").mkdir(parents=True)
    refused("housing-price", tmp_path, "no such file")


HOUSE = "-122.23,37.88,41,880,129,322,126,8.3252,452600\n"
HEADER = ",".join(catalogue.HOUSING_COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no rows"),
        (HEADER, "no rows"),
        (HEADER + HOUSE * 2, "2 rows"),
        (HEADER + HOUSE + HOUSE[:30], "line 3 is '-122.23,37.88,41,880,129,322,1"),
        (HEADER + HOUSE + HOUSE.replace(",129,", ",,"), "line 3 is '-122.23,37.88,41,880,,322"),
        (HEADER + HOUSE + HOUSE.replace(",129,", ",nan,"), "line 3 is '-122.23,37.88,41,880,nan,322"),
        (HOUSE + "# the end\n", "line 2 is '# the end'"),
        ("a,b,c\n1,2,3\n", "line 1 is 'a,b,c'"),
        ("1,2,3\n" * 20_640, "line 1 is '1,2,3'"),
        (HOUSE * 20_639 + HOUSE.replace(",126,", ",0,"), "a row with no household"),
        (b"\xff\xfe\x00", "not text"),
        (gzip.compress(HOUSE.encode() * 20_640)[:-20], "cut off or damaged gzip"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, text, found):
    write(tmp_path, "housing/cal_housing.csv", text if isinstance(text, bytes) else text.encode())
    refused("housing-price", tmp_path, "cal_housing.csv: ", found)


@pytest.mark.parametrize("head", ["", HEADER, "\ufeff" + HEADER.replace("\n", "\r\n")])
def test_tables_with_and_without_names_of_columns(tmp_path, head):
    write(tmp_path, "housing/cal_housing.data", (head + HOUSE * 20_640).encode())
    assert len(load("housing-price", tmp_path).inputs) == 16512


ARFF = (
    "@relation houses\n" + "".join(f"@attribute {name} numeric\n" for name in catalogue.OPENML_ATTRIBUTES) + "@data\n"
)
ARFF_ROW = "452600,8.3252,41,880,129,322,126,37.88,P\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nothing", "no ARFF header"),
        (ARFF, "no rows"),
        (ARFF.replace("latitude", "longitude"), "attributes median_house_value, "),
        (ARFF + ARFF_ROW, "1 rows"),
        (ARFF + ARFF_ROW + ARFF_ROW.replace("P", "Q"), "line 13 is '452600,8.3252,41,880,129,322,126,37.88,Q'"),
        (ARFF + ARFF_ROW * 20_639 + ARFF_ROW.replace("P", "7"), "a label other than P and N"),
    ],
)
def test_bad_arff_files_are_one_line(tmp_path, text, found):
    write(tmp_path, "housing/openml_823_houses.arff", text.encode())
    refused("housing-longitude", tmp_path, "openml_823_houses.arff: ", found)


def test_movielens_of_another_edition_or_scale_is_refused(tmp_path):
    head = "userId,movieId,rating,timestamp\r\n"
    path = write(tmp_path, "movielens/ml-latest-small/ratings.csv", (head + "1,1,4.0,964982703\r\n" * 100_004).encode())
    refused("movielens", tmp_path, "100,004 rows", "September 2018")
    path.write_bytes((head + "1,1,40,964982703\r\n" * 100_836).encode())
    refused("movielens", tmp_path, "ratings from 40 to 40")


def cifar(**other):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8), "y_train": np.arange(20) % 10,
        "x_test": rng.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8), "y_test": np.arange(10),
    }  # fmt: skip
    return {name: array for name, array in {**arrays, **other}.items() if array is not None}


def write_npz(folder, name, arrays):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    np.savez(folder / name, **arrays)
    return folder / name


def test_cifar10_of_any_size(tmp_path):
    arrays = cifar()
    write_npz(tmp_path, "cifar10/cifar10.npz", arrays)
    dataset = load("cifar10", tmp_path)
    pixels = arrays["x_train"].astype(float)
    mean, deviation = pixels.mean(axis=(0, 2, 3), keepdims=True), pixels.std(axis=(0, 2, 3), keepdims=True)
    expected = ((arrays["x_test"] - mean) / deviation).reshape(10, -1)
    np.testing.assert_allclose(dataset.test_inputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"y_test": None}, "no array 'y_test'"),
        ({"x_test": np.zeros((10, 32, 32, 3), np.uint8)}, "array 'x_test' is uint8 of shape (10, 32, 32, 3)"),
        ({"x_test": np.zeros((10, 3, 32, 32))}, "array 'x_test' is float64"),
        ({"x_test": np.zeros((0, 3, 32, 32), np.uint8)}, "of shape (0, 3, 32, 32)"),
        ({"y_train": np.arange(20)}, "20 images and 20 labels from 0 to 19 in train"),
        ({"y_train": np.zeros(3, int)}, "20 images and 3 labels"),
        ({"y_train": np.array([{}] * 20)}, "it holds Python objects, which are never unpickled"),
    ],
)
def test_bad_arrays_are_one_line(tmp_path, other, found):
    write_npz(tmp_path, "cifar10/cifar10.npz", cifar(**other))
    refused("cifar10", tmp_path, "cifar10.npz: ", found)


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"x" * 500])
def test_damaged_npz_is_one_line_and_listed_without_rows(tmp_path, damage):
    path = write_npz(tmp_path, "cifar10/cifar10.npz", cifar())
    assert next(listed.rows for listed in list_datasets(tmp_path) if listed.name == "cifar10") == (20, 10)
    path.write_bytes(damage(path.read_bytes()))
    refused("cifar10", tmp_path, "it is not an .npz file, or it is damaged")
    assert next(listed.rows for listed in list_datasets(tmp_path) if listed.name == "cifar10") is None


def test_npz_with_any_byte_of_a_header_changed_is_refused_or_the_same(tmp_path):
    path = write_npz(tmp_path, "cifar10/cifar10.npz", cifar())
    good, expected = path.read_bytes(), load("cifar10", tmp_path)
    lines = []
    for place in range(300):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :])
        try:
            np.testing.assert_array_equal(load("cifar10", tmp_path).inputs, expected.inputs)
        except InputError as error:
            lines.append(str(error))
    assert len(lines) > 150
    assert all("damaged" in line for line in lines)


def test_a_single_array_is_no_npz(tmp_path):
    with write(tmp_path, "cifar10/cifar10.npz", b"").open("wb") as file:
        np.save(file, np.zeros(3))
    refused("cifar10", tmp_path, "it is not an .npz file, or it is damaged")


def writers(**other):
    return {
        "train_label": np.arange(60_000) % 10, "train_writer": np.arange(60_000) // 100,
        "test_label": np.arange(10_000) % 10, "test_writer": np.arange(10_000) // 100, **other,
    }  # fmt: skip


def test_writers_must_belong_to_these_images(tmp_path):
    write_mnist(tmp_path)
    write_npz(tmp_path, "mnist/mnist_writers.npz", writers())
    assert load("mnist-writers", tmp_path).groups[[0, 99, 100]].tolist() == [0, 0, 1]
    write_npz(tmp_path, "mnist/mnist_writers.npz", writers(test_label=np.zeros(10_000, int)))
    refused("mnist-writers", tmp_path, "test_label 1 is not the label of that MNIST image")
