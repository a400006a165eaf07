"""Who was heard in each step, for whom a member waits and how long, and where it goes on after it was away.

A member waits so many seconds a round, which all of its gossip steps share. With equal patience it gives up on a
neighbour at the moment at which that neighbour gives up on somebody else and is about to go on. So a neighbour that
says it waits itself is waited for up to `EXTENDED` times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from sottovoce.federation.frames import MemberNumber
from sottovoce.federation.links import Clock, Links
from sottovoce.ledger.payloads import Place

MISSES = 2
"""Who was missed so often in a row is not waited for, until it is near again."""


@dataclass(frozen=True)
class StepAttendance:
    """Who was heard in one gossip step, and who should have been and was not.

    `sum_known` says whether a secure sum is known; None without secure sums.
    """

    place: Place
    heard: frozenset[MemberNumber]
    missing: frozenset[MemberNumber]
    sum_known: bool | None = None


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


class Attendance:
    """Whom this member waits for.

    One miss changes nothing. After `MISSES` in a row a neighbour is not waited for any more: what arrives from it in
    time is still used. It is waited for again as soon as it is heard, or says that it is at most `slack` rounds behind.
    """

    def __init__(self, slack: int) -> None:
        self.slack = slack
        self._misses: dict[MemberNumber, int] = {}
        self._claim_then: dict[MemberNumber, Place | None] = {}

    def awaited(
        self, members: Iterable[MemberNumber], round: int, claims: Mapping[MemberNumber, Place]
    ) -> frozenset[MemberNumber]:
        """Those of these members that are worth waiting for."""
        return frozenset(one for one in members if not self.given_up(one) or self._is_back(one, round, claims))

    def note(self, heard: Set[MemberNumber], missing: Set[MemberNumber], claims: Mapping[MemberNumber, Place]) -> None:
        """Remember who was heard in a step, and who was not."""
        for one in heard:
            self._misses[one] = 0
        for one in missing:
            self._misses[one] = 1 if self.given_up(one) else self._misses.get(one, 0) + 1
            if self.given_up(one):
                self._claim_then[one] = claims.get(one)

    def given_up(self, member: MemberNumber) -> bool:
        """Whether a member was missed `MISSES` times in a row, and not heard since."""
        return self._misses.get(member, 0) >= MISSES

    def _is_back(self, member: MemberNumber, round: int, claims: Mapping[MemberNumber, Place]) -> bool:
        then, now = self._claim_then[member], claims.get(member)
        return now is not None and (then is None or now > then) and now.round >= round - self.slack


def round_to_join(own: int, claimed: Iterable[int], slack: int) -> int:
    """The round in which a member goes on that is behind its neighbours.

    That is at most the second-highest round that neighbours claim, or the only one: so a single neighbour that lies
    makes nobody with two neighbours leave rounds out. Who is at most `slack` rounds behind leaves out none and catches
    up, since the messages of these rounds are still kept for it.

    >>> round_to_join(3, [40, 38, 2], slack=3), round_to_join(3, [40], slack=3), round_to_join(3, [40, 5], slack=3)
    (38, 40, 3)
    """
    highest = sorted(claimed, reverse=True)[:2]
    return highest[-1] if highest and highest[-1] > own + slack else own


EXTENDED = 3
"""A round waits no longer than this many times its patience, whoever waits."""


class Patience:
    """What is left of one round's patience."""

    def __init__(self, seconds: float, links: Links, clock: Clock) -> None:
        self.seconds, self._links, self._clock = seconds, links, clock
        self._round, self._spent, self._limit = -1, 0.0, seconds

    def wait(
        self, place: Place, members: Set[MemberNumber], attempt: Callable[[Set[MemberNumber], float], Set[MemberNumber]]
    ) -> Set[MemberNumber]:
        """Let `attempt(members, seconds)` wait for members; it returns those that are still to be waited for."""
        if place.round != self._round:
            self._round, self._spent, self._limit = place.round, 0.0, self.seconds
        begun, spent = self._clock.now(), self._spent
        members = attempt(members, max(0.0, self._limit - spent))
        self._spent = spent + self._clock.now() - begun
        while members and self._may_extend(place, members):
            self._limit = min(self._limit + self.seconds, EXTENDED * self.seconds)
            members = attempt(members, self._limit - self._spent)
            self._spent = spent + self._clock.now() - begun
        return members

    def _may_extend(self, place: Place, members: Set[MemberNumber]) -> bool:
        """Whether there is patience to add, and one of these members waits itself, at this place or an earlier one."""
        waiting = self._links.waiting()
        return self._limit < EXTENDED * self.seconds and any(
            one in members and at <= place for one, at in waiting.items()
        )
