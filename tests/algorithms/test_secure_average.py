"""Secure averaging: the integers of the plain sum, masked or not; noise against every coalition; what is proven."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from sottovoce import InputError, NoiseKey, account, algorithm, calibrate, iterate_rounds, trace, train, uniform
from sottovoce.algorithms.secure_sums import SecureAverage
from sottovoce.core.exact_gaussians import draw_discrete_gaussians
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.integer_sums import decoded, encoded, sum_grid, weighted
from sottovoce.core.noise import Independent
from sottovoce.core.pair_masks import PairMasks, Place, pair_key

D = 40


def exact(n, **settings):
    net = uniform(f"complete:{n}")
    return with_exact_noise(algorithm("secure-average", **settings), net), net


def pull(round, x):
    """Node u wants to be at u; clipped by nothing, so that values are as large as they come."""
    rows = torch.arange(len(x))[:, None] if isinstance(x, torch.Tensor) else np.arange(len(x))[:, None]
    return 0.25 * (x - rows)


# --- integers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 7, 50])
def test_a_round_is_the_average_of_integers_by_hand(n):
    """Python's integers, with the noise of every node's stream drawn again."""
    ready, net = exact(n, sigma=1.5, step_size=0.5, sensitivity=0.75)
    key = NoiseKey.of_seed(n)
    found = train(ready, net, np.zeros((n, D)), pull, rounds=1, noise_key=key)
    grid = sum_grid(ready, net.at(0))
    total = [0] * D
    for u in range(n):
        noise = draw_discrete_gaussians(key.stream("node", [u], 0), D, grid.sigma_N[u])
        for i in range(D):
            total[i] += round(-0.25 * u / grid.step) + int(noise[i])
    by_hand = np.array([0.0 - 0.5 * (one * grid.step / n) for one in total])
    np.testing.assert_array_equal(found, np.broadcast_to(by_hand, (n, D)))


def test_with_masks_every_receiver_gets_the_same_integers():
    """As members do it: messages masked for each receiver, who adds its own and learns no other sum."""
    n = 5
    ready, net = exact(n, sigma=1.0)
    played = next(iterate_rounds(ready, net, np.zeros((n, D)), pull, rounds=1, noise_key=NoiseKey.of_seed(2)))
    step, names = played.steps[0], [f"m{u}" for u in range(n)]
    grid = step.gossip_step.grid
    integers = encoded(step.sent, grid.step)
    keys = {frozenset(pair): bytes([i] * 32) for i, pair in enumerate(itertools.combinations(names, 2))}
    for v, receiver in enumerate(names):
        senders, total = [name for name in names if name != receiver], np.zeros(D, dtype=np.uint64)
        for own in senders:
            others = [other for other in senders if other != own]
            shared = {o: pair_key(keys[frozenset((own, o))], own, o, agreement=b"hash") for o in others}
            weight = grid.weights.weight(v, names.index(own))
            message = weighted(integers[names.index(own)], weight)
            total += message + PairMasks(own, shared).mask(Place(0, 0, receiver), others, D)
        total += weighted(integers[v], grid.weights.weight(v, v))
        assert decoded(total, grid.bounds_N[v]).tolist() == integers.sum(axis=0).tolist()
        np.testing.assert_array_equal(grid.average(total, v), step.mixed[v])


def test_torch_and_numpy_train_alike_and_keep_their_precision():
    ready, net = exact(4, sigma=1.0)
    key = NoiseKey.of_seed(3)
    single = train(ready, net, np.zeros((4, D), dtype=np.float32), pull, rounds=5, noise_key=key)
    tensors = train(ready, net, torch.zeros(4, D), pull, rounds=5, noise_key=key)
    assert (single.dtype, tensors.dtype) == (np.float32, torch.float32)
    np.testing.assert_allclose(tensors.numpy(), single, rtol=0, atol=1e-5)
    assert (single == single[0]).all()
    assert bool((tensors == tensors[0]).all())


def test_noise_in_the_average_has_its_size_from_both_sides():
    n, sigma = 6, 2.0
    ready, net = exact(n, sigma=sigma, step_size=1.0, sensitivity=0.5)
    D = 20_000
    found = train(ready, net, np.zeros((n, D)), lambda t, x: 0 * x, rounds=1, noise_key=NoiseKey.of_seed(4))[0]
    tail = stats.chi2(D)
    for times, right in ((1.0, True), (0.9, False), (1.1, False)):
        statistic = (found**2).sum() / (times * 0.5 * sigma / math.sqrt(n)) ** 2
        assert bool(2 * min(tail.cdf(statistic), tail.sf(statistic)) > 1e-9) is right


def test_values_that_do_not_fit_are_refused():
    ready, net = exact(3, sigma=1.0)
    with pytest.raises(InputError, match="a value beyond"):
        train(ready, net, np.zeros((3, 2)), lambda t, x: 1e30 + x, rounds=1)


# --- figures -------------------------------------------------------------------------------------------------------


def oracle(n, sigmas, colluders, rounds):
    """mu^2 of the worst victim and coalition, from the variances that are left: brute force over all coalitions."""
    worst = 0.0
    for victim in range(n):
        for coalition in itertools.combinations([u for u in range(n) if u != victim], colluders):
            left = sum(sigmas[u] ** 2 for u in range(n) if u not in coalition)
            worst = max(worst, rounds / left)
    return worst


@pytest.mark.parametrize(("n", "colluders"), [(3, 1), (5, 1), (5, 3), (6, 2)])
@pytest.mark.parametrize("equal", [True, False])
def test_the_headline_is_that_of_the_worst_coalition(n, colluders, equal):
    sigmas = np.full(n, 1.5) if equal else np.linspace(0.5, 3.0, n)[::-1]
    built, net = exact(n, sigma=sigmas.tolist(), colluders=colluders)
    found = account(trace(built, net, rounds=7))
    wanted = oracle(n, sigmas, colluders, 7)
    assert wanted <= found.mu**2 <= wanted * (1 + 3e-5)
    assert (found.kind.value, found.coverage.colluders, found.coverage.everyone) == ("any-training", colluders, True)
    assert found.headline.final_models.value == "all"
    words = " ".join(str(assumption) for assumption in found.assumptions)
    assert "secure sums of multiples of" in words
    assert "rounding of floating-point numbers is not covered" not in words


def what_a_member_sees(sigmas, member, rounds):
    """A of victim 0 and B, by hand: the sums of all rounds less what the member knows, and the model at the end."""
    n = len(sigmas)
    sums = np.kron(np.eye(rounds), np.where(np.arange(n) == member, 0.0, sigmas) / n)
    gains = np.eye(rounds) / n
    return (np.vstack([rows, -0.7 * rows.sum(axis=0)]) for rows in (gains, sums))


@pytest.mark.parametrize("models", ["average", "all"])
@pytest.mark.parametrize(("participation", "times"), [("every", 6), ("2x3", 2)])
def test_models_at_the_end_tell_a_member_nothing_that_the_sums_did_not(models, participation, times):
    sigmas, member = [0.5, 1.0, 3.0, 2.0], 2
    built, net = exact(4, sigma=sigmas, step_size=0.7)
    A, B = what_a_member_sees(sigmas, member, 6)
    M = A.T @ np.linalg.pinv(B @ B.T) @ A
    rounds = np.arange(0, 6, 6 // times)
    wanted = np.abs(M[np.ix_(rounds, rounds)]).sum()
    asked = {"participation": participation, "final_models": models, "covering": False}
    found = account(trace(built, net, rounds=6), "node:2", **asked).of(0).mu ** 2
    assert wanted * (1 - 1e-12) <= found <= wanted * (1 + 3e-5)


def test_an_account_is_as_short_for_long_runs_with_their_models():
    """10,000 rounds: a matrix with their square in entries would take 800 MB for each victim."""
    sigmas = [50.0, 100.0, 300.0, 200.0]
    built, net = exact(4, sigma=sigmas)
    found = account(trace(built, net, rounds=10_000), "node:2", final_models="average")
    wanted = 10_000 / (50.0**2 + 100.0**2 + 200.0**2)
    assert wanted <= found.of(0).mu ** 2 <= wanted * (1 + 3e-5)
    assert found.mu**2 == pytest.approx(oracle(4, sigmas, 1, 10_000), rel=3e-5)


def test_a_receiver_that_takes_off_its_own_noise_learns_more_than_an_outsider():
    """n = 3: with no colluder counted mu^2 would be 1 where the receiver, who knows its own noise, has 1.5."""
    built, net = exact(3, sigma=1.0)
    system = trace(built, net, rounds=6)
    outside = account(system, covering=False).mu ** 2
    inside = account(system, "node:0", covering=False).mu ** 2
    assert inside / outside == pytest.approx(1.5, rel=1e-9)
    assert account(system).mu ** 2 == inside


def test_reactions_of_nodes_to_the_sums_cost_nothing():
    """The figure is the same for record and user level: everyone reacts to what everyone has seen."""
    built, net = exact(4, sigma=1.0)
    system = trace(built, net, rounds=5)
    assert account(system, adjacency="record").mu == account(system, adjacency="user").mu


@pytest.mark.parametrize("colluders", [1, 5, 18])
def test_noise_for_a_target_is_that_of_the_centre_over_the_honest(colluders):
    built, net = exact(20, sigma=1.0, colluders=colluders)
    target = {"rounds": 50, "epsilon": 1.0, "delta": 1e-5}
    sigma = calibrate(built, net, **target)
    center = calibrate(algorithm("dp-fedavg", sigma=1.0), net, **target)
    assert 1 <= sigma * math.sqrt(20 - colluders) / center < 1 + 2e-5


def test_coalitions_that_leave_one_honest_node_are_refused():
    built, net = exact(5, sigma=1.0, colluders=4)
    with pytest.raises(InputError, match="with 4 colluders every sum is over at least 5 others"):
        trace(built, net, rounds=1)


def test_a_larger_coalition_than_was_counted_on_is_accounted_for_by_name():
    built, net = exact(5, sigma=1.0, colluders=1)
    system = trace(built, net, rounds=4)
    assert account(system, "coalition:any-3").mu ** 2 == pytest.approx(4 / 2, rel=3e-5)
    assert account(system, "coalition:0,1,2,3").mu ** 2 == pytest.approx(4, rel=3e-5)


def test_an_attack_on_real_runs_stays_below_the_figure_and_comes_near():
    """A receiver who knows its own noise and all data but one value: the best test there is, for a Gaussian sum."""
    n, rounds = 4, 4
    built, net = exact(n, sigma=1.0, step_size=1.0)
    D = 4000  # independent trials: each parameter is one
    scores = {}
    for change in (0.0, 1.0):
        key = NoiseKey.of_seed(9)

        def gradient(t, x, change=change):
            rows = np.zeros_like(x)
            rows[1] = change
            return rows

        total = np.zeros(D)
        grid = sum_grid(built.on(net), net.at(0))
        for played in iterate_rounds(built, net, np.zeros((n, D)), gradient, rounds=rounds, noise_key=key):
            own = draw_discrete_gaussians(key.stream("node", [0], played.round), D, grid.sigma_N[0]) * grid.step
            total += n * played.steps[0].mixed[0] - own
        scores[change] = total
    separation = (scores[1.0].mean() - scores[0.0].mean()) / scores[0.0].std()
    mu = account(trace(built, net, rounds=rounds)).mu
    assert separation == pytest.approx(mu, rel=0.05)
    outsider = account(trace(built, net, rounds=rounds), covering=False).mu
    assert separation > 1.05 * outsider


@dataclass(frozen=True, kw_only=True)
class Third(SecureAverage):
    """Sends what is no whole multiple of the step of sums."""

    def message(self, state):
        return state.x if state.update is None else state.update / 3


def test_sums_of_other_numbers_than_were_released_are_not_exact():
    net = uniform("complete:5")
    own, ours = (
        kind(name="sum", noise=Independent(1.0), requires="complete average", secure_sum=True)
        for kind in (Third, SecureAverage)
    )
    assert with_exact_noise(ours, net).exact_noise
    assert not with_exact_noise(own, net).exact_noise
    with pytest.raises(InputError, match="whole multiples"):
        trace(replace(own, exact_noise=True), net, rounds=2)
