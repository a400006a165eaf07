"""The figures of the papers: their files, the three engines behind them, and that what was found is found again."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from sottovoce import algorithm, graph, metropolis, trace
from sottovoce.papers import cells
from sottovoce.papers.averaging import errors, stopping_time
from sottovoce.papers.catalogue import Claim, NoisyGradients, Verdict, figures_of, papers
from sottovoce.papers.cells import Cell, cell, kept, lines_of
from sottovoce.papers.gradients import distance_from_normal, gradient_cells
from sottovoce.papers.making import Finding, Making, make, value_of
from sottovoce.report.figures import Line
from sottovoce.run.build import build_run
from sottovoce.run.sweep import expand_sweep
from tests.cli.test_schemas import fits

EVERY = [(paper, name) for paper in papers() for name in figures_of(paper)]
MADE = [(paper, name) for paper, name in EVERY if not figures_of(paper)[name].not_run]


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_a_figure_has_settings_of_both_sizes_or_a_reason(paper, name):
    figure = figures_of(paper)[name]
    if figure.not_run:
        assert figure.state == "not run here"
        assert not figure.runs
        return
    for full in (False, True):
        assert expand_sweep({"name": "one", **figure.settings(full=full, seeds=1)})
    assert figure.drawn is not None
    assert figure.claims
    assert figure.takes


def test_the_page_about_the_papers_lists_every_figure_and_how_it_came_out():
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
    table = re.search(r"^\| paper \| holds \|.*\n(?:\|.*\n)+", page, flags=re.MULTILINE)
    heading, _, *rows = table[0].splitlines()
    words = {
        "holds": "holds", "in part": "holds in part", "does not": "does not hold", "open": "cannot be decided",
        "not run": "not run here",
    }  # fmt: skip
    states = [words[word] for word in re.findall(r"\| ([a-z ]+) (?=\|)", heading)[1:]]
    shown = [
        ((paper.strip("` "), name), state)
        for paper, *cells in (row.strip("|").split("|") for row in rows)
        for state, cell in zip(states, cells, strict=True)
        for name in re.findall(r"`(\S+)`", cell)
    ]
    assert len(shown) == len(dict(shown))
    assert dict(shown) == {(paper, name): figures_of(paper)[name].state for paper, name in EVERY}


def test_the_list_says_what_holds(sotto):
    code, out, err = sotto("paper --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "paper")
    assert [(one["paper"], one["figure"]) for one in found["figures"]] == EVERY
    states = {(one["paper"], one["figure"]): one["state"] for one in found["figures"]}
    assert states["muffliato", "theorem-2"] == "holds"
    assert states["muffliato", "1a"] == "holds in part"


@pytest.mark.parametrize(("paper", "name"), [("muffliato", "theorem-2"), ("threat-models", "2-sums")])
def test_one_command_makes_a_figure_its_numbers_and_its_verdict(paper, name, sotto, tmp_path):
    code, out, _ = sotto(f"paper {paper} {name} --out {tmp_path} --json")
    assert code == 0
    found = json.loads(out)
    fits(found, "paper")
    (made,) = found["made"]
    claims = {claim.says: claim for claim in figures_of(paper)[name].claims}
    assert len(made["findings"]) == len(claims)
    holds = [one["verdict"] == "holds" for one in made["findings"]]
    assert holds == sorted(holds, reverse=True)
    for one in made["findings"]:
        (claim,) = (claim for says, claim in claims.items() if says in one["claim"])
        assert claim.repeats(one["interval"])
        assert one["verdict"] == claim.verdict(claim.found)
        assert one["interval"] == [*one["values"], *one["values"]]
    files = [Path(file) for file in made["files"]]
    assert {file.suffix for file in files} == {".svg", ".pdf", ".csv", ".md"}
    assert all(file.stat().st_size > 100 for file in files)


def test_data_that_is_missing_is_named_in_one_line(sotto, tmp_path, monkeypatch):
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for line in ("paper muffliato 1b", "paper mafalda 2"):
        code, out, err = sotto(line)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "sotto data" in err


def test_an_unknown_figure_is_refused(sotto):
    assert sotto("paper nothing")[0] == 2
    assert sotto("paper muffliato 77")[0] == 2
    assert sotto("paper muffliato ../paper")[0] == 2
    assert sotto("paper --full")[0] == 2


def test_errors_of_averaging_are_exact():
    """Noise of size s leaves s^2 / 2n in the end, and on the complete graph at once; values leave nothing."""
    for settings in ({}, {"chebyshev": True}):
        noisy = trace(algorithm("muffliato", sigma=2.0, **settings), metropolis("ring:8"), rounds=60)
        assert errors(noisy, np.zeros(8))[-1] == pytest.approx(4 / 16)
    at_once = trace(algorithm("muffliato", sigma=3.0), metropolis("complete:6"), rounds=1)
    assert errors(at_once, np.arange(6.0)) == [pytest.approx(9 / 12)]
    W, values = metropolis("path:4").at(0).weights.toarray(), np.array([1.0, 5.0, 2.0, 0.0])
    found = errors(trace(algorithm("muffliato", sigma=1.0), metropolis("path:4"), rounds=3), values)
    for step in (1, 2, 3):
        power = np.linalg.matrix_power(W, step)
        expected = (np.square(power @ values - 2).sum() + np.square(power).sum()) / 8
        assert found[step - 1] == pytest.approx(expected)


def test_zero_sum_noise_leaves_the_average_alone():
    """ZIP-DL: nodes differ, but the noise of all messages cancels in their mean, whose error would be s^2 / 2n."""
    system = trace(algorithm("zip-dl-averaging", sigma=1.0), metropolis("complete:6"), rounds=1)
    assert errors(system, np.zeros(6))[0] < 0.25


def test_the_stopping_time_by_hand():
    net = metropolis("complete:8")  # gap 1
    assert stopping_time(net, 1.0, 0.25) == math.ceil(math.log(8))
    assert stopping_time(net, 0.5, 1.0) == math.ceil(math.log(8 * 4))


def test_a_geometric_graph_knows_where_its_nodes_are():
    found = graph("geometric:60,r=0.25,seed=3")
    apart = np.linalg.norm(found.positions[:, None] - found.positions, axis=2)
    np.testing.assert_array_equal(found.adjacency.toarray() > 0, (apart <= 0.25) & ~np.eye(60, dtype=bool))


def test_cells_of_one_place_are_gathered():
    (line,) = lines_of([cell("a", 1, [1.0, 3.0]), cell("a", 1, [8.0]), cell("a", 0, [5.0])])
    assert (line.x, line.y, line.ends) == ([0.0, 1.0], [5.0, 4.0], [(5.0, 5.0), (1.0, 8.0)])


def test_finished_cells_are_read_and_others_computed(tmp_path, monkeypatch):
    calls = []

    def compute() -> list[Cell]:
        calls.append(1)
        return [cell("a", 0.1, [1 / 3, 2.0])]

    first = kept(tmp_path, "study/one", {"rounds": 3}, compute)
    assert kept(tmp_path, "study/one", {"rounds": 3}, compute) == first == compute()
    assert len(calls) == 2
    (file,) = tmp_path.glob("*.csv")
    for forged in (file.read_text().replace("2.0", "9.0"), file.read_text().rpartition("signature")[0], "other\n1\n"):
        file.write_text(forged)
        assert kept(tmp_path, "study/one", {"rounds": 3}, compute) == first
    del calls[2:]
    kept(tmp_path, "study/one", {"rounds": 4}, compute)
    monkeypatch.setattr(cells, "__version__", "9.9")
    kept(tmp_path, "study/one", {"rounds": 3}, compute)
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"at": "first"}, 2.0),
        ({"at": 3}, 8.0),
        ({"at": "mean"}, 5.0),
        ({"at": "most"}, 9.0),
        ({"than": "b", "at": "last"}, 2.0),
        ({"than": "b", "at": "last", "than_at": "first"}, 8.0),
        ({"at": 7}, math.nan),
        ({"line": "c"}, math.nan),
    ],
)
def test_claims_are_about_places_of_lines(where, expected):
    lines = [Line("a", [1.0, 3.0], [2.0, 8.0], spread=[1.0, 1.0]), Line("b", [1.0, 3.0], [1.0, 4.0])]
    claim = Claim(**{"says": "so", "line": "a", "between": [0, 5], "found": [2.0, 2.0]} | where)
    found = value_of(claim, lines)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
    assert (claim.verdict([found, found]) is Verdict.HOLDS) is (not math.isnan(expected) and expected <= 5)


@pytest.mark.parametrize(
    ("values", "between", "verdict"),
    [
        ([1.0], [0, 2], Verdict.OPEN),  # of one seed nothing is known
        ([1.0, 1.1, 1.2], [0.8, 1.4], Verdict.HOLDS),
        ([1.0, 1.1, 1.2], [0.9, 1.3], Verdict.OPEN),
        ([1.0, 1.1, 1.2], [1.4, 9.0], Verdict.FAILS),
        ([1.0, math.nan, 1.2], [0, 9], Verdict.FAILS),
    ],
)
def test_a_claim_is_decided_by_the_interval_over_seeds(values, between, verdict):
    claim = Claim(says="so", line="a", between=between, found=[0.0, 0.0])
    found = Finding(claim, tuple(values), exact=False)
    if len(values) > 1:
        expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        np.testing.assert_allclose(found.interval, expected, atol=1e-12)
    assert found.verdict is verdict
    assert Finding(claim, (1.0,), exact=True).interval == [1.0, 1.0]


def test_distance_from_normal_is_the_one_of_kolmogorov_and_smirnov():
    draws = np.random.default_rng(2).standard_t(3, size=(50, 4)) * [1, 2, 5, 10]
    for found, column in zip(distance_from_normal(draws), draws.T, strict=True):
        assert found == pytest.approx(stats.kstest(column, "norm", (column.mean(), column.std(ddof=1))).statistic)


def test_gradients_at_noisy_models_have_the_variance_of_a_linear_model(tmp_path):
    """Squared error of one weight: the gradient moves by x^2 times the noise, so that L is the square of that."""
    lines = ["x,y", *(f"{number % 7},{number}" for number in range(40))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    columns = {"target": "y", "columns": [{"name": "x", "range": [0, 6]}, {"name": "y", "range": [0, 40]}]}
    (run,) = expand_sweep(
        {"name": "one", "data": {"name": "table:rows.csv", "columns": columns},
         "model": {"name": "linear", "bias": False}, "topology": {"graph": "complete:2"},
         "algorithm": {"name": "d-psgd"}, "training": {"rounds": 1}, "machine": {"precision": "float64"}}
    )  # fmt: skip
    found = {
        one.line: one.total
        for one in gradient_cells(NoisyGradients(noise=0.5, draws=4000), run, tmp_path)
        if one.x == 1
    }
    trained = build_run(run.experiment, tmp_path)
    plain, moved = (trained.gradients(0, torch.full((2, 1), at, dtype=torch.float64))[0, 0] for at in (0.0, 1.0))
    assert found[", L"] == pytest.approx(float(moved - plain) ** 2, rel=0.1)
    assert found[", distance from normal"] < 0.06


def test_an_account_over_rounds_is_that_of_each_length(sotto, tmp_path):
    line = "account --graph ring:6 --algorithm dp-d-sgd --view node:0 --sigma 2"
    code, out, err = sotto(f"{line} --rounds 9,3 --figures {tmp_path / 'drawn'} --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [one["rounds"] for one in found["accounts"]] == [3, 9]
    alone = json.loads(sotto(f"{line} --rounds 9 --json")[1])
    assert found["accounts"][1]["guarantees"] == alone["guarantees"]
    assert found["accounts"][1]["headline"] == alone["headline"]
    assert sorted(Path(file).suffix for file in found["files"]) == [".pdf", ".svg"]
    svg = next(Path(file) for file in found["files"] if file.endswith(".svg")).read_text()
    assert svg.count("<polyline") == 1 + len({one["kind"] for one in alone["guarantees"]})
    assert sotto(f"{line} --rounds 9 --figures {tmp_path}")[0] == 2
    assert sotto("calibrate --graph ring:6 --rounds 3,9 --epsilon 1")[0] == 2
    assert sotto(f"{line} --rounds 3,9 --all-pairs")[0] == 2


def test_a_figure_that_is_not_run_says_why(sotto):
    skipped = next((one for one in EVERY if one not in MADE), None)
    if skipped is not None:
        code, out, err = sotto(f"paper {skipped[0]} {skipped[1]}")
        assert (code, out, err.count("\n")) == (3, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), MADE)
def test_every_figure_is_made_in_its_minute_and_repeats_what_was_found(paper, name, tmp_path, data):
    begin = time.process_time()
    made = make(paper, name, Making(out=tmp_path, data=data("facebook_ego").parent, jobs=1))
    assert time.process_time() - begin < 120  # two cores have a minute each
    for one in made.findings:
        assert one.claim.repeats(one.interval), one
        assert one.verdict is one.claim.verdict(one.claim.found)
