"""A whole ledger is as it was written: its entries, the bytes of a run, and where its masks were used."""

from __future__ import annotations

from sottovoce.ledger.database import damaged
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import MASKS, MaskKeys


def verify(steps):
    """Refuse a ledger that was edited, in its entries or in the bytes of a run."""
    database, run = steps.database, steps.run
    database.verify()
    for (key,) in database.rows("SELECT DISTINCT key FROM payloads WHERE key LIKE ?", (f"{run} %",)):
        steps.step(place_of(key))
    steps.noise()
    masks = MaskKeys(database, run)
    if masks.were_made:
        masks.keys()
        masked_places(database, masks.label)


def masked_places(database, label):
    """All places at which masks of some keys were used, in their order; refused where one occurs twice."""
    found = [entry.key for entry in database.entries(MASKS) if entry.key.startswith(f"{label} ")]
    if len(set(found)) < len(found):
        raise damaged(database.path, "a mask was used twice")
    return [place_of(key) for key in found]


def place_of(key):
    return Place(*map(int, key.split(" ")[-2:]))
