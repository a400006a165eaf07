"""Documents as TOML text, which the standard library only reads.

>>> print(to_toml({"name": "Hill", "listen": True, "columns": {"age": {"range": [0.0, 120.0]}}}), end="")
name = "Hill"
listen = true
<BLANKLINE>
[columns.age]
range = [0.0, 120.0]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sottovoce.support.config import Document
from sottovoce.support.text import is_hidden


def to_toml(document: Document) -> str:
    """A document of strings, numbers, booleans, lists and tables as `tomllib` reads it back; None is left out."""
    return "\n".join(_lines(document, ())).lstrip("\n") + "\n"


def _lines(table: Document, path: tuple[str, ...]) -> Iterator[str]:
    """The values of a table, then the tables within it under their headings."""
    for key, value in table.items():
        if value is not None and not isinstance(value, dict) and not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = (*path, key)
        heading = ".".join(map(_key, inner))
        if isinstance(value, dict):
            if not value or not all(isinstance(one, dict) for one in value.values()):
                yield from ("", f"[{heading}]")
            yield from _lines(value, inner)
        elif _is_tables(value):
            for one in value:
                yield from ("", f"[[{heading}]]", *_lines(one, inner))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _string(text)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f'"""\n{value}"""' if re.fullmatch(r"([ -!#-\[\]-~]+\n)+", value) else _string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no form in TOML")


def _string(text: str) -> str:
    return "".join(f"\\U{ord(c):08x}" if is_hidden(c) else c for c in json.dumps(text, ensure_ascii=False))
