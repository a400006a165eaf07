"""Checks of all neighbours of a member, again and again until all is well or the time is over.

Whoever checks also answers: two members that both only check find each other. It takes no messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from sottovoce._version import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.comparison import KeyHashes
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.identity import Identity
from sottovoce.federation.link_events import Checked, Disagreed, LinkEvent
from sottovoce.federation.mailbox import LinkRules, PayloadRule
from sottovoce.federation.member import Member
from sottovoce.federation.neighbour_check import NeighbourCheck, check_neighbour, other_agreement, other_version
from sottovoce.federation.tls_probe import TlsProbe

PAUSE = 0.5
"""Seconds between two attempts to reach a neighbour."""

LINGER = 10.0
"""Seconds that a member whose lines are all fine still answers neighbours that have not asked yet."""


@dataclass(frozen=True)
class Checks:
    """What was found about each neighbour, and whether this member answered those that asked meanwhile."""

    neighbours: tuple[NeighbourCheck, ...]
    answered: bool

    @property
    def disagree(self) -> bool:
        """Whether one of them has another agreement."""
        return any(one.same_agreement is False for one in self.neighbours)

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong with any of them."""
        return all(one.problem is None for one in self.neighbours)


def check_rules(agreement: Agreement, member: int) -> LinkRules:
    """The rules of links over which nobody sends messages."""
    names = agreement.names
    neighbours = frozenset(names.index(one) for one in agreement.neighbours(names[member]))
    payload = PayloadRule(0, np.dtype(agreement.precision))
    return LinkRules(
        bytes.fromhex(agreement.hash), member, neighbours, neighbours, agreement.training.rounds, 1, payload
    )


def check_neighbours(
    identity: Identity, agreement: Agreement, member: int, *, bind: str | None, wait: float, timeout: float = 5.0
) -> Checks:
    """Check every neighbour; for `wait` seconds again, as long as something is wrong."""
    rules = check_rules(agreement, member)
    check = _Check(identity, rules, agreement.key_hashes, time.monotonic() + wait, timeout)
    members = {one: agreement.members[one] for one in sorted(check.rules.neighbours)}
    with check.answering(members, bind) as answered:
        with ThreadPoolExecutor(len(members)) as threads:
            try:
                found = tuple(threads.map(check.of, members.keys(), members.values()))
            except BaseException:
                check.stopped.set()  # whoever stops it does not wait until the time is over
                raise
        if wait > 0 and answered:
            check.linger(members.keys())
    return Checks(found, answered)


@dataclass(frozen=True)
class _Check:
    """Checks until a deadline. `asked` has who asked this member, with its version; `differing` what others told."""

    identity: Identity
    rules: LinkRules
    key_hashes: KeyHashes
    deadline: float
    timeout: float
    asked: dict[int, str | None] = field(default_factory=dict)
    differing: dict[int, tuple[str, ...]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def answering(self, members: Mapping[int, Member], bind: str | None) -> Iterator[bool]:
        """Answer neighbours that check; yields False where another process has the port, a running `join` say."""
        links = GrpcLinks(
            self.rules, self.identity, members, report=self._report, bind=bind, exchanges=False,
            key_hashes=self.key_hashes,
        )  # fmt: skip
        try:
            links.__enter__()
        except SottovoceError:
            yield False
            return
        try:
            yield self.identity.member.listen
        finally:
            links.__exit__()

    def of(self, number: int, neighbour: Member) -> NeighbourCheck:
        """A neighbour that listens is asked; of the others it is known whether they have asked.

        Another agreement does not become the same while one waits.
        """
        disagreed = None
        while True:
            found = self._ask(number, neighbour)
            disagreed = found if found.same_agreement is False else disagreed
            left = self.deadline - time.monotonic()
            if found.problem is None or found.differing or left <= 0 or self.stopped.is_set():
                return found if found.problem is None else disagreed or found
            self._wait(lambda: False, min(PAUSE, left))

    def linger(self, neighbours: Iterable[int]) -> None:
        """Give neighbours that have not asked yet the time to do so."""
        wanted = set(neighbours)
        self._wait(lambda: self.asked.keys() - self._uncompared() >= wanted, LINGER)

    def _uncompared(self) -> set[int]:
        """Neighbours that have another agreement, and have not told what it differs in."""
        return {number for number, version in self.asked.items() if version is None} - self.differing.keys()

    def _ask(self, number: int, neighbour: Member) -> NeighbourCheck:
        if neighbour.listen:
            return check_neighbour(self.identity, self.rules, neighbour, self.timeout, self.key_hashes)
        with self.changed:
            known, version = number in self.asked, self.asked.get(number)
            keys = self.differing.get(number, ())
        if not known:
            absent = f"{neighbour.name} does not listen, and no check arrived from it; type sotto peer check there too."
            return NeighbourCheck(neighbour.name, TlsProbe(False), problem=absent)
        tls = TlsProbe(True, True, accepted=True)
        if version is None:
            problem = other_agreement(neighbour.name, keys)
            return NeighbourCheck(neighbour.name, tls, False, problem=problem, differing=keys)
        wrong = None if version == __version__ else other_version(neighbour, version)
        return NeighbourCheck(neighbour.name, tls, True, version, problem=wrong)

    def _report(self, event: LinkEvent) -> None:
        if isinstance(event, Checked):
            with self.changed:
                self.asked[event.neighbour] = event.version
                self.changed.notify_all()
        if isinstance(event, Disagreed):
            with self.changed:
                self.differing[event.neighbour] = event.keys
                self.changed.notify_all()

    def _wait(self, reached: Callable[[], bool], seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(reached, seconds)
