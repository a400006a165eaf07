"""Secret noise: streams of random bits that nobody else can draw, and nobody again.

The key of a stream is made when its place (kind of draw, ids, round, gossip step) is first asked for:

    HKDF-SHA256(32 fresh bytes of the operating system; salt: the member's secret; info: context, place, bound hash)

and the stream is what AES-256 makes of the counters 0, 1, 2, ... (counter mode; the level is the upper half of the
counter). A place keeps its key while it is used. `erase` drops it, and its noise cannot be drawn again by anybody.

Fresh bytes are enough, unless the machine was cloned together with the state of its generator: two copies then get the
same ones. So a member binds its keys to a hash of what the noise will be added to (`bind`). The copies add the same
noise to the same values only, which is one message and not two. Whoever knows neither the fresh bytes nor the member's
secret learns nothing about the values from that.

Where two nodes share noise they share a secret instead of fresh bytes: HKDF of that secret and the place gives both of
them the same stream. Which records are in a batch is kept as long as the source lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import urandom
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.random_streams import StreamName, Words
from sottovoce.errors import InputError, SottovoceError

if TYPE_CHECKING:
    from sottovoce.core.aes_stream import AesStream

SECRET_BYTES = 32
"""Of the fresh bytes for a place, and of secrets that two nodes share."""

BATCH, PAIR = "batch", "pair"
"""Kinds of draws: the coins of batches, and noise that two nodes share."""

Pair = tuple[int, int]


class SecretSource:
    """Fresh bytes for every place; it cannot be repeated, and what was erased is refused.

    `secret` is the member's own, `context` what all its streams are for, such as an agreement. `pair_secrets` has the
    secret of each pair of nodes; where it is left out, as in simulations, they are fresh. `keep_coins` stores the key
    of a batch before it is drawn, and returns the key to use: the one that an earlier process stored, if there is one.
    """

    def __init__(
        self,
        *,
        secret: bytes = b"",
        context: bytes = b"",
        pair_secrets: Mapping[Pair, bytes] | None = None,
        keep_coins: Callable[[StreamName, bytes], bytes] | None = None,
    ) -> None:
        self._aes = _aes_streams()
        for pair, shared in (pair_secrets or {}).items():
            if not isinstance(shared, bytes) or len(shared) != SECRET_BYTES:
                raise InputError(f"the secret of nodes {pair}", f"it has {SECRET_BYTES} bytes", "agree on one")
        self._secret, self._context, self._keep_coins = secret, context, keep_coins
        self._makes_pair_secrets = pair_secrets is None
        self._pair_secrets = {tuple(sorted(pair)): shared for pair, shared in (pair_secrets or {}).items()}
        self._noise_keys: dict[StreamName, bytes] = {}
        self._batch_keys: dict[StreamName, bytes] = {}
        self._erased = -1
        self._bound = b""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    @property
    def repeatable(self) -> bool:
        """Never."""
        return False

    @property
    def shared_alike(self) -> bool:
        """Where nodes have agreed on the secrets of their pairs."""
        return not self._makes_pair_secrets

    def stream(self, kind: str, ids: Sequence[int], round: int, step: int = 0) -> AesStream:
        """The stream of a place, at its beginning."""
        named = tuple(sorted(ids) if kind == PAIR else ids)
        return self._aes.AesStream(self._key(StreamName(kind, named, round, step)))

    def words_at(self, names: Sequence[StreamName], which_K: NDArray[np.intp], counters_K: Words, level: int) -> Words:
        """Four words for each counter of the stream that `which_K` says, one stream after the other."""
        words_K4, order = np.empty((len(counters_K), 4), dtype=np.uint64), np.argsort(which_K, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(which_K[order])) + 1):
            words_K4[some] = self.stream(*names[which_K[some[0]]]).words_at(counters_K[some], level)
        return words_K4

    def bind(self, digest: bytes) -> None:
        """Keys that are made from now on, but those of pairs, depend on this hash: of what the noise is added to."""
        self._bound = digest

    def noise_keys(self) -> dict[StreamName, bytes]:
        """Those that were not erased, but for noise that is shared: its keys follow from the secrets of pairs."""
        return {name: key for name, key in self._noise_keys.items() if name.kind != PAIR}

    def restore(self, keys: Mapping[StreamName, bytes]) -> None:
        """Hold keys that an earlier process made."""
        self._noise_keys.update(keys)

    def erase(self, round: int) -> None:
        """Drop the keys of this round's noise, and of earlier rounds'."""
        self._erased = max(self._erased, round)
        self._noise_keys = {name: key for name, key in self._noise_keys.items() if name.round > round}

    def _key(self, name: StreamName) -> bytes:
        keys = self._batch_keys if name.kind == BATCH else self._noise_keys
        if keys is self._noise_keys and name.round <= self._erased:
            raise SottovoceError(f"the secret noise of round {name.round} was erased after use, and is drawn only once")
        key = keys.get(name)
        return keys.setdefault(name, self._made(name)) if key is None else key

    def _made(self, name: StreamName) -> bytes:
        key = self._derived(name)
        return key if name.kind != BATCH or self._keep_coins is None else self._keep_coins(name, key)

    def _derived(self, name: StreamName) -> bytes:
        place = f"{name.kind}|{','.join(map(str, name.ids))}|{name.round}|{name.step}".encode()
        info = len(self._context).to_bytes(8, "big") + self._context + place
        if name.kind == PAIR:
            return self._aes.derived_key(self._shared(name.ids), b"", info)
        return self._aes.derived_key(urandom(SECRET_BYTES), self._secret, info + self._bound)

    def _shared(self, ids: tuple[int, ...]) -> bytes:
        """The secret of two nodes, which must be known unless this process plays both."""
        if ids not in self._pair_secrets and not self._makes_pair_secrets:
            raise InputError(
                f"no secret of nodes {ids[0]} and {ids[1]}", "these nodes share noise", "give one for this pair"
            )
        return self._pair_secrets.setdefault(ids, urandom(SECRET_BYTES))


def _aes_streams() -> ModuleType:
    """The module that needs the package cryptography: loaded where secret noise is asked for."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError(
            "secret noise without the package cryptography", "that package makes the random bits that nobody can guess",
            'type pip install "sottovoce[peers]"',
        ) from None  # fmt: skip
    from sottovoce.core import aes_stream

    return aes_stream
