"""Which agreements a member has confirmed: it compared every fingerprint with its owner, by another way than the file.

Whoever puts an agreement together could put keys of its own in place of others'. Members would notice over TLS, since
these would not answer; but masks with a key that one member made for two would hide nothing from it. So with secure
sums nobody takes part before it has said that all fingerprints were read out by their owners.

    confirmed.json      in the member's folder: the fingerprints, by agreement
"""

from __future__ import annotations

from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement
from sottovoce.support.config import Document, read_settings_file
from sottovoce.support.files import write_text
from sottovoce.support.text import json_text

CONFIRMED = "confirmed.json"


def fingerprints(agreement: Agreement) -> dict[str, str]:
    """What every member reads out to the others, by name."""
    return {member.name: member.spoken_fingerprint for member in agreement.members}


def confirm(folder: Path, agreement: Agreement) -> None:
    """Note that all fingerprints of an agreement were compared."""
    found = {**_confirmed(folder), agreement.hash: fingerprints(agreement)}
    write_text(folder / CONFIRMED, json_text(found), private=True)


def is_confirmed(folder: Path, agreement: Agreement) -> bool:
    """Whether that was noted, or need not be: without secure sums nothing hides behind others' keys."""
    return not agreement.has_secure_sums or _confirmed(folder).get(agreement.hash) == fingerprints(agreement)


def require_confirmed(folder: Path, agreement: Agreement, file: Path) -> None:
    """Refuse to take part in secure sums with keys that nobody compared; `file` is where the agreement stands."""
    if not is_confirmed(folder, agreement):
        raise InputError(
            f"the fingerprints of {agreement.name} were not confirmed",
            "with secure sums every member compares every fingerprint with its owner, for example by telephone",
            f"type sotto peer check {file} --folder {folder} to see them; if all are right, again with --confirmed",
        )


def _confirmed(folder: Path) -> Document:
    path = folder / CONFIRMED
    return read_settings_file(path) if path.exists() else {}
