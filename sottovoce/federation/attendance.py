"""Who was heard in each step, for whom a member waits and how long, and where it goes on after it was away.

A member waits so many seconds a round, which all of its gossip steps share. With equal patience it gives up on a
neighbour at the moment at which that neighbour gives up on somebody else and is about to go on. So a neighbour that
says it waits itself is waited for up to `EXTENDED` times as long. Words cost nothing: who makes this member wait for
longer by them, round after round, is believed less and less often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from sottovoce.federation.frames import MemberNumber
from sottovoce.federation.links import Clock, Links
from sottovoce.ledger.payloads import Place

MISSES = 2
"""Who was missed so often in a row is not waited for, until it is near again."""


@dataclass(frozen=True)
class StepAttendance:
    """Who was heard in one gossip step, and who should have been and was not.

    `sum_known` says whether a secure sum is known; None without secure sums. `distances` are how far messages of
    neighbours are from what this member sent, in units of what the noise of all rounds so far explains.
    """

    place: Place
    heard: frozenset[MemberNumber]
    missing: frozenset[MemberNumber]
    sum_known: bool | None = None
    distances: Mapping[MemberNumber, float] = field(default_factory=dict)


Tell: TypeAlias = Callable[..., None]
"""Is told what happens to a member, by its name, with facts: of members as sets, of a gossip step as `step`.

What is raised at `begin` ends the run before anything new was sent.
"""


@dataclass(frozen=True)
class Enough:
    """How many neighbours a member must hear in a round, and how many seconds it pauses at most where it does not."""

    neighbours: int = 1
    longest_pause: float = 86_400.0


class Absences:
    """Who is missing since some step: told when it begins and when it ends, not in every round between."""

    def __init__(self) -> None:
        self._missing: frozenset[MemberNumber] = frozenset()

    def changed_by(self, step: StepAttendance) -> dict[str, frozenset[MemberNumber]]:
        """Who is `missing` since this step, and who is `back`; what nobody is, is left out."""
        changes = {"missing": step.missing - self._missing, "back": self._missing & step.heard}
        self._missing = (self._missing | step.missing) - step.heard
        return {change: members for change, members in changes.items() if members}


FORGIVEN = 32
"""Rounds after which it is forgotten that a member waited once on a neighbour's word."""


class Attendance:
    """Whom this member waits for.

    One miss changes nothing. After `MISSES` in a row a neighbour is not waited for any more: what arrives from it in
    time is still used. It is waited for again as soon as it is heard, or says that it is at most `slack` rounds behind.

    Such words, and those of a neighbour that waits itself, are believed twice. Then every further wait that they cause
    doubles the rounds in which they are not; where all are needed, they always are. For those who are `leaving` nobody
    waits before they are there.
    """

    def __init__(self, slack: int, *, all_needed: bool = False, leaving: frozenset[MemberNumber] = frozenset()) -> None:
        self.slack, self._all_needed = slack, all_needed
        self._misses = dict.fromkeys(leaving, MISSES)
        self._claim_then: dict[MemberNumber, Place | None] = dict.fromkeys(leaving)
        self._believed: dict[MemberNumber, tuple[int, int]] = {}
        self._doubted: set[MemberNumber] = set()
        self.ever_heard: set[MemberNumber] = set()

    def believes(self, member: MemberNumber, round: int) -> bool:
        """Whether this member waits on the word of a neighbour in a round."""
        waits, last = self._believed.get(member, (0, -1))
        return self._all_needed or round == last or round >= last + 2 ** max(0, waits - MISSES)

    def waited_on_word_of(self, members: Iterable[MemberNumber], round: int) -> None:
        """This member has waited for longer in a round, because these neighbours said something."""
        for one in members:
            waits, last = self._believed.get(one, (0, round - 1))
            if last < round:
                waits = max(0, waits - (round - last) // FORGIVEN) + 1
                self._believed[one] = waits, round
                self._doubted |= {one} if waits > MISSES else set()

    def newly_doubted(self) -> frozenset[MemberNumber]:
        """Who is believed less since this was asked last."""
        found, self._doubted = frozenset(self._doubted), set()
        return found

    def awaited(
        self, members: Iterable[MemberNumber], round: int, claims: Mapping[MemberNumber, Place]
    ) -> frozenset[MemberNumber]:
        """Those of these members that are worth waiting for."""
        return frozenset(one for one in members if not self.given_up(one) or self._is_back(one, round, claims))

    def note(
        self,
        heard: Set[MemberNumber],
        missing: Set[MemberNumber],
        round: int,
        claims: Mapping[MemberNumber, Place],
    ) -> None:
        """Remember who was heard in a step, and who was not."""
        self.ever_heard |= heard
        for one in heard:
            self._misses[one] = 0
        self.waited_on_word_of(filter(self.given_up, missing), round)
        for one in missing:
            self._misses[one] = 1 if self.given_up(one) else self._misses.get(one, 0) + 1
            if self.given_up(one):
                self._claim_then[one] = claims.get(one)

    def given_up(self, member: MemberNumber) -> bool:
        """Whether a member was missed `MISSES` times in a row, and not heard since."""
        return self._misses.get(member, 0) >= MISSES

    def _is_back(self, member: MemberNumber, round: int, claims: Mapping[MemberNumber, Place]) -> bool:
        then, now = self._claim_then[member], claims.get(member)
        is_near = now is not None and (then is None or now > then) and now.round >= round - self.slack
        return is_near and self.believes(member, round)


EXTENDED = 3
"""A round waits no longer than this many times its patience, whoever waits."""


class Patience:
    """What is left of one round's patience, for the neighbours that `attendance` is about."""

    def __init__(self, seconds: float, links: Links, clock: Clock, attendance: Attendance) -> None:
        self.seconds, self._links, self._clock, self._attendance = seconds, links, clock, attendance
        self._round, self._spent, self._limit, self._gathered = -1, 0.0, seconds, 0.0

    def gather(self, seconds: float) -> None:
        """For so long from now on, give neighbours that are connected the time to begin, too."""
        self._gathered = self._clock.now() + seconds

    def wait(
        self, place: Place, members: Set[MemberNumber], attempt: Callable[[Set[MemberNumber], float], Set[MemberNumber]]
    ) -> Set[MemberNumber]:
        """Let `attempt(members, seconds)` wait for members; it returns those that are still to be waited for."""
        if place.round != self._round:
            self._round, self._spent, self._limit = place.round, 0.0, self.seconds
        begun, spent = self._clock.now(), self._spent
        members = attempt(members, max(0.0, self._limit - spent))
        while (left := self._gathered - self._clock.now()) > 0 and self._may_begin(place, members):
            members = attempt(members, min(left, self.seconds))
        self._spent = spent + self._clock.now() - begun
        while members and self._may_extend(place, members):
            self._limit = min(self._limit + self.seconds, EXTENDED * self.seconds)
            members = attempt(members, max(0.0, self._limit - self._spent))
            self._spent = spent + self._clock.now() - begun
        return members

    def _may_begin(self, place: Place, members: Set[MemberNumber]) -> bool:
        """Whether one of these members is connected and has yet to begin, or waits for another that has."""
        not_begun = members & self._links.connected_ones() - self._attendance.ever_heard
        return bool(not_begun or self._waiting(place, members))

    def _may_extend(self, place: Place, members: Set[MemberNumber]) -> bool:
        """Whether there is patience to add, and one of these members waits itself, and is believed."""
        if self._limit >= EXTENDED * self.seconds:
            return False
        believed = {one for one in self._waiting(place, members) if self._attendance.believes(one, place.round)}
        self._attendance.waited_on_word_of(believed, place.round)
        return bool(believed)

    def _waiting(self, place: Place, members: Set[MemberNumber]) -> Set[MemberNumber]:
        """Those of these members that wait themselves, at this place or an earlier one."""
        return {one for one, at in self._links.waiting().items() if one in members and at <= place}
