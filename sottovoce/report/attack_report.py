"""The page of attacks on a sweep: how well members were found, against noise, rounds, distance and utility."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sottovoce.attacks.on_sweeps import Attacked
from sottovoce.config import About, Document
from sottovoce.core.files import write_text
from sottovoce.report.figures import Line, lines
from sottovoce.report.sweep_report import across, heading, middle_of, shown

WHAT = {
    "threshold": "The **threshold** attack takes rows with a low loss on a victim's last model for members.",
    "classifier": "The **classifier** learns from the losses of 26 models and from 70 % of the candidates, whose "
    "membership it is told.",
    "likelihood": "The **likelihood** attack compares with shadow runs.",
    "pooled": "The **pooled** attack is by threshold too, on the mean of all that a node received in a round where it "
    "does not hear the victim itself: it works at any distance.",
}


def write_attacks(folder: Path, name: str, about: About, attacked: Sequence[Attacked], command: str) -> Path:
    """`attacks.md`, `attacks.json` and the figures in a folder; returns the page."""
    drawn = charts(attacked)
    for stem, (_, chart) in drawn.items():
        write_text(folder / f"{stem}.svg", chart)
    rows = [{**one.row.document(), "attacks": one.found} for one in attacked]
    write_text(folder / "attacks.json", json.dumps({"name": name, "runs": rows}, indent=1) + "\n")
    page = folder / "attacks.md"
    write_text(page, markdown(name, about, attacked, {stem: caption for stem, (caption, _) in drawn.items()}, command))
    return page


def markdown(name: str, about: About, attacked: Sequence[Attacked], figures: dict[str, str], command: str) -> str:
    """The page."""
    kinds = list(dict.fromkeys(kind for one in attacked for kind in one.found))
    first = next((found for one in attacked for found in one.found.values()), None)
    if first is None:
        return "\n".join([*heading(f"{name}, attacked", about, command), "All runs went astray.", ""])
    parts = [
        *heading(f"{name}, attacked", about, command),
        " ".join(WHAT[kind] for kind in kinds)
        + " Figures are areas under the ROC curve (0.5 is guessing) and the share of members found at 1 % false alarms,"
        f" with {first['confidence']:.0%} intervals over victims of all seeds: every node that was recorded attacks "
        "every victim it hears from, or any at all if it pools.",
        "",
        *table(attacked, kinds),
        "",
    ]
    for stem, caption in figures.items():
        parts += [f"![{caption}]({stem}.svg)", "", f"*{caption}*", ""]
    return "\n".join(parts)


def table(attacked: Sequence[Attacked], kinds: Sequence[str]) -> list[str]:
    """Rows of results with what attacks found."""
    metric = attacked[0].row.metric
    heads = ["run", f"{metric}, average model", f"{metric}, nodes"]
    heads += [f"{kind}: {figure}" for kind in kinds for figure in ("area", "at 1 %")]
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row, found in attacked:
        known = row.document()
        cells = [row.label, shown(known["average_model"]), shown(known["mean_node"])]
        for kind in kinds:
            cells += [_interval(found[kind][key]) if kind in found else "astray" for key in ("auc", "tpr_at_1_percent")]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _interval(estimate: Document) -> str:
    return "{value:.3f} ({low:.3f} to {high:.3f})".format(**estimate)


def charts(attacked: Sequence[Attacked]) -> dict[str, tuple[str, str]]:
    """By name: a caption and a drawing."""
    there = [one for one in attacked if one.found]
    if not there:
        return {}
    kind = next(iter(there[0].found))
    metric, rows = there[0].row.metric, [one.row for one in there]
    found = {one.row.label: one.found for one in there}
    y, drawn = f"area of the {kind} attack", {}

    def add(stem: str, caption: str, series: list[Line], x: str, *, log_x: bool = False) -> None:
        drawn[stem] = caption, lines(series, x=x, y=y, title=caption, log_x=log_x)

    word, grid, middle = middle_of(rows)
    if len(grid) > 1:
        series = across(rows, grid, lambda row: _mean_and_half(found[row.label][kind]["auc"]))
        add(f"attack-over-{word}", f"Success of the {kind} attack over {word}", series, word, log_x=grid[0] > 0)
    add("attack-trade-off", f"Success of the {kind} attack against test {metric} of nodes", _trade_off(there, kind),
        f"test {metric} of nodes")  # fmt: skip
    at = [one for one in there if not one.row.values or one.row.values[0][1] == middle]
    said = f", {word} {middle}" if word else ""
    by_round = [Line(one.row.variant, *_unzipped(one.found[kind]["by_round"], "round")) for one in at]
    if all(line.x for line in by_round):
        add("attack-over-rounds", f"Success of the {kind} attack over rounds{said}", by_round, "round")
    far = [Line(one.row.variant, *_hops(one.found["pooled"])) for one in at if "pooled" in one.found]
    if any(len(line.x) > 1 for line in far):
        y = "area of the pooled attack"
        add("attack-over-distance", f"Success of the pooled attack over hops from the victim{said}", far, "hops")
    return drawn


def _mean_and_half(estimate: Document) -> tuple[float, float]:
    return estimate["value"], (estimate["high"] - estimate["low"]) / 2


def _trade_off(there: Sequence[Attacked], kind: str) -> list[Line]:
    """Points of a variant in the order of its grid."""
    series = []
    for variant in dict.fromkeys(one.row.variant for one in there):
        mine = [one for one in there if one.row.variant == variant]
        x = [float(one.row.document()["mean_node"]["mean"]) for one in mine]
        figures = [_mean_and_half(one.found[kind]["auc"]) for one in mine]
        series.append(Line(variant, x, [value for value, _ in figures], [half for _, half in figures]))
    return series


def _unzipped(points: Sequence[Document], key: str) -> tuple[list[float], list[float]]:
    return [one[key] for one in points], [one["auc"] for one in points]


def _hops(found: Document) -> tuple[list[float], list[float], list[float]]:
    points = [(one["distance"], *_mean_and_half(one["auc"])) for one in found["by_distance"]]
    return [one[0] for one in points], [one[1] for one in points], [one[2] for one in points]
