"""What happens on links, for whoever watches over a member. Nothing in it comes from anybody's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sottovoce.federation.frames import Reason
from sottovoce.federation.links import MemberNumber
from sottovoce.federation.mailbox import Equivocation


@dataclass(frozen=True)
class Connected:
    """A neighbour is connected, has shown its certificate, and has said hello under the same agreement."""

    neighbour: MemberNumber


@dataclass(frozen=True)
class Lost:
    """A neighbour that was connected is not any more."""

    neighbour: MemberNumber
    reason: str


@dataclass(frozen=True)
class Left:
    """A neighbour has ended its run, and its connection."""

    neighbour: MemberNumber


@dataclass(frozen=True)
class FrameRefused:
    """A neighbour sent a frame that was not accepted; told once for each reason and connection."""

    neighbour: MemberNumber
    reason: Reason


@dataclass(frozen=True)
class StrangerRefused:
    """Somebody connected whose certificate is none of the neighbours', though one of these has signed it."""


@dataclass(frozen=True)
class Checked:
    """A neighbour asked how things are. `version` is its version of the package, None under another agreement."""

    neighbour: MemberNumber
    version: str | None


@dataclass(frozen=True)
class Disagreed:
    """A neighbour has another agreement, which differs in these keys."""

    neighbour: MemberNumber
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Awaited:
    """This member waits for these neighbours in a round."""

    members: tuple[MemberNumber, ...]
    round: int


LinkEvent: TypeAlias = (
    Connected | Lost | Left | FrameRefused | StrangerRefused | Checked | Disagreed | Awaited | Equivocation
)

Report: TypeAlias = Callable[[LinkEvent], None]
"""Called from the thread of the links; it returns at once and does not raise."""
