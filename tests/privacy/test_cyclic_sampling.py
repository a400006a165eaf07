"""Sampling with correlated noise: the figure against likelihoods of small cases, which share no code with it.

One node, one record, T rounds: everyone sees `y = g + sigma C^-1 Z`, so `C y` row by row. The record is in the part of
round 0 and is drawn every B rounds with probability q. A likelihood is a sum over all draws of the record.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sottovoce import InputError, Unaccountable, account, algorithm, metropolis, sampled_epsilon, trace, views
from sottovoce.core.correlation import Triangular
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning.batches import parse_batches
from sottovoce.privacy.amplification import epsilon_of_batches

NET = metropolis("complete:2")
ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
TWO_BANDS = np.array([[0.8, 0, 0, 0], [0.6, 0.8, 0, 0], [0, 0.6, 0.8, 0], [0, 0, 0.6, 1.0]])
UNEVEN = np.array([[0.8, 0, 0, 0], [0.6, 0.3, 0, 0], [0, 0.1, 0.4, 0], [0, 0, 0.2, 0.7]])
THREE_BANDS = np.array([[0.6, 0, 0, 0], [0.0, 0.6, 0, 0], [0.8, 0, 0.6, 0], [0, 0.8, 0.8, 1.0]])


def figure(C, sigma, share, apart, delta):
    """Epsilon that the accountant states for this C."""
    system = trace(algorithm("mf-d-sgd", sigma=sigma, correlation=C), NET, rounds=len(C))
    return sampled_epsilon(system, views.everyone(), share=share, apart=apart, delta=delta)


def still(past):
    """Nothing."""
    return 0.0


def steady(past):
    """The same in every round."""
    return 1.0


def contrary(past):
    """A contribution whose sign follows what was seen last."""
    return -1.0 if len(past) and past[-1] > 0.4 else 1.0


def doubting(past):
    """A contribution only where what was seen leaves it in doubt whether the record is there."""
    return 1.0 if abs(sum(past) - 0.3) < 1.0 else 0.2


def amplifying(past):
    """What the other records of the node say: they react to all that was released."""
    return 5.0 * math.tanh(sum(past))


def log_likelihoods(rows_ST, C, sigma, share, apart, own, others):
    """Log density of rows of `C y`, S samples, with the record there."""
    T = len(C)
    turns = list(range(0, T, apart))
    out = []
    for y_T in np.linalg.solve(C, rows_ST.T).T:
        g = np.array([others(y_T[:t]) for t in range(T)])
        c = np.array([own(y_T[:t]) for t in range(T)])
        row = C @ y_T
        terms = []
        for draws in itertools.product((0, 1), repeat=len(turns)):
            chi = np.zeros(T)
            chi[turns] = draws
            far = row - C @ (g + chi * c)
            weight = sum(math.log(share) if drawn else math.log1p(-share) for drawn in draws)
            terms.append(weight - far @ far / (2 * sigma**2))
        out.append(np.logaddexp.reduce(terms))
    return np.array(out)


def simulated(rng, count, C, sigma, share, apart, own, others, there):
    """Rows of `C y` of so many runs."""
    T = len(C)
    noise = np.linalg.solve(C, sigma * rng.standard_normal((T, count))).T
    out = np.zeros((count, T))
    for run in range(count):
        y = np.zeros(T)
        for t in range(T):
            drawn = there and t % apart == 0 and rng.random() < share
            y[t] = others(y[:t]) + (own(y[:t]) if drawn else 0.0) + noise[run, t]
        out[run] = C @ y
    return out


def deltas(C, sigma, share, apart, epsilon, own=steady, others=still, count=2500, seed=0):
    """delta at this epsilon, of adding and of removing the record: means over runs, with their standard errors."""
    found = []
    for there in (True, False):
        rng = np.random.default_rng([seed, there])
        rows = simulated(rng, count, C, sigma, share, apart, own, others, there)
        loss = log_likelihoods(rows, C, sigma, share, apart, own, others)
        loss -= log_likelihoods(rows, C, sigma, share, apart, lambda past: 0.0, others)
        above = np.maximum(-np.expm1(epsilon - (loss if there else -loss)), 0.0)
        found.append((above.mean(), above.std() / math.sqrt(count)))
    return found


def quadrature(C, sigma, share, apart, epsilon):
    """delta for a contribution that is always 1, exactly: the two columns span the plane that matters."""
    turns = list(range(0, len(C), apart))
    assert len(turns) == 2
    assert C[:, turns[0]] @ C[:, turns[1]] == 0
    x = np.linspace(-8, 10, 1201)
    logs = []
    for turn in turns:
        size = np.linalg.norm(C[:, turn]) / sigma
        there = np.logaddexp(math.log1p(-share) + stats.norm.logpdf(x), math.log(share) + stats.norm.logpdf(x - size))
        logs.append((there, stats.norm.logpdf(x)))
    with_ = logs[0][0][:, None] + logs[1][0]
    without = logs[0][1][:, None] + logs[1][1]
    cell = (x[1] - x[0]) ** 2
    one = np.maximum(np.exp(with_) - np.exp(epsilon + without), 0).sum() * cell
    other = np.maximum(np.exp(without) - np.exp(epsilon + with_), 0).sum() * cell
    return max(one, other)


@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.3), (0.7, 0.1), (2.0, 0.6)])
def test_the_figure_is_that_of_the_likelihoods_where_columns_are_alike(sigma, share):
    """From above, and not by more than rounding: two percent less epsilon has more than delta."""
    for delta in (1e-2, 1e-4):
        stated = figure(TWO_BANDS, sigma, share, 2, delta)
        assert quadrature(TWO_BANDS, sigma, share, 2, stated) <= delta * (1 + 1e-4)
        assert quadrature(TWO_BANDS, sigma, share, 2, 0.98 * stated) > delta


def test_the_longest_column_counts():
    """Columns of other norms: the figure is above the truth, and that of the longest one."""
    stated = figure(UNEVEN, 1.0, 0.3, 2, 1e-3)
    assert quadrature(UNEVEN, 1.0, 0.3, 2, stated) < 1e-3
    assert stated == pytest.approx(epsilon_of_batches(noise=1.0, share=0.3, rounds=2, delta=1e-3))


@pytest.mark.parametrize("others", [still, amplifying])
@pytest.mark.parametrize("own", [steady, contrary, doubting])
def test_records_and_others_that_react_tell_no_more(own, others):
    """Exact likelihoods of runs: never above delta, in both directions; steady contributions reach it."""
    sigma, share, delta = 0.8, 0.3, 0.02
    stated = figure(TWO_BANDS, sigma, share, 2, delta)
    found = deltas(TWO_BANDS, sigma, share, 2, stated, own, others)
    for mean, error in found:
        assert mean - 4 * error <= delta
    if own is steady:
        mean, error = max(found)
        assert abs(mean - delta) < 4 * error < delta / 2


def test_more_bands_than_parts_tell_more_than_the_formula_says_and_are_refused():
    """Columns of norm 1 that overlap: two draws of one record are seen through the same noise."""
    sigma, share, delta = 0.8, 0.3, 0.02
    by_formula = epsilon_of_batches(noise=sigma, share=share, rounds=2, delta=delta)
    mean, error = max(deltas(THREE_BANDS, sigma, share, 2, by_formula, count=5000))
    assert mean - 4 * error > delta
    with pytest.raises(Unaccountable, match="C has 3 bands, and a record may be drawn every 2 rounds"):
        figure(THREE_BANDS, sigma, share, 2, delta)
    assert math.isfinite(figure(THREE_BANDS, sigma, share, 3, delta))


def test_one_band_is_poisson_sampling_of_independent_noise():
    rounds = 30
    plain = trace(algorithm("dp-d-sgd", sigma=1.3), NET, rounds=rounds)
    wanted = sampled_epsilon(plain, views.everyone(), share=0.1, delta=1e-5)
    assert figure(np.eye(rounds), 1.3, 0.1, 1, 1e-5) == pytest.approx(wanted, rel=1e-6)
    found = trace(
        algorithm("mafalda", sigma=1.3, rounds=rounds, participation="cyclic-poisson:0.1x1"), NET, rounds=rounds
    )
    assert sampled_epsilon(found, views.everyone(), share=0.1, delta=1e-5) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("participation", ["cyclic-poisson:0.999x6", "5x6"])
def test_a_share_of_one_is_a_cycle(participation):
    """For every C, banded or not."""
    net, rounds = metropolis("ring:5"), 30
    system = trace(algorithm("mafalda", sigma=4.0, rounds=rounds, participation=participation), net, rounds=rounds)
    cyclic = account(system, participation="5x6").headline.epsilon(1e-5)
    assert sampled_epsilon(system, views.everyone(), share=1.0, apart=6, delta=1e-5) == pytest.approx(cyclic, rel=1e-9)


@pytest.mark.parametrize("row", ORACLES["cyclic_poisson_eps"], ids=lambda row: f"{row['parts']}-{row['T']}")
def test_the_central_case_is_that_of_jax_privacy(row):
    """A batch of so many records on average, drawn from one of so many equal parts; records left over are not."""
    share = row["batch"] / (row["records"] // row["parts"])
    found = figure(np.eye(row["T"]), row["noise"], share, row["parts"], row["delta"])
    assert found == pytest.approx(row["eps"], rel=row["tol_rel"])


def test_a_node_learns_no_more_than_all_noisy_gradients_tell():
    system = trace(algorithm("mf-d-sgd", sigma=1.0, correlation=TWO_BANDS), NET, rounds=4)
    found = sampled_epsilon(system, views.node(0), share=0.3, apart=2, delta=1e-3)
    assert found == figure(TWO_BANDS, 1.0, 0.3, 2, 1e-3)


def test_antipgd_has_as_many_bands_as_rounds():
    """Its noise looks back one round, its C all the way: what is released is told apart by sums of all draws."""
    system = trace(algorithm("anti-pgd", sigma=1.0), NET, rounds=4)
    with pytest.raises(Unaccountable, match="4 bands"):
        sampled_epsilon(system, views.everyone(), share=0.3, apart=2, delta=1e-3)


# --- participation and its words -----------------------------------------------------------------------------------


def test_participation_is_read_as_it_is_written():
    scheme = parse_participation("cyclic-poisson:0.25x3")
    assert scheme == Participation.sampled(0.25, 3)
    assert str(scheme) == str(scheme.within(8)) == "cyclic-poisson:0.25x3"
    assert scheme.within(8) == Participation(3, 3, 0.25)
    assert [pattern.tolist() for pattern in scheme.patterns(7)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert str(parse_participation("cyclic-poisson:1x3").within(8)) == "3x3"
    scheme.check(1)


@pytest.mark.parametrize("words", ["0x3", "1.5x3", "0.5", "0.5x0", "nanx3", "1.1.1x2", "-0.5x3"])
def test_what_is_no_share_and_number_of_parts_is_refused(words):
    spec = f"cyclic-poisson:{words}"
    with pytest.raises(InputError, match="SHARExB"):
        parse_participation(spec)
    with pytest.raises(InputError, match="SHARExB"):
        parse_batches(spec, [20])


# --- audits --------------------------------------------------------------------------------------------------------


def random_band(rng, rounds, bands):
    C = np.tril(rng.uniform(-0.6, 0.8, (rounds, rounds)))
    C[np.subtract.outer(np.arange(rounds), np.arange(rounds)) >= bands] = 0.0
    C[np.diag_indices(rounds)] = rng.uniform(0.5, 1.0, rounds)
    return C / np.linalg.norm(C, axis=0).max()


def released(C, sigma, share, apart, size, count, seed):
    """What everyone sees of so many runs with a record of this size: batches and noise as a run draws them."""
    plan = parse_batches(f"cyclic-poisson:{share!r}x{apart}", [count * apart], key=NoiseKey.of_seed(seed))
    rng, correlation, past = np.random.default_rng(seed), Triangular(C), []
    out = np.zeros((count, len(C)))
    for t in range(len(C)):
        noise, kept = correlation.next(t, sigma * rng.standard_normal((1, count)), past)
        past = [*past, kept][-correlation.memory :] if correlation.memory else []
        drawn = np.zeros(count * apart, dtype=bool)
        drawn[plan.rows_of(0, t)] = True
        out[:, t] = noise[0] + size * drawn[:count]
    return out


def shown_delta(scores, without, epsilon):
    """delta at this epsilon that the best test shows, with 99.9 % confidence: `log ratio > epsilon`, on fresh runs."""
    hits, false, count = int((scores > epsilon).sum()), int((without > epsilon).sum()), len(scores)
    low = stats.beta.ppf(5e-4, hits, count - hits + 1) if hits else 0.0
    return low - math.exp(epsilon) * stats.beta.ppf(1 - 5e-4, false + 1, count - false)


def attacked(C, sigma, share, apart, count, seed):
    """Log likelihood ratios of runs with the record and of runs without, from draws of `Batches` and `Correlation`."""
    return [
        _ratio(released(C, sigma, share, apart, size, count, seed * 2 + int(size)), C, sigma, share, apart)
        for size in (1.0, 0.0)
    ]


LONG = {0, 8, 10, *range(13, 50)}
"""Settings whose audits are left to the slow suite: all but ten, and the longest."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed in LONG else seed for seed in range(50)]
)
def test_attacks_on_real_draws_never_show_more_than_the_figure(seed):
    """The most powerful test there is, the ratio of likelihoods, at the figures of two deltas, in both directions."""
    rng = np.random.default_rng([51, seed])
    apart = int(rng.integers(1, 5))
    bands = int(rng.integers(1, apart + 1))
    rounds, share = int(rng.integers(apart, 4 * apart + 1)), float(rng.uniform(0.05, 1.0))
    sigma = float(rng.uniform(0.3, 2.0))
    C = random_band(rng, rounds, bands)
    with_, without = attacked(C, sigma, share, apart, 40_000, seed)
    for delta in (1e-3, 0.05):
        stated = figure(C, sigma, share, apart, delta)
        assert shown_delta(with_, without, stated) <= delta
        assert shown_delta(-without, -with_, stated) <= delta


@pytest.mark.parametrize(
    ("sigma", "share", "delta"),
    [
        (0.8, 0.3, 0.05),
        pytest.param(0.7, 0.5, 0.1, marks=pytest.mark.slow),
        pytest.param(1.0, 0.8, 0.1, marks=pytest.mark.slow),
    ],
)
def test_attacks_refute_a_figure_that_is_a_tenth_too_small(sigma, share, delta):
    """Columns of norm 1, all of which count: the figure is tight, and the audit above could have noticed."""
    C = np.kron(np.eye(6), [[0.8, 0], [0.6, 1.0]])
    with_, without = attacked(C, sigma, share, 2, 400_000, 7)
    stated = figure(C, sigma, share, 2, delta)
    assert shown_delta(with_, without, stated) <= delta
    assert shown_delta(with_, without, 0.9 * stated) > delta


def _ratio(y, C, sigma, share, apart):
    """Log of the likelihood ratio of each run, for a steady contribution: rounds of the record are told apart."""
    rows, total = y @ C.T, np.zeros(len(y))
    for turn in range(0, len(C), apart):
        column = C[:, turn]
        shift = (rows @ column - column @ column / 2) / sigma**2
        total += np.logaddexp(math.log1p(-share), math.log(share) + shift) if share < 1 else shift
    return total
