"""Adjacency: by what the two data sets differ that a guarantee compares."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from sottovoce.errors import InputError


class Adjacency(StrEnum):
    """Whose data differs: all data of a node, or one of its records."""

    USER = "user"
    RECORD = "record"


class Change(StrEnum):
    """How it differs: replaced by other data, or made to count as nothing while the number of records stays public."""

    REPLACE = "replace"
    ZERO_OUT = "zero-out"


Choice = TypeVar("Choice", Adjacency, Change)


def parse_adjacency(spec: str) -> Adjacency:
    """`user` or `record`.

    >>> parse_adjacency("record")
    <Adjacency.RECORD: 'record'>
    """
    return _parse("adjacency", spec, Adjacency)


def parse_change(spec: str) -> Change:
    """`replace` or `zero-out`."""
    return _parse("change", spec, Change)


def _parse(name: str, spec: str, known: type[Choice]) -> Choice:
    try:
        return known(spec)
    except (ValueError, TypeError):
        raise InputError(f"{name} {spec!r:.60}", f"known: {', '.join(known)}", "choose one of them") from None
