"""Times to an event as hazards in periods: a record is a person, and figures are those of their definitions."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn import functional

from sottovoce import InputError
from sottovoce.learning import models
from sottovoce.learning.columns import parse_columns
from sottovoce.learning.losses import LOSSES
from sottovoce.learning.partitioning import partition
from sottovoce.learning.survival import concordance, periods_of, score_times, without_event
from sottovoce.learning.tables import from_table
from sottovoce.learning.tasks import task
from sottovoce.privacy.convexity import smoothness

ENDS = (90.0, 180.0, 365.0, 730.0)
COLUMNS = {
    "target": "days", "event": "died",
    "columns": [
        {"name": "age", "range": [20, 90]}, {"name": "stage", "categories": ["I", "II", "III"]},
        {"name": "days", "periods": list(ENDS)}, {"name": "died", "categories": ["no", "yes"]},
    ],
}  # fmt: skip


def patients(rows: int, seed=0, effect=1.0):
    """Times of exponential distributions, cut off by others: age, stage, time, whether it happened, and the rate."""
    rng = np.random.default_rng(seed)
    age, stage = rng.uniform(30, 90, rows), rng.integers(0, 3, rows)
    rate = np.exp(effect * ((age - 60) / 25 + 0.7 * (stage - 1))) / 900
    time, left = rng.exponential(1 / rate), rng.uniform(50, 1500, rows)
    return age, stage, np.minimum(time, left), time <= left, rate


def table_of(rows: int):
    age, stage, time, died, _ = patients(rows)
    return {"age": age, "stage": np.array(["I", "II", "III"])[stage], "days": time, "died": np.where(died, "yes", "no")}


def by_periods(outputs, time, died):
    """The loss of one record: a logistic loss for each period that it went through, in a loop."""
    total, begin = 0.0, -1.0
    for end, logit in zip(ENDS, outputs, strict=True):
        happened = died and begin < time <= end
        if not happened and time < end:
            break
        total = total + functional.binary_cross_entropy_with_logits(logit, torch.tensor(float(happened)).to(logit))
        begin = end
        if happened:
            break
    return total


TIMES = [(0.0, True), (0.0, False), (10.0, True), (10.0, False), (90.0, True), (90.0, False), (91.0, True),
         (365.0, False), (730.0, True), (730.0, False), (900.0, True), (900.0, False)]  # fmt: skip


@pytest.mark.parametrize(("time", "died"), TIMES)
def test_the_loss_of_a_record_is_the_sum_over_its_periods(time, died):
    outputs = torch.tensor([0.3, -1.2, 0.7, 2.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor(periods_of(np.array([time]), np.array([died]), ENDS), dtype=torch.float64)
    found, wanted = LOSSES["hazards"].each(outputs[None], target)[0], by_periods(outputs, time, died)
    assert found.item() == pytest.approx(torch.as_tensor(wanted).item(), abs=1e-12)
    slope = torch.autograd.grad(found, outputs)[0]
    torch.testing.assert_close(LOSSES["hazards"].errors(outputs[None], target)[0], slope)
    assert float(slope.norm()) <= LOSSES["hazards"].error_of(4)


@pytest.mark.parametrize("engine", ["stacked", "functional"])
@pytest.mark.parametrize("name", ["hazards", "mlp"])
def test_a_record_with_all_its_periods_is_clipped_once(name, engine):
    """By autograd through the periods of each record: what is clipped is their sum."""
    raw, data = patients(40), from_table(table_of(40), COLUMNS)
    job = task(data, partition(data, 2), models.model(name, data), engine=engine, dtype=torch.float64)
    points, bound = 5 * job.start(torch.Generator().manual_seed(0), same=False), 0.3
    known = {round(float(age), 4): at for at, age in enumerate((raw[0] - 20) / 70)}
    wanted = []
    for node, rows in enumerate(job.shards.indices):
        each = []
        for example in job.inputs[rows.copy()]:
            at = min(known, key=lambda age: abs(age - float(example[0])))
            point = points[node].clone().requires_grad_()
            loss = by_periods(job.model.outputs(point, example[None])[0], raw[2][known[at]], raw[3][known[at]])
            found = torch.autograd.grad(loss, point)[0] if isinstance(loss, torch.Tensor) else torch.zeros_like(point)
            each.append(found * min(1.0, bound / max(float(found.norm()), 1e-300)))
        wanted.append(torch.stack(each).mean(0))
    gradients = job.gradients("full", "per-example", bound)
    torch.testing.assert_close(gradients(0, points), torch.stack(wanted), rtol=1e-5, atol=1e-8)
    assert gradients.sensitivity() == pytest.approx(2 * bound / min(map(len, job.shards.indices)))


def test_bounds_and_curvature_follow_from_the_number_of_periods():
    data = from_table(table_of(40), COLUMNS).max_norm(1.0)
    job = task(data, partition(data, 2), models.model("hazards", data), dtype=torch.float64)
    assert job.convex_model == "hazards"
    assert job.largest_gradient() == pytest.approx(2 * 2**0.5)
    row, target = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([8.0], dtype=torch.float64)

    def loss(point):
        return LOSSES["hazards"].each(row @ point.view(2, 4), target)[0]

    curved = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, torch.zeros(8, dtype=torch.float64)))[-1]
    assert float(curved) == pytest.approx(smoothness("hazards", 5.0), rel=1e-6)


def test_concordance_by_counting_pairs():
    _, _, time, died, rate = patients(60)
    risk = np.round(rate * 1e3, 1)  # ties among them
    targets = periods_of(time, died, ENDS)
    through, event = targets // 2, targets % 2 == 1
    right = pairs = 0.0
    for one in range(60):
        for other in range(60):
            later = through[other] > through[one] or (through[other] == through[one] and not event[other])
            if event[one] and later:
                pairs += 1
                right += 1.0 if risk[one] > risk[other] else 0.5 if risk[one] == risk[other] else 0.0
    assert concordance(risk, through, event)[0] == pytest.approx(right / pairs)
    assert concordance(risk, through, np.zeros(60, dtype=bool)) == (None, None)
    assert concordance(risk, through, event & (np.cumsum(event) <= 4))[1] is None, "four events are too few"


@pytest.mark.parametrize(("rows", "effect"), [(60, 0.0), (60, 1.0), (400, 1.0), (400, 2.0)])
def test_intervals_of_concordance_cover_as_often_as_they_say(rows, effect):
    def drawn(count, seed):
        _, _, time, died, rate = patients(count, seed, effect)
        targets, noise = periods_of(time, died, ENDS), np.random.default_rng(seed).normal(0, 1e-9, count)
        return rate + noise, targets // 2, targets % 2 == 1

    parts = [concordance(*drawn(4000, 10_000 + seed))[0] for seed in range(8)]
    true, inside, times = float(np.mean(parts)), 0, 300
    for seed in range(times):
        low, high = concordance(*drawn(rows, seed))[1]
        inside += low <= true <= high
    assert 0.92 <= inside / times <= 0.98, inside / times


def test_what_was_found_is_what_scipy_finds():
    _, _, time, died, _ = patients(300)
    targets = periods_of(time, died, ENDS)
    outputs = np.random.default_rng(0).normal(-1, 1, (300, 4))
    scores = score_times(outputs, targets.astype(float), ENDS)
    through, event = targets // 2, targets % 2 == 1
    curve = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(through + 0.5 * ~event, ~event)).sf
    with pytest.warns(RuntimeWarning, match="undefined at some"):
        band = curve.confidence_interval(method="log-log")
    for number, one in enumerate(scores["calibration"], 1):
        assert one["found"] == pytest.approx(1 - curve.evaluate(number + 0.25))
        ends = [1 - side.evaluate(number + 0.25) for side in (band.high, band.low)]
        assert one["interval"] == pytest.approx(ends, rel=1e-4)
        assert one["predicted"] == pytest.approx(1 - without_event(outputs)[:, number - 1].mean())
        assert one["rows"] == (through >= number).sum()


@pytest.mark.parametrize(
    ("change", "told"),
    [({"event": None}, "periods"), ({"event": "stage"}, "two categories"), ({"target": "age"}, "periods")],
)
def test_times_need_periods_and_an_event(change, told):
    with pytest.raises(InputError, match=told):
        parse_columns({key: value for key, value in {**COLUMNS, **change}.items() if value}, "here")


@pytest.mark.parametrize("periods", [[], [90, 90], [0, 90], [365, 90]])
def test_periods_end_later_and_later(periods):
    columns = [*COLUMNS["columns"][:2], {"name": "days", "periods": periods}, COLUMNS["columns"][3]]
    with pytest.raises(InputError, match="periods"):
        parse_columns({**COLUMNS, "columns": columns}, "here")


@pytest.mark.parametrize("cell", ["-1", "soon", ""])
def test_a_time_is_a_number_from_zero_on(cell):
    table = table_of(10)
    table["days"] = np.array([cell, *map(str, table["days"][1:])])
    with pytest.raises(InputError, match="row 1, column 'days'"):
        from_table(table, COLUMNS)


@pytest.mark.parametrize("named", ["cox", "Cox", "partial-likelihood"])
def test_a_partial_likelihood_is_refused_by_name(named):
    with pytest.raises(InputError, match="partial likelihood"):
        models.find_model(named, from_table(table_of(10), COLUMNS))
    with pytest.raises(InputError, match="partial likelihood"):
        models.wrap_module(torch.nn.Linear(2, 1), named.lower())


def test_a_study_of_times_from_the_table_to_predictions(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "patients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([table_of(400).keys(), *zip(*table_of(400).values(), strict=True)])
    run = {
        "name": "study", "noise_key": 16 * "5a", "topology": {"graph": "complete:4"}, "model": {"name": "hazards"},
        "data": {"name": "table:patients.csv", "columns": COLUMNS},
        "training": {"rounds": 40, "clip": "per-example", "bound": 1.0},
        "algorithm": {"name": "dp-d-sgd", "step_size": 2.0},
        "privacy": {"epsilon": 6.0, "attackers": "none", "and_final_models": "average"},
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(run))
    code, out, err = sotto("run run.json --baselines")
    assert (code, err) == (0, "")
    scores = json.loads((tmp_path / "runs/study/result.json").read_text())["held_out"]
    low, high = scores["intervals"]["concordance"]
    assert 0.5 < low < high
    assert f"{scores['concordance']:.3f} ({low:.3f} to {high:.3f})" in out
    assert f"{scores['concordance']:.3f} (" in (tmp_path / "runs/study/report.html").read_text()
    assert sotto("audit runs/study --data .")[0] == 0
    assert sotto("export runs/study --data .")[0] == 0
    code, out, err = sotto("predict runs/study/export --data patients.csv --json")
    assert code == 0, err
    said = json.loads(out)["predictions"]
    assert all(list(row[1:]) == sorted(row[1:], reverse=True) for row in said), "fewer and fewer without event"
    assert {row[0] for row in said} <= {f"until {end:g}" for end in ENDS} | {"after 730"}
