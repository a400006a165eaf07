"""The steps of one run: what was sent at each place, stored before it is sent, and what was received.

A place is a gossip step of a round. Everything about it is one transaction, so that a process that is killed at any
moment finds either nothing, and may compute the step, or all of it, and sends the same bytes. Hashes stay for ever;
bytes until receivers have them, or until they are forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import NamedTuple

from sottovoce.errors import InputError
from sottovoce.ledger.database import Database, Entry, damaged
from sottovoce.ledger.places import Place, Receipt

STEP, RECEIVED, COINS = "step", "received", "coins"
SENT, OWN = "sent", "own"
OWN_PARTS = ("released", "model")


class PendingMessage(NamedTuple):
    """Bytes that a receiver has not acknowledged."""

    place: Place
    receiver: str
    payload: bytes


@dataclass(frozen=True)
class StepRecord:
    """What is stored about a place. `sent` and `received` are hashes by member; bytes are there unless forgotten.

    `received` is None until it is known who was heard; it is empty where nobody was.
    """

    place: Place
    sent: Mapping[str, str]
    received: Mapping[str, str] | None
    outgoing: Mapping[str, bytes]
    incoming: Mapping[str, bytes]
    released: bytes | None
    model: bytes | None


@dataclass(eq=False)
class Steps:
    """The steps of the run with this name, an agreement's hash say, in an open ledger."""

    database: Database
    run: str
    _acknowledged: list[tuple[str, str]] = field(default_factory=list)

    def record_step(
        self,
        place: Place,
        outgoing: Mapping[str, bytes],
        *,
        released: bytes | None = None,
        model: bytes | None = None,
    ) -> None:
        """Store a step, before any of it is sent; the same once more is fine, anything else at its place is refused.

        What was received, computed and drawn in earlier rounds is deleted: no restart computes them again.
        """
        own = {"released": released, "model": model}
        kept = {name: payload for name, payload in own.items() if payload is not None}
        body = {SENT: _digests(outgoing), OWN: _digests(kept)}
        before = self._entry(STEP, place)
        if before is not None:
            if before.body != body:
                raise InputError(
                    f"{place}: recorded with other bytes", "noise and messages of a place are drawn once",
                    "send what is recorded there",
                )  # fmt: skip
            return
        newest = self.newest()
        if newest is not None and place < newest:
            raise InputError(f"{place}: not recorded, and {newest} is", "steps are recorded in their order", "skip it")
        with self.database.transaction() as connection:
            self.database.add(STEP, self._key(place), body)
            for kind, parts in ((SENT, outgoing), (OWN, kept)):
                rows = [(self._key(place), kind, name, payload) for name, payload in parts.items()]
                connection.executemany("INSERT INTO payloads VALUES (?, ?, ?, ?)", rows)
            connection.execute(
                "DELETE FROM payloads WHERE kind IN (?, ?, ?) AND key >= ? AND key < ?",
                (RECEIVED, OWN, COINS, self._prefix, self._key(Place(place.round, 0))),
            )
            self._delete_acknowledged(connection)

    def record_coins(self, place: Place, key: bytes) -> bytes:
        """Store the key of a batch's coins, before the gradient is computed; returns the one that is stored there.

        So a process that is killed in between draws the same batch again.
        """
        found = self.database.rows("SELECT bytes FROM payloads WHERE key = ? AND kind = ?", (self._key(place), COINS))
        if found:
            return bytes(found[0]["bytes"])
        if self._entry(COINS, place) is not None:
            raise InputError(f"{place}: its batch was drawn", "a batch is drawn once", "go on after it")
        with self.database.transaction() as connection:
            self.database.add(COINS, self._key(place), {COINS: digest_of(key)})
            connection.execute("INSERT INTO payloads VALUES (?, ?, '', ?)", (self._key(place), COINS, key))
        return key

    def record_received(self, place: Place, incoming: Mapping[str, bytes]) -> None:
        """Store what came in, before it is used, also that it was nothing.

        Another message of the same sender for a place is refused.
        """
        found, digests = self._received(place), _digests(incoming)
        before = found or {}
        other = next((name for name, digest in digests.items() if before.get(name, digest) != digest), None)
        if other is not None:
            raise InputError(
                f"{place}: another message of {other}", "a member sends one message for a place",
                "keep the first, and tell whoever runs that member",
            )  # fmt: skip
        new = {name: digest for name, digest in digests.items() if name not in before}
        if found is not None and not new:
            return
        with self.database.transaction() as connection:
            self.database.add(RECEIVED, self._key(place), new)
            rows = [(self._key(place), RECEIVED, name, incoming[name]) for name in new]
            connection.executemany("INSERT INTO payloads VALUES (?, ?, ?, ?)", rows)
            self._delete_acknowledged(connection)

    def acknowledge(self, place: Place, receiver: str) -> None:
        """A receiver has its bytes. They are deleted with the next record: until then they may be sent once more."""
        if receiver not in self._sent(place):
            raise InputError(
                f"{place}: {receiver} acknowledges it", "nothing was recorded for it there", "check who sends this"
            )
        self._acknowledged.append((self._key(place), receiver))

    def step(self, place: Place) -> StepRecord | None:
        """What is stored about a place; None where nothing was recorded."""
        entry = self._entry(STEP, place)
        if entry is None:
            return None
        received = self._received(place)
        own = self._payloads(place, OWN, entry.body[OWN])
        return StepRecord(
            place=place, sent=entry.body[SENT], received=received,
            outgoing=self._payloads(place, SENT, entry.body[SENT]),
            incoming=self._payloads(place, RECEIVED, received or {}),
            **{name: own.get(name) for name in OWN_PARTS},
        )  # fmt: skip

    def newest(self) -> Place | None:
        """The last place that was recorded."""
        entry = next(self.database.newest_first(STEP, self._prefix), None)
        return None if entry is None else _place(entry.key)

    def count(self) -> int:
        """How many steps are recorded."""
        query = "SELECT COUNT(*) FROM entries WHERE kind = ? AND key >= ? AND key < ?"
        return int(self.database.rows(query, (STEP, self._prefix, self._prefix + "~"))[0][0])

    def pending(self) -> list[PendingMessage]:
        """All bytes that were not acknowledged and not forgotten, in their order: what a restart sends."""
        query = "SELECT key, name, bytes FROM payloads WHERE kind = ? AND key >= ? AND key < ? ORDER BY key, name"
        found = []
        for key, name, payload in self.database.rows(query, (SENT, self._prefix, self._prefix + "~")):
            if (key, name) not in self._acknowledged:
                place = _place(key)
                self._check(place, payload, self._sent(place).get(name))
                found.append(PendingMessage(place, name, payload))
        return found

    def forget(self, before: Place) -> None:
        """Delete the bytes of earlier places; their hashes stay, and they are never computed again."""
        with self.database.transaction() as connection:
            bounds = (self._prefix, self._key(before))
            connection.execute("DELETE FROM payloads WHERE key >= ? AND key < ?", bounds)
            self._delete_acknowledged(connection)

    def receipt(self, sender: str) -> Receipt | None:
        """The newest message of a neighbour that is recorded here: what it is told when it comes back."""
        found = (entry for entry in self.database.newest_first(RECEIVED, self._prefix) if sender in entry.body)
        entry = next(found, None)
        return None if entry is None else Receipt(_place(entry.key), bytes.fromhex(entry.body[sender]))

    def check_receipt(self, neighbour: str, receipt: Receipt) -> None:
        """Refuse a ledger that is behind what a neighbour has received, or that has something else at its place."""
        place, newest, remedy = receipt.place, self.newest(), "take part no more in this agreement with this folder"
        if newest is None or place > newest:
            behind = "nothing" if newest is None else str(newest)
            raise InputError(
                f"{self.database.path}: {neighbour} has a message of {place}, and the last one here is of "
                f"{behind}", "a ledger that was put back would send other noise for the same place", remedy,
            )  # fmt: skip
        if self._sent(place).get(neighbour) != receipt.digest.hex():
            raise InputError(
                f"{self.database.path}: {neighbour} has another message of {place} than is recorded",
                "a place has one message", remedy,
            )  # fmt: skip

    def verify(self) -> None:
        """Refuse a ledger that was edited, in its entries or in the bytes of this run."""
        self.database.verify()
        for (key,) in self.database.rows(
            "SELECT DISTINCT key FROM payloads WHERE key >= ? AND key < ?", (self._prefix, self._prefix + "~")
        ):
            self.step(_place(key))

    @property
    def _prefix(self) -> str:
        return f"{self.run} "

    def _key(self, place: Place) -> str:
        return f"{self.run} {place.round:010} {place.step:06}"

    def _entry(self, kind: str, place: Place) -> Entry | None:
        found = self.database.entries_about(kind, self._key(place))
        return found[0] if found else None

    def _sent(self, place: Place) -> dict[str, str]:
        entry = self._entry(STEP, place)
        return {} if entry is None else entry.body[SENT]

    def _received(self, place: Place) -> dict[str, str] | None:
        found = self.database.entries_about(RECEIVED, self._key(place))
        return {name: digest for entry in found for name, digest in entry.body.items()} if found else None

    def _payloads(self, place: Place, kind: str, digests: Mapping[str, str]) -> dict[str, bytes]:
        rows = self.database.rows(
            "SELECT name, bytes FROM payloads WHERE key = ? AND kind = ? ORDER BY name", (self._key(place), kind)
        )
        for name, payload in rows:
            self._check(place, payload, digests.get(name))
        return dict(tuple(row) for row in rows)

    def _check(self, place: Place, payload: bytes, digest: str | None) -> None:
        if digest_of(payload) != digest:
            raise damaged(self.database.path, f"stored bytes of {place} differ from their hash")

    def _delete_acknowledged(self, connection: Connection) -> None:
        """Within a transaction: what receivers have."""
        query = "DELETE FROM payloads WHERE key = ? AND kind = ? AND name = ?"
        connection.executemany(query, [(key, SENT, name) for key, name in self._acknowledged])
        self._acknowledged.clear()


def digest_of(payload: bytes) -> str:
    """The hash by which a message is known in entries and receipts."""
    return hashlib.sha256(payload).hexdigest()


def _digests(payloads: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest_of(payload) for name, payload in payloads.items()}


def _place(key: str) -> Place:
    return Place(*(int(part) for part in key.split(" ")[-2:]))
