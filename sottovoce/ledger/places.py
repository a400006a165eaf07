"""Where in a run something is sent, and what shows that it was received."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where a message belongs: a gossip step of a round. Places are ordered."""

    round: int
    step: int

    def __str__(self) -> str:
        return f"round {self.round}, step {self.step}"


class Receipt(NamedTuple):
    """The newest place of which a member has a message of another, with the SHA-256 of that message."""

    place: Place
    digest: bytes
