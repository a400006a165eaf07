"""Figures that follow from those at another size of noise are no smaller than those of a new trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce import account, algorithm, metropolis, trace
from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.noise import Independent
from sottovoce.privacy import views
from sottovoce.privacy.calibration import common_factor, with_sigma
from sottovoce.privacy.guarantee import Kind
from sottovoce.run.privacy_report import sigma_of
from sottovoce.tracing import policy
from sottovoce.tracing.policy import trace_possible, trace_with_noise
from tests.cases import cases

NOISY = [
    case for case in cases()
    if sigma_of(case.algorithm.noise) is not None and case.place in ("ring:5", "complete:4", "fresh", "dropout")
]  # fmt: skip
ACCOUNTED = [
    pytest.param(case, marks=() if case.place == "ring:5" else pytest.mark.slow, id=str(case)) for case in NOISY
]


def figures(system, view):
    found = account(system, view, covering=False)
    return np.array([guarantee.mu for guarantee in found.guarantees]), found


@pytest.mark.parametrize("case", ACCOUNTED)
def test_no_figure_that_follows_is_below_that_of_a_new_trace(case):
    built = with_sigma(case.algorithm, 1.0)
    system = trace_possible(built, case.topology, rounds=3)
    fresh = trace_possible(with_sigma(built, 0.37), case.topology, rounds=3)
    factor = common_factor(system, fresh.algorithm.noise)
    if factor is None or sums_over_all(built):
        return
    for view in (views.everyone(), views.node(0)):
        theirs, other = figures(fresh, view)
        finite = np.isfinite(theirs)
        closed_form = account(system, view, covering=False).with_noise_times(factor, fresh)
        assert [(g.victim, g.kind, g.assumptions) for g in closed_form.guarantees] == [
            (g.victim, g.kind, g.assumptions) for g in other.guarantees
        ]
        found = np.array([guarantee.mu for guarantee in closed_form.guarantees])
        # every policy of absorption is a bound, scaled or not, and a search may end at another one
        searched = np.array([guarantee.kind is Kind.CONVEX_TRAINING for guarantee in closed_form.guarantees])
        least = np.where(searched, theirs * (1 - 1e-9), theirs)
        assert (found[finite] >= least[finite]).all()
        assert np.isinf(found[~finite]).all()
        assert (found[finite] <= (theirs * np.where(searched, 1 + 1e-9, 1 + 1e-11))[finite]).all()


def test_in_closed_form_figures_name_the_grid_of_their_own_noise():
    built, net = replace(algorithm("dp-d-sgd", sigma=1.0), exact_noise=True), metropolis("ring:5")
    system, fresh = (trace(with_sigma(built, sigma), net, rounds=3) for sigma in (1.0, 37.0))
    scaled = trace_with_noise(system, fresh.algorithm.noise)
    found = account(system).with_noise_times(common_factor(system, fresh.algorithm.noise), scaled)
    assert found.assumptions == account(fresh).assumptions != account(system).assumptions


def test_only_noise_that_grows_alike_has_a_closed_form():
    """DECOR's pair noise stays as it is, of unequal nodes one stays, and ZIP-DL's grows as a whole."""
    net = metropolis("ring:5")
    decor = trace(algorithm("decor", sigma=1.0, sigma_pair=2.0), net, rounds=3)
    assert common_factor(decor, decor.algorithm.noise.with_sigma(2.0)) is None
    uneven = trace(replace(algorithm("dp-d-sgd", sigma=1.0), noise=NeverBelowOne(2.0)), net, rounds=3)
    assert common_factor(uneven, NeverBelowOne(0.5)) is None
    zip_dl = trace(algorithm("zip-dl", sigma=1.0), net, rounds=3)
    assert common_factor(zip_dl, zip_dl.algorithm.noise.with_sigma(2.5)) == pytest.approx(2.5, rel=1e-14)


@dataclass(frozen=True)
class NeverBelowOne(Independent):
    """Node 0 has noise of size one at least."""

    def local(self, mixing):
        sizes = [max(1.0, self.sigma), *[self.sigma] * (mixing.n - 1)]
        return Independent(tuple(sizes)).local(mixing)


@dataclass(frozen=True)
class SharedByAll(Independent):
    """Of two sources, one does not grow with sigma for every node that it reaches."""

    def local(self, mixing):
        (term,) = Independent(self.sigma).local(mixing)
        matrix = term.matrix.whole().tolil()
        matrix[1, 0] = 1.0
        return (replace(term, matrix=replace(term.matrix, plain=matrix.tocsr())),)


@pytest.mark.parametrize("sigma", [0.5, 0.0])
def test_noise_is_traced_again(sigma):
    built = replace(algorithm("dp-d-sgd", sigma=1.0), noise=SharedByAll(2.0) if sigma else Independent(2.0))
    system = trace(built, metropolis("ring:5"), rounds=3)
    noise = built.noise.with_sigma(sigma)
    assert common_factor(system, noise) is None
    ours, fresh = trace_with_noise(system, noise), trace(with_sigma(built, sigma), metropolis("ring:5"), rounds=3)
    np.testing.assert_array_equal(ours.dense()[1], fresh.dense()[1])


def test_what_was_traced_in_part_is_traced_in_part_again():
    built = replace(algorithm("dp-d-sgd", sigma=1.0), noise=SharedByAll(2.0))
    system = policy.trace_noisy_gradients(built, metropolis("ring:5"), rounds=3, reason="too many messages")
    for noise in (SharedByAll(0.5), SharedByAll(2.0)):
        assert trace_with_noise(system, noise).only_gradients == "too many messages"
