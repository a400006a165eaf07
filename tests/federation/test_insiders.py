"""A neighbour that lies about itself: what it costs others is bounded, it is named, and nobody spends more or stops."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

import tests.federation.members as scaffolding
from sottovoce import algorithm, metropolis
from sottovoce.core.grid import with_exact_noise
from sottovoce.errors import PeerLost
from sottovoce.federation.attendance import EXTENDED, Enough
from sottovoce.federation.frames import ABSENCE, Frame, Kind
from sottovoce.ledger.payloads import FIRST, Place
from tests.federation.members import AGREEMENT, PATIENCE, Federation
from tests.federation.memory_links import Faults, Killed, MemoryLinks, MemoryNetwork

DP_D_SGD = algorithm("dp-d-sgd", sigma=1.0, step_size=0.1)
ROUNDS = 12


def federation(faults=None, method=DP_D_SGD, place="ring:4", rounds=ROUNDS, **more):
    return Federation(method, metropolis(place), rounds, network=MemoryNetwork(faults or Faults()), **more)


def says(members, liar, to, kind, place, content=b""):
    """What a liar sends to one of its neighbours, over the connection that it has."""
    members.network.hand_over(liar, to, Frame(AGREEMENT, place, liar, kind, content))


def alone(members, victim, lie, seconds):
    """The victim with a liar that never sends a message; its other neighbour has said hello and is away."""
    clock = members.network.clock

    def away():
        with MemoryLinks(members.rules(3), members.network):
            clock.sleep(1.0)

    def liar():
        with MemoryLinks(members.rules(1), members.network):
            lie()
            clock.sleep(seconds)

    def incomplete():
        with pytest.raises(PeerLost):
            members.join(victim)

    members.run({0: incomplete, 1: liar, 3: away, 2: lambda: None})


@pytest.mark.parametrize("kind", [Kind.WAITING, Kind.ABSENT])
def test_a_neighbour_that_claims_to_be_far_ahead_or_absent_lets_nobody_play_alone(kind):
    members = federation(enough=Enough(1, 100.0))
    claims = {
        Kind.WAITING: lambda: says(members, 1, 0, kind, Place(ROUNDS - 1, 0)),
        Kind.ABSENT: lambda: says(members, 1, 0, kind, Place(ROUNDS - 1, 0), ABSENCE.pack(0, 0)),
    }
    alone(members, 0, claims[kind], 300.0)
    assert members.journals[0].newest() <= Place(1, 0), "no budget is spent without anybody who is heard"


class Ahead(MemoryLinks):
    """A member that follows the agreement, but says in every hello that it is in the last round."""

    def hello(self, neighbour):
        return replace(super().hello(neighbour), place=Place(ROUNDS - 1, 0))


def test_a_false_claim_of_the_last_round_keeps_nobody_from_its_sums(monkeypatch):
    """After a restart with secure sums the second-highest claim counts, and what neighbours have received."""
    net = metropolis("complete:4")
    method = with_exact_noise(algorithm("secure-gossip", sigma=1.0, step_size=0.1), net)
    members = federation(Faults().kill(0, Place(3, 0), after_sending=True), method, "complete:4")
    monkeypatch.setattr(
        scaffolding, "MemoryLinks",
        lambda rules, network, *, at: (Ahead if rules.member == 1 else MemoryLinks)(rules, network, at=at),
    )  # fmt: skip

    def returns():
        with pytest.raises(Killed):
            members.join(0)
        return members.join(0, Place(3, 0))

    def liar():
        """Others may believe that it has ended, and leave: that is its own loss."""
        with contextlib.suppress(PeerLost):
            return members.join(1)

    members.run({0: returns, 1: liar})
    assert set(range(6, ROUNDS)) <= set(members.rounds_played[0])
    assert (0, 1) in members.named("doubted")


def test_who_says_for_ever_that_it_waits_itself_makes_others_wait_less_and_less():
    members = federation(rounds=120, seconds=dict.fromkeys((0, 2, 3), 1.0))

    def liar():
        """Again and again it says that it waits where its neighbours are; it sends no message."""
        with MemoryLinks(members.rules(1), members.network):
            while members.ended.keys() < {0, 2, 3}:
                for to in (0, 2):
                    at = members.journals[to].newest() if to in members.journals else FIRST
                    says(members, 1, to, Kind.WAITING, at or FIRST)
                members.network.clock.sleep(0.1)

    members.run({1: liar})
    assert members.ended[0] <= 120 + 12 * EXTENDED * PATIENCE, "a few of 120 rounds"
    assert {(0, 1), (2, 1)} <= members.named("slow")


def test_members_that_begin_one_after_the_other_wait_for_each_other_where_all_are_needed():
    """All restart, each in its own time: who is connected and has yet to begin is given as long as a first start is."""
    faults = Faults()
    for member in range(6):
        faults = faults.kill(member, Place(3, 0), after_sending=member % 2 == 0)
    method = algorithm("decor", sigma=1.0, sigma_pair=1.0)
    members = federation(faults, method, "ring:6", gather=30 * PATIENCE)

    def restarts(member):
        with pytest.raises(Killed):
            members.join(member)
        members.network.clock.sleep(4 * PATIENCE * (member + 1))
        return members.join(member, members.journals[member].newest())

    ends = members.run({member: lambda member=member: restarts(member) for member in range(6)})
    assert members.missed() == set()
    torch.testing.assert_close(torch.cat([ends[one] for one in range(6)]), members.simulated(), rtol=0, atol=1e-12)
