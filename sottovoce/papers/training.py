"""Finished training as the papers draw it: over rounds, bytes, noise, or against how well an attack did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sottovoce.papers.catalogue import Training
from sottovoce.report.figures import Line, over_seeds
from sottovoce.report.series import NOISE_KEYS
from sottovoce.run.run_documents import LESS_IS_BETTER
from sottovoce.run.sweep import FinishedSweepRun, SweepRow, last_word
from sottovoce.support.config import Document

OF_ATTACKS = {"AUC": "auc", "TPR at 1 %": "tpr_at_1_percent"}
ALONG = {"rounds": lambda line: line["round"], "megabytes": lambda line: line["bytes"] / 1e6}

Y = {
    "average": "test {}, average model",
    "nodes": "test {}, mean of nodes",
    "best of nodes": "best test {}, mean of nodes",
    "AUC": "AUC of the attack",
    "megabytes to target": "megabytes sent until the target",
}

Attacked = Mapping[str, Document]
"""What the attack found, by the label of a row."""


def training_lines(asked: Training, rows: Sequence[SweepRow], attacked: Attacked) -> list[Line]:
    """A line for each variant, with the deviation between seeds."""
    if asked.over in ALONG:
        return [_curve(asked, row) for row in rows if asked.at in (None, _noise(row)) or _noise(row) is None]
    points: dict[str, list[tuple[float | None, float, float]]] = {}
    for row in rows:
        points.setdefault(_name(asked, row), []).append((_x(asked, row, attacked), *_y(asked, row, attacked)))
    known = [x for found in points.values() for x, _, _ in found if x is not None]
    lines = []
    for name, found in points.items():
        flat = found[0][0] is None
        own = [(x, *found[0][1:]) for x in sorted({min(known), max(known)})] if flat and known else found
        across, values, spread = zip(*own, strict=True)
        lines.append(Line(name, [float(x) for x in across], values, spread))
    return lines


def axis_names(asked: Training, metric: str) -> tuple[str, str]:
    """What is drawn along the x axis, and along the y axis."""
    x = f"{asked.over} of the {asked.attack} attack" if asked.over in OF_ATTACKS else asked.over
    return x, Y[asked.y].format("loss" if asked.metric == "loss" else metric)


def _keys(asked: Training) -> tuple[str, ...]:
    """The settings that the name of a line does not say: it runs along them, or is drawn at one value."""
    along_noise = asked.at is not None or asked.over in ("noise", *OF_ATTACKS)
    return NOISE_KEYS if along_noise else (asked.over,)


def _noise(row: SweepRow) -> object:
    return next((value for key, value in row.values if last_word(key) in NOISE_KEYS), None)


def _name(asked: Training, row: SweepRow) -> str:
    others = (f"{last_word(key)} {value}" for key, value in row.values if last_word(key) not in _keys(asked))
    return ", ".join(word for word in (row.variant, *others) if word)


def _x(asked: Training, row: SweepRow, attacked: Attacked) -> float | None:
    if asked.over in OF_ATTACKS:
        return float(attacked[row.label][OF_ATTACKS[asked.over]]["value"]) if row.label in attacked else math.nan
    return next((float(value) for key, value in row.values if last_word(key) in _keys(asked)), None)


def _picked(asked: Training, row: SweepRow) -> Callable[[Document], float]:
    of = "loss" if asked.metric == "loss" else row.metric
    which = "average" if asked.y == "average" else "mean"

    def pick(line: Document) -> float:
        value = line[of][which]
        return math.nan if value is None else float(value)

    return pick


def _curve(asked: Training, row: SweepRow) -> Line:
    lines = [run.lines for run in row.runs]
    y, spread = over_seeds(lines, _picked(asked, row))
    return Line(_name(asked, row), over_seeds(lines, ALONG[asked.over])[0], y, spread)


def _y(asked: Training, row: SweepRow, attacked: Attacked) -> tuple[float, float]:
    """The mean over seeds and its deviation."""
    if asked.y == "AUC":
        found = attacked[row.label]["auc"] if row.label in attacked else {"value": math.nan, "high": 0, "low": 0}
        return float(found["value"]), (found["high"] - found["low"]) / 2
    values = [_of_run(asked, row, run) for run in row.runs]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _of_run(asked: Training, row: SweepRow, run: FinishedSweepRun) -> float:
    pick, less = _picked(asked, row), asked.metric == "loss" or row.metric in LESS_IS_BETTER
    if run.diverged:
        return math.nan
    if asked.y == "best of nodes":
        return (min if less else max)(map(pick, run.lines))
    if asked.y == "megabytes to target" and asked.target is not None:
        reached = (line for line in run.lines if (pick(line) - asked.target) * (-1 if less else 1) >= 0)
        return next((line["bytes"] / 1e6 for line in reached), math.nan)
    return run.final_mean(pick)
