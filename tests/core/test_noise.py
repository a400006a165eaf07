"""Noise: sources, draws and correlation over rounds, beyond what the laws say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from sottovoce import (
    Changing,
    Coordinate,
    InputError,
    Mixing,
    algorithm,
    algorithm_names,
    cite,
    iterate_rounds,
    metropolis,
    random_edges,
    trace,
    train,
)
from sottovoce.core.algorithm import Gossip
from sottovoce.core.correlation import Differences, Triangular
from sottovoce.core.noise import Central, CombinedNoise, Independent, Pairwise, Temporal, ZeroSum
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey, public_stream


def test_every_key_names_its_own_stream():
    keys = [(seed, kind, ids, t, k)
            for seed in (0, 1) for kind in ("node", "pair") for ids in ((1,), (12,), (1, 2))
            for t in (0, 2) for k in (0, 1)]  # fmt: skip
    for draw in (
        lambda *name: public_stream(*name).random(),
        lambda seed, *name: float(NoiseKey.of_seed(seed).stream(*name).uniforms(1)[0]),
    ):
        first = [draw(*key) for key in keys]
        assert len(set(first)) == len(keys)
        assert first == [draw(*key) for key in keys]


def test_holders_know_what_they_draw():
    mixing = metropolis("path:3").at(0)
    (own,) = Independent(1.0).local(mixing)
    np.testing.assert_array_equal(own.sources.holders.toarray(), np.eye(3, dtype=bool))
    (pairs,) = Pairwise(1.0).local(mixing)
    np.testing.assert_array_equal(pairs.sources.holders.toarray(), [[True, True, False], [False, True, True]])
    (server,) = Central(1.0).local(mixing)
    assert not server.sources.holders.toarray().any()
    (edges,) = ZeroSum(zeta=1.0).edge(mixing)
    np.testing.assert_array_equal(edges.sources.holders.toarray().sum(axis=0), [2, 3, 2])


def test_pair_secrets_cancel_are_fresh_and_not_scaled_by_weights():
    system = trace(algorithm("decor", sigma=0.0, sigma_pair=3.0, step_size=1.0), metropolis("path:4"), rounds=2)
    _, B, labels = system.dense()
    first = B[labels.round == 0][:, :3]
    np.testing.assert_array_equal(abs(first), 3.0 * (first != 0))
    np.testing.assert_allclose(first.sum(axis=0), 0)
    assert B.shape[1] == 6
    Z = system.draw(NoiseKey.of_seed(0), 1000)
    assert abs(np.corrcoef(Z)[:3, 3:]).max() < 0.2


def test_a_hub_does_not_need_the_square_of_its_degree():
    net = metropolis("star:20001")
    played = next(iterate_rounds(algorithm("zip-dl", sigma=1.0), net, np.zeros((20001, 1)), lambda t, x: x, rounds=1))
    assert abs(played.models.mean()) < 1e-12


def test_zeta_may_differ_by_node():
    net = metropolis("ring:4")
    (term,) = ZeroSum(zeta=[1.0, 2.0, 0.0, 4.0]).edge(net.at(0))
    sizes = np.sqrt(term.matrix.whole().power(2).sum(axis=1))
    for node, zeta in enumerate((1.0, 2.0, 0.0, 4.0)):
        np.testing.assert_allclose(sizes[term.edges.sender == node], zeta * np.sqrt(2 / 3))


def test_dp_fedavg_noise_is_on_the_sum():
    system = trace(algorithm("dp-fedavg", sigma=2.0, step_size=1.0), metropolis("complete:5"), rounds=3)
    A, B, labels = system.dense()
    assert A.shape == (3, 15)
    assert (labels.sender == -1).all()
    np.testing.assert_allclose(np.diag(B), -2.0 / 5)
    np.testing.assert_allclose(A[0, :5], -1 / 5)


@pytest.mark.parametrize("bands", [1, 3, 12])
def test_streamed_correlation_is_multiplication_by_the_inverse(bands):
    rng = np.random.default_rng(bands)
    C = np.tril(np.triu(rng.standard_normal((12, 12)), -bands + 1)) + 3 * np.eye(12)
    noise = Temporal(2.0, Triangular(C))
    assert noise.over_rounds.memory == bands - 1
    (term,) = noise.local(metropolis("path:2").at(0))
    feed = NoiseFeed(0, NoiseKey.of_seed(0), None, np.zeros((2, 4)))
    streamed = np.stack([feed.correlated(noise.over_rounds, term.sources, term.matrix, t) for t in range(12)])
    plain = NoiseFeed(0, NoiseKey.of_seed(0), None, np.zeros((2, 4)))
    white = np.stack([plain.noise(term.sources, term.matrix, t, 0) for t in range(12)])
    np.testing.assert_allclose(streamed, np.einsum("ts,snd->tnd", np.linalg.inv(C), white), atol=1e-12)
    np.testing.assert_array_equal(
        feed.correlated(noise.over_rounds, term.sources, term.matrix, 5), streamed[5]
    )  # asked again out of order


def test_anti_pgd_is_all_ones_below():
    np.testing.assert_allclose(Differences().inverse(6) @ Differences().matrix(6), np.eye(6))


def test_memory_is_bounded_for_noise_on_many_edges(monkeypatch):
    monkeypatch.setattr("sottovoce.core.noise_feed.CHUNK", 50)
    net, x0 = metropolis("erdos-renyi:20,p=0.4,seed=0"), np.zeros((20, 7))
    small = train(algorithm("zip-dl", sigma=1.0), net, x0, lambda t, x: x, rounds=3, noise_key=NoiseKey.of_seed(2))
    monkeypatch.setattr("sottovoce.core.noise_feed.CHUNK", 10**9)
    np.testing.assert_allclose(
        train(algorithm("zip-dl", sigma=1.0), net, x0, lambda t, x: x, rounds=3, noise_key=NoiseKey.of_seed(2)),
        small,
    )


class Listed(Gossip):
    def init(self, x0):
        return (x0, [x0])

    def point(self, state):
        return state[0]

    def local(self, state, grad, noise):
        return (state[0] - grad, [state[1]])


def start_at(x0, gradient=None):
    return train(algorithm("d-psgd"), metropolis("path:2"), x0, gradient, rounds=1)


def test_gradients_cannot_change_the_models_they_are_shown():
    def careless(round, x):
        x -= 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        start_at(np.zeros((2, 1)), careless)


BAD = {
    "negative": (lambda: algorithm("dp-d-sgd", sigma=-1), "sigma = -1; "),
    "nan": (lambda: algorithm("dp-d-sgd", sigma=float("nan")), "sigma = nan"),
    "word": (lambda: algorithm("dp-d-sgd", sigma="much"), "sigma = 'much'; "),
    "pair per node": (
        lambda: algorithm("decor", sigma=1, sigma_pair=[1, 2]),
        r"sigma_pair = \[1, 2\] of decor; it must be a number",
    ),
    "wrong count": (
        lambda: trace(algorithm("dp-d-sgd", sigma=[1, 2]), metropolis("path:3"), rounds=1),
        "sigma for 2 nodes; there are 3",
    ),
    "no zeta": (lambda: algorithm("zip-dl"), "zip-dl with sigma=None and message_sigma=None; exactly one"),
    "both": (lambda: algorithm("zip-dl", sigma=1, message_sigma=1), "exactly one of them must be given"),
    "open leaf": (
        lambda: ZeroSum(message_sigma=1.0, closed=False).zetas(metropolis("path:3").at(0)),
        "node 0 has one neighbour",
    ),
    "two of a kind": (
        lambda: trace(
            Gossip(name="twice", noise=CombinedNoise((Independent(1.0), Independent(2.0)))),
            metropolis("path:2"),
            rounds=1,
        ),
        "two noises from sources of kind 'node'; they would draw the same numbers",
    ),
    "correlated once": (
        lambda: trace(
            replace(algorithm("muffliato", sigma=1.0), noise=Temporal(1.0, Differences())),
            metropolis("ring:5"),
            rounds=1,
        ),
        "muffliato with correlated noise; it adds noise only once",
    ),
    "tiny noise": (lambda: Independent(1e-320), "between 1e-50"),
    "seed": (
        lambda: train(algorithm("d-psgd"), metropolis("path:2"), np.zeros((2, 1)), None, rounds=1, seed=None),
        "seed None; it must be a whole number",
    ),
    "step size in words": (
        lambda: algorithm("d-psgd", step_size="0.1"),
        "step_size = '0.1' of d-psgd; it must be a number",
    ),
    "half a gossip step": (lambda: algorithm("muffliato-sgd", sigma=1, gossip_steps=2.5), "gossip_steps = 2.5"),
    "no compression": (lambda: algorithm("dp-csgp", sigma=1, compression=None), "compression None"),
    "name of an algorithm": (
        lambda: trace("dp-d-sgd", metropolis("path:2"), rounds=1),
        "'dp-d-sgd' instead of an algorithm",
    ),
    "no name": (lambda: algorithm(None), "an algorithm's name of type NoneType; it must be a string"),
    "ragged C": (lambda: Triangular([[1], [1, 2]]), "correlation matrix is not an array of numbers"),
    "coordinate": (lambda: Coordinate(5, 3), "coordinate 5 of 3"),
    "list in state": (
        lambda: train(Listed(name="listed"), metropolis("path:2"), np.zeros((2, 1)), lambda t, x: x, rounds=1),
        "a list in an algorithm's state; states are tuples",
    ),
    "no weight left": (
        lambda: train(
            algorithm("dp-csgp", sigma=1.0),
            Changing(lambda t, k: Mixing([[0, 0], [1, 1.0]] if t else np.eye(2)), n=2),
            np.zeros((2, 1)),
            lambda t, x: x,
            rounds=2,
        ),
        "node 0 is left without weight; push-sum divides by this weight",
    ),
    "two correlated": (
        lambda: CombinedNoise((Temporal(1.0, Differences()), Independent(1.0))),
        "noise correlated over rounds together",
    ),
    "upper": (lambda: Triangular([[1, 1], [0, 1]]), "not lower triangular; noise can depend only on earlier rounds"),
    "nan C": (lambda: Triangular([[np.nan]]), "not finite"),
    "singular": (lambda: Triangular([[1, 0], [1, 0]]), r"C\[1,1\] = 0; C must be invertible"),
    "shape": (lambda: Triangular([[1, 0]]), r"correlation matrix of shape \(1, 2\)"),
    "short": (
        lambda: trace(algorithm("mf-d-sgd", sigma=1, correlation=[[1.0]]), metropolis("path:2"), rounds=2),
        "2 rounds with a correlation matrix for 1",
    ),
    "no file": (lambda: algorithm("mf-d-sgd", sigma=1, correlation="none.npz"), "none.npz: No such file"),
    "unknown setting": (
        lambda: algorithm("dp-d-sgd", sigma=1, momentum=0.9),
        "setting 'momentum' of dp-d-sgd; its settings are",
    ),
    "missing setting": (lambda: algorithm("decor", sigma=1), "decor without sigma_pair"),
    "step size": (lambda: algorithm("d-psgd", step_size=0), "step_size = 0; "),
    "sensitivity": (lambda: algorithm("dp-d-sgd", sigma=1, sensitivity=0), "sensitivity = 0; "),
    "gossip steps": (lambda: algorithm("muffliato-sgd", sigma=1, gossip_steps=0), "0 gossip steps"),
    "order": (lambda: algorithm("d-psgd", order="never"), "order 'never'; known"),
    "rounds": (
        lambda: trace(algorithm("d-psgd"), metropolis("path:2"), rounds=0),
        "0 rounds; it must be a whole number",
    ),
    "x0": (
        lambda: train(algorithm("d-psgd"), metropolis("path:2"), np.zeros((3, 1)), None, rounds=1),
        "x0 has 3 rows; the topology has 2 nodes",
    ),
    "flat x0": (lambda: start_at(np.zeros(2)), r"x0 of shape \(2,\); it must be a numpy or torch array"),
    "deep x0": (lambda: start_at(np.zeros((2, 1, 1))), r"x0 of shape \(2, 1, 1\)"),
    "list x0": (lambda: start_at([[0.0], [0.0]]), "x0 of type list"),
    "whole x0": (lambda: start_at(np.zeros((2, 1), dtype=int)), "x0 of type int64; it must be float32 or float64"),
    "half x0": (lambda: start_at(np.zeros((2, 1), dtype=np.float16)), "x0 of type float16"),
    "empty x0": (lambda: start_at(np.zeros((2, 0))), "x0 has 0 columns"),
    "graph for topology": (
        lambda: train(algorithm("d-psgd"), "ring:3", np.zeros((3, 1)), None, rounds=1),
        "a str instead of a topology; a graph needs weights",
    ),
    "half a round": (lambda: trace(algorithm("d-psgd"), metropolis("path:2"), rounds=1.5), "1.5 rounds"),
    "private start": (
        lambda: train(algorithm("muffliato", sigma=1), metropolis("path:2"), np.ones((2, 1)), None, rounds=1),
        "muffliato from a starting point that is not zero; values to average are private",
    ),
    "no gradient": (lambda: start_at(np.zeros((2, 1)), lambda t, x: None), "gradient of type NoneType; points are"),
    "nan gradient": (
        lambda: start_at(np.zeros((2, 1)), lambda t, x: x + np.nan),
        "gradient with nan or infinity in round 0",
    ),
    "chebyshev on edges": (
        lambda: trace(
            algorithm("muffliato-sgd", sigma=1, chebyshev=True, gossip_steps=3), random_edges("ring:5"), rounds=1
        ),
        "Chebyshev gossip on random edges of .*; its polynomials need the same W",
    ),
    "no coordinate": (
        lambda: trace(algorithm("dp-csgp", sigma=1, compression="rand:0.5"), metropolis("path:2"), rounds=1),
        "rand:0.5 traced without a coordinate",
    ),
    "gradient": (
        lambda: train(algorithm("d-psgd"), metropolis("path:2"), np.zeros((2, 1)), lambda t, x: np.zeros(2), rounds=1),
        r"gradient of shape \(2,\); points have \(2, 1\)",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD.keys())
def test_bad_settings_get_one_line(call, message):
    with pytest.raises(InputError) as caught:
        call()
    line = str(caught.value)
    assert re.search(message, line), line
    assert "\n" not in line
    assert line.count("; ") >= 2


def test_correlation_files(tmp_path):
    np.savez(tmp_path / "c.npz", C=np.eye(3))
    np.savez(tmp_path / "other.npz", D=np.eye(3))
    (tmp_path / "text.npz").write_text("no")
    built = algorithm("mf-d-sgd", sigma=1.0, correlation=str(tmp_path / "c.npz"))
    np.testing.assert_array_equal(built.noise.correlation.matrix(3), np.eye(3))
    for name, reason in (("other", "no array named C"), ("text", "it is not an .npz file, or it is damaged")):
        with pytest.raises(InputError, match=reason):
            algorithm("mf-d-sgd", sigma=1.0, correlation=tmp_path / f"{name}.npz")


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_cites(name):
    assert cite(name)
