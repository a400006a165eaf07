"""The steps of one run: what was sent at each place, stored before it is sent, and what was received.

A place is a gossip step of a round. Everything about it is one transaction, so that a process that is killed at any
moment finds either nothing, and may compute the step, or all of it, and sends the same bytes. Hashes stay for ever;
bytes until receivers have them, or until they are forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import urandom
from sqlite3 import Connection
from typing import NamedTuple, TypeVar

from sottovoce.errors import InputError
from sottovoce.ledger.database import Database, Entry, damaged
from sottovoce.ledger.mask_keys import MaskKeys, enter_masks, masked_places
from sottovoce.ledger.payloads import hashed
from sottovoce.ledger.places import Place, Receipt

Name = TypeVar("Name", str, int)

STEP, RECEIVED, COINS, NOISE, END = "step", "received", "coins", "noise", "end"
SENT, MESSAGE, OWN = "sent", "message", "own"
"""Of a receiver the hash of its bytes is stored, and the bytes once for all that get the same."""
SALT_BYTES = 32
"""Stored in front of what was computed and drawn, so that its hash, which stays, tells nothing once it is deleted."""


class PendingMessage(NamedTuple):
    """Bytes that a receiver has not acknowledged."""

    place: Place
    receiver: str
    payload: bytes


class StoredNoise(NamedTuple):
    """What noise that is correlated over rounds goes on from, by round. Nothing before round `since` is needed."""

    since: int
    by_round: Mapping[int, bytes]


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
    own: Mapping[str, bytes]

    @property
    def released(self) -> bytes | None:
        """What was computed and drawn."""
        return self.own.get("released")

    @property
    def model(self) -> bytes | None:
        """The state before the step."""
        return self.own.get("model")


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
        noise: StoredNoise | None = None,
        masks: str | None = None,
    ) -> None:
        """Store a step, before any of it is sent; the same once more is fine, anything else at its place is refused.

        What was received, computed and drawn in earlier rounds is deleted: no restart computes them again. Only noise
        stays that later rounds need. `masks` is the label of the keys under which it is sent, if any: no step before it
        may have used them at this place.
        """
        own = {"released": released, "model": model}
        given = {name: payload for name, payload in own.items() if payload is not None}
        before = self.step(place)
        if before is not None:
            if before.sent != _digests(outgoing) or before.own not in ({}, given):
                raise InputError(
                    f"{place}: recorded with other bytes", "noise and messages of a place are drawn once",
                    "send what is recorded there",
                )  # fmt: skip
            return
        kept, drawn = _salted(given), _salted({} if noise is None else noise.by_round)
        sent = _digests(outgoing)
        body = {SENT: sent, OWN: _digests(kept)}
        if noise is not None:
            body[NOISE] = {str(round): digest_of(payload) for round, payload in drawn.items()}
        newest = self.newest()
        if newest is not None and place < newest:
            raise InputError(f"{place}: not recorded, and {newest} is", "steps are recorded in their order", "skip it")
        with self.database.transaction() as connection:
            self.database.add(STEP, self._key(place), body)
            if masks is not None:
                enter_masks(self.database, masks, place, sent)
            hashes = {name: digest.encode() for name, digest in sent.items()}
            messages = {sent[name]: payload for name, payload in outgoing.items()}
            for kind, parts in ((SENT, hashes), (MESSAGE, messages), (OWN, kept)):
                rows = [(self._key(place), kind, name, payload) for name, payload in parts.items()]
                connection.executemany("INSERT INTO payloads VALUES (?, ?, ?, ?)", rows)
            self._delete(connection, "kind IN (?, ?, ?)", RECEIVED, OWN, COINS, before=Place(place.round, 0))
            if noise is not None:
                self._delete(connection, "kind = ?", NOISE, before=Place(noise.since, 0))
                rows = [(self._key(Place(round, 0)), NOISE, "", payload) for round, payload in drawn.items()]
                connection.executemany("INSERT INTO payloads VALUES (?, ?, ?, ?)", rows)
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

    def record_end(self, unended: Sequence[str]) -> None:
        """Store that the last step is over and nothing more is sent, and which neighbours may still have wanted it."""
        with self.database.transaction():
            self.database.add(END, self.run, {"unended": list(unended)})

    def has_ended(self) -> bool:
        """Whether that is stored."""
        return bool(self.database.entries_about(END, self.run))

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
        stored = self._payloads(place, OWN, entry.body[OWN])
        own = {name: payload[SALT_BYTES:] for name, payload in stored.items()}
        return StepRecord(
            place=place, sent=entry.body[SENT], received=received,
            outgoing=self._outgoing(place),
            incoming=self._payloads(place, RECEIVED, received or {}),
            own=own,
        )  # fmt: skip

    def noise(self) -> dict[int, bytes]:
        """What correlated noise goes on from, by round."""
        query = "SELECT key, bytes FROM payloads WHERE kind = ? AND key >= ? AND key < ? ORDER BY key"
        stored = {_place(key): payload for key, payload in self.database.rows(query, self._span(NOISE))}
        digests: dict[str, str] = {}
        for entry in self.database.newest_first(STEP, self._prefix) if stored else ():
            digests = entry.body.get(NOISE, {}) | digests
            if len(digests) >= len(stored) and _place(entry.key) <= min(stored):
                break
        for place, payload in stored.items():
            self._check(place, payload, digests.get(str(place.round)))
        return {place.round: payload[SALT_BYTES:] for place, payload in stored.items()}

    def erase_noise(self) -> None:
        """Delete it: no round follows."""
        with self.database.transaction() as connection:
            query = "DELETE FROM payloads WHERE kind = ? AND key >= ? AND key < ?"
            connection.execute(query, self._span(NOISE))

    def newest(self) -> Place | None:
        """The last place that was recorded."""
        entry = next(self.database.newest_first(STEP, self._prefix), None)
        return None if entry is None else _place(entry.key)

    def count(self) -> int:
        """How many steps are recorded."""
        query = "SELECT COUNT(*) FROM entries WHERE kind = ? AND key >= ? AND key < ?"
        return int(self.database.rows(query, self._span(STEP))[0][0])

    def pending(self) -> list[PendingMessage]:
        """All bytes that were not acknowledged and not forgotten, in their order: what a restart sends."""
        query = "SELECT DISTINCT key FROM payloads WHERE kind = ? AND key >= ? AND key < ? ORDER BY key"
        places = [_place(key) for (key,) in self.database.rows(query, self._span(SENT))]
        return [
            PendingMessage(place, name, payload)
            for place in places
            for name, payload in sorted(self._outgoing(place).items())
            if (self._key(place), name) not in self._acknowledged
        ]

    def forget(self, before: Place) -> None:
        """Delete the bytes of earlier places; their hashes stay, and they are never computed again."""
        with self.database.transaction() as connection:
            self._delete(connection, "kind <> ?", NOISE, before=before)
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
        self.noise()
        masks = MaskKeys(self.database, self.run)
        if masks.were_made:
            masks.keys()
            masked_places(self.database, masks.label)

    @property
    def _prefix(self) -> str:
        return f"{self.run} "

    def _span(self, kind: str) -> tuple[str, str, str]:
        """Of a kind, all that belongs to this run."""
        return kind, self._prefix, self._prefix + "~"

    def _delete(self, connection: Connection, which: str, *kinds: str, before: Place) -> None:
        """Within a transaction: stored bytes of earlier places."""
        bounds = (*kinds, self._prefix, self._key(before))
        connection.execute(f"DELETE FROM payloads WHERE {which} AND key >= ? AND key < ?", bounds)

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

    def _outgoing(self, place: Place) -> dict[str, bytes]:
        """What is stored of messages, by receiver."""
        rows = self.database.rows(
            "SELECT one.name, one.bytes, message.bytes FROM payloads AS one LEFT JOIN payloads AS message "
            "ON message.key = one.key AND message.kind = ? AND message.name = CAST(one.bytes AS TEXT) "
            "WHERE one.key = ? AND one.kind = ?", (MESSAGE, self._key(place), SENT),
        )  # fmt: skip
        sent, checked = self._sent(place), set()
        for name, digest, payload in rows:
            if digest.decode() != sent.get(name) or payload is None:
                raise damaged(self.database.path, f"stored bytes of {place} differ from their hash")
            if digest not in checked:
                self._check(place, payload, digest.decode())
                checked.add(digest)
        return {name: payload for name, _, payload in rows}

    def _check(self, place: Place, payload: bytes, digest: str | None) -> None:
        if digest_of(payload) != digest:
            raise damaged(self.database.path, f"stored bytes of {place} differ from their hash")

    def _delete_acknowledged(self, connection: Connection) -> None:
        """Within a transaction: what receivers have."""
        query = "DELETE FROM payloads WHERE key = ? AND kind = ? AND name = ?"
        connection.executemany(query, [(key, SENT, name) for key, name in self._acknowledged])
        query = (
            "DELETE FROM payloads WHERE key = ? AND kind = ? AND name NOT IN "
            "(SELECT CAST(bytes AS TEXT) FROM payloads WHERE key = ? AND kind = ?)"
        )
        places = dict.fromkeys(key for key, _ in self._acknowledged)
        connection.executemany(query, [(key, MESSAGE, key, SENT) for key in places])
        self._acknowledged.clear()


def digest_of(payload: bytes) -> str:
    """The hash by which a message is known in entries and receipts."""
    return hashlib.sha256(payload).hexdigest()


def _salted(payloads: Mapping[Name, bytes]) -> dict[Name, bytes]:
    return {name: urandom(SALT_BYTES) + payload for name, payload in payloads.items()}


def _digests(payloads: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest.hex() for name, digest in hashed(payloads).digests.items()}


def _place(key: str) -> Place:
    return Place(*(int(part) for part in key.split(" ")[-2:]))
