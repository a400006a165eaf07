"""Compare two recordings: `python -m tests.golden.compare BEFORE.json AFTER.json`.

Every difference is one line: where it is, what was there before, what is there after. The exit code is 1 if there is
any. Numbers must be the same to the last bit. Fields listed in `RENAMED` are the same field under both names, and with
`--figures-only` sentences may change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RENAMED = {"broken": "nonfinite"}
"""Fields with a new name, old to new: `broken` of the metrics."""

ABSENT = "(absent)"
WIDTH = 400
"""Longer values are cut."""


class Difference(NamedTuple):
    """Where two recordings differ, and how."""

    path: tuple[str, ...]
    before: str
    after: str

    def __str__(self) -> str:
        return f"{' / '.join(self.path)}\n    before  {self.before:.{WIDTH}}\n    after   {self.after:.{WIDTH}}"


def differences(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """All differences between two parts of recordings, down to single values.

    >>> for one in differences({"mu": 1.0, "rounds": [3, 4]}, {"mu": 1.0000000000000002, "rounds": [3]}):
    ...     print(one.path, one.before, one.after)
    ('mu',) 1.0 1.0000000000000002
    ('rounds', '1') 4 (absent)
    """
    if isinstance(before, list) and isinstance(after, list):
        before, after = ({str(number): value for number, value in enumerate(part)} for part in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            if key in before and key in after:
                yield from differences(before[key], after[key], (*path, key))
            else:
                yield Difference((*path, key), _shown(before, key), _shown(after, key))
    elif (one := json.dumps(before)) != (other := json.dumps(after)):  # as text: 0.0 is not -0.0, nor 1 the number 1.0
        yield Difference(path, one, other)


def _shown(part: dict[str, Any], key: str) -> str:
    return json.dumps(part[key]) if key in part else ABSENT


def renamed(part: Any) -> Any:
    """With fields under their new names.

    >>> renamed([{"round": 2, "broken": 0}])
    [{'round': 2, 'nonfinite': 0}]
    """
    if isinstance(part, dict):
        return {RENAMED.get(key, key): renamed(value) for key, value in part.items()}
    return [renamed(value) for value in part] if isinstance(part, list) else part


def without_sentences(part: Any) -> Any:
    """Without strings that contain a space; single words, such as kinds of guarantees, stay.

    >>> without_sentences({"kind": "any-training", "assumptions": ["noise is secret", "inf"], "error": "not clipped"})
    {'kind': 'any-training', 'assumptions': ['inf']}
    """
    if isinstance(part, dict):
        return {key: without_sentences(value) for key, value in part.items() if not _is_sentence(value)}
    return [without_sentences(value) for value in part if not _is_sentence(value)] if isinstance(part, list) else part


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and " " in value


def read(path: Path, *, figures_only: bool) -> Any:
    """A recording, ready to be compared."""
    found = renamed(json.loads(path.read_text()))
    return without_sentences(found) if figures_only else found


def main() -> None:
    """Print all differences, and how many there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description="Compare two recordings.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--figures-only", action="store_true", help="ignore sentences: strings that contain a space")
    given = parser.parse_args()
    before, after = (read(path, figures_only=given.figures_only) for path in (given.before, given.after))
    found = list(differences(before, after))
    sys.stdout.writelines(f"{one}\n" for one in found)
    places = {one.path[:2] for one in found}
    sys.stdout.write(f"{len(found)} differences in {len(places)} places\n" if found else "no difference\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
