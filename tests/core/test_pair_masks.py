"""Masks of pairs: they cancel in the whole sum, hide everything less, and no two places have the same."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from scipy import stats

from sottovoce import InputError
from sottovoce.core.integer_sums import decoded, sum_bound, weighted
from sottovoce.core.pair_masks import PairMasks, Place, pair_key

AGREEMENT = hashlib.sha256(b"agreement").digest()


def key_of(one: str, other: str, agreement: bytes = AGREEMENT) -> bytes:
    shared = hashlib.sha256("|".join(sorted((one, other))).encode()).digest()
    return pair_key(shared, one, other, agreement=agreement)


def members(count: int, agreement: bytes = AGREEMENT) -> dict[str, PairMasks]:
    names = [f"m{number:02}" for number in range(count)]
    return {own: PairMasks(own, {o: key_of(own, o, agreement) for o in names if o != own}) for own in names}


def masked(senders: dict[str, PairMasks], messages: dict[str, np.ndarray], place: Place) -> dict[str, np.ndarray]:
    return {
        own: messages[own] + masks.mask(place, [o for o in senders if o != own], len(messages[own]))
        for own, masks in senders.items()
    }


@pytest.mark.parametrize("count", [3, 4, 9, 25, 50])
def test_the_masked_sum_is_the_plain_sum(count):
    """Any weights, and values at both edges of what the range allows."""
    rng = np.random.default_rng(count)
    weights = rng.integers(-1000, 1000, count).tolist()
    weights[0] = 999
    largest = 2**62 // sum(map(abs, weights))
    bound = sum_bound(weights, [largest] * count, [0.0] * count, count=1)
    values = rng.integers(-largest, largest, (count, 64), endpoint=True)
    values[:, 0], values[:, 1] = largest * np.sign(weights), -largest * np.sign(weights)
    senders = members(count)
    messages = {own: weighted(value, weight) for own, value, weight in zip(senders, values, weights, strict=True)}
    sent = masked(senders, messages, Place(7, 0, "receiver"))
    found = decoded(sum(sent.values(), np.zeros(64, dtype=np.uint64)), bound)
    plain = [sum(w * int(v) for w, v in zip(weights, column, strict=True)) for column in values.T]
    assert found.tolist() == plain
    assert max(plain) > 2**61


@pytest.mark.parametrize("data", ["zeros", "edge", "equal", "counting"])
def test_all_but_two_senders_as_accomplices_see_uniform_words(data):
    """What the receiver and its accomplices can make of an honest message, without the masks that they know.

    The same test must see that a message without masks is not uniform.
    """
    count = 40_000
    values = {
        "zeros": np.zeros(count), "edge": np.full(count, 2**62), "equal": np.full(count, 5),
        "counting": np.arange(count),
    }[data].astype(np.int64)  # fmt: skip
    senders, place = members(6), Place(3, 1, "m99")
    honest = ("m01", "m04")
    messages = {own: weighted(values, 3) for own in senders}
    sent = masked(senders, messages, place)
    left = {}
    for own in honest:
        accomplices = [other for other in senders if other not in (own, *honest)]
        left[own] = sent[own] - senders[own].mask(place, accomplices, count)
        assert uniform(left[own])
    np.testing.assert_array_equal(left["m01"] + left["m04"], messages["m01"] + messages["m04"])
    assert not uniform(messages["m01"])


def uniform(words: np.ndarray) -> bool:
    """Each of the eight bytes of a word, against the uniform distribution."""
    octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    values = [stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in octets.T]
    return min(values) > 1e-8


def test_no_two_places_have_the_same_mask():
    """Over rounds, gossip steps, receivers, pairs and agreements: all masks of one word differ, and their halves."""
    seen = []
    for agreement in (AGREEMENT, hashlib.sha256(b"another").digest()):
        senders = members(4, agreement)
        for own, other in itertools.combinations(senders, 2):
            for place in itertools.starmap(Place, itertools.product(range(12), range(12), ("m00", "m01", "m2", "2"))):
                seen.append(senders[own].mask(place, [other], 2))
    words = np.concatenate(seen)
    assert len(np.unique(words)) == len(words)


def test_texts_of_places_are_never_the_same():
    masks = members(3)["m00"]
    one = masks.mask(Place(1, 11, "m1"), ["m01"], 1)
    for place in (Place(11, 1, "m1"), Place(1, 1, "1m1"), Place(1, 1, "m1")):
        assert masks.mask(place, ["m01"], 1) != one


def test_a_stream_is_chacha20_from_its_first_block(monkeypatch):
    """RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce zero, blocks 0 and 1."""
    monkeypatch.setattr("sottovoce.core.pair_masks.derived_key", lambda *_: bytes(32))
    words = PairMasks("a", {"b": bytes(32)}).mask(Place(0, 0, "c"), ["b"], 16)
    assert words.astype("<u8").tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_a_missing_message_leaves_nothing():
    """One frame short, the rest of the sum is uniform."""
    senders = members(5)
    messages = {own: weighted(np.zeros(20_000, dtype=np.int64), 1) for own in senders}
    sent = masked(senders, messages, Place(0, 0, "v"))
    del sent["m03"]
    rest = sum(sent.values(), np.zeros(20_000, dtype=np.uint64))
    assert uniform(rest)
    assert decoded(rest, 2**60) is None


def test_pairs_without_a_key_are_refused():
    with pytest.raises(InputError, match="no key of m00 and m07"):
        members(3)["m00"].mask(Place(0, 0, "v"), ["m07"], 1)
    with pytest.raises(InputError, match="a pair is two members"):
        PairMasks("m00", {"m00": bytes(32)})
