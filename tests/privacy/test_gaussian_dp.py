"""Conversions between mu, epsilon and delta, against 60-digit arithmetic and stored reference values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.privacy.gaussian_dp import delta_of, epsilon_of, epsilons_of, log_delta, mu_of, renyi_of

MUS = [1e-6, 1e-4, 1e-2, 0.1, 0.49, 0.51, 1, 3, 10, 30, 100, 1000]
DELTAS = [1e-1, 1e-2, 1e-5, 1e-10, 1e-50, 1e-100, 1e-300]


def true_log_delta(mu, epsilon):
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def phi(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return float(mpmath.log(phi(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * phi(-epsilon / mu - mu / 2)))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("mu", MUS)
def test_epsilon_is_safe_and_tight(mu, delta):
    epsilon = epsilon_of(mu, delta)
    reached = true_log_delta(mu, epsilon)
    assert reached <= math.log(delta)
    if epsilon > 0:
        assert reached > math.log(delta) - 1e-9
        back = mu_of(epsilon, delta)
        assert back <= mu * (1 + 1e-12)
        assert back == pytest.approx(mu, rel=1e-6)
        assert true_log_delta(back, epsilon) <= math.log(delta)


@pytest.mark.parametrize("mu", [10.5, 12.0, 30.0])
def test_delta_near_one_is_that_of_sixty_digits(mu):
    for epsilon in (0.0, 1.0, mu**2 / 2 - 5.5 * mu):
        assert log_delta(mu, max(epsilon, 0.0)) == pytest.approx(true_log_delta(mu, max(epsilon, 0.0)), rel=1e-6, abs=0)


@pytest.mark.parametrize("delta", [1e-5, 1e-12, 1e-100, 1e-280])
def test_epsilon_of_a_huge_loss_is_not_too_small_either(delta):
    """`epsilon / mu - mu / 2` is the difference of two large numbers there."""
    mus = 10 ** np.linspace(3.5, 7.4, 60)
    for mu, epsilon in zip(mus.tolist(), epsilons_of(mus, delta).tolist(), strict=True):
        assert true_log_delta(mu, epsilon) <= math.log(delta)
        assert true_log_delta(mu, epsilon * (1 - 4e-15)) > math.log(delta) - 1e-9


@pytest.mark.parametrize("delta", DELTAS)
def test_many_epsilons_are_those_of_each_and_none_is_too_small(delta):
    """Just above and below the root, by `log_delta`, which shares no root search; in any order, and again."""
    mus = np.random.default_rng(5).permutation(
        [*MUS, 0.0, 1e-9, math.inf, 3e7, 0.3, *10 ** np.linspace(-5, 5, 40), 0.3]
    )
    for mu, epsilon in zip(mus.tolist(), epsilons_of(mus, delta).tolist(), strict=True):
        assert epsilon == pytest.approx(epsilon_of(mu, delta), rel=1e-12)
        if 0 < epsilon < math.inf:
            assert log_delta(mu, epsilon) <= math.log(delta)
            assert log_delta(mu, epsilon * (1 - 1e-9)) > math.log(delta) - 1.1e-10
        else:
            assert epsilon == (0.0 if log_delta(mu, 0.0) <= math.log(delta) else math.inf)


def test_epsilons_next_to_zero_are_safe_and_tight():
    """Where delta is that of epsilon 0 up to the last digits, a root is hardest to find."""
    for mu in (1e-3, 0.4, 1.4, 8.0):
        for share in (1e-3, 1e-6, 1e-9):
            delta = delta_of(mu, 0.0) * (1 - share)
            epsilon = epsilon_of(mu, delta)
            assert epsilon > 0
            assert log_delta(mu, epsilon) <= math.log(delta)
            assert log_delta(mu, epsilon * (1 - 1e-3)) > math.log(delta) - 1.1e-10


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 20.0])
def test_delta_in_log_space(mu, epsilon):
    assert log_delta(mu, epsilon) == pytest.approx(true_log_delta(mu, epsilon), rel=1e-11, abs=1e-11)


def test_stored_values(oracles):
    for row in oracles["gdp"]:
        assert epsilon_of(row["mu"], row["delta"]) == pytest.approx(row["eps"], abs=row["tol"])
    for row in oracles["gdp_delta"]:
        assert delta_of(row["mu"], row["eps"]) == pytest.approx(row["delta"], rel=row["tol_rel"])
    for row in oracles["sigma_gaussian"]:
        assert 1 / mu_of(row["eps"], row["delta"]) == pytest.approx(row["sigma"], abs=row["tol"])


def test_ends():
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(math.inf, 3.0) == 1.0
    assert delta_of(0.0, 3.0) == 0.0
    assert epsilon_of(1e-9, 1e-5) == 0.0
    assert epsilons_of([5e-324, 1e-300], 1e-5).tolist() == [0.0, 0.0]
    assert epsilons_of([], 1e-5).tolist() == []
    assert renyi_of(2.0, 3.0) == 6.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: epsilon_of(-1.0, 1e-5),
        lambda: epsilon_of(math.nan, 1e-5),
        lambda: epsilons_of([1.0, math.nan, 2.0], 1e-5),
        lambda: epsilons_of([1.0, -1e-3], 1e-5),
        lambda: epsilon_of(1.0, 0.0),
        lambda: epsilon_of(1.0, 1.5),
        lambda: mu_of(0.0, 1e-5),
        lambda: mu_of(math.inf, 1e-5),
        lambda: delta_of(1.0, -1.0),
        lambda: renyi_of(1.0, 0.0),
    ],
)
def test_impossible_targets(call):
    with pytest.raises(InputError):
        call()
