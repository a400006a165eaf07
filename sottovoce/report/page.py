"""The report page: one HTML file with its figures, data and scripts inside, which asks nobody for anything.

The page is `assets/page.html` with style, scripts and the data, as one block of JSON, in their places.

To add a figure, write a function in one of the scripts that draws it and `register` it there: that says in which
section it stands, and it is drawn whenever the page is. What it shows of a single run comes from `run_summary`, of runs
that differ only by their seeds from `_average` here; where it says in words why it has nothing to show, the words come
from `run_summary._missing`.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce._version import __version__
from sottovoce.attacks.registry import PageFigure, page_attacks
from sottovoce.report.figures import COLOURS
from sottovoce.report.pairwise_leakage import PAIRS, pairs_shown
from sottovoce.report.picture_gallery import compared_pictures
from sottovoce.report.run_summary import run_summary
from sottovoce.report.series import Series, labels_of, series_of, strongest_attack
from sottovoce.report.wording import FIGURES, KINDS, finite, rounded
from sottovoce.run.layout import RunFiles
from sottovoce.run.public_check import with_check
from sottovoce.run.run_documents import LESS_IS_BETTER, RunDocuments, final_rounds_text, read_runs, unfinished_runs
from sottovoce.support.config import Document
from sottovoce.support.files import check_writable, write_text
from sottovoce.support.text import from_json

if TYPE_CHECKING:
    from sottovoce.run.run_accountant import RunAccountant

WITH_PAIRS = 24
"""So many runs at most show who learns what from whom; of others a page has curves and guarantees."""

POINTS = 400
"""Of a curve, at most."""

SCRIPTS = (
    "chart.js", "frame.js", "pairs.js", "learning.js", "attacks.js", "trade_offs.js", "guarantees.js",
    "controls.js",
)  # fmt: skip
"""In the order in which they need each other; they share one scope."""


def read_checked_runs(paths: Iterable[Path], data: Path | None = None) -> list[RunDocuments]:
    """Finished runs as `read_runs` gives them, with what speaks against each, and what nothing was compared with.

    `data` is the folder of the files that settings name. Where torch is not there, nothing is compared.
    """

    def build(run: RunDocuments) -> RunAccountant:
        from sottovoce.run.finished_run import accountant_of

        return accountant_of(RunFiles(run.folder), run.experiment, data)

    return [with_check(run, partial(build, run)) for run in read_runs(paths)]


def write_page(out: Path, runs: Sequence[Path], *, title: str | None = None, data: Path | None = None) -> Path:
    """A page about finished runs, given by their folders or those of sweeps; returns where it is.

    What the folders state is computed again; the page says what differs, and what nothing was compared with.
    """
    place = check_writable(out)
    write_text(place, page(read_checked_runs(runs, data), title, left_out=len(unfinished_runs(runs))))
    return out


def write_page_of(run: Path | RunDocuments, *, again: bool, data: Path | None = None) -> None:
    """A run's own page, in its folder: where it has none, or `again` where it has one and something was added.

    The run is given by its folder, which is checked, or as it is at hand.
    """
    place = RunFiles(run if isinstance(run, Path) else run.folder).page
    if place.exists() == again:
        write_text(place, page(read_checked_runs([run], data) if isinstance(run, Path) else [run]), private=True)


def page(runs: Sequence[RunDocuments], title: str | None = None, *, left_out: int = 0) -> str:
    """The page as text. It says how many unfinished runs were left out."""
    about = runs[0].experiment.about.title if len({run.experiment.about.title for run in runs}) == 1 else ""
    named = title or about or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared")
    data = {"left_out": left_out, **document(runs, named)}
    return filled_page("page.html", named, data, [_attack_captions(), *(asset(name) for name in SCRIPTS)])


def filled_page(template: str, title: str, data: Document, scripts: Sequence[str]) -> str:
    """A page with its title, the style of all pages, data and scripts in their places."""
    parts = {
        "text": "".join(map(_text_of, data.get("runs", []))), "title": html.escape(title),
        "css": asset("page.css"), "data": _inside_script(data),
        "script": "\n".join(scripts),
    }  # fmt: skip
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], asset(template))


def _text_of(run: Document) -> str:
    """What a page says of a run, for readers whose browser runs no script: findings, answers, guarantees and facts."""
    shown = partial(html.escape, quote=False)
    answers = [("Finding", [line]) for line in run["findings"]] + run["plain"]["questions"]
    said = [f"<h3>{shown(what)}</h3>" + "".join(f"<p>{shown(line)}</p>" for line in lines) for what, lines in answers]
    columns = ("adversary", "protects", "epsilon", "kind", "models")
    rows = [[str(promise[column]) for column in columns] for promise in run["promises"]]
    quality = [("Thresholds", run["held_out"]["decision_table"]), ("Calibration", run["held_out"]["calibration_table"])]
    tables = [("Guarantees", [columns, *rows]), *quality, ("What was trained", run["facts"])]
    for heading, lines in filter(lambda one: one[1], tables):
        cells = ("".join(f"<td>{shown(cell)}</td>" for cell in line) for line in lines)
        said.append(f"<h3>{heading}</h3><table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>")
    return f"<section><h2>{shown(run['label'])}</h2>{''.join(said)}</section>"


def asset(name: str) -> str:
    """A template, style or script that pages carry."""
    return files("sottovoce.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def made_by() -> str:
    """The version of sottovoce, and a digest of all that makes pages: another one words or draws them differently."""
    digest = hashlib.sha256()
    for folder in (files("sottovoce.report"), files("sottovoce.report").joinpath("assets")):
        for part in sorted(folder.iterdir(), key=lambda part: part.name):
            digest.update(part.read_bytes() if part.is_file() else b"")
    return f"{__version__} {digest.hexdigest()[:8]}"


def _attack_captions() -> str:
    """What the registry says of each attack, for the caption of the ROC curves."""
    captions = {attack.name: attack.caption for attack in page_attacks(PageFigure.ROC_CURVE)}
    return f"const ATTACK_CAPTIONS = {json.dumps(captions)};"


def _inside_script(document: Document) -> str:
    """JSON that no name can break out of."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(runs: Sequence[RunDocuments], title: str) -> Document:
    """The data of the page."""
    series, labels = series_of(runs), [str(label) for label in labels_of(runs)]
    with_pairs = _with_pairs(runs, series)
    (pictures,) = page_attacks(PageFigure.PICTURES)
    return {
        "title": title, "version": made_by(), "metric": runs[0].metric,
        "final_rounds": final_rounds_text(run.experiment.metrics.final_rounds for run in runs),
        "less_is_better": runs[0].metric in LESS_IS_BETTER, "colours": COLOURS, "kinds": KINDS, "figures": FIGURES,
        "runs": [
            {
                "label": label,
                **run_summary(run, pairs=number in with_pairs, without_noise=_without_noise(run, runs)),
            }
            for number, (label, run) in enumerate(zip(labels, runs, strict=True))
        ],
        "series": [_average(one) for one in series],
        "pictures": compared_pictures({
            label: run.attacks[pictures.name]
            for label, run in zip(labels, runs, strict=True) if pictures.name in run.attacks
        }),
    }  # fmt: skip


def _with_pairs(runs: Sequence[RunDocuments], series: Sequence[Series]) -> set[int]:
    """The runs that show who learns what from whom: as many as there is room for, one of each series first."""
    first = [one.numbers[0] for one in series]
    found, left = set[int](), PAIRS
    for number in [*first, *(number for number in range(len(runs)) if number not in first)][:WITH_PAIRS]:
        pairs = pairs_shown(runs[number].privacy)
        if pairs <= left:
            found.add(number)
            left -= pairs
    return found


def _without_noise(run: RunDocuments, runs: Sequence[RunDocuments]) -> RunDocuments | None:
    """The same training with no noise, if it is among the runs; algorithms differ there, but for the noise."""

    def training(one: RunDocuments) -> Document:
        settings = one.experiment.document()
        return {key: settings[key] for key in ("seed", "data", "model", "topology", "training")}

    def unprotected(one: RunDocuments) -> bool:
        return math.isinf(one.privacy.headline.epsilon)

    same = (one for one in runs if one is not run and unprotected(one) and training(one) == training(run))
    return next(same, None)


def _average(series: Series) -> Document:
    """Means over seeds; epsilon and the attack's success are those of the worst seed."""
    metric, length = series.seeds[0].metric, min(len(run.lines) for run in series.seeds)
    shown = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int)).tolist()
    lines = [[run.lines[at] for at in shown] for run in series.seeds]
    strongest = strongest_attack(series.seeds)
    return {
        "name": series.name, "curve": series.curve, "curve_name": series.curve_name, "runs": series.numbers,
        "round": [line["round"] for line in lines[0]],
        "megabytes": [line["bytes"] / 1e6 for line in lines[0]],
        **{key: _over(lines, metric, key) for key in ("average", "mean", "min", "max")},
        "spent": [_most_spent([one[at] for one in lines]) for at in range(len(shown))],
        "final": finite(series.final[0]), "epsilon": rounded(series.epsilon),
        "attack": None if strongest is None else asdict(strongest),
    }  # fmt: skip


def _over(lines: Sequence[Sequence[Document]], metric: str, key: str) -> list[float | None]:
    values = np.array([[line[metric][key] for line in one] for one in lines], dtype=float).mean(axis=0)
    return [finite(value) for value in values.tolist()]


def _most_spent(lines: Sequence[Document]) -> float | str | None:
    """The epsilon that had been spent when a round was measured, of the worst seed; None where none is proven."""
    found = [line["epsilon"] for line in lines]
    return None if None in found else rounded(max(from_json(one["spent"]) for one in found))
