"""Documents held to the schemas of this package, without a library: those of a run's files, as they are read back.

    >>> problem_in({"round": -1}, "metrics.jsonl"), problem_in({"round": 3}, "metrics.jsonl")
    ('round has a value that is not allowed', 'bytes is missing')

What no run writes is refused besides: numbers that are not finite or too large for a computer, and text with control
characters, which a terminal might obey. Values are not repeated in what is said of them: some are secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sottovoce.schemas import schema

Rule = Mapping[str, Any]

LARGEST_INTEGER = 2**63 - 1
SHOWN = 40
"""So many characters of an unknown key are shown."""

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

KINDS: Mapping[type, tuple[str, ...]] = {
    dict: ("object",), list: ("array",), str: ("string",), int: ("integer", "number"), float: ("number",),
    bool: ("boolean",), type(None): ("null",),
}  # fmt: skip
"""The names that schemas have for the types of values that are read from JSON."""


NUMBERS = (int, float)
"""Types of values that have bounds; true and false are of neither."""

ANYTHING = ""
"""The name of the rule that allows every value that can be written."""

NOT_ALLOWED, NO_KEY, MISSING = "has a value that is not allowed", "is no key of it", "is missing"

Problem = tuple[str, str]
"""Where in a value it is, and what."""

Check = Callable[[Any], Problem | None]


def problem_in(document: object, name: str) -> str | None:
    """What in a document does not fit the schema of that name, and where; None where everything fits."""
    found = _schema_check(name)(document)
    if found is None:
        return None
    place, what = found
    return f"{place!r:.{SHOWN}} {what}" if what is NO_KEY else f"{place or 'it'} {what}"


@cache
def _schema_check(name: str) -> Check:
    """The schema of that name as a function: rules are looked up once, and not for each of a thousand values."""
    found = schema(name)
    return _check(found, _SharedChecks({ANYTHING: {}, **found.get("$defs", {})}))


class _SharedChecks:
    """Those parts of a schema that others refer to, perhaps themselves among them."""

    def __init__(self, rules: Rule) -> None:
        self._rules, self._made = rules, dict[str, Check]()

    def check(self, name: str) -> Check:
        def look_up(value: object) -> Problem | None:
            if name not in self._made:
                self._made[name] = _check(self._rules[name], self)
            return self._made[name](value)

        return look_up


def _check(rule: Rule, shared: _SharedChecks) -> Check:
    if "$ref" in rule:
        return shared.check(rule["$ref"].rpartition("/")[2])
    if "anyOf" in rule:
        return _check_of_any([_check(option, shared) for option in rule["anyOf"]])
    tests = tuple(_tests(rule))
    types = _types(rule.get("type"))
    within_object = _object_check(rule, shared)
    within_list = _list_check(_check(rule["items"], shared)) if "items" in rule else None

    def check(value: Any) -> Problem | None:
        kind = type(value)
        if kind not in types:
            return "", NOT_ALLOWED
        for test in tests:
            if not test(value):
                return "", NOT_ALLOWED
        if kind is dict:
            return within_object(value)
        if kind is list:
            return None if within_list is None else within_list(value)
        return None if _is_writable(value) else ("", NOT_ALLOWED)

    return check


def _check_of_any(options: Sequence[Check]) -> Check:
    def check(value: object) -> Problem | None:
        problems = []
        for option in options:
            problem = option(value)
            if problem is None:
                return None
            problems.append(problem)
        return max(problems, key=lambda found: len(found[0]))  # of the option that fits best: it is farthest inside

    return check


def _list_check(check_item: Check) -> Check:
    def check(value: list[object]) -> Problem | None:
        for at, part in enumerate(value):
            problem = check_item(part)
            if problem is not None:
                return _inside(f"[{at}]", problem)
        return None

    return check


def _object_check(rule: Rule, shared: _SharedChecks) -> Check:
    known = {key: _check(one, shared) for key, one in rule.get("properties", {}).items()}
    other, names = rule.get("additionalProperties", True), tuple(_tests(rule.get("propertyNames", {})))
    check_other = _check(other, shared) if isinstance(other, Mapping) else shared.check(ANYTHING) if other else None
    required = frozenset(rule.get("required", ()))

    def check(value: dict[str, object]) -> Problem | None:
        for key, part in value.items():
            check_part = known.get(key)
            if check_part is None:
                check_part = check_other if _is_writable(key) else None
            if check_part is None or (names and not all(test(key) for test in names)):
                return key, NO_KEY
            problem = check_part(part)
            if problem is not None:
                return _inside(key, problem)
        if required <= value.keys():
            return None
        return min(required - value.keys()), MISSING

    return check


def _inside(part: str, problem: Problem) -> Problem:
    """The same problem, as seen from a value that holds this part."""
    place, what = problem
    return f"{part}{'.' if place and not place.startswith('[') else ''}{place}", what


def _tests(rule: Rule) -> Iterator[Callable[[Any], bool]]:
    """What tells whether a value is among those, and within the bounds, that a rule allows."""
    if "enum" in rule:
        yield _among(rule["enum"])
    if "const" in rule:
        yield _among([rule["const"]])
    if "pattern" in rule:
        search = re.compile(rule["pattern"]).search
        yield lambda value: type(value) is not str or search(value) is not None
    if not rule.keys().isdisjoint(("minItems", "maxItems")):
        fewest, most = rule.get("minItems", 0), rule.get("maxItems", math.inf)
        yield lambda value: type(value) is not list or fewest <= len(value) <= most
    if not rule.keys().isdisjoint(BOUNDS):
        low, high = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
        above, below = rule.get("exclusiveMinimum", -math.inf), rule.get("exclusiveMaximum", math.inf)
        yield lambda value: type(value) not in NUMBERS or (low <= value <= high and above < value < below)


def _among(allowed: Sequence[object]) -> Callable[[Any], bool]:
    """Whether a value is one of these, and of the same type: 1 is not true, nor the number 1.0."""
    pairs = [(type(one), one) for one in allowed]
    return lambda value: (type(value), value) in pairs


def _types(kinds: str | list[str] | None) -> frozenset[type]:
    """The types of values that are of one of these kinds; of any without them."""
    wanted = [kinds] if isinstance(kinds, str) else kinds
    return frozenset(one for one, names in KINDS.items() if wanted is None or not set(names).isdisjoint(wanted))


def _is_writable(value: Any) -> bool:
    """Whether a run could have written this number or text."""
    kind = type(value)
    if kind is str:
        return value.isprintable()
    if kind is float:
        return math.isfinite(value)
    return kind is not int or -LARGEST_INTEGER <= value <= LARGEST_INTEGER
