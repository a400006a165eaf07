r"""Text as it comes from files and goes to terminals.

Files are UTF-8, with or without a byte-order mark; characters that cannot be seen are shown as escapes.

    >>> decode_text(b"\xef\xbb\xbfa,b")
    'a,b'
    >>> print(visible("Mercy\x1b[2J"))
    Mercy\x1b[2J
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: nested too deeply
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import InputError, file_error, shortened
from sottovoce.support.regular_files import read_bytes


def read_text(path: Path, rule: str, remedy: str) -> str:
    """The text of a file that the user names; `rule` and `remedy` are what a message says about a file that is none."""
    check_name(path)
    try:
        return decode_text(read_bytes(path, follow_links=True))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text", rule, remedy) from None
    except OSError as error:
        raise file_error(path, error, rule, remedy) from None


def decode_text(content: bytes) -> str:
    """Bytes as text, without the mark that some editors and spreadsheets put at the start of a file."""
    return content.decode("utf-8-sig")


def parse_json(
    text: str | bytes, parse_constant: Callable[[str], Any] | None = None, *, unique_keys: bool = False
) -> Any:
    """A JSON document; whatever is wrong with the text is a `ValueError`, nesting without end too.

    `parse_constant` is asked about NaN and Infinity. With `unique_keys` no table may have a key twice, of which readers
    would see another value each.
    """
    try:
        return json.loads(
            text, parse_constant=parse_constant, object_pairs_hook=_with_unique_keys if unique_keys else None
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


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


def check_name(path: str | Path) -> None:
    """Refuse a path that no file can have: with a zero byte, or half a character."""
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise InputError(f"{shortened(str(path))!r}", "no file can have this name", "name another")
