"""Integers modulo 2^64: sums are the plain ones, at the edge of the range too, and chance does not pass their bound."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp

from sottovoce import InputError, metropolis, uniform
from sottovoce.core.integer_sums import (
    LARGEST_INTEGER,
    check_sum_sets,
    decoded,
    encoded,
    integer_weights,
    sum_bound,
    weighted,
)
from sottovoce.core.topologies import from_matrix


def test_values_become_the_nearest_integers():
    values = np.array([0.0, 0.49, -0.51, 2.5, LARGEST_INTEGER], dtype=np.float64)
    assert encoded(values, 1.0).tolist() == [0, 0, -1, 2, LARGEST_INTEGER]
    assert encoded(np.float32([0.75, -0.75]), 0.25).tolist() == [3, -3]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**53])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(InputError, match="a value beyond"):
        encoded(np.array([value]), 1.0)


def test_a_sum_beyond_its_bound_has_failed():
    total = weighted(np.array([-7, 5]), 3)
    assert decoded(total, 21).tolist() == [-21, 15]
    assert decoded(total, 20) is None


def test_sums_wrap_around_and_come_back():
    """Weighted messages may be far beyond 2^63, as long as the sum is not."""
    large = np.array([2**62, -(2**62)])
    total = weighted(large, 5) + weighted(-large, 4) + weighted(-large, 1) + weighted(np.array([11, -11]), 1)
    assert decoded(total, 11).tolist() == [11, -11]


def test_the_bound_is_passed_with_a_probability_below_two_to_the_minus_hundred():
    """Against the tail of the Gaussian itself, in 60 digits; and not so far above that sums would not fit."""
    found = sum_bound(weights=[3, 1], largest=[10, 20], sigma=[1000.0, 4000.0], count=10**9)
    deviation = mp.hypot(3000, 4000)
    with mp.workdps(60):
        tail = 10**9 * mp.erfc((found - 50) / (deviation * mp.sqrt(2)))
        assert tail < mp.mpf(2) ** -100
        closer = 10**9 * mp.erfc((0.93 * found - 50) / (deviation * mp.sqrt(2)))
        assert closer > mp.mpf(2) ** -100


def test_sums_that_do_not_fit_are_refused():
    assert sum_bound(weights=[1], largest=[2**62 - 1], sigma=[0.0], count=1) < 2**63
    with pytest.raises(InputError, match=r"sums up to 2\^63.0; sums must be integers below 2\^63"):
        sum_bound(weights=[2], largest=[2**62], sigma=[0.0], count=1)


@pytest.mark.parametrize("graph", ["ring:5", "florentine", "star:6", "complete:7", "karate"])
@pytest.mark.parametrize("weigh", [metropolis, uniform])
def test_integer_weights_are_the_weights(graph, weigh):
    mixing = weigh(graph).at(0)
    found = integer_weights(mixing)
    whole = found.numerators.toarray() / np.array(found.denominators)[:, None]
    np.testing.assert_allclose(whole, mixing.weights.toarray(), atol=1e-15)
    assert all(found.numerators.toarray().sum(axis=1) == found.denominators)
    for v, u in zip(*mixing.weights.nonzero(), strict=True):
        exact = Fraction(found.weight(v, u), found.denominators[v])
        assert abs(float(exact) - mixing.weights[v, u]) < 1e-15


def test_weights_that_are_no_fractions_are_refused():
    odd = math.sqrt(2) - 1
    with pytest.raises(InputError, match=r"node 0 gives a weight of 0\.41421"):
        integer_weights(from_matrix([[1 - odd, odd], [odd, 1 - odd]]).at(0))


def test_every_set_leaves_two_honest_senders():
    check_sum_sets(uniform("complete:5"), 3)
    with pytest.raises(InputError, match="with 4 colluders every sum is over at least 5 others"):
        check_sum_sets(uniform("complete:5"), 4)
    with pytest.raises(InputError, match="node 0 gets a sum over node 1;"):
        check_sum_sets(metropolis("path:4"), 1)
    with pytest.raises(InputError, match="0 colluders"):
        check_sum_sets(metropolis("ring:4"), 0)
