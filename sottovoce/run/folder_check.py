"""What the files of a run state, beside what is computed again: each field agrees, differs, or is not checked.

Pages, tables, model cards and trackers show what the files of a folder say, and whoever sends a folder can write there
what he likes. So a field that nothing was computed for is not passed over: an audit lists it, with the reason.

    >>> found = FolderCheck()
    >>> found.compare("result.json", {"sigma": 2.0, "seed": 1, "seconds": 3.5, "mood": "good"},
    ...               [Given("what the settings give", {"sigma": 1.0, "seed": 1})])
    >>> found.findings
    ['result.json: sigma is 2.0, but 1.0 is what the settings give']
    >>> list(found.not_checked)
    ['result.json: seconds', 'result.json: mood']
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sottovoce.run.layout import CHECKPOINT, CONFIG, GRAPH, METRICS, PAGE, PRIVACY, PRIVATE, RESULT
from sottovoce.support.text import parse_json

RELATIVE_TOLERANCE = 1e-9
"""Figures that lie closer together are the same: another machine may round differently."""

MEASURED_TOLERANCE = 1e-6
"""Relative, of losses and scores: another machine adds in another order."""

CLOCK, WORDS = "no clock can be read again", "words and names of whoever ran it"
RENEWED = "written anew by every audit"
NO_FIGURE, UNKNOWN = "it decides no figure", "nothing tells which versions ran"

NOT_COMPARED = {
    (CONFIG.name, "about"): WORDS,
    (CONFIG.name, "record"): NO_FIGURE,
    (CONFIG.name, "machine.checkpoint_seconds"): NO_FIGURE,
    (GRAPH.name, "labels"): WORDS,
    (PRIVACY.name, "versions"): UNKNOWN,
    (METRICS.name, "seconds"): CLOCK,
    (METRICS.name, "wire_bytes"): CLOCK,
    (RESULT.name, "seconds"): CLOCK,
    (RESULT.name, "folder"): WORDS,
    (PRIVATE.name, "private"): NO_FIGURE,
    (PRIVATE.name, "in_ledger"): NO_FIGURE,
    (CHECKPOINT.name, "seconds"): CLOCK,
    (CHECKPOINT.name, "wire"): CLOCK,
    (PAGE.name, "title"): WORDS,
    (PAGE.name, "runs.audit"): RENEWED,
    (PAGE.name, "runs.findings"): RENEWED,
    (PAGE.name, "runs.unchecked"): RENEWED,
    (PAGE.name, "runs.folder"): WORDS,
    (PAGE.name, "runs.graph.positions"): "where nodes are drawn",
}
"""Fields that are listed as not checked with all that they hold, whatever is at hand; docs/audit.md has them."""

NOT_GIVEN = "nothing computes it again"


class Given(NamedTuple):
    """A document, or a part of it, as something else gives it; `what` says what does."""

    what: str
    document: object
    tolerance: float = RELATIVE_TOLERANCE


class _Value(NamedTuple):
    """A value that holds no other: the keys above it, and its place, which numbers entries of lists as well."""

    keys: tuple[str, ...]
    place: tuple[str | int, ...]
    value: object


@dataclass
class FolderCheck:
    """What speaks against a folder, and which of its fields nothing was compared with, each with the reason."""

    findings: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)

    def leave_out(self, file: str, keys: Sequence[str], reason: str) -> None:
        """Note a field that is not checked, unless the audit itself writes it."""
        if reason == RENEWED:
            return
        place = f"{file}: {'.'.join(keys)}" if keys else file
        self.not_checked.setdefault(place, reason)

    def lines(self) -> list[str]:
        """What was not checked, a line for each file and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for place, reason in self.not_checked.items():
            file, _, fields = place.partition(": ")
            found.setdefault((file, reason), []).append(fields)
        return [
            f"{file}{': ' if each[0] else ''}{', '.join(each)} ({reason})" for (file, reason), each in found.items()
        ]

    def compare(
        self, file: str, stated: object, given: Sequence[Given], why_not: str = NOT_GIVEN, *, words: str = ""
    ) -> None:
        """Compare a file with all that is given for it; what nothing is given for is not checked, for this reason.

        With a reason why `words` may differ, of texts and of what is missing or more of them only that is said.
        """
        differ: dict[tuple[str, ...], list[str]] = {}
        for keys, place, value in _values(stated):
            if (reason := _why_not_compared(file, keys)) is not None:
                self.leave_out(file, *reason)
                continue
            compared = [(one, other) for one in given if (other := _at(one.document, place)) is not _ABSENT]
            if not compared:
                beyond = next((one for one in given if not words and _is_beyond_a_list(one.document, place)), None)
                if beyond is None:
                    self.leave_out(file, keys[:1], why_not)
                else:
                    more = f"{_shown(place)} is {value!r}, and {beyond.what} has no such entry"
                    differ.setdefault(keys[:1], []).append(more)
            for one, other in compared:
                if words and isinstance(value, str) and isinstance(other, str) and value != other:
                    self.leave_out(file, keys, words)
                elif not same_value(value, other, one.tolerance):
                    unlike = f"{_shown(place)} is {value!r}, but {other!r} is {one.what}"
                    differ.setdefault(keys[:1], []).append(unlike)
                    break
        for one in given if not words else ():
            for keys, place, value in _values(one.document):
                if _at(stated, place) is _ABSENT and _why_not_compared(file, keys) is None:
                    missing = f"{_shown(place)} is not there, but {value!r} is {one.what}"
                    differ.setdefault(keys[:1], []).append(missing)
        for first, *others in differ.values():
            self.findings.append(f"{file}: {first}" + (f", and {len(others)} more of it differ" if others else ""))


def only_read() -> FolderCheck:
    """Of a folder that was read, and of which nothing was computed again."""
    files = (PRIVACY.name, METRICS.name, RESULT.name)
    return FolderCheck(not_checked=dict.fromkeys(files, "nothing was computed again"))


def as_read(document: object) -> object:
    """A document as it would be read back from a file."""
    return parse_json(json.dumps(document))


def same_value(stated: object, given: object, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether two values are the same but for rounding; true is no number, and no number is a text."""
    if isinstance(stated, bool) or isinstance(given, bool):
        return stated is given
    if isinstance(stated, int | float) and isinstance(given, int | float):
        return stated == given or math.isclose(stated, given, rel_tol=tolerance)
    return type(stated) is type(given) and stated == given


def _why_not_compared(file: str, keys: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
    """The field of NOT_COMPARED that a value belongs to, and the reason."""
    for end in range(len(keys), 0, -1):
        if (reason := NOT_COMPARED.get((file, ".".join(keys[:end])))) is not None:
            return keys[:end], reason
    return None


_ABSENT = object()
"""Stands for a value that is not there, which None may be."""


def _values(value: object, keys: tuple[str, ...] = (), place: tuple[str | int, ...] = ()) -> Iterator[_Value]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _values(part, (*keys, key), (*place, key))
    elif isinstance(value, list) and value:
        for at, part in enumerate(value):
            yield from _values(part, keys, (*place, at))
    else:
        yield _Value(keys, place, value)


def _at(document: Any, place: Sequence[str | int]) -> object:
    for key in place:
        if isinstance(document, str):
            return _ABSENT
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return document


def _is_beyond_a_list(document: Any, place: Sequence[str | int]) -> bool:
    """Whether a place is in an entry beyond the end of a list."""
    lists = (end for end in range(len(place)) if isinstance(_at(document, place[:end]), list))
    return any(_at(document, place[: end + 1]) is _ABSENT for end in lists)


def _shown(place: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".") or "it"
