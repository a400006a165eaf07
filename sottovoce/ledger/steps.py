"""The steps of one run: what was sent at each place, stored before it is sent, and what was received.

A place is a gossip step of a round. Everything about it is one transaction, so that a process that is killed at any
moment finds either nothing, and may compute the step, or all of it, and sends the same bytes. Hashes stay for ever,
bytes until they are forgotten. That a receiver has them deletes nothing: it acknowledges what it holds in memory, may
be killed before it has recorded it, and asks again.

Bytes that a member keeps for itself, and nobody else compares, need not have the SHA-256 of messages, which takes ten
times as long: they have a tag under a key of its own that is stored in front of them (AES-GMAC). It shows damage and
bytes that were exchanged, unless whoever did it computed the tag anew, as with the hashes of entries. Once the key is
deleted with the bytes, the tag tells nothing about them.

No mask of a secure sum is used for two places, nor twice at one. The keys of masks that a member shares with others are
stored when a run begins, and deleted when it has ended. Every step under masks enters its place, under a label that
stands for the keys: hashes of both stay, and show that no place occurs twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.errors import InputError
from sottovoce.ledger.database import Database, Entry, damaged
from sottovoce.ledger.payloads import Place, Receipt, hashed

STEP, RECEIVED, COINS, NOISE, END, AMENDED = "step", "received", "coins", "noise", "end", "amended"
SENT, MESSAGE, OWN = "sent", "message", "own"
"""Of receivers the hash is stored of what each gets, and the bytes once for all that get the same."""
DIGITS = 64
"""Of a SHA-256 in hexadecimal."""
KEY_BYTES = 32
"""Of the key in front of bytes that never leave the member."""


class StoredNoise(NamedTuple):
    """What noise that is correlated over rounds goes on from, by round. Nothing before round `since` is needed."""

    since: int
    by_round: Mapping[int, bytes]


@dataclass(frozen=True)
class StepRecord:
    """What is stored about a place. `sent` and `received` are hashes by member; bytes are there unless forgotten.

    `released` was computed and drawn, `model` is the state before the step.
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
    """The steps of the run with this name, its first agreement's hash say, in an open ledger.

    `agreement` is what holds now, where that is not the first.
    """

    database: Database
    run: str
    agreement: str = ""

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
        before = self.step(place)
        if before is not None:
            own = before.released, before.model
            if before.sent != _digests(outgoing) or own not in ((None, None), (released, model)):
                raise InputError(
                    f"{place}: recorded with other bytes", "noise and messages of a place are drawn once",
                    "send what is recorded there",
                )  # fmt: skip
            return
        newest = self.newest()
        if newest is not None and place < newest:
            raise InputError(
                f"{place}: not recorded, although {newest} is", "steps must be recorded in order", "skip it"
            )
        sent, key = _digests(outgoing), self._key(place)
        kept = _with_keys({"released": released, "model": model})
        drawn = _with_keys({} if noise is None else {str(round): one for round, one in noise.by_round.items()})
        body = {SENT: sent, OWN: _tags(kept), **({} if noise is None else {NOISE: _tags(drawn)})}
        with self.database.transaction():
            self.database.add(STEP, key, body)
            if masks is not None:
                enter_masks(self.database, masks, place, sent)
            self.database.store(key, MESSAGE, {sent[name]: payload for name, payload in outgoing.items()})
            self.database.store(key, OWN, kept)
            for kind in (RECEIVED, OWN, AMENDED):
                self._drop(kind, before=Place(place.round, 0))
            if noise is not None:
                self._drop(NOISE, before=Place(noise.since, 0))
                for round, stored in drawn.items():
                    self.database.store(self._key(Place(int(round), 0)), NOISE, {"": stored})

    def record_coins(self, place: Place, key: bytes) -> bytes:
        """Store the key of a batch's coins, before the gradient is computed; returns the one that is stored there.

        So a process that is killed in between draws the same batch again. It stays until coins are drawn for a later
        round, because batches of several rounds may follow from it.
        """
        found = self.database.stored(self._key(place), COINS)
        if found:
            return found[""]
        if self._entry(COINS, place) is not None:
            raise InputError(f"{place}: its batch was already drawn", "a batch is drawn once", "go on after it")
        with self.database.transaction():
            self._drop(COINS, before=place)
            self.database.add(COINS, self._key(place), {COINS: digest_of(key)})
            self.database.store(self._key(place), COINS, {"": key})
        return key

    def record_received(
        self, place: Place, incoming: Mapping[str, bytes], tags: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        """Store what came in, before it is used, also that it was nothing; with `tags`, for the receipts of senders.

        Another message of the same sender for a place is refused. Until the next step a power failure may take the
        record: what came in is asked for again then.
        """
        found, digests = self._received(place), _digests(incoming)
        before = found or {}
        other = next((name for name, digest in digests.items() if before.get(name, digest) != digest), None)
        if other is not None:
            raise InputError(
                f"{place}: a second, different message from {other}", "a member sends one message for a place",
                "keep the first one, and tell whoever runs that member",
            )  # fmt: skip
        new = digests.keys() - before.keys()
        if found is None or new:
            body = {name: digests[name] + tags.get(name, b"").hex() for name in new}
            with self.database.transaction(flush=False):
                self.database.add(RECEIVED, self._key(place), body)
                self.database.store(self._key(place), RECEIVED, {name: incoming[name] for name in new})

    def record_end(self, unended: Sequence[str]) -> None:
        """Store that the last step is over and nothing more is sent, and which neighbours may still have wanted it."""
        with self.database.transaction():
            self.database.add(END, self.agreement or self.run, {"unended": list(unended)})

    def has_ended(self) -> bool:
        """Whether that is stored."""
        return bool(self.database.entries_about(END, self.agreement or self.run))

    def record_amended(self, by: str | None, round: int, state: bytes | None) -> None:
        """Store that rounds from this one on belong to another agreement, with the state before them; None: to none."""
        kept = _with_keys({"": state})
        with self.database.transaction():
            self.database.add(AMENDED, self.run, {"by": by, "round": round, OWN: _tags(kept)})
            self.database.store(self._key(Place(round, 0)), AMENDED, kept)

    def amendments(self) -> dict[str | None, int]:
        """The first round of each later agreement of this run, in their order."""
        return {entry.body["by"]: entry.body["round"] for entry in self.database.entries_about(AMENDED, self.run)}

    def recorded_state(self) -> tuple[int, bytes | None] | None:
        """The newest round that was begun, or that an amendment begins with, and the state before it."""
        newest, amended = self.newest(), self.database.entries_about(AMENDED, self.run)
        if amended and (newest is None or newest.round < amended[-1].body["round"]):
            place = Place(amended[-1].body["round"], 0)
            found = self.database.stored(self._key(place), AMENDED)
            self._check(place, _tags(found), amended[-1].body[OWN])
            return place.round, found[""][KEY_BYTES:] if found else None
        step = None if newest is None else self.step(Place(newest.round, 0))
        return None if step is None or step.model is None else (step.place.round, step.model)

    def step(self, place: Place) -> StepRecord | None:
        """What is stored about a place; None where nothing was recorded."""
        entry = self._entry(STEP, place)
        if entry is None:
            return None
        received, key = self._received(place), self._key(place)
        incoming, own = self.database.stored(key, RECEIVED), self.database.stored(key, OWN)
        self._check(place, {name: digest_of(payload) for name, payload in incoming.items()}, received or {})
        self._check(place, _tags(own), entry.body[OWN])
        return StepRecord(
            place=place, sent=entry.body[SENT], received=received, outgoing=self._outgoing(place, entry.body[SENT]),
            incoming=incoming,
            **{name: own[name][KEY_BYTES:] if name in own else None for name in ("released", "model")},
        )  # fmt: skip

    def noise(self) -> dict[int, bytes]:
        """What correlated noise goes on from, by round."""
        places = self._places_of(NOISE)
        tags: dict[str, str] = {}
        for entry in self.database.newest_first(STEP, self._prefix) if places else ():
            tags = entry.body.get(NOISE, {}) | tags
            if len(tags) >= len(places) and _place(entry.key) <= places[0]:
                break
        found = {place: self.database.stored(self._key(place), NOISE)[""] for place in places}
        for place, stored in found.items():
            self._check(place, _tags({str(place.round): stored}), tags)
        return {place.round: stored[KEY_BYTES:] for place, stored in found.items()}

    def erase_noise(self) -> None:
        """Delete it, and the coins of the last batches: no round follows."""
        with self.database.transaction():
            for kind in (NOISE, COINS):
                self.database.drop("kind = ? AND key >= ? AND key < ?", self._span(kind))

    def newest(self) -> Place | None:
        """The last place that was recorded."""
        entry = next(self.database.newest_first(STEP, self._prefix), None)
        return None if entry is None else _place(entry.key)

    def count(self) -> int:
        """How many steps are recorded."""
        query = "SELECT COUNT(*) FROM entries WHERE kind = ? AND key >= ? AND key < ?"
        return int(self.database.rows(query, self._span(STEP))[0][0])

    def pending(self) -> dict[Place, dict[str, bytes]]:
        """All bytes that were not forgotten, in their order: what a restart sends."""
        return {place: self._outgoing(place, self._sent(place)) for place in self._places_of(MESSAGE)}

    def forget(self, before: Place) -> None:
        """Delete the bytes of earlier places; their hashes stay, and they are never computed again."""
        with self.database.transaction():
            for kind in (MESSAGE, RECEIVED, OWN, AMENDED):
                self._drop(kind, before=before)

    def receipt(self, sender: str) -> Receipt | None:
        """The newest message of a neighbour that is recorded here: what it is told when it comes back."""
        for entry in self.database.newest_first(RECEIVED, self._prefix):
            if sender in entry.body:
                digest, tag = _digest_and_tag(entry.body[sender])
                return Receipt(_place(entry.key), bytes.fromhex(digest), bytes.fromhex(tag)) if tag else None
        return None

    def check_receipt(self, neighbour: str, receipt: Receipt) -> None:
        """Refuse a ledger that is behind what a neighbour has received, or that has something else at its place."""
        place, newest = receipt.place, self.newest()
        remedy = "do not take part in this agreement with this folder any more"
        if newest is None or place > newest:
            behind = "nothing" if newest is None else str(newest)
            raise InputError(
                f"{self.database.path}: {neighbour} has a message of {place}, but the last one in this ledger is of "
                f"{behind}",
                "with a ledger that was restored, a member would send different noise for the same place", remedy,
            )  # fmt: skip
        if self._sent(place).get(neighbour) != receipt.digest.hex():
            raise InputError(
                f"{self.database.path}: {neighbour} has a different message of {place} than the one recorded here",
                "a place has one message, so a second copy of this member has sent it", remedy,
            )  # fmt: skip

    @property
    def _prefix(self) -> str:
        return f"{self.run} "

    def _span(self, kind: str) -> tuple[str, str, str]:
        """Of a kind, all that belongs to this run."""
        return kind, self._prefix, self._prefix + "~"

    def _drop(self, kind: str, *, before: Place) -> None:
        """Within a transaction: stored bytes of earlier places."""
        self.database.drop("kind = ? AND key >= ? AND key < ?", (kind, self._prefix, self._key(before)))

    def _places_of(self, kind: str) -> list[Place]:
        """The places of which bytes of a kind are stored."""
        query = "SELECT DISTINCT key FROM payloads WHERE kind = ? AND key >= ? AND key < ? ORDER BY key"
        return [_place(key) for (key,) in self.database.rows(query, self._span(kind))]

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
        if not found:
            return None
        return {name: _digest_and_tag(text)[0] for entry in found for name, text in entry.body.items()}

    def _outgoing(self, place: Place, sent: Mapping[str, str]) -> dict[str, bytes]:
        """What is stored of messages, by receiver."""
        messages = self.database.stored(self._key(place), MESSAGE)
        if not messages:
            return {}
        found = {digest: digest_of(payload) for digest, payload in messages.items()}
        self._check(place, sent, {name: found.get(digest, "") for name, digest in sent.items()})
        return {name: messages[digest] for name, digest in sent.items()}

    def _check(self, place: Place, found: Mapping[str, str], recorded: Mapping[str, str]) -> None:
        """Refuse stored bytes whose hashes or tags are not those that were recorded."""
        if any(recorded.get(name) != digest for name, digest in found.items()):
            raise damaged(self.database.path, f"stored bytes of {place} differ from their hash")


def digest_of(payload: bytes) -> str:
    """The hash by which a message is known in entries and receipts."""
    return hashlib.sha256(payload).hexdigest()


def _digest_and_tag(text: str) -> tuple[str, str]:
    """Of a message that was received, as entries have it; those of earlier versions have no tag."""
    return text[:DIGITS], text[DIGITS:]


def _digests(payloads: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest.hex() for name, digest in hashed(payloads).digests.items()}


def _place(key: str) -> Place:
    return Place(*(int(part) for part in key.split(" ")[-2:]))


def _with_keys(payloads: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Each payload that there is with a fresh key in front of it."""
    return {name: os.urandom(KEY_BYTES) + payload for name, payload in payloads.items() if payload is not None}


def _tags(stored: Mapping[str, bytes]) -> dict[str, str]:
    """The tags of payloads that were stored with their keys: those of bytes that are cut off fit nothing.

    That nonces are all the same is fine: no key has two payloads.
    """
    return {name: _tag(memoryview(one)) for name, one in stored.items()}


def _tag(stored: memoryview) -> str:
    key = bytes(stored[:KEY_BYTES])
    return AESGCM(key).encrypt(bytes(12), b"", stored[KEY_BYTES:]).hex() if len(key) == KEY_BYTES else ""


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


def _label(keys: Mapping[str, bytes]) -> str:
    """A hash of 32 secret bytes each, from which nobody finds them."""
    digest = hashlib.sha256(b"sottovoce masks")
    for name, key in sorted(keys.items()):
        digest.update(hashlib.sha256(name.encode() + b"\0" + key).digest())
    return digest.hexdigest()


def _key(label: str, place: Place) -> str:
    return f"{label} {place.round:010} {place.step:06}"
