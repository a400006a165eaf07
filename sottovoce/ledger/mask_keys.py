"""Keys of the masks of secure sums, and where they were used: no mask is used for two places, nor twice at one.

The keys that a member shares with others, for one run, are stored when it begins, and deleted when it has ended. Every
step under masks enters its place, under a label that stands for the keys: hashes of both stay, and show that no place
occurs twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sottovoce.errors import InputError
from sottovoce.ledger.database import Database, damaged
from sottovoce.ledger.payloads import Place

MASK_KEYS, MASKS = "mask keys", "masks"


@dataclass(frozen=True)
class MaskKeys:
    """The keys of one run's masks, by the name of the other member, in an open ledger."""

    database: Database
    run: str

    @property
    def were_made(self) -> bool:
        """Whether this run has keys, or had them."""
        return bool(self.database.entries_about(MASK_KEYS, self.run))

    @property
    def label(self) -> str:
        """What stands for the keys where they were used; it tells nothing about them."""
        return str(self.database.entries_about(MASK_KEYS, self.run)[0].body["label"])

    def store(self, keys: Mapping[str, bytes]) -> None:
        """Store the keys of a run that has none. Keys of another run are refused: its masks were used."""
        label = _label(keys)
        if self.were_made or any(entry.body["label"] == label for entry in self.database.entries(MASK_KEYS)):
            raise InputError(
                f"{self.database.path}: keys of masks a second time", "a mask is used once", "make another agreement"
            )
        with self.database.transaction():
            self.database.add(MASK_KEYS, self.run, {"label": label, "with": sorted(keys)})
            self.database.store(self.run, MASK_KEYS, keys)

    def keys(self) -> dict[str, bytes]:
        """The keys, of which none is left once they were erased."""
        found = self.database.stored(self.run, MASK_KEYS)
        if found and _label(found) != self.label:
            raise damaged(self.database.path, "keys of masks differ from their hash")
        return found

    def erase(self) -> None:
        """Delete the keys: whoever takes the ledger from now on cannot take masks off."""
        with self.database.transaction():
            self.database.drop("key = ? AND kind = ?", (self.run, MASK_KEYS))


def enter_masks(database: Database, label: str, place: Place, receivers: Iterable[str]) -> None:
    """Within a transaction: masks are used at a place. Refused where they were used there before."""
    key = _key(label, place)
    if database.entries_about(MASKS, key):
        raise InputError(
            f"{database.path}: {place} has been masked before", "a mask is used once", "send what is recorded there"
        )
    database.add(MASKS, key, {"receivers": sorted(receivers)})


def masked_places(database: Database, label: str) -> list[Place]:
    """All places at which masks of some keys were used, in their order; refused where one occurs twice."""
    found = [entry.key for entry in database.entries(MASKS) if entry.key.startswith(f"{label} ")]
    if len(set(found)) < len(found):
        raise damaged(database.path, "a mask was used twice")
    return [Place(*map(int, key.split(" ")[-2:])) for key in found]


def _label(keys: Mapping[str, bytes]) -> str:
    """A hash of 32 secret bytes each, from which nobody finds them."""
    digest = hashlib.sha256(b"sottovoce masks")
    for name, key in sorted(keys.items()):
        digest.update(hashlib.sha256(name.encode() + b"\0" + key).digest())
    return digest.hexdigest()


def _key(label: str, place: Place) -> str:
    return f"{label} {place.round:010} {place.step:06}"
