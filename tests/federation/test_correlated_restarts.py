"""Noise that is correlated over rounds, at members that are killed and go on: the bits of a member that never was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce import InputError, SecretSource, algorithm, metropolis
from sottovoce.core.correlation import ClassCorrelation, Triangular
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.messages import LoopState
from sottovoce.core.noise import Temporal
from sottovoce.errors import PeerLost
from sottovoce.federation.journal import Journal, RecordedInputs, decode_state, encode_state
from sottovoce.federation.peer_transport import PeerTransport
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.payloads import FIRST, Place
from sottovoce.ledger.steps import Steps
from tests.cases import DIMENSION
from tests.cases import task as made_up
from tests.federation.members import PATIENCE, SEED, Federation, Noted
from tests.federation.memory_links import Faults, Killed, MemoryLinks, MemoryNetwork
from tests.ledger.verified import verify

RUN = "c" * 64
COMPUTED, STORED, SENT, RECEIVED = "not stored", "stored", "sent", "received"
MOMENTS = (COMPUTED, STORED, SENT, RECEIVED)
BAND = Triangular(np.eye(12) + 0.5 * np.eye(12, k=-1) - 0.3 * np.eye(12, k=-2))
DENSE = Triangular(np.tril(np.random.default_rng(0).uniform(0.1, 1.0, (12, 12))) + np.eye(12))
CLASSES = replace(
    algorithm("mf-d-sgd", sigma=1.0, step_size=0.1, correlation=BAND),
    noise=Temporal(1.0, ClassCorrelation((0, 1, 0), (BAND, DENSE))),
)
CASES = {
    "anti-pgd": (algorithm("anti-pgd", sigma=1.0, step_size=0.1), False),
    "band": (algorithm("mf-d-sgd", sigma=1.0, step_size=0.1, correlation=BAND), False),
    "dense": (algorithm("mf-d-sgd", sigma=1.0, step_size=0.1, correlation=DENSE), False),
    "diagonal": (algorithm("mf-d-sgd", sigma=1.0, step_size=0.1, correlation=Triangular(2 * np.eye(12))), False),
    "classes": (CLASSES, False),
    "anti-pgd on a grid": (algorithm("anti-pgd", sigma=1.0, step_size=0.1), True),
    "dense on a grid": (algorithm("mf-d-sgd", sigma=1.0, step_size=0.1, correlation=DENSE), True),
    "classes on a grid": (CLASSES, True),
    "fresh": (algorithm("dp-d-sgd", sigma=1.0, step_size=0.1), True),
}


class ByPlace(SecretSource):
    """Fresh bytes that follow from the place, so that runs can be compared; none of a round that is recorded."""

    def __init__(self, member: int, journal: Journal) -> None:
        super().__init__(context=bytes([member]), keep_coins=journal.coins)
        self._journal = journal

    def _derived(self, name):
        newest = self._journal.newest()
        assert newest is None or name.round > newest.round, f"noise of {name} was drawn and recorded"
        return hashlib.sha256(repr((self._context, name, self._bound)).encode()).digest()


class DyingJournal(Journal):
    """A journal whose member dies before or after it writes."""

    deaths: set = frozenset()

    def _pass_by(self, moment, place):
        if (moment, place) in self.deaths:
            self.deaths.remove((moment, place))
            raise Killed("as scripted")

    def before_send(self, place, payloads):
        self._pass_by(COMPUTED, place)
        super().before_send(place, payloads)
        self._pass_by(STORED, place)

    def received(self, place, payloads):
        super().received(place, payloads)
        self._pass_by(RECEIVED, place)


@dataclass
class WithLedgers(Federation):
    """Members that record their steps in ledgers, and go on from them."""

    folder: Path = Path()
    deaths: dict[int, set] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=dict)
    pause: float = 0.0

    def survived(self, member):
        """Take part until the end, whatever happens."""
        while True:
            try:
                return self.take_part(member)
            except Killed:
                self.network.clock.sleep(self.pause)

    def take_part(self, member):
        """One process of a member, as `join_federation` plays it."""
        rules, names = self.rules(member), [str(one) for one in range(self.topology.n)]
        with open_ledger(self.folder / f"{member}.db") as database:
            journal = DyingJournal(Steps(database, RUN), names, lambda rounds: None)
            journal.deaths = self.deaths.setdefault(member, set())
            begun = journal.recorded_state()
            at = FIRST if begun is None else Place(begun[0], 0)
            with MemoryLinks(rules, self.network, at=at, seen=journal.seen(rules)) as links:
                for place, payloads in journal.pending().items():
                    links.send(place, payloads)
                transport = PeerTransport(
                    self.algorithm, self.topology, links, seconds=PATIENCE, journal=journal,
                    clock=self.network.clock, tell=Noted(self, member), gather=PATIENCE, enough=self.enough,
                )  # fmt: skip
                last = self._play(member, journal, transport, begun)
            Steps(database, RUN).erase_noise()
            assert journal.kept_noise() == {}
            verify(Steps(database, RUN))
            return last

    def _play(self, member, journal, transport, begun):
        everyone, x0 = made_up(self.topology.n), self.start()

        def gradient(round, points):
            self.network.clock.sleep(self.seconds.get(member, 0.0))
            whole = np.zeros((self.topology.n, DIMENSION))
            whole[transport.nodes] = points.numpy()
            return torch.from_numpy(everyone(round, whole)[transport.nodes]).to(self.dtype)

        def rounds(after):
            return iterate_rounds(
                self.algorithm, self.topology, rows, gradient, rounds=self.rounds, seed=SEED,
                noise_key=ByPlace(member, journal), transport=transport, after=after,
            )  # fmt: skip

        rows = transport.start(lambda nodes: x0[torch.from_numpy(nodes)], None)
        start = LoopState(self.algorithm.on(self.topology).init(rows), None)
        state = start if begun is None else decode_state(begun[1], start)
        journal.state = encode_state(state)
        for played in rounds(None if begun is None else (begun[0], state)):
            journal.state = encode_state(played.loop_state)
            self.kept.setdefault(member, []).append(len(journal.kept_noise()))
            self.rounds_played.setdefault(member, []).append(played.round)
        return transport.local(played.models)

    def ends(self):
        acts = {member: lambda member=member: self.survived(member) for member in range(self.topology.n)}
        found = self.network.clock.play(acts)
        return torch.cat([found[member] for member in sorted(found)])


def members_of(case, folder, faults=None, rounds=5, **more):
    folder.mkdir()
    built, exact = CASES[case]
    net = metropolis("path:3")
    built = with_exact_noise(built, net, exact)
    return WithLedgers(built, net, rounds, network=MemoryNetwork(faults), folder=folder, **more)


@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_moment_of_every_round_the_run_is_the_same_bit_by_bit(case, tmp_path):
    undisturbed = members_of(case, tmp_path / "undisturbed").ends()
    faults = Faults()
    for round in range(4):
        faults = faults.kill(1, Place(round, 0), after_sending=True)
    killed = members_of(case, tmp_path / "killed", faults)
    killed.deaths[1] = {
        (moment, Place(round, 0)) for round in range(4) for moment in (COMPUTED, STORED, RECEIVED)
    }  # fmt: skip
    assert torch.equal(killed.ends(), undisturbed)
    assert (killed.deaths[1], len(killed.network._fired)) == (set(), 4)
    assert killed.missed() == set()


@pytest.mark.parametrize(
    ("case", "kept"),
    [
        ("anti-pgd", [1] * 5),
        ("band", [1, 2, 2, 2, 2]),
        ("dense", [1, 2, 3, 4, 5]),
        ("dense on a grid", [1, 2, 3, 4, 5]),
    ],
)
def test_the_ledger_keeps_as_many_rounds_as_later_noise_looks_back(case, kept, tmp_path):
    members = members_of(case, tmp_path / "run")
    members.ends()
    assert members.kept[1] == kept


@pytest.mark.parametrize("case", ["anti-pgd", "band", "dense"])
def test_the_noise_of_rounds_that_a_member_missed_is_drawn_and_enters_later_rows(case, tmp_path, monkeypatch):
    """The rows that it adds, before and after its absence, are those of C^-1 Z with a draw for every round."""
    drawn, correlated = {}, RecordedInputs.correlated

    def noted(inputs, correlation, sources, matrix, round):
        found = correlated(inputs, correlation, sources, matrix, round)
        if inputs._shard.nodes[0] == 0:
            drawn[round] = found.own.numpy().copy()
        return found

    monkeypatch.setattr(RecordedInputs, "correlated", noted)
    monkeypatch.setattr(RecordedInputs, "_bind", lambda inputs, rows: None)
    members = members_of(case, tmp_path / "run", rounds=12, pause=2 * PATIENCE + 6.0)
    members.seconds, members.deaths[0] = dict.fromkeys(range(3), 1.0), {(STORED, Place(1, 0))}
    members.ends()
    missed = set(range(12)) - drawn.keys()
    assert missed
    assert max(drawn) == 11
    fresh = ByPlace(0, Journal(_NoSteps(), [], lambda rounds: None))
    Z = np.empty((12, DIMENSION))
    for round in range(12):
        fresh.stream("node", [0], round).gaussians_(Z[round])
    noise = members.algorithm.noise.correlation.inverse(12) @ Z * members.algorithm.sensitivity
    for round, row in drawn.items():
        np.testing.assert_allclose(row[0], noise[round], rtol=0, atol=1e-12)


class _NoSteps:
    def newest(self):
        return None


def test_without_what_it_goes_on_from_noise_is_refused_and_not_drawn_anew(tmp_path):
    """A ledger of which somebody erased it."""
    members = members_of("anti-pgd", tmp_path / "run", Faults())
    members.deaths[1] = {(STORED, Place(2, 0))}

    def robbed():
        with pytest.raises(Killed):
            members.take_part(1)
        with open_ledger(members.folder / "1.db") as database:
            Steps(database, RUN).erase_noise()
        with pytest.raises(InputError, match="its noise depends on that of earlier rounds, which was erased"):
            members.take_part(1)

    def left(member):
        with pytest.raises(PeerLost, match="this run is incomplete"):
            members.survived(member)

    acts = {member: lambda member=member: left(member) for member in (0, 2)}
    members.network.clock.play(acts | {1: robbed})
