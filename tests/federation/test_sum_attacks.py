"""What coalitions get out of members' secure sums, measured on the messages that they receive; never above the figure.

All that members release goes through linear maps, so that two runs of the real protocol show everything: in one of them
nobody has a gradient, in the other node v has the unit vector of (v, t) in round t, with the same noise. The difference
of what a coalition receives is how each release, gradient or noise, shows in its sums. The rest is linear algebra.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np
import pytest

from sottovoce import account, algorithm, trace, weigh
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.release import integer_sums
from sottovoce.errors import SumFailed
from sottovoce.federation.peer_transport import PeerTransport
from sottovoce.ledger.payloads import Place
from tests.federation.members import Federation
from tests.federation.memory_links import Faults, MemoryNetwork


class Measured:
    """A federation that was played twice, and what its sums show of each release, R x (N T)."""

    def __init__(self, name, place, rounds, sigma, faults=None, colluders=1):
        self.net, self.rounds = weigh(place, "uniform"), rounds
        self.algorithm = with_exact_noise(algorithm(name, sigma=sigma, step_size=1.0, colluders=colluders), self.net)
        self._runs = [self._played(size, faults) for size in (0.0, 1.0)]
        self._step = integer_sums(self.algorithm, self.net.at(0)).step
        self.sigma = sigma

    def _played(self, size, faults):
        n, dimension = self.net.n, self.net.n * self.rounds

        def gradient(round, x):
            rows = np.zeros((n, dimension))
            rows[np.arange(n), round * n + np.arange(n)] = size
            return rows

        members = Federation(
            self.algorithm, self.net, self.rounds, network=MemoryNetwork(faults), dimension=dimension,
            gradient=gradient,
        )  # fmt: skip
        members.run()
        return members

    def _sums(self, members, receiver):
        """What one member received, added up, by round: masks cancel, and whole sets are all that it has."""
        found = []
        for round in range(self.rounds):
            received = members.journals[receiver].steps[Place(round, 0)].received
            if len(received) == len(members.rules(receiver).senders):
                found.append(sum(np.frombuffer(payload, np.uint64) for payload in received.values()).view(np.int64))
        return np.array(found)

    def responses(self, coalition):
        apart = [self._sums(self._runs[1], one) - self._sums(self._runs[0], one) for one in coalition]
        return np.concatenate(apart) * self._step

    def mu_squared(self, coalition, victim, *, knows_own_noise=True, signs=False):
        """Of the best test for a change of the victim's gradients in all rounds; over all signs, or all alike."""
        n, shown = self.net.n, self.responses(coalition)
        hidden = [
            t * n + u
            for t in range(self.rounds)
            for u in range(n)
            if not (knows_own_noise and u in coalition)
        ]  # fmt: skip
        covariance = self.sigma**2 * shown[:, hidden] @ shown[:, hidden].T
        columns = shown[:, [t * n + victim for t in range(self.rounds)]]
        M = columns.T @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ columns
        tried = itertools.product((1.0, -1.0), repeat=self.rounds) if signs else [np.ones(self.rounds)]
        return max(float(np.array(one) @ M @ np.array(one)) for one in tried)

    @cached_property
    def _system(self):
        return trace(self.algorithm, self.net, rounds=self.rounds)

    @cached_property
    def headline(self):
        return account(self._system).mu ** 2

    def of_coalition(self, coalition, victim):
        """The figure of a coalition for streams that do not react, which is what was measured here."""
        names = self.net.names or [str(node) for node in range(self.net.n)]
        view = f"coalition:{','.join(names[one] for one in coalition)}"
        return account(self._system, view).of(victim, "fixed-streams").mu ** 2


def starving(victim, attacker, rounds):
    """The attacker sends the victim nothing but in the first round and in the last."""
    faults = Faults()
    for round in range(1, rounds - 1):
        faults = faults.drop(attacker, victim, Place(round, 0))
    return faults


def keep_steps(monkeypatch):
    """The mistake: a member whose sum fails keeps its own step."""
    real = PeerTransport.neighbour_sums

    def kept(transport, gossip_step, grid, sent):
        try:
            return real(transport, gossip_step, grid, sent)
        except SumFailed:
            return sent

    monkeypatch.setattr(PeerTransport, "neighbour_sums", kept)


@pytest.mark.parametrize(("n", "rounds", "naive"), [(5, 6, 1.5 * 6), pytest.param(20, 50, 860, marks=pytest.mark.slow)])
def test_a_starving_sender_gets_no_more_than_the_figure(monkeypatch, n, rounds, naive):
    """The noise is such that the figure is T. Of members that keep their steps it would get the whole sum of them."""
    settings = ("secure-gossip", f"complete:{n}", rounds, 1 / math.sqrt(n - 1), starving(1, 0, rounds))
    measured = Measured(*settings)
    printed = measured.headline
    assert printed == pytest.approx(rounds, rel=1e-6)
    found = measured.mu_squared([0], 1)
    assert 0.9 * rounds <= found <= printed * (1 + 1e-6)
    keep_steps(monkeypatch)
    assert Measured(*settings).mu_squared([0], 1) >= 0.99 * naive


def test_the_difference_of_two_receivers_sets_is_within_the_figure():
    """Two receivers together; what single ones get is less, so that the difference does tell something."""
    measured = Measured("secure-gossip", "regular:8,d=4,seed=3", 3, 1.0, colluders=2)
    more = 0
    for pair in ((0, 1), (2, 7)):
        for victim in sorted(set(range(8)) - set(pair))[:2]:
            together = measured.mu_squared(pair, victim, signs=True)
            assert together <= measured.of_coalition(pair, victim) * (1 + 1e-6)
            assert together <= measured.headline * (1 + 1e-6)
            more += together > 1.05 * max(measured.mu_squared([one], victim, signs=True) for one in pair)
    assert more > 0


def test_a_receiver_that_subtracts_its_own_noise_is_within_the_figure():
    measured = Measured("secure-average", "complete:3", 5, 1.0)
    printed = measured.headline
    inside, outside = (measured.mu_squared([0], 1, knows_own_noise=knows) for knows in (True, False))
    assert inside == pytest.approx(5 / 2, rel=1e-6)
    assert inside <= printed <= inside * (1 + 3e-5)
    assert outside <= inside


def test_overlapping_sums_reconstruct_one_message_and_the_figure_knows_it():
    """{a, b, d, u} minus {a, b, d} is u: receivers x and y, whose sets differ in u alone."""
    edges = "edges:a--x,b--x,d--x,u--x,a--y,b--y,d--y,a--b,u--a,u--b,d--a,d--u"
    measured = Measured("secure-gossip", edges, 1, 1.0, colluders=2)
    names = measured.net.names
    a, b, d, u, x, y = (names.index(name) for name in "abduxy")
    shown = measured.responses([x, y])
    difference = shown[0] / shown[0][a] - shown[1] / shown[1][a]
    honest = difference[[a, b, d, u]]
    np.testing.assert_allclose(honest / honest[3], [0, 0, 0, 1], atol=1e-9)
    found = measured.mu_squared([x, y], u)
    assert found == pytest.approx(1.0, rel=1e-6)
    assert found <= measured.of_coalition([x, y], u) * (1 + 1e-6)
    assert found <= measured.headline * (1 + 1e-6)
