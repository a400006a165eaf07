"""The report of attacks on a sweep: how well members were found, against noise, rounds, distance and utility."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sottovoce.attacks.on_sweeps import AttackedRow
from sottovoce.attacks.registry import MEMBERSHIP_ATTACKS, attack_by_name
from sottovoce.report.figure_files import write_figures
from sottovoce.report.figures import Figure, Line, panels
from sottovoce.report.sweep_report import across, embedded, final_figures_sentence, grid_axis, heading
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
    metric = attacked[0].row.metric
    heads = ["run", f"{metric}, average model", f"{metric}, nodes"]
    heads += [f"{attack}: {figure}" for attack in attacks for figure in ("AUC", "at 1 %")]
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for one in attacked:
        figures = one.row.document()
        cells = [one.row.label, deviation_text(**figures["average_model"]), deviation_text(**figures["mean_node"])]
        for attack in attacks:
            for key in ("auc", "tpr_at_1_percent"):
                cells.append(_interval(one.found[attack][key]) if attack in one.found else "diverged")
        out.append("| " + " | ".join(cells) + " |")
    return out


def _interval(estimate: Document) -> str:
    return "{value:.3f} ({low:.3f} to {high:.3f})".format(**estimate)


def charts(attacked: Sequence[AttackedRow]) -> list[Figure]:
    """The AUC of the first attack over noise, utility and rounds; over distance where an attack has it by hops."""
    rows = [one for one in attacked if one.found]
    if not rows:
        return []
    name = next(iter(rows[0].found))
    found = [*_over_grid(rows, name), *_over_utility(rows, name), *_over_rounds(rows, name)]
    for attack in MEMBERSHIP_ATTACKS:
        found += _over_distance(rows, attack.name) if attack.by_distance else []
    return found


def _over_grid(attacked: Sequence[AttackedRow], name: str) -> list[Figure]:
    axis, found = grid_axis([one.row for one in attacked]), {one.row.label: one.found for one in attacked}
    if not axis.key:
        return []
    rows = [one.row for one in attacked]
    series = across(rows, axis, lambda row: _mean_and_half(found[row.label][name]["auc"]))
    title = f"Success of the {name} attack over {axis.name}"
    return _figures(f"attack-over-{axis.name}", title, series, axis.name, name, log_x=axis.is_wide)


def _over_utility(attacked: Sequence[AttackedRow], name: str) -> list[Figure]:
    """Points that differ in the axis of the grid alone are joined, in its order."""
    metric, series, axis = attacked[0].row.metric, [], grid_axis([one.row for one in attacked])
    for line in dict.fromkeys(axis.line_of(one.row) for one in attacked):
        own = [one for one in attacked if axis.line_of(one.row) == line]
        own.sort(key=lambda one: axis.at(one.row) or 0.0)
        x = [float(one.row.document()["mean_node"]["mean"]) for one in own]
        figures = [_mean_and_half(one.found[name]["auc"]) for one in own]
        series.append(Line(line, x, [value for value, _ in figures], [half for _, half in figures]))
    title = f"Success of the {name} attack against test {metric} of nodes"
    return _figures("attack-trade-off", title, series, f"test {metric} of nodes", name)


def _over_rounds(attacked: Sequence[AttackedRow], name: str) -> list[Figure]:
    axis = grid_axis([one.row for one in attacked])
    series = []
    for one in attacked:
        if axis.in_the_middle(one.row):
            points = one.found[name]["by_round"]
            series.append(Line(axis.line_of(one.row), [at["round"] for at in points], [at["auc"] for at in points]))
    if not all(line.x for line in series):
        return []
    title = f"Success of the {name} attack over rounds{axis.where}"
    return _figures("attack-over-rounds", title, series, "round", name)


def _over_distance(attacked: Sequence[AttackedRow], name: str) -> list[Figure]:
    axis = grid_axis([one.row for one in attacked])
    series = []
    for one in attacked:
        if axis.in_the_middle(one.row) and name in one.found:
            points = one.found[name]["by_distance"]
            figures = [_mean_and_half(at["auc"]) for at in points]
            hops, auc, half = (
                [at["distance"] for at in points],
                [one for one, _ in figures],
                [one for _, one in figures],
            )
            series.append(Line(axis.line_of(one.row), hops, auc, half))
    if not any(len(line.x) > 1 for line in series):
        return []
    title = f"Success of the {name} attack over hops from the victim{axis.where}"
    return _figures("attack-over-distance", title, series, "hops", name)


def _figures(stem: str, title: str, series: list[Line], x: str, attack: str, *, log_x: bool = False) -> list[Figure]:
    return panels(stem, title, series, x=x, y=f"AUC of the {attack} attack", log_x=log_x)


def _mean_and_half(estimate: Document) -> tuple[float, float]:
    return estimate["value"], (estimate["high"] - estimate["low"]) / 2
