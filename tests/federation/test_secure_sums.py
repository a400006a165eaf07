"""Secure sums between members: the integers of the simulation, and what is left when a message is missing."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from sottovoce import algorithm, uniform, weigh
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.integer_sums import encoded
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.pair_masks import Place as MaskPlace
from sottovoce.core.release import integer_sums
from sottovoce.errors import InputError, PeerLost
from sottovoce.federation.frames import MESSAGES, Kind, Reason
from sottovoce.federation.journal import RELEASED
from sottovoce.federation.link_rules import MaskedSums, mask_partners
from sottovoce.ledger.payloads import Place
from tests.federation.members import AGREEMENT, PATIENCE, Federation
from tests.federation.memory_links import Faults, Killed, MemoryNetwork


class WatchedNetwork(MemoryNetwork):
    """Keeps all that was sent under masks, by sender, receiver and place, whether it arrives or not."""

    def __init__(self, faults=None):
        super().__init__(faults)
        self.sent = defaultdict(set)

    def carry(self, frame, receiver):
        if frame.kind in MESSAGES:
            assert frame.kind is Kind.MASKED
            self.sent[frame.sender, receiver, frame.place].add(frame.payload)
        super().carry(frame, receiver)


def federation(name="secure-average", place="complete:4", weights="uniform", faults=None, **more):
    net = weigh(place, weights)
    built = with_exact_noise(algorithm(name, sigma=1.0, step_size=0.1), net)
    return Federation(built, net, network=WatchedNetwork(faults), **more)


def models(ends):
    return torch.cat([ends[member] for member in sorted(ends)])


def by_hand(members, lost):
    """Where members end, from what each has released into the sums; `lost` are the rounds and members without a sum."""
    x = members.start().numpy().copy()
    W, eta = members.topology.at(0).weights.toarray(), members.algorithm.step_size
    for round in range(members.rounds):
        steps = [members.journals[member].steps.get(Place(round, 0)) for member in range(len(x))]
        released = np.array([0 * x[0] if step is None else step.answers[RELEASED][0] for step in steps])
        if members.algorithm.name == "secure-average":
            after = x - eta * released.mean(axis=0)
        else:
            after = W @ (x - eta * released)
        x = np.array([x[member] if (round, member) in lost else after[member] for member in range(len(x))])
    return x


SQUARE = "edges:a--b,b--c,c--d,d--a,a--c"
CASES = [
    ("secure-average", "complete:3", "uniform"),
    ("secure-average", "complete:7", "uniform"),
    ("secure-gossip", "complete:4", "metropolis"),
    ("secure-gossip", "ring:5", "metropolis"),
    ("secure-gossip", SQUARE, "metropolis"),
    ("secure-gossip", "exponential:6", "uniform"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize(("name", "place", "weights"), CASES)
def test_members_play_the_run_of_the_simulation(name, place, weights, dtype):
    members = federation(name, place, weights, dtype=dtype)
    assert torch.equal(models(members.run()), members.simulated())
    assert members.network.refused == {}
    assert members.missed() == set()
    assert all(len(payloads) == 1 for payloads in members.network.sent.values())


@pytest.mark.parametrize("count", [3, 11, 50])
def test_what_receivers_make_of_masked_frames_is_the_plain_sum(count):
    """The frames of the transport, for any weights and values at the edge of what integers hold."""
    rng, words = np.random.default_rng(count), 16
    W = rng.integers(1, 9, (count, count)) * (1.0 - np.eye(count))
    net = uniform(f"complete:{count}")
    weights = integer_sums(with_exact_noise(algorithm("secure-gossip", sigma=1.0), net), net.at(0)).weights
    weights = weights._replace(numerators=type(weights.numerators)(W.astype(np.int64) + 3 * np.eye(count, dtype=int)))
    largest = 2**62 // int(weights.numerators.sum(axis=1).max())
    values = rng.integers(-largest, largest, (count, words), endpoint=True)
    values[:, 0], values[:, 1] = largest, -largest
    members = Federation(algorithm("secure-gossip", sigma=1.0), net)
    sums = [
        MaskedSums(one, tuple(f"node {v}" for v in range(count)), members.masks(one), False) for one in range(count)
    ]
    sent = [one.frames(weights, values[number], Place(3, 0)) for number, one in enumerate(sums)]
    for receiver in range(count) if count < 20 else (0, count - 1):
        received = {sender: frames[receiver] for sender, frames in enumerate(sent) if receiver in frames}
        assert len(received) == count - 1
        total = sums[receiver].total(weights, values[receiver], received).view(np.int64)
        row = [weights.weight(receiver, sender) for sender in range(count)]
        assert total.tolist() == [sum(w * int(v) for w, v in zip(row, column, strict=True)) for column in values.T]


@pytest.mark.parametrize("value", [0, 2**50, -1])
def test_what_a_receiver_and_all_but_two_senders_have_is_uniform(value):
    """Of the frames that the transport sends, every mask that accomplices know taken off; a bare message is not."""
    members, words, names = federation(place="complete:6"), 20_000, tuple(f"node {v}" for v in range(6))
    weights = integer_sums(members.algorithm, members.topology.at(0)).weights
    integers, place = np.full(words, value), Place(2, 0)
    sent = MaskedSums(4, names, members.masks(4), True).frames(weights, integers, place)[0]
    known = sum(members.masks(one).mask(MaskPlace(*place, names[0]), [names[4]], words) for one in (1, 2, 3))
    left = np.frombuffer(sent, np.uint64) + known
    for what, uniform_bytes in ((left, True), (integers.astype(np.uint64), False)):
        counts = np.bincount(np.frombuffer(what.tobytes(), np.uint8), minlength=256)
        assert bool(stats.chisquare(counts).pvalue > 1e-6) is uniform_bytes


# --- a message that is missing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place"), [("secure-average", "complete:4"), ("secure-gossip", "ring:5"), ("secure-gossip", "complete:4")]
)
def test_a_member_whose_sum_fails_stays_where_it_was(name, place):
    """The others, whose sums were whole, go on with the step of that member among them."""
    members = federation(name, place, faults=Faults().drop(2, 3, Place(1, 0)), rounds=4)
    ends = models(members.run())
    assert members.missed() == {(3, 2, Place(1, 0))}
    np.testing.assert_allclose(ends, by_hand(members, {(1, 3)}), rtol=0, atol=1e-9)
    assert np.abs(ends.numpy() - by_hand(members, set())).max() > 1e-3
    assert all(played == list(range(4)) for played in members.rounds_played.values())


def test_what_comes_too_late_is_never_used_and_never_asked_for_again():
    members = federation(faults=Faults().delay(2, 3, Place(1, 0), 3.5 * PATIENCE), rounds=4)
    ends = models(members.run())
    np.testing.assert_allclose(ends, by_hand(members, {(1, 3)}), rtol=0, atol=1e-9)
    assert members.journals[3].steps[Place(1, 0)].received.keys() == {0, 1}


def test_a_member_that_is_gone_ends_sums_over_all_and_not_those_over_neighbours():
    members = federation(faults=Faults().kill(0, Place(2, 0)), rounds=20)

    def leaves(member):
        def act():
            with pytest.raises((Killed, PeerLost)) as error:
                members.join(member)
            return str(error.value)

        return act

    said = members.run({member: leaves(member) for member in range(4)})
    assert all("node 0 did not answer in round 3 either" in said[member] for member in (1, 2, 3)), said
    assert max(place.round for _, _, place in members.network.sent) == 3  # two rounds were lost, and no more spent
    members = federation("secure-gossip", "ring:6", faults=Faults().kill(0, Place(2, 0)), rounds=6)
    members.run({0: leaves(0)})
    lost = {(one, gone, place.round) for one, gone, place in members.missed()}
    assert lost == {(one, 0, round) for one in (1, 5) for round in range(2, 6)}
    assert members.network.clock.now() < 8 * PATIENCE


# --- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_sending", [False, True])
@pytest.mark.parametrize("pause", [0.0, 1.5 * PATIENCE])
def test_after_a_restart_no_mask_is_used_twice_and_the_run_ends(after_sending, pause):
    """Rounds that neighbours know of are left out, what was recorded is sent as it was."""
    members = federation(faults=Faults().kill(1, Place(2, 0), after_sending=after_sending), rounds=9)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(1)
        members.network.clock.sleep(pause)
        return members.join(1, Place(2, 0))

    members.run({1: dies_and_returns})
    assert all(len(payloads) == 1 for payloads in members.network.sent.values())
    later = [round for round in members.rounds_played[1] if round > 2]
    assert later[-1] == 8
    assert later[0] <= 5
    assert members.unended == {}
    for member in (0, 2, 3):
        lost = {place.round for one, _, place in members.missed() if one == member}
        assert lost <= {2, 3, 4}


def test_a_folder_that_was_put_back_uses_no_mask_again():
    """Its neighbours know of later rounds; a journal in memory does not look at receipts, so only abstention helps."""
    members = federation(faults=Faults().kill(1, Place(4, 0), after_sending=True), rounds=9)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(1)
        for round in (2, 3, 4):
            del members.journals[1].steps[Place(round, 0)]
        return members.join(1, Place(1, 0))

    members.run({1: dies_and_returns})
    assert all(len(payloads) == 1 for payloads in members.network.sent.values())
    assert not {place.round for place in members.journals[1].steps} & {2, 3, 4}
    assert max(place.round for place in members.journals[1].steps) == 8


def test_without_abstaining_the_same_masks_would_show_what_changed(monkeypatch):
    """The attack that it ends: two messages under one mask, subtracted, are two noisy values and no mask."""
    monkeypatch.setattr("sottovoce.federation.peer_transport.PeerTransport._abstain", lambda *_: 0)
    members = federation(faults=Faults().kill(1, Place(2, 0), after_sending=True), rounds=4)

    def dies_and_returns():
        with pytest.raises(Killed):
            members.join(1)
        del members.journals[1].steps[Place(2, 0)]
        members.join(1, Place(1, 0), key=8)

    members.run({1: dies_and_returns})
    twice = [payloads for payloads in members.network.sent.values() if len(payloads) > 1]
    one, other = (np.frombuffer(payload, np.int64) for payload in twice[0])
    assert len(twice) == 3
    assert np.abs(one - other).max() < 2**45  # of 2^63: a difference of noise


def test_who_does_not_say_where_it_stands_ends_a_restart():
    members = federation(faults=Faults().kill(1, Place(2, 0)), rounds=9)
    with pytest.raises(PeerLost, match="no answer from node 0, node 1 and node 3; with secure sums"):
        members.run({0: lambda: None, 1: lambda: None, 3: lambda: None})


# --- members that do not keep to the agreement -------------------------------------------------------------------


def hostile(members, frames):
    """All play, and before member 1's first message reaches member 0 these arrive over its connection."""
    real, done = members.network.carry, []

    def carry(frame, receiver):
        if frame.kind is Kind.MASKED and (frame.sender, receiver) == (1, 0) and not done:
            done.append(True)
            for one in frames(frame):
                members.network.hand_over(1, 0, one)
        real(frame, receiver)

    members.network.carry = carry
    return models(members.run())


def changed(frame, **fields):
    return replace(frame, **fields)


HOSTILE = {
    "of another agreement": (lambda f: [changed(f, agreement=bytes(32))], Reason.AGREEMENT),
    "another's": (lambda f: [changed(f, sender=2)], Reason.SENDER),
    "too short": (lambda f: [changed(f, payload=f.payload[:-8])], Reason.LENGTH),
    "not masked": (lambda f: [changed(f, kind=Kind.MESSAGE)], Reason.FORMAT),
    "of a round that there is not": (lambda f: [changed(f, place=Place(99, 0))], Reason.PLACE),
    "replayed": (lambda f: [f, f], None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_frames_that_are_not_those_of_the_agreement_change_nothing(what):
    frames, reason = HOSTILE[what]
    members = federation(rounds=12)
    ends = hostile(members, frames)
    assert torch.equal(ends, members.simulated())
    assert members.network.refused == ({} if reason is None else {(0, reason): 1})


def test_of_two_messages_for_a_place_the_first_is_used_and_the_second_refused():
    """What a member gets who sends two: a sum that fails, since the masks of the first were not the agreed ones."""
    members = federation(rounds=3)
    ends = hostile(members, lambda frame: [changed(frame, payload=bytes(len(frame.payload)))])
    assert members.network.refused == {(0, Reason.EQUIVOCATION): 1, (1, Reason.RECEIPT): 1}
    np.testing.assert_allclose(ends, by_hand(members, {(0, 0)}), rtol=0, atol=1e-9)


@pytest.mark.parametrize("what", ["leaves one out of the set", "adds noise of its own kind"])
def test_a_member_that_lies_about_its_set_or_sends_anything_makes_sums_fail(monkeypatch, what):
    """Nobody learns anything: sums that are out of range count as failed, and models stay where they were."""
    real = PairMasks.mask

    def mask(masks, place, others, count):
        if masks._own == "node 1" and place.round == 1:
            if what == "leaves one out of the set":
                return real(masks, place, sorted(others)[1:], count)
            return np.random.default_rng(0).integers(0, 2**64, count, dtype=np.uint64)
        return real(masks, place, others, count)

    monkeypatch.setattr(PairMasks, "mask", mask)
    members = federation(rounds=4)
    ends = models(members.run())
    np.testing.assert_allclose(ends, by_hand(members, {(1, 0), (1, 2), (1, 3)}), rtol=0, atol=1e-9)


def test_a_message_within_the_range_poisons_the_sum_and_nobody_sees_whose_it_was(monkeypatch):
    """Possible, and said: docs/secure-sums.md."""
    real = MaskedSums.frames

    def frames(sums, weights, integers, place):
        return real(sums, weights, integers + (2**40 if sums.member == 1 else 0), place)

    monkeypatch.setattr(MaskedSums, "frames", frames)
    members = federation(rounds=1)
    ends = models(members.run())
    step = integer_sums(members.algorithm, members.topology.at(0)).step
    moved = 0.1 * 2**40 * step / 4
    np.testing.assert_allclose(by_hand(members, set()) - ends.numpy(), [[moved], [0], [moved], [moved]] * np.ones(3))


def test_agreements_differ_in_their_masks_and_so_do_places():
    members = federation()
    weights = integer_sums(members.algorithm, members.topology.at(0)).weights
    zeros, seen = encoded(np.zeros(8), 1.0), set()
    for agreement in (AGREEMENT, hashlib.sha256(b"another").digest()):
        for place in (Place(0, 0), Place(1, 0), Place(0, 1)):
            for member in range(4):
                sums = MaskedSums(member, tuple(f"node {v}" for v in range(4)), members.masks(member, agreement), True)
                seen |= set(sums.frames(weights, zeros, place).values())
    assert len(seen) == 2 * 3 * 4 * 3
    assert mask_partners(members.topology, 2) == {0, 1, 3}


def test_what_cannot_be_summed_by_members_is_refused():
    with pytest.raises(InputError, match="its noise is added by a trusted server"):
        Federation(algorithm("dp-fedavg", sigma=1.0), uniform("complete:4")).rules(0)
    with pytest.raises(InputError, match="node 0 gets a sum over node 1; with 1 colluder every sum is over at least 2"):
        federation("secure-gossip", "path:4").rules(0)
    net = uniform("complete:4")
    built = with_exact_noise(algorithm("secure-average", sigma=1.0, colluders=3), net)
    with pytest.raises(InputError, match="with 3 colluders every sum is over at least 4 others"):
        Federation(built, net).rules(0)
