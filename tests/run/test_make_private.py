"""From a training script with Opacus: the same epsilon for one node, and what becomes of optimisers and loaders."""

from __future__ import annotations

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from sottovoce import InputError, algorithm, make_private, metropolis, sampled_epsilon, trace, views
from sottovoce.core.local_rules import PLAIN, parse_rule

DRAW = torch.Generator().manual_seed(0)
ROWS = torch.randn(120, 1, 3, 3, generator=DRAW)
LABELS = (ROWS[:, 0, 0, 0] > 0).long()
HELD = [TensorDataset(ROWS[n : n + 30], LABELS[n : n + 30]) for n in range(0, 90, 30)]
TEST = TensorDataset(ROWS[90:], LABELS[90:])
SETTINGS = {"graph": "ring:3", "loss": "cross-entropy", "test": TEST, "rounds": 15, "max_grad_norm": 1.0}


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 2))


def loaders(size=6, **how):
    return [DataLoader(held, batch_size=size, **(how or {"shuffle": True})) for held in HELD]


def private(module=None, optimizer=SGD, drawn=None, lr=0.5, options=None, **changes):
    module = net() if module is None else module
    settings = {"noise_multiplier": 1.5, **SETTINGS, **changes}
    given = optimizer(module.parameters(), lr=lr, **(options or {}))
    return make_private(module, given, loaders() if drawn is None else drawn, **settings)


def epsilon_of_dp_accounting(multiplier: float, share: float, steps: int) -> float:
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(multiplier))
    return pld.PLDAccountant().compose(event, steps).get_epsilon(1e-5)


@pytest.mark.parametrize(("multiplier", "share", "steps"), [(1.1, 0.05, 200)])
def test_a_node_has_the_epsilon_of_opacus(multiplier, share, steps):
    system = trace(algorithm("dp-d-sgd", sigma=multiplier / 2), metropolis("ring:5"), rounds=steps)
    found = sampled_epsilon(system, views.everyone(), share=share, delta=1e-5, sensitivity=0.5)
    assert found == pytest.approx(epsilon_of_dp_accounting(multiplier, share, steps), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_a_noise_multiplier_means_what_it_means_in_opacus(options):
    found = private(options=options)
    assert found.guarantees.headline.epsilon == pytest.approx(epsilon_of_dp_accounting(1.5, 0.2, 15), rel=1e-5)
    built = found.training_run.algorithm
    noise = built.noise.sigma * built.sensitivity
    assert noise == pytest.approx(1.5 * 1.0 / (0.2 * 30)), "over the clipping bound, of a sum over the expected batch"


def test_a_loop_of_ones_own_sees_every_model_and_may_end_early():
    given = net()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    found = private(given)
    assert all(torch.equal(found.of(1).state_dict()[name], value) for name, value in before.items())
    losses = []
    for played in found:
        losses.append(found.measure().loss.average)
        if played == 4:
            break
    assert (found.state.rounds, len(losses)) == (4, 4)
    assert all(torch.equal(given.state_dict()[name], value) for name, value in before.items()), "yours is left alone"
    assert found.guarantees.headline.epsilon == pytest.approx(epsilon_of_dp_accounting(1.5, 0.2, 15), rel=1e-5)
    assert list(found) == list(range(5, 16)), "it goes on where it stopped"
    for node in range(3):
        expected = found.model.outputs(found.models[node], ROWS[:4].flatten(1))
        assert torch.allclose(found.of(node)(ROWS[:4]), expected, atol=1e-6)
    mean = found.model.layout.views(found.models.mean(0))["2.weight"]
    assert torch.allclose(found.average[2].weight, mean)


@pytest.mark.parametrize(
    ("optimizer", "options", "rule"),
    [
        (SGD, {}, PLAIN),
        (SGD, {"momentum": 0.9}, parse_rule("momentum:0.9")),
        (SGD, {"weight_decay": 0.1}, parse_rule(weight_decay=0.1)),
        (Adam, {}, parse_rule("adam")),
        (AdamW, {"betas": (0.8, 0.99), "weight_decay": 0.0}, parse_rule("adam:0.8,0.99")),
        (AdamW, {}, parse_rule("adam", weight_decay=0.01)),
    ],
)
def test_optimisers_are_rules(optimizer, options, rule):
    found = private(optimizer=optimizer, options=options, lr=0.25)
    assert (found.training_run.algorithm.rule, found.training_run.algorithm.step_size) == (rule, 0.25)


def test_a_target_and_a_schedule():
    found = private(noise_multiplier=None, epsilon=2.0, schedule="cosine")
    assert 1.9 < found.guarantees.headline.epsilon <= 2.0
    assert found.training_run.algorithm.rule.factor(14) < 0.1


def test_full_batches_are_full():
    assert private(drawn=loaders(30, shuffle=False)).training_run.gradients.batches.full


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def of_samplers(make):
    return [DataLoader(held, batch_size=6, sampler=make(held)) for held in HELD]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"noise_multiplier": None}, "both or neither of noise_multiplier and epsilon"),
        ({"epsilon": 1.0}, "both or neither of noise_multiplier and epsilon"),
        ({"graph": "ring:4"}, "3 loaders; the graph has 4 nodes"),
        ({"drawn": []}, "loaders draw none"),
        ({"drawn": HELD}, "loader 0 is no DataLoader"),
        ({"drawn": [DataLoader(TensorDataset(ROWS[:30]), batch_size=6, shuffle=True)] * 3}, "does not return pairs"),
        ({"drawn": [DataLoader(Stream(), batch_size=6)] * 3}, "loader 0 is no DataLoader, or its data set has no"),
        ({"drawn": loaders(6, shuffle=False)}, "loader 0 draws by SequentialSampler, 6 rows"),
        ({"drawn": of_samplers(lambda held: WeightedRandomSampler([1.0] * 30, 30))}, "by WeightedRandomSampler"),
        ({"drawn": of_samplers(lambda held: RandomSampler(held, replacement=True))}, "by RandomSampler"),
        ({"drawn": [*loaders()[:2], DataLoader(HELD[2], batch_size=3, shuffle=True)]}, "loaders draw poisson:0.1"),
        ({"loss": "hinge"}, "loss 'hinge'; known"),
        ({"loss": nn.CrossEntropyLoss()}, r"loss CrossEntropyLoss\(\); known: .*cross-entropy"),
        ({"optimizer": RMSprop}, "optimizer RMSprop"),
        ({"options": {"momentum": 0.9, "nesterov": True}}, "optimizer SGD"),
        ({"options": {"momentum": 0.9, "weight_decay": 0.1}}, "optimizer SGD"),
        ({"optimizer": Adam, "options": {"weight_decay": 0.1}}, "optimizer Adam"),
        ({"optimizer": AdamW, "options": {"amsgrad": True}}, "optimizer AdamW"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(changes, line):
    with pytest.raises(InputError, match=line):
        private(**changes)


def test_an_optimiser_of_some_parameters_is_refused():
    module = net()
    with pytest.raises(InputError, match="optimizer SGD"):
        make_private(module, SGD(module[0].parameters(), lr=0.1), loaders(), noise_multiplier=1.0, **SETTINGS)
