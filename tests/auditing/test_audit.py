"""Audits: stored values, coverage by simulation, what is refused.

Stored values were computed once with jax-privacy 2.0.0's auditing module, by its functions for one run and, where
scores are named, on `out = Phi^-1((i + 0.5) / 1000)` and `in = out + 2`.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import optimize, stats

from sottovoce import (
    Audit,
    InputError,
    account,
    algorithm,
    audit_guesses,
    audit_one_run,
    audit_scores,
    metropolis,
    trace,
)
from sottovoce.attacks.evaluation import lower_limit, roc_auc, upper_limit
from sottovoce.auditing.lower_bound import Guesses, epsilon_bound, impossible, mu_bound, p_value
from sottovoce.privacy.gaussian_dp import epsilon_of

OUT = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
IN = OUT + 2


def of(canaries, guesses, correct):
    return Guesses(canaries=canaries, guesses=guesses, correct=correct)


@pytest.mark.parametrize(
    ("counts", "epsilon", "delta", "stored"),
    [
        (of(1000, 1000, 600), 0.0, 0.0, 1.3642320780329735e-10),
        (of(1000, 100, 90), 1.0, 1e-5, 0.0008412885614385309),
        (of(5000, 400, 320), 1.0, 1e-6, 0.001086142849697391),
    ],
)
def test_p_values_of_one_run(counts, epsilon, delta, stored):
    assert float(p_value(counts, epsilon, delta)) == pytest.approx(stored, rel=1e-10)


@pytest.mark.parametrize(
    ("counts", "stored"),
    [
        (of(1000, 100, 95), 3.3233004900323655),
        (of(1000, 100, 100), 5.5490279999429415),
        (of(1000, 500, 400), 2.076806928840693),
        (of(5000, 500, 450), 2.77606619765971),
        (of(2000, int((IN >= 1).sum() + (OUT >= 1).sum()), int((IN >= 1).sum())), 2.541098267797709),
    ],
)
def test_one_run_as_gaussian_dp(counts, stored):
    """The stored values are roots to 1e-6; ours is rounded down."""
    found = audit_guesses(canaries=counts.canaries, guesses=counts.guesses, correct=counts.correct)
    assert epsilon_of(found.mu, 1e-5) == pytest.approx(stored, abs=2e-6)
    assert found.counts == counts


def test_scores_of_mu_2():
    assert roc_auc(IN, OUT) == pytest.approx(stats.norm.cdf(math.sqrt(2)), abs=1e-4)
    found = audit_scores(OUT, IN, threshold=1.0)
    assert found.epsilon == pytest.approx(1.4950553013529382, rel=1e-12)
    assert (found.counts.false_alarms, found.counts.misses) == (159, 159)


def test_several_thresholds_share_the_error():
    """The stored values take the 84 corners of the convex hull of the ROC curve: the area under it, and the best of the
    84 bounds, each with a 84th of the error."""
    x, y, levels = (np.array(part) for part in zip(*hull_corners(), strict=True))
    assert len(levels) == 84
    assert 1 - np.trapezoid(y, x) / 1e6 == pytest.approx(0.9221744999999999, rel=1e-12)
    found = audit_scores(OUT, IN, threshold=levels)
    assert epsilon_of(found.mu, 1e-5) == pytest.approx(8.054659238630924, abs=2e-6)
    assert found.mu < audit_scores(OUT, IN, threshold=found.threshold).mu


def hull_corners():
    """(false alarms, misses, threshold) at the corners of the lower convex hull."""
    levels = [-np.inf, *np.unique(np.concatenate([OUT, IN])), np.inf]
    hull = []
    for level in levels[::-1]:
        x, y = int((level <= OUT).sum()), int((level > IN).sum())
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y, level))
    return hull


def test_clopper_pearson_against_the_binomial():
    for count, of_ in ((0, 20), (3, 20), (20, 20), (159, 1000)):
        high, low = float(upper_limit(np.array(count), of_, 0.01)), float(lower_limit(np.array(count), of_, 0.01))
        if count < of_:
            assert stats.binom.cdf(count, of_, high) == pytest.approx(0.01)
        if count > 0:
            assert stats.binom.sf(count - 1, of_, low) == pytest.approx(0.01)
        assert 0 <= low <= count / of_ <= high <= 1


# --- the recursion against a linear programme -----------------------------------------------------------------------


def largest_tail(counts, mu, tangents=300):
    """max P[correct or more] under the theorem's inequalities, 1 - f replaced by tangents from above."""
    m, r, v = counts.canaries, counts.guesses, counts.correct
    i = np.arange(r + 1)
    z = np.linspace(-6, 6, tangents)
    at, value = stats.norm.cdf(z), stats.norm.cdf(z + mu)
    slope = np.exp(-mu * z - mu * mu / 2)
    rows, limits = [], []
    for j in range(1, r + 1):
        right, wrong = np.where(i >= j, i / m, 0.0), np.where(i >= j - 1, (r - i) / m, 0.0)
        rows.append(right - slope[:, None] * wrong)
        limits.append(value - slope * at)
    done = optimize.linprog(
        -(i >= v).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1],
    )
    return -done.fun


@pytest.mark.parametrize(("counts", "mu"), [(of(12, 12, 10), 0.5), (of(30, 10, 9), 1.0), (of(20, 20, 15), 0.3)])
def test_the_recursion_finds_the_largest_probability(counts, mu):
    most = largest_tail(counts, mu)
    assert impossible(counts, np.array([mu]), 1.02 * most).all()
    assert not impossible(counts, np.array([mu]), 0.98 * most).any()


def test_one_run_bounds_grow_with_what_was_guessed():
    few, many = (audit_guesses(canaries=500, guesses=100, correct=k) for k in (70, 90))
    assert 0 < few.mu < many.mu
    assert 0 < few.epsilon < many.epsilon
    sure = audit_guesses(canaries=500, guesses=100, correct=90, confidence=0.999)
    assert (sure.mu, sure.epsilon) < (many.mu, many.epsilon)
    chance = audit_guesses(canaries=500, guesses=100, correct=50)
    assert (chance.mu, chance.epsilon) == (0.0, 0.0)
    assert epsilon_bound(of(500, 100, 90), 0.0, 0.95) > epsilon_bound(of(500, 100, 90), 1e-3, 0.95)


# --- coverage -------------------------------------------------------------------------------------------------------


def not_more_than(wrong, of_, share):
    """Whether so many wrong bounds are compatible with a stated share of errors."""
    return stats.binom.sf(wrong - 1, of_, share) > 1e-3


@pytest.mark.parametrize("threshold", [0.6, None, (0.2, 0.6, 1.0)], ids=["fixed", "chosen", "several"])
@pytest.mark.parametrize("mu", [0.0, 1.2])
def test_coverage_of_many_runs(mu, threshold):
    rng = np.random.default_rng(5)
    repeats, confidence = 400, 0.8
    truth = epsilon_of(mu, 1e-2) if mu else 0.0
    found = [
        audit_scores(
            rng.standard_normal(400), mu + rng.standard_normal(400),
            threshold=threshold, confidence=confidence, delta=1e-2, seed=k,
        )
        for k in range(repeats)
    ]  # fmt: skip
    assert not_more_than(sum(one.mu > mu or one.epsilon > truth for one in found), repeats, 1 - confidence)
    if mu:
        assert np.mean([one.mu for one in found]) > 0.7 * mu
        if threshold == 0.6:
            assert not_more_than(sum(one.highest < mu for one in found), repeats, 1 - confidence)


def test_many_runs_come_close():
    rng = np.random.default_rng(1)
    found = audit_scores(rng.standard_normal(400_000), 1.5 + rng.standard_normal(400_000), delta=1e-3)
    assert 0.97 * 1.5 < found.mu <= 1.5 < found.highest
    assert 0 < found.epsilon <= epsilon_of(1.5, 1e-3)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_coverage_of_one_run(mu):
    rng = np.random.default_rng(2)
    repeats, confidence, m = 150, 0.8, 300
    found = []
    for _ in range(repeats):
        coins = rng.integers(0, 2, m)
        found.append(audit_one_run(rng.standard_normal(m) + mu * coins, coins, confidence=confidence, delta=1e-2))
    truth = epsilon_of(mu, 1e-2) if mu else 0.0
    assert not_more_than(sum(one.mu > mu for one in found), repeats, 1 - confidence)
    assert not_more_than(sum(one.epsilon > truth for one in found), repeats, 1 - confidence)
    if mu:
        assert np.mean([one.mu for one in found]) > 0.4 * mu


def test_one_run_comes_close_with_many_canaries():
    rng = np.random.default_rng(3)
    coins = rng.integers(0, 2, 20_000)
    found = audit_one_run(rng.standard_normal(20_000) + coins, coins, guesses=400)
    assert 0.65 < found.mu <= 1.0


# --- results --------------------------------------------------------------------------------------------------------


def test_comparison_with_claims():
    found = audit_scores(OUT, IN, threshold=1.0)
    result = account(trace(algorithm("muffliato", sigma=1.0), metropolis("path:3"), rounds=1), "node:0")
    assert result.mu == 1.0
    assert not found.consistent_with(result)
    assert not found.consistent_with(result.of(1))
    assert found.consistent_with(2.0)
    assert found.consistent_with(math.inf)
    with pytest.raises(InputError, match="claim -1"):
        found.consistent_with(-1)


def test_documents_and_words():
    perfect = audit_scores(np.zeros(50), np.ones(50), threshold=0.5)
    document = json.loads(json.dumps(perfect.document()))
    assert document["highest"] == "inf"
    assert document["counts"] == {"without": 50, "false_alarms": 0, "with_canary": 50, "misses": 0}
    assert str(perfect).startswith("mu >= 2.9")
    assert isinstance(perfect, Audit)


def test_sorted_scores_are_no_trap():
    shuffled = np.random.default_rng(0).permutation(IN)
    both = [audit_scores(OUT, scores).mu for scores in (IN, shuffled)]
    assert all(1.5 < mu < 2 for mu in both)


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda: audit_scores(OUT, IN, confidence=1.0), "confidence 1.0; it must lie between 0 and 1"),
        (lambda: audit_scores(OUT, IN, delta=-1.0), "delta = -1.0; it must lie"),
        (lambda: audit_scores(OUT[:5], IN[:5], threshold=1.0), "5 scores; at this confidence fewer than 6 prove"),
        (lambda: audit_scores(OUT[:9], IN), "4 scores in each half; at this confidence fewer than 6"),
        (lambda: audit_scores([math.nan] * 9, IN), "score 0 without the canary is NaN; leaving runs out"),
        (lambda: audit_scores(OUT, ["high"]), "scores with the canary that are not numbers"),
        (lambda: audit_scores(OUT, IN[None]), r"scores with the canary of shape \(1, 1000\)"),
        (lambda: audit_scores(OUT, IN, threshold=math.nan), "threshold nan"),
        (lambda: audit_one_run(OUT, IN), r"1000 scores and coins of shape \(1000,\); there must be one true or false"),
        (lambda: audit_one_run(OUT, OUT > 0, guesses=2000), "0 of 2000 guesses about 1000 canaries"),
        (lambda: audit_guesses(canaries=10, guesses=5, correct=6), "6 of 5 guesses about 10 canaries"),
        (lambda: audit_guesses(canaries=10, guesses=5, correct=5, confidence=0), "confidence 0; "),
    ],
)  # fmt: skip
def test_one_clear_line_for_bad_input(ask, line):
    with pytest.raises(InputError, match=line) as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_least_number_of_scores_is_the_least_that_can_prove_anything():
    assert audit_scores(np.zeros(6), np.ones(6), threshold=0.5).mu > 0


def test_bounds_are_refuted_and_the_next_is_not():
    counts = of(1000, 200, 160)
    mu, epsilon = mu_bound(counts, 0.95), epsilon_bound(counts, 1e-5, 0.95)
    assert impossible(counts, np.array([mu, mu + 1e-6]), 0.05).tolist() == [True, False]
    assert p_value(counts, epsilon, 1e-5) <= 0.05 < p_value(counts, epsilon + 1e-6, 1e-5)
