"""Whoever has no certificate of the agreement gets nothing in and disturbs nobody."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent import futures
from dataclasses import replace

import pytest

from sottovoce.federation.checking import _context, check_neighbour, probe_tls
from sottovoce.federation.events import Connected, FrameRefused, StrangerRefused
from sottovoce.federation.frames import Kind, Reason
from sottovoce.federation.grpc_links import EventLoop
from sottovoce.federation.identity import time_problem
from sottovoce.federation.secure_grpc import EXCHANGE, SERVICE, LinkSettings, acceptor_credentials, grpc, recognise
from sottovoce.ledger.payloads import Place
from tests.federation.certificates import new_member, with_certificate
from tests.federation.grpc_members import HELLO, PATIENCE, Federation, RawNeighbour, frame, payload, play, until
from tests.federation.proxy import Proxy

MESSAGE = frame(Kind.MESSAGE, 0, payload(1))

STRANGERS = {
    "expired": lambda own, other: with_certificate(own, days=-1),
    "another key for the same name": lambda own, other: with_certificate(own),
    "signed by another member": lambda own, other: with_certificate(own, signed_by=other),
    "certificate of another, own key": lambda own, other: replace(own, member=other.member),
    "a member of another agreement": lambda own, other: new_member(own.folder.parent, "Elsewhere"),
}


@pytest.fixture
def made(tmp_path):
    return Federation(tmp_path, listen=(True, False, False))


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_nothing_in_and_rounds_go_on(made, kind):
    with made.pair() as (first, second):
        stranger = STRANGERS[kind](made.identities[2], made.identities[1])
        with RawNeighbour(stranger, made.known[0]) as hostile:
            hostile.send(HELLO, MESSAGE)
            assert play(first, second, range(3)) == 3
            assert hostile.answer() is None
        assert 2 not in first.claims()


def test_a_member_whose_certificate_could_sign_others_speaks_for_itself_alone(tmp_path):
    """TLS lets this stranger in, because a neighbour vouches for it; its bytes give it away."""
    made = Federation(tmp_path, listen=(True, False, False))
    made.identities[1] = with_certificate(made.identities[1], ca=True)
    made.known[1] = made.identities[1].member
    with made.pair() as (first, second):
        signed = with_certificate(made.identities[2], signed_by=made.identities[1])
        with RawNeighbour(signed, made.known[0]) as hostile:
            hostile.send(HELLO, MESSAGE)
            assert hostile.answer() is None
        assert made.events[0] == [Connected(1), StrangerRefused()]
        assert play(first, second, range(3)) == 3
        assert 2 not in first.claims()


def test_a_member_that_is_no_neighbour_gets_nothing_in(made):
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        with made.links(1, {0}) as second, RawNeighbour(made.identities[2], made.known[0]) as hostile:
            hostile.send(HELLO, MESSAGE)
            assert hostile.answer() is None
            assert play(first, second, range(3)) == 3
        assert first.claims().keys() == {1}


def test_grpc_that_was_loaded_with_other_settings_is_refused():
    code = "import grpc; import sottovoce.federation.secure_grpc"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=without_suites()
    )
    assert done.stderr.endswith("TLS 1.3 only; import sottovoce.federation.secure_grpc before grpc\n")


def without_suites():
    return {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}


def test_without_a_certificate_nobody_is_heard(made):
    with made.pair() as (first, _):
        channel = grpc.secure_channel(
            f"localhost:{first.port}", grpc.ssl_channel_credentials(made.known[0].certificate.encode())
        )
        with channel, pytest.raises(grpc.RpcError):
            next(channel.stream_stream("/sottovoce.Links/Exchange")(iter([HELLO]), timeout=PATIENCE))
        assert 2 not in first.claims()


def test_a_member_of_another_agreement_exchanges_no_message_and_both_say_so(made):
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        other = made.links(1, {0})
        other.rules = replace(other.rules, agreement=bytes(32))
        with other:
            other.send(Place(0, 0), {0: payload(1)})
            until(lambda: all(FrameRefused(1 - one, Reason.AGREEMENT) in made.events[one] for one in (0, 1)))
            assert (first.claims(), other.claims()) == ({}, {})
            assert first.receive(Place(0, 0), {1}, 0.0) == {}


def client(identity, version):
    context = _context(identity)
    context.minimum_version = context.maximum_version = version
    return context


def test_tls_1_2_is_refused_by_whoever_listens(made):
    with made.pair() as (first, _):
        for version, taken in ((ssl.TLSVersion.TLSv1_3, True), (ssl.TLSVersion.TLSv1_2, False)):
            with socket.create_connection(("127.0.0.1", first.port), PATIENCE) as connection:
                try:
                    with client(made.identities[1], version).wrap_socket(connection) as secured:
                        assert bool(secured.recv(1)) == taken
                except ssl.SSLError:
                    assert not taken


def test_tls_1_2_is_not_recognised_even_where_it_is_spoken(made):
    shown = {"x509_pem_cert": [made.known[1].certificate.encode()], "ssl_tls_version": [b"TLSv1.3"]}
    assert recognise(shown, made.known) is made.known[1]
    assert recognise({**shown, "ssl_tls_version": [b"TLSv1.2"]}, made.known) is None
    assert recognise({"ssl_tls_version": [b"TLSv1.3"]}, made.known) is None
    assert recognise({**shown, "x509_pem_cert": [b"nonsense"]}, made.known) is None
    assert recognise(shown, made.known[2:]) is None


class TlsServer:
    """A listener of the standard library that shakes hands once and hangs up."""

    def __init__(self, identity, version):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.maximum_version = version
        self._context.set_alpn_protocols(["h2"])
        certificate = identity.folder / "certificate.pem"
        certificate.write_bytes(identity.tls_key + identity.member.certificate.encode())
        self._context.load_cert_chain(certificate)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.outcome = futures.Future()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        connection, _ = self._socket.accept()
        try:
            with self._context.wrap_socket(connection, server_side=True) as secured:
                self.outcome.set_result(secured.version())
                secured.recv(1)
        except OSError:
            if not self.outcome.done():
                self.outcome.set_result(None)
        self._socket.close()


@pytest.mark.parametrize(
    ("version", "whose", "taken"), [("TLSv1_2", 0, None), ("TLSv1_3", 2, None), ("TLSv1_3", 0, "TLSv1.3")]
)
def test_whoever_dials_speaks_tls_1_3_with_the_right_member_only(made, version, whose, taken):
    server = TlsServer(made.identities[whose], ssl.TLSVersion[version])
    made.found_at(0, server.port)
    with made.links(1, {0}):
        assert server.outcome.result(PATIENCE) == taken
    assert made.events[1] == []


def test_a_listener_that_cancels_every_stream_is_dialled_again(made):
    """gRPC raises `CancelledError` here for a stream that the other side has cancelled."""
    refused = threading.Event()

    def cancel(_, context):
        refused.set()
        context.abort(grpc.StatusCode.CANCELLED, "")

    hostile = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {EXCHANGE: grpc.stream_stream_rpc_method_handler(cancel)}
    hostile.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = hostile.add_secure_port("127.0.0.1:0", acceptor_credentials(made.identities[0], [made.known[1]]))
    hostile.start()
    with EventLoop() as loop, Proxy(loop, port) as wire:
        made.found_at(0, wire.port)
        with made.links(1, {0}) as second:
            assert refused.wait(PATIENCE)
            hostile.stop(None).wait(PATIENCE)
            with made.links(0, {1}) as first:
                wire.target = first.port
                assert second.meet(PATIENCE) == set()
                assert play(first, second, range(2)) == 2


def test_idle_and_dripping_connections_are_hung_up_on_and_rounds_go_on(made):
    made.settings = replace(made.settings, handshake=1.0)
    with made.pair() as (first, second):
        idle = [socket.create_connection(("127.0.0.1", first.port), PATIENCE) for _ in range(100)]
        dripping = socket.create_connection(("127.0.0.1", first.port), PATIENCE)
        stop = threading.Event()

        def drip():
            try:
                while not stop.wait(0.1):
                    dripping.sendall(b"\x16")
            except OSError:
                pass

        dripper = threading.Thread(target=drip)
        dripper.start()
        assert play(first, second, range(50)) == 50
        assert all(connection.recv(1) == b"" for connection in idle)
        assert hung_up(dripping)
        stop.set()
        dripper.join()
        for connection in (*idle, dripping):
            connection.close()


def hung_up(connection):
    try:
        while connection.recv(100):
            pass
    except ConnectionError:
        pass
    return True


def test_of_strangers_that_say_nothing_so_many_are_let_in_and_no_more(made):
    """Each takes memory until it is hung up on."""
    settings = LinkSettings(handshake=10 * PATIENCE, most_connections=20)
    with made.links(0, {1}, settings=settings) as first, contextlib.ExitStack() as until_end:
        made.found_at(0, first.port)
        with made.links(1, {0}) as second:
            assert second.meet(PATIENCE) == set()
            idle = [until_end.enter_context(socket.create_connection(("127.0.0.1", first.port))) for _ in range(60)]
            deadline = time.monotonic() + PATIENCE
            while len(over := select.select(idle, [], [], 0.1)[0]) < 41 and time.monotonic() < deadline:
                pass
            assert len(over) == 41, "twenty are open, with the neighbour's"
            assert play(first, second, range(3)) == 3


def test_a_probe_names_what_is_wrong(made):
    found = probe_tls(made.identities[1], made.known[0], 1.0)
    assert (found.reachable, found.problem) == (False, "127.0.0.1:1 cannot be reached: Connection refused.")
    with made.pair() as (_, second):
        stranger = with_certificate(made.identities[1])
        found = probe_tls(stranger, made.known[0], PATIENCE)
        assert (found.right_certificate, found.accepted) == (True, False)
        assert "does not accept this member's certificate" in found.problem
        wrong = made.known[0].model_copy(update={"certificate": made.known[2].certificate})
        found = check_neighbour(made.identities[1], second.rules, wrong)
        assert (found.right_certificate, found.same_agreement) == (False, None)
        assert found.problem.endswith("shows another certificate than the agreement.")
        found = check_neighbour(made.identities[1], replace(second.rules, agreement=bytes(32)), made.known[0])
        assert (found.accepted, found.same_agreement) == (True, False)
        assert found.problem.endswith("has another agreement; compare the two files.")
    silent = socket.create_server(("127.0.0.1", 0))
    made.found_at(0, silent.getsockname()[1])
    found = probe_tls(made.identities[1], made.known[0], 0.2)
    assert (found.reachable, found.right_certificate) == (True, None)
    silent.close()
    old = TlsServer(made.identities[0], ssl.TLSVersion.TLSv1_2)
    made.found_at(0, old.port)
    assert probe_tls(made.identities[1], made.known[0], PATIENCE).problem.endswith(
        "speaks TLSv1.2; members speak TLSv1.3."
    )


@pytest.mark.parametrize("whose", ["own", "neighbour's"])
def test_a_certificate_whose_time_is_over_is_reported_as_such(made, whose):
    """Both sides close such a connection without a reason."""
    expired = with_certificate(made.identities[0 if whose == "neighbour's" else 1], days=-1)
    identities = {0: made.identities[0], 1: made.identities[1], (0 if whose == "neighbour's" else 1): expired}
    made.identities[0], made.known[0], made.known[1] = identities[0], identities[0].member, identities[1].member
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        probe = probe_tls(identities[1], made.known[0], PATIENCE)
    assert probe.problem is not None
    assert f"The certificate of {expired.member.name} ended on 2" in probe.problem
    assert "the clock of this machine says 2" in probe.problem
    assert time_problem(made.identities[2].member) is None
