"""Masks of pairs: what hides a message inside a sum, and cancels in it.

Two senders of a set share a key that nobody else has. For every place (round, gossip step, receiver) it gives them a
stream of random words, of ChaCha20. One of them adds it to its message, the other subtracts it, modulo 2^64. The
receiver's sum over the whole set is free of masks; anything less is uniformly random to whoever lacks one of the keys.

    pair key    HKDF-SHA256(X25519 secret; salt: hash of the agreement; info: purpose, both names)
    stream      ChaCha20, key HKDF-SHA256(pair key; info: round, gossip step, receiver), from block 0

    >>> shared = {"ada": {"bob": b"1" * 32, "cyd": b"2" * 32},
    ...           "bob": {"ada": b"1" * 32, "cyd": b"3" * 32}, "cyd": {"ada": b"2" * 32, "bob": b"3" * 32}}
    >>> masks = [PairMasks(own, keys).mask(Place(0, 0, "eve"), keys, 4) for own, keys in shared.items()]
    >>> int(sum(masks).max())
    0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sottovoce.core.aes_stream import KEY_BYTES, derived_key
from sottovoce.core.integer_sums import Words
from sottovoce.errors import InputError

PURPOSE = "secure sum"
"""What pair keys of masks are derived for; keys of other purposes have nothing to do with them."""


class Place(NamedTuple):
    """What a mask is for. No mask is made for two places, nor for two values at one."""

    round: int
    step: int
    receiver: str


def pair_key(shared: bytes, one: str, other: str, *, agreement: bytes, purpose: str = PURPOSE) -> bytes:
    """The key of two members for one agreement and purpose, from the secret that X25519 gives both."""
    pair = " ".join(sorted((one, other)))
    return derived_key(shared, agreement, f"{purpose}|{pair}".encode())


class PairMasks:
    """The masks of one sender: `keys` has the pair key that it shares with each other sender, by name."""

    def __init__(self, own: str, keys: Mapping[str, bytes]) -> None:
        for other, key in keys.items():
            if other == own or len(key) != KEY_BYTES:
                raise InputError(
                    f"a mask of {own} and {other} with a key of {len(key)} bytes",
                    f"a pair is two members, and its key has {KEY_BYTES} bytes", "derive it with pair_key",
                )  # fmt: skip
        self._own, self._keys = own, dict(keys)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._own}, {len(self._keys)} keys)"

    def mask(self, place: Place, others: Iterable[str], count: int) -> Words:
        """What this sender adds to `count` words at a place: the streams of its pairs with the other senders.

        The first of a pair, by name, adds its stream; the second subtracts it.
        """
        total = np.zeros(count, dtype=np.uint64)
        for other in others:
            if other not in self._keys:
                raise InputError(
                    f"no key of {self._own} and {other}", "every pair of senders has one", "derive it with pair_key"
                )
            stream = _stream(self._keys[other], place, count)
            if self._own < other:
                total += stream
            else:
                total -= stream
        return total


def _stream(key: bytes, place: Place, count: int) -> Words:
    """The first words of a pair's stream at a place."""
    of_place = derived_key(key, b"", f"{place.round}|{place.step}|{place.receiver}".encode())
    encryptor = Cipher(ChaCha20(of_place, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)
