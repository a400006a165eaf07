"""The search for the seed: a node knows its starting point, every setting, and one message of its neighbour.

It tries all seeds, and all ways to name a stream that it can read in the code, draws its neighbour's noise and takes it
off. By code of its own: numpy's Philox and Python's hashes.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from sottovoce import NoiseKey, algorithm, iterate_rounds, metropolis
from sottovoce.run.build import build_run
from sottovoce.support.config import parse_experiment

D, SEEDS = 40, 300
GRADIENT = np.linspace(-1.0, 1.0, D)


def streams(seed):
    """Every stream of node 1's first noise that a seed could lead to."""
    name = "node|1|0|0"
    master = hashlib.blake2b(f"public|{seed}".encode(), digest_size=16).digest()
    for_run = hashlib.blake2b(f"run|{seed}|try".encode(), key=master, digest_size=16).digest()
    for words, key in [
        (f"{seed}|{name}", b""), (f"{seed}|{seed}|{name}", b""), (name, str(seed).encode()), (f"{seed}|{name}", master),
        (name, seed.to_bytes(16, "little")), (name, seed.to_bytes(16, "big")), (name, master), (name, for_run),
    ]:  # fmt: skip
        digest = hashlib.blake2b(words.encode(), key=key, digest_size=16).digest()
        yield np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    yield np.random.default_rng(seed)
    yield np.random.Generator(np.random.Philox(seed))


def found_gradient(message, start, sigma):
    """A gradient among the candidates that is one: without noise it is bounded, with other noise it is not."""
    for seed in range(SEEDS):
        for stream in streams(seed):
            guess = (start - message) - sigma * stream.standard_normal(D)
            if np.abs(guess).max() < 1.01:
                return guess
    return None


def heard(seed, **more):
    """The first message of node 1 to node 0."""
    built, net = algorithm("dp-d-sgd", sigma=5.0, step_size=1.0), metropolis("path:2")
    gradients = np.tile(GRADIENT, (2, 1))
    played = next(iterate_rounds(built, net, np.zeros((2, D)), lambda t, x: gradients, rounds=1, seed=seed, **more))
    return played.steps[0].sent_messages().rows[1]


def test_the_search_finds_the_gradient_where_noise_follows_from_a_seed():
    found = found_gradient(heard(7, noise_key=NoiseKey.of_seed(211)), 0.0, 5.0)
    np.testing.assert_allclose(found, GRADIENT, atol=1e-9)


def test_the_search_finds_nothing_in_a_run_with_its_own_key():
    assert found_gradient(heard(7), 0.0, 5.0) is None


@pytest.mark.parametrize("batch", ["poisson:0.5", "cyclic-poisson:0.5x2", "fixed:6"])
def test_neither_noise_nor_batches_nor_starts_of_a_run_file_show_each_other(batch):
    document = {
        "name": "try", "data": {"rows": 12}, "topology": {"graph": "ring:4"},
        "algorithm": {"name": "dp-d-sgd", "sigma": 1.0},
        "training": {"rounds": 2, "batch": batch, "clip": "per-example", "bound": 1.0},
    }  # fmt: skip
    one, other = (build_run(parse_experiment(document)) for _ in range(2))
    np.testing.assert_array_equal(one.starting_models(np.arange(4)), other.starting_models(np.arange(4)))
    np.testing.assert_array_equal(one.task.shards.indices, other.task.shards.indices)
    assert one.noise_key != other.noise_key
    drawn = [[run.gradients.batches.rows_of(node, 0).tolist() for node in range(4)] for run in (one, other)]
    assert drawn[0] != drawn[1]
    moved = build_run(parse_experiment(document | {"seed": 1}))
    assert not np.array_equal(moved.starting_models(np.arange(4)), one.starting_models(np.arange(4)))
