"""One of several releases, drawn at random: the figure against likelihoods of its own, by integrals and by sampling.

Oracles know Gaussian densities and nothing of the package.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.secret_source import SecretSource
from sottovoce.errors import InputError
from sottovoce.learning.batches import parse_batches
from sottovoce.privacy.amplification import epsilon_of_batches, noise_for
from sottovoce.privacy.composition import SampledLoss, compose, loss_document, read_loss
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.random_allocation import Allocation

ORDERS = (1.0, 1.2, 2.0, 5.0)


def integrated(noise, order, there, later=None):
    """Of two releases, on a grid of the plane; `later` says how far the record moves the second, given the first."""
    x = np.linspace(-9 * noise, 9 * noise + 1, 801)
    first, second = x[:, None], x[None, :]
    moved = np.ones_like(first) if later is None else later(first)
    density = np.exp(-(first**2 + second**2) / (2 * noise**2)) / (2 * math.pi * noise**2) * (x[1] - x[0]) ** 2
    ratio = np.exp((2 * first - 1) / (2 * noise**2)) / 2
    ratio = ratio + np.exp((2 * second * moved - moved**2) / (2 * noise**2)) / 2
    gain = ratio - order if there else 1 - order * ratio
    return float((density * np.maximum(gain, 0)).sum())


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_two_releases_are_their_integral(noise, there):
    found = Allocation(noise, 2).divergences(ORDERS, there)
    for bound, order in zip(found, ORDERS, strict=True):
        true = integrated(noise, order, there)
        assert true * (1 - 1e-6) - 1e-15 <= bound <= true * 1.01 + 1e-12


@pytest.mark.parametrize("there", [True, False])
def test_reactions_to_what_was_released_do_not_help(there):
    rng = np.random.default_rng(5)
    for _ in range(8):
        edges, steps = np.sort(rng.uniform(-2, 3, 4)), rng.uniform(-1, 1, 5)
        steps[rng.integers(5)] = rng.choice([-1, 1])

        def later(first, edges=edges, steps=steps):
            return steps[np.searchsorted(edges, first)]

        for order in ORDERS:
            bound = Allocation(1.0, 2).divergences([order], there)[0]
            assert integrated(1.0, order, there, later) <= bound * (1 + 1e-6)


def sampled_losses(noise, patterns, rounds, epochs, draws, seed, there):
    """Losses of the mixture over patterns of rounds, where the data with the record was used, or that without."""
    rng, total = np.random.default_rng(seed), np.zeros(draws)
    for _ in range(epochs):
        y = noise * rng.standard_normal((draws, rounds))
        if there:
            chosen = patterns[rng.integers(len(patterns), size=draws)]
            np.add.at(y, (np.arange(draws)[:, None], chosen), 1.0)
        each = np.exp(((2 * y - 1) / (2 * noise**2))[:, patterns].sum(axis=2))
        total += np.log(each.mean(axis=1)) * (1 if there else -1)
    return total


@pytest.mark.parametrize(
    ("noise", "rounds", "times", "epochs"), [(1.0, 50, 1, 1), (0.7, 20, 1, 3), (2.0, 10, 1, 10), (1.0, 6, 2, 1)]
)
def test_no_sampled_run_tells_more_and_hardly_less(noise, rounds, times, epochs):
    delta, draws = 0.01, 200_000
    patterns = np.array(list(itertools.combinations(range(rounds), times)))
    stated = epsilon_of_batches(noise=noise, share=1.0, rounds=epochs * times, delta=delta, among=rounds // times)
    within = []
    for there in (True, False):
        losses = sampled_losses(noise, patterns, rounds, epochs, draws, 3, there)
        for epsilon, least in ((stated, within), (0.97 * stated, None)):
            gains = np.maximum(-np.expm1(epsilon - losses), 0)
            mean, error = gains.mean(), gains.std() / math.sqrt(draws)
            if least is not None:
                assert mean - 4 * error <= delta
            else:
                within.append(mean - 4 * error > delta)
    assert any(within) or times > 1  # k of b rounds are bounded by groups, which are known


def test_small_deltas_agree_with_importance_sampling():
    """At delta 1e-9, draws from the data with the record, whose rounds move twice as far, with their weights."""
    noise, rounds, delta, draws = 1.0, 20, 1e-9, 400_000
    stated = epsilon_of_batches(noise=noise, share=1.0, rounds=1, delta=delta, among=rounds)
    rng, tilt = np.random.default_rng(0), 5.0
    y = rng.standard_normal((draws, rounds))
    y[:, 0] += 1 + tilt  # by symmetry the record is in the first round
    weights = np.exp(-tilt * (y[:, 0] - 1) + tilt**2 / 2)
    losses = np.log(np.exp(y - 0.5).mean(axis=1))
    for epsilon, more in ((stated, False), (0.99 * stated, True)):
        gains = weights * np.maximum(-np.expm1(epsilon - losses), 0)
        mean, error = gains.mean(), gains.std() / math.sqrt(draws)
        assert mean - 4 * error > delta if more else mean - 4 * error <= delta


def test_one_of_one_is_a_plain_release_and_more_rounds_hide_more():
    plain = epsilon_of_batches(noise=1.0, share=1.0, rounds=1, delta=1e-5, among=1)
    assert plain == epsilon_of(1.0, 1e-5)
    among = [epsilon_of_batches(noise=1.0, share=1.0, rounds=1, delta=1e-5, among=B) for B in (2, 5, 50, 500)]
    assert sorted([plain, *among], reverse=True) == [plain, *among]
    for delta in (1e-3, 1e-12, 1e-30):
        found = epsilon_of_batches(noise=0.4, share=1.0, rounds=7, delta=delta, among=30)
        assert 0 < found <= epsilon_of(math.sqrt(7) / 0.4, delta)


def test_the_noise_of_a_target_meets_it():
    noise = noise_for(1.0, share=1.0, rounds=1, delta=1e-5, among=100)
    assert noise == pytest.approx(0.874, abs=0.002)
    assert epsilon_of_batches(noise=noise, share=1.0, rounds=1, delta=1e-5, among=100) <= 1
    assert epsilon_of_batches(noise=0.997 * noise, share=1.0, rounds=1, delta=1e-5, among=100) > 1


def test_allocated_releases_compose_with_others_and_are_stored():
    loss = SampledLoss(1.0, 1.0, 2, among=40)
    assert read_loss(loss_document(loss)) == loss
    twice = compose([SampledLoss(1.0, 1.0, 1, among=40), SampledLoss(1.0, 1.0, 1, among=40)])
    assert twice.epsilon(1e-5) == pytest.approx(compose([loss]).epsilon(1e-5), rel=1e-3)
    poisson = SampledLoss(1.0, 0.01, 10)
    assert compose([loss, poisson]).epsilon(1e-5) > max(compose([one]).epsilon(1e-5) for one in (loss, poisson))


@pytest.mark.parametrize(("spec", "epochs", "epoch", "times"), [("allocate:3x8", 3, 8, 1), ("allocate:3/12", 1, 12, 3)])
def test_records_take_part_as_often_as_agreed_in_rounds_of_their_own(spec, epochs, epoch, times):
    plan = parse_batches(spec, [4000, 40], NoiseKey(bytes(16)))
    counts = np.zeros((epochs * epoch, 4000), dtype=int)
    for round in range(epochs * epoch):
        np.add.at(counts[round], plan.rows_of(0, round), 1)
    assert counts.max() == 1
    for e in range(epochs):
        part = counts[e * epoch : (e + 1) * epoch]
        assert (part.sum(axis=0) == times).all()
        expected = 4000 * times / epoch
        assert (np.abs(part.sum(axis=1) - expected) < 5 * math.sqrt(expected)).all()
        together = (part[0] * part[1]).mean()
        chance = times * (times - 1) / (epoch * (epoch - 1))
        assert abs(together - chance) < 5 * math.sqrt(max(chance, 1e-9) / 4000) + 1e-9
    if epochs > 1:
        rounds = counts.reshape(epochs, epoch, -1).argmax(axis=1)
        assert abs((rounds[0] == rounds[1]).mean() - 1 / epoch) < 5 * math.sqrt(1 / epoch / 4000)
    assert plan.divisors.tolist() == [4000 * times / epoch, 40 * times / epoch]
    assert plan.sampling(0).releases(epochs * epoch) == epochs * times


def test_secret_coins_of_an_epoch_serve_all_its_rounds():
    kept = {}
    plan = parse_batches("allocate:2x5", [30], SecretSource(keep_coins=lambda name, key: kept.setdefault(name, key)))
    first = [plan.rows_of(0, round) for round in range(5)]
    assert sorted(np.concatenate(first)) == list(range(30))
    again = parse_batches("allocate:2x5", [30], SecretSource(keep_coins=lambda name, key: kept.setdefault(name, key)))
    assert all((again.rows_of(0, round) == first[round]).all() for round in (3, 1))
    assert len(kept) == 1


@pytest.mark.parametrize("spec", ["allocate:3/10", "allocate:0x5", "allocate:5", "allocate:2/1"])
def test_what_is_no_allocation_is_refused(spec):
    with pytest.raises(InputError):
        parse_batches(spec, [30])


def test_a_longer_run_is_refused():
    with pytest.raises(InputError):
        parse_batches("allocate:2x5", [30]).check(11)
