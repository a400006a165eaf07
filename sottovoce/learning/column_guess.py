"""A first description of a table's columns, to be edited: what it takes from rows is not private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.toml_text import to_toml
from sottovoce.errors import InputError
from sottovoce.learning.columns import Column, Columns
from sottovoce.learning.table_files import read_cells
from sottovoce.learning.tables import category_text

MOST_CATEGORIES = 30
"""A column of words that has more different ones is dropped."""

MOST_CLASSES = 10
"""A target of whole numbers that has at most so many different ones is taken for classes."""

WARNING = """\
# Taken from the rows of a table, and therefore not private: ranges and categories tell about these rows.
# Before anybody else sees this file, put public ones in their place: the limits of an instrument, the wards there are.
"""


def guess_columns(path: Path, target: str | None = None) -> Columns:
    """Columns that fit a table; the last is the target unless one is named. Ranges and categories come from rows."""
    cells = read_cells(path)
    wanted = list(cells)[-1] if target is None else target
    if wanted not in cells:
        raise InputError(f"{path}: no column {wanted!r}", f"its columns are {', '.join(cells)}", "name one as --target")
    guessed = {name: _guess(name, column, is_target=name == wanted) for name, column in cells.items()}
    found = [column for column in guessed.values() if column is not None]
    if guessed[wanted] is None or len(found) < 2:
        raise InputError(
            f"{path}: {len(found)} columns that can be used", "the target and one more are needed",
            f"give numbers, or words of which at most {MOST_CATEGORIES} differ",
        )  # fmt: skip
    return Columns(target=wanted, columns=found, drop=[name for name, column in guessed.items() if column is None])


def columns_text(columns: Columns) -> str:
    """Columns as a file to edit, with what must be changed in it."""
    return WARNING + to_toml(columns.model_dump(exclude_defaults=True))


def _guess(name: str, cells: NDArray[Any], *, is_target: bool) -> Column | None:
    """What a column seems to be; None where it has too many different words, or nothing that differs."""
    distinct = [value for value in np.unique(cells).tolist() if category_text(value)]
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
