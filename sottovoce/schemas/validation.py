"""Documents held to the schemas of this package, without a library: those of a run's files, as they are read back.

    >>> problem_in({"round": -1}, "metrics.jsonl"), problem_in({"round": 3}, "metrics.jsonl")
    ('round has a value that is not allowed', 'loss is missing')

What no run writes is refused besides: numbers that are not finite or too large for a computer, and text with control
characters, which a terminal might obey. Values are not repeated in what is said of them: some are secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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


@cache
def _schema(name: str) -> Rule:
    return schema(name)


def problem_in(document: object, name: str) -> str | None:
    """What in a document does not fit the schema of that name, and where; None where everything fits."""
    found = _schema(name)
    return _problem(document, found, found.get("$defs", {}), "")


def _problem(value: object, rule: Rule, shared: Rule, place: str) -> str | None:
    if "$ref" in rule:
        return _problem(value, shared[rule["$ref"].rpartition("/")[2]], shared, place)
    if "anyOf" in rule:
        problems = [_problem(value, option, shared, place) for option in rule["anyOf"]]
        return None if None in problems else _deepest(problems)
    if not _fits(value, rule):
        return f"{place or 'it'} has a value that is not allowed"
    if isinstance(value, dict):
        return _problem_in_object(value, rule, shared, place)
    if isinstance(value, list) and "items" in rule:
        parts = (_problem(part, rule["items"], shared, f"{place}[{at}]") for at, part in enumerate(value))
        return next((problem for problem in parts if problem is not None), None)
    return None


def _deepest(problems: list[str | None]) -> str:
    """The problem of the option that fits best: the one that is found farthest inside."""
    return max((problem or "" for problem in problems), key=lambda problem: len(problem.partition(" ")[0]))


def _problem_in_object(value: dict[str, object], rule: Rule, shared: Rule, place: str) -> str | None:
    known: Rule = rule.get("properties", {})
    other = rule.get("additionalProperties", True)
    for key, part in value.items():
        where = f"{place}.{key}" if place else key
        if (other is False and key not in known) or not _fits(key, rule.get("propertyNames", {})):
            return f"{where!r:.{SHOWN}} is no key of it"
        own = known.get(key, other)
        problem = _problem(part, own if isinstance(own, Mapping) else {}, shared, where)
        if problem is not None:
            return problem
    missing = next((key for key in rule.get("required", ()) if key not in value), None)
    return None if missing is None else f"{f'{place}.' if place else ''}{missing} is missing"


def _fits(value: object, rule: Rule) -> bool:
    """Whether a value is of the type, among the values and within the bounds that a rule allows."""
    kinds = rule.get("type")
    return (
        _is_one_of(value, kinds)
        and _is_writable(value)
        and ("enum" not in rule or any(_same(value, one) for one in rule["enum"]))
        and ("const" not in rule or _same(value, rule["const"]))
        and ("pattern" not in rule or not isinstance(value, str) or re.search(rule["pattern"], value) is not None)
        and _is_within(value, rule)
    )


def _is_one_of(value: object, kinds: str | list[str] | None) -> bool:
    names = KINDS.get(type(value), ())
    if kinds is None:
        return bool(names)
    return kinds in names if isinstance(kinds, str) else any(name in kinds for name in names)


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _is_writable(value: object) -> bool:
    """Whether a run could have written this number or text."""
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= LARGEST_INTEGER


def _is_within(value: object, rule: Rule) -> bool:
    if isinstance(value, list):
        return rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", math.inf)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    if rule.keys().isdisjoint(BOUNDS):
        return True
    low, high = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    above, below = rule.get("exclusiveMinimum", -math.inf), rule.get("exclusiveMaximum", math.inf)
    return bool(low <= value <= high and above < value < below)
