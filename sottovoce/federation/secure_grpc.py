"""gRPC and TLS as members use them: modules import `grpc` from here, so that it speaks TLS 1.3 only.

gRPC reads its cipher suites when it is loaded, and no later. TLS 1.3 has suites of its own; the one that is left to
TLS 1.2 is for RSA keys, which no member has, so that no handshake of TLS 1.2 succeeds.

Whoever connects is recognised by the bytes of its certificate. A name in it proves nothing: an acceptor trusts the
certificates of all its neighbours, and one of them could sign a certificate with another's name. So the acceptor
compares bytes, and a dialler trusts the one certificate of the member that it dials.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sottovoce.errors import SottovoceError
from sottovoce.federation.identity import Identity, tls_name
from sottovoce.federation.member import Member

SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

if "grpc" in sys.modules and os.environ.get("GRPC_SSL_CIPHER_SUITES") != SUITES:
    raise SottovoceError(
        "this process has loaded gRPC with other settings; links between members speak TLS 1.3 only; "
        "import sottovoce.federation.secure_grpc before grpc"
    )
os.environ["GRPC_SSL_CIPHER_SUITES"] = SUITES
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc as grpc  # noqa: E402

CHUNK = 1 << 21
"""Bytes of a full chunk."""

Options: TypeAlias = list[tuple[str, int | str]]


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """Deadlines of links, in seconds. They decide when a fault is noticed, and nothing that is sent.

    A connection on which nothing arrived for `keepalive` is asked for a sign of life, and is given up at most twice
    `keepalive_timeout` later. `handshake` is how long a connection may take up to its hello, `stall` how long a chunk
    may take within a frame, `farewell` how long the last frames may take at the end. Between attempts to connect there
    are pauses that grow from `first_pause` to `longest_pause`. A proxy that the environment names (https_proxy, say) is
    used `through_proxy` only: gRPC would take it for every address. `through_relay` a member listens on its own machine
    only, and its relay brings connections there. Of `most_connections` that are open at once, each
    takes 80 kB, until strangers among them are hung up on; any further one is closed at once.
    """

    keepalive: float = 10.0
    keepalive_timeout: float = 5.0
    handshake: float = 5.0
    stall: float = 60.0
    farewell: float = 2.0
    first_pause: float = 0.2
    longest_pause: float = 5.0
    through_proxy: bool = False
    through_relay: bool = False
    most_connections: int = 2000

    def options(self) -> Options:
        """The options of gRPC that both sides of a connection need."""
        keepalive, timeout = round(1000 * self.keepalive), round(1000 * self.keepalive_timeout)
        return [
            ("grpc.keepalive_time_ms", keepalive),
            ("grpc.keepalive_timeout_ms", timeout),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.ping_timeout_ms", 2 * timeout),  # without it a stopped process is noticed after a minute
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", keepalive // 2),
            ("grpc.max_receive_message_length", CHUNK),
            ("grpc.max_send_message_length", CHUNK),
            ("grpc.max_metadata_size", 8192),
        ]

    def acceptor_options(self) -> Options:
        """The options of whoever listens: the port is its own, and strangers that say nothing are gone soon."""
        handshake = round(1000 * self.handshake)
        return [
            *self.options(),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", handshake),
            ("grpc.max_concurrent_streams", 8),
            ("grpc.max_allowed_incoming_connections", self.most_connections),
        ]

    def dialler_options(self) -> Options:
        """The options of whoever dials: every attempt is a new one, and no channel shares another's connection."""
        return [
            *self.options(),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", int(self.through_proxy)),
        ]


class Pauses:
    """Pauses between attempts: each twice as long as the one before, up to a longest, until there was a success."""

    def __init__(self, settings: LinkSettings) -> None:
        self._first, self._longest = settings.first_pause, settings.longest_pause
        self._next = self._first

    def __next__(self) -> float:
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._next = self._first


VERSION = "TLSv1.3"

SERVICE, EXCHANGE, CHECK, COMPARE = "sottovoce.Links", "Exchange", "Check", "Compare"
"""What a member that listens offers: a stream of frames, a look at how things are, and what agreements differ in."""


def method_path(name: str) -> str:
    """How gRPC calls what a member offers."""
    return f"/{SERVICE}/{name}"


def acceptor_credentials(identity: Identity, neighbours: Iterable[Member]) -> grpc.ServerCredentials:
    """Show one's own certificate; whoever connects has to show one that a neighbour's certificate vouches for.

    That lets no stranger in, but not every neighbour is who it says: see `recognise`.
    """
    roots = "".join(member.certificate for member in neighbours).encode()
    own = (identity.tls_key, identity.member.certificate.encode())
    return grpc.ssl_server_credentials([own], root_certificates=roots, require_client_auth=True)


def dialler_credentials(identity: Identity, neighbour: Member) -> grpc.ChannelCredentials:
    """Show one's own certificate, and trust the neighbour's and no other."""
    return grpc.ssl_channel_credentials(
        root_certificates=neighbour.certificate.encode(),
        private_key=identity.tls_key,
        certificate_chain=identity.member.certificate.encode(),
    )


def name_option(neighbour: Member) -> tuple[str, str]:
    """The channel option by which gRPC expects the name in a neighbour's certificate, whatever its address is."""
    return ("grpc.ssl_target_name_override", tls_name(neighbour))


def recognise(auth_context: Mapping[str, Sequence[bytes]], neighbours: Iterable[Member]) -> Member | None:
    """The neighbour whose certificate a connection shows, over TLS 1.3; None if it is none of them."""
    shown, versions = auth_context.get("x509_pem_cert", ()), auth_context.get("ssl_tls_version", ())
    if [version.decode() for version in versions] != [VERSION] or len(shown) != 1:
        return None
    try:
        certificate = ssl.PEM_cert_to_DER_cert(shown[0].decode())
    except ValueError:
        return None
    return next((member for member in neighbours if member.certificate_bytes == certificate), None)


def dials(own: Member, neighbour: Member) -> bool:
    """Whether a member opens the connection to a neighbour.

    Whoever does not listen has to; where both listen, the one with the smaller fingerprint does.
    """
    if own.listen and neighbour.listen:
        return own.fingerprint < neighbour.fingerprint
    return neighbour.listen
