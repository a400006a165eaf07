"""Algorithms of the user's own: what a name may stand for, and two vectors in a message."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce import (
    InputError,
    NoiseKey,
    Unaccountable,
    account,
    algorithm,
    code_from,
    iterate_rounds,
    metropolis,
    trace,
    views,
)
from sottovoce.algorithms.registry import algorithm_code, algorithm_spec
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.messages import SentMessages
from sottovoce.privacy.guarantee import Kind

ROOT = Path(__file__).parents[2]

CLASS = """
from dataclasses import dataclass
from sottovoce import Gossip

@dataclass(frozen=True, kw_only=True)
class Plain(Gossip):
    a: float = 1.0

def function():
    pass

@dataclass(frozen=True, kw_only=True)
class Lacking(Gossip):
    a: float

@dataclass(frozen=True, kw_only=True)
class Bent(Gossip):
    def message(self, state):
        return abs(state.x)

@dataclass(frozen=True, kw_only=True)
class Usual(Gossip):
    def local(self, state, grad, noise):
        return state._replace(x=state.x - self.step_size * (grad + noise))

@dataclass(frozen=True, kw_only=True)
class Half(Gossip):
    def local(self, state, grad, noise):
        return state._replace(x=state.x - self.step_size * (grad + 0.5 * noise))
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(CLASS)
    with code_from(tmp_path):
        yield tmp_path


def test_fields_of_a_class_are_its_settings(mine):
    spec = algorithm_spec("mine.py:Plain")
    assert [one.name for one in spec.settings if not one.decides_rule] == ["sigma", "step_size", "a", "sensitivity"]
    built = spec.build(sigma=2.0, a=0.5, step_size=0.3)
    assert (built.name, built.a, built.step_size, built.noise.sigma) == ("mine.py:Plain", 0.5, 0.3, 2.0)
    with pytest.raises(InputError, match=r"a = 'far' of mine.py:Plain; it must be a number"):
        spec.build(sigma=1.0, a="far")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mine.py:function", "algorithm 'mine.py:function' is a function; it must be an AlgorithmSpec, or a dataclass"),
        ("mine.py:Lacking", "field a of mine.py:Lacking has no default"),
        ("mine.py:Nobody", "mine.py has no Nobody; .* it has: Plain, function, Lacking, Bent"),
        ("other.py:Plain", "there is no other.py in"),
        ("../mine.py:Plain", "outside"),
        ("broken.py:Plain", r"broken.py, line 2: NameError: name 'unknown' is not defined; .* must be loadable"),
        ("wrong.py:Plain", "wrong.py, line 1: SyntaxError"),
    ],
)
def test_what_is_no_algorithm_is_refused_by_name(mine, name, line):
    (mine / "broken.py").write_text("x = 1\ny = unknown\n")
    (mine / "wrong.py").write_text("def\n")
    with pytest.raises(InputError, match=line):
        algorithm(name, sigma=1.0)


def test_code_is_loaded_only_where_the_user_says(mine):
    assert algorithm("mine.py:Plain", sigma=1.0).name == "mine.py:Plain"
    with code_from(None), pytest.raises(InputError, match=r"is code, and no folder was named .* --code"):
        algorithm("mine.py:Plain", sigma=1.0)
    with pytest.raises(InputError, match="is not a folder"), code_from(mine / "nowhere"):
        pass


def test_what_is_not_linear_is_refused_by_name(mine):
    with pytest.raises(Unaccountable, match="abs of a node's values is not linear"):
        trace(algorithm("mine.py:Bent", sigma=1.0), metropolis("ring:5"), rounds=2)


def test_steps_that_use_noise_in_their_own_way_have_no_exact_noise(mine):
    """It is part of the gradient: half of it would be the whole, and none would be there all the same."""
    net = metropolis("ring:4")
    usual, half = (algorithm(f"mine.py:{name}", sigma=2.0) for name in ("Usual", "Half"))
    assert [with_exact_noise(one, net).exact_noise for one in (usual, half)] == [True, False]
    with pytest.raises(InputError, match="something else with noise than with gradients"):
        with_exact_noise(half, net, True)
    assert account(trace(half, net, rounds=1)).headline.mu == pytest.approx(1.0)


def test_changed_code_has_another_digest(mine):
    before = algorithm_code("mine.py:Plain")
    (mine / "mine.py").write_text(CLASS.replace("a: float = 1.0", "a: float = 2.0"))
    assert algorithm_code("mine.py:Plain") != before
    assert algorithm("mine.py:Plain", sigma=1.0).a == 2.0


# --- two vectors in a message ----------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text()
ETA, SIGMA, ROUNDS = 0.2, 1.5, 4


@pytest.fixture
def diging(tmp_path):
    (tmp_path / "diging.py").write_text(re.search(r'title="diging.py"\n(.*?)```', PAGE, flags=re.DOTALL)[1])
    with code_from(tmp_path):
        yield algorithm("diging.py:DIGing", sigma=SIGMA, step_size=ETA)


def released_by_hand(W, x0, released, rounds):
    """Models and trackers of DIGing, round by round, from what is released for each round's models."""
    x, sent = x0, []
    y = old = released(0, x)
    for round in range(rounds):
        sent += [x, y]
        x, y = W @ x - ETA * y, W @ y
        if round + 1 < rounds:
            new = released(round + 1, x)
            y, old = y + new - old, new
    return x, sent


def test_diging_is_diging(diging):
    net, rng = metropolis("erdos-renyi:7,p=0.4,seed=3"), np.random.default_rng(0)
    wishes, x0 = rng.normal(size=(7, 3)), rng.normal(size=(7, 3))
    noises = []

    def gradient(round, points):
        return np.tanh(points - wishes) * (round + 1)

    played = list(iterate_rounds(diging, net, x0, gradient, rounds=ROUNDS, noise_key=NoiseKey.of_seed(5)))
    released = [one.loop_state.state.released for one in played]
    noises = [found - gradient(t, one.point) for t, (found, one) in enumerate(zip(released, played, strict=True))]
    W = net.at(0).weights.toarray()
    models, sent = released_by_hand(W, x0, lambda t, x: gradient(t, x) + noises[t], ROUNDS)
    said: list[SentMessages] = [step.sent_messages() for one in played for step in one.steps]
    assert np.abs(played[-1].models - models).max() < 1e-12
    assert all(np.abs(one.rows - other).max() < 1e-12 for one, other in zip(said, sent, strict=True))
    assert 0.5 * SIGMA < np.std(noises) < 1.5 * SIGMA


def dense(W, rounds):
    """A and B of both vectors' messages, from DIGing by hand on basis columns: no code shared with the tracer."""
    n = len(W)
    size = n * rounds

    def run(scale):
        columns = [np.zeros((n, size)) for _ in range(rounds)]
        for round in range(rounds):
            columns[round][:, n * round : n * (round + 1)] = scale * np.eye(n)
        return np.array(released_by_hand(W, np.zeros((n, size)), lambda t, x: columns[t], rounds)[1])

    return run(1.0), run(SIGMA)


@pytest.mark.parametrize("attacker", [None, 0])
def test_both_vectors_are_accounted_for(diging, attacker):
    net = metropolis("path:5")
    W = net.at(0).weights.toarray()
    A, B = dense(W, ROUNDS)
    heard, known = np.arange(5), np.zeros(5 * ROUNDS, dtype=bool)
    if attacker is not None:
        heard = np.flatnonzero(W[attacker])
        known[attacker::5] = True
    A, B = (part[:, heard].reshape(-1, part.shape[2])[:, ~known] for part in (A, B))
    owner = np.tile(np.arange(5), ROUNDS)[~known]
    view = views.everyone() if attacker is None else views.node(attacker)
    found = account(trace(diging, net, rounds=ROUNDS), view, kinds=(Kind.FIXED_STREAMS,))
    assert len(found.guarantees) == (5 if attacker is None else 4)
    for one in found.guarantees:
        mine = A[:, owner == one.victim]
        gram = mine.T @ np.linalg.pinv(B @ B.T, rcond=1e-10) @ mine
        assert one.mu**2 >= gram.sum() * (1 - 1e-9)
        assert one.mu**2 <= np.abs(gram).sum() * (1 + 1e-6)
        if (gram > -1e-9).all():
            assert one.mu == pytest.approx(np.sqrt(gram.sum()), rel=1e-6)


def test_everyone_learns_from_two_vectors_what_noisy_gradients_tell(diging):
    found = account(trace(diging, metropolis("ring:6"), rounds=ROUNDS))
    assert found.headline.kind is Kind.ANY_TRAINING
    assert found.headline.mu == pytest.approx(np.sqrt(ROUNDS) / SIGMA, rel=1e-9)
