"""Public starts: whose weights a model begins from, what of it is trained, and what stands as it was stored."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sottovoce import InputError, algorithm, load, metropolis, model, partition, task
from sottovoce.learning.models import find_model
from sottovoce.learning.starts import LowRank, merged
from sottovoce.run.execute import run_experiment
from sottovoce.run.fingerprint import own_code
from sottovoce.run.protocol import parse_run
from sottovoce.run.training_run import prepare_run
from sottovoce.support.own_code import code_from

DIGITS = load("digits")
CODE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))
"""


@pytest.fixture
def place(tmp_path):
    """Weights of an mlp and of a net with batch norm, and the net's code."""
    mlp = model("mlp", DIGITS, hidden=(6,)).module
    save_file(mlp.state_dict(), tmp_path / "mlp.safetensors")
    (tmp_path / "net.py").write_text(CODE)
    with code_from(tmp_path):
        yield tmp_path


def net_with_statistics(place):
    net = nn.Sequential(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))
    net(torch.from_numpy(DIGITS.inputs[:100]))
    save_file(net.state_dict(), place / "net.safetensors")
    return net.eval()


def mlp(**settings):
    return find_model("mlp", DIGITS, hidden=(6,), **settings)


def begin(net):
    return net.start(1, torch.Generator().manual_seed(5))[0]


def test_all_begins_as_in_the_file(place):
    weights = load_file(place / "mlp.safetensors")
    found = mlp(start="mlp.safetensors")
    assert torch.equal(begin(found), found.layout.flatten(weights))
    assert not torch.equal(begin(mlp()), begin(found))


def test_a_head_is_trained_and_all_else_is_neither_sent_nor_changed(place):
    weights = load_file(place / "mlp.safetensors")
    found = mlp(start="mlp.safetensors", train=["2"])
    assert found.layout.names == ("2.weight", "2.bias")
    job = task(DIGITS, partition(DIGITS, 4), found)
    run = prepare_run(
        algorithm("dp-d-sgd", sigma=0.1), metropolis("ring:4"), job.gradients("full", "per-example", 1.0), rounds=2
    )
    *_, (_, state) = run.play(run.before())
    assert run.models(state).shape == (4, 70)
    assert torch.equal(found.module.get_parameter("0.weight"), weights["0.weight"])
    assert found.outputs(begin(found).double(), torch.zeros(2, 64, dtype=torch.float64)).dtype == torch.float64


def test_what_is_trained_may_be_missing_in_the_file_and_begins_afresh(place):
    weights = load_file(place / "mlp.safetensors")
    save_file({name: value for name, value in weights.items() if name.startswith("0")}, place / "body.safetensors")
    found = mlp(start="body.safetensors", train="2")
    assert torch.equal(begin(found), begin(mlp(start="body.safetensors", train="2")))
    with pytest.raises(InputError, match=r"2\.\w+ is not in the file"):
        mlp(start="body.safetensors", train=["0"])


def test_low_rank_begins_as_the_file_and_is_merged_into_it(place):
    weights = load_file(place / "mlp.safetensors")
    found = mlp(start="mlp.safetensors", train="lora:rank=2")
    assert found.layout.size == 2 * (64 + 6) + 2 * (6 + 10)
    rows = torch.from_numpy(DIGITS.inputs[:5])
    plain = mlp(start="mlp.safetensors")
    torch.testing.assert_close(found.outputs(begin(found), rows), plain.outputs(begin(plain), rows))
    moved = begin(found) + 0.1
    state = merged(found.module, {**found.module.state_dict(), **found.layout.views(moved)})
    assert state.keys() == weights.keys()
    torch.testing.assert_close(found.outputs(moved, rows), plain.outputs(plain.layout.flatten(state), rows))
    both = mlp(start="mlp.safetensors", train=["2", "lora:rank=3"])
    assert [type(part) for part in both.module.children()] == [LowRank, nn.ReLU, nn.Linear]


def test_batch_norms_stand_as_they_are_stored(place):
    net, rows = net_with_statistics(place), torch.from_numpy(DIGITS.inputs[:7])
    found = find_model("net.py:Net", DIGITS, start="net.safetensors")
    torch.testing.assert_close(found.outputs(begin(found), rows), net(rows))
    assert not any("1." in name for name in found.layout.names)
    job = task(DIGITS, partition(DIGITS, 4), found)
    assert job.gradients("full", "per-example", 1.0).clipping.bound == 1.0
    with pytest.raises(InputError, match="batch norm"):
        find_model("net.py:Net", DIGITS)


@pytest.mark.parametrize(
    "settings",
    [
        {"start": "nowhere.safetensors"}, {"start": 3}, {"train": ["2"]}, {"start_sha256": "ab"},
        {"start": "mlp.safetensors", "train": ["1"]}, {"start": "mlp.safetensors", "train": [1]},
        {"start": "mlp.safetensors", "start_sha256": "ab"}, {"start": "net.py"}, {"start": "wide.safetensors"},
        {"start": "odd.safetensors"}, {"start": "nan.safetensors"},
    ],
)  # fmt: skip
def test_other_starts_are_refused(place, settings):
    weights = load_file(place / "mlp.safetensors")
    save_file({**weights, "0.weight": torch.zeros(7, 64)}, place / "wide.safetensors")
    save_file({**weights, "9.weight": torch.zeros(7)}, place / "odd.safetensors")
    save_file({**weights, "2.bias": torch.full((10,), torch.nan)}, place / "nan.safetensors")
    with pytest.raises(InputError):
        mlp(**settings)


def test_a_run_names_the_fingerprint_of_its_start_and_goes_on_from_no_other(place, tmp_path):
    settings = {
        "name": "try", "topology": {"graph": "ring:4"}, "training": {"rounds": 2, "clip": "per-example", "bound": 1.0},
        "model": {"name": "mlp", "hidden": [6], "start": "mlp.safetensors", "train": ["lora:rank=2"]},
        "algorithm": {"name": "dp-d-sgd", "sigma": 1.0, "optimizer": "momentum:0.5"},
    }  # fmt: skip
    experiment = parse_run(settings)
    expected = hashlib.sha256((place / "mlp.safetensors").read_bytes()).hexdigest()
    assert own_code(experiment) == {"start": expected}
    run_experiment(experiment, tmp_path / "runs")
    (folder,) = [path.parent for path in (tmp_path / "runs").rglob("privacy.json")]
    assert expected in (folder / "privacy.json").read_text()
    other = {name: value + 1 for name, value in load_file(place / "mlp.safetensors").items()}
    save_file(other, place / "mlp.safetensors")
    with pytest.raises(InputError, match="start"):
        run_experiment(experiment, tmp_path / "runs")


def test_frozen_parts_never_enter_a_bound(place):
    """A record's gradient has the numbers of the trained part alone, whatever pixels it has."""
    found = mlp(start="mlp.safetensors", train=["2", "lora:rank=2"])
    data = load("digits")
    data.examples[:]  # all rows
    job = task(data, partition(data, 4), found)
    clipped = job.gradients("full", "per-example", 0.5)
    rows = clipped(0, begin(found).repeat(4, 1))
    assert rows.shape == (4, found.layout.size)
    assert (np.linalg.norm(rows.numpy(), axis=1) <= 0.5).all()
