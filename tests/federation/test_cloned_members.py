"""A machine that was cloned with the state of its random generator: both copies get the same fresh bytes."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch

from sottovoce import SecretSource, algorithm, metropolis
from sottovoce.core.grid import noise_on_grid, with_exact_noise
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows
from sottovoce.federation.journal import RecordedInputs
from sottovoce.learning.batches import parse_batches
from tests.federation.journals import MemoryJournal

NET, D = metropolis("path:2"), 4000
SHARD = NodeShard((np.array([0]), np.array([1])), 0)
ALGORITHMS = {
    "dp-d-sgd": (algorithm("dp-d-sgd", sigma=1.0), True),
    "dp-d-sgd without a grid": (algorithm("dp-d-sgd", sigma=1.0), False),
    "anti-pgd": (algorithm("anti-pgd", sigma=1.0), False),
    "anti-pgd on a grid": (algorithm("anti-pgd", sigma=1.0), True),
}


@pytest.fixture
def copies(monkeypatch):
    """Sources of two copies of one machine, whose system gives both the same bytes."""
    counts = [itertools.count() for _ in range(2)]
    number = 0

    def urandom(size):
        return hashlib.shake_256(next(counts[number]).to_bytes(8, "big")).digest(size)

    def switch(copy):
        nonlocal number
        number = copy
        return SecretSource(secret=b"the member's own", context=b"agreement")

    monkeypatch.setattr("sottovoce.core.secret_source.urandom", urandom)
    return switch


def released(source, name, gradients, points=None):
    """Gradient plus noise of some rounds at one member."""
    built, exact = ALGORITHMS[name]
    built = with_exact_noise(built, NET, exact)
    start = ShardedRows(SHARD, torch.zeros(1, D, dtype=torch.float64))
    inputs = RecordedInputs(0, source, lambda round, x: torch.from_numpy(gradients[round]), start, MemoryJournal())
    sums = []
    for round in range(len(gradients)):
        gradient = inputs.gradient(round, start)
        if built.exact_noise:
            sums.append(inputs.released(gradient, noise_on_grid(built, NET.at(0)), round).own)
            continue
        (term,) = built.noise.local(NET.at(0))
        matrix, correlation = term.matrix.scaled(built.sensitivity), built.noise.correlation
        noise = (
            inputs.noise(term.sources, matrix, round, 0)
            if correlation is None
            else inputs.correlated(correlation, term.sources, matrix, round)
        )
        sums.append(gradient.own + noise.own)
    return torch.cat(sums).numpy()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_copies_with_different_gradients_release_noise_of_two_draws(copies, name):
    """In round 0 both compute the same, and send one message; then the difference has the variance of two draws."""
    rng = np.random.default_rng(0)
    one = [rng.uniform(-1, 1, (1, D)) for _ in range(3)]
    other = [one[0], one[1] + np.eye(1, D), one[2] + 0.5]
    first, second = released(copies(0), name, one), released(copies(1), name, other)
    np.testing.assert_array_equal(first[0], second[0])
    apart = second - first - (np.concatenate(other) - np.concatenate(one))
    for round in (1, 2):
        size = 2.0 * (2 if "anti" in name and round == 2 else 1)
        assert abs(apart[round].var() / size - 1) < 6 * np.sqrt(2 / D)
        for wrong in (0.81, 1.21):
            assert abs(wrong * apart[round].var() / size - 1) > 6 * np.sqrt(2 / D)


def test_without_the_hash_their_difference_is_that_of_the_gradients(copies, monkeypatch):
    """The attack that the hash ends."""
    monkeypatch.setattr(SecretSource, "bind", lambda source, digest: None)
    one, other = np.zeros((1, 1, D)), np.full((1, 1, D), 0.25)
    sums = [released(copies(copy), "dp-d-sgd", gradients) for copy, gradients in enumerate((one, other))]
    np.testing.assert_array_equal(sums[1] - sums[0], 0.25)


def test_copies_that_stand_at_other_points_draw_other_batches(copies):
    rows = []
    for copy, point in ((0, 0.0), (1, 0.0), (1, 1.0)):
        source = copies(copy if point == 0 else 0)
        plan = parse_batches("poisson:0.5", [100, 100], source)
        start = ShardedRows(SHARD, torch.full((1, 3), point))
        drawn = []

        def gradient(round, x, plan=plan, drawn=drawn):
            drawn.append(plan.rows_of(0, round).tolist())
            return 0 * x

        RecordedInputs(0, source, gradient, start, MemoryJournal()).gradient(0, start)
        rows.append(drawn[0])
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]
