"""Random bits by AES-256 in counter mode, with keys by HKDF: all that needs the package cryptography."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.core.arrays import Reals
from sottovoce.core.noise_sources import polar_
from sottovoce.core.random_streams import Words

KEY_BYTES = 32

AT_ONCE = 1 << 13
"""So many Gaussians in float64 are made at once: their arrays stay in the processor's cache."""


def derived_key(material: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) of secret bytes."""
    return HKDF(SHA256(), KEY_BYTES, salt or None, info).derive(material)


class AesStream:
    """The keystream of AES-256 in counter mode, as words."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encryptor = _encryptor(key, CTR(bytes(16)))

    def words(self, count: int) -> Words:
        """The next words."""
        return _words(self._encryptor.update(bytes(8 * count)))

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """The first 53 bits of words."""
        return (self.words(count) >> np.uint64(11)) * np.float64(2.0**-53)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The order of random words; drawn anew where two of them are equal."""
        while True:
            words = self.words(count)
            order = np.argsort(words)
            if not (words[order[1:]] == words[order[:-1]]).any():
                return order

    def gaussians_(self, out: Reals) -> None:
        """By points of a disc, in float64."""
        for start in range(0, out.size, AT_ONCE):
            polar_(self, out[start : start + AT_ONCE])

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """The keystream from a counter on."""
        counter = (level << 64) + 2 * first
        return _words(_encryptor(self._key, CTR(counter.to_bytes(16, "big"))).update(bytes(32 * count))).reshape(-1, 4)

    def words_at(self, counters_K: Words, level: int) -> Words:
        """Counters encrypted one by one, two for four words."""
        blocks = np.empty((len(counters_K), 2, 2), dtype=">u8")
        blocks[..., 0] = level
        blocks[..., 1] = 2 * (counters_K[:, None] - np.uint64(1)) + np.arange(2, dtype=np.uint64)
        return _words(_encryptor(self._key, ECB()).update(blocks.tobytes())).reshape(-1, 4)


def _encryptor(key: bytes, mode: CTR | ECB) -> CipherContext:
    return Cipher(AES(key), mode).encryptor()


def _words(stream: bytes) -> Words:
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)
