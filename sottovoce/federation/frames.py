"""What travels between members: frames, which are a header of fixed length and a payload, and hashes of agreements.

    magic  version  kind  agreement hash  round  step  sender  payload length  tag | payload

What arrives is never trusted: whatever the bytes are, reading them gives something checked or raises `Refused`.

In which keys two agreements differ is found from the hash of every value, and none of the values. Only neighbours are
told them, over a connection on which both have shown their certificates.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TypeAlias

from sottovoce._version import __version__
from sottovoce.errors import SottovoceError
from sottovoce.ledger.payloads import FIRST, NO_TAG, Place, Receipt
from sottovoce.support.text import parse_json

MemberNumber: TypeAlias = int
"""A member, by the number of its node in the agreement."""

VERSION = 2
"""Of the protocol. Members with different ones do not talk to each other."""

MAGIC = b"soto"
HEADER = struct.Struct("<4sHH32sIIIQ32s")
RECEIPT = struct.Struct("<?II32s")
ABSENCE = struct.Struct("<II")
DIGEST = 32
LONGEST_VERSION = 64


class Reason(Enum):
    """Why a frame is refused."""

    FORMAT = "it is not a frame of this protocol"
    VERSION = "it is of another version of the protocol"
    AGREEMENT = "it is of another agreement"
    SENDER = "it names another sender than the member whose connection it came over"
    STRANGER = "its sender is not a neighbour that sends to this member"
    LENGTH = "its length is not the one that its place must have"
    PLACE = "the agreement has no such place"
    TOO_EARLY = "its place is too far ahead"
    TOO_OLD = "its place is long over"
    RANGE = "it has values that are not finite or beyond the agreed range"
    RECEIPT = "it acknowledges a message that this member has never made"
    EQUIVOCATION = "another message was received for the same place"


class Refused(SottovoceError):
    """A frame that is not accepted, and why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"a frame was refused: {reason.value}")
        self.reason = reason


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    MESSAGE = 2
    ACKNOWLEDGEMENT = 3
    WAITING = 4
    MASKED = 5
    ABSENT = 6


MESSAGES = (Kind.MESSAGE, Kind.MASKED)
"""Kinds that carry what members compute."""


@dataclass(frozen=True)
class Frame:
    """One frame. `place` is that of the message or of what is acknowledged; otherwise where the sender stands.

    `tag` comes with a message, and goes back with its receipt.
    Messages of secure sums are masked, and of a kind of their own: neither is taken for the other. Who is absent stands
    at the next place at which it will send something, and names the first one at which it does not.
    """

    agreement: bytes
    place: Place
    sender: MemberNumber
    kind: Kind
    payload: bytes = b""
    tag: bytes = NO_TAG

    def header(self) -> bytes:
        """The bytes before the payload."""
        length = len(self.payload)
        return HEADER.pack(MAGIC, VERSION, self.kind, self.agreement, *self.place, self.sender, length, self.tag)

    def encode(self) -> bytes:
        """The bytes that travel."""
        return self.header() + self.payload


@dataclass(frozen=True)
class Hello:
    """What a hello says beside its place: the newest receipt for the other side, and the version of the package."""

    receipt: Receipt | None
    version: str = __version__

    def encode(self) -> bytes:
        """The payload of the frame."""
        known = self.receipt is not None
        place, digest, _ = self.receipt or Receipt(FIRST, bytes(DIGEST), NO_TAG)
        return RECEIPT.pack(known, *place, digest) + self.version.encode()[:LONGEST_VERSION]


def hello_in(frame: Frame) -> Hello:
    """What a hello says; the tag of its receipt is that of the frame."""
    try:
        known, round, step, digest = RECEIPT.unpack_from(frame.payload)
        version = frame.payload[RECEIPT.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise Refused(Reason.FORMAT) from None
    return Hello(Receipt(Place(round, step), digest, frame.tag) if known else None, version)


def absence_in(frame: Frame) -> Place:
    """The first place at which the sender of a frame sends nothing; it is absent up to the place of the frame."""
    return Place(*ABSENCE.unpack(frame.payload))


def receipt_in(frame: Frame) -> Receipt:
    """What an acknowledgement acknowledges."""
    return Receipt(frame.place, frame.payload, frame.tag)


class FrameReader:
    """Puts the frames of one connection together from chunks of any size.

    It holds one frame and one chunk at most: a header is checked before its payload is waited for. Of the two kinds of
    messages an agreement has one; only with secure sums is somebody absent.
    """

    def __init__(self, agreement: bytes, message_length: int, message_kind: Kind = Kind.MESSAGE) -> None:
        self._agreement = agreement
        hello = range(RECEIPT.size, RECEIPT.size + LONGEST_VERSION + 1)
        self._lengths = {Kind.HELLO: hello} | {
            kind: range(length, length + 1)
            for kind, length in (
                (message_kind, message_length), (Kind.ACKNOWLEDGEMENT, DIGEST), (Kind.WAITING, 0),
            )
        }  # fmt: skip
        if message_kind is Kind.MASKED:
            self._lengths[Kind.ABSENT] = range(ABSENCE.size, ABSENCE.size + 1)
        self._bytes = bytearray()
        self._begun: tuple[Frame, int] | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that are whole with this chunk; `Refused` ends the connection, which cannot be read further."""
        self._bytes += chunk
        frames: list[Frame] = []
        while len(self._bytes) >= HEADER.size:
            frame, end = self._begun = self._begun or self._checked(self._bytes[: HEADER.size])
            if len(self._bytes) < end:
                break
            frames.append(replace(frame, payload=bytes(memoryview(self._bytes)[HEADER.size : end])))
            del self._bytes[:end]
            self._begun = None
        return frames

    def _checked(self, header: bytes | bytearray) -> tuple[Frame, int]:
        """A frame without its payload, and how many bytes it has with it."""
        magic, version, kind, agreement, round, step, sender, length, tag = HEADER.unpack(header)
        if magic != MAGIC:
            raise Refused(Reason.FORMAT)
        if version != VERSION:
            raise Refused(Reason.VERSION)
        if agreement != self._agreement:
            raise Refused(Reason.AGREEMENT)
        if kind not in self._lengths:
            raise Refused(Reason.FORMAT)
        if length not in self._lengths[kind]:
            raise Refused(Reason.LENGTH)
        return Frame(agreement, Place(round, step), sender, Kind(kind), tag=tag), HEADER.size + length


KeyHashes: TypeAlias = Mapping[str, str]
"""Of an agreement: hashes of values, by key."""

LAST = "nonce"
"""Differs between any two agreements that were made apart, and explains least."""


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
