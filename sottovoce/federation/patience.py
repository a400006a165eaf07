"""How long a member waits for others: so many seconds a round, which all of its gossip steps share.

With equal patience a member gives up on a neighbour at the moment at which that neighbour gives up on somebody else and
is about to go on. So a neighbour that says it waits itself is waited for up to `EXTENDED` times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from sottovoce.federation.clock import Clock
from sottovoce.federation.links import Links, MemberNumber
from sottovoce.ledger.places import Place

EXTENDED = 3
"""A round waits no longer than this many times its patience, whoever waits."""


class Patience:
    """What is left of one round's patience."""

    def __init__(self, seconds: float, links: Links, clock: Clock) -> None:
        self.seconds, self._links, self._clock = seconds, links, clock
        self._round, self._spent, self._limit = -1, 0.0, seconds

    def wait(
        self, place: Place, members: Set[MemberNumber], attempt: Callable[[Set[MemberNumber], float], Set[MemberNumber]]
    ) -> None:
        """Let `attempt(members, seconds)` wait for members; it returns those that are still to be waited for."""
        if place.round != self._round:
            self._round, self._spent, self._limit = place.round, 0.0, self.seconds
        begun, spent = self._clock.now(), self._spent
        members = attempt(members, max(0.0, self._limit - spent))
        while members:
            self._spent = spent + self._clock.now() - begun
            if not self._may_extend(place, members):
                return
            self._limit = min(self._limit + self.seconds, EXTENDED * self.seconds)
            members = attempt(members, self._limit - self._spent)
        self._spent = spent + self._clock.now() - begun

    def _may_extend(self, place: Place, members: Set[MemberNumber]) -> bool:
        """Whether there is patience to add, and one of these members waits itself, at this place or an earlier one."""
        waiting = self._links.waiting()
        return self._limit < EXTENDED * self.seconds and any(
            one in members and at <= place for one, at in waiting.items()
        )
