"""Random streams: what noise and the coins of batches are drawn from, and the key from which all of them follow.

A stream has words of 64 random bits: one after the other, and any of them wherever it stands, on as many levels as it
takes to know more digits of a number. Two sources make streams: `NoiseKey`, from which the same streams can be drawn
again, and `secret_source.SecretSource`, from which nobody can.

Who knows the noise can take it away, and the adversary knows every setting. So noise, and the coins that say which
records are in a batch, are drawn from 128 bits of the operating system's randomness, which no setting, starting point
or message shows. Starting points, partitions, topologies and compression are public: they follow from the run's seed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from sottovoce.core.arrays import Reals
from sottovoce.errors import InputError, require_whole

Words = NDArray[np.uint64]


class StreamName(NamedTuple):
    """What a stream is for: a kind of draw, whose it is, the round and the gossip step."""

    kind: str
    ids: tuple[int, ...]
    round: int
    step: int


class RandomStream(Protocol):
    """Random bits. `words`, `uniforms`, `permutation` and `gaussians_` go on where the one before them ended."""

    def words(self, count: int) -> Words:
        """The next words."""

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """The next numbers from 0 up to 1, multiples of 2^-53."""

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below `count` in a random order."""

    def gaussians_(self, out: Reals) -> None:
        """Fill a flat array with N(0, 1), up to rounding."""

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """Four words for each of the counters `first + 1` to `first + count` of a level, count x 4."""


@runtime_checkable
class RandomSource(Protocol):
    """Makes streams. Within a process the stream of a name is always the same, until it is erased."""

    @property
    def repeatable(self) -> bool:
        """Whether another process can make the same streams."""

    @property
    def shared_alike(self) -> bool:
        """Whether processes that each have such a source draw the same noise for nodes that share it."""

    def stream(self, kind: str, ids: Sequence[int], round: int, step: int = 0) -> RandomStream:
        """The stream of one draw, at its beginning."""

    def words_at(self, names: Sequence[StreamName], which_K: NDArray[np.intp], counters_K: Words, level: int) -> Words:
        """Four words for each counter of the stream that `which_K` says, K x 4.

        Counter c + 1 of level 0 has words 4 c to 4 c + 3 of a stream.
        """

    def bind(self, digest: bytes) -> None:
        """Streams of which nobody has asked yet depend on this hash as well, if they can."""

    def noise_keys(self) -> Mapping[StreamName, bytes]:
        """The keys that are held for single streams of noise."""

    def restore(self, keys: Mapping[StreamName, bytes]) -> None:
        """Hold the keys that an earlier process held."""

    def erase(self, round: int) -> None:
        """The noise of this round, and of those before it, will not be asked for again."""


# --- keys ------------------------------------------------------------------------------------------------------------


KEY_BYTES = 16

KEY_PATTERN = f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}"
"""How a key is written."""


@dataclass(frozen=True, repr=False)
class NoiseKey:
    """128 secret bits. Every draw hashes its own name with them, so that draws reveal nothing about each other.

    >>> key = NoiseKey.fresh()
    >>> key
    NoiseKey(secret)
    >>> NoiseKey.parse(key.hexadecimal) == key
    True
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            raise InputError("a noise key", f"it has {KEY_BYTES} bytes", "use NoiseKey.fresh()")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    @classmethod
    def fresh(cls) -> NoiseKey:
        """A key that nobody had before."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def given_or_fresh(cls, source: RandomSource | None) -> RandomSource:
        """The source of noise that a caller gives, or a fresh key."""
        if source is not None and not isinstance(source, RandomSource):
            raise InputError(
                f"a noise key of type {type(source).__name__}", "it must be a NoiseKey or a SecretSource",
                "use NoiseKey.parse(...)",
            )  # fmt: skip
        return cls.fresh() if source is None else source

    @classmethod
    def parse(cls, text: str) -> NoiseKey:
        """A key from its 32 hexadecimal digits."""
        if not isinstance(text, str):
            raise InputError(f"a noise key of type {type(text).__name__}", "it is read from text", "give its digits")
        if not re.fullmatch(KEY_PATTERN, text):
            raise InputError(
                f"a noise key of {len(text)} characters", f"it has {2 * KEY_BYTES} hexadecimal digits",
                "leave it out, and a fresh one is made",
            )  # fmt: skip
        return cls(bytes.fromhex(text))

    @classmethod
    def of_seed(cls, seed: int) -> NoiseKey:
        """A key that anybody can make: for numbers that protect nobody, such as the reruns of an attack."""
        return cls(_hash(b"", f"public|{seed}"))

    @property
    def hexadecimal(self) -> str:
        """The key as `parse` reads it."""
        return self.secret.hex()

    @property
    def check(self) -> str:
        """A value that shows whether a key was copied correctly, and reveals nothing about it."""
        return _hash(self.secret, "check").hex()

    def for_run(self, name: str, seed: int) -> NoiseKey:
        """The key of one run: the runs of a sweep have noise of their own, even if its file names one key for all."""
        return type(self)(_hash(self.secret, f"run|{seed}|{name}"))

    def stream(self, kind: str, ids: Sequence[int], round: int, step: int = 0) -> PhiloxStream:
        """The random stream of one draw in one step."""
        return PhiloxStream(_stream_key(self.secret, kind, ids, round, step))

    def words_at(self, names: Sequence[StreamName], which_K: NDArray[np.intp], counters_K: Words, level: int) -> Words:
        """Four words for each counter of the stream that `which_K` says, of all streams at once."""
        keys = b"".join(_stream_key(self.secret, *name) for name in names)
        return philox_words(np.frombuffer(keys, np.uint64).reshape(-1, 2)[which_K], counters_K, level)

    @property
    def repeatable(self) -> bool:
        """Whoever has the key draws the same."""
        return True

    @property
    def shared_alike(self) -> bool:
        """All of it is drawn alike."""
        return True

    def bind(self, digest: bytes) -> None:
        """Streams follow from the key alone."""

    def noise_keys(self) -> dict[StreamName, bytes]:
        """None: all streams follow from this key."""
        return {}

    def restore(self, keys: Mapping[StreamName, bytes]) -> None:
        """There are none."""

    def erase(self, round: int) -> None:
        """Nothing is kept for a round: its streams follow from the key."""


def check_seed(seed: int) -> int:
    """The seed itself; refuses what is no whole number from 0 on."""
    require_whole(seed, f"seed {seed!r:.60}", 0, "use seed 0")
    return seed


def public_stream(seed: int, kind: str, ids: Sequence[int], round: int, step: int = 0) -> np.random.Generator:
    """A random stream that every node can draw, such as which coordinates are sent."""
    return philox_generator(_stream_key(b"", f"{seed}|{kind}", ids, round, step))


def public_seed(seed: int, purpose: str) -> int:
    """The seed of one purpose, so that a starting point tells nothing about a partition or a graph."""
    return int.from_bytes(_hash(b"", f"{purpose}|{seed}")[:8], "little") >> 1


def _stream_key(secret: bytes, kind: str, ids: Sequence[int], round: int, step: int) -> bytes:
    return _hash(secret, f"{kind}|{','.join(map(str, ids))}|{round}|{step}")


def _hash(secret: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=secret, digest_size=KEY_BYTES).digest()


# --- Philox --------------------------------------------------------------------------------------------------------


ROUNDS = 10
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], dtype=np.uint64)
HIGH_MULTIPLIERS, LOW_MULTIPLIERS = MULTIPLIERS >> HALF, MULTIPLIERS & LOW
INCREMENTS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], dtype=np.uint64)


class PhiloxStream:
    """The stream of one key of 16 bytes, as numpy draws it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._generator = philox_generator(key)

    def words(self, count: int) -> Words:
        """The next words."""
        return self._generator.bit_generator.random_raw(count)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """The next numbers from 0 up to 1."""
        return self._generator.random(count)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below `count` in a random order."""
        return self._generator.permutation(count)

    def gaussians_(self, out: Reals) -> None:
        """By numpy's ziggurat."""
        self._generator.standard_normal(out=out, dtype=out.dtype)

    def consecutive(self, first: int, count: int, level: int) -> Words:
        """By numpy, from a counter on."""
        generator = np.random.Philox(
            key=np.frombuffer(self._key, np.uint64), counter=np.array([first, level, 0, 0], dtype=np.uint64)
        )
        return generator.random_raw(4 * count).reshape(count, 4)


class _Key(ISeedSequence):
    """A key as it is. numpy's own way takes three times as long: it asks the system for entropy and drops it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.uint32 | np.uint64]:
        return np.frombuffer(self._key, dtype, n_words)


def philox_generator(key: bytes) -> np.random.Generator:
    """numpy's generator with a key of 16 bytes."""
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]  # the stub leaves ISeedSequence out


def philox_words(keys_K2: Words, counters_K: Words, level: int = 0) -> Words:
    """Four words for each key and counter, K x 4, wherever they stand: Philox 4x64 with ten rounds, as numpy has it.

    Words 4 c to 4 c + 3 of numpy's stream of a key are those of counter c + 1 at level 0; other levels have others.
    Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.

    >>> key = np.array([[1, 2]], dtype=np.uint64)
    >>> stream = np.random.Philox(key=key[0])
    >>> bool((stream.random_raw(4) == philox_words(key, np.array([1], dtype=np.uint64))[0]).all())
    True
    """
    even = np.stack([counters_K, np.zeros_like(counters_K)])
    odd = np.stack([np.full_like(counters_K, level), np.zeros_like(counters_K)])
    keys = keys_K2.T.copy()
    with np.errstate(over="ignore"):
        for round in range(ROUNDS):
            if round:
                keys += INCREMENTS
            high, low = _products(even)
            even, odd = high[::-1] ^ odd ^ keys, low[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]], axis=1)


def _products(values_2K: Words) -> tuple[Words, Words]:
    """The high and the low words of the products of two rows of words with their multipliers."""
    high, low = values_2K >> HALF, values_2K & LOW
    middle = high * LOW_MULTIPLIERS
    middle += low * LOW_MULTIPLIERS >> HALF
    carry = middle & LOW
    carry += low * HIGH_MULTIPLIERS
    high *= HIGH_MULTIPLIERS
    high += middle >> HALF
    high += carry >> HALF
    return high, values_2K * MULTIPLIERS
