"""Figures and pages of results: what is drawn is what was measured."""

from __future__ import annotations

import csv
import json
import math
import random
import re
import statistics
import xml.etree.ElementTree as ET

import pytest

from sottovoce import InputError
from sottovoce.privacy.rounding import round_up
from sottovoce.report.figure_files import as_pdf, write_figures
from sottovoce.report.figures import Axis, Line, line_chart
from sottovoce.report.series import figures_over, run_figures
from sottovoce.report.sweep_report import charts, write_results
from sottovoce.report.wording import deviation_text
from sottovoce.run.execute import run_experiment
from sottovoce.run.run_documents import read_runs
from sottovoce.run.sweep import FinishedSweepRun, expand_sweep, sweep_rows
from sottovoce.support.config import About, parse_experiment
from tests.support.test_config import STUDY, finished


def points(chart: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]*)"', chart)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in found]


def test_points_lie_where_the_axes_say():
    chart = line_chart(
        [Line("a", [0, 10], [1.0, 3.0]), Line("b & c", [0, 5, 10], [3.0, 2.0, 1.0])], x="x", y="y", title="t"
    )
    ET.fromstring(chart)
    (a, b), (left, right) = points(chart), (points(chart)[0][0][0], points(chart)[0][1][0])
    assert a[0][1] > a[1][1], "larger values are higher up"
    assert b[1][0] == pytest.approx((left + right) / 2, abs=0.2)
    assert a[0] == pytest.approx((b[0][0], b[2][1]), abs=0.2)
    assert "b &amp; c" in chart


def test_what_is_no_number_is_left_out_and_large_values_stay_inside():
    chart = line_chart([Line("a", [1, 2, 3], [1.0, math.nan, 50.0])], x="x", y="y", title="t", y_range=(0.0, 4.0))
    (line,) = points(chart)
    assert len(line) == 2
    assert min(top for _, top in line) > 20


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 380, False, [0, 100, 200, 300]),
        (0.63, 0.91, False, [0.65, 0.7, 0.75, 0.8, 0.85, 0.9]),
        (1, 20, True, [1, 2, 5, 10, 20]),
        (3, 3, False, [3]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(low, high, log, ticks):
    assert Axis(low, high, 0, 100, log).ticks() == pytest.approx(ticks)


def test_a_page_has_the_table_the_figures_and_the_command(tmp_path):
    tuned = (("algorithm.step_size", 0.1),)
    runs = [
        finished("plain", 0, 0.5, tuned=tuned), finished("plain", 1, 0.7, tuned=tuned),
        finished("wild", 0, 9.0, epsilon=None, diverged="gradient with nan", tuned=tuned),
    ]  # fmt: skip
    page = write_results(tmp_path, "study", About(claim="It  works."), runs, "sotto run study.toml").read_text()
    assert "**Claim.** It works." in page
    assert "sotto run study.toml" in page
    assert "| plain | 2 | 1.6000 ± 0.1414 | 0.6000 ± 0.1414 |" in page
    assert re.search(r"\| wild \| 1 \| diverged \|.*\| none \|", page)
    for figure in re.findall(r"\((over-[a-z]+\.svg)\)", page):
        ET.fromstring((tmp_path / figure).read_text())
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["run"] for row in found["runs"]] == ["plain", "wild"]


def test_a_page_says_what_its_epsilons_are_about(tmp_path):
    run = finished("a", 0, 0.5, headline={"epsilon": 1.0, "view": "everyone", "change": "zero-out"})
    page = write_results(tmp_path, "study", About(), [run], "sotto run study.toml").read_text()
    assert "at delta 1e-05, about one record made to count as nothing." in page


def test_figures_over_seeds_are_said_in_words():
    assert deviation_text(0.25, None) == "0.2500"
    assert deviation_text(None, None) == "diverged"
    assert round_up(1.00001) == "1.001"


def drawn(svg: str, *, log: bool = False) -> dict[str, list[tuple[float, float, float]]]:
    """What a reader sees of a figure: of each line of the legend its points, by the ticks, with half of their bands."""
    root = ET.fromstring(svg)
    texts = [(part.attrib, part.text or "") for part in root if part.tag.endswith("text")]
    ticks = {"middle": "x", "end": "y"}
    at: dict[str, list[tuple[float, float]]] = {"x": [], "y": []}
    for given, text in texts:
        axis = ticks.get(given.get("text-anchor", ""))
        if axis is not None and "x" in given and re.fullmatch(r"-?[\d.e+-]+", text):
            at[axis].append((float(given[axis]) - (4 if axis == "y" else 0), float(text)))

    def value(axis: str, place: float) -> float:
        (first, low), (last, high) = at[axis][0], at[axis][-1]
        share = (place - first) / (last - first)
        return low * (high / low) ** share if axis == "x" and log else low + share * (high - low)

    names = [text for given, text in texts if given.get("x") == str(780 - 250 + 14 + 32)]
    lines = points(svg)
    bands = [
        [tuple(map(float, pair.split(","))) for pair in line.split()]
        for line in re.findall(r'<polygon points="([^"]*)"', svg)
    ]
    bands = bands or lines
    assert len(names) == len(lines) == len(bands)
    assert len(set(names)) == len(names)
    return {
        name: [
            (value("x", left), value("y", top), value("y", above) - value("y", top))
            for (left, top), (_, above) in zip(line, band, strict=False)
        ]
        for name, line, band in zip(names, lines, bands, strict=True)
    }


GRID = {
    "privacy.epsilon": [1.0, 2.0, 5.0, 10.0, 100.0],
    "topology.graph": ["ring:4", "complete:4", "star:4"],
    "training.same_start": [True, False],
    "data.rows": [20, 40, 60],
}


@pytest.mark.parametrize("number", range(12))
def test_every_point_of_a_sweep_is_a_row_of_its_table_whatever_its_grid(number):
    rng = random.Random(number)
    keys = rng.sample(sorted(GRID), rng.randint(1, 4))
    grid = {key: rng.sample(GRID[key], rng.randint(1, len(GRID[key]))) for key in keys}
    numeric = [key for key in keys if key in ("privacy.epsilon", "data.rows") and len(grid[key]) > 1]
    variants = [{"name": name} for name in ("one", "other")[: rng.randint(1, 2)]]
    base = {key: value for key, value in STUDY.items() if key not in ("grid", "tune", "variants", "seeds")}
    runs = expand_sweep({**base, "variants": variants, "grid": grid, "seeds": [0, 1, 2]})

    def ended(run):
        nodes = dict.fromkeys(("mean", "min", "max", "average"), rng.uniform(0.1, 0.9))
        line = {"round": 5, "loss": nodes, "accuracy": nodes, "consensus": 0.0, "bytes": 2_000_000, "seconds": 1.0}
        return FinishedSweepRun(run, {"headline": None, "sigma": 1.0, "delta": 1e-5, "seconds": 1.0}, [line])

    rows = sweep_rows([ended(run) for run in runs])
    figures = charts(rows)
    names = {figure.stem.partition("-")[2].rstrip("-0123456789") for figure in figures}
    assert names == {"rounds", "megabytes"} | ({numeric[0].rpartition(".")[2]} if numeric else set())
    if not numeric:
        return
    axis, shown = numeric[0], {}
    for figure in figures:
        if figure.stem.startswith(f"over-{axis.rpartition('.')[2]}"):
            shown |= drawn(figure.drawn(), log=max(grid[axis]) >= 8 * min(grid[axis]))
    assert sum(map(len, shown.values())) == len(rows)
    for row in rows:
        others = [f"{key.rpartition('.')[2]} {value}" for key, value in row.values if key != axis]
        (line,) = (line for name, line in shown.items() if name.split(", ") == [row.variant, *others])
        figure = row.document()["average_model"]
        (point,) = (one for one in line if one[0] == pytest.approx(dict(row.values)[axis], rel=0.01))
        assert point[1:] == pytest.approx((figure["mean"], figure["deviation"]), abs=2e-3)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """Two graphs, two seeds, and two sizes of noise."""
    folder = tmp_path_factory.mktemp("studied")
    document = {
        "name": "study", "topology": {"graph": "ring:4"}, "data": {"name": "digits", "rows": 20},
        "training": {"rounds": 4, "bound": 1.0, "clip": "per-example", "batch": "full"},
        "algorithm": {"name": "dp-d-sgd"}, "metrics": {"every": 2, "test_rows": 200}, "privacy": {"attackers": "none"},
        "grid": {"topology.graph": ["ring:4", "complete:4"], "algorithm.sigma": [4.0, 16.0]}, "seeds": [0, 1],
    }  # fmt: skip
    for run in expand_sweep(document):
        run_experiment(parse_experiment(run.experiment.document()), folder / run.experiment.name)
    return read_runs([folder])


def test_figures_of_runs_have_the_mean_over_seeds_and_keep_graphs_apart(studied):
    figures = {figure.stem: figure.drawn() for figure in run_figures(studied)}
    expected = {}
    for run in studied:
        settings = run.experiment
        place = expected.setdefault(settings.topology.graph, {}).setdefault(run.privacy.headline.epsilon, [])
        place.append(run.final_metric("average"))
    lines = drawn(figures["trade-off"])
    assert len(lines) == 2
    for graph, by_epsilon in expected.items():
        (line,) = (line for name, line in lines.items() if graph.replace(":", "-") in name)
        wanted = [
            (epsilon, statistics.mean(values), statistics.stdev(values))
            for epsilon, values in sorted(by_epsilon.items())
        ]
        assert [len(values) for values in by_epsilon.values()] == [2, 2]
        assert [one for point in line for one in point] == pytest.approx(
            [one for point in wanted for one in point], rel=0.02, abs=2e-3
        )
    learned = drawn(figures["learning"])
    assert len(learned) == 4
    assert all(len(line) == len(studied[0].lines) for line in learned.values())


@pytest.mark.parametrize(("key", "lines"), [("algorithm.sigma", 2), ("topology.graph", None), ("seed", None)])
def test_any_setting_that_is_a_number_is_an_axis(studied, key, lines):
    if lines is None:
        with pytest.raises(InputError, match=r"algorithm\.sigma"):
            figures_over(studied, key)
        return
    quality, epsilon = (drawn(figure.drawn()) for figure in figures_over(studied, key))
    assert len(quality) == len(epsilon) == lines
    for run in studied:
        graph, sigma = run.experiment.topology.graph, run.experiment.algorithm.settings["sigma"]
        alike = [one for one in studied if one.experiment.topology.graph == graph]
        values = [one.final_metric("average") for one in alike if one.experiment.algorithm.settings["sigma"] == sigma]
        (point,) = (one for one in quality[f"graph {graph}"] if one[0] == pytest.approx(sigma, rel=0.02))
        assert point[1:] == pytest.approx((statistics.mean(values), statistics.stdev(values)), abs=2e-3)
        (point,) = (one for one in epsilon[f"graph {graph}"] if one[0] == pytest.approx(sigma, rel=0.02))
        assert point[1] == pytest.approx(run.privacy.headline.epsilon, rel=0.01)


@pytest.mark.parametrize("millimetres", [40, 85, 174])
def test_a_figure_for_paper_has_its_width_and_nothing_sticks_out(studied, millimetres):
    for figure in run_figures(studied):
        root = ET.fromstring(figure.drawn(millimetres))
        *_, width, height = map(float, root.attrib["viewBox"].split())
        assert width == pytest.approx(millimetres * 72 / 25.4, rel=1e-4)
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(width, rel=1e-4)
        assert 6 <= float(root.attrib["font-size"]) <= 10
        for part in root:
            assert float(part.attrib.get("x", 0)) <= width
            assert float(part.attrib.get("y", 0)) <= height
        file = as_pdf(figure.drawn(millimetres)).decode("latin-1")
        assert re.search(rf"/MediaBox \[0 0 {width:g} ", file)
        assert file.count(" Tj ") >= len(figure.series), "text stays text"


def test_the_numbers_beside_a_figure_are_those_that_are_drawn(studied, tmp_path):
    figures = figures_over(studied, "algorithm.sigma")
    write_figures(tmp_path, figures)
    for figure in figures:
        with (tmp_path / f"{figure.stem}.csv").open() as file:
            rows = list(csv.DictReader(file))
        shown = drawn((tmp_path / f"{figure.stem}.svg").read_text())
        for name, line in shown.items():
            own = [row for row in rows if row["line"] == name]
            assert [float(row[figure.x]) for row in own] == pytest.approx([point[0] for point in line], rel=0.02)
            assert [float(row[figure.y]) for row in own] == pytest.approx([point[1] for point in line], rel=0.01)
