"""Joint losses: against closed forms, dp-accounting's own composition, and rules that always hold."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy import stats

from sottovoce import account, algorithm, compose, metropolis, trace
from sottovoce.core.correlation import Triangular
from sottovoce.core.participation import Change, Sampling
from sottovoce.errors import InputError
from sottovoce.privacy.amplification import SampledNodes, epsilon_of_batches, sampled_loss
from sottovoce.privacy.composition import GaussianLoss, Rule, SampledLoss, StatedLoss, loss_document, read_loss
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.views import everyone

DELTA = 1e-5
POISSON = SampledLoss(noise=2.0, share=0.05, rounds=40)
FIXED = SampledLoss(noise=2.0, share=0.05, rounds=40, size=200)


def test_two_runs_of_mu_1_give_the_root_of_2():
    joint = compose([GaussianLoss(1.0), GaussianLoss(1.0)])
    assert 2**0.5 <= joint.mu <= 2**0.5 * (1 + 1e-15)
    assert joint.epsilon(DELTA) >= epsilon_of(2**0.5, DELTA)
    assert joint.epsilon(DELTA) == pytest.approx(epsilon_of(2**0.5, DELTA), rel=1e-12)
    assert (joint.rule, joint.change) == (Rule.GAUSSIAN, Change.REPLACE)


def test_one_release_alone_keeps_its_own_figure_to_the_last_bit():
    assert compose([GaussianLoss(0.3)]).epsilon(DELTA) == epsilon_of(0.3, DELTA)
    for loss in (POISSON, FIXED):
        own = epsilon_of_batches(noise=loss.noise, share=loss.share, rounds=loss.rounds, delta=DELTA, size=loss.size)
        assert compose([loss]).epsilon(DELTA) == own
    assert compose([StatedLoss(0.7, DELTA)]).epsilon(DELTA) == 0.7
    assert compose([]).epsilon(DELTA) == 0
    with pytest.raises(InputError, match="between 0 and 1"):
        compose([POISSON]).epsilon(1.0)


def test_a_poisson_run_with_a_gaussian_run_is_as_dp_accounting_composes_them():
    joint = compose([POISSON, GaussianLoss(0.5)])
    oracle = pld.PLDAccountant()
    oracle.compose(dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0)), 40
    ))  # fmt: skip
    oracle.compose(dp_accounting.GaussianDpEvent(2.0))
    assert joint.epsilon(DELTA) == pytest.approx(oracle.get_epsilon(DELTA), rel=1e-6)
    assert (joint.rule, joint.mu, joint.change) == (Rule.DISTRIBUTIONS, None, Change.ZERO_OUT)
    assert max(compose([one]).epsilon(DELTA) for one in joint.losses) < joint.epsilon(DELTA)
    assert joint.epsilon(DELTA) < sum(compose([one]).epsilon(DELTA / 2) for one in joint.losses)


def test_batches_of_a_fixed_size_compose_by_distributions_too():
    """Never above Renyi divergences, which hold as well; with Poisson batches about the smaller change."""
    joint = compose([FIXED, GaussianLoss(0.5)])
    renyi = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    renyi.compose(dp_accounting.SampledWithoutReplacementDpEvent(200, 10, dp_accounting.GaussianDpEvent(2.0)), 40)
    renyi.compose(dp_accounting.GaussianDpEvent(2.0))
    assert epsilon_of(0.5, DELTA) < joint.epsilon(DELTA) < renyi.get_epsilon(DELTA)
    assert (joint.rule, joint.change) == (Rule.DISTRIBUTIONS, Change.REPLACE)
    both = compose([POISSON, FIXED])
    assert (both.rule, both.change) == (Rule.DISTRIBUTIONS, Change.ZERO_OUT)
    assert both.epsilon(DELTA) < sum(compose([one]).epsilon(DELTA / 2) for one in both.losses)


def test_what_no_rule_joins_is_added():
    joint = compose([StatedLoss(1.0, 1e-6), GaussianLoss(0.1)])
    assert joint.epsilon(DELTA) == pytest.approx(1 + epsilon_of(0.1, DELTA - 1e-6))
    assert joint.rule is Rule.SUMS
    assert compose([StatedLoss(1.0, DELTA), GaussianLoss(0.1)]).epsilon(DELTA) == math.inf
    assert compose([StatedLoss(1.0, DELTA), StatedLoss(1.0, DELTA)]).epsilon(DELTA) == math.inf


def test_sums_of_stated_figures_are_no_smaller_than_those_of_fractions():
    below = 0
    for each in np.random.default_rng(1).uniform(0.01, 3, size=(200, 2)):
        exact = sum(Fraction(epsilon) for epsilon in each.tolist())
        below += Fraction(math.fsum(each)) < exact
        joint = compose([StatedLoss(epsilon, 1e-7) for epsilon in each.tolist()]).epsilon(1e-5)
        assert exact <= Fraction(joint) <= exact * (1 + Fraction(1, 2**50))
    assert below > 20
    assert compose([StatedLoss(0.0, 0.0)]).epsilon(1e-5) == 0


def test_what_sampling_counts_where_nodes_draw_unlike_each_other():
    """Of Poisson batches the largest share with the least noise covers all; other mixtures have no worst case."""
    system = trace(algorithm("dp-d-sgd", sigma=[2.0, 3.0, 4.0]), metropolis("path:3"), rounds=7)

    def loss(*samplings):
        return sampled_loss(system, everyone(), SampledNodes(samplings, 1.0))

    poisson = [Sampling(0.1, None), Sampling(0.3, None), Sampling(0.2, None)]
    assert loss(*poisson) == SampledLoss(2.0, 0.3, 7)
    assert loss(*[Sampling(0.2, 10)] * 3) == SampledLoss(2.0, 0.2, 7, 10)
    assert loss(Sampling(0.2, 10), Sampling(0.4, 10), Sampling(0.2, 10)) is None
    assert loss(Sampling(0.2, 10), Sampling(0.2, None), Sampling(0.2, None)) is None
    assert loss(Sampling(0.2, 10), Sampling(0.2, 20), Sampling(0.2, 10)) is None


def test_sampling_that_is_not_counted_never_makes_a_figure_smaller():
    """With little noise anywhere, Poisson batches count as if nobody was left out."""
    little, much = SampledLoss(0.2, 0.05, 4), GaussianLoss(5.0)
    assert compose([little]).epsilon(DELTA) == epsilon_of(10.0, DELTA)
    assert compose([much, POISSON]).epsilon(DELTA) >= epsilon_of(math.hypot(5.0, math.sqrt(40) / 2), DELTA)
    assert compose([SampledLoss(0.0, 0.05, 4)]).epsilon(DELTA) == math.inf
    assert compose([SampledLoss(math.inf, 0.05, 4), GaussianLoss(1.0)]).epsilon(DELTA) == epsilon_of(1.0, DELTA)


def test_losses_are_read_as_they_were_written():
    for loss in (
        GaussianLoss(math.inf),
        GaussianLoss(0.5),
        POISSON,
        FIXED,
        StatedLoss(math.inf, 1e-6, Change.ZERO_OUT),
    ):
        assert read_loss(json.loads(json.dumps(loss_document(loss), allow_nan=False))) == loss


def test_guarantees_compose_against_one_view_only():
    system = trace(algorithm("dp-d-sgd", sigma=4.0), metropolis("ring:6"), rounds=16)
    everyone, node = account(system), account(system, "node:0")
    assert compose([everyone, everyone.of(3)]).mu == pytest.approx(2**0.5)
    with pytest.raises(InputError, match="one adversary"):
        compose([everyone, node])


# --- can a total come out too small? -------------------------------------------------------------------------------


def test_no_joint_mu_is_below_that_of_50_digits():
    """From squares that vanish in float64 to those that overflow."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        mus = (10.0 ** rng.uniform(*rng.choice([(-8, 3), (-320, -150), (150, 300)]), rng.integers(2, 9))).tolist()
        with mpmath.workdps(50):
            exact = mpmath.sqrt(mpmath.fsum(mpmath.mpf(mu) ** 2 for mu in mus))
            found = compose([GaussianLoss(mu) for mu in mus]).mu
            assert exact <= found
            assert found <= exact * (1 + mpmath.mpf(2) ** -50) + mpmath.mpf(2) ** -1072


def test_joint_gaussian_losses_are_no_smaller_than_their_integral_in_50_digits():
    rng = np.random.default_rng(1)
    for _ in range(30):
        mus, delta = (10.0 ** rng.uniform(-2, 1.3, 3)).tolist(), float(10.0 ** rng.uniform(-12, -2))
        epsilon = compose([GaussianLoss(mu) for mu in mus]).epsilon(delta)
        with mpmath.workdps(50):
            mu, e = mpmath.sqrt(sum(mpmath.mpf(one) ** 2 for one in mus)), mpmath.mpf(epsilon)
            true = mpmath.ncdf(-e / mu + mu / 2) - mpmath.exp(e) * mpmath.ncdf(-e / mu - mu / 2)
            assert delta * (1 - 1e-6) < true <= delta


def integrated_delta(epsilon, *, noise, share, mu):
    """One Poisson release beside a Gaussian one: the sampled release integrated, the other in closed form."""
    x, step = np.linspace(-12 * noise, 1 + 12 * noise, 400_001, retstep=True)
    without, beside = stats.norm.pdf(x, 0, noise), stats.norm.pdf(x, 1, noise)
    with_record = (1 - share) * without + share * beside
    worst = 0.0
    for one, other in ((with_record, without), (without, with_record)):
        left = epsilon - np.log(one / other)
        tail = stats.norm.cdf(-left / mu + mu / 2) - np.exp(left) * stats.norm.cdf(-left / mu - mu / 2)
        worst = max(worst, float((one * tail).sum() * step))
    return worst


@pytest.mark.parametrize(("noise", "share", "mu"), [(1.0, 0.1, 1.0), (0.6, 0.3, 0.5), (3.0, 0.9, 2.0)])
def test_a_poisson_release_beside_a_gaussian_one_is_no_smaller_than_its_integral(noise, share, mu):
    joint = compose([SampledLoss(noise, share, 1), GaussianLoss(mu)])
    for delta in (1e-3, 1e-5, 1e-8):
        epsilon = joint.epsilon(delta)
        assert integrated_delta(epsilon, noise=noise, share=share, mu=mu) <= delta * (1 + 1e-9)
        assert integrated_delta(0.998 * epsilon, noise=noise, share=share, mu=mu) > delta


def test_distributions_of_full_batches_are_no_smaller_than_the_closed_form_down_to_tiny_deltas():
    """With a share of 1 a Poisson run is a Gaussian one. Below 1e-14 dp-accounting says infinite."""
    for delta in (1e-5, 1e-10, 1e-14, 1e-18):
        for rounds, noise in ((100, 20.0), (10, 1.0)):
            found = compose([SampledLoss(noise, 1.0, rounds)]).epsilon(delta)
            assert found >= epsilon_of(math.sqrt(rounds) / noise, delta)


def test_deltas_add_exactly():
    """Three deltas whose sum is larger than the one that is left, by less than float64 shows."""
    delta = 0.6
    parts = [0.1, 0.2, math.nextafter(0.3, 1.0)]
    assert math.fsum(parts) <= math.nextafter(delta, 1.0)
    assert compose([StatedLoss(1.0, part) for part in parts]).epsilon(delta) == math.inf
    halves = [StatedLoss(1.0, delta / 2), StatedLoss(1.0, delta / 2)]
    assert compose(halves).epsilon(delta) == pytest.approx(2.0)


def test_the_order_of_releases_does_not_matter_to_the_last_bit():
    losses = [POISSON, GaussianLoss(0.5), SampledLoss(1.5, 0.1, 7), GaussianLoss(0.3), StatedLoss(0.2, 1e-7)]
    assert len({compose(one).epsilon(DELTA) for one in (losses, losses[::-1], losses[2:] + losses[:2])}) == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (GaussianLoss, (-1.0,)), (GaussianLoss, (math.nan,)), (SampledLoss, (-1.0, 0.1, 5)),
        (SampledLoss, (1.0, 0.0, 5)), (SampledLoss, (1.0, 1.1, 5)), (SampledLoss, (1.0, 0.1, -5)),
        (SampledLoss, (math.nan, 0.1, 5)), (StatedLoss, (-1.0, 1e-5)), (StatedLoss, (1.0, -1e-5)),
    ],
)  # fmt: skip
def test_what_is_no_loss_is_refused(kind, values):
    with pytest.raises(InputError):
        kind(*values)


@pytest.mark.parametrize("apart", [1, 4])
def test_correlated_rows_up_to_any_round_shift_by_no_more_than_its_figure(apart):
    """What a run may give back when it stops: by hand, with shifts that react to what was seen."""
    rng, rounds = np.random.default_rng(3), 8
    C = np.tril(rng.standard_normal((rounds, rounds))) + 3 * np.eye(rounds)
    built = algorithm("mf-d-sgd", sigma=1.7, correlation=Triangular(C))
    ends = {t: trace(built, metropolis("ring:4"), rounds=t) for t in range(1, rounds + 1)}
    takes_part = {t: f"{-(-t // apart)}x{apart}" for t in ends}
    found = [account(ends[t], participation=takes_part[t], adjacency="record") for t in ends]
    figures = np.array([one.mu**2 for one in found])
    nearest = 0.0
    for first in range(300):
        seen, moved = np.zeros((rounds, 3)), np.zeros((rounds, 3))
        for t in range(rounds):
            direction = rng.standard_normal(3) + 5 * seen[:t].sum(axis=0)
            moved[t] = ((t - first) % apart == 0) * direction / np.linalg.norm(direction)
            seen[t] = C[t] @ moved
        shares = np.cumsum((seen**2).sum(axis=1)) / 1.7**2 / figures
        nearest = max(nearest, float(shares.max()))
        assert np.all(shares <= 1 + 1e-9)
    assert nearest > 0.9, "figures are those of these rounds, not of the end"
