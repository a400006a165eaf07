"""Payloads with their hashes, where in a run each is sent, and what shows that it was received.

To hash a long message takes longer than to copy it. So messages carry their hashes along, and links and ledger share
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar


class Place(NamedTuple):
    """Where a message belongs: a gossip step of a round. Places are ordered."""

    round: int
    step: int

    def __str__(self) -> str:
        return f"round {self.round}, step {self.step}"


NO_TAG = bytes(32)
"""In place of a tag, where nothing is to be proven."""


class Receipt(NamedTuple):
    """A place of which a member has a message of another, with the SHA-256 of that message.

    The tag came with the message. Its sender alone can make it (`sottovoce.federation.links.Outbox`), so that nobody
    can show it a receipt of what it has never sent.
    """

    place: Place
    digest: bytes
    tag: bytes


FIRST = Place(0, 0)
"""The place of the first messages of a run."""

Key = TypeVar("Key")
Renamed = TypeVar("Renamed")


class Payloads(Mapping[Key, bytes]):
    """Bytes by member, each with its SHA-256, which is computed unless it is given. It does not change.

    `tags` came with messages that were received.
    """

    def __init__(
        self,
        payloads: Mapping[Key, bytes],
        digests: Mapping[Key, bytes] | None = None,
        tags: Mapping[Key, bytes] | None = None,
    ) -> None:
        self._payloads, self.tags = dict(payloads), dict(tags or {})
        self.digests: Mapping[Key, bytes] = _digests(self._payloads) if digests is None else digests

    def __getitem__(self, member: Key) -> bytes:
        return self._payloads[member]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._payloads)

    def __len__(self) -> int:
        return len(self._payloads)

    def renamed(self, name: Callable[[Key], Renamed]) -> Payloads[Renamed]:
        """The same, with members by other names."""
        return Payloads(
            {name(member): payload for member, payload in self._payloads.items()},
            {name(member): digest for member, digest in self.digests.items()},
            {name(member): tag for member, tag in self.tags.items()},
        )


def hashed(payloads: Mapping[Key, bytes]) -> Payloads[Key]:
    """The same messages with their hashes."""
    return payloads if isinstance(payloads, Payloads) else Payloads(payloads)


def _digests(payloads: Mapping[Key, bytes]) -> dict[Key, bytes]:
    """Bytes that several members get are hashed once."""
    once = {id(payload): payload for payload in payloads.values()}
    digests = {known: hashlib.sha256(payload).digest() for known, payload in once.items()}
    return {member: digests[id(payload)] for member, payload in payloads.items()}
