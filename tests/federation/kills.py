"""Kills at scripted moments of members' rounds, with a record of what members drew and what their neighbours saw."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sottovoce.federation import guarantees, member_run
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.journal import GRADIENT, Journal, RecordedInputs
from sottovoce.federation.links import Mailbox
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import digest_of
from tests.federation.grpc_members import QUICK
from tests.federation.memory_links import Killed

COINS, COMPUTED, UNSTORED, STORED, SENT = "coins stored", "gradient computed", "not stored", "stored", "sent"
RECEIVED, KEPT = "received", "received and stored"
MOMENTS = (COINS, COMPUTED, UNSTORED, STORED, SENT, RECEIVED, KEPT)


@dataclass
class Kills:
    """Which member dies where, once, and what happened: keys of coins, released values, messages that were seen."""

    planned: set[tuple[str, str, Place]] = field(default_factory=set)
    coins: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    released: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[tuple[int, int, Place], set[str]] = field(default_factory=lambda: defaultdict(set))
    deaths: int = 0

    def pass_by(self, moment: str, place: Place) -> None:
        """Die if this is where the member whose thread this is dies."""
        here = (threading.current_thread().name, moment, Place(*place))
        if here in self.planned:
            self.planned.remove(here)
            self.deaths += 1
            raise Killed

    def survived(self, join: Callable[[bool], object]) -> object:
        """Take part, and again with `--resume` after every kill; what the last process returned."""
        resume = False
        while True:
            try:
                return join(resume)
            except Killed:
                resume = True

    def watch(self, patched: pytest.MonkeyPatch) -> None:
        """From now on members pass by here."""
        take, send, coins = Mailbox.take, GrpcLinks.send, Journal.coins
        note, store, received = Journal.note, Journal.before_send, Journal.received
        rounded_sum = RecordedInputs.released

        def taken(mailbox, sender, place, payload, *more):
            self.seen[mailbox._rules.member, sender, place].add(digest_of(payload))
            return take(mailbox, sender, place, payload, *more)

        def sending(links, place, payloads):
            send(links, place, payloads)
            self.pass_by(SENT, place)

        def drawn(journal, name, key):
            kept = coins(journal, name, key)
            self.coins[threading.current_thread().name, name.round].add(kept)
            self.pass_by(COINS, Place(name.round, 0))
            return kept

        def noted(journal, place, name, values):
            note(journal, place, name, values)
            if name == GRADIENT:
                self.pass_by(COMPUTED, place)

        def storing(journal, place, payloads):
            self.pass_by(UNSTORED, place)
            store(journal, place, payloads)
            self.pass_by(STORED, place)

        def receiving(journal, place, payloads):
            self.pass_by(RECEIVED, place)
            received(journal, place, payloads)
            self.pass_by(KEPT, place)

        def summed(inputs, gradient, noise, round):
            stored = inputs._journal.replayed(Place(round, 0)) is not None
            found = rounded_sum(inputs, gradient, noise, round)
            values = self.released[threading.current_thread().name, round]
            if not stored:
                values.clear()
            values.append(found.own.numpy().tobytes())
            return found

        for where, name, replaced in (
            (Mailbox, "take", taken), (GrpcLinks, "send", sending), (Journal, "coins", drawn),
            (Journal, "note", noted), (Journal, "before_send", storing),
            (Journal, "received", receiving), (RecordedInputs, "released", summed),
        ):  # fmt: skip
            patched.setattr(where, name, replaced)
        patched.setattr(member_run, "LinkSettings", lambda **_: QUICK)
        patched.setattr(guarantees, "report_wanted", self._reported_once(guarantees.report_wanted))

    def _reported_once(self, report_wanted):
        """The same agreement has the same guarantees at all members and after every kill: computed once."""
        lock, found = threading.Lock(), {}

        def reported(accountant, experiment):
            with lock:
                if id(experiment) not in found:
                    found[id(experiment)] = report_wanted(accountant, experiment)
                return found[id(experiment)]

        return reported
