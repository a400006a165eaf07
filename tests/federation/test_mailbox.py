"""The mailbox: one payload for each place at hand, of the right length and range, and bounded memory."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from sottovoce import algorithm, push
from sottovoce.federation.frames import Reason, Refused
from sottovoce.federation.link_rules import AHEAD, LinkRules, PayloadRule, link_rules
from sottovoce.federation.links import REMEMBERED, Mailbox
from sottovoce.ledger.payloads import Place, Receipt

DTYPE = np.dtype(np.float32)
RULES = LinkRules(
    agreement=bytes(32),
    member=0,
    senders=frozenset({1, 2}),
    receivers=frozenset({1, 3}),
    rounds=100,
    steps=2,
    payload=PayloadRule(8, DTYPE, -10.0, 10.0),
)


AT = Place(5, 0)

TAG = bytes(range(32))


def mailbox(at=AT):
    return Mailbox(RULES, at, {})


def row(*numbers):
    return np.array(numbers, dtype=DTYPE).tobytes()


def reason_of(act):
    with pytest.raises(Refused) as refusal:
        act()
    return refusal.value.reason


def test_a_payload_is_kept_for_its_place_and_acknowledged():
    box, payload = mailbox(), row(1, -2)
    expected = Receipt(Place(5, 0), hashlib.sha256(payload).digest(), TAG)
    assert box.take(1, Place(5, 0), payload, tag=TAG) == expected
    assert box.at_hand(Place(5, 0), {1, 2}) == {1: payload}
    assert box.at_hand(Place(5, 1), {1, 2}) == {}


def test_the_same_again_is_acknowledged_another_is_equivocation_and_never_used():
    box, place = mailbox(), Place(5, 0)
    first = box.take(1, place, row(1, 2))
    assert box.take(1, place, row(1, 2)) == first
    assert reason_of(lambda: box.take(1, place, row(1, 3))) is Reason.EQUIVOCATION
    assert reason_of(lambda: box.take(1, place, row(9e9, 3))) is Reason.EQUIVOCATION
    assert box.at_hand(place, {1}) == {1: row(1, 2)}
    (found,) = box.equivocations.values()
    assert (found.sender, found.place, found.first) == (1, place, first.digest)
    box.advance(Place(6, 0))
    assert reason_of(lambda: box.take(1, place, row(1, 3))) is Reason.EQUIVOCATION


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (row(1), Reason.LENGTH),
        (row(1, 2, 3), Reason.LENGTH),
        (b"", Reason.LENGTH),
        (row(1, math.nan), Reason.RANGE),
        (row(math.inf, 0), Reason.RANGE),
        (row(0, -math.inf), Reason.RANGE),
        (row(10.001, 0), Reason.RANGE),
        (row(0, -10.001), Reason.RANGE),
    ],
)
def test_wrong_lengths_and_values_are_refused_and_the_place_stays_free(payload, reason):
    box = mailbox()
    assert reason_of(lambda: box.take(1, Place(5, 0), payload)) is reason
    assert box.take(1, Place(5, 0), row(10, -10)) is not None


def test_an_agreed_range_need_not_be_symmetric():
    rule = PayloadRule(8, DTYPE, 0.0, 1.0)
    rule.check(row(0, 1))
    assert reason_of(lambda: rule.check(row(0, -0.1))) is Reason.RANGE


def test_without_an_agreed_range_values_are_still_finite():
    rule = PayloadRule(8, DTYPE)
    rule.check(row(np.finfo(DTYPE).max, 0))
    assert reason_of(lambda: rule.check(row(math.inf, 0))) is Reason.RANGE


def test_weights_of_push_sum_lie_above_zero_and_below_their_bound():
    rule = PayloadRule(8, DTYPE, -1.0, 1.0, largest_weight=5.0)
    rule.check(row(1, 5))
    for wrong in (row(1, 0), row(1, -1), row(1, 5.1), row(1, math.nan), row(1.1, 1)):
        assert reason_of(lambda wrong=wrong: rule.check(wrong)) is Reason.RANGE


@pytest.mark.parametrize("compression", ["rand:0.5", "gsgd:4", "top:0.5"])
def test_compressed_payloads_are_of_one_length_and_decode_to_values_in_range(compression):
    method = algorithm("dp-csgp", sigma=1.0, compression=compression)
    rules = link_rules(
        bytes(32), method, push("exponential:6"), 0, rounds=9, dimension=7, precision=DTYPE, message_range=(-10.0, 10.0)
    )
    rng, rule = np.random.default_rng(2), rules.payload

    def encoded(values):
        streams = [np.random.default_rng(1)]
        return method.compression.encode(values.astype(DTYPE)[None], streams).tobytes()

    rule.check(encoded(rng.uniform(-2, 2, size=7)))
    assert reason_of(lambda: rule.check(encoded(rng.uniform(-2, 2, size=7))[:-1])) is Reason.LENGTH
    with np.errstate(all="ignore"):
        assert reason_of(lambda: rule.check(encoded(np.full(7, 1e4)))) is Reason.RANGE
    refused = 0
    for _ in range(500):
        try:
            rule.check(rng.bytes(rule.length))
        except Refused:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Place(6, 1), Reason.TOO_EARLY),
        (Place(99, 1), Reason.TOO_EARLY),
        (Place(100, 0), Reason.PLACE),
        (Place(5, 2), Reason.PLACE),
    ],
)
def test_places_that_are_not_at_hand_are_refused(place, reason):
    assert reason_of(lambda: mailbox().take(1, place, row(1, 2))) is reason


def test_who_does_not_send_to_this_member_is_refused():
    assert reason_of(lambda: mailbox().take(3, Place(5, 0), row(1, 2))) is Reason.STRANGER
    assert reason_of(lambda: mailbox().take(7, Place(5, 0), row(1, 2))) is Reason.STRANGER


def test_what_is_two_places_ahead_is_acknowledged_when_one_is_left_before_it():
    box = mailbox()
    assert box.take(1, Place(5, 1), row(1, 2)) is not None
    assert box.take(1, Place(6, 0), row(3, 4)) is None
    assert [(sender, receipt.place) for sender, receipt in box.advance(Place(5, 1))] == [(1, Place(6, 0))]
    assert box.advance(Place(6, 0)) == []
    assert box.at_hand(Place(6, 0), {1}) == {1: row(3, 4)}


def test_what_comes_late_is_acknowledged_and_not_used():
    box = mailbox()
    assert box.take(1, Place(4, 1), row(1, 2)) is not None
    assert box.at_hand(Place(4, 1), {1}) == {}
    assert reason_of(lambda: box.take(1, Place(4, 1), row(1, 3))) is Reason.EQUIVOCATION


def test_who_came_too_early_is_asked_again_once_when_its_message_is_at_hand():
    box = mailbox()
    for place in (Place(8, 0), Place(7, 1), Place(8, 1)):
        assert reason_of(lambda place=place: box.take(2, place, row(1, 2))) is Reason.TOO_EARLY
    box.advance(Place(6, 0))
    assert box.wanted_again({1, 2}) == set()
    box.advance(Place(6, 1))
    assert box.wanted_again({1}) == set()
    assert box.wanted_again({1, 2}) == {2}
    assert box.wanted_again({1, 2}) == set()


def test_memory_is_bounded_whatever_is_sent():
    box, rng = mailbox(Place(0, 0)), np.random.default_rng(3)
    for at in range(150):
        box.advance(Place(*divmod(at, 2)))
        for _ in range(20):
            try:
                place = Place(*divmod(max(0, at + int(rng.integers(-80, 9))), 2))
                box.take(int(rng.integers(1, 3)), place, row(*rng.normal(size=2)))
            except Refused:
                pass
        for sender in (1, 2):
            assert len(box._payloads[sender]) <= AHEAD + 1
            assert len(box._receipts[sender]) <= AHEAD + 2 + REMEMBERED
    assert box.equivocations.keys() == {1, 2}


def test_the_newest_receipt_stays_known_however_long_it_is_past():
    box = mailbox(Place(0, 0))
    receipt = box.take(1, Place(0, 1), row(1, 2))
    box.advance(Place(90, 0))
    assert box.newest_receipt(1) == receipt
    assert box.newest_receipt(2) is None
    assert Mailbox(RULES, Place(90, 0), {1: receipt}).newest_receipt(1) == receipt
