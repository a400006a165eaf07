"""Which rank this process is, as torchrun or `sotto` itself says in its environment."""

from __future__ import annotations

import os
from typing import NamedTuple

from sottovoce.errors import InputError, shortened

LARGEST = 2**31 - 1


class Place(NamedTuple):
    """A rank, counted from 0, and how many there are."""

    rank: int
    size: int


def place_among_ranks() -> Place | None:
    """This process's place among the ranks of a run; None where it is alone."""
    size = whole_number("WORLD_SIZE", least=1) if "WORLD_SIZE" in os.environ else 1
    if size == 1 or "RANK" not in os.environ:
        return None
    return Place(whole_number("RANK", most=size - 1), size)


def whole_number(name: str, *, least: int = 0, most: int = LARGEST) -> int:
    """The number that a variable of the environment holds."""
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise InputError(
            f"{name}={shortened(text)!r} in the environment",
            f"it is a whole number from {least} to {most}",
            f"unset {name}, or start the ranks with torchrun",
        )
    return int(text)
