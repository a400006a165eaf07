"""Results that are kept for as long as the object they are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def once_for_each(function: Callable[[Subject], Result]) -> Callable[[Subject], Result]:
    """The same function of an object that never changes, computed once for each; objects are not kept alive.

    >>> class Box: pass
    >>> calls = []
    >>> count = once_for_each(lambda box: calls.append(box) or len(calls))
    >>> one, other = Box(), Box()
    >>> count(one), count(one), count(other)
    (1, 1, 2)
    """
    known: WeakKeyDictionary[Subject, Result] = WeakKeyDictionary()

    @wraps(function)
    def remembered(subject: Subject) -> Result:
        if subject not in known:
            known[subject] = function(subject)
        return known[subject]

    return remembered
