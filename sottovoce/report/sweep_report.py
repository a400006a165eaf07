"""The page of a sweep: what was asked, the table, the figures; as Markdown and SVG beside the runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.config import About, Document
from sottovoce.core.files import write_text
from sottovoce.privacy.rounding import round_up
from sottovoce.report.figures import Line, lines
from sottovoce.run.sweep_results import LAST, LESS_IS_BETTER, Finished, Row
from sottovoce.run.sweep_results import rows as best_rows

HEADINGS = ("run", "seeds", "average model", "nodes, mean", "nodes, worst", "test loss", "epsilon", "MB sent")
CHANGES = {"replace": "replaced by another", "zero-out": "made to count as nothing"}
OVER = {"rounds": lambda line: line["round"], "megabytes sent": lambda line: line["bytes"] / 1e6}


def write_results(folder: Path, name: str, about: About, finished: Sequence[Finished], command: str) -> Path:
    """`results.md`, `results.json` and the figures in a folder; returns the page."""
    rows = best_rows(finished)
    figures = charts(rows)
    for stem, (_, drawn) in figures.items():
        write_text(folder / f"{stem}.svg", drawn)
    write_text(
        folder / "results.json", json.dumps({"name": name, "runs": [row.document() for row in rows]}, indent=1) + "\n"
    )
    page = folder / "results.md"
    for_nodes = best_rows(finished, "mean") if any(row.tuned for row in rows) else []
    captions = {stem: caption for stem, (caption, _) in figures.items()}
    write_text(page, markdown(name, about, rows, for_nodes, captions, command))
    return page


def markdown(
    name: str, about: About, rows: Sequence[Row], for_nodes: Sequence[Row], figures: dict[str, str], command: str
) -> str:
    """The page. `for_nodes` are rows tuned for the mean over nodes, where anything is tuned."""
    metric, seeds = rows[0].metric, max(len(row.runs) for row in rows)
    parts = [
        *heading(name, about, command),
        f"Test {metric} and loss are means over the last {LAST} rounds, then over {seeds} seeds, ± the deviation "
        f"between seeds. {_protected(rows)} "
        + ("Of the values to tune, that which is best for the average model is shown." if for_nodes else ""),
        "",
        *table(rows),
        "",
    ]
    if for_nodes and table(for_nodes) == table(rows):
        parts += ["Tuned for the mean over nodes, the same values are best.", ""]
    elif for_nodes:
        parts += ["Tuned for the mean over nodes instead:", "", *table(for_nodes), ""]
    for stem, caption in figures.items():
        parts += [f"![{caption}]({stem}.svg)", "", f"*{caption}*", ""]
    return "\n".join(parts)


def heading(name: str, about: About, command: str) -> list[str]:
    """How a page begins: what was asked, and the command that answers."""
    said = {"The paper": about.paper, "Here": about.scaled, "Claim": about.claim, "Takes": about.takes}
    parts = [f"# {name}", ""]
    for word, text in said.items():
        if text:
            parts += [f"**{word}.** {' '.join(text.split())}", ""]
    return [*parts, "Made by:", "", "```", command, "```", ""]


def _protected(rows: Sequence[Row]) -> str:
    """What the epsilons are about; they can only be compared where that is the same."""
    runs = [run for row in rows if row.epsilon not in (None, math.inf) for run in row.runs]
    if not runs:
        return "No epsilon is proven for any of these runs."
    what = {"a node's data" if run.run.experiment.privacy.adjacency == "user" else "one record" for run in runs}
    changes = {CHANGES.get(run.result["headline"].get("change"), "") for run in runs} - {""}
    about = f", about {' or '.join(sorted(what))} {' or '.join(sorted(changes))}" if changes else ""
    return f"Epsilon is proven for whoever hears every message, at delta {runs[0].result['delta']:g}{about}."


def epsilon_of(epsilon: Any) -> str:
    """For reading: what is not proven and what is infinite protect alike, not at all."""
    return "none" if epsilon is None or float(epsilon) == math.inf else round_up(float(epsilon))


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as a Markdown table, with what was tuned."""
    tuned = [key for key, _ in next((row.tuned for row in rows if row.tuned), ())]
    heads = [*HEADINGS, *(key.rpartition(".")[2] for key in tuned)]
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        found = row.document()
        figures = [shown(found[key]) for key in ("average_model", "mean_node", "worst_node", "loss")]
        chosen = dict(row.tuned)
        cells = [row.label, str(len(row.runs)), *figures, epsilon_of(row.epsilon), f"{found['megabytes']:,.1f}"]
        out.append("| " + " | ".join([*cells, *(str(chosen.get(key, "")) for key in tuned)]) + " |")
    return out


def shown(spread: Document) -> str:
    """A figure over seeds, for reading."""
    mean, deviation = spread["mean"], spread["deviation"]
    if mean is None:
        return "astray"
    return f"{mean:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")


def charts(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """By name: a caption and a drawing. Over rounds, over bytes, and over the first axis of the grid."""
    metric, found = rows[0].metric, dict[str, tuple[str, str]]()
    word, grid, middle = middle_of(rows)
    if len(grid) > 1:
        caption = f"Test {metric} of the average model at the end, over {word}"
        series = across(rows, grid, _average_model)
        wide = grid[0] > 0 and grid[-1] / grid[0] >= 8
        found[f"over-{word}"] = caption, _drawn(series, word, metric, caption, log_x=wide)
    rows = [row for row in rows if not row.values or row.values[0][1] == middle]
    at = f", {word} {middle}" if word else ""
    for name, place in OVER.items():
        caption = f"Test {metric} of the average model over {name}{at}"
        series = [_curve(row, place) for row in rows]
        found[f"over-{name.partition(' ')[0]}"] = caption, _drawn(series, name, metric, caption)
    return found


def _curve(row: Row, place: Callable[[Document], float]) -> Line:
    """Mean and deviation over seeds, round by round."""
    length = min(len(run.lines) for run in row.runs)
    values = np.array([[line[row.metric]["average"] for line in run.lines[:length]] for run in row.runs], dtype=float)
    x = [place(line) for line in row.runs[0].lines[:length]]
    return Line(row.variant or row.label, x, values.mean(axis=0).tolist(), values.std(axis=0).tolist())


def middle_of(rows: Sequence[Row]) -> tuple[str, list[Any], Any]:
    """The first axis of the grid by its last word, its values if they are numbers, and the middle one of all."""
    word = next((row.values[0][0].rpartition(".")[2] for row in rows if row.values), "")
    grid = sorted({row.values[0][1] for row in rows if row.values})
    numbers = all(isinstance(value, int | float) for value in grid)
    return word, grid if numbers else [], grid[len(grid) // 2] if grid else None


def across(rows: Sequence[Row], grid: list[Any], figure: Callable[[Row], tuple[float, float]]) -> list[Line]:
    """For each variant a figure and its deviation over the grid; a variant without a grid is a flat line."""
    series = []
    for variant in dict.fromkeys(row.variant for row in rows):
        mine = {row.values[0][1] if row.values else None: row for row in rows if row.variant == variant}
        at = grid if None in mine else [value for value in grid if value in mine]
        figures = [figure(mine[None] if None in mine else mine[value]) for value in at]
        series.append(Line(variant, at, [mean for mean, _ in figures], [spread for _, spread in figures]))
    return series


def _average_model(row: Row) -> tuple[float, float]:
    found = row.document()["average_model"]
    return math.nan if found["mean"] is None else found["mean"], found["deviation"] or 0.0


def _drawn(series: list[Line], x: str, metric: str, title: str, *, log_x: bool = False) -> str:
    """Runs that went astray must not squeeze the others: the scale of errors ends at four times the best start."""
    limits = None
    if metric in LESS_IS_BETTER:
        finite = [value for one in series for value in one.y if np.isfinite(value)]
        low = min(finite)
        limits = low, min(max(finite), 4 * low)
    return lines(series, x=x, y=f"test {metric}", title=title, log_x=log_x, y_range=limits)
