"""Shuffled epochs: once in each epoch, in any of its rounds; against all orders of small cases."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from sottovoce import (
    InputError,
    Unaccountable,
    account,
    algorithm,
    audit,
    calibrate,
    factorize,
    metropolis,
    trace,
    views,
)
from sottovoce.core.participation import parse_participation
from sottovoce.core.secret_source import SecretSource
from sottovoce.learning.batches import parse_batches
from sottovoce.privacy.gaussian_dp import delta_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case

EPOCHS, APART = 3, 2
ROUNDS = EPOCHS * APART


def orders() -> list[list[int]]:
    """In which rounds a record can show: one of each epoch."""
    epochs = [range(APART * epoch, APART * (epoch + 1)) for epoch in range(EPOCHS)]
    return [list(rounds) for rounds in itertools.product(*epochs)]


def largest_over_orders(M: np.ndarray) -> float:
    """By brute force, for changes of one number a round: every order, every sign."""
    signs = [np.array(one) for one in itertools.product((-1.0, 1.0), repeat=EPOCHS)]
    return max(float(s @ M[np.ix_(rounds, rounds)] @ s) for rounds in orders() for s in signs)


@pytest.mark.parametrize("seed", range(20))
def test_no_order_costs_more_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(ROUNDS, ROUNDS)) * rng.choice([0.1, 1.0, 5.0], size=ROUNDS)
    M = A.T @ A
    found = worst_case(M[None], parse_participation(f"shuffle:{APART}"), ROUNDS)[0]
    assert largest_over_orders(M) <= found * (1 + 1e-12)
    assert found <= worst_case(M[None], parse_participation("every"), ROUNDS)[0]


@pytest.mark.parametrize("name", ["dp-d-sgd", "anti-pgd", "decor", "muffliato-sgd"])
def test_figures_of_small_cases_cover_all_orders(name):
    """M from dense matrices; the figure of each view is above every order's, and not above that of every round."""
    settings = {"sigma_pair": 2.0} if name == "decor" else {}
    net = metropolis("path:4")
    system = trace(algorithm(name, sigma=1.5, **settings), net, rounds=ROUNDS)
    A, B, labels = system.dense()
    for attacker in (None, 0) if name == "dp-d-sgd" else (None,):
        heard = np.isin(labels.sender, range(net.n) if attacker is None else (0, 1))
        unknown = np.arange(B.shape[1]) % net.n != (-1 if attacker is None else attacker)
        covariance = np.linalg.pinv(B[heard][:, unknown] @ B[heard][:, unknown].T, rcond=1e-11)
        view = views.everyone() if attacker is None else views.node(attacker)
        kinds = {"adjacency": "record", "kinds": (Kind.FIXED_STREAMS,)}
        found = account(system, view, participation=f"shuffle:{APART}", **kinds)
        every = account(system, view, participation="every", **kinds)
        assert found.guarantees
        for one in found.guarantees:
            mine = A[heard][:, one.victim :: net.n]
            assert one.mu <= every.of(one.victim, "fixed-streams").mu * (1 + 1e-9)
            assert one.mu**2 >= largest_over_orders(mine.T @ covariance @ mine) * (1 - 1e-6)


@pytest.mark.parametrize("rounds", [ROUNDS, ROUNDS - 1])
def test_everyone_learns_from_one_gradient_of_each_epoch(rounds):
    system = trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:5"), rounds=rounds)
    found = account(system, adjacency="record", participation=f"shuffle:{APART}").headline
    assert found.kind is Kind.ANY_TRAINING
    assert found.mu == pytest.approx(math.sqrt(EPOCHS) / 2.0, rel=1e-9)


def test_a_secret_order_never_costs_more_than_a_known_one():
    """The two mixtures of one epoch, integrated on a grid."""
    a, step = 0.8, 0.05
    grid = np.arange(-8, 8, step)
    x, y = np.meshgrid(grid, grid)

    def density(shift: float) -> np.ndarray:
        one, other = ((x - shift) ** 2 + y**2, x**2 + (y - shift) ** 2)
        return (np.exp(-one / 2) + np.exp(-other / 2)) / (4 * math.pi)

    for epsilon in (0.0, 0.5, 1.0, 2.0):
        divergence = float(np.maximum(density(a) - math.exp(epsilon) * density(-a), 0).sum() * step**2)
        assert 0 < divergence < delta_of(2 * a, epsilon) + 1e-6


def test_every_record_is_drawn_once_in_each_epoch():
    plan = parse_batches("shuffle:3", [10, 7])
    assert str(plan.participation("record")) == "shuffle:3"
    assert str(plan.participation("user")) == "every"
    for node, held in enumerate(plan.shards):
        epochs = [[plan.rows_of(node, 3 * epoch + part).tolist() for part in range(3)] for epoch in range(4)]
        for epoch in epochs:
            assert sorted(row for part in epoch for row in part) == held.tolist()
        assert len({str(epoch) for epoch in epochs}) == 4, "shuffled anew"
    assert plan.divisors.tolist() == [10 / 3, 7 / 3]


def test_local_steps_bring_epochs_closer_together():
    from sottovoce import load, model, partition, task

    digits = load("digits")
    job = task(digits, partition(digits, nodes=3, rows=24), model("softmax", digits))
    settings = {"clip": "whole-gradient", "bound": 1.0, "step_size": 0.1}
    shown = [str(job.gradients("shuffle:4", local_steps=steps, **settings).participation()) for steps in (2, 3)]
    assert shown == ["shuffle:2", "every"]


def test_an_audit_stays_below_the_figure():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4"), rounds=4)
    settings = {"adjacency": "record", "participation": "shuffle:2"}
    figure = account(system, **settings).of(1).mu
    found = audit(system, "everyone", victim=1, participation="shuffle:2", repetitions=2000, seed=0)
    assert found.mu <= figure * (1 + 1e-9)
    assert found.mu > 0.7 * figure, "two rounds of four, and no more"


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (lambda: parse_participation("shuffle:0"), "shuffle:0; it must be shuffle:B, with B rounds in an epoch"),
        (lambda: parse_batches("shuffle:9", [4]), "cycle of 9 batches on node 0 with 4 rows"),
        (lambda: parse_batches("shuffle:2", [4], SecretSource()), "shuffle:2 with secret noise"),
        (
            lambda: factorize(metropolis("ring:4"), participation="shuffle:2", rounds=4),
            "optimised only for known patterns",
        ),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(act, line):
    with pytest.raises(InputError, match=line):
        act()


# --- targets with batches that are drawn by chance --------------------------------------------------------------------

TARGET = {"rounds": 20, "epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("how", "records"),
    [
        ("poisson:0.1", None),
        pytest.param("fixed:5", [20, 20, 50, 80], marks=pytest.mark.slow),
        pytest.param("cyclic-poisson:0.5x2", None, marks=pytest.mark.slow),
    ],
)
def test_calibrate_counts_on_chance_as_the_command_does(how, records, sotto):
    plain, ring = algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4")
    found = calibrate(plain, ring, participation=how, records=records, adjacency="record", **TARGET)
    words = [] if records is None else ["--records", ",".join(map(str, records))]
    line = "calibrate --graph ring:4 --rounds 20 --epsilon 2 --adjacency record --json"
    printed = json.loads(sotto(line, "--participation", how, *words)[1])
    assert found == (tuple(printed["sigma"]) if records else printed["sigma"])


def test_calibrate_refuses_what_chance_does_not_cover():
    plain, ring = algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4")
    with pytest.raises(InputError, match=r'adjacency .user.; if all data of a node changes.* give adjacency="record"'):
        calibrate(plain, ring, participation="poisson:0.1", **TARGET)
    with pytest.raises(InputError, match="records with participation every"):
        calibrate(plain, ring, records=3, **TARGET)
    with pytest.raises(InputError, match="fixed:5 without records"):
        calibrate(plain, ring, participation="fixed:5", adjacency="record", **TARGET)


@pytest.mark.parametrize("batch", ["poisson:0.1", "shuffle:5"])
def test_simulate_meets_a_target(batch):
    from sottovoce import load, model, partition, simulate, task

    digits = load("digits")
    job = task(digits, partition(digits, nodes=4, rows=40), model("softmax", digits))
    built = algorithm("dp-d-sgd", sigma=1.0)
    run = simulate(
        built, metropolis("ring:4"), job.gradients(batch, "per-example", 1.0), rounds=10, epsilon=2.0, delta=1e-5
    )
    assert 1.99 < run.guarantees.headline.epsilon <= 2.0
    with pytest.raises(Unaccountable, match="not clipped"):
        simulate(built, metropolis("ring:4"), job.gradients(batch), rounds=2, epsilon=2.0)


def test_a_victim_that_reacts_to_its_own_past_changes_in_rounds_without_its_changed_data_too():
    """ZIP-DL's everyone view is closed at user level only: once in each epoch is not enough for it, as for K times."""
    system = trace(algorithm("zip-dl", sigma=0.01), metropolis("ring:7"), rounds=2)
    A, B = observe(system, views.everyone()).dense()
    inverse = np.linalg.pinv(B @ B.T, rcond=1e-12)
    shift = A[:, 0, 0] + A[:, 1, 0]  # data that shows in the first round, and a reaction in the second
    reached = np.sqrt(shift @ inverse @ shift)
    assert account(system, participation="every").mu >= reached * (1 - 1e-9)
    for scheme in ("shuffle:2", "1x2"):
        found = account(system, participation=scheme)
        assert found.headline.proves_nothing
        assert found.of(0, "fixed-streams").mu < reached  # which is no proof for training
