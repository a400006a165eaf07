"""Figures do not depend on units: in all of the range that sizes of noise, step sizes and sensitivities may have.

What lies outside is refused, by the name of the option and the range.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from sottovoce import account, algorithm, calibrate, metropolis, trace
from sottovoce.core.noise import FARTHEST_KINDS, LARGEST, SMALLEST, CombinedNoise, Independent, Pairwise
from sottovoce.errors import InputError

SIGMAS = [SMALLEST, 1e-30, 1e-12, 1e-6, 1e6, 1e12, 1e30, LARGEST]


def mus(name, view, *, sigma=1.0, **settings):
    net = metropolis("complete:5" if name == "secure-gossip" else "ring:5")
    found = account(trace(algorithm(name, sigma=sigma, **settings), net, rounds=3), view, convex=True)
    return {(one.victim, one.kind): one.mu for one in found.guarantees}


@pytest.mark.parametrize("view", ["everyone", "node:0", "coalition:0,2"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp-d-sgd", {}), ("muffliato-sgd", {"gossip_steps": 3}), ("zip-dl", {}), ("dp2sgd", {}), ("muffliato", {}),
        ("zip-dl-averaging", {}), ("secure-gossip", {}), ("dp-csgp", {}), ("anti-pgd", {}),
    ],
)  # fmt: skip
def test_mu_is_in_inverse_proportion_to_sigma(name, settings, view):
    reference = mus(name, view, **settings)
    for sigma in SIGMAS:
        found = mus(name, view, sigma=sigma, **settings)
        assert found.keys() == reference.keys()
        for key, mu in found.items():
            assert mu == reference[key] == math.inf or mu * sigma == pytest.approx(reference[key], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("view", ["everyone", "node:0"])
@pytest.mark.parametrize("name", ["dp-d-sgd", "zip-dl", "muffliato-sgd", "dp2sgd"])
def test_step_size_and_sensitivity_are_units(name, view):
    reference = mus(name, view, step_size=1.0)
    for step in (SMALLEST, 1e-9, 1e9, LARGEST):
        for sensitivity in (SMALLEST, 1.0, LARGEST):
            found = mus(name, view, step_size=step, sensitivity=sensitivity)
            assert found == pytest.approx(reference, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("spec", ["ring:4", "path:3", "complete:4"])
@pytest.mark.parametrize("ratio", [1 / FARTHEST_KINDS, 1e-6, 1e3, 1e6, FARTHEST_KINDS])
def test_pair_noise_far_from_a_nodes_own_never_makes_a_figure_too_small(spec, ratio):
    """One round, everyone: the inverse of `sigma^2 I + pair^2 L` in 60 digits, L the Laplacian of the graph."""
    net = metropolis(spec)
    linked = (net.at(0).weights.toarray() != 0) & ~np.eye(net.n, dtype=bool)
    found = account(trace(algorithm("decor", sigma=1.0, sigma_pair=ratio), net, rounds=1))
    with mpmath.workdps(60):
        L = mpmath.matrix((np.diag(linked.sum(axis=1)) - linked).tolist())
        inverse = (mpmath.eye(net.n) + mpmath.mpf(ratio) ** 2 * L) ** -1
        for node in range(net.n):
            true = mpmath.sqrt(inverse[node, node])
            assert true <= found.of(node, "fixed-streams").mu <= true * (1 + mpmath.mpf(1e-6))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: algorithm("decor", sigma=1.0, sigma_pair=2e7), ("1e+07", "2e+07")),
        (lambda: algorithm("dp-d-sgd", sigma=(1.0, 1e-13)), ("sigma", "1e+12")),
        (lambda: algorithm("dp-d-sgd", sigma=2e50), ("sigma", "1e+50")),
        (lambda: algorithm("zip-dl", message_sigma=1e-51), ("message_sigma", "1e-50")),
        (lambda: algorithm("dp-d-sgd", sigma=1.0, step_size=1e-51), ("step_size", "1e-50")),
        (lambda: algorithm("dp-d-sgd", sigma=1.0, sensitivity=1e51), ("sensitivity", "1e+50")),
        (lambda: algorithm("dp-d-sgd", sigma=1.0, sensitivity=(1.0, 1e-13)), ("sensitivity", "1e+12")),
    ],
)  # fmt: skip
def test_what_lies_outside_is_refused_by_its_name_and_range(build, words):
    with pytest.raises(InputError) as refusal:
        build()
    assert all(word in str(refusal.value) for word in words)


def test_a_search_for_sigma_stays_where_figures_are_verified():
    """Loose targets are met by the least sigma beside so much pair noise; what no sigma meets is refused as such."""
    built = algorithm("decor", sigma=1.0, sigma_pair=100.0)
    found = calibrate(built, metropolis("path:3"), rounds=1, epsilon=1e14, delta=1e-5)
    assert 100.0 / FARTHEST_KINDS <= found <= 100.0 / FARTHEST_KINDS * (1 + 1e-6)
    assert calibrate(built, metropolis("path:3"), rounds=1, epsilon=1.0, delta=1e-5) > 1


def test_nodes_and_kinds_without_noise_are_no_size():
    CombinedNoise((Independent((0.0, 1.0)), Pairwise(1e7)))
