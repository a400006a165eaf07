"""Whether final models follow from messages is a question of structure: not of how large noise is, nor of residuals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from sottovoce import account, algorithm, from_matrix, metropolis, trace
from sottovoce.privacy.final_models import models_follow_from_messages, spanned

SIGMAS = 10.0 ** np.arange(-6, 10)


def irrational(n=6):
    """Weights that are no simple fractions."""
    A = np.random.default_rng(0).random((n, n))
    A = (A + A.T) / 2 * (np.add.outer(range(n), range(n)) % 3 > 0)
    W = A / (1.1 * A.sum(axis=1).max())
    np.fill_diagonal(W, 0.0)
    return from_matrix(W + np.diag(1 - W.sum(axis=1)))


@pytest.mark.parametrize(
    "net", [metropolis("ring:5"), metropolis("path:4"), irrational()], ids=["ring", "path", "irrational"]
)
@pytest.mark.parametrize(
    ("name", "settings", "follow"),
    [
        ("dp-d-sgd", {}, True), ("muffliato-sgd", {"gossip_steps": 3}, True),
        ("muffliato-sgd", {"gossip_steps": 3, "chebyshev": True}, True), ("decor", {}, True),
        ("dp2sgd", {}, False), ("zip-dl", {}, False), ("zip-dl-averaging", {}, False),
    ],
)  # fmt: skip
def test_coverage_does_not_depend_on_the_size_of_noise(name, settings, follow, net):
    """ZIP-DL at 3e6, and at 1e-6, had all final models covered: a residual was below a share of a length."""
    size = "message_sigma" if name.startswith("zip") else "sigma"
    for sigma in SIGMAS:
        more = {"sigma_pair": 3 * sigma} if name == "decor" else {}
        system = trace(algorithm(name, **{size: sigma}, **settings, **more), net, rounds=3)
        assert models_follow_from_messages(system) == follow


def test_the_command_says_so_too():
    for sigma in (1.0, 3e6, 1e9):
        found = account(trace(algorithm("zip-dl", message_sigma=sigma), metropolis("ring:5"), rounds=3))
        assert {guarantee.final_models.value for guarantee in found.guarantees} == {"none"}


def test_a_share_of_a_gradient_that_no_message_holds_is_seen():
    """Down to the smallest that is stored, at any size of noise: columns are state, gradient, noise."""
    for sigma in (1e-9, 1.0, 1e9):
        sent = sparse.csr_array([[1.0, 0.1, 0.1 * sigma]])
        model = sparse.csr_array([[0.25, 0.025, 0.025 * sigma]])
        assert spanned(model, [sent])
        for share in (1e-3, 2.0**-40, 2.0**-45, 1e-60):
            other = (
                sparse.csr_array([[1.0, 0.1, 0.1 * sigma, 0.0]]),
                sparse.csr_array([[0.25, 0.025, 0.025 * sigma, share]]),
            )
            assert not spanned(other[1], [other[0]])


@pytest.mark.parametrize("seed", range(30))
def test_random_rows_are_spanned_as_their_rank_says(seed):
    """Against singular values of small integers, which have no columns of their own, in units from 1e-9 to 1e9."""
    rng = np.random.default_rng(seed)
    by = rng.integers(-3, 4, (rng.integers(1, 6), 7)) * (rng.random(7) < 0.8)
    rows = rng.integers(-2, 3, (2, len(by))) @ by + (seed % 2) * rng.integers(0, 2, (2, 7))
    units = 10.0 ** rng.uniform(-9, 9, 7)
    expected = np.linalg.matrix_rank(np.vstack([by, rows])) == np.linalg.matrix_rank(by)
    assert spanned(sparse.csr_array(rows * units), [sparse.csr_array(by * units)]) == expected
