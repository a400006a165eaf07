"""Secret noise: streams of random bits that nobody else can draw, and nobody again.

The key of a stream is made when its place (kind of draw, ids, round, gossip step) is first asked for:

    HKDF-SHA256(32 fresh bytes of the operating system; salt: the member's secret; info: context and place)

and the stream is what AES-256 makes of the counters 0, 1, 2, ... (counter mode; the level is the upper half of the
counter). A place keeps its key while it is used. `erase` drops it, and its noise cannot be drawn again by anybody.

Where two nodes share noise they share a secret instead of fresh bytes: HKDF of that secret and the place gives both of
them the same stream. Which records are in a batch is kept as long as the source lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import urandom
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import Reals
from sottovoce.core.exact_gaussians import fine_
from sottovoce.core.random_streams import StreamName, Words
from sottovoce.errors import InputError, SottovoceError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext
    from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

SECRET_BYTES = 32
"""Of keys, of the fresh bytes for a place, and of secrets that two nodes share."""

BATCH, PAIR = "batch", "pair"
"""Kinds of draws: the coins of batches, and noise that two nodes share."""

Pair = tuple[int, int]


class SecretSource:
    """Fresh bytes for every place; it cannot be repeated, and what was erased is refused.

    `secret` is the member's own, `context` what all its streams are for, such as an agreement. `pair_secrets` has the
    secret of each pair of nodes, the lower number first; where it is left out, as in simulations, they are fresh.
    """

    def __init__(
        self, *, secret: bytes = b"", context: bytes = b"", pair_secrets: Mapping[Pair, bytes] | None = None
    ) -> None:
        _require_cryptography()
        for pair, shared in (pair_secrets or {}).items():
            if not isinstance(shared, bytes) or len(shared) != SECRET_BYTES:
                raise InputError(f"the secret of nodes {pair}", f"it has {SECRET_BYTES} bytes", "agree on one")
        self._secret, self._context = secret, context
        self._makes_pair_secrets, self._pair_secrets = pair_secrets is None, dict(pair_secrets or {})
        self._noise_keys: dict[StreamName, bytes] = {}
        self._batch_keys: dict[StreamName, bytes] = {}
        self._erased = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    @property
    def repeatable(self) -> bool:
        """Never."""
        return False

    def stream(self, kind: str, ids: Sequence[int], round: int, step: int = 0) -> AesStream:
        """The stream of a place, at its beginning."""
        return AesStream(self._key(StreamName(kind, tuple(ids), round, step)))

    def words_at(self, names: Sequence[StreamName], which_K: NDArray[np.intp], counters_K: Words, level: int) -> Words:
        """Four words for each counter of the stream that `which_K` says, one stream after the other."""
        words_K4 = np.empty((len(counters_K), 4), dtype=np.uint64)
        for number in np.unique(which_K).tolist():
            some = which_K == number
            words_K4[some] = self.stream(*names[number]).words_at(counters_K[some], level)
        return words_K4

    def erase(self, round: int) -> None:
        """Drop the keys of this round's noise, and of earlier rounds'."""
        self._erased = max(self._erased, round)
        for name in list(self._noise_keys):  # a copy: the thread that draws ahead adds keys of later rounds
            if name.round <= round:
                del self._noise_keys[name]

    def _key(self, name: StreamName) -> bytes:
        keys = self._batch_keys if name.kind == BATCH else self._noise_keys
        if keys is self._noise_keys and name.round <= self._erased:
            raise SottovoceError(f"the secret noise of round {name.round} was erased after use, and is drawn only once")
        key = keys.get(name)
        return keys.setdefault(name, self._derived(name)) if key is None else key

    def _derived(self, name: StreamName) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        place = f"{name.kind}|{','.join(map(str, name.ids))}|{name.round}|{name.step}".encode()
        info = len(self._context).to_bytes(8, "big") + self._context + place
        if name.kind == PAIR:
            return HKDF(SHA256(), SECRET_BYTES, None, info).derive(self._shared(name.ids))
        return HKDF(SHA256(), SECRET_BYTES, self._secret or None, info).derive(urandom(SECRET_BYTES))

    def _shared(self, ids: tuple[int, ...]) -> bytes:
        """The secret of two nodes, which must be known unless this process plays both."""
        lower, higher = sorted(ids)
        pair = lower, higher
        if pair not in self._pair_secrets and not self._makes_pair_secrets:
            raise InputError(f"no secret of nodes {lower} and {higher}", "they share noise", "give one for this pair")
        return self._pair_secrets.setdefault(pair, urandom(SECRET_BYTES))


class AesStream:
    """The keystream of AES-256 in counter mode, as words."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.modes import CTR

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
        """In float64, by Box and Muller's pairs."""
        values = np.empty(out.size)
        fine_(self, values)
        out[:] = values

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """The keystream from a counter on."""
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        counter = (level << 64) + 2 * first
        return _words(_encryptor(self._key, CTR(counter.to_bytes(16, "big"))).update(bytes(32 * count))).reshape(-1, 4)

    def words_at(self, counters_K: Words, level: int) -> Words:
        """Counters encrypted one by one, two for four words."""
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        blocks = np.empty((len(counters_K), 2, 2), dtype=">u8")
        blocks[..., 0] = level
        blocks[..., 1] = 2 * (counters_K[:, None] - np.uint64(1)) + np.arange(2, dtype=np.uint64)
        return _words(_encryptor(self._key, ECB()).update(blocks.tobytes())).reshape(-1, 4)


def _encryptor(key: bytes, mode: CTR | ECB) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES

    return Cipher(AES(key), mode).encryptor()


def _words(stream: bytes) -> Words:
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError(
            "secret noise without the package cryptography", "it makes random bits that nobody can guess",
            "pip install 'sottovoce[peers]'",
        ) from None  # fmt: skip
