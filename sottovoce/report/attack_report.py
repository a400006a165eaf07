"""The report of attacks on a sweep: how well members were found, against noise, rounds, distance and utility."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sottovoce.attacks.registry import MEMBERSHIP_ATTACKS, attack_by_name
from sottovoce.attacks.run_attacks import AttackedRow
from sottovoce.report.figure_files import write_figures
from sottovoce.report.figures import Figure, Line, panels
from sottovoce.report.sweep_report import (
    GridAxis,
    across,
    embedded,
    final_figures_sentence,
    grid_axis,
    heading,
    markdown_table,
)
from sottovoce.report.wording import deviation_text
from sottovoce.support.config import About, Document
from sottovoce.support.files import write_text
from sottovoce.support.text import csv_text, json_text


def write_attacks(folder: Path, name: str, about: About, attacked: Sequence[AttackedRow], command: str) -> Path:
    """`attacks.md`, `attacks.json`, `attacks.csv` and the figures in a folder; returns the page."""
    figures = charts(attacked)
    write_figures(folder, figures)
    rows = [{**one.row.document(), "attacks": one.found} for one in attacked]
    write_text(folder / "attacks.json", json_text({"name": name, "runs": rows}))
    write_text(folder / "attacks.csv", csv_text(rows))
    page = folder / "attacks.md"
    write_text(page, markdown(name, about, attacked, figures, command))
    return page


def markdown(name: str, about: About, attacked: Sequence[AttackedRow], figures: Sequence[Figure], command: str) -> str:
    """The page of attacks on a sweep, as Markdown."""
    names = list(dict.fromkeys(attack for one in attacked for attack in one.found))
    first = next((found for one in attacked for found in one.found.values()), None)
    if first is None:
        return "\n".join([*heading(f"{name}, attacked", about, command), "All runs diverged.", ""])
    parts = [
        *heading(f"{name}, attacked", about, command),
        " ".join(attack_by_name(attack).description for attack in names)
        + " Figures are the membership inference AUC (0.5 is random guessing) and the share of members found at 1 % "
        f"false positives, with {first['confidence']:.0%} intervals over victims of all seeds: every node that was "
        "recorded attacks every victim it hears from, or any at all if it pools. "
        + final_figures_sentence([one.row for one in attacked]),
        "",
        *table(attacked, names),
        "",
    ]
    return "\n".join([*parts, *embedded(figures)])


def table(attacked: Sequence[AttackedRow], attacks: Sequence[str]) -> list[str]:
    """Rows of results with what attacks found."""
    metric, figures = attacked[0].row.metric, {"AUC": "auc", "at 1 %": "tpr_at_1_percent"}
    heads = ["run", f"{metric}, average model", f"{metric}, nodes"]
    heads += [f"{attack}: {figure}" for attack in attacks for figure in figures]
    rows = []
    for one in attacked:
        found = one.row.document()
        cells = [one.row.label, deviation_text(**found["average_model"]), deviation_text(**found["mean_node"])]
        for attack in attacks:
            measured = one.found.get(attack)
            cells += ["diverged" if measured is None else _interval(measured[key]) for key in figures.values()]
        rows.append(cells)
    return markdown_table(heads, rows)


def _interval(estimate: Document) -> str:
    return "{value:.3f} ({low:.3f} to {high:.3f})".format(**estimate)


def charts(attacked: Sequence[AttackedRow]) -> list[Figure]:
    """The AUC of the first attack over noise, utility and rounds; over distance where an attack has it by hops."""
    attacked = [one for one in attacked if one.found]
    if not attacked:
        return []
    rows, first = [one.row for one in attacked], next(iter(attacked[0].found))
    axis, metric = grid_axis(rows), f"test {rows[0].metric} of nodes"
    middle = [one for one in attacked if axis.in_the_middle(one.row)]
    found = list[Figure]()

    def draw(stem: str, over: str, series: list[Line], x: str, *, attack: str = first, log_x: bool = False) -> None:
        title, y = f"Success of the {attack} attack {over}", f"AUC of the {attack} attack"
        found.extend(panels(f"attack-{stem}", title, series, x=x, y=y, log_x=log_x))

    if axis.key:
        measured = {one.row.label: _mean_and_half(one.found[first]["auc"]) for one in attacked}
        series = across(rows, axis, lambda row: measured[row.label])
        draw(f"over-{axis.name}", f"over {axis.name}", series, axis.name, log_x=axis.is_wide)
    draw("trade-off", f"against {metric}", _over_utility(attacked, axis, first), metric)
    series = []
    for one in middle:
        points = one.found[first]["by_round"]
        series.append(Line(axis.line_of(one.row), [at["round"] for at in points], [at["auc"] for at in points]))
    if all(line.x for line in series):
        draw("over-rounds", f"over rounds{axis.where}", series, "round")
    for attack in (attack.name for attack in MEMBERSHIP_ATTACKS if attack.by_distance):
        series = []
        for one in (one for one in middle if attack in one.found):
            hops = one.found[attack]["by_distance"]
            series.append(_line(axis.line_of(one.row), [at["distance"] for at in hops], [at["auc"] for at in hops]))
        if any(len(line.x) > 1 for line in series):
            draw("over-distance", f"over hops from the victim{axis.where}", series, "hops", attack=attack)
    return found


def _over_utility(attacked: Sequence[AttackedRow], axis: GridAxis, name: str) -> list[Line]:
    """Points that differ in the axis of the grid alone are joined, in its order."""
    series = []
    for line in dict.fromkeys(axis.line_of(one.row) for one in attacked):
        own = [one for one in attacked if axis.line_of(one.row) == line]
        own.sort(key=lambda one: axis.at(one.row) or 0.0)
        utility = [float(one.row.document()["mean_node"]["mean"]) for one in own]
        series.append(_line(line, utility, [one.found[name]["auc"] for one in own]))
    return series


def _line(name: str, x: list[float], estimates: Sequence[Document]) -> Line:
    mean, half = zip(*map(_mean_and_half, estimates), strict=True) if estimates else ((), ())
    return Line(name, x, mean, half)


def _mean_and_half(estimate: Document) -> tuple[float, float]:
    return estimate["value"], (estimate["high"] - estimate["low"]) / 2
