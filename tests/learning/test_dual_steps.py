"""Local steps in dual form: the numbers of plain steps, up to rounding."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce import NoiseKey, algorithm, iterate_rounds, metropolis
from sottovoce.learning import models
from sottovoce.learning.batches import parse_batches
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.dual_steps import DualSteps, Work
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.local_steps import GatheredSteps
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.support.threads import threads

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def made_up(rows, inputs, classes=4, scale=1.0):
    rng = np.random.default_rng(0)
    examples = scale * rng.standard_normal((rows, inputs)).astype(np.float32)
    targets = rng.integers(0, classes, rows)
    return Dataset(
        name="made-up", kind="classes", examples=Examples(examples), targets=targets, test_inputs=examples[:5],
        test_targets=targets[:5], shape=(inputs,), classes=tuple(map(str, range(classes))), groups=None,
        test_groups=None, entities=(), licence="", source="", notes=(),
    )  # fmt: skip


def chain(widths, *, bias=True, activation="relu"):
    parts = [
        part for ins, outs in pairwise(widths) for part in (nn.Linear(ins, outs, bias=bias), ACTIVATIONS[activation]())
    ]
    return models.wrap_module(nn.Sequential(*parts[:-1]), "cross-entropy")


def job_of(widths=(40, 6, 4), *, how="iid", nodes=5, rows=70, dtype=torch.float64, scale=1.0, **words):
    data = made_up(rows, widths[0], widths[-1], scale)
    return task(data, partition(data, nodes, how), chain(widths, **words), dtype=dtype)


@pytest.fixture
def both(monkeypatch):
    """A round's gradients in both forms: the first is the dual one, whether it pays or not."""

    def gradients(job, batch, steps=4, clip=("none", None), **words):
        settings = {"local_steps": steps, "step_size": 0.3, "noise_key": NoiseKey.of_seed(1), **words}
        found = []
        for dual in (True, False):
            with monkeypatch.context() as forced:
                forced.setattr(Work, "pays", lambda *_, dual=dual: dual)
                gradient = job.gradients(batch, *clip, **settings)
                assert isinstance(gradient._steps, DualSteps if dual else GatheredSteps)
            found.append(gradient)
        return found

    return gradients


def compare_rounds(dual, plain, x, rounds=3):
    """Each form goes on from its own point."""
    here, there = x, x
    for round in range(rounds):
        here, there = here - 0.3 * dual(round, here), there - 0.3 * plain(round, there)
        torch.testing.assert_close(here, there, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(here, x, atol=1e-2)


@pytest.mark.parametrize("how", ["iid", "dirichlet:0.5"])
@pytest.mark.parametrize(
    "batch", ["shuffle:4", "shuffle:3", "cycle:9x4", "cycle:9x6", "fixed:5", "poisson:0.4", "full"]
)
def test_every_kind_of_batch_on_equal_and_unequal_shards(batch, how, both):
    job = job_of(how=how, rows=90)
    assert (job.shards.sizes.min < job.shards.sizes.max) == (how != "iid")
    compare_rounds(*both(job, batch), job.start(torch.Generator().manual_seed(0), same=False))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(40, 4), (40, 6, 4), (30, 8, 6, 5)])
def test_layers_biases_and_activations(widths, bias, activation, both):
    job = job_of(widths, bias=bias, activation=activation)
    compare_rounds(*both(job, "shuffle:4"), job.start(torch.Generator().manual_seed(0), same=False))


def test_clipping_of_the_whole_and_weights_of_nodes(both):
    job = job_of(how="dirichlet:0.5", rows=90)
    forms = both(job, "fixed:3", clip=("whole-gradient", 0.5), weigh_nodes="size")
    compare_rounds(*forms, job.start(torch.Generator().manual_seed(0), same=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_and_threads_change_no_bit_and_processes_none_that_counts(dtype, both, monkeypatch):
    job = job_of((200, 16, 4), how="dirichlet:0.7", nodes=7, rows=300, dtype=dtype)
    x = job.start(torch.Generator().manual_seed(0), same=False)
    dual, plain = both(job, "fixed:6", steps=5)
    wanted = dual(1, x)
    precise = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(wanted, plain(1, x), **precise)
    for count, at_once in ((1, 1), (2, 1), (3, 3 * (3 * x.shape[1] + 5000))):
        monkeypatch.setattr("sottovoce.learning.tasks.CACHED", at_once)
        with threads(count):
            assert torch.equal(dual(1, x), wanted)
    monkeypatch.setattr(Work, "pays", lambda *_: True)
    for nodes in (np.array([0, 3, 4]), np.array([6])):
        hosted = dual.hosted(nodes)
        assert isinstance(hosted._steps, DualSteps)
        torch.testing.assert_close(hosted(1, x[nodes]), wanted[nodes], **precise)


def test_models_that_are_not_finite_stay_by_themselves(both):
    job = job_of()
    x = job.start(torch.Generator().manual_seed(0), same=False)
    x[2] = torch.inf
    dual, plain = (gradient(0, x) for gradient in both(job, "shuffle:4"))
    assert not dual[2].isfinite().any()
    others = [0, 1, 3, 4]
    torch.testing.assert_close(dual[others], plain[others], rtol=1e-10, atol=1e-12)


def test_products_out_of_range_are_left_alone(monkeypatch):
    monkeypatch.setattr(Work, "pays", lambda *_: True)
    job = job_of(dtype=torch.float32, scale=1e20)
    assert isinstance(job.gradients("full", local_steps=2, step_size=0.1)._steps, GatheredSteps)


def test_rows_in_two_shards_are_left_alone(monkeypatch):
    monkeypatch.setattr(Work, "pays", lambda *_: True)
    job = job_of(nodes=2)
    shared = parse_batches("full", [np.arange(10), np.arange(5, 20)])
    assert isinstance(job.gradients(shared, local_steps=2, step_size=0.1)._steps, GatheredSteps)


def test_the_form_that_takes_less_time_is_chosen():
    usual = Work(nodes=32, largest_shard=224, steps=7, batch=32, inputs=784, outputs=32)
    assert usual.pays(4)
    assert not usual._replace(steps=1).pays(4)
    assert not usual._replace(largest_shard=2240).pays(4)  # most rows of the shard are not used in a round
    assert not usual._replace(inputs=16).pays(4)  # narrow rows are gathered in no time
    assert not usual._replace(nodes=10**7).pays(4)  # more than the memory


def test_the_choice_is_the_same_in_every_process(monkeypatch):
    """It follows from the sizes of all shards, not from those of the nodes that a process hosts."""
    asked = []
    monkeypatch.setattr(Work, "pays", lambda work, size: asked.append(work) or False)
    gradient = job_of(how="dirichlet:0.5", rows=90).gradients("fixed:3", local_steps=2, step_size=0.1)
    for some in (gradient, gradient.hosted(np.array([1])), gradient.hosted(np.array([0, 4]))):
        assert isinstance(some._steps, GatheredSteps)
    assert len(set(asked)) == 1


def test_a_run_that_goes_on_is_the_same_run():
    job = job_of((200, 16, 4), dtype=torch.float32)
    net, key = metropolis("ring:5"), NoiseKey.of_seed(3)
    x = job.start(torch.Generator().manual_seed(0))

    def played(first, state=None):
        gradient = job.gradients("shuffle:4", local_steps=4, step_size=0.1, noise_key=key)
        assert isinstance(gradient._steps, DualSteps)
        built = algorithm("d-psgd", step_size=0.1)
        after = None if state is None else (first, state)
        return [*iterate_rounds(built, net, x, gradient, rounds=6, noise_key=key, after=after)]

    whole = played(0)
    rest = played(3, whole[2].loop_state)
    assert torch.equal(rest[-1].loop_state.state.x, whole[-1].loop_state.state.x)
