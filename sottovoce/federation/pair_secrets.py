"""Secrets of two members that nobody sends: X25519 of their keys, for one agreement and one purpose."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sottovoce.core.pair_masks import PURPOSE, pair_key
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.identity import Identity


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
