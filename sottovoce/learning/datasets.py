"""Data sets: two that ship with scikit-learn, the others from a folder the user names, or the user's own.

    >>> digits = load("digits")
    >>> digits
    Dataset('digits', classes, 1438 + 359 rows of 64)
    >>> digits.inputs.dtype, digits.shape, len(digits.classes)
    (dtype('float32'), (1, 8, 8), 10)

No torch here. Arrays stay writable, so that torch can share their memory; treat them as values all the same.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.arrays import given_array
from sottovoce.core.random_streams import check_seed
from sottovoce.errors import InputError, SottovoceError, shortened
from sottovoce.learning.catalogue import CATALOGUE, PIXELS, Entry, PublicStatistic, Rows, Targets, held_out, split_note
from sottovoce.learning.lazy_rows import LARGEST_NORM, SMALLEST_NORM, Examples, Floats, clip_to_norm
from sottovoce.support.npz import read_npz
from sottovoce.support.own_code import Offered, code_digest, named_object

FOLDER = "SOTTOVOCE_DATA"
"""The environment variable that names the folder when no argument does."""

OF_ITS_OWN = "tables"
"""The partition in which every node holds the table of its name."""

ELSEWHERE = {
    "target": "label",
    "columns": [
        {"name": "label", "categories": ["no", "yes"]},
        {"name": "value", "range": [0.0, 1.0]},
    ],
}
"""Columns of rows that stay with another framework: no figure about whole updates depends on what they are."""

NAMES_A_TABLE = "table:"
"""How settings name a table of the user's own, or a folder of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows to learn from and rows to test on.

    `examples` are the training rows, flat, converted to numbers when needed; `inputs` is all of them in one array.
    `shape` is the shape of one example (channels first).
    `targets` are int64 positions in `classes`, or float32 when `kind` is "value" or "ratings". When it is "times",
    `periods` are the ends of periods, and targets are as `losses` has them.
    For ratings an input is a pair (user, movie) of positions, exact in float32, and `entities` counts both.
    `groups` says who each row comes from (a writer, a user), or is None. Where they have names, `groups` are positions
    in `group_names`. `public_statistics` says which facts about the rows were used to prepare them. One unit of the
    targets is `target_unit` of their own units, and zero is `target_zero` there. `plain_pixels` are the rows of images
    for training and testing before that; `folder` is where the data sets are that it was read with.
    """

    name: str
    kind: str
    examples: Examples
    targets: Targets
    test_inputs: Floats
    test_targets: Targets
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    groups: NDArray[np.int64] | None
    test_groups: NDArray[np.int64] | None
    entities: tuple[int, ...]
    licence: str
    source: str
    notes: tuple[str, ...]
    group_names: tuple[str, ...] = ()
    public_statistics: tuple[PublicStatistic, ...] = ()
    target_unit: float = 1.0
    target_zero: float = 0.0
    periods: tuple[float, ...] = ()
    plain_pixels: tuple[Examples, Examples] | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        rows = f"{len(self.examples)} + {len(self.test_inputs)} rows of {self.examples.width}"
        return f"Dataset({self.name!r}, {self.kind}, {rows})"

    @cached_property
    def inputs(self) -> Floats:
        """All training rows, contiguous."""
        return self.examples[:]

    def in_own_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scaled targets, or outputs, in the unit that the target has by itself."""
        return self.target_zero + self.target_unit * values

    def unit_norm(self) -> Dataset:
        """Every example scaled to norm one, so that its gradient is bounded without clipping."""
        if self.entities:
            raise InputError(f"unit norm of {self.name}", "its rows are positions, not features", "leave it out")
        note = "each example is scaled to norm one"
        return replace(
            self,
            examples=self.examples.unit_norm(),
            test_inputs=Examples(self.test_inputs).unit_norm()[:],
            plain_pixels=None,
            notes=(*self.notes, note),
        )

    def max_norm(self, bound: float) -> Dataset:
        """Every example longer than `bound` scaled down to it, so that norms of rows have a public bound."""
        if self.entities:
            raise InputError(f"max_norm on {self.name}", "its rows are positions, not features", "leave it out")
        if not SMALLEST_NORM <= bound <= LARGEST_NORM:
            raise InputError(
                f"max_norm = {bound}",
                f"it must lie between {SMALLEST_NORM:g} and {LARGEST_NORM:g}",
                "give 1.0, for example",
            )
        note = f"each example longer than {bound:g} is scaled down to that norm"
        return replace(
            self,
            examples=self.examples.clipped(bound),
            test_inputs=clip_to_norm(self.test_inputs, bound),
            plain_pixels=None,
            notes=(*self.notes, note),
        )

    def with_plain_pixels(self) -> Dataset:
        """The same with pixels from 0 to 1, if it is of images; no statistics of the rows scale them."""
        if self.plain_pixels is None:
            return self
        train, test = self.plain_pixels
        return replace(
            self, examples=train, test_inputs=test[:], plain_pixels=None,
            notes=tuple(note for note in self.notes if note != PIXELS),
            public_statistics=tuple(one for one in self.public_statistics if one != PublicStatistic.PIXEL_SCALES),
        )  # fmt: skip

    def only(self, rows: NDArray[np.int64]) -> Dataset:
        """The same with only these training rows, in that order; nothing is kept of the others."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(
            self, examples=self.examples.only(rows), targets=self.targets[rows], groups=groups, plain_pixels=None
        )


@dataclass(frozen=True)
class DatasetListing:
    """What is known about a data set without reading it: which files are there, which are missing."""

    name: str
    kind: str
    files: tuple[str, ...]
    missing: tuple[str, ...]
    rows: tuple[int, int] | None
    bytes: int
    licence: str
    source: str
    trap: str

    @property
    def found(self) -> bool:
        """Whether all its files are there."""
        return not self.missing


def load(name: str, folder: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """The data set of that name, from `folder` or else the folder that SOTTOVOCE_DATA names.

    `file:PATH.npz` is one of your own, looked for in the current folder and then in that folder: see `from_arrays` for
    its arrays. For tables with columns see `learning.tables`.
    `seed` chooses the rows held out for testing if a data set has no split of its own.

    >>> load("moons")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: data set 'moons'; known: breast-cancer, ...; see docs/data.md
    """
    if name.startswith("file:"):
        path = user_file(name.removeprefix("file:"), folder)
        return _user_dataset(path.stem, _read_rows(path, check_seed(seed)))
    if name not in CATALOGUE:
        raise InputError(
            f"data set {name!r}", f"known: {', '.join(dataset_names())}, file:PATH, table:PATH", "see docs/data.md"
        )
    entry = CATALOGUE[name]
    place = folder_of(folder) if entry.files else None
    if entry.files and place is None:
        raise InputError(
            f"data set {name!r} and no folder",
            f"it is read from {entry.files[0].names[0]}{' and others' if entry.files[1:] else ''} in a folder of yours",
            f"give --data DIR or set {FOLDER}; get it from {entry.source}",
        )
    rows = entry.read(place or Path(), check_seed(seed))
    found = Dataset(name=name, kind=entry.kind, licence=entry.licence, source=entry.source, **vars(rows))
    named = folder if folder is not None else os.environ.get(FOLDER) or None
    return replace(found, folder=None if named is None else Path(named))


def from_arrays(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    groups: ArrayLike | None = None,
    name: str = "mine",
    seed: int = 0,
) -> Dataset:
    """A data set of your own arrays: a row of `inputs` for each example, of any shape, and one target each.

    Whole numbers and words are classes, in sorted order; fractions are values to predict. `test` is a pair of arrays
    for testing; without it a fifth of the rows, of each class or else of each group, is held out by `seed`. `groups`
    says who each row comes from. Rows are used as they are: scale them first, with figures that may be public.

    >>> from_arrays([[0.0, 1.0], [1.0, 0.0]] * 10, ["cat", "dog"] * 10, name="pets")
    Dataset('pets', classes, 16 + 4 rows of 2)
    """
    if test is not None and not (isinstance(test, tuple | list) and len(test) == 2):
        raise InputError(f"test of type {type(test).__name__}", "it must be a pair", "give test=(inputs, targets)")
    test_inputs, test_targets = (None, None) if test is None else test
    arrays = {"inputs": inputs, "targets": targets, "test_inputs": test_inputs, "test_targets": test_targets}
    return _user_dataset(name, _user_rows({**arrays, "groups": groups}, check_seed(seed)))


def _user_dataset(name: str, rows: Rows) -> Dataset:
    kind = "classes" if rows.classes else "value"
    return Dataset(name=name, kind=kind, licence="your own", source="you", **vars(rows))


def user_file(path: str, folder: str | Path | None) -> Path:
    """Where a file of the user's own is: here, or else in the folder of data sets."""
    place = folder_of(folder)
    here = Path(path)
    return here if here.exists() or place is None else place / path


def dataset_names() -> tuple[str, ...]:
    """Every data set that `load` knows by name."""
    return tuple(sorted(CATALOGUE))


def list_datasets(folder: str | Path | None = None) -> tuple[DatasetListing, ...]:
    """Every data set, with where it was found or what is missing. Files are looked for, not read."""
    place = folder_of(folder)
    return tuple(_listing(name, CATALOGUE[name], place) for name in dataset_names())


def _listing(name: str, entry: Entry, place: Path | None) -> DatasetListing:
    paths = [file.find(place) if place else None for file in entry.files]
    missing = tuple(file.names[0] for file, path in zip(entry.files, paths, strict=True) if path is None)
    found = [path for path in paths if path is not None]
    rows = entry.rows
    if rows is None and found and place:
        train, test = (entry.files[0].npz_rows(place, key) for key in ("y_train", "y_test"))
        rows = None if train is None or test is None else (train, test)
    return DatasetListing(
        name=name, kind=entry.kind, files=tuple(map(str, found)), missing=missing, rows=rows,
        bytes=sum(path.stat().st_size for path in found),
        licence=entry.licence, source=entry.source, trap=entry.trap,
    )  # fmt: skip


def folder_of(folder: str | Path | None = None) -> Path | None:
    """The folder to read from: the one given, else the one that SOTTOVOCE_DATA names, else None."""
    named = folder if folder is not None else os.environ.get(FOLDER) or None
    if named is None:
        return None
    path = Path(named)
    if not path.is_dir():
        raise InputError(f"folder {path}: no such folder", "data sets are read from a folder", f"check it, or {FOLDER}")
    return path


# --- your own arrays --------------------------------------------------------------------------------------------------

ARRAYS = ("inputs", "targets", "test_inputs", "test_targets", "groups")
"""What an npz file may hold; the first two it must."""

UNSCALED = "rows are as you gave them; no privacy figure covers what you scaled them with"


def _read_rows(path: Path, seed: int) -> Rows:
    """Rows from an npz file with `inputs` and `targets`, and more of ARRAYS if you like."""
    found = read_npz(path)
    unknown = sorted(set(found) - set(ARRAYS))
    if unknown:
        raise InputError(
            f"{path}: array {unknown[0]!r}", f"arrays are {', '.join(ARRAYS)}", "see docs/your-own-data.md"
        )
    return _user_rows(found, seed, f"{path}: ")


def _user_rows(arrays: Mapping[str, ArrayLike | None], seed: int, where: str = "") -> Rows:
    """Checked rows; without test rows a fifth of the rows, of each class or of each group, is held out."""
    given = {name: given_array(array, f"{where}{name}") for name, array in arrays.items() if array is not None}
    lacking = next((name for name in ARRAYS[:2] if name not in given), None)
    if lacking is not None:
        raise InputError(f"{where}no {lacking}", "both inputs and targets are needed", f"give {lacking}")
    if ("test_inputs" in given) != ("test_targets" in given):
        raise InputError(
            f"{where}test_inputs or test_targets alone", "they must be given together", "give both, or none"
        )
    inputs, words, classes = _checked(given["inputs"], given["targets"], where)
    if len(classes) == 1:
        raise InputError(f"{where}one class, {classes[0]}", "there is nothing to distinguish", "give two or more")
    groups, group_names = _grouped(given.get("groups"), len(inputs), where)
    shape, notes, test_groups = given["inputs"].shape[1:], [UNSCALED], None
    targets, public = _positions(words, classes), [PublicStatistic.CLASSES] if classes else []
    if "test_inputs" in given:
        test_inputs, test_words, test_classes = _checked(given["test_inputs"], given["test_targets"], f"{where}test ")
        alike = given["test_inputs"].shape[1:] == shape and bool(classes) == bool(test_classes)
        if not alike or not set(test_classes) <= set(classes):
            raise InputError(
                f"{where}test rows of shape {given['test_inputs'].shape[1:]}, classes {few(test_classes)}",
                f"training rows are of shape {shape}, classes {few(classes)}", "make them agree",
            )  # fmt: skip
        test_targets = _positions(test_words, classes)
    else:
        test = held_out(targets if classes else np.zeros(len(inputs)) if groups is None else groups, seed)
        if not test.any():
            raise InputError(
                f"{where}{len(inputs)} rows",
                "a fifth of each class is held out, and no class has three rows",
                "give test rows",
            )
        notes.append(split_note(" of each class" if classes else " of each group" if groups is not None else "", seed))
        public += [PublicStatistic.HELD_OUT_LABELS] if classes else []
        test_inputs, inputs = inputs[test], inputs[~test]
        test_targets, targets = targets[test], targets[~test]
        if groups is not None:
            test_groups, groups = groups[test], groups[~test]
    return Rows(
        Examples(inputs), targets, test_inputs, test_targets, shape, tuple(notes), classes=classes, groups=groups,
        test_groups=test_groups, group_names=group_names, public_statistics=tuple(public),
    )  # fmt: skip


def _checked(
    inputs: NDArray[np.generic], targets: NDArray[np.generic], where: str
) -> tuple[NDArray[np.float32], NDArray[np.generic], tuple[str, ...]]:
    """Flat float32 rows, targets, and the classes that they name; a fraction names none."""
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf" or inputs.size == 0:
        raise InputError(
            f"{where}inputs are {inputs.dtype} of shape {inputs.shape}",
            "they must be numbers, with a row for each example",
            "give real numbers in at least two dimensions, none of length 0",
        )  # fmt: skip
    if targets.shape != inputs.shape[:1] or targets.dtype.kind not in "biufU":
        raise InputError(
            f"{where}targets are {targets.dtype} of shape {targets.shape}",
            f"they must be numbers or words, one for each of {len(inputs)} rows", "give one column",
        )  # fmt: skip
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(inputs.reshape(len(inputs), -1), dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if bad.size:
        raise InputError(
            f"{where}row {bad[0]} holds nan or infinity", "rows must be finite in float32", "fill or drop it"
        )
    if targets.dtype.kind != "f":
        return flat, targets, tuple(map(str, np.unique(targets)))
    with np.errstate(over="ignore"):
        values = targets.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"{where}target {bad[0]} is nan or infinite", "targets must be finite in float32", "drop that row"
        )
    return flat, values, ()


def _positions(targets: NDArray[np.generic], classes: tuple[str, ...]) -> Targets:
    if not classes:
        return np.asarray(targets, dtype=np.float32)
    place = {name: position for position, name in enumerate(classes)}
    return np.array([place[str(target)] for target in targets], dtype=np.int64)


def _grouped(
    groups: NDArray[np.generic] | None, rows: int, where: str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """For each row the position of its group among the names of all groups, and these names."""
    if groups is None:
        return None, ()
    if groups.shape != (rows,) or groups.dtype.kind not in "biuU":
        raise InputError(
            f"{where}groups are {groups.dtype} of shape {groups.shape}",
            f"they must say who each of the {rows} rows comes from",
            "give one column of whole numbers or words",
        )  # fmt: skip
    names, positions = np.unique(groups, return_inverse=True)
    return positions.astype(np.int64), tuple(map(str, names))


def few(classes: Sequence[str]) -> str:
    """Names, or the first of many."""
    return ", ".join(classes[:5]) + (", ..." if classes[5:] else "") if classes else "none"


# --- by the user's own code ----------------------------------------------------------------------------------------


def find_dataset(name: str, folder: Path | None) -> Dataset:
    """The data set of that name, of the package or of the user's own."""
    found = None if _comes_with_package(name) else named_object(name, Offered.DATASET)
    if found is None:
        return load(name, folder)
    if not callable(found.value):
        raise InputError(
            f"data set {name!r} is a {type(found.value).__name__}", "it must be a function that returns a Dataset",
            "write def load(): return from_arrays(...)",
        )  # fmt: skip
    declared = inspect.signature(found.value).parameters.values()
    takes_folder = any(one.default is inspect.Parameter.empty for one in declared)
    made = call_own_code(found.value, name, (folder_of(folder),) if takes_folder else (), {})
    if hasattr(made, "__getitem__") and hasattr(made, "__len__") and not isinstance(made, Mapping | str | tuple):
        made = _of_pairs(made, name)
    if not isinstance(made, Dataset):
        raise InputError(
            f"data set {name!r} returns a {type(made).__name__}",
            "it must return a Dataset, or one of torch or Hugging Face", "return from_arrays(...)",
        )  # fmt: skip
    bound = made.examples.norm_bound
    return made if bound is None else replace(made, examples=made.examples.clipped(bound))


def _of_pairs(given: Any, name: str) -> Dataset:
    """A data set of torch, or of Hugging Face: pairs of inputs and target, or rows of two columns, the target last."""
    rows: Any = call_own_code(lambda: [given[at] for at in range(len(given))], name, (), {})
    pairs = [tuple(row.values()) if isinstance(row, Mapping) else row for row in rows]
    if not pairs or not all(isinstance(row, Sequence) and len(row) == 2 for row in pairs):
        raise InputError(
            f"data set {name!r}: {len(pairs)} rows", "each row is a pair: its inputs, and what they are to give",
            "select two columns, or return from_arrays(...)",
        )  # fmt: skip
    if len(shapes := {np.shape(inputs) for inputs, _ in pairs}) > 1:
        raise InputError(
            f"data set {name!r}: inputs of shapes {few([*map(str, shapes)])}", "inputs are alike", "crop or pad them"
        )
    inputs, targets = (np.stack([np.asarray(one) for one in part]) for part in zip(*pairs, strict=True))
    return from_arrays(inputs, targets, name=name.rpartition(":")[2])


def dataset_code(name: str) -> str | None:
    """A digest of the code that reads a data set of the user's own; None where no code of theirs does."""
    return None if _comes_with_package(name) else code_digest(name, Offered.DATASET)


def _comes_with_package(name: str) -> bool:
    """Whether a reader of the package reads it, as it does tables and arrays of the user's own."""
    return name in CATALOGUE or name == OF_ITS_OWN or name.startswith(("file:", "table:"))


def call_own_code(
    make: Callable[..., Any], name: str, arguments: tuple[object, ...], given: Mapping[str, object]
) -> object:
    """What a function of the user's gives; settings that it does not take are refused, and what it raises is named."""
    try:
        inspect.signature(make).bind(*arguments, **given)
    except TypeError as error:
        raise InputError(
            f"{name} with {shortened(str(dict(given)))}", f"it cannot be called with these settings: {error}",
            "correct the settings beside its name",
        ) from None  # fmt: skip
    try:
        return make(*arguments, **given)
    except SottovoceError:
        raise
    except Exception as error:
        raise InputError(
            f"{name}: {type(error).__name__}: {shortened(str(error))}", "your own code raised this error",
            "correct it, or the settings beside its name",
        ) from error  # fmt: skip
