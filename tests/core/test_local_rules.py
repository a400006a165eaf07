"""What nodes make of noisy gradients: the rules themselves, what they are given, and the figures that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce import InputError, Unaccountable, account, algorithm, iterate_rounds, metropolis, train, weigh
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.local_rules import PLAIN, parse_rule
from sottovoce.core.messages import RoundWatch
from sottovoce.errors import Uncertified
from sottovoce.privacy.guarantee import Kind
from sottovoce.run.training_run import prepare_run
from sottovoce.tracing.policy import trace_possible
from sottovoce.tracing.tracer import trace, trace_all_maps

ALONE = metropolis("complete:1")
RING = metropolis("ring:5")
TARGET = np.array([[3.0, -2.0, 0.5]])
RULES = {
    "momentum": {"optimizer": "momentum:0.9"},
    "decay": {"weight_decay": 0.05},
    "schedule": {"schedule": "warmup:2,cosine"},
    "average": {"average": 0.6},
    "factors": {"step_factors": [1, 2, 0.5, 1, 1]},
    "all": {"optimizer": "momentum:0.5", "weight_decay": 0.1, "schedule": "step:0.5x2", "average": 0.5},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "average": 0.5, "schedule": "linear"},
}
every_rule = pytest.mark.parametrize("settings", RULES.values(), ids=RULES)


def pull(round, x):
    return x - TARGET


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"optimizer": "momentum:0.9"}, lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.9)),
        ({"weight_decay": 0.3}, lambda x: torch.optim.SGD([x], lr=0.1, weight_decay=0.3)),
        ({"optimizer": "adam"}, lambda x: torch.optim.Adam([x], lr=0.1)),
        ({"optimizer": "adam:0.5,0.9"}, lambda x: torch.optim.Adam([x], lr=0.1, betas=(0.5, 0.9))),
        ({"optimizer": "adamw"}, lambda x: torch.optim.AdamW([x], lr=0.1)),
        ({"optimizer": "adam", "weight_decay": 0.2}, lambda x: torch.optim.AdamW([x], lr=0.1, weight_decay=0.2)),
    ],
)
def test_a_node_by_itself_steps_as_torch_does(settings, theirs):
    x = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimiser = theirs(x)
    for _ in range(20):
        optimiser.zero_grad()
        ((x - torch.from_numpy(TARGET)) ** 2 / 2).sum().backward()
        optimiser.step()
    ours = train(algorithm("d-psgd", step_size=0.1, **settings), ALONE, np.zeros((1, 3)), pull, rounds=20)
    np.testing.assert_allclose(ours, x.detach().numpy(), rtol=0, atol=1e-9)


def test_schedules_factors_and_averages_are_as_written():
    assert parse_rule() == PLAIN == parse_rule(rounds=9)
    assert [parse_rule(schedule="linear", rounds=4).factor(t) for t in range(4)] == [1, 0.75, 0.5, 0.25]
    cosine = parse_rule(schedule="warmup:2,cosine", rounds=6)
    expected = [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    np.testing.assert_allclose([cosine.factor(t) for t in range(6)], expected)
    ones = lambda round, x: np.ones_like(x)  # noqa: E731
    uneven = algorithm("d-psgd", step_size=1.0, step_factors=[1, 2, 3])
    far = train(uneven, weigh("complete:3", "uniform"), np.zeros((3, 1)), ones, rounds=1)
    np.testing.assert_allclose(far, -2 * np.ones((3, 1)))
    middle = train(algorithm("d-psgd", step_size=1.0, average=0.5), ALONE, np.zeros((1, 1)), ones, rounds=3)
    np.testing.assert_allclose(middle, [[-(0.25 * 1 + 0.5 * 2 + 1 * 3) / 2 * 1]])


class Entered(RoundWatch):
    """What a release gave, and what the local step was given."""

    def __init__(self):
        self.released, self.given = [], []

    def takes(self, mixing, point, gradient, entering, noise):
        self.released.append(np.array(entering + noise))
        self.exact = isinstance(noise, float) and noise == 0 and entering is not gradient

    def steps(self, direction):
        self.given.append(np.array(direction))


def test_adam_gets_gradients_with_their_noise_alone():
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, optimizer="adam"), RING)
    watch, released = Entered(), []
    for round, _ in enumerate(iterate_rounds(built, RING, np.zeros((5, 3)), pull, rounds=5, watch=watch)):
        released.append(watch.released[-1])
        m = sum(0.1 * 0.9 ** (round - t) * one for t, one in enumerate(released)) / (1 - 0.9 ** (round + 1))
        s = sum(0.001 * 0.999 ** (round - t) * one**2 for t, one in enumerate(released)) / (1 - 0.999 ** (round + 1))
        assert watch.exact
        np.testing.assert_allclose(watch.given[-1], m / (np.sqrt(s) + 1e-8), rtol=1e-9)


def test_figures_of_adam_are_those_of_all_noisy_gradients():
    plain, adam = (algorithm("dp-d-sgd", sigma=2.0, optimizer=name) for name in ("sgd", "adam"))
    system = trace_possible(adam, RING, rounds=8)
    assert account(system, "node:0").mu == account(trace(plain, RING, rounds=8)).mu == pytest.approx(8**0.5 / 2)
    assert Kind.FIXED_STREAMS not in {one.kind for one in account(system, "node:0").guarantees}
    with pytest.raises(Unaccountable, match="not linear"):
        trace(with_exact_noise(adam, RING), RING, rounds=2)


@pytest.mark.parametrize("name", ["zip-dl", "mafalda", "anti-pgd"])
def test_adam_is_refused_where_its_gradients_lack_noise_or_exactness(name):
    built = algorithm(name, sigma=1.0, optimizer="adam", rounds=4)
    with pytest.raises(InputError, match="optimizer adam"):
        next(iterate_rounds(built, RING, np.zeros((5, 2)), lambda t, x: x, rounds=4))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "momentum"}, {"optimizer": "momentum:1"}, {"optimizer": "sgd:0.9"}, {"optimizer": "adam:0.9"},
        {"optimizer": "momentum:-0.1"}, {"schedule": "cosine"}, {"schedule": "step:0.5", "rounds": 3},
        {"average": 1.0}, {"weight_decay": -1.0}, {"step_factors": [1, 0]}, {"average": math.nan},
    ],
)  # fmt: skip
def test_other_rules_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        algorithm("dp-d-sgd", sigma=1.0, **settings)


def test_factors_are_for_as_many_nodes_as_there_are():
    with pytest.raises(InputError, match="step_factors for 2 nodes"):
        trace(algorithm("dp-d-sgd", sigma=1.0, step_factors=[1, 2]), RING, rounds=2)


@pytest.mark.parametrize("schedule", ["step:0.1x1", "warmup:6,constant", "cosine", "step:0.5x2"])
@pytest.mark.parametrize("view", ["node:3", "coalition:3,4"])
def test_convex_figures_are_not_below_the_exact_loss_of_steps_that_change(schedule, view):
    """Steps of different lengths were added up as if they were alike: 0.557 was printed where 0.797 is reached."""
    system = trace(algorithm("dp-d-sgd", sigma=1.5, schedule=schedule, rounds=6), metropolis("path:5"), rounds=6)
    found = account(system, view, convex=True)
    for victim in range(3):
        assert found.of(victim, "convex-training").mu >= found.of(victim, "fixed-streams").mu * (1 - 1e-9)


def test_convex_figures_of_alike_steps_do_not_depend_on_the_schedule_and_momentum_has_none():
    net = metropolis("path:4")
    figures = {}
    for schedule in ("constant", "step:0.25x100"):
        system = trace(algorithm("dp-d-sgd", sigma=1.5, schedule=schedule, rounds=5), net, rounds=5)
        figures[schedule] = account(system, "node:3", convex=True).of(0, "convex-training").mu
    assert figures["constant"] == figures["step:0.25x100"]
    for settings in ({"optimizer": "momentum:0.5"}, {"weight_decay": 0.1}, {"average": 0.5}):
        system = trace(algorithm("dp-d-sgd", sigma=1.5, **settings), net, rounds=5)
        found = account(system, "node:3", convex=True).guarantees
        assert found
        assert Kind.CONVEX_TRAINING not in {one.kind for one in found}


@every_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_runs_with_rules_keep_to_what_was_traced(settings, dtype, digits_on_five):
    run = prepare_run(algorithm("dp-d-sgd", sigma=1.0, rounds=4, **settings), RING, digits_on_five(dtype), rounds=4)
    *_, (played, state) = run.play(run.before())
    assert state.rounds == 4
    models = run.models(state)
    assert models.dtype == dtype
    assert torch.equal(models, played.models)
    if "average" in settings:
        assert not torch.equal(models, run.algorithm.point(state.loop_state.state))


@pytest.mark.parametrize("settings", [RULES["momentum"], RULES["adamw"], RULES["all"]])
def test_a_sum_that_all_see_tells_no_more_whatever_the_rule_is(settings, digits_on_five):
    net = weigh("complete:5", "uniform")
    ruled, plain = (algorithm("secure-average", sigma=1.0, rounds=4, **some) for some in (settings, {}))
    systems = [trace_possible(one, net, rounds=4) for one in (ruled, plain)]
    figures = [account(system, view).mu for system in systems for view in ("everyone", "node:1")]
    assert figures[:2] == figures[2:]
    run = prepare_run(ruled, net, digits_on_five(torch.float32), rounds=4)
    *_, (played, _) = run.play(run.before())
    assert torch.allclose(played.models, played.models[:1], atol=1e-5)
    single = replace(ruled, rule=PLAIN)
    gradient = lambda round, x: x - np.arange(5.0)[:, None]  # noqa: E731
    silent = [replace(one, noise=algorithm("d-psgd").noise) for one in (ruled, single)]
    ends = [train(one, net, np.zeros((5, 1)), gradient, rounds=4) for one in silent]
    assert not np.allclose(*ends)


def test_a_rule_that_changes_while_a_run_goes_on_is_stopped(digits_on_five):
    built = algorithm("dp-d-sgd", sigma=1.0, optimizer="momentum:0.5")
    run = prepare_run(built, RING, digits_on_five(torch.float64), rounds=4)
    state = run.before()
    other = replace(run, algorithm=replace(run.algorithm, rule=parse_rule("momentum:0.6")))
    other.__dict__["maps"] = trace_all_maps(run.algorithm, RING, rounds=4)
    with pytest.raises(Uncertified, match="settings"):
        next(other.play(state))


@pytest.fixture(scope="module")
def digits_on_five():
    from sottovoce.learning.datasets import load
    from sottovoce.learning.models import model
    from sottovoce.learning.partitioning import partition
    from sottovoce.learning.tasks import task

    digits = load("digits")
    shards = partition(digits, nodes=5)

    def gradients(dtype):
        return task(digits, shards, model("softmax", digits), dtype=dtype).gradients("full", "per-example", 1.0)

    return gradients
