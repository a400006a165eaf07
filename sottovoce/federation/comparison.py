"""In which keys two members' agreements differ: each tells the other the hash of every value, and none of the values.

Only neighbours are told, over a connection on which both have shown their certificates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sottovoce.federation.frames import Reason, Refused
from sottovoce.support.text import parse_json, visible

KeyHashes: TypeAlias = Mapping[str, str]
"""Of an agreement: hashes of values, by key."""

LAST = "nonce"
"""Differs between any two agreements that were made apart, and explains least."""

NAMED, LONGEST = 3, 80
"""So many keys are named, so many characters of each."""


def encode_hashes(hashes: KeyHashes) -> bytes:
    """As they travel."""
    return json.dumps(dict(hashes), sort_keys=True, separators=(",", ":")).encode()


def differing_keys(own: KeyHashes, told: object) -> tuple[str, ...]:
    """The keys in which a neighbour's agreement differs, from what it told; `Refused` if that are no hashes."""
    if not isinstance(told, bytes):
        raise Refused(Reason.FORMAT)
    try:
        theirs = parse_json(told)
    except ValueError:
        raise Refused(Reason.FORMAT) from None
    if not isinstance(theirs, dict):
        raise Refused(Reason.FORMAT)
    different = {key for key in own.keys() | theirs.keys() if own.get(key) != theirs.get(key)}
    return tuple(sorted(different, key=lambda key: (key == LAST, key)))


def named_keys(keys: Sequence[str]) -> str:
    """The first keys that differ, in words; those of a neighbour come from outside, and are shown as they are safe."""
    named = ", ".join(visible(key[:LONGEST]) for key in keys[:NAMED])
    more = len(keys) - NAMED
    return f"{named} and {more} more" if more > 0 else named
