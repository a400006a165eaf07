"""Ghost norms: the gradients of torch.func, without them; and never a norm that is too small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from sottovoce.learning import models
from sottovoce.learning.clipping import parse_clipping
from sottovoce.learning.engines import Stack, engine_for
from sottovoce.learning.ghost_norms import Pairs, Tapped, Whole, has_known_layers
from sottovoce.support.threads import threads


@pytest.fixture(autouse=True)
def _one_thread():
    with threads():
        yield


def net(*layers, shape=(48,)):
    return models.wrap_module(nn.Sequential(*layers), "cross-entropy", shape=shape)


def frozen(*layers):
    made = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 3))
    for value in made[1].self_attn.parameters():
        value.requires_grad_(False)
    return models.wrap_module(made.eval(), "cross-entropy", shape=(48,))


NETS = {
    "cnn": lambda: models.cnn((3, 4, 4), 3, filters=(4, 8), groups=2),
    "resnet": lambda: models.gn_resnet18((3, 4, 4), 3, width=4, groups=2),
    "strides": lambda: net(
        nn.Conv2d(3, 5, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False), nn.GELU(), nn.Flatten(),
        nn.LayerNorm(60), nn.Linear(60, 3), shape=(3, 4, 4),
    ),
    "many places": lambda: net(
        nn.Unflatten(1, (16, 3)), nn.Linear(3, 4), nn.LayerNorm((16, 4)), nn.Flatten(), nn.Linear(64, 3)
    ),
    "few places": lambda: net(
        nn.Unflatten(1, (3, 16)), nn.Linear(16, 20), nn.LayerNorm(20), nn.Flatten(), nn.Linear(60, 3)
    ),
    "group norm of rows": lambda: net(nn.Linear(48, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
    "no affine": lambda: net(nn.Linear(48, 8), nn.GroupNorm(2, 8, affine=False), nn.ELU(), nn.Linear(8, 3, bias=False)),
}  # fmt: skip


def batch(made, dtype, size=7, scale=1.0):
    draw = torch.Generator().manual_seed(1)
    inputs = scale * torch.randn(3, size, 48, generator=draw, dtype=torch.float64)
    weights = torch.rand(3, size, generator=draw, dtype=torch.float64)
    weights[0, 2:] = 0
    stack = Stack(inputs.to(dtype), torch.randint(3, (3, size), generator=draw), weights.to(dtype))
    return made.start(3, draw, same=False, dtype=dtype), stack


def bias_alone():
    made = nn.Sequential(nn.Linear(48, 8), nn.ELU(), nn.Linear(8, 3)).double()
    made[0].weight.requires_grad_(False)
    return models.wrap_module(made, "cross-entropy")


@pytest.mark.parametrize("name", [*NETS, "bias alone"])
@pytest.mark.parametrize("bound", [0.1, 3.0])
def test_ghosts_are_the_gradients(name, bound):
    made = bias_alone() if name == "bias alone" else NETS[name]()
    points, stack = batch(made, torch.float64)
    engine, clip = engine_for(made), parse_clipping("per-example", bound)
    assert engine.name == "ghost"
    wanted = engine_for(made, "functional").clipped(points, stack, clip)
    found = engine.clipped(points, stack, clip)
    assert found.nonfinite == wanted.nonfinite == 0
    torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-12, atol=1e-12 * float(wanted.rows.abs().max()))


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
@pytest.mark.parametrize("name", NETS)
def test_what_ghosts_release_stays_within_the_bound(name, scale):
    """Of one example a node, in float32, for rows of any size."""
    made = NETS[name]()
    points, stack = batch(made, torch.float32, 1, scale)
    found = engine_for(made).clipped(points, stack, parse_clipping("per-example", 1e-3))
    assert found.rows.isfinite().all()
    lengths = np.linalg.norm(found.rows.numpy().astype(np.longdouble), axis=1)
    assert (lengths <= 1e-3 * stack.weights[:, 0].numpy().astype(np.longdouble)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_pairs_that_cancel_are_not_too_small(dtype):
    draw, eps = torch.Generator().manual_seed(0), torch.finfo(dtype).eps
    for small in (0.0, eps, eps**0.5, 1e-2):
        inputs = torch.randn(20, 4, 3, generator=draw, dtype=torch.float64)
        errors = torch.randn(20, 4, 5, generator=draw, dtype=torch.float64)
        inputs[:, 2:] = inputs[:, :2]
        errors[:, 2:] = -errors[:, :2] * (1 + small)
        inputs, errors = inputs.to(dtype), errors.to(dtype)
        true = np.einsum("bto,bti->boi", *(part.numpy().astype(np.longdouble) for part in (errors, inputs)))
        lengths = np.linalg.norm(true.reshape(20, -1), axis=1)
        found = Pairs(errors, inputs).lengths().norms.numpy()
        assert (found >= lengths * (1 - 1e-15)).all()
        assert (found <= lengths * (1 + 1e-6) + 1e-6 * np.linalg.norm(errors.numpy(), axis=(1, 2))).all()


@pytest.mark.parametrize("places", [16, 100])
def test_places_that_cancel_are_not_rounded_above_the_bound(places):
    """All pixels alike, and one place against all others: sums in float32 lose more there than is left."""
    made = net(
        nn.Unflatten(1, (places, 256)), nn.Linear(256, 256), nn.Flatten(), nn.Linear(places * 256, 2),
        shape=(places * 256,),
    )  # fmt: skip
    views = made.layout.views(made.start(1, torch.Generator(), same=True, dtype=torch.float32)[0].zero_())
    assert engine_for(made).name == "ghost"
    clip, worst = parse_clipping("per-example", 1.0), 0.0
    for pixel, slope in torch.rand(12, 2, generator=torch.Generator().manual_seed(0)).add(1).tolist():
        last = torch.full((places, 256), slope)
        last[-1] *= 1 - places
        weights = views | {"3.weight": torch.stack([last.flatten(), -last.flatten()])}
        stack = Stack(torch.full((1, 1, places * 256), pixel * 1e6), torch.zeros(1, 1).long(), torch.ones(1, 1))
        found = engine_for(made).clipped(made.layout.flatten(weights).unsqueeze(0), stack, clip)
        worst = max(worst, float(found.rows.double().norm()))
    assert 0.01 < worst <= 1


def test_the_smaller_of_gradients_and_pairs_is_kept():
    def kinds(name):
        made = NETS[name]()
        points, stack = batch(made, torch.float64)
        tapped = Tapped(made.module, made.layout.names)
        shaped = stack.inputs[0].view(-1, *made.shape)
        parts = tapped.gradients(made.layout.views(points[0]), shaped, lambda outputs: outputs.sum())
        return type(parts["1.weight"])

    assert (kinds("many places"), kinds("few places")) == (Whole, Pairs)


def test_words_that_occur_twice_add_up():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)).double()
    words = torch.randint(9, (5, 6))
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    found = Tapped(module, list(parameters)).gradients(parameters, words, lambda outputs: outputs.square().sum())
    each = vmap(grad(lambda own, row: functional_call(module, own, (row[None],)).square().sum()), (None, 0))
    wanted = each(parameters, words)["0.weight"].flatten(1)
    ones, none = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.bool)
    torch.testing.assert_close(found["0.weight"].summed(ones, none), wanted.sum(0))
    torch.testing.assert_close(found["0.weight"].lengths().norms, wanted.norm(dim=1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_other_layers_are_left_to_torch_func():
    for odd in (
        nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(3, 6, 3, padding_mode="circular"), nn.Conv2d(3, 6, 3, padding="same"),
        nn.PReLU(), nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(0, 1)),
    ):  # fmt: skip
        assert not has_known_layers(odd, [name for name, _ in odd.named_parameters()])
    attention = frozen(nn.Unflatten(1, (6, 8)), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    points, stack = batch(attention, torch.float32)
    clip = parse_clipping("per-example", 0.1)
    found, wanted = (engine_for(attention, name).clipped(points, stack, clip).rows for name in (None, "functional"))
    torch.testing.assert_close(found, wanted)
