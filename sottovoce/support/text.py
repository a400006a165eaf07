r"""Text as it comes from files and goes to files and terminals.

Files are UTF-8, with or without a byte-order mark; characters that cannot be seen are shown as escapes.

    >>> decode_text(b"\xef\xbb\xbfa,b")
    'a,b'
    >>> print(visible("Mercy\x1b[2J"))
    Mercy\x1b[2J
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: nested too deeply
    >>> print(to_toml({"name": "Hill", "listen": True, "columns": {"age": {"range": [0.0, 120.0]}}}), end="")
    name = "Hill"
    listen = true
    <BLANKLINE>
    [columns.age]
    range = [0.0, 120.0]
    >>> print(csv_text([{"run": "a", "auc": {"low": 0.4, "high": 0.6}}, {"run": "b, c", "auc": None}]), end="")
    run,auc.low,auc.high,auc
    a,0.4,0.6,
    "b, c",,,
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar


def decode_text(content: bytes) -> str:
    """Bytes as text, without the mark that some editors and spreadsheets put at the start of a file."""
    return content.decode("utf-8-sig")


def parse_json(
    text: str | bytes, parse_constant: Callable[[str], Any] | None = None, *, unique_keys: bool = False
) -> Any:
    """A JSON document; whatever is wrong with the text is a `ValueError`, nesting without end too, and numbers beyond
    all floats, which would be read as infinite.

    `parse_constant` is asked about NaN and Infinity. With `unique_keys` no table may have a key twice, of which readers
    would see another value each.
    """
    try:
        return json.loads(
            text, parse_float=_finite_float, parse_constant=parse_constant,
            object_pairs_hook=_with_unique_keys if unique_keys else None,
        )  # fmt: skip
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite_float(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError(f"a number beyond all floats: {text[:20]}")
    return found


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def json_text(document: Any) -> str:
    """A document as it stands in a file."""
    return json.dumps(document, indent=1) + "\n"


def visible(text: str) -> str:
    """A text with every control character, and every other one that cannot be seen, as an escape.

    What a file calls a node must not move the cursor, change the order of letters on a line, or pass for another name.
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if is_hidden(c) else c for c in text)


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> join_names(["Hill"]), join_names(["Hill", "Mercy", "North"])
    ('Hill', 'Hill, Mercy and North')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def is_hidden(character: str) -> bool:
    """Whether it is a control, format, private, unassigned or half character, or ends a line or a paragraph."""
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in ("Zl", "Zp")


# --- TOML, which the standard library only reads ----------------------------------------------------------------------


def to_toml(document: Mapping[str, Any]) -> str:
    """A document of strings, numbers, booleans, lists and tables as `tomllib` reads it back; None is left out."""
    return "\n".join(_toml_lines(document, ())).lstrip("\n") + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The values of a table, then the tables within it under their headings."""
    for key, value in table.items():
        if value is not None and not isinstance(value, dict) and not _is_tables(value):
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in table.items():
        inner = (*path, key)
        heading = ".".join(map(_toml_key, inner))
        if isinstance(value, dict):
            if not value or not all(isinstance(one, dict) for one in value.values()):
                yield from ("", f"[{heading}]")
            yield from _toml_lines(value, inner)
        elif _is_tables(value):
            for one in value:
                yield from ("", f"[[{heading}]]", *_toml_lines(one, inner))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _toml_key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _toml_string(text)


def _toml_value(value: object) -> str:
    if isinstance(value, str):
        return f'"""\n{value}"""' if re.fullmatch(r"([ -!#-\[\]-~]+\n)+", value) else _toml_string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no form in TOML")


def _toml_string(text: str) -> str:
    return "".join(f"\\U{ord(c):08x}" if is_hidden(c) else c for c in json.dumps(text, ensure_ascii=False))


# --- CSV, as spreadsheets and pandas read it --------------------------------------------------------------------------


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


# --- numbers in JSON, which knows no infinity ------------------------------------------------------------------------


JSON: TypeAlias = "bool | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""What a document may hold."""

Number = TypeVar("Number", float, None, float | None)

INFINITE = "inf"


def to_json(number: Number) -> Number | str:
    """The number itself, or the word for infinity; None, where there is no number, stays None.

    >>> to_json(math.inf), to_json(0.5), to_json(None)
    ('inf', 0.5, None)
    """
    return INFINITE if number == math.inf else number


def from_json(value: float | str) -> float:
    """The number that a document holds.

    >>> from_json("inf"), from_json(2)
    (inf, 2.0)
    """
    return float(value)


def is_number(value: object) -> bool:
    """Whether a value could have been written by `to_json`."""
    return value == INFINITE or isinstance(value, int | float)
