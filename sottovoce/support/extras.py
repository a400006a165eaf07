"""Packages that only some commands need, and that are installed with an extra."""

from __future__ import annotations

from importlib.util import find_spec

from sottovoce.errors import InputError

LEARNING = {"torch": "torch", "sklearn": "scikit-learn", "safetensors": "safetensors"}
"""What the extra `learning` installs: modules, by their packages. They are imported without asking beforehand."""


def without_learning(error: BaseException) -> InputError | None:
    """What to say where an import failed because the extra `learning` is not installed; None of any other failure."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in LEARNING:
        return None
    return _missing(LEARNING[error.name], "learning")


def require_extra(extra: str, *packages: str) -> None:
    """Refuse to go on without the packages of an extra.

    >>> require_extra("peers", "no_such_package")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: no_such_package is not installed; this needs the extra 'peers'; type pip install
    "sottovoce[peers]"
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise _missing(missing[0], extra)


def _missing(package: str, extra: str) -> InputError:
    return InputError(
        f"{package} is not installed", f"this needs the extra {extra!r}", f'type pip install "sottovoce[{extra}]"'
    )
