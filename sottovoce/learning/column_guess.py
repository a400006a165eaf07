"""A first description of a table's columns, to be edited: what it takes from rows is not private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.learning.columns import Column, Columns
from sottovoce.learning.table_files import read_cells, tables_in
from sottovoce.learning.tables import category_text
from sottovoce.support.files import Arrays
from sottovoce.support.toml_text import to_toml

MOST_CATEGORIES = 30
"""A column of words that has more different ones is dropped."""

MOST_CLASSES = 10
"""A target of whole numbers that has at most so many different ones is taken for classes."""

MISSING_WORDS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""Words that are taken for missing numbers where all other cells of a column are numbers."""

WARNING = """\
# Taken from the rows of a table, and therefore not private: ranges and categories tell about these rows.
# Before anybody else sees this file, put public ones in their place: the limits of an instrument, the wards there are.
"""


def read_all_cells(path: Path) -> Arrays:
    """The cells of a table; of a folder, those of all tables in it, one below the other."""
    if not path.is_dir():
        return read_cells(path)
    there = {place: read_cells(place) for place in tables_in(path).values()}
    (first, heading), *others = there.items()
    for place, cells in others:
        odd = next((name for name in (*heading, *cells) if (name in heading) != (name in cells)), None)
        if odd is not None:
            with_it, without = (first, place) if odd in heading else (place, first)
            raise InputError(
                f"{with_it} has a column {odd!r}, and {without} has none", "tables of one run have the same columns",
                "correct one of the headings",
            )  # fmt: skip
    return {name: _below([cells[name] for cells in there.values()]) for name in heading}


def _below(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One column from several; as text where some are text and others are numbers."""
    if len({part.dtype.kind == "U" for part in parts}) > 1:
        parts = [np.array([category_text(cell) for cell in part.tolist()]) for part in parts]
    return np.concatenate(parts)


def count_missing(cells: NDArray[Any], missing_words: list[str]) -> int:
    """How many cells of a column are empty, or hold a word that stands for nothing."""
    if cells.dtype.kind != "U":
        return int(np.isnan(cells.astype(np.float64)).sum())
    return int(np.isin(cells, ["", *missing_words]).sum())


def not_a_number(cells: NDArray[Any], missing_words: list[str]) -> str | None:
    """The first cell that keeps a column from being one of numbers, if most of its different cells are some."""
    if cells.dtype.kind != "U":
        return None
    distinct = [cell for cell in dict.fromkeys(cells.tolist()) if cell not in ("", *missing_words)]
    words = [cell for cell in distinct if _numbers([cell]) is None]
    return words[0] if words and 2 * len(words) < len(distinct) else None


def guess_columns(path: Path, cells: Arrays, target: str | None = None) -> Columns:
    """Columns that fit the cells of a table; the last is the target unless one is named.

    Ranges and categories come from rows. `path` names the table in errors.
    """
    wanted = list(cells)[-1] if target is None else target
    if wanted not in cells:
        raise InputError(f"{path}: no column {wanted!r}", f"its columns are {', '.join(cells)}", "name one as --target")
    words = [word for word in MISSING_WORDS if any(_stands_for_a_number(word, column) for column in cells.values())]
    guessed = {name: _guess(name, column, words, is_target=name == wanted) for name, column in cells.items()}
    found = [column for column in guessed.values() if column is not None]
    if guessed[wanted] is None:
        raise InputError(
            f"{path}: the target {wanted!r}", f"it needs two different values, and at most {MOST_CATEGORIES} words",
            "name another column as --target",
        )  # fmt: skip
    if len(found) < 2:
        raise InputError(
            f"{path}: no column but the target can be used", "one more is needed, with two different values",
            f"give numbers, or words of which at most {MOST_CATEGORIES} differ",
        )  # fmt: skip
    dropped = [name for name, column in guessed.items() if column is None]
    return Columns(target=wanted, columns=found, drop=dropped, missing_words=words)


def columns_text(columns: Columns) -> str:
    """Columns as a file to edit, with what must be changed in it."""
    return WARNING + to_toml(columns.model_dump(exclude_defaults=True))


def _stands_for_a_number(word: str, cells: NDArray[Any]) -> bool:
    """Whether a word stands in a column of numbers."""
    if cells.dtype.kind != "U" or word not in cells:
        return False
    others = [cell for cell in np.unique(cells).tolist() if cell not in ("", *MISSING_WORDS)]
    return bool(others) and _numbers(others) is not None


def _guess(name: str, cells: NDArray[Any], missing_words: list[str], *, is_target: bool) -> Column | None:
    """What a column seems to be; None where it has too many different words, or nothing that differs."""
    absent = ("", *missing_words)
    distinct = [value for value in np.unique(cells).tolist() if category_text(value) not in absent]
    numbers = _numbers(distinct)
    classes = (
        is_target and numbers is not None and len(distinct) <= MOST_CLASSES and all(map(float.is_integer, numbers))
    )
    if numbers is not None and not classes:
        low, high = min(numbers, default=0.0), max(numbers, default=0.0)
        return Column(name=name, range=[low, high]) if low < high else None
    if not 2 <= len(distinct) <= MOST_CATEGORIES:
        return None
    return Column(name=name, categories=[category_text(value) for value in distinct])


def _numbers(values: list[Any]) -> list[float] | None:
    """The values as finite numbers, if all of them are; truth values are categories."""
    if any(isinstance(value, bool) for value in values):
        return None
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None
