"""JSON schemas (2020-12) of printed documents and of the files of a run.

    >>> schema("graph")["properties"]["nodes"]
    {'type': 'integer', 'minimum': 1}

One file for each command here, and one for each file of a run in `files`; what they share stands in `shared.json` and
is put into every schema that refers to it, so that each can be used alone. Tests hold every command to its schema.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.support.config import Document

FOLDER = Path(__file__).parent
SHARED = "shared"
SETTINGS = "config.json"
"""The settings of a run: their schema follows from the types that check them."""


@cache
def names() -> tuple[str, ...]:
    """Commands, then files of a run, by their names."""
    commands = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != SHARED)
    return (*commands, *sorted([SETTINGS, *(path.name for path in (FOLDER / "files").iterdir())]))


def schema(name: str) -> Document:
    """The schema of a command's document (`account`) or of a run's file (`privacy.json`)."""
    if name not in names():
        raise InputError(f"schema {name!r}", f"known: {', '.join(names())}", "choose one of them")
    if name == SETTINGS:
        from sottovoce.support.config import Experiment

        return {**Experiment.model_json_schema(mode="serialization"), "title": "All settings of a run"}
    path = FOLDER / "files" / name if "." in name else FOLDER / f"{name}.json"
    found = json.loads(path.read_text())
    needed = _needed(found, json.loads((FOLDER / f"{SHARED}.json").read_text()))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, **({"$defs": needed} if needed else {})}


def _needed(found: object, shared: Document) -> Document:
    """The shared definitions that a schema refers to, and those that they refer to."""
    needed: Document = {}
    waiting = _references(found)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = shared[name]
            waiting |= _references(shared[name])
    return {name: needed[name] for name in shared if name in needed}


def _references(part: object) -> set[str]:
    if isinstance(part, dict):
        own = {str(part["$ref"]).rpartition("/")[2]} if "$ref" in part else set()
        return own.union(*(_references(value) for value in part.values()))
    return set().union(*(_references(value) for value in part)) if isinstance(part, list) else set()
