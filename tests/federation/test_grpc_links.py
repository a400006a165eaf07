"""Links over gRPC: who dials, what arrives, and what happens when a connection is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.checking import check_neighbour
from sottovoce.federation.connection import FrameStream
from sottovoce.federation.events import Connected, FrameRefused, Lost, link_event
from sottovoce.federation.frames import HEADER, Frame, FrameReader, Hello, Kind, Reason
from sottovoce.federation.frames import VERSION as PROTOCOL
from sottovoce.federation.grpc_links import EventLoop
from sottovoce.federation.secure_grpc import CHUNK, LinkSettings, Pauses, dials
from sottovoce.ledger.payloads import NO_TAG, Place
from tests.federation.grpc_members import AGREEMENT, PATIENCE, QUICK, Federation, RawNeighbour, payload, play, until
from tests.federation.proxy import Proxy


@pytest.mark.parametrize("listen", [(True, True), (True, False)], ids=str)
def test_members_exchange_rounds(tmp_path, listen):
    with Federation(tmp_path, listen=listen).pair() as (first, second):
        assert play(first, second, range(20)) == 20
        assert first.unacknowledged(Place(20, 0), {1}, PATIENCE) == set()
        assert first.claims()[1] >= Place(18, 0)
        assert first.receipts()[1].place == Place(19, 0)


def test_who_does_not_listen_dials_whatever_the_fingerprints(tmp_path):
    made = Federation(tmp_path, listen=(False, True))
    assert dials(made.known[0], made.known[1])
    assert not dials(made.known[1], made.known[0])
    with made.links(1, {0}) as acceptor:
        made.found_at(1, acceptor.port)
        with made.links(0, {1}) as dialler:
            assert dialler.port is None
            assert play(dialler, acceptor, range(3)) == 3


def test_of_two_that_listen_one_dials(tmp_path):
    made = Federation(tmp_path, listen=(True, True))
    assert dials(made.known[1], made.known[0])
    assert not dials(made.known[0], made.known[1])


def test_large_messages_cost_little_more_than_their_bytes(tmp_path):
    size, made = 4 << 20, Federation(tmp_path, listen=(True, False), length=4 << 20)
    with made.pair() as (first, second):
        for round in range(3):
            place = Place(round, 0)
            first.send(place, {1: payload(round, size)})
            second.send(place, {0: payload(-round, size)})
            assert first.receive(place, {1}, PATIENCE) == {1: payload(-round, size)}
            assert second.receive(place, {0}, PATIENCE) == {0: payload(round, size)}
        assert first.unacknowledged(Place(3, 0), {1}, PATIENCE) == set()
    assert 3 * size < first.wire_bytes < 1.001 * 3 * size


def test_short_frames_share_the_first_chunk_of_the_message_after_them():
    short = [Frame(AGREEMENT, Place(round, 0), 2, Kind.ACKNOWLEDGEMENT, bytes(32)) for round in range(3)]
    message = Frame(AGREEMENT, Place(3, 0), 2, Kind.MESSAGE, payload(1, 2 * CHUNK))
    chunks: deque[bytes] = deque()

    async def write(chunk):
        chunks.append(chunk)

    async def read():
        return chunks.popleft()

    async def both_ways():
        stream = FrameStream(read, write, FrameReader(AGREEMENT, 2 * CHUNK), PATIENCE)
        await stream.send(message, after=short)
        assert [len(chunk) for chunk in chunks][:-1] == [CHUNK, CHUNK]
        return [await stream.receive() for _ in range(4)]

    assert asyncio.run(both_ways()) == [*short, message]


def test_a_cut_wire_is_noticed_and_what_was_sent_meanwhile_arrives_later(tmp_path):
    quick = LinkSettings(keepalive=0.5, keepalive_timeout=0.5, handshake=1.0, first_pause=0.05, longest_pause=0.2)
    made = Federation(tmp_path, listen=(True, False), settings=quick)
    with EventLoop() as loop, made.links(0, {1}) as first, Proxy(loop, first.port) as wire:
        made.found_at(0, wire.port)
        with made.links(1, {0}) as second:
            assert second.meet(PATIENCE) == set()
            assert play(first, second, range(2)) == 2
            wire.cut()
            until(lambda: all(any(isinstance(one, Lost) for one in seen) for seen in made.events))
            first.send(Place(2, 0), {1: payload(2)})
            assert second.receive(Place(2, 0), {0}, 0.0) == {}
            wire.mend()
            assert second.receive(Place(2, 0), {0}, PATIENCE) == {0: payload(2)}
            second.send(Place(2, 0), {0: payload(-2)})
            assert first.receive(Place(2, 0), {1}, PATIENCE) == {1: payload(-2)}
            assert play(first, second, range(3, 5)) == 2


def test_a_member_that_restarts_gets_what_it_has_not_acknowledged(tmp_path):
    made = Federation(tmp_path, listen=(True, False))
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        with made.links(1, {0}) as second:
            assert play(first, second, range(2)) == 2
            assert second.unacknowledged(Place(2, 0), {0}, PATIENCE) == set()
            receipt = second.receipts()[0]
        until(lambda: any(isinstance(one, Lost) for one in made.events[0]))
        assert made.events[1] == [Connected(0)], "who closes its connections has lost nobody"
        first.send(Place(2, 0), {1: payload(2)})
        with made.links(1, {0}, at=Place(2, 0)) as again:
            assert again.receive(Place(2, 0), {0}, PATIENCE) == {0: payload(2)}
            assert again.receipts()[0] == receipt
            until(lambda: made.events[0][-1] == Connected(1))


def test_a_second_process_of_a_member_takes_the_place_of_the_first(tmp_path):
    made = Federation(tmp_path, listen=(True, False))
    with made.pair() as (first, _), made.links(1, {0}) as second:
        until(lambda: Lost(1, "another connection took its place") in made.events[0])
        assert second.meet(PATIENCE) == set()
        assert first.neighbours == {1}


def test_one_port_serves_one_process(tmp_path):
    made = Federation(tmp_path, listen=(True, True))
    with made.links(0, {1}) as first:
        taken = made.links(1, {0})
        taken._bind = f"127.0.0.1:{first.port}"
        with (
            pytest.raises(
                SottovoceError,
                match=r"cannot listen at .*: another process listens there.* give another bind in .*/settings\.toml",
            ),
            taken,
        ):
            pass


def test_pauses_grow_to_the_longest_and_begin_again():
    pauses = Pauses(LinkSettings())
    assert [next(pauses) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    pauses.reset()
    assert next(pauses) == 0.2


def test_a_check_says_how_things_are_with_a_neighbour(tmp_path):
    made = Federation(tmp_path, listen=(True, False))
    with made.pair() as (first, second):
        found = check_neighbour(made.identities[1], second.rules, made.known[0])
        assert (found.problem, found.same_agreement, found.same_version) == (None, True, True)
        assert (found.right_certificate, found.tls, found.accepted) == (True, "TLSv1.3", True)
        assert abs(found.clock_difference) < PATIENCE
        assert 0 < found.round_trip < PATIENCE
        assert play(first, second, range(2)) == 2, "a check disturbs no connection"


def test_a_proxy_of_the_environment_is_not_used_unless_it_is_asked_for(tmp_path, monkeypatch):
    made = Federation(tmp_path, listen=(True, False))
    for name in ("https_proxy", "http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with made.pair() as (first, second):
        assert play(first, second, range(2)) == 2
    proxied = replace(QUICK, through_proxy=True)
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        with made.links(1, {0}, settings=proxied) as second:
            assert second.meet(1.0) == {0}


def test_the_version_of_a_neighbour_is_told_when_it_connects_and_another_protocol_is_refused(tmp_path, monkeypatch):
    made = Federation(tmp_path, listen=(True, False))
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        with RawNeighbour(made.identities[1], made.known[0]) as older:
            older.send(Frame(AGREEMENT, Place(0, 0), 1, Kind.HELLO, Hello(None, "0.0.9").encode()).encode())
            until(lambda: Connected(1, "0.0.9") in made.events[0])
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        told = HEADER.pack(b"soto", PROTOCOL - 1, Kind.HELLO, AGREEMENT, 0, 0, 1, 41, NO_TAG)
        with RawNeighbour(made.identities[1], made.known[0]) as other:
            other.send(told)
            assert other.ended()
    assert FrameRefused(1, Reason.VERSION) in made.events[0]
    names = ("Hill", "Mercy")
    name, facts = link_event(Connected(1, "0.0.9"), names, 5)
    assert (name, facts["member"], facts["version"]) == ("OtherVersion", "Mercy", "0.0.9")
    assert link_event(Connected(1), names, 5)[0] == "Connected"
    assert link_event(FrameRefused(1, Reason.VERSION), names, 5)[0] == "OtherProtocol"
