"""One C for each class of nodes: what is drawn, and what it costs each node, against matrices written out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce import (
    InputError,
    Unaccountable,
    account,
    algorithm,
    factorize_by_class,
    metropolis,
    sampled_epsilon,
    trace,
    views,
)
from sottovoce.core.correlation import ClassCorrelation, Differences, Triangular, for_sources
from sottovoce.core.exact_gaussians import fine_
from sottovoce.core.grid import noise_on_grid, with_exact_noise
from sottovoce.core.noise import Temporal
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey
from sottovoce.matrix_factorization.factorization import degree_classes
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.observation import observe

T, NET, LABELS = 4, metropolis("path:3"), (0, 1, 0)
LOW = np.array([[1.0, 0, 0, 0], [0.5, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 0.5, 1]])
HIGH = np.array([[2.0, 0, 0, 0], [1, 2, 0, 0], [0.5, 1, 2, 0], [0.2, 0.5, 1, 2]])
MIXED = ClassCorrelation(LABELS, (Triangular(LOW), Triangular(HIGH)))


def system(correlation=MIXED, rounds=T, sigma=1.5):
    built = replace(algorithm("mf-d-sgd", sigma=sigma, correlation=LOW), noise=Temporal(sigma, correlation))
    return trace(built, NET, rounds=rounds)


def test_every_node_has_the_noise_of_its_own_matrix():
    fresh_TN = np.random.default_rng(0).standard_normal((T, 3))
    past, found = [], []
    for t in range(T):
        noise, kept = MIXED.next(t, fresh_TN[t][:, None], past)
        past = [*past, kept][-MIXED.memory :]
        found.append(noise[:, 0])
    for node, C in enumerate((LOW, HIGH, LOW)):
        assert np.array(found)[:, node] == pytest.approx(np.linalg.solve(C, fresh_TN[:, node]), rel=1e-12)


def test_each_node_is_accounted_for_by_its_own_matrix():
    found = account(system())
    for node, C in enumerate((LOW, HIGH, LOW)):
        wanted = np.sqrt(np.abs(C.T @ C).sum()) / 1.5
        assert found.of(node, "any-training").mu == pytest.approx(wanted, rel=1e-9)
    assert found.headline.victim == 1


@pytest.mark.parametrize("adversary", [0, 1, 2])
def test_the_exact_loss_of_a_node_is_that_of_matrices_written_out(adversary):
    """Noise of each node unrolled by its own inverse, put together entry by entry."""
    traced = system()
    seen = observe(traced, views.node(adversary))
    plain = replace(traced, correlation=None)
    A, B = observe(plain, views.node(adversary)).dense()
    honest = [node for node in range(3) if node != adversary]
    over = np.zeros((B.shape[1], B.shape[1]))
    for place, node in enumerate(honest):
        rows = np.arange(T) * len(honest) + place
        over[np.ix_(rows, rows)] = np.linalg.inv((LOW, HIGH, LOW)[node])
    whole = B @ over
    inverse = np.linalg.pinv(whole @ whole.T)
    found = account(traced, f"node:{adversary}")
    for place, node in enumerate(seen.victims.tolist()):
        M = A[:, :, place].T @ inverse @ A[:, :, place]
        low, high = M.sum(), np.abs(M).sum()
        mu = found.of(node, "fixed-streams").mu
        assert low * (1 - 1e-9) <= mu**2 <= high * (1 + 1e-9)


def test_exact_noise_is_each_nodes_own_within_half_a_step():
    """Released on a grid: the numbers of each node's stream, correlated by its matrix, written out."""
    built, D = with_exact_noise(system().algorithm, NET, True), 500
    noise, zeros = noise_on_grid(built, NET.at(0)), np.zeros((3, D))
    assert 2 ** np.floor(np.log2(1.5 / 2)) / 16 == noise.step  # node 1 adds least: C begins with 2
    feed = NoiseFeed(0, NoiseKey.of_seed(3), None, zeros)
    fresh_NTD = np.empty((3, T, D))
    for node, t in np.ndindex(3, T):
        fine_(NoiseKey.of_seed(3).stream("node", [node], t, 0), fresh_NTD[node, t])
    true_NTD = [1.5 * np.linalg.solve(C, fresh_TD) for C, fresh_TD in zip((LOW, HIGH, LOW), fresh_NTD, strict=True)]
    for t in range(T):
        released_ND = feed.released(zeros, noise, t)
        for node in range(3):
            away = np.abs(released_ND[node] - true_NTD[node][t])
            assert away.max() <= noise.step / 2 * (1 + 1e-9)


def test_ranks_and_members_draw_for_their_own_nodes_alone():
    sources = system().steps[0].sources[0][1]
    assert for_sources(MIXED, sources) == MIXED
    assert MIXED.among([1]).labels == (1,)
    fresh = np.random.default_rng(1).standard_normal((3, 2))
    one, _ = MIXED.among([1, 2]).next(1, fresh[1:], [fresh[1:]])
    assert np.array_equal(one, MIXED.next(1, fresh, [fresh])[0][1:])


def test_what_is_about_one_matrix_is_refused():
    with pytest.raises(Unaccountable, match="has its own C"):
        MIXED.matrix(T)
    with pytest.raises(InputError, match="each class needs a C"):
        ClassCorrelation((0, 2), (Differences(),))
    with pytest.raises(InputError, match="noise of 2 nodes"):
        MIXED.next(0, np.ones((2, 1)), [])


def test_sampling_counts_by_the_longest_column_of_each_node():
    bands = ClassCorrelation(LABELS, (Triangular(np.eye(T)), Triangular(3 * np.eye(T))))
    found = sampled_epsilon(system(bands, sigma=6.0), views.everyone(), share=0.2, delta=1e-5)
    assert found == pytest.approx(epsilon_of_batches(noise=2.0, share=0.2, rounds=T, delta=1e-5), rel=1e-9)


def test_mafalda_finds_a_matrix_for_each_class_of_degrees():
    net = metropolis("star:6")
    built = algorithm("mafalda", sigma=2.0, rounds=16, participation="2x8", classes=2).on(net)
    correlation, wanted = built.noise.correlation, factorize_by_class(net, (1, 0, 0, 0, 0, 0), participation="2x8")
    assert correlation.labels == degree_classes(net, 2) == (1, 0, 0, 0, 0, 0)
    for part, other in zip(correlation.parts, wanted.parts, strict=True):
        assert part.matrix(16) == pytest.approx(other.correlation.matrix(16), abs=1e-9)
    assert account(trace(built, net, rounds=16), participation="2x8").mu == pytest.approx(0.5, rel=1e-6)
    alike = algorithm("mafalda", sigma=2.0, rounds=16, participation="2x8", classes=2).on(metropolis("ring:6"))
    assert isinstance(alike.noise.correlation, Triangular)
    with pytest.raises(InputError, match="9 classes of 6 nodes"):
        degree_classes(net, 9)
