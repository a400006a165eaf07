"""The planner as a page of its own: the script of the report page, with the accountant behind it."""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.planning.asked_plan import planned_algorithms
from sottovoce.report.page import asset, filled_page
from sottovoce.support.text import parse_json

ASKED_AT = "plan"
"""Where the page sends its questions, beside its own address."""

SCRIPTS = ("chart.js", "frame.js", "planner.js")


def planner_page(graphs: Sequence[str]) -> str:
    """The page as text; `graphs` are offered first."""
    plans = parse_json(asset("plans.json"))
    known = dict.fromkeys([*graphs, *plans["points"]])
    data = {"runs": [], "series": [], "colours": [], "plans": plans}
    data["ask"] = {"at": ASKED_AT, "graphs": list(known), "algorithms": planned_algorithms()}
    return filled_page("planner.html", "Plan a run", data, [asset(name) for name in SCRIPTS])
