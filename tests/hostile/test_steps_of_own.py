"""Algorithms of one's own whose gossip steps differ from each other, with figures known by hand."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from sottovoce import Coordinate, Gossip, Independent, Rows, Unaccountable, account, algorithm, metropolis, trace
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


class Turn(NamedTuple):
    x: Rows
    turn: int
    round: int


@dataclass(frozen=True, kw_only=True)
class InTheSecondRound(Gossip):
    """Leaves noise out in a round that begins as it does where rounds gossip twice, and not where they gossip once."""

    gossip_steps: int = 2

    def init(self, x0):
        return Turn(x0, 0, 0)

    def local(self, state, grad, noise):
        added = 0 * noise if state.round and not state.turn else noise
        return Turn(state.x - self.step_size * (grad + added), state.turn, state.round + 1)

    def message(self, state):
        return state.x

    def absorb(self, state, mixed):
        return Turn(mixed, 1 - state.turn, state.round)


@pytest.mark.parametrize("compression", ["identity", "rand:0.5"])
def test_own_algorithms_are_traced_with_all_their_gossip_steps(compression):
    built = InTheSecondRound(name="second", noise=Independent(3.0), compression=parse_compression(compression))
    assert account(trace_possible(built, metropolis("ring:6"), rounds=2)).mu == math.inf


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


class Two(NamedTuple):
    x: Rows
    y: Rows
    round: int


@dataclass(frozen=True, kw_only=True)
class Again(Gossip):
    """Sends `g + z` and later, without new noise, `(1 + more) g + z`: the difference is a gradient without noise."""

    more: float = 0.0
    later_round: bool = False

    def init(self, x0):
        return Two(x0, 0 * x0, 0)

    def local(self, state, grad, noise):
        if state.round and self.later_round:
            return Two(state.y, state.y, state.round)
        return Two(-0.1 * (grad + noise), -0.1 * ((1 + self.more) * grad + noise), state.round)

    def message(self, state):
        return state.x

    def absorb(self, state, mixed):
        return Two(state.x if self.later_round else state.y, state.y, state.round + 1)


@pytest.mark.parametrize("more", [1e-6, 1e-8, 1e-12, 1e-15, 2.0**-52])
@pytest.mark.parametrize(
    ("later_round", "steps", "rounds", "view"),
    [(False, 2, 1, "everyone"), (False, 2, 3, "node:0"), (True, 1, 2, "node:0"), (True, 1, 2, "everyone")],
)
@pytest.mark.parametrize("net", ["path:2", "ring:6"])
def test_a_gradient_that_comes_apart_from_its_noise_in_the_last_digit_is_told(
    more, later_round, steps, rounds, view, net
):
    """However small the difference is: (1 + more) g + z less g + z is what a receiver can scale as it likes."""
    built = Again(
        name="again", noise=Independent(2.0), step_size=0.1, gossip_steps=steps, more=more, later_round=later_round
    )
    system = trace(built, metropolis(net), rounds=rounds)
    found = account(system, view, convex=True)
    assert found.headline.mu == math.inf
    assert all(one.mu == math.inf for one in found.guarantees if one.victim in (0, 1) and one.distance in (None, 1))
    together = account(trace(replace(built, more=0.0), metropolis(net), rounds=rounds), view, convex=True)
    assert together.headline.mu < 10


def test_coordinates_whose_gradients_come_apart_from_their_noise_are_refused():
    """One class of coordinates sends the same sum twice, the other differs in the last digit."""

    @dataclass(frozen=True, kw_only=True)
    class InSome(Again):
        def local(self, state, grad, noise):
            more = convert(np.array([[1.0, 1.0 + 1e-15]]), like=grad)
            return Two(-0.1 * (grad + noise), -0.1 * (more * grad + noise), 0)

    built = InSome(name="in-some", noise=Independent(2.0), step_size=0.1, gossip_steps=2)
    with pytest.raises(Unaccountable, match="scale the sum of both"):
        trace(built, metropolis("path:2"), rounds=1)


@dataclass(frozen=True, kw_only=True)
class Combining(Gossip):
    """Nobody mixes: what is sent in round t are combinations of two memories of gradients and noise."""

    numbers: tuple[tuple[float, ...], ...] = ()

    def init(self, x0):
        return Two(0 * x0, 0 * x0, 0)

    def local(self, state, grad, noise):
        a, b, c, d, e, f, g, h = self.numbers[state.round]
        kept = e * state.x + f * state.y + g * grad + h * noise
        return Two(a * state.x + b * state.y + c * grad + d * noise, kept, state.round)

    def message(self, state):
        return state.x

    def absorb(self, state, mixed):
        return Two(state.x, state.y, state.round + 1)


def truth(numbers) -> float:
    """mu of the worst signs, in fractions, by elimination of what is sent: infinite where noise cancels alone."""
    T = len(numbers)
    state, rows = [[Fraction(0)] * 2 * T, [Fraction(0)] * 2 * T], []
    for t, each in enumerate(numbers):
        maps = [[Fraction(number) for number in each[:4]], [Fraction(number) for number in each[4:]]]
        state = [[m[0] * x + m[1] * y for x, y in zip(*state, strict=True)] for m in maps]
        for row, m in zip(state, maps, strict=True):
            row[t], row[T + t] = row[t] + m[2], row[T + t] + m[3]
        rows.append([*state[0]])
    kept = []
    for row in rows:
        for unit in kept:
            share = sum(a * b for a, b in zip(row[T:], unit[T:], strict=True)) / sum(a * a for a in unit[T:])
            row = [a - share * b for a, b in zip(row, unit, strict=True)]
        if any(row[T:]):
            kept.append(row)
        elif any(row[:T]):
            return math.inf

    def squared(signs):
        return sum(
            sum(s * a for s, a in zip(signs, row[:T], strict=True)) ** 2 / sum(a * a for a in row[T:]) for row in kept
        )

    return math.sqrt(max(squared(signs) for signs in itertools.product((1, -1), repeat=T)))


@pytest.mark.parametrize("seed", range(40))
def test_combinations_of_gradients_and_noise_cost_no_less_than_in_fractions(seed):
    rng = random.Random(seed)

    def number():
        near, small = 10.0 ** -rng.randint(1, 16), rng.random() < 0.5
        return rng.choice([0.0, 1.0, 1.0, 1.0 + near, -1.0, near if small else 0.5])

    numbers = tuple(tuple(number() for _ in range(8)) for _ in range(3))
    built = Combining(name="combining", noise=Independent(1.0), step_size=1.0, numbers=numbers)
    try:
        found = account(trace(built, metropolis("path:2"), rounds=3), convex=True)
    except Unaccountable:
        return
    assert min(one.mu for one in found.guarantees) >= truth(numbers) * (1 - 1e-6)


class AtOnePoint(Gossip):
    """Gradients are taken at zero, whatever nodes hold."""

    def point(self, state):
        return 0 * state.x


class AtAnArray(Gossip):
    def point(self, state):
        return np.zeros((4, 1))


class Enormous(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x - 1e300 * (grad + noise))


class Vanishing(Gossip):
    def message(self, state):
        return 1e-300 * state.x


def test_a_run_whose_gradients_are_all_taken_at_one_point_is_accounted_for():
    system = trace(AtOnePoint(name="at-one-point", noise=Independent(2.0)), metropolis("ring:4"), rounds=4)
    found = account(system, "node:0", convex=True)
    assert 0 < found.of(2, "convex-training").mu <= account(system).mu


@pytest.mark.parametrize("kind", [AtAnArray, Enormous, Vanishing])
def test_values_that_are_none_and_numbers_out_of_range_are_one_refusal(kind):
    with pytest.raises(Unaccountable, match=r"in place of nodes' values|use numbers between"):
        trace(kind(name="own", noise=Independent(2.0)), metropolis("ring:4"), rounds=2)


def test_one_coordinate_of_several_is_no_account():
    """What compression leaves out of it, it keeps of another."""
    built = algorithm("dp-csgp", sigma=1.0, compression="rand:0.2")
    alone = trace(built, metropolis("ring:4"), rounds=2, coordinate=Coordinate(0, 5))
    with pytest.raises(Unaccountable):
        account(alone)
    assert account(trace_possible(built, metropolis("ring:4"), rounds=2)).mu == pytest.approx(math.sqrt(2))
