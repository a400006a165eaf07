"""One member's side of its links: what every carrier does alike, whoever sends what."""

from __future__ import annotations

import hashlib
import hmac
from threading import Thread

import numpy as np
import pytest
import torch

from sottovoce import algorithm, metropolis
from sottovoce.federation.frames import ABSENCE, Frame, Hello, Kind, Reason, Refused
from sottovoce.federation.link_rules import KEPT, LinkRules, PayloadRule
from sottovoce.federation.links import FORGED, Links
from sottovoce.ledger.payloads import FIRST, NO_TAG, Place, Receipt
from tests.federation.members import AGREEMENT, Federation

RULES = LinkRules(
    agreement=AGREEMENT,
    member=0,
    senders=frozenset({1, 2}),
    receivers=frozenset({1, 3}),
    rounds=50,
    steps=1,
    payload=PayloadRule(8, np.dtype(np.float64)),
)
PAYLOAD = np.array([2.5]).tobytes()
KEY = b"of the member"
DIGEST = hashlib.sha256(PAYLOAD).digest()


class Noting(Links):
    """Links that note what they transmit."""

    def __init__(self, **more):
        super().__init__(RULES, receipt_key=KEY, **more)
        self.transmitted, self.tags = [], {}

    def transmit(self, neighbour, frame):
        self.transmitted.append((neighbour, frame.kind, frame.place))
        self.tags[frame.place, neighbour] = frame.tag


def frame(kind, place, sender, payload=b"", tag=NO_TAG):
    return Frame(AGREEMENT, place, sender, kind, payload, tag)


def hello(place, sender, receipt=None):
    return frame(Kind.HELLO, place, sender, Hello(receipt).encode(), NO_TAG if receipt is None else receipt.tag)


def receipt(receiver, place, digest=DIGEST):
    """As the member that has sent something tagged it, by whatever process."""
    return Receipt(place, digest, Noting()._outbox.tag(receiver, place, digest))


def acknowledgement(receiver, place, digest=DIGEST):
    return frame(Kind.ACKNOWLEDGEMENT, place, receiver, digest, receipt(receiver, place, digest).tag)


def message(place, sender, payload=PAYLOAD):
    return frame(Kind.MESSAGE, place, sender, payload)


def test_messages_go_to_those_that_said_hello_and_to_others_when_they_do():
    end = Noting()
    end.connected(1)
    end.arrived(1, hello(FIRST, 1))
    end.send(FIRST, {1: PAYLOAD, 3: PAYLOAD})
    assert end.transmitted == [(1, Kind.HELLO, FIRST), (1, Kind.MESSAGE, FIRST)]
    end.arrived(3, hello(FIRST, 3))
    assert end.transmitted[2:] == [(3, Kind.MESSAGE, FIRST)]


def test_nobody_waits_for_messages_that_their_sender_keeps_no_more():
    """A member that comes back may find that the others are faster than it is: it goes on, and joins them later."""
    end, waited = Noting(), []
    end.arrived(1, hello(Place(KEPT, 0), 1))
    end.arrived(2, message(FIRST, 2))
    waiting = Thread(target=lambda: waited.append(end.receive(FIRST, {1, 2}, 60.0)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "it may still send them"
    end.arrived(1, hello(Place(KEPT + 1, 0), 1))
    waiting.join(20.0)
    assert [dict(heard) for heard in waited] == [{2: PAYLOAD}]


def test_who_is_absent_says_so_also_to_those_that_come_later_and_is_not_waited_for():
    end = Noting()
    end.arrived(1, hello(FIRST, 1))
    end.abstain(Place(1, 0), Place(3, 0))
    end.arrived(3, hello(FIRST, 3))
    end.arrived(2, hello(FIRST, 2))  # which only sends
    assert end.transmitted == [(1, Kind.ABSENT, Place(3, 0)), (3, Kind.ABSENT, Place(3, 0))]
    end.arrived(1, frame(Kind.ABSENT, Place(3, 0), 1, ABSENCE.pack(1, 0)))
    end.arrived(2, message(Place(1, 0), 2))
    assert [end.absent(Place(round, 0)) for round in range(4)] == [set(), {1}, {1}, set()]
    assert dict(end.receive(Place(1, 0), {1, 2}, 1000.0)) == {2: PAYLOAD}
    with pytest.raises(Refused) as refusal:
        end.arrived(1, frame(Kind.ABSENT, Place(51, 0), 1, ABSENCE.pack(1, 0)))
    assert refusal.value.reason is Reason.PLACE


def test_who_comes_back_gets_what_it_does_not_have_even_if_it_was_acknowledged():
    end = Noting()
    for round in range(3):
        end.send(Place(round, 0), {1: PAYLOAD})
        end.arrived(1, acknowledgement(1, Place(round, 0)))
    end.lost(1)
    end.arrived(1, hello(Place(1, 0), 1))
    assert end.transmitted == [(1, Kind.MESSAGE, Place(1, 0)), (1, Kind.MESSAGE, Place(2, 0))]
    end.arrived(1, hello(Place(1, 0), 1, receipt(1, Place(1, 0))))
    assert end.transmitted[2:] == [(1, Kind.MESSAGE, Place(2, 0))]
    end.forget(Place(3, 0))
    end.arrived(1, hello(Place(1, 0), 1))
    assert len(end.transmitted) == 3


def test_acknowledgements_count_only_for_the_bytes_that_were_sent():
    end = Noting()
    end.send(FIRST, {1: PAYLOAD, 3: PAYLOAD})
    end.arrived(1, acknowledgement(1, FIRST))
    end.arrived(3, acknowledgement(3, FIRST, bytes(32)))
    assert end.unacknowledged(Place(1, 0), {1, 3}, 0.0) == {3}
    assert end.receipts() == {1: receipt(1, FIRST), 3: receipt(3, FIRST, bytes(32))}


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.ACKNOWLEDGEMENT])
@pytest.mark.parametrize(
    "forged",
    [
        Receipt(Place(9, 0), DIGEST, NO_TAG),
        Receipt(Place(9, 0), DIGEST, receipt(1, FIRST).tag),
        Receipt(FIRST, bytes(32), receipt(1, FIRST).tag),
        receipt(3, FIRST),
        Receipt(FIRST, DIGEST, hmac.digest(b"of another", DIGEST, "sha256")),
    ],
)
def test_a_receipt_that_this_member_never_tagged_is_its_neighbours_fault_and_changes_nothing(kind, forged):
    end = Noting()
    end.arrived(1, hello(FIRST, 1))
    end.send(FIRST, {1: PAYLOAD, 3: PAYLOAD})
    told = frame(kind, forged.place, 1, forged.digest, forged.tag)
    told = hello(forged.place, 1, forged) if kind is Kind.HELLO else told
    for _ in range(FORGED):
        assert not end.is_distrusted(1)
        with pytest.raises(Refused) as refusal:
            end.arrived(1, told)
        assert refusal.value.reason is Reason.RECEIPT
    assert (end.receipts(), end.claims()) == ({}, {1: FIRST})
    assert end.unacknowledged(Place(1, 0), {1}, 0.0) == {1}
    assert [one for one in (1, 2, 3) if end.is_distrusted(one)] == [1]


def test_a_receipt_for_what_this_process_never_sent_is_kept_for_the_ledger():
    end = Noting(at=Place(4, 0))
    end.arrived(1, hello(Place(9, 0), 1, receipt(1, Place(8, 0))))
    assert end.receipts() == {1: receipt(1, Place(8, 0))}
    assert end.claims() == {1: Place(9, 0)}


def test_who_waits_is_known_until_it_goes_on_or_is_lost():
    end = Noting()
    end.arrived(1, frame(Kind.WAITING, FIRST, 1))
    end.arrived(2, frame(Kind.WAITING, FIRST, 2))
    end.arrived(1, message(FIRST, 1))
    assert end.waiting() == {1: FIRST, 2: FIRST}
    end.arrived(1, message(Place(1, 0), 1))
    end.lost(2)
    assert end.waiting() == {}


def test_what_an_earlier_process_received_is_in_its_hello():
    end, seen = Noting(at=Place(4, 0), seen={1: receipt(0, Place(3, 0))}), []
    end.transmit = lambda neighbour, frame: seen.append(frame)
    end.connected(1)
    assert seen == [hello(Place(4, 0), 0, receipt(0, Place(3, 0)))]


@pytest.mark.parametrize(
    ("stream", "sent", "reason"),
    [
        (1, message(FIRST, 2), Reason.SENDER),
        (7, message(FIRST, 7), Reason.STRANGER),
        (3, message(FIRST, 3), Reason.STRANGER),
        (1, Frame(bytes(32), FIRST, 1, Kind.MESSAGE, PAYLOAD), Reason.AGREEMENT),
        (1, message(Place(50, 0), 1), Reason.PLACE),
        (1, message(Place(0, 1), 1), Reason.PLACE),
        (1, frame(Kind.WAITING, Place(51, 0), 1), Reason.PLACE),
        (1, message(Place(3, 0), 1), Reason.TOO_EARLY),
        (1, message(FIRST, 1, bytes(7)), Reason.LENGTH),
        (1, message(FIRST, 1, np.array([np.nan]).tobytes()), Reason.RANGE),
        (1, frame(Kind.HELLO, FIRST, 1, b"short"), Reason.FORMAT),
    ],
)
def test_what_is_refused_leaves_no_trace_in_the_mailbox(stream, sent, reason):
    end = Noting()
    with pytest.raises(Refused) as refusal:
        end.arrived(stream, sent)
    assert refusal.value.reason is reason
    assert end.receive(FIRST, {1, 2}, 0.0) == {}
    assert end.transmitted == []


def test_waiting_ends_when_the_message_comes_and_not_before():
    end = Noting()
    sender = Thread(target=lambda: end.arrived(1, message(FIRST, 1)))
    waiter = Thread(target=lambda: heard.update(end.receive(FIRST, {1}, 60.0)))
    heard = {}
    waiter.start()
    sender.start()
    waiter.join(30.0)
    assert heard == {1: PAYLOAD}


def test_waiting_ends_with_patience_and_neighbours_were_told():
    end = Noting()
    assert end.receive(FIRST, {1}, 0.02) == {}
    assert end.transmitted == [(1, Kind.WAITING, FIRST), (3, Kind.WAITING, FIRST)]
    assert end.meet(0.01) == {1, 2, 3}


@pytest.mark.parametrize("stream", [3, 0], ids=["a stranger's connection", "a neighbour's connection"])
def test_honest_members_lose_nothing_by_10_000_random_frames(stream):
    """Over a connection of its own a neighbour can spoil its own messages, and stop nobody."""
    members = Federation(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:6"), rounds=8)
    rng = np.random.default_rng(5)
    kinds = list(Kind)

    def flood(count):
        for _ in range(count):
            kind = kinds[rng.integers(4)]
            size = [43, 24, 32, 0][kind - 1] if rng.random() < 0.7 else int(rng.integers(80))
            place = Place(int(rng.integers(10)), int(rng.integers(2)))
            sender = stream if rng.random() < 0.8 else int(rng.integers(6))
            agreement = AGREEMENT if rng.random() < 0.9 else rng.bytes(32)
            members.network.hand_over(stream, 1, Frame(agreement, place, sender, kind, rng.bytes(size)))

    def with_flood():
        members.seconds[1] = 1.0
        return members.join(1)

    members.network.clock.later(0.0, lambda: flood(2_000))
    for second in range(8):
        members.network.clock.later(second + 0.5, lambda: flood(1_000))
    ends = members.run({1: with_flood})
    assert all(played == list(range(8)) for played in members.rounds_played.values())
    assert sum(members.network.refused.values()) > 5_000
    if stream == 3:
        assert torch.equal(torch.cat([ends[member] for member in range(6)]), members.simulated())
        assert members.missed() == set()
