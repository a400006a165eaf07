"""Tags of bytes that a member keeps for itself, each under a key of its own that is stored in front of them.

Nobody else compares these bytes, so their tag need not be the SHA-256 of messages, which takes ten times as long. A tag
is AES-GMAC with a fresh key. It shows damage and bytes that were exchanged, unless whoever did it computed the tag
anew, as with the hashes of entries. Once the key is deleted with the bytes, the tag tells nothing about them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from sottovoce.ledger.database import Name

KEY_BYTES = 32

PIECE = 1 << 30
"""OpenSSL counts bytes in an int."""


def with_keys(payloads: Mapping[Name, bytes]) -> dict[Name, tuple[bytes, bytes]]:
    """Each payload with a fresh key in front of it."""
    return {name: (os.urandom(KEY_BYTES), payload) for name, payload in payloads.items()}


def tag_of(key: bytes, payload: bytes | memoryview) -> str:
    """The tag of a payload, as entries have it."""
    nonce = bytes(12)  # fine once for each key, and no key has two payloads
    tagged = Cipher(AES(key), GCM(nonce)).encryptor()
    for piece in _pieces(memoryview(payload)):
        tagged.authenticate_additional_data(piece)
    tagged.finalize()
    return tagged.tag.hex()


def stored_tag(stored: bytes) -> str | None:
    """The tag of bytes that were stored with their key; None where not even the key is whole."""
    return tag_of(stored[:KEY_BYTES], memoryview(stored)[KEY_BYTES:]) if len(stored) >= KEY_BYTES else None


def _pieces(payload: memoryview) -> Iterable[memoryview]:
    return (payload[start : start + PIECE] for start in range(0, len(payload), PIECE))
