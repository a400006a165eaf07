"""What happens to a member: on its links, as JSON lines in a file, and as the sentences that a person wants to see.

Nothing in an event comes from anybody's rows.
"""

from __future__ import annotations

import datetime
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sottovoce._version import __version__
from sottovoce.federation.frames import VERSION as PROTOCOL
from sottovoce.federation.frames import MemberNumber, Reason
from sottovoce.federation.links import Equivocation
from sottovoce.support.files import explaining, open_to_append
from sottovoce.support.text import JSON, join_names, visible


@dataclass(frozen=True)
class Connected:
    """A neighbour is connected, has shown its certificate, and has said hello under the same agreement.

    `version` is its version of the package.
    """

    neighbour: MemberNumber
    version: str = __version__


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
    """A neighbour sent a frame that was not accepted; reported once for each reason and connection."""

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

NAMED, LONGEST = 3, 80
"""So many keys are named, so many characters of each."""


def named_keys(keys: Sequence[str]) -> str:
    """The first keys that differ, in words; those of a neighbour come from outside, and are shown as they are safe."""
    named = ", ".join(visible(key[:LONGEST]) for key in keys[:NAMED])
    more = len(keys) - NAMED
    return f"{named} and {more} more" if more > 0 else named


SHOWN = {
    "finished": "This run has already ended. Nothing was played; this is its result.",
    "gather": "Waiting for {members}, {seconds:g} seconds at most.",
    "certificate": "{members} cannot be reached: {problem}; {remedy}.",
    "certificate_ends": "{warning}",
    "pause": "Paused in round {round}: fewer than {least} neighbours answer. Nothing new is sent before {members} {is} "
    "heard again.",
    "skips": "Rounds {first} to {last} are left out: others have played them without this member.",
    "doubted": "{members} says that it is in round {round}. Nobody else says so, and this member does not follow.",
    "slow": "{members} made this member wait for longer in round {round}, and more than once before: its word that it "
    "waits itself or is near does not count for some rounds.",
    "far": "What {members} sent in round {round} is more than ten times further from this member's own than noise "
    "explains: it may be poison, or data of another kind.",
    "amended": "From round {round} on the amendment holds.",
    "goes_on": "Goes on with round {round}.",
    "waiting": "Waiting for {members} in round {round}.",
    "ending": "This member has played its last round, and waits for {members} to finish.",
    "Connected": "{member} is connected.",
    "OtherVersion": "{member} is connected. It has version {version} of sottovoce, and this member {own}: they speak "
    "the same protocol, so the run goes on.",
    "OtherProtocol": "{member} speaks another version of the protocol than this member ({own}), and is left out: "
    "install the same version of sottovoce.",
    "Lost": "{member} is lost: {reason}.",
    "Left": "{member} has ended its run.",
    "OtherAgreement": "{member} has another agreement, and is left out as long as it has.",
    "Disagreed": "The agreement of {member} differs in {keys}.",
    "FrameRefused": "A message from {member} was refused: {reason}.",
    "StrangerRefused": "Somebody who is not a neighbour tried to connect, and was refused.",
    "Equivocation": "{member} sent two different messages for one place; the second was not used.",
    "missing": "Round {round} went on without {members}; later rounds will too, until {they are} heard again.",
    "sum_failed": "The sum of round {round} over {over} failed: there was no message from {members}. The round is "
    "spent, and this member's model stays as it was. The same holds for every round until {members} {is} heard again.",
    "absent": "Absent from round {first} up to round {last}, so that no mask is used twice.",
    "back": "{members} {was} heard again, in round {round}.",
    "unended": "The run ended here before {members} had all messages: {they} may find nobody there on coming back.",
}
"""What is told on stderr of some events. Nothing in an event comes from anybody's rows."""

REFUSALS = ("FrameRefused", "OutOfTurn", "OtherAgreement", "OtherProtocol", "StrangerRefused", "Equivocation")
"""Names of events about something that was not accepted."""

OUT_OF_TURN = (Reason.TOO_EARLY, Reason.TOO_OLD)
"""Why messages of honest neighbours are refused, too: one is ahead or behind, and sends again what is still needed."""


def link_event(event: LinkEvent, names: Sequence[str], rounds: int) -> tuple[str, dict[str, JSON]]:
    """The name and the facts of what happened on a link, with members by name."""
    name, facts = type(event).__name__, dict[str, JSON]()
    if isinstance(event, Awaited):
        facts = {"members": [names[one] for one in event.members], "round": event.round}
        name = "waiting" if event.round < rounds else "ending"
    elif not isinstance(event, StrangerRefused):
        facts["member"] = names[event.sender if isinstance(event, Equivocation) else event.neighbour]
    if isinstance(event, Disagreed):
        facts["keys"] = named_keys(event.keys)
    if isinstance(event, Connected):
        facts["version"] = visible(event.version)
        if event.version != __version__:
            name, facts["own"] = "OtherVersion", __version__
    if isinstance(event, Lost):
        facts["reason"] = event.reason
    if isinstance(event, FrameRefused):
        facts["reason"] = event.reason.value
        name = "OutOfTurn" if event.reason in OUT_OF_TURN else name
        name = "OtherAgreement" if event.reason is Reason.AGREEMENT else name
        if event.reason is Reason.VERSION:
            name, facts["own"] = "OtherProtocol", PROTOCOL
    return name, facts


AGAIN = 60.0
"""Seconds after which the same refusal is told again: whoever provokes it could fill a disk."""


class EventLog:
    """Is called with the name of an event and its facts, from any thread. A hang-up makes it open its file anew."""

    def __init__(self, path: Path | None, show: Callable[[str], None]) -> None:
        self._path, self._show, self._one_at_a_time = path, show, threading.Lock()
        self._refused: dict[JSON, float] = {}
        self._hung_up = False
        self._open()

    def __call__(self, name: str, facts: dict[str, JSON]) -> None:
        """Write it down, and show it if a person wants to see it."""
        with self._one_at_a_time:
            if name in REFUSALS and not self._is_due(str([name, facts])):
                return
            if self._hung_up:
                self._hung_up = False
                self.close()
                self._open()
            if self._lines is not None:
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                self._lines.write(json.dumps({"time": now, "event": name, **facts}) + "\n")
                self._lines.flush()
            if name in SHOWN:
                self._show(shown_text(name, facts))

    def _is_due(self, refusal: str) -> bool:
        now = time.monotonic()
        if now < self._refused.get(refusal, -AGAIN) + AGAIN:
            return False
        self._refused[refusal] = now
        return True

    def _open(self) -> None:
        with explaining(self._path or Path(), "events are appended to it", "name another file with --log"):
            self._lines = None if self._path is None else open_to_append(self._path)

    def close(self) -> None:
        """Nothing more is written."""
        if self._lines is not None:
            self._lines.close()

    def hang_up(self, *_: object) -> None:
        """Another file lies in the place of this one, or soon will."""
        self._hung_up = True


@contextmanager
def event_log(path: Path | None, show: Callable[[str], None]) -> Iterator[EventLog]:
    """The log of a process; with a file, SIGHUP makes it open that anew, so that others can rotate it."""
    log, listens = EventLog(path, show), path is not None and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGHUP, log.hang_up) if listens else None
    try:
        yield log
    finally:
        if listens:
            signal.signal(signal.SIGHUP, before)
        log.close()


def shown_text(name: str, facts: dict[str, JSON]) -> str:
    """The sentence of an event.

    >>> shown_text("back", {"members": ["Mercy", "North", "South"], "round": 7})
    'Mercy, North and South were heard again, in round 7.'
    """
    members = facts.get("members")
    several = isinstance(members, list) and len(members) > 1
    agreeing = ("they are", "they", "are", "were") if several else ("it is", "it", "is", "was")
    words = {key: _words(value) for key, value in facts.items()}
    return SHOWN[name].format(**dict(zip(("they are", "they", "is", "was"), agreeing, strict=True)), **words)


def _words(value: JSON) -> JSON:
    return join_names(list(map(str, value))) if isinstance(value, list) else value
