"""The report of a sweep: what was asked, the table, the figures; as Markdown and SVG beside the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.privacy.rounding import round_up
from sottovoce.report.figure_files import write_figures
from sottovoce.report.figures import Figure, Line, line_chart
from sottovoce.report.rounding import deviation_text
from sottovoce.run.run_documents import LESS_IS_BETTER, final_rounds_text
from sottovoce.run.sweep import FinishedSweepRun, SweepRow, last_word, sweep_rows
from sottovoce.support.config import About, Document
from sottovoce.support.csv_text import csv_text
from sottovoce.support.files import write_text
from sottovoce.support.text import json_text

HEADINGS = ("run", "seeds", "average model", "nodes, mean", "nodes, worst", "test loss", "epsilon", "MB sent")
ENDS = ("mean", "min", "max")
CHANGES = {"replace": "replaced by another", "zero-out": "made to count as nothing"}
OVER = {"rounds": lambda line: line["round"], "megabytes sent": lambda line: line["bytes"] / 1e6}


def write_results(folder: Path, name: str, about: About, finished: Sequence[FinishedSweepRun], command: str) -> Path:
    """`results.md`, `results.json`, `results.csv` and the figures in a folder; returns the page."""
    rows = sweep_rows(finished)
    figures = charts(rows)
    write_figures(folder, figures)
    documents = [row.document() for row in rows]
    write_text(folder / "results.json", json_text({"name": name, "runs": documents}))
    write_text(folder / "results.csv", csv_text(documents))
    page = folder / "results.md"
    for_nodes = sweep_rows(finished, "mean") if any(row.tuned for row in rows) else []
    write_text(page, markdown(name, about, rows, for_nodes, figures, command))
    return page


def markdown(
    name: str,
    about: About,
    rows: Sequence[SweepRow],
    for_nodes: Sequence[SweepRow],
    figures: Sequence[Figure],
    command: str,
) -> str:
    """The page. `for_nodes` are rows tuned for the mean over nodes, where anything is tuned."""
    parts = [
        *heading(name, about, command),
        f"{final_figures_sentence(rows, 'and loss')} {_protected(rows)} "
        + ("Of the values to tune, that which is best for the average model is shown." if for_nodes else ""),
        "",
        *table(rows),
        "",
    ]
    if for_nodes and table(for_nodes) == table(rows):
        parts += ["Tuned for the mean over nodes, the same values are best.", ""]
    elif for_nodes:
        parts += ["Tuned for the mean over nodes instead:", "", *table(for_nodes), ""]
    return "\n".join([*parts, *baseline_table(rows), *embedded(figures)])


def baseline_table(rows: Sequence[SweepRow]) -> list[str]:
    """The same training without noise, and by each node alone, in the mean over seeds, where it was computed."""
    heads = ("run", "average model, without noise", "nodes, mean, without noise", "each node alone, mean", "min", "max")
    lines = []
    for row in rows:
        found = [run.baselines for run in row.runs if run.baselines is not None]
        if found:
            picked = [(one["without_noise"]["average"], one["without_noise"]["mean"], *map(one["alone"].get, ENDS))
                      for one in found]  # fmt: skip
            lines.append("| " + " | ".join([row.label, *(f"{value:.4f}" for value in np.mean(picked, axis=0))]) + " |")
    if not lines:
        return []
    return [
        "What noise costs and joining buys: the same training without noise, and by each node alone, after the last "
        "round, in the mean over seeds. It is computed from the rows, and no epsilon covers it.",
        "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines, "",
    ]  # fmt: skip


def embedded(figures: Sequence[Figure]) -> list[str]:
    """The figures of a page as Markdown, with their captions."""
    return [line for one in figures for line in (f"![{one.caption}]({one.stem}.svg)", "", f"*{one.caption}*", "")]


def heading(name: str, about: About, command: str) -> list[str]:
    """How a report begins: what was asked, and the command that answers."""
    sentences = {"The paper": about.paper, "Here": about.scaled, "Claim": about.claim, "Takes": about.takes}
    parts = [f"# {name}", ""]
    for word, text in sentences.items():
        if text:
            parts += [f"**{word}.** {' '.join(text.split())}", ""]
    return [*parts, "Made by:", "", "```", command, "```", ""]


def final_figures_sentence(rows: Sequence[SweepRow], *others: str) -> str:
    """When test figures are taken, and over how many seeds they are averaged."""
    seeds = max(len(row.runs) for row in rows)
    over = f", in the mean over {seeds} seeds, ± the deviation between seeds" if seeds > 1 else ""
    return f"{' '.join(['Test', rows[0].metric, *others])}: {_final_rounds(rows)}{over}."


def _final_rounds(rows: Sequence[SweepRow]) -> str:
    return final_rounds_text(run.run.experiment.metrics.final_rounds for row in rows for run in row.runs)


def _protected(rows: Sequence[SweepRow]) -> str:
    """What the epsilons are about; they can only be compared where that is the same."""
    runs = [run for row in rows if row.epsilon not in (None, math.inf) for run in row.runs]
    if not runs:
        return "No epsilon is proven for any of these runs."
    what = {"a node's data" if run.run.experiment.privacy.adjacency == "user" else "one record" for run in runs}
    changes = {CHANGES.get(run.result["headline"].get("change"), "") for run in runs} - {""}
    about = f", about {' or '.join(sorted(what))} {' or '.join(sorted(changes))}" if changes else ""
    return f"Epsilon is proven for whoever hears every message, at delta {runs[0].result['delta']:g}{about}."


def epsilon_text(epsilon: float | None) -> str:
    """For reading: what is not proven and what is infinite protect alike, not at all."""
    return "none" if epsilon is None or math.isinf(epsilon) else round_up(epsilon)


def table(rows: Sequence[SweepRow]) -> list[str]:
    """The rows as a Markdown table, with what was tuned."""
    tuned = [key for key, _ in next((row.tuned for row in rows if row.tuned), ())]
    heads = [*HEADINGS, *(last_word(key) for key in tuned)]
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        found = row.document()
        figures = [deviation_text(**found[key]) for key in ("average_model", "mean_node", "worst_node", "loss")]
        chosen = dict(row.tuned)
        cells = [row.label, str(len(row.runs)), *figures, epsilon_text(row.epsilon), f"{found['megabytes']:,.1f}"]
        out.append("| " + " | ".join([*cells, *(str(chosen.get(key, "")) for key in tuned)]) + " |")
    return out


def charts(rows: Sequence[SweepRow]) -> list[Figure]:
    """Figures over the first axis of the grid, over rounds, and over bytes."""
    metric, axis = rows[0].metric, grid_axis(rows)
    found = []
    if len(axis.numbers) > 1:
        caption = f"Test {metric} of the average model, {_final_rounds(rows)}, over {axis.name}"
        series = across(rows, axis.numbers, _average_model)
        wide = axis.numbers[0] > 0 and axis.numbers[-1] / axis.numbers[0] >= 8
        found.append(Figure(f"over-{axis.name}", caption, _chart(series, axis.name, metric, caption, log_x=wide)))
    for name, x_of in OVER.items():
        caption = f"Test {metric} of the average model over {name}{axis.where}"
        series = [_curve(row, x_of) for row in rows if axis.in_the_middle(row)]
        found.append(Figure(f"over-{name.partition(' ')[0]}", caption, _chart(series, name, metric, caption)))
    return found


def _curve(row: SweepRow, x_of: Callable[[Document], float]) -> Line:
    """Mean and deviation over seeds, round by round."""
    length = min(len(run.lines) for run in row.runs)
    values = np.array([[line[row.metric]["average"] for line in run.lines[:length]] for run in row.runs], dtype=float)
    x = [x_of(line) for line in row.runs[0].lines[:length]]
    return Line(row.variant or row.label, x, values.mean(axis=0).tolist(), values.std(axis=0).tolist())


@dataclass(frozen=True)
class GridAxis:
    """The first axis of a sweep's grid: the name of its setting, its values if they are numbers, and the middle one."""

    name: str
    numbers: list[float]
    middle: object

    @property
    def where(self) -> str:
        """At which value curves are drawn, for captions."""
        return f", {self.name} {self.middle}" if self.name else ""

    def in_the_middle(self, row: SweepRow) -> bool:
        """Whether curves show this row: at the middle value, or without a grid."""
        return not row.values or row.values[0][1] == self.middle


def grid_axis(rows: Sequence[SweepRow]) -> GridAxis:
    """The first axis of the grid of some rows; without a name where there is none."""
    name = next((last_word(row.values[0][0]) for row in rows if row.values), "")
    grid = sorted({row.values[0][1] for row in rows if row.values})
    numbers = all(isinstance(value, int | float) for value in grid)
    return GridAxis(name, grid if numbers else [], grid[len(grid) // 2] if grid else None)


def across(
    rows: Sequence[SweepRow], grid: list[float], figure: Callable[[SweepRow], tuple[float, float]]
) -> list[Line]:
    """For each variant a figure and its deviation over the grid; a variant without a grid is a flat line."""
    series = []
    for variant in dict.fromkeys(row.variant for row in rows):
        by_value = {row.values[0][1] if row.values else None: row for row in rows if row.variant == variant}
        at = grid if None in by_value else [value for value in grid if value in by_value]
        figures = [figure(by_value[None] if None in by_value else by_value[value]) for value in at]
        series.append(Line(variant, at, [mean for mean, _ in figures], [spread for _, spread in figures]))
    return series


def _average_model(row: SweepRow) -> tuple[float, float]:
    found = row.document()["average_model"]
    return math.nan if found["mean"] is None else found["mean"], found["deviation"] or 0.0


def _chart(series: list[Line], x: str, metric: str, title: str, *, log_x: bool = False) -> str:
    """Runs that nearly diverged must not squeeze the others: the scale of errors ends at four times the best start."""
    limits = None
    if metric in LESS_IS_BETTER:
        finite = [value for one in series for value in one.y if np.isfinite(value)]
        low = min(finite)
        limits = low, min(max(finite), 4 * low)
    return line_chart(series, x=x, y=f"test {metric}", title=title, log_x=log_x, y_range=limits)
