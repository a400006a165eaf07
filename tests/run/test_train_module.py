"""One call for users of Opacus, and the same epsilon for one node."""

from __future__ import annotations

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from sottovoce import InputError, algorithm, metropolis, sampled_epsilon, trace, train_module, views

DRAW = torch.Generator().manual_seed(0)
ROWS = torch.randn(120, 1, 3, 3, generator=DRAW)
LABELS = (ROWS[:, 0, 0, 0] > 0).long()
HELD = [TensorDataset(ROWS[n : n + 30], LABELS[n : n + 30]) for n in range(0, 90, 30)]
TEST = TensorDataset(ROWS[90:], LABELS[90:])
SETTINGS = {
    "graph": "ring:3", "loss": "cross-entropy", "test": TEST, "rounds": 15, "learning_rate": 0.5, "max_grad_norm": 1.0,
    "sample_rate": 0.2,
}  # fmt: skip


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 2))


def epsilon_of_dp_accounting(multiplier: float, share: float, steps: int) -> float:
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(multiplier))
    return pld.PLDAccountant().compose(event, steps).get_epsilon(1e-5)


@pytest.mark.parametrize(("multiplier", "share", "steps"), [(1.1, 0.05, 200)])
def test_a_node_has_the_epsilon_of_opacus(multiplier, share, steps):
    system = trace(algorithm("dp-d-sgd", sigma=multiplier / 2), metropolis("ring:5"), rounds=steps)
    found = sampled_epsilon(system, views.everyone(), share=share, delta=1e-5, sensitivity=0.5)
    assert found == pytest.approx(epsilon_of_dp_accounting(multiplier, share, steps), rel=1e-5)


def test_a_noise_multiplier_means_what_it_means_in_opacus():
    found = train_module(net(), HELD, noise_multiplier=1.5, **SETTINGS)
    headline = found.run.guarantees.headline
    assert headline.epsilon == pytest.approx(epsilon_of_dp_accounting(1.5, 0.2, 15), rel=1e-5)
    algorithm = found.run.training_run.algorithm
    noise = algorithm.noise.sigma * algorithm.sensitivity
    assert noise == pytest.approx(1.5 * 1.0 / (0.2 * 30)), "over the clipping bound, of a sum over the expected batch"


def test_modules_are_those_that_were_trained():
    given = net()
    before = given[0].weight.clone()
    found = train_module(given, HELD, noise_multiplier=1.0, **SETTINGS | {"rounds": 2})
    assert torch.equal(given[0].weight, before), "yours is left as it was"
    wrapped = found.model
    for node in range(3):
        expected = wrapped.outputs(found.run.models[node], ROWS[:4].flatten(1))
        assert torch.allclose(found.of(node)(ROWS[:4]), expected, atol=1e-6)
    mean = wrapped.layout.views(found.run.models.mean(0))["2.weight"]
    assert torch.allclose(found.average[2].weight, mean)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"noise_multiplier": None}, "both or neither of noise_multiplier and target_epsilon"),
        ({"target_epsilon": 1.0}, "both or neither of noise_multiplier and target_epsilon"),
        ({"graph": "ring:4"}, "3 data sets; the graph has 4 nodes"),
        ({"datasets": []}, "no data sets; every node has one"),
        ({"datasets": [TensorDataset(ROWS[:30])] * 3}, "data set 0 does not return pairs"),
        ({"datasets": [type("Stream", (IterableDataset,), {"__iter__": iter})()] * 3}, "data set 0 has no length"),
        ({"loss": "hinge"}, "loss 'hinge'; known"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(changes, line):
    given = {"datasets": HELD, "noise_multiplier": 1.0, **SETTINGS, **changes}
    with pytest.raises(InputError, match=line):
        train_module(net(), given.pop("datasets"), **given)
