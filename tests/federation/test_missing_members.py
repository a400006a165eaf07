"""Members who are missing, late, partitioned or killed: what the others do, and where a member goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce import algorithm, metropolis, weigh
from sottovoce.algorithms.registry import examples
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.topologies import Changing
from sottovoce.errors import PeerLost
from sottovoce.federation.attendance import Attendance, Enough, Patience
from sottovoce.federation.frames import Reason
from sottovoce.federation.link_rules import why_all_are_needed
from sottovoce.ledger.payloads import FIRST, Place
from tests.cases import task as made_up
from tests.cases import weights_for
from tests.federation.journals import NoJournal
from tests.federation.members import PATIENCE, SEED, Federation
from tests.federation.memory_links import Faults, Killed, MemoryLinks, MemoryNetwork

DP_D_SGD = algorithm("dp-d-sgd", sigma=1.0, step_size=0.1)
ZIP_DL = algorithm("zip-dl", sigma=1.0)
MUFFLIATO = algorithm("muffliato-sgd", sigma=1.0, step_size=0.1, gossip_steps=3)


def federation(faults, method=DP_D_SGD, place="ring:6", rounds=4, **more):
    weights = "push" if method.requires == "column-stochastic" else "metropolis"
    return Federation(method, weigh(place, weights), rounds, network=MemoryNetwork(faults), **more)


def ends_of(members, acts=None):
    ends = members.run(acts)
    return torch.cat([ends[member] for member in sorted(ends)])


def test_who_is_missed_once_is_left_out_of_that_step_with_its_weight_to_oneself():
    members = federation(Faults().drop(2, 3, Place(1, 0)))
    ends = ends_of(members)
    assert members.missed() == {(3, 2, Place(1, 0))}
    whole = members.topology.at(0)
    W = whole.weights.toarray()
    W[3, 3] += W[3, 2]
    W[3, 2] = 0.0
    without = Mixing(type(whole.weights)(W))
    members.topology = Changing(lambda round, step: without if round == 1 else whole, n=6, name="one message lost")
    np.testing.assert_allclose(ends, members.simulated(), rtol=0, atol=1e-12)


def test_a_share_of_push_sum_that_is_not_heard_is_lost_in_value_and_in_weight():
    method = algorithm("dp-csgp", sigma=0.0, step_size=0.1)
    members = federation(Faults().drop(0, 1, Place(1, 0)), method, "exponential:6")
    ends = ends_of(members)
    W, gradient = members.topology.at(0).weights.toarray(), made_up(6)
    weight = W @ np.ones((6, 1))
    x = members.start().numpy() * weight
    for round in range(members.rounds):
        x = x - 0.1 * gradient(round, x / weight)
        heard = W.copy()
        heard[1, 0] *= round != 1
        x, weight = heard @ x, heard @ weight
    assert weight.sum() < 6
    np.testing.assert_allclose(ends, x / weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [DP_D_SGD, MUFFLIATO], ids=lambda method: method.name)
def test_what_is_late_within_patience_or_comes_twice_changes_nothing(method):
    faults = Faults().delay(2, 3, Place(1, 0), 0.9 * PATIENCE).duplicate(4, 3, Place(2, 0)).duplicate(0, 1, Place(0, 0))
    members = federation(faults, method)
    assert torch.equal(ends_of(members), members.simulated())
    assert members.missed() == set()
    assert members.network.refused == {}


def test_patience_is_shared_by_the_steps_of_a_round():
    faults = Faults()
    for step in range(3):
        faults = faults.delay(2, 3, Place(1, step), 0.6 * PATIENCE)
    members = federation(faults, MUFFLIATO)
    members.run()
    assert members.missed() == {(3, 2, Place(1, 2))}


def test_one_absence_does_not_tear_links_between_others_apart():
    """Member 0 ends for good. Whoever waits for those that wait for it goes on waiting: no other is ever missed."""
    members = federation(Faults().kill(0, Place(2, 0)), place="path:7", rounds=8)

    def dies():
        with pytest.raises(Killed):
            members.join(0)

    members.run({0: dies})
    assert members.missed() == {(1, 0, Place(round, 0)) for round in range(2, 8)}
    assert members.network.clock.now() == pytest.approx(2 * PATIENCE)


def test_a_member_that_was_away_goes_on_where_its_neighbours_are():
    members = federation(Faults().kill(0, Place(3, 0)), rounds=30, seconds=dict.fromkeys(range(6), 1.0))

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(0)
        members.network.clock.sleep(2 * PATIENCE + 9.0)
        return members.join(0, Place(3, 0))

    members.run({0: dies_and_returns})
    before, after = range(3), members.rounds_played[0][3:]
    replayed = [round for round in after if round <= 3]
    assert members.rounds_played[0][:3] == list(before)
    assert replayed == [0, 1, 2, 3]
    resumed = after[4]
    assert 4 + 3 < resumed < 15
    assert after[4:] == list(range(resumed, 30))
    assert {step.place.round for step in members.steps[1] if 0 in step.missing} <= set(range(3, resumed + 2))
    assert {(one, gone) for one, gone, _ in members.missed() if 0 not in (one, gone)} == set()
    assert members.network.refused.keys() <= {(0, Reason.TOO_EARLY), (1, Reason.TOO_OLD), (5, Reason.TOO_OLD)}


def test_a_partition_heals():
    half = frozenset({0, 1, 2})
    members = federation(Faults().partition(half, 3, 8), rounds=16, seconds=dict.fromkeys(range(6), 1.0))
    members.run()
    crossing = {(2, 3), (3, 2), (0, 5), (5, 0)}
    assert {(one, gone) for one, gone, _ in members.missed()} == crossing
    rounds = {place.round for _, _, place in members.missed()}
    assert rounds >= set(range(3, 8))
    assert max(rounds) <= 10
    assert all(played == list(range(16)) for played in members.rounds_played.values())


def test_a_slow_member_on_a_directed_graph_is_never_run_over():
    members = federation(
        Faults(), algorithm("dp-csgp", sigma=1.0), "exponential:6", rounds=12, seconds={2: 0.3 * PATIENCE}
    )
    assert torch.equal(ends_of(members), members.simulated())
    assert members.missed() == set()
    assert members.network.refused == {}


def test_whoever_hears_nobody_pauses_and_keeps_its_budget_until_somebody_is_back():
    """Member 0 of a path hears member 1 alone, which is away for an hour."""
    members = federation(Faults().kill(1, Place(3, 0)), place="path:4", rounds=12)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(1)
        members.network.clock.sleep(3600.0)
        assert members.rounds_played[0][-1] == 2
        assert members.journals[0].newest() == Place(3, 0), "one step is committed, and no further one"
        assert 11 in members.rounds_played[2], "who hears somebody goes on"
        return members.join(1, Place(3, 0))

    members.run({1: dies_and_returns})
    assert members.paused[0] == (0, 3, {1})
    assert members.rounds_played[0][:5] == [0, 1, 2, 3, 4]
    assert members.rounds_played[0][-1] == 11


def test_an_agreed_minimum_of_two_is_waited_for_and_a_pause_ends_after_its_limit():
    members = federation(Faults().kill(0, Place(2, 0)), place="ring:4", rounds=9, enough=Enough(2, 500.0))

    def stops(member):
        with pytest.raises((Killed, PeerLost)) as stopped:
            members.join(member)
        return members.network.clock.now(), str(stopped.value)

    ends = members.run({member: lambda member=member: stops(member) for member in range(4)})
    assert "in round 2 there was no answer from node 0 for 500 s" in ends[1][1]
    assert 500.0 + PATIENCE <= ends[1][0] <= 500.0 + 4 * PATIENCE
    assert {member: members.journals[member].newest().round for member in range(4)} == {0: 2, 1: 2, 2: 3, 3: 2}


def test_nothing_is_sent_before_enough_neighbours_are_there():
    members = federation(Faults(), place="path:2", rounds=2)

    def late():
        members.network.clock.sleep(50 * PATIENCE)
        assert members.journals[0].newest() is None
        return members.join(1)

    assert torch.equal(ends_of(members, {1: late}), members.simulated())
    assert members.paused == [(0, 0, {1})]
    assert members.missed() == set()


def test_all_members_can_restart_at_once_each_in_its_own_time():
    """A member that goes on gives the others as long as a first start does, not the patience of a round."""
    faults = Faults()
    for member in range(6):
        faults = faults.kill(member, Place(3, 0), after_sending=member % 2 == 0)
    members = federation(faults, place="complete:6", rounds=8, gather=30 * PATIENCE)

    def restarts(member):
        with pytest.raises(Killed):
            members.join(member)
        members.network.clock.sleep(4 * PATIENCE * (member + 1))
        return members.join(member, members.journals[member].newest())

    ends = ends_of(members, {member: lambda member=member: restarts(member) for member in range(6)})
    assert members.missed() == set()
    assert torch.equal(ends, members.simulated())


# --- algorithms that need all ----------------------------------------------------------------------------------------

NEED_ALL = {"zip-dl", "zip-dl-averaging", "rss-nb", "rss-lb", "decor", "swarm"}


@pytest.mark.parametrize("example", examples(), ids=str)
def test_which_algorithms_need_all_messages_follows_from_what_they_are(example):
    method = algorithm(example.name, **example.settings)
    reason = why_all_are_needed(method, weigh("complete:4", weights_for(example, "complete:4")).at(0))
    assert (reason is not None) == (example.name in NEED_ALL or "compression" in example.settings)


@pytest.mark.parametrize(
    ("method", "place", "why"),
    [
        (algorithm("zip-dl", sigma=1.0), "ring:5", "the noise on single messages cancels"),
        (algorithm("decor", sigma=1.0, sigma_pair=1.0), "ring:5", "neighbours share noise"),
        (
            algorithm("dp-csgp", sigma=1.0, compression="rand:0.5"),
            "exponential:6",
            "compressed messages are differences",
        ),
    ],
    ids=["zip-dl", "decor", "dp-csgp"],
)
def test_where_a_proof_needs_all_messages_the_run_stops_and_says_why(method, place, why):
    members = federation(Faults().kill(0, Place(1, 0)), method, place)
    said = {}

    def stops(member):
        with pytest.raises((PeerLost, Killed)) as stopped:
            members.join(member)
        said[member] = str(stopped.value)

    members.run({member: lambda member=member: stops(member) for member in range(members.topology.n)})
    assert said[1].startswith("node 0 did not answer in round 1, step 0; " + why)
    assert members.missed() == set()


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_sending", [False, True])
@pytest.mark.parametrize(
    "method",
    [DP_D_SGD, MUFFLIATO, ZIP_DL, replace(ZIP_DL, exact_noise=True)],
    ids=("dp-d-sgd", "muffliato-sgd", "zip-dl", "zip-dl on a grid"),
)
def test_a_member_that_is_killed_after_recording_goes_on_and_the_run_is_the_same(method, after_sending):
    place = Place(2, method.gossip_steps - 1)
    members = federation(Faults().kill(2, place, after_sending=after_sending), method)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(2)
        return members.join(2, place)

    ends = ends_of(members, {2: dies_and_returns})
    in_other_order = method.noise.edge(members.topology.at(0)) and not method.exact_noise
    np.testing.assert_allclose(ends, members.simulated(), rtol=0, atol=1e-12 if in_other_order else 0)
    assert members.missed() == set()
    assert {reason for _, reason in members.network.refused} <= {Reason.TOO_EARLY}


@pytest.mark.parametrize("method", [DP_D_SGD, algorithm("decor", sigma=1.0, sigma_pair=1.0)], ids=lambda one: one.name)
def test_a_member_that_is_killed_in_the_last_step_finds_its_neighbours_within_their_patience(method):
    last = Place(3, 0)
    members = federation(Faults().kill(2, last, after_sending=True), method)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(2)
        members.network.clock.sleep(0.9 * PATIENCE)
        return members.join(2, last)

    assert torch.equal(ends_of(members, {2: dies_and_returns}), members.simulated())
    assert members.missed() == set()
    assert members.unended == {}


def test_at_the_end_nobody_is_waited_for_longer_than_its_patience():
    members = federation(Faults().kill(2, Place(3, 0), after_sending=True))

    def dies():
        with pytest.raises(Killed):
            members.join(2)

    members.run({2: dies})
    assert members.missed() == set()
    assert members.unended == {1: {2}, 3: {2}}
    assert members.network.clock.now() <= 3 * PATIENCE


def test_who_has_ended_and_is_asked_by_nobody_ends_again_at_once_when_its_neighbours_are_there():
    """Killed after the last step was recorded: it replays, and meets those that serve it at the end."""
    members = federation(Faults())
    members.run()
    before = members.network.clock.now()
    ends = ends_of(members, {one: lambda one=one: members.join(one, Place(3, 0)) for one in range(6)})
    assert torch.equal(ends, members.simulated())
    assert members.network.clock.now() == before


@pytest.mark.parametrize("recorded", [True, False])
def test_recorded_bytes_are_sent_again_even_where_the_noise_would_be_another(recorded):
    """Without a journal, the same restart sends two messages for a place, and is found out."""
    place = Place(2, 0)
    members = federation(Faults().kill(2, place, after_sending=True))
    if not recorded:
        members.journals[2] = NoJournal()

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(2)
        if not recorded:
            with pytest.raises(PeerLost, match="this run is incomplete"):
                members.join(2, place, key=99)
            return None
        sent = dict(members.journals[2].steps)
        end = members.join(2, place, key=99)
        assert all(members.journals[2].steps[one].sent == step.sent for one, step in sent.items())
        return end

    members.run({2: dies_and_returns})
    reasons = {reason for _, reason in members.network.refused}
    assert (Reason.EQUIVOCATION in reasons) is not recorded


def test_rounds_that_were_left_out_once_stay_left_out():
    """A second restart replays what was recorded on both sides of the gap, and nothing in between."""
    faults = Faults().kill(0, Place(3, 0)).kill(0, Place(14, 0))
    members = federation(faults, rounds=30, seconds=dict.fromkeys(range(6), 1.0))

    def dies_twice():
        for pause in (2 * PATIENCE + 9.0, 0.0):
            with pytest.raises(Killed):
                members.join(0, members.journals[0].newest() if 0 in members.journals else FIRST)
            members.network.clock.sleep(pause)
        before = list(members.rounds_played.pop(0))
        return members.join(0, members.journals[0].newest()), before

    ends = members.run({0: dies_twice})
    _, before = ends[0]
    first, again = before[:3], before[3:]
    assert first == [0, 1, 2]
    gap = again[4]
    assert again == [0, 1, 2, 3, *range(gap, 14)]
    assert gap > 7
    assert members.rounds_played[0] == [0, 1, 2, 3, *range(gap, 30)]
    assert Reason.EQUIVOCATION not in {reason for _, reason in members.network.refused}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_random_kills_never_show_two_messages_for_a_place_and_the_run_ends(seed):
    rng, faults = np.random.default_rng(seed), Faults()
    for _ in range(6):
        place = Place(int(rng.integers(8)), int(rng.integers(3)))
        faults = faults.kill(int(rng.integers(1, 4)), place, after_sending=bool(rng.integers(2)))
    members = federation(faults, MUFFLIATO, "ring:5", rounds=8, seconds=dict.fromkeys(range(5), 1.0))
    too_late = set()
    pauses = {member: iter(rng.choice([0.0, 0.5, 15.0], size=9)) for member in range(5)}

    def until_the_end(member):
        key = 7
        while True:
            at = members.journals[member].newest() if key > 7 else FIRST
            try:
                return members.join(member, at, key)
            except PeerLost:
                too_late.add(member)
                return None
            except Killed:
                key += 1
                members.network.clock.sleep(float(next(pauses[member])))

    members.run({member: lambda member=member: until_the_end(member) for member in range(5)})
    assert members.rounds_played.keys() | too_late == set(range(5))
    assert all(played[-1] == 7 for member, played in members.rounds_played.items() if member not in too_late)
    assert too_late <= {1, 2, 3}, "only who was killed comes back when the others have ended"
    assert Reason.EQUIVOCATION not in {reason for _, reason in members.network.refused}


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed", "missed", "furthest"),
    [
        ({}, set(), None),
        ({1: 90}, set(), 90),
        ({1: 90, 2: 12}, set(), 12),
        ({1: 90, 2: 90, 3: 12}, set(), 90),
        ({1: 2**32 - 1, 2: 7, 3: 6}, set(), 7),
        ({1: 90, 2: 12}, {2}, 90),
        ({1: 90, 2: 12}, {1}, 12),
        ({1: 90, 2: 12}, {1, 2}, 12),
    ],
)
def test_neighbours_are_as_far_as_two_of_them_say_or_the_only_one_that_is_not_missed(claimed, missed, furthest):
    members = federation(Faults(), place="complete:6")
    links = MemoryLinks(members.rules(0), members.network)
    links._claims = {one: Place(round, 0) for one, round in claimed.items()}
    links.note_missed(missed)
    assert max((at.round for at in links.reached().values()), default=None) == furthest


def test_noise_belongs_to_the_rounds_of_the_agreement_whichever_are_played():
    net, x0 = metropolis("ring:5"), np.zeros((5, 4))
    noise = algorithm("mafalda", sigma=1.0, rounds=12).on(net).noise
    (term,) = noise.local(net.at(0))

    def rows(rounds):
        feed = NoiseFeed(SEED, NoiseKey.of_seed(SEED), lambda round, x: x, x0)
        return {t: feed.correlated(noise.correlation, term.sources, term.matrix, t) for t in rounds}

    every, some = rows(range(9)), rows([0, 1, 7, 8])
    assert all(np.array_equal(every[round], found) for round, found in some.items())


class Waiting:
    """Links of which only who waits matters, and a clock that attempts move on."""

    def __init__(self, waiting):
        self._waiting, self.time = waiting, 0.0

    def waiting(self):
        return self._waiting

    def connected_ones(self):
        return frozenset(self._waiting)

    def now(self):
        return self.time

    def attempt(self, members, seconds):
        self.time += seconds
        return members


@pytest.mark.parametrize(
    ("waiting", "patiences"),
    [({}, 1), ({1: Place(5, 0)}, 3), ({1: Place(4, 1)}, 3), ({1: Place(5, 1)}, 1), ({2: Place(5, 0)}, 1)],
    ids=["nobody", "here", "before", "later", "another"],
)
def test_a_neighbour_that_waits_itself_is_waited_for_three_times_as_long(waiting, patiences):
    links = Waiting(waiting)
    patience = Patience(PATIENCE, links, links, Attendance(slack=3))
    patience.wait(Place(5, 0), {1}, links.attempt)
    assert links.time == pytest.approx(patiences * PATIENCE)
    patience.wait(Place(5, 1), {1}, links.attempt)
    assert links.time == pytest.approx(max(patiences, 3 if waiting == {1: Place(5, 1)} else 1) * PATIENCE)
    patience.wait(Place(6, 0), {3}, links.attempt)
    assert links.time == pytest.approx((max(patiences, 3 if waiting == {1: Place(5, 1)} else 1) + 1) * PATIENCE)


def test_after_two_misses_a_member_is_not_waited_for_until_it_is_near():
    attendance, nothing = Attendance(slack=3), frozenset()
    gone = frozenset({4})
    attendance.note(nothing, gone, 6, {4: Place(6, 0)})
    assert attendance.awaited(gone, 7, {4: Place(6, 0)}) == gone
    attendance.note(nothing, gone, 7, {4: Place(6, 0)})
    assert attendance.awaited(gone, 8, {4: Place(6, 0)}) == nothing
    assert attendance.awaited(gone, 20, {4: Place(7, 0)}) == nothing
    assert attendance.awaited(gone, 20, {4: Place(17, 0)}) == gone
    attendance.note(gone, nothing, 20, {})
    attendance.note(nothing, gone, 21, {})
    assert attendance.awaited(gone, 22, {}) == gone
