"""Algorithms that remember beside their state, or hide a gradient below what a tolerance sees: each is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from sottovoce import Gossip, Independent, Unaccountable, account, fresh_erdos_renyi, metropolis, trace
from sottovoce.core.algorithm import Model
from sottovoce.core.arrays import Rows
from sottovoce.core.grid import with_exact_noise

RING, FRESH = metropolis("ring:5"), fresh_erdos_renyi(6, 0.5, seed=3)
CALLS = {"local": 0, "message": 0, "absorb": 0}


def count(what: str) -> int:
    CALLS[what] += 1
    return CALLS[what]


class FadingNoise(Gossip):
    """Noise becomes less with every call."""

    def local(self, state, grad, noise):
        return Model(state.x - self.step_size * (grad + noise * (1 / count("local"))))


class Scheduled(Gossip):
    """Steps become smaller, by a counter of its own."""

    def local(self, state, grad, noise):
        return Model(state.x - self.step_size / count("local") * (grad + noise))


class TwoByTwo(Gossip):
    """The step is halved at every second call, so that two calls in a row may be alike."""

    def local(self, state, grad, noise):
        return Model(state.x - self.step_size * 0.5 ** (count("local") // 2) * (grad + noise))


class Louder(Gossip):
    def message(self, state):
        return state.x * float(count("message"))


class Slower(Gossip):
    def absorb(self, state, mixed):
        return Model(mixed * (1 / count("absorb")))


class OnItself(Gossip):
    """Counts in an attribute."""

    def local(self, state, grad, noise):
        calls = getattr(self, "calls", 0) + 1
        object.__setattr__(self, "calls", calls)
        return Model(state.x - self.step_size * (grad + noise * (1 / calls)))


class Remembering(Gossip):
    """Keeps the last gradient to itself, and adds it to the next one."""

    def local(self, state, grad, noise):
        last = getattr(self, "last", 0)
        object.__setattr__(self, "last", grad)
        return Model(state.x - self.step_size * (grad + noise) + self.step_size * (grad - last))


class Replaying(Gossip):
    """Sends what it kept of the round before."""

    def message(self, state):
        last = getattr(self, "last", state.x)
        object.__setattr__(self, "last", state.x)
        return last


SECRETIVE = [FadingNoise, Scheduled, TwoByTwo, Louder, Slower, OnItself, Remembering, Replaying]


@pytest.mark.parametrize("net", [RING, FRESH], ids=["fixed", "changing"])
@pytest.mark.parametrize("kind", SECRETIVE)
def test_memory_beside_the_state_is_refused(kind, net):
    CALLS.update(dict.fromkeys(CALLS, 0))
    with pytest.raises(Unaccountable, match="state"):
        trace(kind(name="bad", noise=Independent(2.0)), net, rounds=4)


@pytest.mark.parametrize("kind", [FadingNoise, Scheduled, OnItself])
def test_steps_that_differ_when_asked_again_do_not_just_lose_exact_noise(kind):
    CALLS.update(dict.fromkeys(CALLS, 0))
    with pytest.raises(Unaccountable, match="another answer when it is asked again"):
        with_exact_noise(kind(name="bad", noise=Independent(2.0)), RING)


def test_a_schedule_in_the_state_keeps_exact_noise_and_its_figure():
    class Cooling(NamedTuple):
        x: Rows
        round: int

    @dataclass(frozen=True, kw_only=True)
    class Decreasing(Gossip):
        def init(self, x0):
            return Cooling(x0, 0)

        def local(self, state, grad, noise):
            return state._replace(x=state.x - self.step_size / (1 + state.round) * (grad + noise))

        def absorb(self, state, mixed):
            return Cooling(mixed, state.round + 1)

    built = with_exact_noise(Decreasing(name="cooling", noise=Independent(2.0)), RING)
    assert built.exact_noise
    assert account(trace(built, RING, rounds=4)).headline.mu == pytest.approx(1.0)


class Turn(NamedTuple):
    x: Rows
    round: int


class Cooler(Gossip):
    """Noise becomes less by a counter in the state, which exact noise would not do."""

    def init(self, x0):
        return Turn(x0, 0)

    def local(self, state, grad, noise):
        return state._replace(x=state.x - self.step_size * (grad + 0.5**state.round * noise))

    def absorb(self, state, mixed):
        return Turn(mixed, state.round + 1)


class Branching(Cooler):
    """Takes another step where noise is in the gradient, from the second round on."""

    def local(self, state, grad, noise):
        longer = 2.0 if isinstance(noise, float) and state.round else 1.0
        return state._replace(x=state.x - longer * self.step_size * (grad + noise))


@pytest.mark.parametrize("kind", [Cooler, Branching])
def test_exact_noise_that_would_leave_out_what_a_step_does_with_noise_is_refused(kind):
    built = kind(name="cooler", noise=Independent(2.0))
    with pytest.raises(Unaccountable, match="in round 1"):
        trace(with_exact_noise(built, RING), RING, rounds=3)
    assert trace(built, RING, rounds=3).rounds == 3
    assert trace(with_exact_noise(built, RING), RING, rounds=1).rounds == 1


class Held(NamedTuple):
    x: Rows
    hidden: Rows
    released: Rows


@dataclass(frozen=True, kw_only=True)
class Hiding(Gossip):
    """Holds a share of the gradient without noise, and tells of it a round later."""

    share: float = 2.0**-45

    def init(self, x0):
        return Held(x0, 0 * x0, 0 * x0)

    def local(self, state, grad, noise):
        x = state.x - self.step_size * (grad + noise) + 1 / self.share * state.hidden
        return Held(x, self.share * grad, 0 * grad)

    def absorb(self, state, mixed):
        return state._replace(x=mixed)


class Shadowing(Hiding):
    """Holds what it released twice, once with a share of the gradient more, and tells of the difference."""

    def local(self, state, grad, noise):
        told = 1 / self.share * state.hidden - 1 / self.share * state.released
        return Held(state.x - self.step_size * (grad + noise) + told, grad + self.share * grad + noise, grad + noise)


@pytest.mark.parametrize(("kind", "bits"), [(Hiding, 20), (Hiding, 45), (Hiding, 50), (Shadowing, 10), (Shadowing, 15)])
def test_no_share_of_a_gradient_is_too_small_to_count(kind, bits):
    """Each round but the last is told again under a tenth of its noise."""
    hiding = kind(name="hiding", noise=Independent(2.0), share=2.0**-bits)
    assert not with_exact_noise(hiding, RING).exact_noise
    system = trace(hiding, RING, rounds=3)
    assert min(one.mu for one in account(system).guarantees) > 7.7


@pytest.mark.parametrize("bits", [30, 45, 50])
def test_what_cannot_be_told_from_rounding_is_refused(bits):
    with pytest.raises(Unaccountable, match="cannot be told from rounding"):
        trace(Shadowing(name="shadow", noise=Independent(2.0), share=2.0**-bits), RING, rounds=3)
