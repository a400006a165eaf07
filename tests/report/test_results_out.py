"""Results for elsewhere: figures as SVG and PDF, tables as CSV, runs for TensorBoard and MLflow."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import tomllib
from pathlib import Path

import pytest

from sottovoce import errors
from sottovoce.errors import SottovoceError
from sottovoce.report.figure_files import WIDTHS, as_pdf
from sottovoce.report.figures import Line, line_chart
from sottovoce.report.tracking import LiveTracking, Tracker
from sottovoce.run.execute import run_experiment
from sottovoce.support.config import parse_experiment

SWEEP = """
name = "small"
seeds = [0, 1]
attacks = ["threshold"]
[topology]
graph = "ring:4"
[data]
rows = 20
[training]
rounds = 4
clip = "per-example"
bound = 1.0
[metrics]
every = 2
[privacy]
attackers = "none"
[record]
attackers = [0]
every = 2
[grid]
"algorithm.sigma" = [1.0, 4.0]
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of runs of a small sweep, with its attacks."""
    from sottovoce.attacks.registry import check_attacks
    from sottovoce.attacks.run_attacks import attack_rows
    from sottovoce.report.attack_report import write_attacks
    from sottovoce.report.sweep_report import write_results
    from sottovoce.run.sweep import expand_sweep, run_experiments, sweep_rows

    out, document = tmp_path_factory.mktemp("swept"), tomllib.loads(SWEEP)
    runs = expand_sweep(document)
    finished = run_experiments(runs, out, jobs=1)
    about, rows = runs[0].experiment.about, sweep_rows(finished)
    write_results(out / "small", "small", about, finished, "sotto run small.toml")
    write_attacks(out / "small", "small", about, attack_rows(rows, check_attacks(document, runs), out), "sotto run")
    return out


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_tables_of_sweeps_and_attacks_are_written_as_csv(swept):
    results = json.loads((swept / "small" / "results.json").read_text())["runs"]
    written = rows_of((swept / "small" / "results.csv").read_text())
    assert [float(row["average_model.mean"]) for row in written] == [one["average_model"]["mean"] for one in results]
    assert [float(row["epsilon"]) for row in written] == [one["epsilon"] for one in results]
    attacked = json.loads((swept / "small" / "attacks.json").read_text())["runs"]
    found = rows_of((swept / "small" / "attacks.csv").read_text())
    assert [float(row["attacks.threshold.auc.value"]) for row in found] == [
        one["attacks"]["threshold"]["auc"]["value"] for one in attacked
    ]


def test_compare_prints_csv_in_full(swept, sotto):
    _, out, _ = sotto("", "compare", str(swept / "small"), "--json")
    document = json.loads(out)["runs"]
    code, out, err = sotto("", "compare", str(swept / "small"), "--csv")
    assert (code, [float(row["epsilon"]) for row in rows_of(out)]) == (0, [one["epsilon"] for one in document]), err
    assert "Page: " in err
    assert sotto("", "compare", str(swept / "small"), "--csv", "--json")[0] == 2


@pytest.mark.parametrize("line", ["graph ring:5", "account --graph ring:5 --rounds 3", "data"])
def test_every_table_is_printed_as_csv(line, sotto):
    """With nothing between its lines: sentences on stderr."""
    code, out, _ = sotto("", "--csv", *line.split())
    widths = {len(row) for row in csv.reader(io.StringIO(out))}
    assert (code, len(widths)) == (0, 1)


def test_figures_of_runs_are_written_in_both_formats(swept, sotto, tmp_path):
    formats = ("svg", "pdf")
    words = [word for one in formats for word in ("--format", one)]
    code, _, err = sotto("", "compare", str(swept / "small"), "--figures", str(tmp_path / "drawn"), *words)
    assert code == 0, err
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert names == {
        f"{stem}.{one}" for stem in ("learning", "epsilon", "trade-off", "attacks") for one in (*formats, "csv")
    }
    assert b"Epsilon, had the run ended earlier" in (tmp_path / "drawn" / "epsilon.pdf").read_bytes()


def test_a_pdf_has_its_objects_where_it_says():
    chart = line_chart([Line("a (b)", [1.0, 2.0], [0.5, 0.7], [0.1, 0.1])], x="round", y="accuracy", title="Ü & co")
    file = as_pdf(chart)
    start = int(re.search(rb"startxref\n(\d+)", file)[1])
    places = [int(place) for place in re.findall(rb"(\d{10}) 00000 n ", file[start:])]
    assert [file[place : place + 8] for place in places] == [b"%d 0 obj\n" % number for number in range(1, 5)]
    length, stream = int(re.search(rb"/Length (\d+)", file)[1]), file.index(b"stream\n") + 7
    assert file[stream + length :].startswith(b"\nendstream")
    assert rb"(a \(b\)) Tj" in file
    assert "(Ü & co) Tj".encode("cp1252") in file
    assert file.count(b" c\n") == 8, "two circles of four curves"
    assert (WIDTHS[" "], WIDTHS["0"], WIDTHS["W"], WIDTHS["~"]) == (278, 556, 944, 584)
    with pytest.raises(SottovoceError, match="<image> in a drawing"):
        as_pdf(chart.replace("</svg>", '<image href="x"/></svg>'))


def test_tensorboard_reads_what_was_measured(swept, sotto):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert sotto("", "compare", str(swept / "small"), "--track", "tensorboard")[0] == 0
    assert sotto("", "compare", str(swept / "small"), "--track", "tensorboard")[0] == 0
    folder = next((swept / "tensorboard" / "small").iterdir())
    stored = EventAccumulator(str(folder))
    stored.Reload()
    lines = [json.loads(line) for line in (swept / "small" / folder.name / "metrics.jsonl").read_text().splitlines()]
    found = [(one.step, one.value) for one in stored.Scalars("accuracy/average")]
    assert found == [(line["round"], pytest.approx(line["accuracy"]["average"], rel=1e-6)) for line in lines]
    assert [one.value for one in stored.Scalars("epsilon/spent")][-1] == pytest.approx(lines[-1]["epsilon"]["spent"])


def test_mlflow_reads_what_was_measured(swept, sotto):
    from mlflow.tracking import MlflowClient

    for _ in range(2):
        assert sotto("", "compare", str(swept / "small"), "--track", "mlflow")[0] == 0
    client = MlflowClient(tracking_uri=(swept / "mlruns").resolve().as_uri())
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert len(runs) == 4, "written twice, there once"
    run = next(one for one in runs if one.data.params["seed"] == "1" and one.data.params["algorithm.sigma"] == "4.0")
    lines = [
        json.loads(line)
        for line in (swept / run.data.tags["sottovoce"] / "metrics.jsonl").read_text().splitlines()
    ]  # fmt: skip
    found = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss/mean")]
    assert sorted(found) == [(line["round"], line["loss"]["mean"]) for line in lines]
    headline = json.loads((swept / run.data.tags["sottovoce"] / "privacy.json").read_text())["headline"]
    assert json.loads(run.data.tags["guarantee"])["epsilon"] == headline["epsilon"]


def test_a_run_is_written_as_its_rounds_go_and_anew_where_it_goes_on(tmp_path):
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = tomllib.loads(SWEEP) | {"noise_key": 16 * "5a"}
    experiment = parse_experiment(
        {
            **{key: settings[key] for key in settings if key not in ("seeds", "attacks", "grid")},
            "algorithm": {"sigma": 1.0},
        }
    )
    folder, seen = tmp_path / "small", []

    def read():
        stored = EventAccumulator(str(tmp_path / "tensorboard" / "small"))
        stored.Reload()
        (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
        history = client.get_metric_history(run.info.run_id, "loss/mean")
        steps = [one.step for one in stored.Scalars("loss/mean")]
        assert sorted(one.step for one in history) == steps
        return steps, run.info.status

    def go_on(stop):
        live = LiveTracking(folder, tuple(Tracker), tmp_path)

        def after(done, total):
            live.write()
            seen.append(read())
            if done == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            run_experiment(experiment, folder, progress=after, resume=True)
        live.close(finished=stop is None)

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    go_on(stop=2)
    assert read() == ([0, 2], "KILLED")
    go_on(stop=None)
    assert seen == [([0], "RUNNING")] * 2 + [([0, 2], "RUNNING")] * 2 + [([0, 2, 4], "RUNNING")]
    assert read() == ([0, 2, 4], "FINISHED")


@pytest.mark.parametrize(
    ("words", "extra"),
    [(("--track", "mlflow"), "track"), (("--track", "tensorboard"), "track")],
)  # fmt: skip
def test_a_missing_extra_is_named_before_any_work(words, extra, swept, sotto, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda package: None)
    code, out, err = sotto("", "compare", str(swept / "small"), *words)
    assert (code, out) == (2, "")
    assert f'pip install "sottovoce[{extra}]"' in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--format", "pdf"), "--format pdf without --figures"),
        (("--figures", "x", "--format", "gif"), "format 'gif'; known: svg, pdf"),
        (("--track", "wandb"), "--track wandb; known: tensorboard, mlflow"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(words, line, swept, sotto):
    code, _, err = sotto("", "compare", str(swept / "small"), *words)
    assert (code, line in err) == (2, True), err
    assert not Path("x").exists()
