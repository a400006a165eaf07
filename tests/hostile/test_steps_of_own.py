"""Algorithms of one's own whose gossip steps differ from each other, with figures known by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from sottovoce import Gossip, Independent, Rows, Unaccountable, account, metropolis, trace
from sottovoce.core.algorithm import Model
from sottovoce.core.arrays import convert
from sottovoce.core.compression import parse_compression
from sottovoce.privacy import covering_views
from sottovoce.tracing.policy import trace_affordable, trace_possible


class Pair(NamedTuple):
    x: Rows
    y: Rows
    turn: int


@dataclass(frozen=True, kw_only=True)
class Betrayed(Gossip):
    """After its model a node sends its gradient."""

    gossip_steps: int = 2

    def init(self, x0):
        return Pair(x0, None, 0)

    def local(self, state, grad, noise):
        return Pair(state.x - self.step_size * (grad + noise), grad, 0)

    def message(self, state):
        return state.y if state.turn else state.x

    def absorb(self, state, mixed):
        return Pair(state.x, None, 0) if state.turn else Pair(mixed, state.y, 1)


@pytest.mark.parametrize("sensitivity", [1.0, (1.0, 1.0, 1.0, 4.0, 1.0, 1.0)])
def test_what_a_later_step_sends_counts_in_every_kind(sensitivity):
    built = Betrayed(name="betrayed", noise=Independent(2.0), sensitivity=sensitivity)
    found = account(trace(built, metropolis("ring:6"), rounds=4), "node:0", convex=True)
    assert found.headline.mu == math.inf


@dataclass(frozen=True, kw_only=True)
class Tracked(Gossip):
    """Sends its model first, and then what it tracks of gradients."""

    gossip_steps: int = 2

    def init(self, x0):
        return Pair(x0, 0 * x0, 0)

    def local(self, state, grad, noise):
        return Pair(state.x, state.y + grad + noise, 0)

    def message(self, state):
        return state.y if state.turn else state.x

    def absorb(self, state, mixed):
        return Pair(state.x, mixed, 0) if state.turn else Pair(mixed - self.step_size * state.y, state.y, 1)


def test_a_gradient_that_only_a_later_step_sends_counts_under_compression():
    built = Tracked(name="tracked", noise=Independent(3.0), compression=parse_compression("rand:0.5"))
    for traced in (trace_possible, trace_affordable):
        found = account(traced(built, metropolis("ring:6"), rounds=1))
        assert found.mu >= (1 - 1e-9) / 3


@dataclass(frozen=True, kw_only=True)
class Listening(Gossip):
    """Node 2 sends zeros."""

    def message(self, state):
        speaks = np.ones((4, 1))
        speaks[2] = 0.0
        return convert(speaks, like=state.x) * state.x

    def absorb(self, state, mixed):
        return Model(0.5 * state.x + 0.5 * mixed)


def test_a_node_that_sends_zeros_shows_nothing_and_the_others_as_much_as_they_do():
    net, T, silent, heard = metropolis("path:4"), 3, 2, 3
    built = Listening(name="listening", noise=Independent(1.0))
    found = account(trace(built, net, rounds=T), f"node:{heard}", final_models="average", kinds=["fixed-streams"])
    W, inputs, x, rows = net.at(0).weights.toarray(), np.eye(2 * T * 4), np.zeros((4, 2 * T * 4)), []
    for t in range(T):
        x = x - inputs[t * 4 : t * 4 + 4] - inputs[(T + t) * 4 : (T + t) * 4 + 4]
        sent = x * (np.arange(4) != silent)[:, None]
        rows += [sent[node] for node in range(4) if W[heard, node] and node != heard]
        x = 0.5 * x + 0.5 * (W @ sent)
    rows.append(x.mean(axis=0))
    seen = np.array(rows)
    A, B = seen[:, : T * 4], seen[:, T * 4 :].copy()
    B[:, heard::4] = 0
    for victim in (0, 1):
        M = A[:, victim::4].T @ np.linalg.pinv(B @ B.T) @ A[:, victim::4]
        assert found.of(victim, "fixed-streams").mu >= math.sqrt(M.sum()) * (1 - 1e-9)
        assert found.of(victim, "fixed-streams").mu <= math.sqrt(np.abs(M).sum()) * (1 + 1e-9)


class Counted(NamedTuple):
    x: Rows
    round: int


@dataclass(frozen=True, kw_only=True)
class Turns(Gossip):
    """Who adds most of the noise changes after the first round."""

    def init(self, x0):
        return Counted(x0, 0)

    def local(self, state, grad, noise):
        sizes = np.ones((5, 1))
        sizes[3 if state.round else 0] = 10.0
        return Counted(state.x - self.step_size * (grad + convert(sizes, like=grad) * noise), state.round + 1)

    def message(self, state):
        return state.x

    def absorb(self, state, mixed):
        return Counted(mixed, state.round)


def test_whoever_adds_most_noise_in_some_round_is_an_adversary_of_secure_sums():
    built = Turns(name="turns", noise=Independent(1.0), secure_sum=True, requires="complete average")
    system = trace(built, metropolis("complete:5"), rounds=6)
    single = max(account(system, f"node:{node}").mu for node in range(5))
    assert account(system).mu >= single * (1 - 1e-12)
    assert account(system, "coalition:any-1").mu >= single * (1 - 1e-12)


def test_no_outsider_stands_for_coalitions_of_secure_sums_that_are_too_many(monkeypatch):
    """Who hears all sums and knows no noise learns less than any of them."""
    monkeypatch.setattr(covering_views, "COALITIONS", 3)
    built = Turns(name="turns", noise=Independent(1.0), secure_sum=True, requires="complete average")
    with pytest.raises(Unaccountable, match="5 coalitions"):
        account(trace(built, metropolis("complete:5"), rounds=6))
