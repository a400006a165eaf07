"""A look at a neighbour's address by TLS alone, because gRPC says no more than that a socket was closed.

It finds out whether the address answers, whose certificate is there, and whether this member's own is accepted.
"""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass

from sottovoce.federation.identity import Identity
from sottovoce.federation.member import Member
from sottovoce.federation.tls import VERSION


@dataclass(frozen=True)
class TlsProbe:
    """What a TLS handshake with a neighbour showed; `problem` is one sentence, or None where all is well.

    `reachable` is whether its address answers, `right_certificate` whether it shows the certificate of the agreement,
    `version` the version of TLS, `accepted` whether it takes this member's certificate. None is not known.
    """

    reachable: bool
    right_certificate: bool | None = None
    version: str | None = None
    accepted: bool | None = None
    problem: str | None = None


def probe_tls(identity: Identity, neighbour: Member, timeout: float) -> TlsProbe:
    """Shake hands with a neighbour that listens, and hang up."""
    address = str(neighbour.address)
    try:
        connection = socket.create_connection(split_address(address), timeout)
    except OSError as error:
        return TlsProbe(False, problem=f"{address} cannot be reached: {error.strerror or error}.")
    with connection:
        try:
            secured = _context(identity).wrap_socket(connection)
        except (OSError, ValueError) as error:
            return TlsProbe(True, problem=f"{address} answers, but not with TLS: {_reason(error)}.")
        with secured:
            return _look(secured, neighbour)


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("[2001:db8::1]:7443")
    ('2001:db8::1', 7443)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _look(secured: ssl.SSLSocket, neighbour: Member) -> TlsProbe:
    """What a connection shows, up to the first byte that the neighbour sends."""
    version = secured.version()
    if secured.getpeercert(binary_form=True) != neighbour.certificate_bytes:
        return TlsProbe(
            True, False, version, problem=f"{neighbour.address} shows another certificate than the agreement."
        )
    if version != VERSION:
        return TlsProbe(True, True, version, problem=f"{neighbour.address} speaks {version}; members speak {VERSION}.")
    try:
        accepted = bool(secured.recv(1))  # in TLS 1.3 a client learns only here whether its certificate was taken
    except OSError:
        accepted = False
    if not accepted:
        return TlsProbe(
            True, True, version, False,
            problem=f"{neighbour.name} does not accept this member's certificate; compare the agreements.",
        )  # fmt: skip
    return TlsProbe(True, True, version, True)


def _context(identity: Identity) -> ssl.SSLContext:
    """Takes any certificate and TLS 1.2 too: what is wrong with them is to be reported."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    file = os.memfd_create("identity")  # the ssl module reads keys from files only; this one is on no disk
    try:
        os.write(file, identity.tls_key + identity.member.certificate.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def _reason(error: Exception) -> str:
    return error.reason.replace("_", " ").lower() if isinstance(error, ssl.SSLError) and error.reason else str(error)
