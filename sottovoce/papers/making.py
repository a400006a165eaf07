"""Make a figure of a paper: its drawing, its numbers as CSV, and which of the paper's claims hold in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
from scipy import stats

from sottovoce._version import __version__
from sottovoce.attacks.registry import check_attacks
from sottovoce.attacks.run_attacks import attack_rows
from sottovoce.errors import Unaccountable
from sottovoce.papers.accounts import account_cells
from sottovoce.papers.averaging import averaging_cells
from sottovoce.papers.catalogue import (
    Accounts,
    Averaging,
    Claim,
    Interval,
    NoisyGradients,
    Paper,
    PaperFigure,
    Place,
    Training,
    Verdict,
    one_figure,
    papers,
)
from sottovoce.papers.cells import Cell, kept, lines_of
from sottovoce.papers.gradients import gradient_cells
from sottovoce.papers.training import axis_names, training_lines
from sottovoce.report.figure_files import Format, write_figures
from sottovoce.report.figures import Line, panels, points_of
from sottovoce.report.wording import finite
from sottovoce.run.sweep import SweepRun, expand_sweep, finished_before, only_read, run_experiments, sweep_rows
from sottovoce.support.config import Document
from sottovoce.support.files import check_folder, write_text
from sottovoce.support.progress import Progress
from sottovoce.support.text import csv_text


@dataclass(frozen=True)
class Finding:
    """A claim, and the numbers that a figure gives for it, one for each seed: or the only one, which is `exact`."""

    claim: Claim
    values: tuple[float, ...]
    exact: bool

    @property
    def interval(self) -> Interval:
        """Where the mean over seeds lies at 95 %, by Student's t: anywhere, if there is one seed."""
        mean, count = float(np.mean(self.values)), len(self.values)
        if self.exact:
            return [mean, mean]
        if count == 1:
            return [-math.inf, math.inf]
        width = float(stats.t.ppf(0.975, count - 1) * np.std(self.values, ddof=1)) / math.sqrt(count)
        return [mean - width, mean + width]

    @property
    def verdict(self) -> Verdict:
        """What becomes of the claim."""
        return self.claim.verdict(self.interval)

    def __str__(self) -> str:
        asked, than, seeds = self.claim, "", ""
        if asked.than is not None:
            than = f" over {asked.than}" + (f" at {asked.than_at}" if asked.than_at is not None else "")
        if not self.exact:
            low, high = self.interval
            seeds = f", 95 % from {low:.4g} to {high:.4g}, seeds: {len(self.values)}"
        found = f"{asked.line} at {asked.at}{than}: {np.mean(self.values):.4g}{seeds}"
        return f"{self.verdict.capitalize()}: {asked.says} ({found})"


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
            {"claim": str(one), "values": list(map(finite, one.values)), "interval": list(map(finite, one.interval)),
             "verdict": one.verdict}
            for one in self.findings
        ]  # fmt: skip
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
    more = (" --full" if how.full else "") + (f" --seeds {how.seeds}" if how.seeds is not None else "")
    command = f"sottovoce {__version__}, {date.today()}: sotto paper {paper} {name}{more}"
    lines, each_seed, x, y = _drawn(figure, document, how, command)
    found = [_finding(claim, lines, each_seed) for claim in figure.claims]
    found.sort(key=lambda one: list(Verdict).index(one.verdict))
    folder, log_y = how.out / sweep, figure.training is None and (figure.accounts is None or figure.accounts.log_y)
    drawings = panels(stem, figure.shows, lines, x=x, y=y, log_x=figure.drawn.log_x, log_y=log_y)
    files = write_figures(folder, drawings, (Format.SVG, Format.PDF))
    numbers, verdict = folder / f"{stem}.csv", folder / f"{stem}.md"
    write_text(numbers, csv_text(points_of(lines)))
    scaled = "" if how.full else figure.scaled
    write_text(verdict, _verdict(papers()[paper], name, figure, found, scaled, notes, command))
    return Made(paper, name, tuple(lines), tuple(found), (*files, numbers, verdict), tuple(notes))


def _finding(claim: Claim, lines: Sequence[Line], each_seed: Sequence[Sequence[Line]]) -> Finding:
    return Finding(claim, tuple(value_of(claim, some) for some in each_seed or [lines]), exact=not each_seed)


def _drawn(
    figure: PaperFigure, document: Document, how: Making, command: str
) -> tuple[list[Line], list[list[Line]], str, str]:
    """The lines, those of each seed where training was drawn, and the names of both axes."""
    runs, asked = expand_sweep(document), figure.drawn
    if isinstance(asked, Training):
        attacks = [one for one in check_attacks(document, runs) if one.name == asked.attack]
        finished = run_experiments(
            runs, how.out, data=how.data, resume=True, jobs=how.jobs, progress=how.progress
        )  # fmt: skip
        rows = sweep_rows(finished)
        attacked = attack_rows(rows, attacks, how.out, data=how.data)
        of_attack = {one.row.label: one.found[asked.attack] for one in attacked if asked.attack in one.found}
        alone = [[replace(row, runs=(row.runs[seed],)) for row in rows] for seed in range(len(rows[0].runs))]
        each_seed = [training_lines(asked, some, of_attack) for some in alone]
        return training_lines(asked, rows, of_attack), each_seed, *axis_names(asked, rows[0].metric)
    cells = dict[int, list[Cell]]()
    for number, run in enumerate(runs, 1):
        found = _cells(asked, run, how.out / document["name"] / "cells" if how.full else None, how.data, command)
        cells.setdefault(run.experiment.seed, []).extend(found)
        if how.progress is not None:
            how.progress(number, len(runs))
    lines = lines_of([one for found in cells.values() for one in found])
    if isinstance(asked, NoisyGradients):
        return lines, list(map(lines_of, cells.values())), "share of parameters", "distance, or L"
    if isinstance(asked, Accounts):
        return lines, [], asked.over, asked.y
    return lines, [], asked.over, "error" if asked.privacy == "none" else "error times mean loss"


def _cells(
    asked: Accounts | Averaging | NoisyGradients, run: SweepRun, folder: Path | None, data: Path | None, command: str
) -> list[Cell]:
    """Those of one run; with a folder they are kept there, and read if an earlier command has them."""

    def compute() -> list[Cell]:
        if isinstance(asked, NoisyGradients):
            return gradient_cells(asked, run, data)
        return averaging_cells(asked, run, data) if isinstance(asked, Averaging) else account_cells(asked, run, data)

    if folder is None:
        return compute()
    settings = {**run.experiment.document(), "drawn": asked.model_dump()}
    return kept(folder, run.experiment.name, settings, compute, by=command)


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
    about: Paper, name: str, figure: PaperFigure, found: Sequence[Finding], scaled: str, notes: Sequence[str], made: str
) -> str:
    """What was found, what holds first, and how to make it again."""
    parts = [f"# {about.title}: {name}", f"{figure.shows}.", f"Compared with: {about.version}."]
    if scaled:
        parts.append(f"Smaller here: {scaled}.")
    if found:
        held = sum(one.verdict is Verdict.HOLDS for one in found)
        parts += [f"{held} of {len(found)} claims hold.", "\n".join(f"- {one}." for one in found)]
    return "\n\n".join([*parts, *notes, f"Made by {made}", ""])
