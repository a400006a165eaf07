"""A member of a federation as the others know it: name, address, certificate, public key. Nothing here is secret."""

from __future__ import annotations

import binascii
import hashlib
import ipaddress
import re
import ssl
import unicodedata
from pathlib import Path

from pydantic import ConfigDict

from sottovoce.errors import InputError
from sottovoce.support.config import Section, parse_section, read_settings_file
from sottovoce.support.text import to_toml

SUFFIX = ".member.toml"
"""How the name of a member's public file ends."""

NAME_PATTERN = r"[^\W\d_][\w-]*"
"""Names stand in views such as node:Mercy, and in the names of files."""

LONGEST_NAME = 63
"""Bytes: certificates have no room for more."""

LONGEST_HOST, LONGEST_LABEL = 253, 63
"""Characters of a host's name, and of each part of it: the limits of DNS."""

KEY_PATTERN = r"[0-9a-f]{64}"


class Member(Section):
    """The public part of a member.

    `listen` says whether others can open a connection to its `address`. `certificate` is its TLS certificate as PEM,
    `exchange_key` its X25519 public key for shared secrets, in hexadecimal digits.
    """

    model_config = ConfigDict(str_strip_whitespace=False)

    name: str
    address: str | None = None
    listen: bool = True
    certificate: str
    exchange_key: str

    @property
    def certificate_bytes(self) -> bytes:
        """The certificate as DER: what a connection shows must be equal to it."""
        return ssl.PEM_cert_to_DER_cert(self.certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate's bytes and of the key for shared secrets, in hexadecimal digits.

        Whoever compares it has compared both: with another's key for shared secrets, masks would hide nothing.
        """
        return hashlib.sha256(self.certificate_bytes + bytes.fromhex(self.exchange_key)).hexdigest()

    @property
    def spoken_fingerprint(self) -> str:
        """The fingerprint in groups of four, to be compared over the telephone."""
        return " ".join(re.findall("....", self.fingerprint.upper()))

    def toml(self) -> str:
        """As a file holds it."""
        return to_toml(self.model_dump())


def read_member(path: Path) -> Member:
    """The member whose public part a file holds."""
    if not path.exists():
        raise InputError(
            f"{path}: No such file", f"every member provides its NAME{SUFFIX}, which sotto peer init writes",
            "check the path",
        )  # fmt: skip
    member = parse_section(Member, read_settings_file(path), str(path))
    check_member(member, str(path))
    return member


def check_member(member: Member, where: str) -> None:
    """Refuse a member whose name, address, certificate or key has a wrong form."""
    check_name(member.name, where)
    if member.address is not None:
        check_address(member.address, where)
    elif member.listen:
        raise InputError(
            f"{where}: {member.name} listens and has no address", "others need it to open connections",
            "give its address, or listen = false",
        )  # fmt: skip
    try:
        whole = ssl.DER_cert_to_PEM_cert(member.certificate_bytes) == member.certificate
    except (ValueError, binascii.Error):
        whole = False
    if not whole:
        raise InputError(
            f"{where}: the certificate of {member.name} is damaged", "it must be one certificate in PEM form",
            f"ask for {member.name}{SUFFIX} again",
        )  # fmt: skip
    if not re.fullmatch(KEY_PATTERN, member.exchange_key):
        raise InputError(
            f"{where}: the exchange_key of {member.name} is damaged", "it has 64 hexadecimal digits",
            f"ask for {member.name}{SUFFIX} again",
        )  # fmt: skip


def check_name(name: str, where: str) -> None:
    """Refuse a name that cannot stand in a view or in the name of a file."""
    one_way = unicodedata.normalize("NFC", name) == name
    if not re.fullmatch(NAME_PATTERN, name) or len(name.encode()) > LONGEST_NAME or not one_way:
        raise InputError(
            f"{where}: {name!r:.80} as a member's name",
            f"a name has letters of any alphabet, digits, _ and -, a letter first, and at most {LONGEST_NAME} bytes "
            "in Unicode's form NFC", "choose another",
        )  # fmt: skip


def check_address(address: str, where: str) -> None:
    """Refuse an address that is not HOST:PORT.

    >>> check_address("hospital.example", "Mercy.member.toml")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: Mercy.member.toml: the address 'hospital.example'; it must have the form HOST:PORT; ...
    """
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise InputError(
            f"{where}: the address {address!r:.80}",
            f"it must have the form HOST:PORT; a host has at most {LONGEST_HOST} characters, and {LONGEST_LABEL} "
            "between two dots",
            "write peer.hospital.example:7443 or [2001:db8::1]:7443, for example",
        )  # fmt: skip


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("[2001:db8::1]:7443")
    ('2001:db8::1', 7443)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_host(host: str) -> bool:
    """Whether it can be the name of a machine, or an address of version 4, or one of version 6 in brackets."""
    if host[:1] == "[" and host[-1:] == "]":
        try:
            return ipaddress.IPv6Address(host[1:-1]).scope_id is None
        except ValueError:
            return False
    label = f"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{LONGEST_LABEL - 2}}}[A-Za-z0-9])?"
    return len(host) <= LONGEST_HOST and re.fullmatch(rf"{label}(?:\.{label})*", host) is not None
