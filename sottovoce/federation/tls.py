"""TLS between members: version 1.3 only, and whoever connects is recognised by its certificate's bytes.

A name in a certificate proves nothing: an acceptor trusts the certificates of all its neighbours, and one of them could
sign a certificate with another's name. So the acceptor compares bytes, and a dialler trusts the one certificate of the
member that it dials.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence

from sottovoce.federation.identity import Identity, tls_name
from sottovoce.federation.member import Member
from sottovoce.federation.secure_grpc import grpc

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
