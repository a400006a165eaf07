"""Runs certify their trace: every algorithm that cheats is stopped before its first dishonest message, and no other is.

Cheats are honest while they are traced, where rows are no numbers, and cheat from some round on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import sparse

from sottovoce import Gossip, Independent, algorithm, metropolis, weigh
from sottovoce.core.algorithm import Model, Weighted
from sottovoce.core.arrays import Rows, column, is_plain
from sottovoce.core.compression import parse_compression
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.noise import CombinedNoise, FactoredMatrix, NoNoise, Pairwise, ZeroSum
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.topologies import Changing
from sottovoce.core.transport import InProcess
from sottovoce.errors import Diverged, InputError, Uncertified
from sottovoce.tracing.certificate import Certificate, what_is_checked
from sottovoce.tracing.tracer import trace_all_maps
from tests.cases import Case, cases, task
from tests.selection import rest_slow

NET, OTHER = metropolis("ring:5"), metropolis("complete:5")
ROUNDS, HONEST, D = 6, 2, 200


class Memory(NamedTuple):
    x: Rows
    hidden: Rows


class Counting(InProcess):
    """Counts the steps that were delivered."""

    delivered = 0

    def deliver(self, *given):
        type(self).delivered += 1
        return super().deliver(*given)

    def deliver_compressed(self, *given):
        type(self).delivered += 1
        return super().deliver_compressed(*given)


@dataclass(frozen=True, kw_only=True)
class Cheat(Gossip):
    """Does as momentum does, and from round `HONEST` on what its trick makes of it."""

    trick: str = ""

    def _cheats(self, what, *rows):
        """Whether this map of this round is where it cheats; every map counts its own calls."""
        if not all(is_plain(one) for one in rows):
            return False
        calls = self.__dict__.setdefault("calls", {})
        calls[what] = calls.get(what, 0) + 1
        return self.trick.startswith(what) and calls[what] > HONEST

    def init(self, x0):
        return Memory(x0, 0 * x0)

    def point(self, state):
        if self._cheats("point", state.x):
            return POINTS[self.trick](state)
        return state.x

    def local(self, state, grad, noise):
        beside = not isinstance(noise, float)
        if self._cheats("local", grad):
            return LOCALS[self.trick](self, state, grad, noise if beside else 0 * grad)
        return Memory(state.x - self.step_size * (grad + noise), 0.5 * state.hidden + grad + noise)

    def message(self, state):
        if self._cheats("message", state.x):
            return MESSAGES[self.trick](self, state)
        return state.x + 0.25 * state.hidden

    def absorb(self, state, mixed):
        if self._cheats("absorb", mixed):
            return ABSORBS[self.trick](self, state, mixed)
        return Memory(mixed, state.hidden)


def stepped(self, state, grad, noise, step=1.0):
    return Memory(state.x - step * self.step_size * (grad + noise), 0.5 * state.hidden + grad + noise)


def in_place(rows, more):
    rows += more
    return rows


def kept(self, rows):
    """What was given the last time."""
    last = self.__dict__.get("kept", rows)
    self.__dict__["kept"] = rows
    return last


LOCALS = {
    "local without noise": lambda self, s, g, z: stepped(self, s, g, 0 * z),
    "local with half of the noise": lambda self, s, g, z: stepped(self, s, g, 0.5 * z),
    "local with noise that fades": lambda self, s, g, z: stepped(self, s, g, z / self.calls["local"]),
    "local with one percent less noise": lambda self, s, g, z: stepped(self, s, g, 0.99 * z),
    "local with noise twice": lambda self, s, g, z: stepped(self, s, g, 2 * z),
    "local with noise turned": lambda self, s, g, z: stepped(self, s, g, -z),
    "local with noise of another node": lambda self, s, g, z: stepped(self, s, g, z[[1, 2, 3, 4, 0]]),
    "local with the last noise": lambda self, s, g, z: stepped(self, s, g, kept(self, z) + 0.01 * z),
    "local with a schedule": lambda self, s, g, z: stepped(self, s, g, z, 1 / self.calls["local"]),
    "local with a step a percent longer": lambda self, s, g, z: stepped(self, s, g, z, 1.01),
    "local uphill": lambda self, s, g, z: stepped(self, s, g, z, -1.0),
    "local with gradients twice": lambda self, s, g, z: stepped(self, s, 2 * g, z),
    "local without gradients": lambda self, s, g, z: stepped(self, s, 0 * g, z),
    "local with gradients clipped again": lambda self, s, g, z: stepped(self, s, g.clip(-0.1, 0.1), z),
    "local with signs": lambda self, s, g, z: stepped(self, s, g / abs(g), z),
    "local with a normalised gradient": lambda self, s, g, z: stepped(self, s, g / (g**2).sum() ** 0.5, z),
    "local with a mask": lambda self, s, g, z: stepped(self, s, g * (np.arange(D) < D - 1), z),
    "local with one noiseless parameter": lambda self, s, g, z: stepped(self, s, g, z * (np.arange(D) > 0)),
    "local that hides the gradient": lambda self, s, g, z: stepped(self, s, g, z)._replace(hidden=g),
    "local that hides a bit": lambda self, s, g, z: stepped(self, s, g, z)._replace(hidden=s.hidden / 2 + g * 1.01 + z),
    "local that forgets": lambda self, s, g, z: stepped(self, s, g, z)._replace(hidden=0 * g),
    "local that is not a number": lambda self, s, g, z: stepped(self, s, g, np.nan * z),
    "local that is infinite": lambda self, s, g, z: stepped(self, s, g, 1e308 * (1e308 * z)),
    "local whose squares are infinite": lambda self, s, g, z: stepped(self, s, g, 1e200 * z),
    "local with a squared gradient": lambda self, s, g, z: stepped(self, s, g**2, z),
    "local as adam": lambda self, s, g, z: stepped(self, s, g / (abs(g) + 1e-3), z),
}  # fmt: skip
MESSAGES = {
    "message of the hidden part": lambda self, s: s.hidden,
    "message twice": lambda self, s: 2 * (s.x + 0.25 * s.hidden),
    "message of the round before": lambda self, s: kept(self, s.x) + 0 * s.x,
    "message that is shifted": lambda self, s: s.x + 0.25 * s.hidden + 1e-3,
    "message that is rounded": lambda self, s: (s.x + 0.25 * s.hidden).round(),
    "message of a neighbour": lambda self, s: (s.x + 0.25 * s.hidden)[[1, 2, 3, 4, 0]],
    "message with one other parameter": lambda self, s: s.x + 0.25 * s.hidden + 0.05 * (np.arange(D) == 7),
    "message in place": lambda self, s: in_place(1 * s.x, 0.5 * s.hidden),
    "message compressed twice": lambda self, s: (s.x + 0.25 * s.hidden) * (np.arange(D) % 2),
    "message of zeros": lambda self, s: 0 * s.x,
}
ABSORBS = {
    "absorb by another matrix": lambda self, s, m: Memory(OTHER.at(0) @ s.x, s.hidden),
    "absorb nothing": lambda self, s, m: s,
    "absorb half": lambda self, s, m: Memory(0.5 * m + 0.5 * s.x, s.hidden),
    "absorb into what is hidden": lambda self, s, m: Memory(m, s.hidden + 0.01 * m),
    "absorb the median": lambda self, s, m: Memory(0 * m + np.median(m), s.hidden),
    "absorb clipped": lambda self, s, m: Memory(m.clip(-0.1, 0.1), s.hidden),
}
POINTS = {
    "point at what is hidden": lambda s: s.hidden,
    "point a little off": lambda s: 1.001 * s.x,
    "point at zero": lambda s: 0 * s.x,
    "point of a neighbour": lambda s: s.x[[1, 2, 3, 4, 0]],
}
TRICKS = [*LOCALS, *MESSAGES, *ABSORBS, *POINTS]


def played(built, net=NET, rounds=ROUNDS, dtype=np.float64, dimension=D, gradient=None, as_torch=False):
    """Rounds that were played, with a certificate."""
    x0 = np.random.default_rng(1).standard_normal((net.n, dimension)).astype(dtype)
    if built.averaging or built.secure_sum:
        x0 *= 0
    gradient = gradient or task(net.n, dimension)
    start, asked = x0, gradient
    if as_torch:
        start, asked = torch.from_numpy(x0), lambda t, x: torch.from_numpy(gradient(t, x.numpy()))
    transport = Counting(net.n)
    Counting.delivered = 0
    maps = trace_all_maps(built, net, rounds=rounds)
    watch = Certificate(maps, built.name, transport.nodes, transport.local)
    last = None
    for last in iterate_rounds(  # noqa: B007
        built, net, start, asked, rounds=rounds, noise_key=NoiseKey.of_seed(3), transport=transport, watch=watch
    ):
        pass
    watch.compare_models(rounds, last.loop_state[::2], last.models)
    return Counting.delivered


def test_there_are_forty_cheats_and_more():
    assert len(TRICKS) >= 40


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("trick", TRICKS)
def test_a_cheat_is_stopped_before_its_first_dishonest_message(trick, dtype):
    """What is wrong about a state is found at the end of its round, before anything is made of it."""
    built = Cheat(name="cheat", noise=Independent(0.5), step_size=0.3, trick=trick)
    with np.errstate(all="ignore"), pytest.raises((Uncertified, Diverged), match=f"in round {HONEST}"):
        played(built, dtype=dtype)
    assert Counting.delivered == HONEST + trick.startswith("absorb")


@pytest.mark.parametrize("trick", ["message twice", "message of the hidden part", "absorb half"])
def test_a_cheat_with_exact_noise_or_compression_is_stopped(trick):
    for more in ({"exact_noise": True}, {"compression": parse_compression("top:0.1")}):
        built = Cheat(name="cheat", noise=Independent(0.5), step_size=0.3, trick=trick, **more)
        with pytest.raises(Uncertified):
            played(built)
        assert Counting.delivered <= HONEST + trick.startswith("absorb")


def test_honest_momentum_is_certified():
    assert played(Cheat(name="momentum", noise=Independent(0.5), step_size=0.3)) == ROUNDS


# --- what is no map ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fading(Independent):
    """Noise that becomes less with every call."""

    def local(self, mixing):
        found = Independent(self.sigma * 0.5 ** max(0, STATE["calls"])).local(mixing)
        STATE["calls"] += STATE["running"]
        return found


@dataclass(frozen=True)
class LeftOut(ZeroSum):
    """Noise on edges that is left out after some steps."""

    def edge(self, mixing, step=0):
        STATE["calls"] += STATE["running"]
        return () if STATE["calls"] > 1 + HONEST else ZeroSum(zeta=self.zeta).edge(mixing, step)


STATE = {"calls": 0, "running": 0}


@pytest.mark.parametrize("noise", [Fading(0.5), LeftOut(zeta=0.5)], ids=["fading", "left out"])
def test_noise_that_is_not_the_one_that_was_traced_is_not_sent(noise, monkeypatch):
    monkeypatch.setitem(STATE, "calls", 0)
    monkeypatch.setitem(STATE, "running", 0)
    traced = Certificate.begins

    def begins(self, *given):
        STATE["running"] = 1
        traced(self, *given)

    monkeypatch.setattr(Certificate, "begins", begins)
    with pytest.raises(Uncertified, match="noise"):
        played(Gossip(name="fading", noise=noise), dimension=2000)
    assert Counting.delivered <= HONEST + 1


OTHER_FACTS = {
    "noise": NoNoise(), "sensitivity": 1e-9, "step_size": 1e-9, "radius": 1e-9, "gossip_steps": 2, "averaging": True,
    "compression": parse_compression("top:0.5"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OtherFacts(Gossip):
    """From the third round on it tells the loop something else of itself than it did when it was traced."""

    fact: str = ""

    def local(self, state, grad, noise):
        if is_plain(grad):
            self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
            if self.calls > HONEST:
                object.__setattr__(self, self.fact, OTHER_FACTS[self.fact])
        return Model(state.x - 0.3 * (grad + noise))


@pytest.mark.parametrize("fact", OTHER_FACTS)
def test_what_the_loop_asks_for_in_every_round_stays_what_it_was(fact):
    """Also where there are too few parameters to tell the size of noise from what was drawn."""
    with pytest.raises(Uncertified, match=f"in round {HONEST}"):
        played(OtherFacts(name="other", noise=Independent(0.5), fact=fact), dimension=4)
    assert Counting.delivered == HONEST


class TwoFaced(np.ndarray):
    """Compared it is one thing, and taken as a message another."""

    def __getitem__(self, key):
        return np.asarray(self)[key] if isinstance(key, slice) else np.zeros(self.shape)[key]


class TwoFacedTensor(torch.Tensor):
    pass


@dataclass(frozen=True, kw_only=True)
class InDisguise(Gossip):
    """One of its maps gives an array of a kind of its own."""

    where: str = ""

    def _as(self, where, rows):
        if where != self.where or not is_plain(rows):
            return rows
        return rows.view(TwoFaced) if isinstance(rows, np.ndarray) else rows.clone().as_subclass(TwoFacedTensor)

    def point(self, state):
        return self._as("point", state.x)

    def local(self, state, grad, noise):
        return Model(self._as("local", state.x - self.step_size * (grad + noise)))

    def message(self, state):
        return self._as("message", state.x)

    def absorb(self, state, mixed):
        return Model(self._as("absorb", mixed))


@pytest.mark.parametrize("as_torch", [False, True])
@pytest.mark.parametrize("where", ["point", "local", "message", "absorb"])
def test_arrays_of_a_kind_of_ones_own_are_refused(where, as_torch):
    with pytest.raises(InputError, match="TwoFaced"):
        played(InDisguise(name="disguise", noise=Independent(0.5), where=where), as_torch=as_torch)


class WithWeight(NamedTuple):
    x: Rows
    weight: Rows


@dataclass(frozen=True, kw_only=True)
class Telling(Gossip):
    """The public weight beside its message is moved by its gradient, which has no noise."""

    by: float = 1.0

    def init(self, x0):
        return WithWeight(x0, column(np.ones(5), x0))

    def local(self, state, grad, noise):
        told = 1 + self.by * grad[:, :1] if is_plain(grad) else state.weight
        return WithWeight(state.x - self.step_size * (grad + noise), told)

    def message(self, state):
        return Weighted(state.x, state.weight)

    def absorb(self, state, mixed):
        return WithWeight(mixed.value, mixed.weight)


def test_public_weights_beside_messages_tell_nothing():
    with pytest.raises(Uncertified, match="weight"):
        played(Telling(name="telling", noise=Independent(0.5)))
    assert Counting.delivered == 0
    sent = []

    class Listening(Counting):
        def deliver(self, gossip_step, rows, weight, inputs):
            sent.append(weight.copy())
            return super().deliver(gossip_step, rows, weight, inputs)

    built, transport = Telling(name="telling", noise=Independent(0.5), by=1e-9), Listening(5)
    watch = Certificate(trace_all_maps(built, NET, rounds=2), built.name, transport.nodes, transport.local)
    given = np.random.default_rng(0).standard_normal((5, D))
    rounds = iterate_rounds(built, NET, 0 * given, lambda t, x: given, rounds=2, transport=transport, watch=watch)
    assert len(list(rounds)) == len(sent) == 2
    assert all((one == 1).all() for one in sent)


def test_another_graph_than_was_traced_is_refused():
    asked = []

    def mixing_at(round, step):
        asked.append(round)
        return (NET if asked.count(round) == 1 else OTHER).at(0)

    changing = Changing(mixing_at, n=5)
    changing._at = mixing_at
    with pytest.raises(Uncertified, match="other weights"):
        played(Gossip(name="plain", noise=Independent(1.0)), net=changing)


def test_noise_of_the_round_before_is_refused(monkeypatch):
    from sottovoce.core.noise_feed import NoiseFeed

    drawn = NoiseFeed.noise
    monkeypatch.setattr(
        NoiseFeed, "noise", lambda self, sources, matrix, round, step: drawn(self, sources, matrix, 0, step)
    )
    with pytest.raises(Uncertified, match="again"):
        played(Gossip(name="plain", noise=Independent(1.0)))
    assert Counting.delivered == 1


@dataclass(frozen=True)
class Factored(Independent):
    """The noise of `Independent`, made anew whenever it is asked for; after so many times in another form."""

    plain: int = 10**6
    asked: list = field(default_factory=list, compare=False)

    def local(self, mixing):
        (term,) = super().local(mixing)
        self.asked.append(1)
        eye, nothing = sparse.eye_array(mixing.n, format="csr"), sparse.csr_array((mixing.n, mixing.n))
        matrix = FactoredMatrix(self.sigma * eye)
        factored = FactoredMatrix(nothing, self.sigma * eye, eye)
        return (replace(term, matrix=matrix if len(self.asked) <= self.plain else factored),)


def test_noise_is_the_same_if_its_numbers_are_and_not_in_another_form():
    honest = Factored(0.5)
    assert played(Gossip(name="plain", noise=honest)) == ROUNDS
    last = Factored(0.5, len(honest.asked) - 1)
    with pytest.raises(Uncertified, match="other noise"):
        played(Gossip(name="plain", noise=last))


def test_noise_below_the_precision_of_models_is_refused():
    quiet = Gossip(name="quiet", noise=Independent(3e-7), step_size=1.0)
    with pytest.raises(Uncertified, match="float64"):
        played(quiet, dtype=np.float32)
    assert played(quiet) == ROUNDS


# --- no false alarms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", rest_slow(cases()))
def test_every_algorithm_is_certified_on_every_topology(case: Case, dtype):
    for as_torch in (False, True):
        assert played(case.algorithm, case.topology, rounds=4, dtype=dtype, as_torch=as_torch) > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ten_thousand_rounds_raise_no_false_alarm(dtype):
    """Gradients lead back: models that wander off soon hold more than float32 can tell from noise, and are refused."""
    for noise in (Independent(0.5), NoNoise(), CombinedNoise((Independent(0.5), Pairwise(2.0)))):
        built = Gossip(name="plain", noise=noise, step_size=0.3)
        found = played(built, rounds=10_000, dtype=dtype, dimension=30, gradient=lambda t, x: (0.2 * x).astype(x.dtype))
        assert found == 10_000


def test_weights_of_push_sum_may_drift_as_they_are_rounded():
    """They go from round to round by themselves, and points are divided by them: after nine rounds in float32 that was
    taken for another point."""
    net = weigh("exponential:10", "push,lazy=0.95")
    for compression in ("identity", "rand:0.1"):
        built = algorithm("dp-csgp", sigma=1.0, step_size=0.001, compression=compression)
        assert played(built, net, rounds=200, dtype=np.float32, as_torch=True) == 200


def test_documents_say_what_is_compared_and_in_how_many_rounds():
    plain, compressed = (what_is_checked(parse_compression(spec), 40) for spec in ("identity", "top:0.1"))
    assert "all 40 rounds" in plain
    assert "compressed" not in plain
    assert "before they are compressed" in compressed
