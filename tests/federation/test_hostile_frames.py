"""A neighbour that sends anything at any time: nothing of it is accepted, nothing breaks, and others lose no round."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from sottovoce.federation.connection import LONGEST_QUEUE
from sottovoce.federation.frame_stream import CHUNK, FrameStream, StreamEnded
from sottovoce.federation.frames import HEADER, Frame, FrameReader, Hello, Kind, Reason, Refused
from sottovoce.federation.link_events import Connected, FrameRefused, Lost
from sottovoce.federation.mailbox import Equivocation, Mailbox
from sottovoce.ledger.places import Place
from tests.federation.grpc_members import (
    AGREEMENT,
    HELLO,
    LARGEST,
    PATIENCE,
    ROUNDS,
    Federation,
    RawNeighbour,
    frame,
    link_rules,
    payload,
    play,
    until,
)

GOOD = frame(Kind.MESSAGE, 0, payload(1))


@pytest.fixture
def made(tmp_path):
    return Federation(tmp_path, listen=(True, False, False))


ENDING = {
    "no hello": ([GOOD], Reason.FORMAT),
    "garbage": ([b"x" * 200], Reason.FORMAT),
    "another agreement": ([HELLO, frame(Kind.MESSAGE, 0, payload(1), agreement=bytes(32))], Reason.AGREEMENT),
    "another version": ([HELLO, GOOD[:4] + b"\x63" + GOOD[5:]], Reason.VERSION),
    "an unknown kind": ([HELLO, GOOD[:6] + b"\x63" + GOOD[7:]], Reason.FORMAT),
    "truncated": ([HELLO, GOOD[:-1]], Reason.FORMAT),
    "a byte at a time": ([HELLO, *(GOOD[n : n + 1] for n in range(len(GOOD)))], Reason.FORMAT),
    "empty": ([HELLO, b""], Reason.FORMAT),
    "too long": ([HELLO, frame(Kind.MESSAGE, 0, payload(1, 72))], Reason.LENGTH),
    "of boundless length": ([HELLO, GOOD[: HEADER.size - 8] + b"\xff" * 8], Reason.LENGTH),
}
"""After these a connection cannot be read further, and is closed."""

DROPPED = {
    "another's name": ([frame(Kind.MESSAGE, 0, payload(1), sender=1)], Reason.SENDER),
    "far ahead": ([frame(Kind.MESSAGE, 9, payload(1))], Reason.TOO_EARLY),
    "beyond the last round": ([frame(Kind.MESSAGE, ROUNDS, payload(1))], Reason.PLACE),
    "no such round": ([frame(Kind.MESSAGE, 2**32 - 1, payload(1))], Reason.PLACE),
    "beyond the range": ([frame(Kind.MESSAGE, 0, payload(1.01 * LARGEST))], Reason.RANGE),
    "not finite": ([frame(Kind.MESSAGE, 0, payload(float("nan")))], Reason.RANGE),
}
"""After these it goes on."""


@pytest.mark.parametrize("what", ENDING)
def test_what_cannot_be_read_ends_the_connection(made, what):
    chunks, reason = ENDING[what]
    with made.pair() as (first, second):
        with RawNeighbour(made.identities[2], made.known[0]) as hostile:
            hostile.send(*chunks)
            assert hostile.ended()
        assert FrameRefused(2, reason) in made.events[0]
        assert first.receive(Place(0, 0), {2}, 0.0) == {}
        assert play(first, second, range(2)) == 2


def test_a_refusal_ends_the_stream_also_while_the_first_chunk_is_sent(made):
    """Whether it still is, is chance: without pauses between connections some of these are."""
    made.settings = replace(made.settings, first_pause=0.0, longest_pause=0.0)
    with made.links(0, {2}) as first:
        made.found_at(0, first.port)
        for _ in range(60):
            with RawNeighbour(made.identities[2], made.known[0]) as hostile:
                hostile.send(GOOD)
                assert hostile.ended()


def test_what_is_not_accepted_is_dropped_and_the_connection_goes_on(made):
    with made.pair() as (first, second), RawNeighbour(made.identities[2], made.known[0]) as hostile:
        hostile.send(HELLO, *(chunk for chunks, _ in DROPPED.values() for chunk in chunks), GOOD)
        assert first.receive(Place(0, 0), {2}, PATIENCE) == {2: payload(1)}
        found = [event for event in made.events[0] if isinstance(event, FrameRefused)]
        assert found == [FrameRefused(2, reason) for reason in dict.fromkeys(reason for _, reason in DROPPED.values())]
        assert play(first, second, range(2)) == 2


def test_a_chunk_that_is_too_large_ends_the_stream(made):
    with made.pair() as (first, second), RawNeighbour(made.identities[2], made.known[0]) as hostile:
        hostile.send(HELLO, bytes(CHUNK + 1))
        assert hostile.ended()
        assert play(first, second, range(2)) == 2


def test_replayed_and_reordered_frames_are_used_once_and_a_changed_one_never(made):
    with made.pair() as (first, second), RawNeighbour(made.identities[2], made.known[0]) as hostile:
        other = frame(Kind.MESSAGE, 0, payload(2))
        hostile.send(HELLO, frame(Kind.MESSAGE, 1, payload(3)), GOOD, GOOD, other, other, GOOD)
        assert first.receive(Place(0, 0), {2}, PATIENCE) == {2: payload(1)}
        acknowledged = []
        while len(acknowledged) < 4:
            (one,) = FrameReader(AGREEMENT, 64).feed(hostile.answer())
            acknowledged += [one.place.round] if one.kind is Kind.ACKNOWLEDGEMENT else []
        assert acknowledged == [1, 0, 0, 0]
        (found,) = (event for event in made.events[0] if isinstance(event, Equivocation))
        assert (found.sender, found.place) == (2, Place(0, 0))
        assert first.receive(Place(1, 0), {2}, PATIENCE) == {2: payload(3)}
        hostile.send(GOOD, frame(Kind.MESSAGE, 2, payload(4)))
        assert first.receive(Place(2, 0), {2}, PATIENCE) == {2: payload(4)}
        assert play(first, second, range(3, 5)) == 2


NOT_FINITE = bytes(16 * [255])
"""Two numbers, so that one is still there after one bit was changed."""


def random_frames(seed, count):
    """Frames of all kinds: noise, frames with some bytes changed or cut off, and whole ones with random fields."""
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(list(Kind))
        content = {
            Kind.MESSAGE: NOT_FINITE + draw.randbytes(48),
            Kind.HELLO: Hello(None).encode(),
            Kind.ACKNOWLEDGEMENT: draw.randbytes(32),
        }
        places = [draw.randrange(4), draw.randrange(2**32)]
        made = bytearray(
            Frame(
                AGREEMENT, Place(draw.choice(places), 0), draw.choice([2, 2, 1, 77]), kind, content.get(kind, b"")
            ).encode()
        )
        how = draw.randrange(4)
        if how == 0:
            made = bytearray(draw.randbytes(draw.randrange(300)))
        elif how == 1:
            made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
        elif how == 2:
            del made[draw.randrange(len(made)) :]
        yield bytes(made)


async def receive_all(chunks, rules):
    """Read chunks as connections do, each new one after a refusal; how many messages were accepted and refused."""
    box, left, taken, refused = Mailbox(rules, Place(0, 0), {}), iter(chunks), 0, 0

    async def read():
        return next(left, None)

    while True:
        stream = FrameStream(read, None, FrameReader(rules.agreement, rules.payload.length), PATIENCE)
        try:
            while True:
                one = await stream.receive()
                rules.index(one.place)
                if one.kind is Kind.MESSAGE:
                    taken += box.take(one.sender, one.place, one.payload) is not None
        except Refused:
            refused += 1
        except StreamEnded:
            return taken, refused


def test_of_ten_thousand_random_frames_none_is_accepted():
    taken, refused = asyncio.run(receive_all(random_frames(0, 10_000), link_rules(0, {1, 2})))
    assert taken == 0
    assert refused > 5000


def test_random_frames_over_the_wire_break_nothing(made):
    with made.pair() as (first, second):
        for seed in range(10):
            with RawNeighbour(made.identities[2], made.known[0]) as hostile:
                hostile.send(HELLO, *random_frames(seed, 40))
                assert play(first, second, range(5 * seed, 5 * seed + 5)) == 5
        assert first.receive(Place(50, 0), {2}, 0.0) == {}
        assert Connected(2) in made.events[0]
        assert {type(event) for event in made.events[1]} == {Connected}, "the honest neighbour notices nothing"


FLOODS = {
    "the same message": [GOOD],
    "hellos": [HELLO],
    "waiting": [frame(Kind.WAITING)],
    "early messages": [frame(Kind.MESSAGE, 9, payload(1))],
    "acknowledgements": [frame(Kind.ACKNOWLEDGEMENT, 0, bytes(32))],
}


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_costs_others_no_round(made, what):
    with made.pair() as (first, second), RawNeighbour(made.identities[2], made.known[0]) as hostile:
        first.send(Place(0, 0), {2: payload(0)})
        hostile.send(HELLO)
        stop = threading.Event()

        def flood():
            while not stop.wait(0.001):
                hostile.send(*50 * FLOODS[what])

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            assert play(first, second, range(1, 31)) == 30
        finally:
            stop.set()
            flooding.join()


def test_whoever_asks_again_and_again_and_reads_nothing_loses_the_connection(made):
    made.length = CHUNK
    with made.links(0, {2}) as first:
        made.found_at(0, first.port)
        first.send(Place(0, 0), {2: payload(0, CHUNK)})
        with RawNeighbour(made.identities[2], made.known[0]) as hostile:
            hostile.send(*(2 * LONGEST_QUEUE) * [HELLO])
            until(lambda: Lost(2, "too many frames wait to be read there") in made.events[0])
            assert hostile.ended()
