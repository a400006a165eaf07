"""Packages that only some commands need, and that are installed with an extra."""

from __future__ import annotations

from importlib.util import find_spec

from sottovoce.errors import InputError


def require_extra(extra: str, *packages: str) -> None:
    """Refuse to go on without the packages of an extra.

    >>> require_extra("peers", "no_such_package")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: no_such_package is not installed; this needs the extra 'peers'; type pip install
    'sottovoce[peers]'
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise InputError(
            f"{missing[0]} is not installed",
            f"this needs the extra {extra!r}",
            f"type pip install 'sottovoce[{extra}]'",
        )
