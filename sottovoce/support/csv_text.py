"""Tables as CSV, as spreadsheets and pandas read it.

>>> print(csv_text([{"run": "a", "auc": {"low": 0.4, "high": 0.6}}, {"run": "b, c", "auc": None}]), end="")
run,auc.low,auc.high,auc
a,0.4,0.6,
"b, c",,,
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence


def csv_text(documents: Iterable[Mapping[str, object]]) -> str:
    """A row for each document, in full precision. Tables within a document become columns with a dot in their names."""
    rows = [dict(_flat(document)) for document in documents]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return table_text([columns, *([row.get(column, "") for column in columns] for row in rows)])


def table_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows of cells, the first of them the heading."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _flat(document: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", " ".join(map(str, value))
        else:
            yield f"{prefix}{key}", "" if value is None else value
