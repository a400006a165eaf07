"""A relay for members that nobody can connect to: it carries their TLS, and nobody but members uses it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from sottovoce.federation import relay as relays
from sottovoce.federation.checking import check_neighbours
from sottovoce.federation.identity import load_identity, tls_name
from sottovoce.federation.member_folder import SETTINGS
from sottovoce.federation.rehearsal import LOOPBACK, free_ports
from sottovoce.federation.relay import REGISTER, Relay, name_in
from sottovoce.federation.secure_grpc import LinkSettings
from tests.cli.test_schemas import fits
from tests.federation.clinics import NAMES, QUICK, Clinics
from tests.federation.packet_network import Line, enter_namespace, in_namespace, packet_network
from tests.federation.real_members import RealMembers
from tests.forked import Command

BEHIND = QUICK.model_copy(update={"relay": True})


@contextmanager
def relaying(agreement, port):
    """A relay in a thread of its own, until the block ends."""
    relay, ready = Relay.of([agreement]), threading.Event()
    loop = asyncio.new_event_loop()
    loop.add_signal_handler = lambda *_: None

    async def serve():
        relay.task = asyncio.current_task()
        await relay.serve(f"{LOOPBACK}:{port}", lambda _: ready.set())

    def run():
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serve())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(relay.task.cancel)
        thread.join()


def behind_a_relay(folder):
    (port,) = free_ports(1)
    clinics = Clinics(folder, addresses=(f"{LOOPBACK}:{port}",) * 3)
    return clinics, port


def test_members_that_listen_nowhere_else_play_through_a_relay(tmp_path):
    clinics, port = behind_a_relay(tmp_path)
    agreement = clinics.agree(rounds=4, graph="complete:3")
    with relaying(agreement, port) as relay:
        results = clinics.play(
            {name: lambda name=name: clinics.join(agreement, name, settings=BEHIND) for name in clinics.names}
        )
    assert [one for one in results.values() if isinstance(one, BaseException)] == []
    for name in clinics.names:
        assert [line["missing"] for line in clinics.lines(agreement, name, "attendance.jsonl")] == [[]] * 4
    assert relay.connections >= 3
    sent = sum(result["metrics"]["wire_bytes"] for result in results.values())
    assert sent < relay.carried < 3 * sent + 60_000


def test_checks_reach_members_behind_a_relay(tmp_path):
    clinics, port = behind_a_relay(tmp_path)
    agreement = clinics.agree(rounds=4, graph="complete:3")

    def checked(name):
        return check_neighbours(
            load_identity(tmp_path / name), agreement, agreement.names.index(name), bind=None, wait=20.0,
            settings=LinkSettings(through_relay=True),
        )  # fmt: skip

    with relaying(agreement, port):
        found = clinics.play({name: lambda name=name: checked(name) for name in clinics.names})
    assert {name: checks.fine for name, checks in found.items()} == dict.fromkeys(clinics.names, True)


def client_hello(name):
    """The first message of a TLS client that wants to speak to somebody."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def test_the_name_is_read_from_the_first_message_and_from_nothing_else():
    hello = client_hello("somebody.sottovoce.invalid")
    assert name_in(hello) == "somebody.sottovoce.invalid"
    assert name_in(client_hello(None)) == ""
    for length in range(len(hello)):
        with suppress(ValueError, IndexError):
            assert "somebody.sottovoce.invalid".startswith(name_in(hello[:length]))


def answered(port, *said, seconds=8.0):
    """What a relay says to whoever says something, until it hangs up."""
    with socket.create_connection((LOOPBACK, port), 5) as connection:
        connection.settimeout(seconds)
        for text in said:
            connection.sendall(text)
        heard = b""
        while chunk := connection.recv(1000):
            heard += chunk
        return heard


def test_strangers_are_hung_up_on_and_nobody_stands_in_for_a_member(tmp_path, monkeypatch):
    monkeypatch.setattr(relays, "PATIENCE", 0.5)
    clinics, port = behind_a_relay(tmp_path)
    agreement = clinics.agree(rounds=4)
    hill = tls_name(agreement.member("Hill"))
    with relaying(agreement, port) as relay:
        assert answered(port) == b""
        assert answered(port, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert answered(port, b"\x16\x03\x01\xff\xff" + bytes(65535)) == b""
        assert answered(port, client_hello(hill)) == b"", "nobody is registered"
        assert answered(port, client_hello("nobody")) == b""
        assert answered(port, b"sottovoce accept " + b"0" * 32 + b"\n") == b""
        for name in (hill, "nobody"):
            heard = answered(port, f"{REGISTER} {name}\n".encode(), b"00" * 70 + b"\n")
            assert len(heard) == 65, "a challenge, and nothing else"
        assert (relay._registered, relay._dialled, relay.connections) == ({}, {}, 0)
        until_closed(relay)


def until_closed(relay):
    for _ in range(100):
        if not relay._open:
            return
        threading.Event().wait(0.05)
    assert relay._open == 0


def test_connections_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(relays, "MOST_CONNECTIONS", 3)
    clinics, port = behind_a_relay(tmp_path)
    with relaying(clinics.agree(rounds=4), port):
        idle = [socket.create_connection((LOOPBACK, port)) for _ in range(3)]
        threading.Event().wait(0.2)
        assert answered(port, seconds=2.0) == b"", "hung up on at once"
        for one in idle:
            one.close()


def dialled(host):
    with socket.socket() as connection:
        connection.settimeout(0.5)
        return connection.connect_ex((host, 7443))


@pytest.mark.slow
def test_three_members_whose_firewalls_let_nothing_in_play_through_a_relay(tmp_path):
    """Each is in a network of its own, to which nobody can open a connection; the relay is in a fourth."""
    with packet_network(4, Line(delay=0.01)) as network:
        network.closed = frozenset({0, 1, 2})
        there = f"{network.address(3)}:7443"
        clinics = Clinics(tmp_path, NAMES[:3], (there,) * 3)
        agreement = clinics.agree(rounds=12, graph="complete:3")
        within = {name: (partial(enter_namespace, network.namespaces[at]),) for at, name in enumerate(NAMES[:3])}
        members = RealMembers(clinics, agreement, within=within)
        for name in clinics.names:
            (tmp_path / name / SETTINGS).write_text("relay = true\ngather = 60.0\n")
        place = tmp_path / "relay prints"
        place.mkdir()
        words = ("peer", "relay", members.agreement_file, "--listen", there, "--json")
        relay = Command(place, tmp_path, *words, before=partial(enter_namespace, network.namespaces[3]))
        try:
            members.start_all()
            members.check_fine()
            assert members.missed() == set()
            relay.send_signal(signal.SIGTERM)
            assert relay.wait(20.0)
            found = json.loads(relay.communicate()[0])
            fits(found, "peer-relay")
            assert (found["members"], found["connections"] >= 3, found["bytes"] > 10_000) == (3, True, True)
            assert network.refused == 0, "nobody tried"
            assert in_namespace(network.namespaces[3], lambda: dialled(network.address(0))) != 0
            assert network.refused > 0, "it would have been in vain"
        finally:
            members.end()
            relay.end()
