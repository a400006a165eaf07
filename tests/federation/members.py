"""A federation in one process: each member in a thread, over links in memory, with the keyed noise of a simulation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.arrays import numpy_dtype
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.pair_masks import PairMasks, pair_key
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.transport import InProcess
from sottovoce.federation.attendance import Enough, StepAttendance
from sottovoce.federation.journal import Journal
from sottovoce.federation.link_rules import link_rules, mask_partners
from sottovoce.federation.peer_transport import PeerTransport
from sottovoce.ledger.payloads import FIRST
from tests.cases import DIMENSION
from tests.cases import task as made_up
from tests.federation.journals import MemoryJournal
from tests.federation.memory_links import MemoryLinks, MemoryNetwork

AGREEMENT, SEED, PATIENCE = bytes(range(32)), 7, 10.0


@dataclass
class Noted:
    """Notes what a member of a federation is told."""

    federation: Federation
    member: int

    def __call__(self, event, **facts):
        self.federation.told.append((self.member, event, facts))
        if event == "heard":
            self.federation.steps.setdefault(self.member, []).append(facts["step"])
        if event == "pause":
            self.federation.paused.append((self.member, facts["round"], set(facts["members"])))
        if event == "unended":
            self.federation.unended[self.member] = set(facts["members"])


@dataclass
class Federation:
    """An algorithm on a topology, played by members that live apart. `seconds` is what a gradient takes at some.

    `gradient` has all rows of a round, where it is not that of the made-up task.
    """

    algorithm: object
    topology: object
    rounds: int = 3
    dtype: torch.dtype = torch.float64
    largest: float = 1e6
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    journals: dict[int, Journal] = field(default_factory=dict)
    steps: dict[int, list[StepAttendance]] = field(default_factory=dict)
    wire: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    rounds_played: dict[int, list[int]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    unended: dict[int, set[int]] = field(default_factory=dict)
    paused: list[tuple[int, int, set[int]]] = field(default_factory=list)
    told: list[tuple[int, str, dict]] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    enough: Enough = Enough()
    gather: float = PATIENCE
    dimension: int = DIMENSION
    gradient: object = None

    def start(self):
        rows = torch.from_numpy(np.random.default_rng(4).standard_normal((self.topology.n, self.dimension))).to(
            self.dtype
        )
        if sums_over_all(self.algorithm):
            rows = rows[:1].expand(self.topology.n, -1).clone()
        return 0 * rows if self.algorithm.averaging else rows

    def played(self, transport, key=SEED):
        """The rounds of the nodes of a transport, each when it is over."""
        x0, everyone = self.start(), self.gradient or made_up(self.topology.n)
        compressed = self.algorithm.compression.name != "identity"
        along = self.topology.at(0) if compressed else None
        rows = transport.start(lambda nodes: x0[torch.from_numpy(nodes)], along)

        def gradient(round, points):
            if transport.networked and self.seconds.get(int(transport.nodes[0])):
                self.network.clock.sleep(self.seconds[int(transport.nodes[0])])
            whole = np.zeros((self.topology.n, self.dimension))
            whole[transport.nodes] = points.numpy()
            return torch.from_numpy(everyone(round, whole)[transport.nodes]).to(self.dtype)

        return iterate_rounds(
            self.algorithm,
            self.topology,
            rows,
            gradient,
            rounds=self.rounds,
            seed=SEED,
            noise_key=NoiseKey.of_seed(key),
            transport=transport,
        )

    def simulated(self):
        """Where every node ends in a simulation."""
        *_, last = self.played(InProcess(self.topology.n))
        return last.models

    def rules(self, member):
        return link_rules(
            AGREEMENT,
            self.algorithm,
            self.topology,
            member,
            rounds=self.rounds,
            dimension=self.dimension,
            precision=numpy_dtype(self.start()),
            message_range=(-self.largest, self.largest),
        )

    def masks(self, member, agreement=AGREEMENT):
        """Those of a member, with keys that the test made for every pair."""
        if not self.algorithm.secure_sum:
            return None
        names = self.topology.names or [f"node {node}" for node in range(self.topology.n)]
        own = names[member]
        others = [names[one] for one in mask_partners(self.topology, member)]
        shared = {other: hashlib.sha256("|".join(sorted((own, other))).encode()).digest() for other in others}
        return PairMasks(own, {o: pair_key(key, own, o, agreement=agreement) for o, key in shared.items()})

    def join(self, member, at=FIRST, key=SEED):
        """Take part as one member until the last round; where it ends."""
        rules = self.rules(member)
        with MemoryLinks(rules, self.network, at=at) as links:
            transport = PeerTransport(
                self.algorithm,
                self.topology,
                links,
                seconds=PATIENCE,
                journal=self.journals.setdefault(member, MemoryJournal()),
                clock=self.network.clock,
                gather=self.gather,
                enough=self.enough,
                tell=Noted(self, member),
                masks=self.masks(member),
            )
            for played in self.played(transport, key):
                self.rounds_played.setdefault(member, []).append(played.round)
            self.wire[member], self.ended[member] = transport.wire_bytes, self.network.clock.now()
            self.kept[member] = max(len(sent) for sent in links._outbox._sent.values())
            return transport.local(played.models)

    def named(self, event):
        """Which members told of something, and of whom."""
        return {(member, one) for member, name, facts in self.told if name == event for one in facts["members"]}

    def missed(self):
        """Who missed whom, and where."""
        return {
            (member, gone, step.place)
            for member, steps in self.steps.items()
            for step in steps
            for gone in step.missing
        }

    def run(self, acts=None):
        """Where each member ends; `acts` has what some do in place of taking part from the start to the end."""
        usual = {member: lambda member=member: self.join(member) for member in range(self.topology.n)}
        return self.network.clock.play(usual | (acts or {}))
