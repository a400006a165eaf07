"""Discrete Gaussians: the right probabilities and no others, whatever decides a comparison."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp
from scipy import stats

from sottovoce import InputError, NoiseKey
from sottovoce.core import exact_gaussians
from sottovoce.core.exact_gaussians import draw_discrete_gaussians

COUNT = 400_000


def drawn(sigma, count=COUNT, seed=3):
    return draw_discrete_gaussians(NoiseKey.of_seed(seed).stream("node", [0], 0), count, sigma)


@cache
def probabilities(sigma, edges):
    """Of the integers from each edge up to before the next, in 50 digits: summed up one by one.

    For sigma above 1000 by the midpoint rule, which is off by a part in 24 sigma^2.
    """
    with mp.workdps(50):
        if sigma <= 1000:
            reach = range(max(edges[0], -12 * sigma), min(edges[-1], 12 * sigma))
            weight = [mp.exp(-(mp.mpf(z) ** 2) / (2 * sigma**2)) for z in reach]
            cuts = [min(max(edge - reach[0], 0), len(reach)) for edge in edges]
            found = [mp.fsum(weight[a:b]) for a, b in pairwise(cuts)]
        else:
            below = [mp.ncdf((mp.mpf(edge) - mp.mpf("0.5")) / sigma) for edge in edges]
            found = [b - a for a, b in pairwise(below)]
        return np.array([float(one / mp.fsum(found)) for one in found])


def agrees(values, sigma):
    """A chi-square test over bins of a sixth of sigma, tails together."""
    width = max(1, sigma // 6)
    edges = (-40 * sigma, *range(-4 * sigma, 4 * sigma + width, width), 40 * sigma)
    counts = np.histogram(values, bins=np.array(edges, dtype=float) - 0.5)[0]
    return stats.chisquare(counts, probabilities(sigma, edges) * len(values)).pvalue > 1e-6


@pytest.mark.parametrize("sigma", [1, 3, 10, 1000, 2**32 + 7])
def test_the_probabilities_are_right(sigma):
    """And neither a tenth more nor a tenth less, where that makes a difference."""
    values = drawn(sigma)
    assert agrees(values, sigma)
    if sigma >= 10:
        assert not agrees(drawn(sigma * 11 // 10), sigma)
        assert not agrees(drawn(sigma * 9 // 10), sigma)


@pytest.mark.parametrize("sigma", [1, 2])
def test_single_integers_have_their_probabilities(sigma):
    """Zero is as likely as it should be: neither of both signs nor of none."""
    values = drawn(sigma)
    edges = list(range(-5 * sigma, 5 * sigma + 2))
    counts = np.array([(values == z).sum() for z in edges[:-1]])
    inside = probabilities(sigma, (-40 * sigma, *edges, 40 * sigma))
    wanted = np.append(inside[1:-1], inside[0] + inside[-1]) * COUNT
    assert stats.chisquare(np.append(counts, COUNT - counts.sum()), wanted).pvalue > 1e-6


@pytest.mark.parametrize("sigma", [1, 7, 2**31 + 11])
def test_more_digits_decide_as_float64_does(sigma, monkeypatch):
    """Where every comparison is taken to be open, exact arithmetic gives the same numbers."""
    usual = drawn(sigma, 1000)
    monkeypatch.setattr(exact_gaussians, "COMPARISON_ERROR", 2.0)
    np.testing.assert_array_equal(drawn(sigma, 1000), usual)


class Scripted:
    """A stream whose first words are given, and all later ones are the same."""

    def __init__(self, *given, then):
        self.given, self.then = list(given), then

    def words(self, count):
        found = [self.given.pop(0) if self.given else self.then for _ in range(count)]
        return np.array(found, dtype=np.uint64)


def test_bits_that_begin_like_an_edge_are_decided_by_later_ones():
    """P[K = 0] is 0.570...: the 63 bits of it, followed by the least or the largest bits there are."""
    with mp.workdps(60):
        total = mp.nsum(lambda k: mp.exp(-(k**2) / 2), [0, mp.inf])
        first = int(mp.floor(2**63 / total))
        rest = int(mp.floor(2**127 / total)) - (first << 64)
    edge = np.array([first], dtype=np.uint64)
    steps = exact_gaussians._steps
    assert steps(Scripted(then=rest - 1), edge)[0] == 0
    assert steps(Scripted(then=rest + 1), edge)[0] == 1
    assert steps(Scripted(then=0), edge - np.uint64(1))[0] == 0
    assert steps(Scripted(then=0), edge + np.uint64(1))[0] == 1
    with mp.workdps(120):
        nearer = int(mp.floor(2**191 / total)) - (((first << 64) + rest) << 64)
    assert steps(Scripted(rest, then=nearer - 1), edge)[0] == 0
    assert steps(Scripted(rest, then=nearer + 1), edge)[0] == 1


def test_the_largest_bits_are_beyond_every_edge_that_63_bits_show():
    """2^63 - 1 and then ones for long: far out in the tail, where P[K > k] is exp(-k^2 / 2) and less."""
    top = np.array([2**63 - 1], dtype=np.uint64)
    ones = [2**64 - 1] * 2
    found = int(exact_gaussians._steps(Scripted(*ones, then=0), top)[0])
    with mp.workdps(80):
        total = mp.nsum(lambda k: mp.exp(-(k**2) / 2), [0, mp.inf])
        tails = [mp.nsum(lambda k: mp.exp(-(k**2) / 2), [first, mp.inf]) / total for first in (found, found + 1)]
        at = mp.mpf(2) ** -(63 + 128)
    assert tails[1] < at <= tails[0]


def test_a_comparison_within_the_error_takes_more_bits():
    """exp(-1/2) is 0.606...: j = sigma is never drawn, so x = 1/2 of sigma 2 at k = 0 stands for it: exp(-1/8)."""
    with mp.workdps(60):
        chance = mp.exp(-mp.mpf(1) / 8)
        first = int(mp.floor(chance * 2**64))
        rest = int(mp.floor(chance * 2**128)) - (first << 64)
    half = 1 << 63  # j = 1 of sigma 2
    for word, kept in ((first - 1, True), (first + 1, False)):
        assert len(exact_gaussians._kept(Scripted(0, half, word, then=0), 1, 2)) == kept
    for then, kept in ((rest - 1, True), (rest + 1, False)):
        assert exact_gaussians._kept(Scripted(0, half, first, then=then), 1, 2).tolist() == [1] * kept


def test_draws_go_on_where_the_stream_is():
    stream = NoiseKey.of_seed(1).stream("node", [0], 0)
    one, other = (draw_discrete_gaussians(stream, 100, 50) for _ in range(2))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(drawn(50, 100, seed=1), one)


@pytest.mark.parametrize("sigma", [0, -1, 2.5, True, 2**60])
def test_sizes_that_cannot_be_drawn_are_refused(sigma):
    with pytest.raises(InputError, match="a whole number from 1"):
        drawn(sigma, 1)
