"""The identity of a member: its private keys, in a folder that nobody else can read.

    identity.json   private: the key of its TLS certificate, its X25519 key, its secret for noise
    member.toml     the public part, which is also written beside the folder as NAME.member.toml, to hand to the others
    lock            held by the one process that uses the identity
    renewed/NUMBER/ the same two files with another certificate; the keys that noise and masks follow from are the same

The certificate is signed by its own key (ECDSA P-256: gRPC does not take Ed25519) and may sign no other. Whoever
connects is recognised by the bytes of its certificate, never by a name; the name in it, which follows from its key, is
there because TLS libraries compare one.
"""

from __future__ import annotations

import datetime
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from sottovoce.core.pair_masks import PURPOSE, pair_key
from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.member import SUFFIX, Member, check_member, check_name, read_member
from sottovoce.run.layout import locked
from sottovoce.support.config import read_settings_file
from sottovoce.support.files import PART, read_bytes, write_text
from sottovoce.support.text import json_text

IDENTITY, PUBLIC_PART, LOCK, RENEWED = "identity.json", "member.toml", "lock", "renewed"
"""Files in the folder of a member."""

WARNING = "private: whoever has these keys can send in this member's name and remove the noise from its messages"

BACKDATED = datetime.timedelta(days=7)
VALID = datetime.timedelta(days=3650)
"""Certificates are valid from before they are made, because clocks are wrong, and for years."""

WARNED = datetime.timedelta(days=30)
"""So long before the end of a certificate everybody is told."""

SECRET_BYTES = 32

TIME_REMEDY = "set the clock, or renew the certificate and amend the agreement if it is right"

UNENCRYPTED = serialization.NoEncryption()


@dataclass(frozen=True, repr=False)
class Identity:
    """A member with its private keys.

    `tls_key` is the key of its certificate as PEM, `exchange_key` its X25519 private key, `secret` what its noise is
    drawn from together with fresh randomness.
    """

    folder: Path
    member: Member
    tls_key: bytes
    exchange_key: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Identity({self.member.name})"


def create_identity(name: str, folder: Path, *, address: str | None, listen: bool = True) -> Identity:
    """Make the keys of a new member in a folder, and its public file beside that; no identity is ever overwritten.

    The private keys are written last: what is there without them is no identity, and is replaced.
    """
    check_name(name, "NAME")
    exchange_key = x25519.X25519PrivateKey.generate().private_bytes_raw()
    identity = _certified(folder, name, address, listen, exchange_key, secrets.token_bytes(SECRET_BYTES))
    member = identity.member
    public_file = folder.absolute().parent / f"{name}{SUFFIX}"
    if not _is_unfinished(folder, public_file):
        _check_absent(public_file)
    _make_folder(folder)
    with locked(folder / LOCK):
        public = (folder / PUBLIC_PART, public_file)
        if _is_unfinished(folder, public_file):
            for path in public:
                path.unlink(missing_ok=True)
        _check_absent(folder / IDENTITY, *public)
        for path in public:
            write_text(path, member.toml())
        _write_private(identity, folder)
    return identity


def renew_identity(folder: Path, *, address: str | None, listen: bool | None) -> Member:
    """A certificate of today for a member, and another address if one is given; its public file is written last.

    The one before stays: the agreement that names it may still be played.
    """
    before = load_identity(folder)
    member = before.member
    found = _certified(
        folder, member.name, address or member.address, member.listen if listen is None else listen,
        before.exchange_key, before.secret,
    )  # fmt: skip
    renewed = folder / RENEWED
    _make_folder(renewed)
    with locked(renewed / LOCK):
        place = renewed / f"{len(list(renewed.iterdir())):06}"
        _make_folder(place)
        write_text(place / PUBLIC_PART, found.member.toml())
        _write_private(found, place)
        write_text(folder.absolute().parent / f"{member.name}{SUFFIX}", found.member.toml())
    return found.member


def _certified(
    folder: Path, name: str, address: str | None, listen: bool, exchange_key: bytes, secret: bytes
) -> Identity:
    """An identity with a certificate that is made now."""
    tls_key = ec.generate_private_key(ec.SECP256R1())
    public = X25519PrivateKey.from_private_bytes(exchange_key).public_key().public_bytes_raw().hex()
    member = Member(
        name=name, address=address, listen=listen, certificate=_certificate(name, tls_key), exchange_key=public
    )
    check_member(member, "--address")
    return Identity(folder, member, _pem(tls_key), exchange_key, secret)


def _is_unfinished(folder: Path, public_file: Path) -> bool:
    """Whether a process was killed here while it made an identity: of its keys, which come last, nothing is there.

    A folder with anything else in it has been used, and is left as it is.
    """
    if not (folder / PUBLIC_PART).exists():
        return False
    names = {path.name for path in folder.iterdir() if not path.name.endswith(PART)}
    same = not public_file.exists() or read_bytes(public_file) == read_bytes(folder / PUBLIC_PART)
    return same and names <= {PUBLIC_PART, LOCK}


def _check_absent(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists", "an identity is never overwritten", "use another --folder or name")


def public_part(folder: Path) -> Member:
    """The public part of the member whose folder this is; refused where others can read the folder."""
    place = _places(folder)[-1]
    _check_there(place / PUBLIC_PART)
    check_private(place)
    return read_member(place / PUBLIC_PART)


def _places(folder: Path) -> list[Path]:
    """Where certificates of a member lie with their keys, the newest last."""
    return [folder, *(path.parent for path in sorted((folder / RENEWED).glob(f"*/{IDENTITY}")))]


def load_identity(folder: Path, agreement: Agreement | None = None) -> Identity:
    """The identity that a folder holds, with the certificate that an agreement names, or else the newest.

    Refused where others can read it, or where its parts do not belong together.
    """
    found = [_load(place, folder) for place in _places(folder)]
    named = () if agreement is None else {member.certificate for member in agreement.members}
    return next((one for one in found if one.member.certificate in named), found[-1])


def _load(place: Path, folder: Path) -> Identity:
    path = place / IDENTITY
    _check_there(path)
    check_private(path)
    check_private(place)
    _check_there(place / PUBLIC_PART)
    document, member = read_settings_file(path), read_member(place / PUBLIC_PART)
    try:
        identity = Identity(
            folder,
            member,
            document["tls_key"].encode(),
            *(bytes.fromhex(document[k]) for k in ("exchange_key", "secret")),
        )
        fits = _belongs_together(identity)
    except (KeyError, TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise InputError(
            f"{place}: damaged, or mixed from two members", "identity.json and member.toml are made together",
            "restore both from one backup",
        )  # fmt: skip
    return identity


def _check_there(path: Path) -> None:
    if not path.exists():
        raise InputError(
            f"{path.parent}: no identity", "a member needs one", "make it with sotto peer init, or give --folder"
        )


def erase_keys(folder: Path) -> None:
    """Remove the private keys of a member: nobody can speak in its name any more."""
    for place in _places(folder):
        (place / IDENTITY).unlink(missing_ok=True)


@contextmanager
def locked_identity(folder: Path, agreement: Agreement | None = None) -> Iterator[Identity]:
    """The identity of a folder, for one process at a time."""
    found = load_identity(folder, agreement)
    with locked(folder / LOCK):
        yield found


def check_private(path: Path) -> None:
    """Refuse a file or folder that belongs to somebody else, or that others can read."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise InputError(f"{path} belongs to another user", "private keys belong to whoever uses them", "use your own")
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = "700" if path.is_dir() else "600"
        raise InputError(
            f"{path} can be read by others",
            "private keys must be readable by their owner only",
            f"type chmod {mode} {path}",
        )


def check_certificate(member: Member, where: str) -> None:
    """Refuse a certificate of another kind than `create_identity` makes: one that could sign others, say."""
    try:
        found = x509.load_der_x509_certificate(member.certificate_bytes)
        key = found.public_key()
        limits = found.extensions.get_extension_for_class(x509.BasicConstraints)
        usage = found.extensions.get_extension_for_class(x509.KeyUsage).value
        fits = (
            isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
            and limits.critical and not limits.value.ca
            and usage.digital_signature and not usage.key_cert_sign and not usage.crl_sign
            and _names(found) == [_tls_name(key)]
        )  # fmt: skip
        found.verify_directly_issued_by(found)
        x25519.X25519PublicKey.from_public_bytes(bytes.fromhex(member.exchange_key))
    except Exception:  # parsers raise whatever a damaged certificate provokes
        fits = False
    if not fits:
        raise InputError(
            f"{where}: the certificate of {member.name} is not one that sotto peer init makes",
            "a member's certificate must not be able to sign others", f"ask for {member.name}{SUFFIX} again",
        )  # fmt: skip


def certificate_ends(member: Member) -> datetime.datetime:
    """When a member's certificate ends."""
    return x509.load_der_x509_certificate(member.certificate_bytes).not_valid_after_utc


def ends_soon(member: Member) -> str | None:
    """That a member's certificate ends within `WARNED`, as it is said; None where there is more time."""
    ends = certificate_ends(member)
    if ends > datetime.datetime.now(datetime.UTC) + WARNED:
        return None
    return f"The certificate of {member.name} ends on {ends:%Y-%m-%d}: it needs sotto peer renew, and all an amendment."


def time_problem(member: Member) -> str | None:
    """What is wrong by the clock of this machine with the time of a member's certificate; None where nothing is."""
    found, now = x509.load_der_x509_certificate(member.certificate_bytes), datetime.datetime.now(datetime.UTC)
    clock = f"the clock of this machine says {now:%Y-%m-%d %H:%M} UTC"
    if now > found.not_valid_after_utc:
        return f"the certificate of {member.name} ended on {found.not_valid_after_utc:%Y-%m-%d}, and {clock}"
    if now < found.not_valid_before_utc:
        return f"the certificate of {member.name} begins on {found.not_valid_before_utc:%Y-%m-%d}, and {clock}"
    return None


def tls_name(member: Member) -> str:
    """The name in a member's certificate, for TLS libraries that compare one; it follows from the key."""
    return _names(x509.load_der_x509_certificate(member.certificate_bytes))[0]


def _names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def _tls_name(key: ec.EllipticCurvePublicKey) -> str:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return f"{digest.finalize().hex()[:40]}.sottovoce.invalid"


def _certificate(name: str, key: ec.EllipticCurvePrivateKey) -> str:
    """A certificate for the key, signed by it, that can sign no other."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    names = x509.SubjectAlternativeName([x509.DNSName(_tls_name(key.public_key()))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, UNENCRYPTED)


def _write_private(identity: Identity, place: Path) -> None:
    document = {
        "about": WARNING,
        "tls_key": identity.tls_key.decode(),
        "exchange_key": identity.exchange_key.hex(),
        "secret": identity.secret.hex(),
    }
    write_text(place / IDENTITY, json_text(document), private=True)


def _belongs_together(identity: Identity) -> bool:
    """Whether the private keys are those of the public part."""
    key = serialization.load_pem_private_key(identity.tls_key, None)
    certified = x509.load_der_x509_certificate(identity.member.certificate_bytes).public_key()
    exchange = x25519.X25519PrivateKey.from_private_bytes(identity.exchange_key).public_key().public_bytes_raw()
    return (
        key.public_key() == certified
        and exchange.hex() == identity.member.exchange_key
        and len(identity.secret) == SECRET_BYTES
    )


def _make_folder(folder: Path) -> None:
    """A folder for its owner alone; one that is there already must be that."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "an identity needs a folder", "use another --folder") from None
    check_private(folder)


def signature(identity: Identity, text: bytes) -> str:
    """What only whoever has the key of this certificate can write under a text."""
    key = serialization.load_pem_private_key(identity.tls_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(text, ec.ECDSA(hashes.SHA256())).hex()


def has_signed(member: Member, signed: str, text: bytes) -> bool:
    """Whether that is a member's signature under a text."""
    key = x509.load_der_x509_certificate(member.certificate_bytes).public_key()
    try:
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(bytes.fromhex(signed), text, ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


def receipt_key(identity: Identity) -> bytes:
    """Under which a member tags what it sends, so that it knows receipts of its own messages.

    It follows from the member's secret alone: a ledger that was put back does not change it, nor another certificate.
    """
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"sottovoce receipts").derive(identity.secret)


def mask_keys(identity: Identity, agreement: Agreement, others: Iterable[str]) -> dict[str, bytes]:
    """The keys of this member's masks with others, who need not be its neighbours, by name."""
    return {other: _secret(identity, agreement, other, PURPOSE) for other in others}


def pair_secrets(identity: Identity, agreement: Agreement, purpose: str) -> dict[tuple[int, int], bytes]:
    """The secret that this member shares with each of its neighbours, by the numbers of both."""
    own, names = identity.member.name, agreement.names
    return {
        (names.index(own), names.index(other)): _secret(identity, agreement, other, purpose)
        for other in agreement.neighbours(own)
    }


def _secret(identity: Identity, agreement: Agreement, other: str, purpose: str) -> bytes:
    """HKDF of the shared point, over purpose, agreement and both names."""
    theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(agreement.member(other).exchange_key))
    shared = X25519PrivateKey.from_private_bytes(identity.exchange_key).exchange(theirs)
    return pair_key(shared, identity.member.name, other, agreement=bytes.fromhex(agreement.hash), purpose=purpose)
