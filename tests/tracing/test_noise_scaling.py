"""A system whose noise was scaled is the one that a new trace gives, and no figure of it is smaller."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce import account, algorithm, metropolis, trace
from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.noise import Independent
from sottovoce.privacy import views
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.guarantee import Kind
from sottovoce.run.privacy_report import sigma_of
from sottovoce.tracing import policy
from sottovoce.tracing.noise_scaling import common_factor, scale_noise
from sottovoce.tracing.policy import trace_possible, trace_with_noise
from tests.cases import cases
from tests.selection import rest_slow

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


@pytest.mark.parametrize("case", rest_slow(NOISY))
def test_a_scaled_system_is_what_a_new_trace_gives(case):
    built = with_sigma(case.algorithm, 1.0)
    system = trace_possible(built, case.topology, rounds=3)
    scaled = scale_noise(system, system.algorithm.noise.with_sigma(2.7))
    fresh = trace_possible(with_sigma(built, 2.7), case.topology, rounds=3)
    assert sigma_of(scaled.algorithm.noise) == sigma_of(fresh.algorithm.noise) == 2.7
    (A, B, _), (A_fresh, B_fresh, _) = scaled.dense(), fresh.dense()
    np.testing.assert_array_equal(A, A_fresh)
    np.testing.assert_allclose(B, B_fresh, rtol=1e-12, atol=1e-15 * np.abs(B_fresh).max())
    for ours, theirs in zip(dict.fromkeys(scaled.steps), dict.fromkeys(fresh.steps), strict=True):
        np.testing.assert_allclose(ours.models.toarray(), theirs.models.toarray(), rtol=1e-12, atol=1e-14)
        assert (ours.maps.deviation is None) == (theirs.maps.deviation is None)
        if theirs.maps.deviation is not None:
            np.testing.assert_allclose(ours.maps.deviation, theirs.maps.deviation, rtol=1e-12)
        for some, others in zip(ours.maps.edge_noise, theirs.maps.edge_noise, strict=True):
            for one, other in zip(some, others, strict=True):
                np.testing.assert_array_equal(one.matrix.whole().toarray(), other.matrix.whole().toarray())


@pytest.mark.parametrize("case", ACCOUNTED)
def test_no_figure_of_a_scaled_system_is_below_that_of_a_new_trace(case):
    built = with_sigma(case.algorithm, 1.0)
    system = trace_possible(built, case.topology, rounds=3)
    scaled = scale_noise(system, system.algorithm.noise.with_sigma(0.37))
    fresh = trace_possible(with_sigma(built, 0.37), case.topology, rounds=3)
    for view in (views.everyone(), views.node(0)):
        (ours, one), (theirs, other) = figures(scaled, view), figures(fresh, view)
        assert [(g.victim, g.kind) for g in one.guarantees] == [(g.victim, g.kind) for g in other.guarantees]
        assert one.refusals == other.refusals
        finite = np.isfinite(theirs)
        assert (finite == np.isfinite(ours)).all()
        assert (ours[finite] >= theirs[finite]).all()
        assert (ours[finite] <= theirs[finite] * (1 + 1e-12)).all()
        factor = common_factor(system, scaled.algorithm.noise)
        if factor is not None and not sums_over_all(built):
            closed_form = account(system, view, covering=False).with_noise_times(factor, scaled)
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


@pytest.mark.parametrize("steps", [1, 3])
def test_scaled_systems_share_no_arrays_that_scipy_may_sort(steps):
    """Of matrices with the same indices, sorting those of one in place changes what the others say."""
    built = algorithm("muffliato-sgd", sigma=1.0, gossip_steps=steps)
    system = trace(built, metropolis("star:5"), rounds=3)
    scaled = scale_noise(system, system.algorithm.noise.with_sigma(2.0))
    for ours, theirs in zip(scaled.steps, system.steps, strict=True):
        for one, other in zip(ours._own, theirs._own, strict=True):
            for part in ("data", "indices", "indptr"):
                assert not np.shares_memory(getattr(one, part), getattr(other, part))
    first = account(scaled, "coalition:any-2").mu
    again = account(scale_noise(system, system.algorithm.noise.with_sigma(2.0)), "coalition:any-2").mu
    fresh = account(trace(with_sigma(built, 2.0), metropolis("star:5"), rounds=3), "coalition:any-2").mu
    np.testing.assert_allclose([first, again], fresh, rtol=1e-12)


def test_each_source_has_a_factor_of_its_own(monkeypatch):
    built, net = replace(algorithm("dp-d-sgd", sigma=1.0), noise=NeverBelowOne(2.0)), metropolis("ring:5")
    system, fresh = (trace(with_sigma(built, sigma), net, rounds=3) for sigma in (2.0, 0.5))
    monkeypatch.setattr(policy, "trace", None)
    scaled = trace_with_noise(system, NeverBelowOne(0.5))
    np.testing.assert_allclose(scaled.dense()[1], fresh.dense()[1], rtol=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 0.0])
def test_noise_that_does_not_just_scale_is_traced_again(sigma):
    built = replace(algorithm("dp-d-sgd", sigma=1.0), noise=SharedByAll(2.0) if sigma else Independent(2.0))
    system = trace(built, metropolis("ring:5"), rounds=3)
    noise = built.noise.with_sigma(sigma)
    assert scale_noise(system, noise) is None
    ours, fresh = trace_with_noise(system, noise), trace(with_sigma(built, sigma), metropolis("ring:5"), rounds=3)
    np.testing.assert_array_equal(ours.dense()[1], fresh.dense()[1])


def test_what_was_traced_in_part_is_traced_in_part_again():
    built = replace(algorithm("dp-d-sgd", sigma=1.0), noise=SharedByAll(2.0))
    system = policy.trace_noisy_gradients(built, metropolis("ring:5"), rounds=3, reason="too many messages")
    for noise in (SharedByAll(0.5), SharedByAll(2.0)):
        assert trace_with_noise(system, noise).only_gradients == "too many messages"
