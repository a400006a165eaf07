"""Algorithms that scale single coordinates, or nodes, differently: accounted for as one, watched in runs by class.

The oracle unrolls whole vectors by hand, N x D numbers a round with a dense covariance over all coordinates; it shares
no code with the tracer. The worst change is sought by moving one round's change at a time to where it costs most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sottovoce import Coordinate, Gossip, Independent, Unaccountable, account, calibrate, metropolis, trace
from sottovoce.core.algorithm import Model, with_noise
from sottovoce.core.arrays import Rows, convert
from sottovoce.core.compression import parse_compression
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.noise import ZeroSum
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.transport import InProcess
from sottovoce.errors import Uncertified
from sottovoce.tracing.certificate import Certificate
from sottovoce.tracing.tracer import MOST_CLASSES, trace_all_maps

PATH = metropolis("path:3")
N, T, SIGMA = 3, 4, 1.3
SCALE = (1.0, 0.25, -2.0, 1.0, 0.25)
D = len(SCALE)


class Moving(NamedTuple):
    x: Rows
    velocity: Rows


@dataclass(frozen=True, kw_only=True)
class Scaled(Gossip):
    """`v <- beta v + g + noise`, `x <- W (x - eta scale v)`, with numbers for each parameter or node."""

    scale: object = 1.0
    beta: object = 0.0
    kind: str = "numpy"

    def numbers(self, given, like):
        values = np.array(given, dtype=float)
        return convert(torch.from_numpy(values) if self.kind == "torch" else values, like)

    def init(self, x0):
        return Moving(x0, 0 * x0)

    def local(self, state, grad, noise):
        velocity = state.velocity * self.numbers(self.beta, grad) + with_noise(grad, noise)
        return Moving(state.x - self.step_size * (velocity * self.numbers(self.scale, grad)), velocity)

    def absorb(self, state, mixed):
        return Moving(mixed, state.velocity)


def scaled(**settings) -> Scaled:
    return Scaled(name="scaled", noise=Independent(SIGMA), step_size=0.3, **settings)


# --- oracle ----------------------------------------------------------------------------------------------------------


def unrolled(scale, beta, heard, gradient=1.0):
    """What heard nodes say in all rounds, from gradients and from noise: (T N D) x (T N D), by hand."""
    W = PATH.at(0).weights.toarray()
    scale, beta = (np.broadcast_to(np.array(values, dtype=float), (N, D)) for values in (scale, beta))
    size = T * N * D
    x, v = np.zeros((N, D, 2 * size)), np.zeros((N, D, 2 * size))
    rows = []
    for t in range(T):
        enters = np.zeros((N, D, 2 * size))
        for u in range(N):
            for j in range(D):
                enters[u, j, (t * N + u) * D + j] = np.broadcast_to(gradient, (N, D))[u, j]
                enters[u, j, size + (t * N + u) * D + j] = SIGMA
        v = beta[:, :, None] * v + enters
        said = x - 0.3 * scale[:, :, None] * v
        rows.append(said[list(heard)].reshape(-1, 2 * size))
        x = np.einsum("uw,wjk->ujk", W, said)
    O = np.concatenate(rows)
    return O[:, :size], O[:, size:]


def attained(A, B, victim, members=()):
    """A loss that some change of the victim reaches: mu^2 of the joint release of all coordinates, from below."""
    known = np.isin(np.arange(T * N * D) // D % N, list(members))
    B = np.where(known, 0.0, B)
    A = A.reshape(len(A), T, N, D)[:, :, victim].reshape(len(A), T * D)
    M = (A.T @ np.linalg.pinv(B @ B.T, rcond=1e-11) @ A).reshape(T, D, T, D)
    rng, best = np.random.default_rng(0), 0.0
    for _ in range(20):
        delta = rng.standard_normal((T, D))
        delta /= np.linalg.norm(delta, axis=1, keepdims=True)
        for _ in range(200):
            for t in range(T):  # a step of the power method: the cost is convex in each round's change
                pull = np.einsum("jsk,sk->j", M[t], delta)
                delta[t] = pull / max(np.linalg.norm(pull), 1e-300)
        best = max(best, float(np.einsum("tj,tjsk,sk->", delta, M, delta)))
    return best


# --- accounts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_factors_of_parameters_alone_change_no_figure_and_the_oracle_reaches_it(kind, beta):
    system = trace(scaled(scale=SCALE, beta=beta, kind=kind), PATH, rounds=T)
    assert (system.classes, system.only_gradients) == (3, "")
    plain = trace(scaled(beta=beta), PATH, rounds=T)
    for view, heard, members, victim in (("everyone", (0, 1, 2), (), 0), ("node:0", (1,), (0,), 2)):
        found = account(system, view).of(victim, "fixed-streams").mu
        assert found == pytest.approx(account(plain, view).of(victim, "fixed-streams").mu, rel=1e-12)
        reached = attained(*unrolled(SCALE, beta, heard), victim, members)
        assert reached <= found**2 * (1 + 1e-9)
        assert reached == pytest.approx(found**2, rel=1e-3)


@pytest.mark.parametrize("beta", [(0.0, 0.9, 0.5, 0.9, 0.0), (0.0, 0.9, 0.9, 0.9, 0.9)])
def test_other_differences_are_covered_by_all_noisy_gradients(beta):
    system = trace(scaled(scale=SCALE, beta=beta), PATH, rounds=T)
    assert system.classes > 1
    assert "coordinates are scaled differently" in system.only_gradients
    for view, heard, members, victim in (("everyone", (0, 1, 2), (), 0), ("node:0", (1,), (0,), 2)):
        found = account(system, view)
        assert {guarantee.kind for guarantee in found.guarantees} == {"any-training"}
        assert found.of(victim).mu == pytest.approx(np.sqrt(T) / SIGMA, rel=1e-12)
        assert attained(*unrolled(SCALE, beta, heard), victim, members) <= found.of(victim).mu ** 2 * (1 + 1e-9)


def test_the_worst_class_by_itself_is_no_bound():
    """Classes that show other rounds: together a change costs more than in any of them."""
    M = {0: np.diag([1.0, 0.0]), 1: np.diag([0.0, 1.0])}
    assert max(float(np.ones(2) @ one @ np.ones(2)) for one in M.values()) == 1
    delta = np.eye(2)  # round by coordinate, each of norm one
    assert sum(float(delta[:, c] @ M[c] @ delta[:, c]) for c in M) == 2


def test_a_node_view_of_several_classes_can_cost_more_than_each_of_them():
    """The same of real matrices: a coordinate without momentum and one with it, and one round of each."""
    beta = (0.0, 0.9, 0.9, 0.9, 0.9)
    each = [account(trace(scaled(beta=beta), PATH, rounds=T, coordinate=Coordinate(at, D)), "node:0") for at in (0, 1)]
    worst = max(one.of(2, "fixed-streams").mu ** 2 for one in each)
    joint = attained(*unrolled(1.0, beta, (1,)), 2, (0,))
    assert joint >= worst * (1 - 1e-6)
    assert joint <= sum(one.of(2, "fixed-streams").mu ** 2 for one in each) * (1 + 1e-9)


def test_a_coordinate_that_is_named_has_its_own_matrices():
    A, B, _ = trace(scaled(scale=SCALE, beta=0.5), PATH, rounds=T, coordinate=Coordinate(2, D)).dense()
    all_A, all_B = unrolled(SCALE, 0.5, (0, 1, 2))
    pick = np.arange(T * N) * D + 2
    # the tracer lists every message: those of one sender are alike
    assert np.linalg.matrix_rank(np.vstack([A, all_A[pick][:, pick]])) == np.linalg.matrix_rank(A)
    assert np.allclose(np.unique(np.abs(A).round(12)), np.unique(np.abs(all_A[pick][:, pick]).round(12)))
    assert np.allclose(B, SIGMA * A)
    assert np.abs(all_B[pick][:, pick]).max() == pytest.approx(np.abs(B).max())


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_step_sizes_of_nodes(kind):
    rates = [[1.0], [0.5], [3.0]]
    system = trace(scaled(scale=rates, kind=kind), PATH, rounds=T)
    assert (system.classes, system.only_gradients) == (1, "")
    found = account(system, "node:0")
    for victim in (1, 2):
        reached = attained(*unrolled(np.repeat(rates, D, axis=1), 0.0, (1,)), victim, (0,))
        assert reached == pytest.approx(found.of(victim, "fixed-streams").mu ** 2, rel=1e-3)


def test_numbers_for_each_node_and_parameter_are_classes_of_columns():
    scale = np.array([[1.0, 2.0, 1.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.0, 1.0], [1.0, 4.0, 1.0, 4.0, 1.0]])
    system = trace(scaled(scale=scale), PATH, rounds=T)
    assert (system.classes, bool(system.only_gradients)) == (2, True)
    reached = attained(*unrolled(scale, 0.0, (0, 1, 2)), 2)
    assert reached <= account(system).of(2).mu ** 2 * (1 + 1e-9)


def test_frozen_parameters_tell_no_more():
    system = trace(scaled(scale=(0.0, 1.0, 0.0, 1.0, 1.0)), PATH, rounds=T)
    assert account(system).mu == account(trace(scaled(), PATH, rounds=T)).mu


def test_no_condition_on_the_loss_bounds_steps_that_differ_by_parameter():
    found = account(trace(scaled(scale=SCALE), PATH, rounds=T), "node:0", convex=True)
    assert found.kind == "any-training"
    assert any("scaled differently" in refusal for refusal in found.refusals)


def test_calibration_keeps_the_classes():
    many, plain = (
        calibrate(one, PATH, "node:0", rounds=T, epsilon=1.0, delta=1e-5, kinds=["any-training"])
        for one in (scaled(scale=SCALE, beta=0.5), scaled(beta=0.5))
    )
    assert many == pytest.approx(plain, rel=1e-12)


class Noiseless(Scaled):
    """Leaves the noise out of one parameter."""

    def local(self, state, grad, noise):
        return Moving(state.x - self.step_size * (grad + noise * self.numbers(self.scale, grad)), state.velocity)


def test_noise_that_is_scaled_by_itself_is_refused():
    with pytest.raises(Unaccountable, match="scale the sum of both"):
        trace(Noiseless(name="bad", noise=Independent(SIGMA), scale=(1.0, 0.0, 1.0)), PATH, rounds=T)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"scale": SCALE, "beta": (0.0, 0.5)}, "factors for"),
        ({"scale": tuple(range(MOST_CLASSES + 1))}, "classes of coordinates"),
        ({"scale": np.ones((2, D))}, "for each parameter"),
        ({"scale": (1.0, float("nan"))}, "for each parameter"),
    ],
)
def test_what_is_no_factor_of_parameters_is_refused(settings, reason):
    with pytest.raises(Unaccountable, match=reason):
        trace(scaled(**settings), PATH, rounds=T)


def test_noise_on_single_messages_has_its_own_unit():
    noisy = replace(scaled(scale=SCALE), noise=ZeroSum(1.0), requires="symmetric")
    assert account(trace(noisy, PATH, rounds=T)).headline.proves_nothing


def test_compressed_messages_have_figures_given_all_noisy_gradients():
    from sottovoce.tracing.policy import trace_possible

    compressed = replace(scaled(scale=SCALE), compression=parse_compression("top:0.5"))
    assert account(trace_possible(compressed, PATH, rounds=T)).mu == pytest.approx(np.sqrt(T) / SIGMA)


# --- runs ------------------------------------------------------------------------------------------------------------


def watched(built, told=None, as_torch=False, dtype=np.float64, dimension=D):
    """Where a watched run ends; it is watched by the maps of another algorithm if one is given."""
    x0 = np.random.default_rng(1).standard_normal((N, dimension)).astype(dtype)
    start, gradient = x0, lambda t, x: (x - 1).astype(dtype)
    if as_torch:
        start, gradient = torch.from_numpy(x0), lambda t, x: x - 1
    transport = InProcess(N)
    watch = Certificate(trace_all_maps(told or built, PATH, rounds=T), built.name, transport.nodes, transport.local)
    for last in iterate_rounds(  # noqa: B007
        built, PATH, start, gradient, rounds=T, noise_key=NoiseKey.of_seed(3), transport=transport, watch=watch
    ):
        pass
    watch.compare_models(T, last.loop_state[::2], last.models)
    return np.asarray(last.models)


BETA = (0.0, 0.9, 0.5, 0.9, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "settings", [{"scale": SCALE}, {"scale": SCALE, "beta": BETA}, {"scale": [[1.0], [0.5], [3.0]]}]
)
def test_a_run_does_what_was_traced_in_numpy_and_torch(settings, dtype):
    ends = [
        watched(scaled(**settings, kind=kind), as_torch=as_torch, dtype=dtype)
        for kind in ("numpy", "torch")
        for as_torch in (False, True)
    ]
    for end in ends[1:]:
        assert np.allclose(end, ends[0], atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"scale": (1.0, 0.25, -2.0, 1.0, 0.26)},
        {"scale": SCALE, "beta": (0.0, 0.9, 0.5, 0.9, 0.1)},
        {"scale": SCALE[::-1]},
        {},
    ],
)
def test_other_factors_than_were_traced_are_stopped(other):
    with pytest.raises(Uncertified):
        watched(scaled(scale=SCALE, beta=BETA), told=scaled(**other))


class Changing(Scaled):
    """Has other factors whenever it is asked, for all parameters but the first."""

    def local(self, state, grad, noise):
        calls.append(1)
        factors = np.array([1.0, *(1.0 + len(calls) * np.arange(1, D))])
        return Model(state.x - grad * factors)

    def init(self, x0):
        return Model(x0)

    def absorb(self, state, mixed):
        return Model(mixed)


calls: list[int] = []


def test_factors_that_change_outside_of_the_state_are_refused():
    with pytest.raises(Unaccountable, match="outside of its state"):
        trace(Changing(name="bad"), PATH, rounds=T)
