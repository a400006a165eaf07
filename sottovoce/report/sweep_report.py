"""The report of a sweep: what was asked, the table, the figures; as Markdown and SVG beside the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import read_view
from sottovoce.report.figure_files import write_figures
from sottovoce.report.figures import Figure, Line, over_seeds, panels
from sottovoce.report.wording import adversary, deviation_text
from sottovoce.run.run_documents import LESS_IS_BETTER, final_rounds_text
from sottovoce.run.sweep import FinishedSweepRun, SweepRow, last_word, sweep_rows
from sottovoce.support.config import About, Document
from sottovoce.support.files import write_text
from sottovoce.support.text import csv_text, json_text

HEADINGS = ("run", "seeds", "average model", "nodes, mean", "nodes, worst", "test loss", "epsilon", "MB sent")
ENDS = ("mean", "min", "max")
CHANGES = {"replace": "replaced by another", "zero-out": "made to count as nothing"}
OVER = {"rounds": lambda line: line["round"], "megabytes sent": lambda line: line["bytes"] / 1e6}


def write_results(
    folder: Path,
    name: str,
    about: About,
    finished: Sequence[FinishedSweepRun],
    command: str,
    notes: Sequence[str] = (),
) -> Path:
    """`results.md`, `results.json`, `results.csv` and the figures in a folder; returns the page. `notes` end it."""
    rows = sweep_rows(finished)
    figures = charts(rows)
    write_figures(folder, figures)
    documents = [row.document() for row in rows]
    write_text(folder / "results.json", json_text({"name": name, "runs": documents}))
    write_text(folder / "results.csv", csv_text(documents))
    page = folder / "results.md"
    for_nodes = sweep_rows(finished, "mean") if any(row.tuned for row in rows) else []
    write_text(page, markdown(name, about, rows, for_nodes, figures, command) + "".join(f"\n{one}\n" for one in notes))
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
    return "\n".join([*parts, *constants(rows), *baseline_table(rows), *embedded(figures)])


def constants(rows: Sequence[SweepRow]) -> list[str]:
    """Which rows have models that say the same of every held-out record, whatever their accuracy is."""
    found = [row.label for row in rows if any((one.result.get("held_out") or {}).get("constant") for one in row.runs)]
    return [f"**Constant models**, which answer the same whatever the record: {'; '.join(found)}.", ""] if found else []


def baseline_table(rows: Sequence[SweepRow]) -> list[str]:
    """The same training without noise, and by each node alone, in the mean over seeds, where it was computed."""
    heads = ("run", "average model, without noise", "nodes, mean, without noise", "each node alone, mean", "min", "max")
    lines = []
    for row in rows:
        found = [run.baselines for run in row.runs if run.baselines is not None]
        if found:
            picked = [(one["without_noise"]["average"], one["without_noise"]["mean"], *map(one["alone"].get, ENDS))
                      for one in found]  # fmt: skip
            lines.append([row.label, *(f"{value:.4f}" for value in np.mean(picked, axis=0))])
    if not lines:
        return []
    return [
        "What noise costs and joining buys: the same training without noise, and by each node alone, after the last "
        "round, in the mean over seeds. It is computed from the rows, and no epsilon covers it.",
        "", *markdown_table(heads, lines), "",
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
    promised: dict[str, list[str]] = {}
    for row in rows:
        for promise in dict.fromkeys(_promise(run) for run in row.runs if run in runs):
            promised.setdefault(promise, []).append(row.label)
    if len(promised) == 1:
        return f"Epsilon is proven {next(iter(promised))}."
    each = (f"{promise}: {', '.join(labels)}" for promise, labels in promised.items())
    return f"Epsilons are proven for different things. {'; '.join(each)}."


def _promise(run: FinishedSweepRun) -> str:
    """Against whom, at which delta and about what an epsilon is proven."""
    headline = run.result["headline"]
    what = "a node's data" if run.run.experiment.privacy.adjacency == "user" else "one record"
    change = CHANGES.get(headline.get("change"), "")
    about = f", about {what} {change}" if change else ""
    return f"for {adversary(read_view(headline['view']))}, at delta {run.result['delta']:g}{about}"


def epsilon_text(epsilon: float | None) -> str:
    """For reading: what is not proven and what is infinite protect alike, not at all."""
    return "none" if epsilon is None or math.isinf(epsilon) else round_up(epsilon)


def table(rows: Sequence[SweepRow]) -> list[str]:
    """The rows as a Markdown table, with what was tuned."""
    tuned = [key for key, _ in next((row.tuned for row in rows if row.tuned), ())]
    heads = [*HEADINGS, *(last_word(key) for key in tuned)]
    cells = []
    for row in rows:
        found = row.document()
        figures = [deviation_text(**found[key]) for key in ("average_model", "mean_node", "worst_node", "loss")]
        chosen = dict(row.tuned)
        own = [row.label, str(len(row.runs)), *figures, epsilon_text(row.epsilon), f"{found['megabytes']:,.1f}"]
        cells.append([*own, *(str(chosen.get(key, "")) for key in tuned)])
    return markdown_table(heads, cells)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    first, *others = (f"| {' | '.join(row)} |" for row in (heads, *rows))
    return [first, "|" + "---|" * len(heads), *others]


def charts(rows: Sequence[SweepRow]) -> list[Figure]:
    """Figures over an axis of the grid, over rounds, and over bytes; what else varies in the grid tells lines apart."""
    metric, axis = rows[0].metric, grid_axis(rows)
    named, found = f"test {metric}", list[Figure]()
    if axis.key:
        caption = f"Test {metric} of the average model, {_final_rounds(rows)}, over {axis.name}"
        series = across(rows, axis, _average_model)
        found += panels(
            f"over-{axis.name}", caption, series, x=axis.name, y=named, log_x=axis.is_wide, most=_most(metric, series)
        )
    for name, x_of in OVER.items():
        caption = f"Test {metric} of the average model over {name}{axis.where}"
        series = [_curve(row, axis, x_of) for row in rows if axis.in_the_middle(row)]
        stem = f"over-{name.partition(' ')[0]}"
        found += panels(stem, caption, series, x=name, y=named, most=_most(metric, series))
    return found


def _most(metric: str, series: Sequence[Line]) -> float:
    """Runs that nearly diverged must not squeeze the others: the scale of errors ends at four times the best."""
    finite = [value for one in series for value in one.y if np.isfinite(value)]
    return 4 * min(finite, default=math.inf) if metric in LESS_IS_BETTER else math.inf


def _curve(row: SweepRow, axis: GridAxis, x_of: Callable[[Document], float]) -> Line:
    """Mean and deviation over seeds, round by round."""
    lines = [run.lines for run in row.runs]
    y, spread = over_seeds(lines, lambda line: line[row.metric]["average"])
    x, _ = over_seeds(lines, x_of)
    return Line(axis.line_of(row), x, y, spread)


@dataclass(frozen=True)
class GridAxis:
    """The setting that figures are drawn over: its dotted key, its values, and the middle one; no key without one."""

    key: str
    numbers: list[float]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return last_word(self.key)

    @property
    def middle(self) -> float | None:
        """Where curves over rounds are drawn."""
        return self.numbers[len(self.numbers) // 2] if self.key else None

    @property
    def is_wide(self) -> bool:
        """Whether its values are drawn by their logarithms."""
        return self.numbers[0] > 0 and self.numbers[-1] / self.numbers[0] >= 8

    @property
    def where(self) -> str:
        """At which value curves are drawn, for captions."""
        return f", {self.name} {self.middle}" if self.key else ""

    def at(self, row: SweepRow) -> float | None:
        """The value of a row; None where the axis is none of its grid."""
        return dict(row.values).get(self.key)

    def in_the_middle(self, row: SweepRow) -> bool:
        """Whether curves show this row: at the middle value, or without one."""
        return self.at(row) in (None, self.middle)

    def line_of(self, row: SweepRow) -> str:
        """What tells a row from those at other values: its variant, and all else that varies in its grid."""
        return replace(row, values=tuple((key, value) for key, value in row.values if key != self.key)).label


def grid_axis(rows: Sequence[SweepRow]) -> GridAxis:
    """The first setting of the grid of some rows that has several values, all of them numbers."""
    for key in dict.fromkeys(key for row in rows for key, _ in row.values):
        values = [dict(row.values)[key] for row in rows if key in dict(row.values)]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(set(values)) > 1:
            return GridAxis(key, sorted(set(values)))
    return GridAxis("", [])


def across(rows: Sequence[SweepRow], axis: GridAxis, figure: Callable[[SweepRow], tuple[float, float]]) -> list[Line]:
    """A figure and its deviation over the axis, a line for all that differs else; flat where a row has no value."""
    series = []
    for name in dict.fromkeys(map(axis.line_of, rows)):
        own = sorted((row for row in rows if axis.line_of(row) == name), key=lambda row: axis.at(row) or 0.0)
        flat = axis.at(own[0]) is None
        figures = [figure(row) for row in own] * (len(axis.numbers) if flat else 1)
        at = axis.numbers if flat else [value for row in own if (value := axis.at(row)) is not None]
        series.append(Line(name, at, [mean for mean, _ in figures], [spread for _, spread in figures]))
    return series


def _average_model(row: SweepRow) -> tuple[float, float]:
    found = row.document()["average_model"]
    return math.nan if found["mean"] is None else found["mean"], found["deviation"] or 0.0
