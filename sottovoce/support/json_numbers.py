"""JSON documents, and numbers in them: JSON knows no infinity, so an infinite number is the word "inf".

>>> to_json(math.inf), to_json(0.5), to_json(None)
('inf', 0.5, None)
>>> from_json("inf"), from_json(2)
(inf, 2.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

JSON: TypeAlias = "bool | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""What a document may hold."""

Number = TypeVar("Number", float, None, float | None)

INFINITE = "inf"


def to_json(number: Number) -> Number | str:
    """The number itself, or the word for infinity; None, where there is no number, stays None."""
    return INFINITE if number == math.inf else number


def from_json(value: float | str) -> float:
    """The number that a document holds."""
    return float(value)


def is_number(value: object) -> bool:
    """Whether a value could have been written by `to_json`."""
    return value == INFINITE or isinstance(value, int | float)
