"""A neighbour that sends anything at any time: nothing of it is accepted, nothing breaks, and others lose no round."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import time
from dataclasses import replace

import pytest

from sottovoce.federation.connection import LONGEST_QUEUE, FrameStream, StreamEnded
from sottovoce.federation.events import Checked, Connected, Disagreed, FrameRefused, Lost
from sottovoce.federation.frames import HEADER, Frame, FrameReader, Hello, Kind, Reason, Refused
from sottovoce.federation.grpc_links import SELDOM
from sottovoce.federation.links import Equivocation, Mailbox
from sottovoce.federation.secure_grpc import CHECK, CHUNK, COMPARE, dialler_credentials, grpc, method_path, name_option
from sottovoce.ledger.payloads import NO_TAG, Place
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
    "of boundless length": ([HELLO, GOOD[: HEADER.size - 40] + b"\xff" * 8 + NO_TAG], Reason.LENGTH),
}
"""After these a connection cannot be read further, and is closed."""

DROPPED = {
    "another's name": ([frame(Kind.MESSAGE, 0, payload(1), sender=1)], Reason.SENDER),
    "far ahead": ([frame(Kind.MESSAGE, 9, payload(1))], Reason.TOO_EARLY),
    "beyond the last round": ([frame(Kind.MESSAGE, ROUNDS, payload(1))], Reason.PLACE),
    "no such round": ([frame(Kind.MESSAGE, 2**32 - 1, payload(1))], Reason.PLACE),
    "beyond the range": ([frame(Kind.MESSAGE, 0, payload(1.01 * LARGEST))], Reason.RANGE),
    "not a number": ([frame(Kind.MESSAGE, 0, payload(float("nan")))], Reason.RANGE),
    "infinite": ([frame(Kind.MESSAGE, 0, payload(float("-inf")))], Reason.RANGE),
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
            answers = FrameReader(AGREEMENT, 64).feed(hostile.answer())
            acknowledged += [one.place.round for one in answers if one.kind is Kind.ACKNOWLEDGEMENT]
        assert acknowledged == [1, 0, 0, 0]
        (found,) = (event for event in made.events[0] if isinstance(event, Equivocation))
        assert (found.sender, found.place) == (2, Place(0, 0))
        assert first.receive(Place(1, 0), {2}, PATIENCE) == {2: payload(3)}
        hostile.send(GOOD, frame(Kind.MESSAGE, 2, payload(4)))
        assert first.receive(Place(2, 0), {2}, PATIENCE) == {2: payload(4)}
        assert play(first, second, range(3, 5)) == 2


NOT_FINITE = bytes(16 * [255])
"""Two numbers, so that one is still there after one bit was changed."""


def random_frames(seed, count, whole=0.25):
    """Frames of all kinds: noise, frames with some bytes changed or cut off, and a share of whole ones."""
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
        how = 3 if draw.random() < whole else draw.randrange(3)
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


@pytest.mark.slow
def test_of_ten_thousand_random_frames_over_the_wire_none_is_accepted(made, monkeypatch):
    """Those that were read are counted: after one that is no frame the rest of a connection is not."""
    made.settings = replace(made.settings, first_pause=0.0, longest_pause=0.0)
    monkeypatch.setattr("sottovoce.federation.connection.REPEATED_SECONDS", 0.0)
    read, taken, seed = [0], [0], 0
    feed, take = FrameReader.feed, Mailbox.take

    def counted(reader, chunk):
        read[0] += 1
        return feed(reader, chunk)

    def accepted(box, sender, *more):
        receipt = take(box, sender, *more)
        taken[0] += sender == 2
        return receipt

    with made.pair() as (first, second), monkeypatch.context() as patched:
        patched.setattr(FrameReader, "feed", counted)
        patched.setattr(Mailbox, "take", accepted)
        while read[0] < 10_000:
            with RawNeighbour(made.identities[2], made.known[0]) as hostile:
                hostile.send(HELLO, *random_frames(seed, 200, whole=0.98), b"no frame")
                assert hostile.ended()
            if seed < ROUNDS:
                assert play(first, second, range(seed, seed + 1)) == 1
            seed += 1
        assert taken[0] == 0
        assert {type(event) for event in made.events[1]} == {Connected}, "the honest neighbour notices nothing"


@pytest.mark.parametrize("what", [CHECK, COMPARE])
def test_questions_without_end_cost_no_round_and_fill_no_log(made, what):
    with made.pair() as (first, second):
        target, asked, stop = made.known[0], [0], threading.Event()
        options = [name_option(target), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(target.address, dialler_credentials(made.identities[2], target), options) as channel:
            ask = channel.stream_stream(method_path(what))

            def flood():
                for number in itertools.count():
                    if stop.is_set():
                        return
                    question = HELLO if what == CHECK else json.dumps({f"key {number}": "x"}).encode()
                    assert list(ask(iter([question]), timeout=PATIENCE))
                    asked[0] += 1

            flooding = [threading.Thread(target=flood) for _ in range(4)]
            for one in flooding:
                one.start()
            began = time.monotonic()
            try:
                assert play(first, second, range(1, 31)) == 30
                until(lambda: asked[0] > 50)
            finally:
                stop.set()
                for one in flooding:
                    one.join()
            reported = [event for event in made.events[0] if isinstance(event, Checked | Disagreed)]
            assert 1 <= len(reported) <= 1 + (time.monotonic() - began) / SELDOM


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
