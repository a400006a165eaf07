"""Who was heard in each step, whom a member still waits for, and where it goes on after it was away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from sottovoce.federation.links import MemberNumber
from sottovoce.ledger.places import Place

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
