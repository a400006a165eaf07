"""Make a figure of a paper: its drawing, its numbers as CSV, and which of the paper's claims hold in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce._version import __version__
from sottovoce.attacks.registry import check_attacks
from sottovoce.attacks.run_attacks import attack_rows
from sottovoce.errors import Unaccountable
from sottovoce.papers.accounts import account_cells
from sottovoce.papers.averaging import averaging_cells
from sottovoce.papers.catalogue import Accounts, Averaging, Claim, PaperFigure, Place, Training, one_figure, papers
from sottovoce.papers.cells import Cell, kept, lines_of
from sottovoce.papers.training import axis_names, training_lines
from sottovoce.report.figure_files import Format, write_figures
from sottovoce.report.figures import Line, panels, points_of
from sottovoce.run.sweep import SweepRun, expand_sweep, finished_before, only_read, run_experiments, sweep_rows
from sottovoce.support.config import Document
from sottovoce.support.files import check_folder, write_text
from sottovoce.support.progress import Progress
from sottovoce.support.text import csv_text


@dataclass(frozen=True)
class Finding:
    """A claim, and the number that a figure gives for it; NaN where it gives none."""

    claim: Claim
    value: float

    @property
    def holds(self) -> bool:
        """Whether the number is as the paper says."""
        return self.claim.holds(self.value)

    def __str__(self) -> str:
        asked, than = self.claim, ""
        if asked.than is not None:
            than = f" over {asked.than}" + (f" at {asked.than_at}" if asked.than_at is not None else "")
        word = "Holds" if self.holds else "Does not hold"
        return f"{word}: {asked.says} ({asked.line} at {asked.at}{than}: {self.value:.4g})"


@dataclass(frozen=True)
class Made:
    """A figure that was made: its lines, what was found, what holds first, and the files.

    `notes` say of runs that an earlier command had finished how far they were checked.
    """

    paper: str
    name: str
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    def document(self) -> Document:
        """As JSON."""
        found = [
            {"claim": str(one), "value": one.value if math.isfinite(one.value) else None, "holds": one.holds}
            for one in self.findings
        ]
        files, notes = list(map(str, self.files)), list(self.notes)
        return {"paper": self.paper, "figure": self.name, "findings": found, "files": files, "notes": notes}


@dataclass(frozen=True, kw_only=True)
class Making:
    """How a figure is made: at which size, with how many seeds, from which folder of data into which."""

    out: Path
    full: bool = False
    seeds: int | None = None
    data: Path | None = None
    jobs: int | None = None
    progress: Progress | None = None


def make(paper: str, name: str, how: Making) -> Made:
    """Make a figure; runs, and at full size also accounts, that an earlier command has finished are only read."""
    check_folder(how.out)
    figure, stem = one_figure(paper, name), f"{paper}-{name}"
    if figure.not_run:
        raise Unaccountable(f"{paper} {name} is not made here: {figure.not_run}")
    sweep = f"{paper}-{figure.runs_of or name}{'-full' if how.full else ''}"
    document = {"name": sweep, **figure.settings(full=how.full, seeds=how.seeds)}
    notes = only_read(finished_before(expand_sweep(document), how.out)) if isinstance(figure.drawn, Training) else []
    lines, x, y = _drawn(figure, document, how)
    found = sorted((Finding(claim, value_of(claim, lines)) for claim in figure.claims), key=lambda one: not one.holds)
    folder, log_y = how.out / sweep, figure.training is None and (figure.accounts is None or figure.accounts.log_y)
    drawings = panels(stem, figure.shows, lines, x=x, y=y, log_x=figure.drawn.log_x, log_y=log_y)
    files = write_figures(folder, drawings, (Format.SVG, Format.PDF))
    numbers, verdict = folder / f"{stem}.csv", folder / f"{stem}.md"
    write_text(numbers, csv_text(points_of(lines)))
    write_text(verdict, _verdict(paper, name, figure, found, how, notes))
    return Made(paper, name, tuple(lines), tuple(found), (*files, numbers, verdict), tuple(notes))


def _drawn(figure: PaperFigure, document: Document, how: Making) -> tuple[list[Line], str, str]:
    """The lines, and the names of both axes."""
    runs, asked = expand_sweep(document), figure.drawn
    if isinstance(asked, Training):
        attacks = [one for one in check_attacks(document, runs) if one.name == asked.attack]
        finished = run_experiments(
            runs, how.out, data=how.data, resume=True, jobs=how.jobs, progress=how.progress
        )  # fmt: skip
        rows = sweep_rows(finished)
        attacked = attack_rows(rows, attacks, how.out, data=how.data)
        found = {one.row.label: one.found[asked.attack] for one in attacked if asked.attack in one.found}
        return training_lines(asked, rows, found), *axis_names(asked, rows[0].metric)
    cells = list[Cell]()
    for number, run in enumerate(runs, 1):
        cells += _cells(asked, run, how.out / document["name"] / "cells" if how.full else None, how.data)
        if how.progress is not None:
            how.progress(number, len(runs))
    if isinstance(asked, Accounts):
        return lines_of(cells), asked.over, asked.y
    return lines_of(cells), asked.over, "error" if asked.privacy == "none" else "error times mean loss"


def _cells(asked: Accounts | Averaging, run: SweepRun, folder: Path | None, data: Path | None) -> list[Cell]:
    """Those of one run; with a folder they are kept there, and read if an earlier command has them."""

    def compute() -> list[Cell]:
        return averaging_cells(asked, run, data) if isinstance(asked, Averaging) else account_cells(asked, run, data)

    if folder is None:
        return compute()
    return kept(folder, run.experiment.name, {**run.experiment.document(), "drawn": asked.model_dump()}, compute)


def value_of(claim: Claim, lines: Sequence[Line]) -> float:
    """The number that a claim is about."""
    own = _at(claim.at, claim.line, lines)
    if claim.than is None:
        return own
    other = _at(claim.at if claim.than_at is None else claim.than_at, claim.than, lines)
    return own / other if other else math.nan


def _at(place: Place, name: str, lines: Sequence[Line]) -> float:
    line = next((one for one in lines if one.name == name), None)
    if line is None or not line.y:
        return math.nan
    if place == "mean":
        return float(np.mean(line.y))
    if place in ("least", "most"):
        return min(low for low, _ in line.band) if place == "least" else max(high for _, high in line.band)
    if place in ("first", "last"):
        return float(line.y[0 if place == "first" else -1])
    return float(dict(zip(line.x, line.y, strict=True)).get(float(place), math.nan))


def _verdict(
    paper: str, name: str, figure: PaperFigure, found: Sequence[Finding], how: Making, notes: Sequence[str]
) -> str:
    """What was found, what holds first, and how to make it again."""
    about = papers()[paper]
    more = (" --full" if how.full else "") + (f" --seeds {how.seeds}" if how.seeds is not None else "")
    parts = [f"# {about.title}: {name}", f"{figure.shows}.", f"Compared with: {about.version}."]
    if figure.scaled and not how.full:
        parts.append(f"Smaller here: {figure.scaled}.")
    if found:
        held = sum(one.holds for one in found)
        parts += [f"{held} of {len(found)} claims hold.", "\n".join(f"- {one}." for one in found)]
    parts += notes
    return "\n\n".join([*parts, f"Made by sottovoce {__version__}: `sotto paper {paper} {name}{more}`", ""])
