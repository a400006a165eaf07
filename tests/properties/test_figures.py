"""Laws of figures over random systems, by Hypothesis: against dense matrices of a simulator that shares no code.

A longer search: `pytest -m slow tests/properties`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sottovoce import account
from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.gaussian_dp import delta_of, epsilon_of, mu_of
from tests.properties.random_systems import attained, systems

MARGIN = 1e-6
"""Printed figures may be so much above the truth, and rounding of the oracle so much below."""

QUICK = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))


def figures(found):
    """mu of each victim and kind."""
    return {(one.victim, one.kind.value): one.mu for one in found.guarantees}


def lies_between_what_is_attained_and_the_sum(system):
    found = figures(account(system.traced(), system.view, convex=True))
    for victim in system.victims():
        M = system.loss_matrix(victim)
        below, above = attained(M), float(np.abs(M).sum())
        exact = found[victim, "fixed-streams"] ** 2
        assert below * (1 - MARGIN) <= exact <= above * (1 + MARGIN) + 1e-12
        for kind in ("any-training", "convex-training"):
            if (victim, kind) in found:
                assert below * (1 - MARGIN) <= found[victim, kind] ** 2


def containing_views_learn_no_less(system):
    """Lower values of what is contained, against all upper bounds of what contains it."""
    assume(system.members)
    whole = figures(account(system.traced(), "everyone", convex=True))
    one = type(system)(**{**vars(system), "members": system.members[:1]})
    mine = figures(account(system.traced(), system.view, convex=True))
    longer = figures(account(system.traced(system.rounds + 1), system.view, convex=True))
    published = figures(account(system.traced(), system.view, convex=True, final_models="all"))
    for victim in system.victims():
        smaller = attained(one.loss_matrix(victim)) * (1 - MARGIN)
        least = max(smaller, attained(system.loss_matrix(victim)) * (1 - MARGIN))
        containing = [mine, longer, published] if system.name == "decor" else [mine, longer, published, whole]
        for others in containing:
            assert all(least <= mu**2 for (who, _), mu in others.items() if who == victim)


def sampling_amplifies_and_rounds_up(noise, share, rounds, delta):
    found = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=delta)
    assert found <= epsilon_of(math.sqrt(rounds) / noise, delta) * (1 + 1e-14)
    assert found >= epsilon_of_batches(noise=noise, share=share, rounds=1, delta=delta) * (1 - 1e-9)
    assert found <= epsilon_of_batches(noise=noise, share=share, rounds=2 * rounds, delta=delta) * (1 + 1e-3) + 1e-9
    assert found <= epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=delta / 10) * (1 + 1e-9)


@QUICK
@given(systems())
def test_exact_losses_lie_between_what_is_attained_and_the_sum(system):
    lies_between_what_is_attained_and_the_sum(system)


@QUICK
@given(systems(most_nodes=5, most_rounds=3))
def test_lower_values_are_never_above_upper_bounds_of_what_contains_them(system):
    containing_views_learn_no_less(system)


SAMPLED = {
    "noise": st.floats(0.3, 50), "share": st.floats(1e-4, 0.999), "rounds": st.integers(1, 300),
    "delta": st.sampled_from([1e-2, 1e-5, 1e-9, 1e-13]),
}  # fmt: skip


@settings(QUICK, max_examples=6)
@given(**SAMPLED)
def test_sampling_amplifies_and_rounds_up(noise, share, rounds, delta):
    sampling_amplifies_and_rounds_up(noise, share, rounds, delta)


@settings(QUICK, max_examples=200)
@given(st.floats(1e-6, 300), st.floats(-280, -0.01).map(lambda power: 10.0**power))
def test_conversions_come_back_on_the_safe_side(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta * (1 + 1e-6)
    if 0 < epsilon < 1e14:
        assert mu_of(epsilon, delta) <= mu * (1 + 1e-8)


@pytest.mark.slow
def test_all_of_it_for_longer():
    LONG(given(systems())(lies_between_what_is_attained_and_the_sum))()
    LONG(given(systems())(containing_views_learn_no_less))()
    settings(LONG, max_examples=100)(given(**SAMPLED)(sampling_amplifies_and_rounds_up))()
