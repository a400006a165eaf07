"""Your own arrays as rows to learn from: checked, put in order, and split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.arrays import given_array
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import PublicStatistic, Rows, Targets, held_out, split_note
from sottovoce.learning.lazy_rows import Examples
from sottovoce.support.npz import read_npz

ARRAYS = ("inputs", "targets", "test_inputs", "test_targets", "groups")
"""What an npz file may hold; the first two it must."""

UNSCALED = "rows are as you gave them; no privacy figure covers what you scaled them with"


def read_rows(path: Path, seed: int) -> Rows:
    """Rows from an npz file with `inputs` and `targets`, and more of ARRAYS if you like."""
    found = read_npz(path)
    unknown = sorted(set(found) - set(ARRAYS))
    lacking = [name for name in ARRAYS[:2] if name not in found]
    if unknown or lacking:
        what = f"no array {lacking[0]!r}" if lacking else f"array {unknown[0]!r}"
        raise InputError(f"{path}: {what}", f"arrays are {', '.join(ARRAYS)}", "see docs/your-own-data.md")
    return rows_of(found, seed, f"{path}: ")


def rows_of(arrays: Mapping[str, ArrayLike | None], seed: int, where: str = "") -> Rows:
    """Checked rows; without test rows a fifth of the rows, of each class or of each group, is held out."""
    given = {name: given_array(array, f"{where}{name}") for name, array in arrays.items() if array is not None}
    lacking = next((name for name in ARRAYS[:2] if name not in given), None)
    if lacking is not None:
        raise InputError(f"{where}no {lacking}", "both inputs and targets are needed", f"give {lacking}")
    if ("test_inputs" in given) != ("test_targets" in given):
        raise InputError(
            f"{where}test_inputs or test_targets alone", "they must be given together", "give both, or none"
        )
    inputs, targets, classes = _checked(given["inputs"], given["targets"], where)
    if len(classes) == 1:
        raise InputError(f"{where}one class, {classes[0]}", "there is nothing to distinguish", "give two or more")
    groups, group_names = _grouped(given.get("groups"), len(inputs), where)
    shape, notes = given["inputs"].shape[1:], (UNSCALED,)
    public = (PublicStatistic.CLASSES,) if classes else ()
    if "test_inputs" in given:
        test_inputs, test_targets, test_classes = _checked(given["test_inputs"], given["test_targets"], f"{where}test ")
        alike = given["test_inputs"].shape[1:] == shape and bool(classes) == bool(test_classes)
        if not alike or not set(test_classes) <= set(classes):
            raise InputError(
                f"{where}test rows of shape {given['test_inputs'].shape[1:]}, classes {_few(test_classes)}",
                f"training rows are of shape {shape}, classes {_few(classes)}", "make them agree",
            )  # fmt: skip
        return Rows(
            Examples(inputs), _positions(targets, classes),
            test_inputs, _positions(test_targets, classes), shape, notes, classes=classes, groups=groups,
            group_names=group_names, public_statistics=public,
        )  # fmt: skip
    positions = _positions(targets, classes)
    strata = positions if classes else np.zeros(len(inputs)) if groups is None else groups
    test = held_out(strata, seed)
    if not test.any():
        raise InputError(
            f"{where}{len(inputs)} rows",
            "a fifth of each class is held out, and no class has three rows",
            "give test rows",
        )
    by = " of each class" if classes else " of each group" if groups is not None else ""
    return Rows(
        Examples(inputs[~test]), positions[~test], inputs[test], positions[test], shape, (*notes, split_note(by, seed)),
        classes=classes, groups=None if groups is None else groups[~test],
        test_groups=None if groups is None else groups[test], group_names=group_names,
        public_statistics=(*public, PublicStatistic.HELD_OUT_LABELS) if classes else public,
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


def _few(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:5]) + (", ..." if classes[5:] else "") if classes else "none"
