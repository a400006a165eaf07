"""What the columns of a table are: names, kinds, ranges and categories, agreed in public and never taken from rows.

target = "readmitted"
drop = ["patient"]

[[columns]]
name = "age"
range = [0, 120]          # values are scaled by it; those outside are clipped
missing = 50              # what an empty cell becomes; without it such a row is refused

[[columns]]
name = "born"
years_until = "2026-01-01"  # or the name of another column of dates; days_until counts days
range = [0, 120]

[[columns]]
name = "ward"
categories = ["east", "west", "other"]
unknown = "other"         # what another category becomes

[[columns]]
name = "readmitted"
categories = ["no", "yes"]

A target may be the time to an event, or to the last time somebody was seen. Periods end at public times:

target = "days"
event = "died"            # a column of two categories: the second says that the event happened then

[[columns]]
name = "days"
periods = [30, 90, 365]
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.errors import InputError
from sottovoce.learning.table_cells import category_text, days_of, missing_cells, numbers_of, read_cells, tables_in
from sottovoce.support.config import Document, Section, parse_section, read_settings_file
from sottovoce.support.npz import Arrays
from sottovoce.support.text import to_toml

REFUSE = "refuse"
"""What stands for a missing cell, or for an unknown category, where there is no substitute: the row does not fit."""

SCALES = ([0.0, 1.0], [-1.0, 1.0])
"""What ranges may be scaled to."""

MOST_CATEGORIES = 30
"""A column of words that has more different ones is dropped."""

MOST_CLASSES = 10
"""A target of whole numbers that has at most so many different ones is taken for classes."""

MISSING_WORDS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""Words that are taken for missing numbers where all other cells of a column are numbers."""

MOST_PERIODS = 100

DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
IDENTITY = re.compile(
    r"(^|[^a-z]|patient|person|subject|case)(id|uid|mrn|nr)$|^(patient|person|subject|case)$", re.IGNORECASE
)
"""Names of columns that tell people or rows apart."""

DATE = "2026-01-01"
"""An example of a date."""

WARNING = """\
# Taken from the rows of a table, and therefore not private: ranges and categories tell about these rows.
# Before anybody else sees this file, put public ones in their place: the limits of an instrument, the wards there are.
"""


class Column(Section):
    """A column of numbers within a range, of categories, or of times in periods that end as given.

    Dates become a number: the years or days until a date, or until that of another column.
    """

    name: str
    range: list[float] | None = Field(default=None, min_length=2, max_length=2)
    categories: list[str] | None = Field(default=None, min_length=2)
    missing: float | str = REFUSE
    unknown: str = REFUSE
    years_until: str | None = None
    days_until: str | None = None
    periods: list[float] | None = Field(default=None, min_length=1, max_length=MOST_PERIODS)

    @property
    def until(self) -> str | None:
        """For dates: the date, or the column of dates, up to which years or days are counted."""
        return self.years_until or self.days_until

    @property
    def width(self) -> int:
        """How many inputs it becomes: one number, or one for each category."""
        return 1 if self.categories is None else len(self.categories)


class Columns(Section):
    """All columns of a table. The target is one of them; the others, in their order, are the inputs.

    Where the target is a time, `event` names the column that says whether the event happened then: it is no input.

    Cells that hold one of the `missing_words` count as missing, as empty ones do; `decimal` is the mark in numbers.
    """

    target: str
    columns: list[Column]
    drop: list[str] = Field(default_factory=list)
    scale_to: list[float] = Field(default_factory=lambda: SCALES[0])
    missing_words: list[str] = Field(default_factory=list)
    decimal: Literal[".", ","] = "."
    event: str | None = None

    @property
    def features(self) -> list[Column]:
        """The columns that are inputs."""
        return [column for column in self.columns if column.name not in self.outcome]

    @property
    def outcome(self) -> tuple[str, ...]:
        """The columns that say what is to be predicted."""
        return (self.target,) if self.event is None else (self.target, self.event)

    @property
    def periods(self) -> tuple[float, ...]:
        """Where periods end, of a time to an event."""
        return tuple(self.target_column.periods or ())

    @property
    def unread(self) -> list[str]:
        """The dropped columns, but those of dates up to which others count."""
        return [name for name in self.drop if name not in {column.until for column in self.columns}]

    @property
    def target_column(self) -> Column:
        """The column that is to be predicted."""
        return next(column for column in self.columns if column.name == self.target)

    @property
    def width(self) -> int:
        """How many inputs a row has."""
        return sum(column.width for column in self.features)

    @property
    def target_unit(self) -> float:
        """How much of the target's own units one unit is that it is scaled to; one where it has no range."""
        if self.target_column.range is None:
            return 1.0
        (low, high), (start, stop) = self.target_column.range, self.scale_to
        return (high - low) / (stop - start)

    @property
    def target_zero(self) -> float:
        """What a scaled target of zero is in the target's own units."""
        return (
            0.0
            if self.target_column.range is None
            else self.target_column.range[0] - (self.target_unit * self.scale_to[0])
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the target; none where it is a number."""
        return tuple(self.target_column.categories or ())

    @property
    def norm_bound(self) -> float:
        """The largest norm of a row of inputs: every column gives at most one."""
        return math.sqrt(len(self.features))


def read_columns(given: str | Document | None, folder: Path, where: str) -> Columns:
    """The columns that settings name: a file, looked for in a folder, or the table itself."""
    if given is None:
        raise InputError(
            f"{where} without columns", "columns say what a table holds", 'write columns = "FILE.columns.toml"'
        )
    if isinstance(given, str):
        path = folder / given
        return parse_columns(read_settings_file(path), str(path))
    return parse_columns(given, where)


def parse_columns(document: Document, where: str) -> Columns:
    """Columns from their document, with all that they say checked; `where` names the file in messages."""
    found = parse_section(Columns, document, where)
    names = [column.name for column in found.columns]
    twice = next((name for name in (*names, *found.drop) if [*names, *found.drop].count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} twice", "a column is described once, or dropped", "remove one")
    if found.target not in names or len(names) < 2:
        raise InputError(
            f"{where}: target {found.target!r} among {len(names)} columns",
            "the target and at least one more column must be described",
            "write [[columns]] for each of them",
        )  # fmt: skip
    happened = next((column.categories for column in found.columns if column.name == found.event), None)
    if bool(found.periods) != (found.event is not None) or (found.event and len(happened or ()) != 2):
        raise InputError(
            f"{where}: target {found.target!r} with event {found.event!r}",
            "a time to an event has periods, and a column of two categories says whether the event happened then",
            'write event = "died", and for the target periods = [30, 90, 365]',
        )  # fmt: skip
    if found.scale_to not in SCALES:
        raise InputError(f"{where}: scale_to = {found.scale_to}", "it must be [0, 1] or [-1, 1]", "choose one")
    for column in found.columns:
        _check_column(column, f"{where}: column {column.name!r}")
    odd = next((name for name in found.columns if name.periods and name.name != found.target), None)
    if odd is not None:
        raise InputError(f"{where}: periods of {odd.name!r}", "only a target has periods", "give it a range")
    for target in (one for one in found.columns if one.name in found.outcome):
        if (target.missing, target.unknown) != (REFUSE, REFUSE):
            raise InputError(
                f"{where}: a substitute for the target {target.name!r}",
                "a row without a target cannot be learned from", "leave out missing and unknown there",
            )  # fmt: skip
    return found


def _check_column(column: Column, what: str) -> None:
    """Refuse what is neither a range nor categories, and substitutes that are not public or not of the same kind."""

    def refuse(found: str, rule: str, remedy: str = "correct it") -> NoReturn:
        raise InputError(f"{what}: {found}", rule, remedy)

    missing, one_of_them = column.missing, f"it must be one of the categories, or {REFUSE!r}"
    kinds = ("range", "categories", "periods")
    if sum(getattr(column, kind) is not None for kind in kinds) != 1:
        refuse(", ".join(kinds), "a column has exactly one of them", "give one, or drop the column")
    if column.periods is not None and (column.periods[0] <= 0 or (np.diff(column.periods) <= 0).any()):
        refuse(f"periods = {column.periods}", "they end later and later, after time 0")
    if column.periods is not None and column.until is not None:
        refuse(f"until {column.until} with periods", "a time is written as a number", "give a range, or numbers")
    if column.categories is not None:
        if column.until is not None:
            refuse(f"until {column.until} with categories", "years and days are numbers", "give a range")
        if len(set(column.categories)) < len(column.categories) or REFUSE in column.categories:
            refuse("categories", f"they must differ from each other and from {REFUSE!r}", "correct the list")
        if column.unknown not in (REFUSE, *column.categories):
            refuse(f"unknown = {column.unknown!r}", one_of_them)
        if missing not in (REFUSE, *column.categories):
            refuse(f"missing = {missing!r}", one_of_them)
    if column.range is not None:
        low, high = column.range
        if not low < high or math.isinf(high - low):
            refuse(f"range = {column.range}", "the first number must be less than the second")
        if column.years_until and column.days_until:
            refuse("years_until and days_until", "dates become one number", "give one of them")
        if column.unknown != REFUSE:
            refuse("unknown", "only columns with categories have it", "leave it out: numbers are clipped")
        if isinstance(missing, str) and missing != REFUSE:
            rule = "a value that is computed from rows is not public"
            refuse(f"missing = {missing!r}", rule, f"give a number within the range, or {REFUSE!r}")
        if not isinstance(missing, str) and not low <= missing <= high:
            refuse(f"missing = {missing:g}", f"the range is {column.range}", "give one within it")


# --- a first description, to be edited: what it takes from rows is not private --------------------------------------


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


class Guess(NamedTuple):
    """Columns as they seem to be, why each of the others is dropped, and what else a reader of them should know."""

    columns: Columns
    reasons: dict[str, str]
    remarks: list[str]


def guess_columns(path: Path, cells: Arrays, target: str | None = None) -> Guess:
    """Columns that fit the cells of a table; the last is the target unless one is named.

    Ranges and categories come from rows. `path` names the table in errors.
    """
    wanted = list(cells)[-1] if target is None else target
    if wanted not in cells:
        raise InputError(f"{path}: no column {wanted!r}", f"its columns are {', '.join(cells)}", "name one as --target")
    decimal = _decimal_mark(cells)
    words = [word for word in MISSING_WORDS if any(_stands_for_a_number(word, one, decimal) for one in cells.values())]
    guessed = {name: _guess(name, column, words, decimal, is_target=name == wanted) for name, column in cells.items()}
    found = [column for column in guessed.values() if isinstance(column, Column)]
    reasons = {name: reason for name, reason in guessed.items() if isinstance(reason, str)}
    if wanted in reasons:
        raise InputError(
            f"{path}: the target {wanted!r}: {reasons[wanted]}", "it needs numbers, or a few words that differ",
            "name another column as --target",
        )  # fmt: skip
    if len(found) < 2:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise InputError(f"{path}: no column but the target can be used", "one more is needed", f"mend one: {why}")
    columns = Columns(target=wanted, columns=found, drop=list(reasons), missing_words=words, decimal=decimal)
    remarks = [line for name, column in cells.items() for line in _repeated(name, column)]
    return Guess(columns, reasons, [*remarks, *_decided_for(columns)])


def columns_text(guess: Guess) -> str:
    """Columns as a file to edit, with what must be changed in it, and why columns are dropped."""
    why = "".join(f"# {name!r} is dropped: {reason}.\n" for name, reason in guess.reasons.items())
    why += "".join(f"# {line}\n" for line in guess.remarks)
    return WARNING + why + to_toml(guess.columns.model_dump(exclude_defaults=True))


def _decimal_mark(cells: Arrays) -> Literal[".", ","]:
    """The comma if more different cells are numbers such as 72,5 than such as 72.5; those of 1,234 may be thousands."""
    words = [word for column in cells.values() if column.dtype.kind == "U" for word in np.unique(column).tolist()]
    commas = [word for word in words if DECIMAL_COMMA.fullmatch(word)]
    surely = any(len(word.partition(",")[2]) != 3 for word in commas)
    points = sum(DECIMAL_COMMA.fullmatch(word.replace(".", ",")) is not None for word in words) - len(commas)
    return "," if surely and len(commas) > points else "."


def _stands_for_a_number(word: str, cells: NDArray[Any], decimal: str) -> bool:
    """Whether a word stands in a column of numbers."""
    if cells.dtype.kind != "U" or word not in cells:
        return False
    others = np.unique(cells[~missing_cells(cells, MISSING_WORDS)])
    return bool(others.size and np.isfinite(_numbers(others, decimal)).all())


def _guess(name: str, cells: NDArray[Any], missing_words: list[str], decimal: str, *, is_target: bool) -> Column | str:
    """What a column seems to be, or why it cannot be used."""
    there = cells[~missing_cells(cells, missing_words)]
    distinct, first = np.unique(there, return_index=True)
    if len(distinct) < 2:
        return "it is the same in all rows" if len(distinct) else "it has no cells"
    if not is_target and _names_rows(name, there, distinct):
        return "its cells name rows or people"
    numbers = _numbers(distinct, decimal)
    odd = ~np.isfinite(numbers)
    classes = is_target and len(distinct) <= MOST_CLASSES and bool((numbers == np.rint(numbers)).all())
    if not odd.any() and not classes:
        return Column(name=name, range=[float(numbers.min()), float(numbers.max())])
    if cells.dtype.kind == "U" and np.isfinite(days_of(distinct)).all():
        return f"its cells are dates; give it years_until = {DATE!r}, or days_until = another column, and a range"
    if odd.any() and all(re.fullmatch("[0-9]+,[0-9]{3}", str(word)) for word in distinct[odd]):
        return f"{distinct[odd][0]!s:.40} may be a thousand or a fraction; write it without the comma"
    if 0 < 2 * odd.sum() < len(distinct) > MOST_CLASSES:
        word = str(distinct[odd][first[odd].argmin()])
        comma = ", with points in numbers or with commas, not both" if "," in word else ""
        return f"{word!r:.40} is not a number; write all cells as numbers{comma}, or list it in missing_words"
    if len(distinct) > MOST_CATEGORIES:
        return f"it has {len(distinct)} different words, as free text has; categories are at most {MOST_CATEGORIES}"
    return Column(name=name, categories=[category_text(value) for value in distinct.tolist()])


def _names_rows(name: str, there: NDArray[Any], distinct: NDArray[Any]) -> bool:
    """Whether cells tell rows or people apart: by the name of the column, or as numbers one after another."""
    many, all_differ, numbers = len(distinct) > MOST_CATEGORIES, len(distinct) == len(there), _numbers(distinct, ".")
    named = IDENTITY.search(name) is not None and (many or all_differ)
    if (numbers == np.rint(numbers)).all():
        return named or (many and all_differ and bool(np.ptp(numbers) == len(distinct) - 1))
    return named and not np.isfinite(numbers).any() and not np.isfinite(days_of(distinct)).any()


def _repeated(name: str, cells: NDArray[Any]) -> list[str]:
    """How many people have several rows, where a column names people."""
    there = cells[~missing_cells(cells, MISSING_WORDS)]
    distinct, times = np.unique(there, return_counts=True)
    if not IDENTITY.search(name) or len(distinct) <= MOST_CATEGORIES or (several := int((times > 1).sum())) == 0:
        return []
    which = f"{several} of {len(distinct)} values of {name} stand in several rows"
    return [f"{which}: figures about records protect a row, not a person. Keep one row of each."]


def _decided_for(columns: Columns) -> list[str]:
    """Of two classes: which of them is decided for. Their order is that of the alphabet, whichever is the event."""
    if len(columns.classes) != 2:
        return []
    first, second = columns.classes
    about = f"Alerts, PPV, net benefit and training.threshold are about {second!r}, the second category"
    return [f"{about} of {columns.target}: if {first!r} is what you look for, swap them."]


def _numbers(cells: NDArray[Any], decimal: str) -> NDArray[np.float64]:
    return numbers_of(cells, np.zeros(len(cells), dtype=bool), decimal)
