"""Where each data set comes from and how its files become rows; `datasets.load` finds them by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.learning.lazy_rows import AT_ONCE, Examples, Floats
from sottovoce.learning.readers import File

HELD_OUT = 0.2
"""Share of the rows held out for testing, in each class or for each user, where a data set has no split of its own."""

PUBLIC = "these statistics are assumed to be public, as in the papers' experiments, and no privacy figure covers them"
FEATURES = f"each feature is standardised with mean and deviation of the training rows; {PUBLIC}"
PIXELS = f"pixels are standardised with one mean and deviation per channel, of the training rows; {PUBLIC}"

DIGITS = tuple("0123456789")
FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


Targets: TypeAlias = NDArray[np.int64 | np.float32]
"""What rows are to give: positions of classes (int64), or values (float32)."""


class PublicStatistic(StrEnum):
    """What of the rows is used before a run begins; taken to be public, and covered by no privacy figure."""

    FEATURE_SCALES = "the mean and deviation of each feature, by which it is standardised"
    PIXEL_SCALES = "the mean and deviation of pixels, by which they are standardised"
    CLASSES = "which classes there are"
    ENTITIES = "which users and movies there are"
    HELD_OUT_LABELS = "labels, where they decide which rows are held out"
    PARTITION_LABELS = "labels, where they decide which node holds which rows"


@dataclass(frozen=True)
class Rows:
    """What a reader hands over; `load` adds name, licence and source."""

    examples: Examples
    targets: Targets
    test_inputs: Floats
    test_targets: Targets
    shape: tuple[int, ...]
    notes: tuple[str, ...]
    classes: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None
    entities: tuple[int, ...] = ()
    group_names: tuple[str, ...] = ()
    public_statistics: tuple[PublicStatistic, ...] = ()
    plain_pixels: tuple[Examples, Examples] | None = None


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue. `rows` counts training and test rows; None where only the file knows."""

    kind: str
    read: Callable[[Path, int], Rows]
    files: tuple[File, ...]
    rows: tuple[int, int] | None
    licence: str
    source: str
    trap: str


# --- splitting and scaling -----------------------------------------------------------------------------------------


def held_out(strata: NDArray[np.generic], seed: int) -> NDArray[np.bool_]:
    """Which rows are for testing: a fifth of every stratum, rounded, drawn without replacement.

    >>> [int(held_out(np.repeat([0, 1], [10, 40]), seed=0)[part].sum()) for part in (slice(10), slice(10, 50))]
    [2, 8]
    """
    shuffled = np.random.default_rng(seed).permutation(len(strata))
    _, stratum, counts = np.unique(strata, return_inverse=True, return_counts=True)
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    rank = np.arange(len(strata)) - np.repeat(np.cumsum(counts) - counts, counts)
    mask = np.zeros(len(strata), dtype=bool)
    mask[order] = rank < np.repeat(np.rint(HELD_OUT * counts), counts)
    return mask


def _standardised(train: NDArray[np.float64], test: NDArray[np.float64]) -> tuple[Floats, Floats]:
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return ((train - mean) / scale).astype(np.float32), ((test - mean) / scale).astype(np.float32)


def _images(
    train: NDArray[np.uint8],
    targets: Targets,
    test: NDArray[np.uint8],
    test_targets: Targets,
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    notes: tuple[str, ...] = (),
    brightest: int = 255,
) -> Rows:
    """Rows of pixels, flat, each channel with mean 0 and deviation 1 over the training rows."""
    train, test = (pixels.reshape(len(pixels), -1) for pixels in (train, test))
    tables = [_pixel_table(train.reshape(len(train), shape[0], -1)[:, channel]) for channel in range(shape[0])]
    scaled = partial(_standardised_pixels, tables=tables)
    plain = [Examples(pixels, partial(_from_zero_to_one, brightest=brightest)) for pixels in (train, test)]
    return Rows(
        Examples(train, scaled), targets, Examples(test, scaled)[:], test_targets, shape, (PIXELS, *notes),
        classes=classes, public_statistics=(PublicStatistic.PIXEL_SCALES,), plain_pixels=(plain[0], plain[1]),
    )  # fmt: skip


def _pixel_table(pixels: NDArray[np.uint8]) -> Floats:
    """Standardised value of each of the 256 levels; exact, from a histogram."""
    chunks = (pixels[start : start + AT_ONCE] for start in range(0, len(pixels), AT_ONCE))
    share = sum(np.bincount(chunk.ravel(), minlength=256) for chunk in chunks) / pixels.size
    levels = np.arange(256.0)
    mean = float(share @ levels)
    deviation = float(np.sqrt(share @ (levels - mean) ** 2)) or 1.0
    return ((levels - mean) / deviation).astype(np.float32)


def _standardised_pixels(pixels: NDArray[np.uint8], tables: list[Floats]) -> Floats:
    channels = np.split(pixels, len(tables), axis=1)
    return np.concatenate([table[levels] for table, levels in zip(tables, channels, strict=True)], axis=1)


def _from_zero_to_one(pixels: NDArray[np.uint8], brightest: int) -> Floats:
    return np.divide(pixels, np.float32(brightest), dtype=np.float32)


def split_note(by: str, seed: int) -> str:
    """The note about rows that were held out."""
    return f"a fifth of the rows{by} is held out for testing, seed {seed}"


# --- readers -------------------------------------------------------------------------------------------------------


def shipped_rows(name: str, file: str, *, heading: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features and labels of a data set that scikit-learn ships, from its file: importing it takes half a second.

    A version that keeps the file elsewhere is asked itself.
    """
    package = find_spec("sklearn")
    path = Path(package.origin).parent / "datasets" / "data" / file if package and package.origin else Path(file)
    if not path.is_file():
        from sklearn import datasets

        features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        return features, labels.astype(np.int64)
    rows = np.loadtxt(path, delimiter=",", skiprows=heading)
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def _digits(folder: Path, seed: int) -> Rows:
    pixels, targets = shipped_rows("digits", "digits.csv.gz")
    test = held_out(targets, seed)
    train, held = (pixels[chosen].astype(np.uint8) for chosen in (~test, test))
    notes = (split_note(" of each class", seed),)
    found = _images(train, targets[~test], held, targets[test], (1, 8, 8), DIGITS, notes, brightest=16)
    return replace(found, public_statistics=(*found.public_statistics, PublicStatistic.HELD_OUT_LABELS))


def _breast_cancer(folder: Path, seed: int) -> Rows:
    features, labels = shipped_rows("breast_cancer", "breast_cancer.csv", heading=1)
    notes = (FEATURES, split_note(" of each class", seed))
    return _table(features, labels, held_out(labels, seed), notes, ("malignant", "benign"))


def _table(
    features: NDArray[np.float64],
    targets: Targets,
    test: NDArray[np.bool_],
    notes: tuple[str, ...],
    classes: tuple[str, ...] = (),
) -> Rows:
    inputs, test_inputs = _standardised(features[~test], features[test])
    by_label = (PublicStatistic.HELD_OUT_LABELS,) if classes else ()
    return Rows(
        Examples(inputs), targets[~test], test_inputs, targets[test], features.shape[1:], notes, classes=classes,
        public_statistics=(PublicStatistic.FEATURE_SCALES, *by_label),
    )  # fmt: skip


def household_averages(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    """The eight features of scikit-learn's `fetch_california_housing`, in its order, from the raw census columns."""
    longitude, latitude, age, rooms, bedrooms, population, households, income = raw[:, :8].T
    averages = (rooms / households, bedrooms / households, population, population / households)
    return np.stack([income, age, *averages, latitude, longitude], axis=1)


def _housing_price(folder: Path, seed: int) -> Rows:
    raw = HOUSING_FILE.csv(folder, HOUSING_COLUMNS, HOUSING_ROWS)
    if raw[:, 6].min() <= 0:
        raise HOUSING_FILE.wrong(HOUSING_FILE.path(folder), "a row with no household")
    targets = (raw[:, 8] / 100_000).astype(np.float32)
    notes = (
        FEATURES,
        "as in scikit-learn: rooms, bedrooms, occupancy are averages per household; prices are in 100,000 dollars",
        f"{(raw[:, 8] > 500_000).sum()} prices are capped at 500,001 dollars",
        split_note("", seed),
    )
    return _table(household_averages(raw), targets, held_out(np.zeros(len(raw)), seed), notes)


def _housing_longitude(folder: Path, seed: int) -> Rows:
    raw = OPENML_FILE.arff(folder, OPENML_ATTRIBUTES, ("N", "P"), HOUSING_ROWS)
    targets = raw[:, 8].astype(np.int64)
    if not np.isin(raw[:, 8], (0, 1)).all():
        raise OPENML_FILE.wrong(OPENML_FILE.path(folder), "a label other than P and N")
    notes = (FEATURES, LONGITUDE_TRAP, "P is west (1), N is east (0)", split_note(" of each class", seed))
    return _table(raw[:, :8], targets, held_out(targets, seed), notes, ("east", "west"))


def _idx_images(files: tuple[File, ...], classes: tuple[str, ...], folder: Path, seed: int) -> Rows:
    train_labels, test_labels = (_labels(files[part], folder, rows) for part, rows in ((1, 60_000), (3, 10_000)))
    train, test = files[0].idx(folder, (60_000, 28, 28)), files[2].idx(folder, (10_000, 28, 28))
    return _images(train, train_labels, test, test_labels, (1, 28, 28), classes)


def _labels(file: File, folder: Path, rows: int) -> NDArray[np.int64]:
    labels = file.idx(folder, (rows,))
    if labels.max() > 9:
        raise file.wrong(file.path(folder), f"label {labels.max()}")
    return labels.astype(np.int64)


def _mnist_writers(folder: Path, seed: int) -> Rows:
    wanted = {
        f"{part}_{what}": ("integers", (rows,))
        for part, rows in (("train", 60_000), ("test", 10_000))
        for what in ("label", "writer")
    }
    known = WRITERS_FILE.npz(folder, wanted)
    plain = _idx_images(MNIST_FILES, DIGITS, folder, seed)
    for part, labels in (("train", plain.targets), ("test", plain.test_targets)):
        differ = np.flatnonzero(known[f"{part}_label"] != labels)
        if differ.size:
            raise WRITERS_FILE.wrong(
                WRITERS_FILE.path(folder), f"{part}_label {differ[0]} is not the label of that MNIST image"
            )
    writers, test_writers = (known[f"{part}_writer"].astype(np.int64) for part in ("train", "test"))
    notes = (*plain.notes, "groups are NIST's writers, taken from QMNIST; no writer is in both parts")
    return replace(plain, notes=notes, groups=writers, test_groups=test_writers)


def _cifar10(folder: Path, seed: int) -> Rows:
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    for part in ("train", "test"):
        wanted |= {f"x_{part}": ("pixels", (-1, 3, 32, 32)), f"y_{part}": ("integers", (-1,))}
    found = CIFAR_FILE.npz(folder, wanted)
    for part in ("train", "test"):
        images, labels = found[f"x_{part}"], found[f"y_{part}"]
        if len(images) != len(labels) or labels.min() < 0 or labels.max() > 9:
            raise CIFAR_FILE.wrong(
                CIFAR_FILE.path(folder),
                f"{len(images)} images and {len(labels)} labels from {labels.min()} to {labels.max()} in {part}",
            )
    train, test, labels, test_labels = (found[f"{what}_{part}"] for what in "xy" for part in ("train", "test"))
    notes = (f"{len(train):,} of the 50,000 training and {len(test):,} of the 10,000 test images",)
    return _images(train, labels.astype(np.int64), test, test_labels.astype(np.int64), (3, 32, 32), CIFAR, notes)


def _movielens(folder: Path, seed: int) -> Rows:
    raw = RATINGS_FILE.csv(folder, RATINGS_COLUMNS, RATINGS_ROWS)
    stars = raw[:, 2].astype(np.float32)
    if stars.min() < 0.5 or stars.max() > 5:
        raise RATINGS_FILE.wrong(RATINGS_FILE.path(folder), f"ratings from {stars.min():g} to {stars.max():g}")
    users, user = np.unique(raw[:, 0], return_inverse=True)
    movies, movie = np.unique(raw[:, 1], return_inverse=True)
    inputs = np.stack([user, movie], axis=1).astype(np.float32)
    test = held_out(user, seed)
    groups = user.astype(np.int64)
    notes = (
        f"an input is a pair of positions: of {len(users)} users and {len(movies)} rated movies, ordered by id",
        "nothing is standardised; ratings are 0.5 to 5 stars",
        split_note(" of each user", seed) + ", so some movies are rated in test rows only",
    )
    return Rows(
        Examples(inputs[~test]), stars[~test], inputs[test], stars[test], (2,), notes,
        groups=groups[~test], test_groups=groups[test], entities=(len(users), len(movies)),
        public_statistics=(PublicStatistic.ENTITIES,),
    )  # fmt: skip


# --- the catalogue -------------------------------------------------------------------------------------------------

HOUSING_ROWS, RATINGS_ROWS = 20_640, 100_836
HOUSING_COLUMNS = (
    *("longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms"),
    *("population", "households", "median_income", "median_house_value"),
)
OPENML_ATTRIBUTES = (
    *("median_house_value", "median_income", "housing_median_age", "total_rooms", "total_bedrooms"),
    *("population", "households", "latitude", "binaryClass"),
)
RATINGS_COLUMNS = ("userId", "movieId", "rating", "timestamp")

STATLIB = "Luis Torgo's page California Housing (cal_housing.data; StatLib, Pace and Barry 1997)"
OPENML = "OpenML, data set 823 (houses, version 2, as ARFF)"
LECUN = "Yann LeCun's page The MNIST database of handwritten digits"
ZALANDO = "Zalando Research's repository fashion-mnist"
QMNIST = "Facebook Research's repository qmnist, converted as docs/data.md shows"
TORONTO = "the CIFAR page of the University of Toronto (binary version), converted as docs/data.md shows"
GROUPLENS = "GroupLens, MovieLens ml-latest-small of September 2018"

LONGITUDE_TRAP = (
    "the label of OpenML 823 is longitude < mean, not a house's value, which is an input; latitude alone scores 96 %"
)


def _idx_files(folder: str, origin: str) -> tuple[File, ...]:
    """Images and labels for training, then for testing."""
    return tuple(
        File((f"{folder}/{part}-{what}-ubyte",), f"{rows}{shape} unsigned bytes in idx form", origin)
        for part, rows in (("train", 60_000), ("t10k", 10_000))
        for what, shape in (("images-idx3", " x 28 x 28"), ("labels-idx1", ""))
    )


HOUSING_FILE = File(
    ("housing/cal_housing.csv", "housing/cal_housing.data"),
    f"{HOUSING_ROWS:,} rows of {len(HOUSING_COLUMNS)} numbers ({', '.join(HOUSING_COLUMNS)})",
    STATLIB,
)
OPENML_FILE = File(
    ("housing/openml_823_houses.arff", "housing/dataset_823_houses.arff"),
    f"an ARFF file of {HOUSING_ROWS:,} rows ({', '.join(OPENML_ATTRIBUTES)})",
    OPENML,
)
MNIST_FILES = _idx_files("mnist", LECUN)
FASHION_FILES = _idx_files("fashion_mnist", ZALANDO)
WRITERS_FILE = File(
    ("mnist/mnist_writers.npz",),
    "integer arrays train_label, train_writer (60000) and test_label, test_writer (10000), in MNIST's order",
    QMNIST,
)
CIFAR_FILE = File(
    ("cifar10/cifar10.npz", "cifar10/cifar10_subset_10k_2k.npz"),
    "arrays x_train, x_test (N x 3 x 32 x 32 unsigned bytes) and y_train, y_test (N integers from 0 to 9)",
    TORONTO,
)
RATINGS_FILE = File(
    ("movielens/ml-latest-small/ratings.csv",),
    f"{RATINGS_ROWS:,} rows of {len(RATINGS_COLUMNS)} numbers ({', '.join(RATINGS_COLUMNS)})",
    GROUPLENS,
)

CATALOGUE = {
    "digits": Entry(
        "classes", _digits, (), (1438, 359), "none stated in scikit-learn's copy", "scikit-learn (UCI, Alpaydin 1998)",
        "8 x 8 pixels, not MNIST; who wrote them is not recorded",
    ),
    "breast-cancer": Entry(
        "classes", _breast_cancer, (), (456, 113), "none stated in scikit-learn's copy",
        "scikit-learn (UCI, Wolberg 1995)", "class 0 is malignant, class 1 benign",
    ),
    "housing-price": Entry(
        "value", _housing_price, (HOUSING_FILE,), (16512, 4128), "none stated; cite Pace and Barry 1997", STATLIB,
        "965 prices are capped at 500,001 dollars; rows are ordered by place",
    ),
    "housing-longitude": Entry(
        "classes", _housing_longitude, (OPENML_FILE,), (16512, 4128), "none stated; cite Pace and Barry 1997", OPENML,
        LONGITUDE_TRAP,
    ),
    "mnist": Entry(
        "classes", partial(_idx_images, MNIST_FILES, DIGITS), MNIST_FILES, (60_000, 10_000),
        "none stated; cite LeCun, Cortes and Burges", LECUN,
        "training and test images are of different writers",
    ),
    "fashion-mnist": Entry(
        "classes", partial(_idx_images, FASHION_FILES, FASHION), FASHION_FILES, (60_000, 10_000), "MIT, Zalando SE",
        ZALANDO, "altered copies circulate under the same names",
    ),
    "mnist-writers": Entry(
        "classes", _mnist_writers, (*MNIST_FILES, WRITERS_FILE), (60_000, 10_000), "BSD style (QMNIST); as mnist",
        f"{LECUN}, and {QMNIST}",
        "digits only: not FEMNIST with its 62 classes; 539 writers train, 297 others test",
    ),
    "cifar10": Entry(
        "classes", _cifar10, (CIFAR_FILE,), None, "none stated; cite Krizhevsky 2009", TORONTO,
        "the file may hold only a part; the notes of the loaded data say how much",
    ),
    "movielens": Entry(
        "ratings", _movielens, (RATINGS_FILE,), (80_672, 20_164), "GroupLens: research use, not commercial", GROUPLENS,
        "the edition of 2016 (100,004 ratings) has the same name and is refused",
    ),
}  # fmt: skip
