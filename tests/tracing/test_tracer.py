"""Tracing: what refuses, what is shared, and a system small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce import Unaccountable, algorithm, fresh_erdos_renyi, metropolis, push, random_edges, trace, train
from sottovoce.core.algorithm import Gossip, Model, Weighted
from sottovoce.core.compression import parse_compression
from sottovoce.privacy.final_models import models_follow_from_messages
from sottovoce.tracing.basis import Coordinate
from sottovoce.tracing.linear_forms import LinearRows
from tests.cases import ROUNDS, cases
from tests.selection import rest_slow


class Squares(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x - grad * grad)


class Rectified(Gossip):
    def message(self, state):
        return state.x.clip(0)


class Shifted(Gossip):
    def absorb(self, state, mixed):
        return Model(mixed + 1.0)


class Branching(Gossip):
    def absorb(self, state, mixed):
        return Model(mixed if np.any(mixed == 0) else state.x)


class Smuggling(Gossip):
    """Moves values from node to node without a message."""

    def absorb(self, state, mixed):
        return Model(mixed + np.eye(3)[[1, 2, 0]] @ state.x)


class Powers(Gossip):
    def message(self, state):
        return state.x**2


class Squashed(Gossip):
    def message(self, state):
        return np.tanh(state.x)


class Chosen(Gossip):
    def local(self, state, grad, noise):
        return Model(np.where(grad > 0, state.x, grad))


class Counted(Gossip):
    def message(self, state):
        return state.x if abs(state.x).sum() > 1 else 0 * state.x


class Sliced(Gossip):
    def message(self, state):
        return state.x[:, :2]


class Shuffled(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x[np.array([1, 2, 0])] - grad)


class Rescaled(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x - grad / state.x.shape[1])


class InPlace(Gossip):
    def local(self, state, grad, noise):
        x = state.x
        x -= grad
        return Model(x)


class Complex(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x - np.complex128(1j) * grad)


class Undefined(Gossip):
    def local(self, state, grad, noise):
        return Model(state.x - float("nan") * grad)


class Whispering(Gossip):
    """Gossips in secret."""

    def local(self, state, grad, noise):
        return Model(metropolis("complete:3").at(0) @ state.x - grad)


class Tracking(Gossip):
    """Sends private values as the public weight."""

    def message(self, state):
        return Weighted(state.x, state.x)

    def absorb(self, state, mixed):
        return Model(mixed.weight)


class Counting(Gossip):
    """Remembers outside of its state."""

    def local(self, state, grad, noise):
        calls.append(1)
        return Model(state.x - len(calls) * grad)


calls: list[int] = []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Whispering, "moves values from node to node"),
        (Tracking, "weight beside a message is public"),
        (Counting, "changes from round to round outside of its state"),
        (Rescaled, "number of parameters is not known"),
    ],
)
def test_what_hides_a_flow_refuses(kind, reason):
    with pytest.raises(Unaccountable, match=reason):
        trace(kind(name="bad"), metropolis("ring:3"), rounds=3)


def test_memory_outside_of_the_state_shows_where_messages_are_compressed():
    bad = Counting(name="bad", compression=parse_compression("rand:0.5"))
    with pytest.raises(Unaccountable, match="changes from round to round outside of its state"):
        trace(bad, metropolis("ring:3"), rounds=3, coordinate=Coordinate(0, 4))


def test_a_run_does_not_let_maps_change_what_they_are_given():
    with pytest.raises(ValueError, match="read-only"):
        train(InPlace(name="bad"), metropolis("ring:3"), np.zeros((3, 1)), lambda t, x: x + 1, rounds=2)


@pytest.mark.parametrize("kind", [Sliced, Shuffled, InPlace, Complex, Undefined])
def test_what_is_not_a_linear_map_of_rows_refuses(kind):
    with pytest.raises(Unaccountable, match="is not linear"):
        trace(kind(name="bad"), metropolis("ring:3"), rounds=2)


@pytest.mark.parametrize("kind", [Squares, Rectified, Shifted, Branching, Smuggling, Powers, Squashed, Chosen, Counted])
def test_what_is_not_linear_refuses(kind):
    with pytest.raises(Unaccountable, match="is not linear"):
        trace(kind(name="bad"), metropolis("ring:3"), rounds=2)


def test_path_of_two_by_hand():
    """x_1 = (s0 + s1) / 2 with s = -(g + 2 z), eta = 1, and both nodes speak twice."""
    A, B, labels = trace(algorithm("dp-d-sgd", sigma=2.0, step_size=1.0), metropolis("path:2"), rounds=2).dense()
    np.testing.assert_array_equal(A, [[-1, 0, 0, 0], [0, -1, 0, 0], [-0.5, -0.5, -1, 0], [-0.5, -0.5, 0, -1]])
    np.testing.assert_array_equal(B, 2 * A)
    assert labels.sender.tolist() == [0, 1, 0, 1]
    assert labels.round.tolist() == [0, 0, 1, 1]


def test_equal_rounds_share_their_matrices():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), rounds=50)
    assert len({id(step) for step in system.steps}) == 1
    changing = trace(algorithm("dp-d-sgd", sigma=1.0), fresh_erdos_renyi(8, 0.5), rounds=5)
    assert len({id(step) for step in changing.steps}) == 5
    averaging = trace(algorithm("muffliato", sigma=1.0), metropolis("ring:5"), rounds=20)
    assert [step.gradients for step in averaging.steps] == [5] + [0] * 19
    assert len({id(step) for step in averaging.steps}) == 2
    accelerated = trace(
        algorithm("muffliato-sgd", sigma=1.0, gossip_steps=3, chebyshev=True), metropolis("ring:5"), rounds=20
    )
    assert len({id(step) for step in accelerated.steps}) == 2


def test_only_woken_nodes_speak():
    system = trace(algorithm("muffliato", sigma=1.0), random_edges("ring:6", seed=0), rounds=10)
    assert all(len(step.sent[0].sender) == 2 for step in system.steps)


def test_per_edge_messages_are_labelled_by_edge():
    _, _, labels = trace(algorithm("zip-dl", sigma=1.0), metropolis("path:3"), rounds=1).dense()
    assert list(zip(labels.sender.tolist(), labels.receiver.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_push_sum_point_is_the_debiased_model():
    net = push("star:4")
    system = trace(algorithm("dp-csgp", sigma=1.0), net, rounds=2)
    weight = net.at(0).weights @ (net.at(0).weights @ np.ones(4))
    point = system.steps[1].point.toarray()[:, :4]
    np.testing.assert_allclose(point, np.diag(1 / weight))


def test_step_size_scales_gradients_and_noise_alike():
    base = algorithm("zip-dl", sigma=1.0, step_size=1.0)
    A, B, _ = trace(base, metropolis("ring:4"), rounds=3).dense()
    a, b, _ = trace(replace(base, step_size=0.25), metropolis("ring:4"), rounds=3).dense()
    np.testing.assert_allclose(a, A / 4)
    np.testing.assert_allclose(b, B / 4)


def test_sensitivity_scales_noise_only():
    base = algorithm("dp-d-sgd", sigma=1.0)
    A, B, _ = trace(base, metropolis("ring:4"), rounds=3).dense()
    a, b, _ = trace(replace(base, sensitivity=5.0), metropolis("ring:4"), rounds=3).dense()
    np.testing.assert_allclose(a, A)
    np.testing.assert_allclose(b, 5 * B)


def test_chebyshev_messages_span_those_of_plain_gossip():
    net = metropolis("path:6")
    spans = []
    for chebyshev in (False, True):
        A, _, _ = trace(algorithm("muffliato", sigma=1.0, chebyshev=chebyshev), net, rounds=4).dense()
        spans.append(A)
    joint = np.concatenate(spans)
    assert np.linalg.matrix_rank(joint) == np.linalg.matrix_rank(spans[0]) == np.linalg.matrix_rank(spans[1])


@pytest.mark.parametrize("case", rest_slow(case for case in cases() if case.algorithm.compression.name == "identity"))
def test_models_are_said_where_no_model_adds_to_the_rank_of_all_messages(case):
    """The whole run as one dense matrix: messages of all rounds, then models at the end."""
    system = trace(case.algorithm, case.topology, rounds=ROUNDS)
    inputs = [step.gradients + step.noise_size for step in system.steps]
    state = np.zeros((system.steps[0].state_size, sum(inputs)))
    messages, at = [], 0
    for step, width in zip(system.steps, inputs, strict=True):
        fresh = np.zeros((width, sum(inputs)))
        fresh[:, at : at + width] = np.eye(width)
        known, at = np.concatenate([state, fresh]), at + width
        messages += [heard.rows @ known for heard in step.sent]
        models, state = step.models @ known, step.state_out @ known
    said = np.concatenate(messages)
    more = np.linalg.matrix_rank(np.concatenate([said, models]), tol=1e-9) > np.linalg.matrix_rank(said, tol=1e-9)
    assert not (models_follow_from_messages(system) and more)
    if case.topology.static:
        assert models_follow_from_messages(system) != more


def test_zero_less_rows_is_their_negative_and_other_constants_are_refused():
    rows = LinearRows(np.array([[1.0, 2.0], [0.0, 3.0]]))
    assert np.array_equal((0.0 - rows).matrix.toarray(), -rows.matrix.toarray())
    with pytest.raises(Unaccountable, match="constant"):
        1.0 - rows
