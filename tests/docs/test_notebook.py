"""The notebook of the documentation: every cell runs, and results show themselves."""

from __future__ import annotations

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sottovoce import account, algorithm, graph, metropolis, trace
from sottovoce.support.text import MOST_ROWS, html_table

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def run_cells(cells: list[dict]) -> list[object]:
    """What the last line of each cell of code gives, as a notebook shows it."""
    names: dict[str, object] = {}
    shown = []
    for number, cell in enumerate(cells):
        *first, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(first, []), f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names))
        else:
            exec(compile(ast.Module([last], []), f"cell {number}", "exec"), names)
    return shown


class Cells(HTMLParser):
    """The texts of a table's cells; refuses tags that are left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_every_cell_runs_and_shows_its_result():
    document = json.loads(NOTEBOOK.read_text())
    assert document["nbformat"] == 4
    assert all(not cell.get("outputs") for cell in document["cells"]), "outputs are made, not kept"
    shown = run_cells([cell for cell in document["cells"] if cell["cell_type"] == "code"])
    assert [type(one).__name__ for one in shown] == ["Graph", "Account", "Plan", "Run", "Run"]
    for one in shown:
        assert len(repr(one)) < 200
        assert "\n" not in repr(one)
        assert Cells(one._repr_html_()).texts
    assert "epsilon" not in shown[3]._repr_html_() or "guarantees" in shown[3].__dict__
    assert re.search(r"epsilon (3\.\d+|4) at delta 1e-05, any-training", shown[4]._repr_html_())


def test_tables_say_what_objects_say():
    found = account(trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("ring:5"), rounds=4))
    assert repr(found) == "Account(dp-d-sgd on ring:5 metropolis, everyone: any-training, epsilon 4.378 at 1e-05)"
    assert {"any-training", "fixed-streams", "4.378"} <= set(Cells(found._repr_html_()).texts)
    florence = Cells(graph("florentine")._repr_html_()).texts
    assert {"15", "20"} <= set(florence)
    assert any("Medici" in text for text in florence)


def test_names_are_no_markup_and_long_tables_are_cut():
    rows = [["<b>name</b>", "n"], *([f"a & {n}", n] for n in range(MOST_ROWS + 5))]
    texts = Cells(html_table(rows, "x < y")).texts
    assert texts[:2] == ["x < y", "<b>name</b>"]
    assert texts[-1] == "and 5 more"


@pytest.mark.parametrize("bad", [[["", ""], ["a", 1]]])
def test_facts_have_no_heading(bad):
    assert "<thead>" not in html_table(bad)
