"""Sites that protect single records: what leaves is a function of noisy sums of clipped gradients alone."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce import InputError, Unaccountable
from sottovoce.adapters.guard import Guard
from sottovoce.adapters.record_gradients import ModuleGradients
from sottovoce.ledger.lineages import Budget

HELD = {"Hill": 300, "Mercy": 280, "North": 310}


@pytest.fixture
def agreement(tmp_path):
    def write(privacy="sigma = 0.5", more="steps = 2", rounds=4, top=""):
        path = tmp_path / "agreement.toml"
        path.write_text(
            f'name = "records"\nsites = {json.dumps(list(HELD))}\nrounds = {rounds}\nbound = 0.5\n{top}\n'
            f"[privacy]\n{privacy}\n[records]\nheld = {list(HELD.values())}\nrate = 0.1\n{more}\n"
        )
        return path

    return write


def model(numbers=20_000):
    return {"w": np.zeros(numbers, np.float32), "batches": np.array(7)}


def along_first(length):
    """Every record's gradient points along the first number."""

    def gradients(model, rows):
        found = np.zeros((len(rows), len(model["w"])))
        found[:, 0] = length
        return {"w": found}

    return gradients


@pytest.mark.parametrize(("batch", "held"), [("full", 280), ("fixed:30", 30), ("poisson:0.25", 70), ("cycle:4x2", 140)])
def test_noise_is_that_of_the_account_and_sums_are_clipped(agreement, tmp_path, batch, held):
    """Two-sided: sigma times the sensitivity of one record, twice the bound over the size of an average batch."""
    with Guard(agreement(privacy="sigma = 3.0", more=f'batch = "{batch}"'), "Mercy", tmp_path / "site") as guard:
        sent = guard.stepped(0, model(), along_first(40.0))
    expected = 3.0 * 2 * 0.5 / held
    noise = -sent["w"][1:] / 0.1
    assert abs(noise.std() / expected - 1) < 5 / np.sqrt(2 * len(noise)) < 0.1
    drawn = -sent["w"][0] / 0.1 / (0.5 / held)  # so many records, each of the length of the bound
    assert abs(drawn - held) < 5 * 3 * 2 + (5 * np.sqrt(280 * 0.25 * 0.75) if "poisson" in batch else 0)
    assert sent["batches"] == 7


def test_figures_are_those_of_account(agreement, tmp_path, sotto):
    for batch, asked in (("full", "every"), ("poisson:0.25", "poisson:0.25"), ("cycle:4x2", "4x2")):
        with Guard(agreement(more=f'steps = 2\nbatch = "{batch}"'), "Hill", tmp_path / batch) as guard:
            stated = guard.report.headline
        line = "account --graph complete:3 --weights uniform --rounds 8 --sigma 0.5 --adjacency record --json"
        if "poisson" in batch:
            line += " --records 300,280,310"
        found = json.loads(sotto(f"{line} --participation {asked}")[1])
        best = found["sampled"] or found["headline"]
        assert stated.epsilon == pytest.approx(best["epsilon"], rel=1e-9), batch


def test_a_record_that_fails_counts_as_nothing_and_changes_no_other(agreement, tmp_path):
    def failing(model, rows):
        if 17 in rows:
            raise ValueError("row 17")
        seen.append(rows)
        return along_first(40.0)(model, rows)

    def infinite(model, rows):
        found = along_first(40.0)(model, rows)
        found["w"][rows == 17] = np.nan
        return found

    seen, sums = [], []
    for number, gradients in enumerate((along_first(40.0), failing, infinite)):
        with Guard(agreement(privacy="sigma = 1e-6", more=""), "Hill", tmp_path / str(number)) as guard:
            sums.append(float(guard.stepped(0, model(), gradients)["w"][0]) / -0.1 * 300 / 0.5)
    assert np.array_equal(np.concatenate(seen), np.delete(np.arange(300), 17))
    assert sums == [pytest.approx(300, abs=0.01), pytest.approx(299, abs=0.01), pytest.approx(299, abs=0.01)]


def test_a_round_is_sent_once_with_one_batch(agreement, tmp_path):
    seen = []

    def watched(model, rows):
        seen.append(rows)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return along_first(1.0)(model, rows)

    path = agreement(more='steps = 2\nbatch = "poisson:0.25"')
    with Guard(path, "Hill", tmp_path / "site") as guard, pytest.raises(KeyboardInterrupt):
        guard.stepped(0, model(), watched)
    with Guard(path, "Hill", tmp_path / "site") as guard:
        first = guard.stepped(0, model(), watched)
        again = guard.stepped(0, model(), lambda model, rows: pytest.fail("computed again"))
        assert np.array_equal(first["w"], again["w"])
        guard.stepped(1, model(), watched)
    assert np.array_equal(seen[1], seen[2])  # the batch that a crash left; its first step was recorded
    assert not np.array_equal(seen[0], seen[1])
    assert all(rows.max() < 300 and rows.min() >= 0 and len(np.unique(rows)) == len(rows) > 30 for rows in seen)


def test_a_budget_has_room_for_whole_rounds(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "whole") as guard:
        whole = guard.report.headline.epsilon
    with Guard(agreement(), "Hill", tmp_path / "poor", budget=Budget(0.8 * whole, 1e-5)) as guard:
        assert 0 < guard.rounds < 4
        fits = guard.rounds
        with pytest.raises(Unaccountable):
            guard.stepped(fits, model(), along_first(1.0))
        guard.stepped(fits - 1, model(), along_first(1.0))
        assert guard.finish(loss=0.3, accuracy=0.9).exists()
    with Guard(agreement(), "Hill", tmp_path / "poor") as guard:
        assert guard.rounds == fits


@pytest.mark.parametrize(
    ("privacy", "more", "top"),
    [
        ("sigma = 1.0", 'batch = "shuffle:3"', ""),
        ("sigma = 1.0", "steps = 9", ""),
        ("sigma = 1.0", "steps = 0", ""),
        ("sigma = 1.0", 'batch = "cycle:2x2"', ""),  # ends before the rounds do
        ("sigma = 1.0", "held = [1, 2]", ""),
        ('sigma = 1.0\nview = "coalition:any-1"', "steps = 2", 'aggregators = "in turn"'),
    ],
)
def test_steps_that_prove_less_than_they_say_are_refused(agreement, tmp_path, privacy, more, top):
    path = agreement(privacy, more, rounds=5, top=top)
    if "held" in more:
        path.write_text(path.read_text().replace(f"held = {list(HELD.values())}\n", ""))
    with pytest.raises((InputError, Unaccountable)):
        Guard(path, "Hill", tmp_path / "site")


def test_updates_and_steps_are_not_mixed_up(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "site") as guard, pytest.raises(InputError):
        guard.trained(0, model(), lambda given: given)
    plain = tmp_path / "plain.toml"
    plain.write_text(agreement().read_text().partition("[records]")[0])
    with Guard(plain, "Hill", tmp_path / "other") as guard, pytest.raises(InputError):
        guard.stepped(0, model(), along_first(1.0))


def test_single_records_among_sites_that_aggregate_in_turn(agreement, tmp_path):
    """The same amplification: a record of another site, in rounds in which a third one's noise is in the mean."""
    turns = agreement('sigma = 2.0\nview = "coalition:any-1"', "", rounds=6, top='aggregators = "in turn"')
    with Guard(turns, "Hill", tmp_path / "site") as guard:
        sent = guard.stepped(0, model(), along_first(1.0), aggregator="Hill")
        views = {str(one.view): one.headline.mu for one in guard.report.stated.views}
        with pytest.raises(Unaccountable):
            guard.stepped(1, sent, along_first(1.0))
    noise = {site: 2.0 * 1.0 / held for site, held in HELD.items()}
    hidden = 1 / (1 + (noise["North"] / noise["Mercy"]) ** 2)  # the worst pair: Mercy beside North, before Hill
    assert views["coalition:any-1"] == pytest.approx(np.sqrt((2 + 4 * hidden) / 4), rel=1e-6)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


def images(count=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def test_gradients_of_a_module_are_those_of_each_record_alone():
    module, (inputs, targets) = net(), images()
    rows = np.array([3, 0, 31])
    given = {name: part.detach().numpy() for name, part in module.named_parameters()}
    found = ModuleGradients(module, nn.functional.cross_entropy, inputs, targets)(given, rows)
    for place, row in enumerate(rows.tolist()):
        module.zero_grad()
        nn.functional.cross_entropy(module(inputs[row : row + 1]), targets[row : row + 1]).backward()
        for name, part in module.named_parameters():
            assert np.allclose(found[name][place], part.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("mixing", [nn.BatchNorm2d(4), nn.Dropout(0.5)])
def test_modules_that_mix_records_or_draw_are_refused(mixing):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), mixing, nn.Flatten(), nn.Linear(4 * 36, 10))
    with pytest.raises(InputError):
        ModuleGradients(module, nn.functional.cross_entropy, *images())
