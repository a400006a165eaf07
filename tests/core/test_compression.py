"""Compression: omega and bits as stated, refusals, and error feedback that converges."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce import InputError, algorithm, dropout, push, train
from sottovoce.core.compression import RandomK, parse_compression
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.topologies import weigh
from sottovoce.support.text import to_toml

SPECS = ["identity", "rand:0.5", "rand:0.1", "gsgd:2", "gsgd:8", "gsgd:16", "top:0.1", "top:1"]


def apply(operator, rows, seed=0):
    return operator.apply(rows, [np.random.default_rng([seed, i]) for i in range(len(rows))])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dimension", [30, 5000])
def test_error_is_within_omega(spec, dimension):
    operator = parse_compression(spec)
    x = np.random.default_rng(1).standard_normal((1, dimension)).repeat(200, axis=0)
    error = ((apply(operator, x) - x) ** 2).sum(axis=1).mean() / (x[0] ** 2).sum()
    omega = operator.omega(dimension)
    assert omega < 1
    assert error <= omega**2 * 1.03 + 1e-12


@pytest.mark.parametrize(
    ("spec", "dimension", "bits", "omega_squared"),
    [
        ("identity", 10, 320, 0.0),
        ("rand:0.5", 101, 32 * 50, 1 - 50 / 101),
        ("rand:0.29", 100, 32 * 29, 0.71),
        ("gsgd:8", 1000, 8000, 1000 / 2**14),
        ("gsgd:2", 1000, 2000, (1000**0.5 / 2) / (1 + 1000**0.5 / 2)),
        ("top:0.1", 1000, 100 * 42, 0.9),
    ],
)
def test_bits_and_omega(spec, dimension, bits, omega_squared):
    operator = parse_compression(spec)
    assert operator.bits(dimension) == bits
    assert operator.omega(dimension) ** 2 == pytest.approx(omega_squared)
    assert operator.name == spec


def test_gsgd_is_unbiased_where_it_is_a_contraction():
    x = np.random.default_rng(0).standard_normal((1, 20)).repeat(40_000, axis=0)
    spread = np.linalg.norm(x[0]) / 2**3
    np.testing.assert_allclose(apply(parse_compression("gsgd:4"), x).mean(axis=0), x[0], atol=5 * spread / 200)


def test_gsgd_says_when_it_is_rescaled():
    assert "rescaled by 1/(1 + omega^2)" in parse_compression("gsgd:2").describe(1000)
    assert "rescaled" not in parse_compression("gsgd:8").describe(1000)


def test_gsgd_as_printed_is_not_rescaled_and_expands_in_many_dimensions():
    printed, ours = parse_compression("gsgd:2,as-printed"), parse_compression("gsgd:2")
    assert printed.name == "gsgd:2,as-printed"
    assert printed.omega(1000) ** 2 == pytest.approx(1000**0.5 / 2)
    assert "rescaled" not in printed.describe(1000)
    x = np.random.default_rng(0).standard_normal((1, 1000))
    factor = 1 + printed.omega(1000) ** 2
    np.testing.assert_allclose(apply(printed, x), factor * apply(ours, x), rtol=1e-12)
    error = ((apply(printed, x.repeat(100, axis=0)) - x) ** 2).sum(axis=1).mean() / (x**2).sum()
    assert 1 < error <= 1.03 * printed.omega(1000) ** 2


def test_zero_stays_zero():
    for spec in SPECS:
        assert not apply(parse_compression(spec), np.zeros((2, 40))).any()


@pytest.mark.parametrize(
    "spec", ["zip", "rand", "rand:x", "rand:0", "rand:1.5", "rand:nan", "gsgd:1", "gsgd:99", "gsgd:2.5", "top:-1", ""]
)
def test_unknown_or_impossible_operators(spec):
    with pytest.raises(InputError):
        parse_compression(spec)


def test_too_few_coordinates():
    with pytest.raises(InputError, match=r"rand:0.1 keeps 0.5 of 5 coordinates; at least one must be sent"):
        parse_compression("rand:0.1").bits(5)


def test_compression_needs_receivers_that_miss_nothing():
    away = dropout("ring:5", rate=0.2, weights="push", announced=True)
    with pytest.raises(InputError, match=r"rand:0.5 on .*; receivers of compressed differences must not miss any"):
        train(algorithm("dp-csgp", sigma=1.0, compression="rand:0.5"), away, np.zeros((5, 4)), None, rounds=1)


TARGET = np.random.default_rng(0).standard_normal((6, 20))


def pulled(**settings):
    """Where nodes of a directed graph end that each pull to their own target, without noise."""
    built = algorithm("dp-csgp", sigma=0.0, step_size=0.02, **settings)
    return train(built, push("exponential:6"), np.zeros((6, 20)), lambda t, x: x - TARGET, rounds=2000)


def test_plain_messages_reach_the_common_minimum():
    assert abs(pulled() - TARGET.mean(axis=0)).max() < 0.1


@pytest.mark.parametrize("spec", ["rand:0.5", "gsgd:4", pytest.param("gsgd:2", marks=pytest.mark.slow), "top:0.3"])
def test_error_feedback_reaches_the_common_minimum(spec):
    """All end near the mean of targets."""
    assert abs(pulled(compression=spec).mean(axis=0) - TARGET.mean(axis=0)).max() < 0.1


def test_without_compression_distances_shrink_by_the_second_eigenvalue():
    for spec in ("ring:7", "exponential:10"):
        W = weigh(spec, "push").at(0).weights.toarray()
        expected = sorted(abs(np.linalg.eigvals(W)))[-2]
        assert RandomK(1.0).growth([W]) == pytest.approx(expected, rel=1e-6)


def test_rand_50_is_bounded_where_each_node_has_one_receiver_at_a_time():
    """The exponential graph of the work that the paper builds on: in round t node i sends to i + 2^(t mod 4) alone."""
    one_peer = [(np.eye(10) + np.roll(np.eye(10), 2**k, axis=0)) / 2 for k in range(4)]
    assert RandomK(0.5).growth(one_peer) < 1
    assert RandomK(0.1).growth(one_peer) > 1
    assert RandomK(0.5).growth([weigh("exponential:10", "push").at(0).weights.toarray()]) > 1


@pytest.mark.parametrize(
    ("weights", "kept"),
    [("push", 0.75), ("push", 0.5), ("push,lazy=0.5", 0.5), ("push", 0.1), ("push,lazy=0.95", 0.1)],
)
def test_coarse_compression_needs_lazy_weights(weights, kept):
    """Directed exponential graph of ten: below 0.61 full steps along lagging copies diverge, without noise."""
    net, D, rounds = weigh("exponential:10", weights), 4000, 150
    built = algorithm("dp-csgp", sigma=0.0, compression=f"rand:{kept}", step_size=1.0)
    kick = np.random.default_rng(0).standard_normal((10, D))
    apart = []
    for played in iterate_rounds(built, net, np.zeros((10, D)), lambda t, x: kick * (t == 0), rounds=rounds):
        x = played.loop_state.state.x
        apart.append(np.sqrt(((x - x.mean(axis=0)) ** 2).sum()))
    rate = (apart[-1] / apart[49]) ** (1 / (rounds - 50))
    expected = RandomK(kept).growth([net.at(0).weights.toarray()])
    assert (rate < 1) == (expected < 1)
    assert expected - 0.1 < rate < expected + 0.01  # rare long lags, which few coordinates meet, carry the moments


@pytest.mark.parametrize(
    ("spec", "dimension"),
    [
        *((spec, dimension) for spec in (*SPECS, "gsgd:3", "gsgd:11", "rand:1", "top:0.5") for dimension in (30, 1000)),
        *((spec, dimension) for spec in ("identity", "gsgd:2", "gsgd:8", "rand:1", "top:1") for dimension in (1, 2, 7)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_travels_is_decoded_to_what_was_compressed(spec, dimension, dtype):
    operator = parse_compression(spec)
    rows = np.random.default_rng(3).standard_normal((6, dimension)).astype(dtype)
    rows[1] = 0  # no norm
    rows[2, 1:] = 0  # one coordinate is all of the norm: the highest level
    rows[3] = -0.0
    rows[4, ::2] *= 1e-20
    streams = [[np.random.default_rng([7, i]) for i in range(len(rows))] for _ in range(3)]
    wanted = operator.apply(rows, streams[0])
    sent = operator.encode(rows, streams[1])
    assert sent.dtype == np.uint8
    assert sent.shape == (6, operator.payload(dimension, rows.dtype))
    np.testing.assert_array_equal(operator.decode(sent.copy(), streams[2], dimension, rows.dtype), wanted, strict=True)
    assert operator.encode(rows[:0], []).shape == (0, operator.payload(dimension, rows.dtype))


@pytest.mark.parametrize("spec", ["identity", "rand:0.5", "gsgd:8", "gsgd:3", "top:0.1"])
def test_messages_weigh_what_is_accounted_for_them(spec):
    operator, dimension = parse_compression(spec), 20_000
    assert 8 * operator.payload(dimension, np.dtype(np.float32)) == pytest.approx(operator.bits(dimension), rel=0.01)


def test_a_graph_on_which_models_grow_apart_is_said_to_be_one_before_a_run(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for weights, grows in (("push", True), ("push,lazy=0.5", False)):
        code, out, err = sotto(f"graph exponential:10 --weights {weights} --compression rand:0.5 --json")
        assert code == 0
        assert (json.loads(out)["growth"] > 1) is ("lazy=0.5" in err) is grows
    assert sotto("graph ring:5 --compression gsgd:8")[0] == 2
    settings = {
        "name": "coarse", "topology": {"graph": "exponential:10"}, "training": {"rounds": 1},
        "algorithm": {"name": "dp-csgp", "sigma": 1.0, "compression": "rand:0.5"}, "privacy": {"attackers": "none"},
    }  # fmt: skip
    (tmp_path / "coarse.toml").write_text(to_toml(settings))
    code, _, err = sotto("run coarse.toml --json")
    assert code == 0
    assert "lazy=0.5" in err
