"""Members for tests, and certificates of the kinds that no member has."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sottovoce.federation.identity import Identity, create_identity, tls_name
from sottovoce.federation.member import Member


def new_member(folder: Path, name: str, *, listen: bool = True) -> Identity:
    """A member as `sotto peer init` makes one, at an address that nobody uses."""
    return create_identity(name, folder / name, address="127.0.0.1:1", listen=listen)


def at_port(member: Member, port: int) -> Member:
    """A member as its neighbours know it, once its port is known."""
    return member.model_copy(update={"address": f"127.0.0.1:{port}"})


def with_certificate(
    identity: Identity,
    *,
    names: Member | None = None,
    signed_by: Identity | None = None,
    days: int = 10,
    ca: bool = False,
) -> Identity:
    """An identity with a new key, whose certificate has the name of another member, or is signed by another.

    It ends in so many `days`; with `ca` it may sign others.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    named, now = names or identity.member, datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, named.name)])
    issuer, signing = subject, key
    if signed_by is not None:
        issuer = x509.load_der_x509_certificate(signed_by.member.certificate_bytes).subject
        signing = serialization.load_pem_private_key(signed_by.tls_key, None)
    usage = {"digital_signature": True, "key_cert_sign": ca}
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=20))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, **dict.fromkeys(others, False), encipher_only=False, decipher_only=False),
            critical=True,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(tls_name(named))]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM).decode()
    return replace(
        identity,
        member=identity.member.model_copy(update={"certificate": certificate}),
        tls_key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
