"""Figures and pages of results: what is drawn is what was measured."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from sottovoce.privacy.rounding import round_up
from sottovoce.report.figures import Axis, Line, line_chart
from sottovoce.report.rounding import deviation_text
from sottovoce.report.sweep_report import write_results
from sottovoce.support.config import About
from tests.support.test_config import finished


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
    run = finished("a", 0, 0.5, headline={"epsilon": 1.0, "change": "zero-out"})
    page = write_results(tmp_path, "study", About(), [run], "sotto run study.toml").read_text()
    assert "at delta 1e-05, about one record made to count as nothing." in page


def test_figures_over_seeds_are_said_in_words():
    assert deviation_text(0.25, None) == "0.2500"
    assert deviation_text(None, None) == "diverged"
    assert round_up(1.00001) == "1.001"
