"""Figures of finished runs, for papers and slides: learning, epsilon, trade-offs, and how well attacks did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sottovoce.report.figures import Figure, Line, line_chart
from sottovoce.report.trade_off import TradeOff, trade_off
from sottovoce.run.run_documents import RunDocuments


def run_figures(runs: Sequence[RunDocuments]) -> list[Figure]:
    """All figures that some runs give: those of which at least one has the numbers."""
    metric = runs[0].metric
    learned = [
        Line(
            _label(run, runs),
            [line["round"] for line in run.lines],
            [_number(line[metric]["average"]) for line in run.lines],
        )
        for run in runs
    ]
    spent = [
        Line(_label(run, runs), [one.round for one in ends], [one.epsilon for one in ends])
        for run in runs
        if (ends := [one for one in run.privacy.over_rounds if math.isfinite(one.epsilon)])
    ]
    found = [
        _chart("learning", f"Test {metric} of the average model over rounds", learned, "round", f"test {metric}"),
        _chart("epsilon", "Epsilon, had the run ended earlier", spent, "round", "epsilon"),
        *_trade_offs([trade_off(run) for run in runs], metric),
    ]
    return [figure for figure in found if figure is not None]


def _trade_offs(found: Sequence[TradeOff], metric: str) -> list[Figure | None]:
    """The metric over epsilon, and the success of attacks over the metric: a line for each algorithm."""
    private, attacked = list[Line](), list[Line]()
    for name in dict.fromkeys(one.run.privacy.algorithm for one in found):
        own = [one for one in found if one.run.privacy.algorithm == name and one.average_model is not None]
        proven = sorted(
            (one.headline.epsilon, one.average_model)
            for one in own
            if one.headline is not None and math.isfinite(one.headline.epsilon) and one.average_model is not None
        )
        measured = sorted(
            (one.average_model, one.attack.value, (one.attack.high - one.attack.low) / 2)
            for one in own
            if one.attack is not None and one.average_model is not None
        )
        if proven:
            private.append(Line(name, [epsilon for epsilon, _ in proven], [value for _, value in proven]))
        if measured:
            attacked.append(Line(name, *([point[part] for point in measured] for part in range(3))))
    wide = any(line.x[0] > 0 and line.x[-1] / line.x[0] >= 8 for line in private)
    learned, hidden = f"Test {metric} of the average model over epsilon", f"Strongest attack against test {metric}"
    return [
        _chart("trade-off", learned, private, "epsilon", f"test {metric}", wide),
        _chart("attacks", hidden, attacked, f"test {metric}", "attack's AUC"),
    ]


def _chart(stem: str, title: str, series: list[Line], x: str, y: str, log_x: bool = False) -> Figure | None:
    drawn = [line for line in series if any(math.isfinite(value) for value in line.y)]
    return Figure(stem, title, line_chart(drawn, x=x, y=y, title=title, log_x=log_x)) if drawn else None


def _label(run: RunDocuments, runs: Sequence[RunDocuments]) -> str:
    """The name of a run, without the folder that all of them are in."""
    shared = {one.name.rpartition("/")[0] for one in runs}
    return run.name.rpartition("/")[2] if len(shared) == 1 else run.name


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
