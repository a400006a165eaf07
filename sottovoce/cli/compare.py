"""`sotto compare`: finished runs beside each other. `sotto report`: the page of one run, on paper too."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Data, Json, Track, Yes, check_one_form
from sottovoce.cli.output import Table, answer, print_line, print_remark, show_findings, verbosity
from sottovoce.cli.printed_figures import changed_data
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up
from sottovoce.support.limits import size_text

if TYPE_CHECKING:
    from sottovoce.report.figure_files import Format
    from sottovoce.run.run_documents import RunDocuments
    from sottovoce.support.config import Document


@app.command()
def compare(
    runs: list[Path] = Argument(help="Folders of finished runs, or of sweeps."),
    out: Path | None = Option(None, "--out", help="File for the page; default: beside the runs."),
    title: str | None = Option(None, help="Title of the page."),
    data: Data = None,
    figures: Path | None = Option(None, help="Also write each figure as a file into this folder."),
    formats: list[str] | None = Option(None, "--format", help="--figures: svg, pdf or csv; may be repeated."),
    over: str | None = Option(None, help="--figures: draw results over this setting, such as training.rounds."),
    width: float | None = Option(None, min=40, max=400, help="--figures: so many millimetres wide, for a paper."),
    trackers: Track = None,
    as_csv: bool = Option(False, "--csv", help="Print the table as CSV, with all digits."),
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Compare finished runs in a table and on a page. Example: sotto compare runs/a runs/b --out both.html

    Test figures are those after the last round, or means over metrics.final_rounds. Guarantees are computed again from
    the settings; what is not checked is listed. If a folder contradicts itself, that is printed first, as a finding,
    with exit code 1.
    """
    from sottovoce.report.figure_files import write_figures
    from sottovoce.report.page import page, read_checked_runs
    from sottovoce.report.series import figures_over, run_figures, trade_off
    from sottovoce.run.layout import RunFiles
    from sottovoce.run.run_documents import final_average_text, unfinished_runs
    from sottovoce.support.files import check_writable, write_text
    from sottovoce.support.text import csv_text

    wanted = _formats(figures, formats, over=over, width=width)
    check_one_form(as_csv)
    with activity("guarantees"):
        found, left_out = read_checked_runs(runs, data), unfinished_runs(runs)
    trade_offs = [trade_off(run) for run in found]
    shown = _default_page(runs) if out is None else out
    target = shown if out is None else check_writable(out)
    findings, not_checked = _checked(found)
    write_text(target, page(found, title, left_out=len(left_out)), private=target == RunFiles(runs[0]).page)
    document = {
        "page": str(shown), "runs": trade_offs, "findings": findings, "not_checked": not_checked,
        "left_out": [str(folder) for folder in left_out],
    }  # fmt: skip
    charts = [] if figures is None else run_figures(found) if over is None else figures_over(found, over)
    drawn = [] if figures is None else write_figures(figures, charts, wanted, width=width)
    if trackers and findings:
        print_remark(f"Not written for {', '.join(trackers)}: a folder contradicts itself.")
    elif trackers:
        from sottovoce.report.tracking import track

        print_remark(track(found, trackers, runs[0].parent))
    verbosity.csv |= as_csv
    show_findings(findings)
    if as_csv:
        print_line(csv_text(trade_offs).rstrip("\n"))
    else:
        averaged = final_average_text(run.experiment.metrics.final_rounds for run in found)
        answer(document, _table(found), *([f"Test figures: {averaged}."] if averaged else []), *_unlike(found))
    if drawn:
        print_remark(f"Figures: {', '.join(map(str, drawn))}")
    if left_out:
        print_remark(f"Left out, stopped or diverged: {', '.join(map(str, left_out))}")
    _remark_on(found)
    print_remark(f"Page: {shown}")
    if findings:
        raise Exit(1)


def _formats(figures: Path | None, formats: list[str] | None, **others: object) -> "list[Format]":
    """In which formats figures are written, their numbers always; options are refused without a folder for them."""
    from sottovoce.report.figure_files import Format, parse_format

    given = {"format": formats and formats[0], **others}
    unused = next((f"{name} {value}" for name, value in given.items() if value), None)
    if figures is None and unused is not None:
        raise InputError(
            f"--{unused} without --figures",
            "figures are written into the folder of --figures",
            "add --figures DIR",
        )
    if figures is not None and figures.exists() and not figures.is_dir():
        raise InputError(f"{figures} is not a folder", "figures are written into a folder", "name another")
    return list(dict.fromkeys([*map(parse_format, formats or [Format.SVG]), Format.CSV]))


@app.command()
def report(
    run: Path = Argument(help="Folder of a finished run."),
    out: Path | None = Option(None, "--out", help="File for the page; default: report.html of the run."),
    pdf: bool = Option(False, "--pdf", help="Also print the page to an A4 PDF, with an installed browser."),
    contact: str | None = Option(None, help="Whom readers can ask; default: contact in [about] of the run file."),
    data: Data = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write the page of a finished run, for readers who must decide. Example: sotto report runs/digits --pdf

    It begins in plain words; title, purpose and contact come from [about] of the run file. Guarantees are
    computed again from the settings; what is not checked is listed. If the folder contradicts itself, that is printed
    first, as a finding, with exit code 1.
    """
    from sottovoce.report.page import page, read_checked_runs
    from sottovoce.report.page_pdf import print_page
    from sottovoce.run.layout import RunFiles
    from sottovoce.support.files import check_writable, write_text

    if run.is_dir() and not RunFiles(run).config.exists():
        raise InputError(
            f"{run}: not the folder of one run", "a report is about one run", "give runs/NAME of sotto run"
        )
    with activity("guarantees"):
        found = read_checked_runs([run], data)
    shown = RunFiles(run).page if out is None else out
    target = shown if out is None else check_writable(out)
    findings, not_checked = _checked(found)
    about = found if contact is None else [one.with_contact(contact) for one in found]
    write_text(target, page(about), private=out is None)
    show_findings(findings)
    printed = None
    if pdf:
        with activity("printing"):
            printed = print_page(target, shown.with_suffix(".pdf"))
    written = {"page": str(shown), "pdf": None if printed is None else str(printed)}
    answer(
        {**written, "findings": findings, "not_checked": not_checked},
        [["", ""], *([name, path] for name, path in written.items() if path is not None)],
    )
    _remark_on(found)
    if findings:
        raise Exit(1)


def _checked(runs: "list[RunDocuments]") -> tuple[list[str], list[str]]:
    """What speaks against some runs, and what nothing was compared with, each with its folder."""
    from sottovoce.report.page_check import check_page

    found = ((run.folder, one) for run in runs for one in (*run.check.findings, *check_page(run).findings))
    findings = [f"{folder}: {finding}" for folder, finding in found]
    return findings, [f"{run.folder}: {line}" for run in runs for line in run.check.lines()]


def _remark_on(runs: "list[RunDocuments]") -> None:
    """What was not checked: all of it for one run, how much for several."""
    lines = [line for run in runs for line in run.check.lines()]
    if len(runs) == 1:
        print_remark(f"Not checked: {'; '.join(lines)}.")
    else:
        print_remark(f"Not checked: {len(lines)} parts of {len(runs)} folders; the page and --json list them.")


def _default_page(runs: list[Path]) -> Path:
    """A single run's or sweep's page lies in its folder; one of several in the folder they share, or here."""
    from sottovoce.run.layout import RunFiles

    if len(runs) == 1:
        return RunFiles(runs[0]).page
    parents = {path.resolve().parent for path in runs}
    return (runs[0].parent if len(parents) == 1 else Path()) / "compare.html"


def _figure(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "diverged"


def _table(runs: "list[RunDocuments]") -> Table:
    from sottovoce.report.series import strongest_attack

    figures = [f"{runs[0].metric}, average model", f"{runs[0].metric}, nodes"]
    table = [["run", "algorithm", *figures, "epsilon", "kind", "adversary", "attack's AUC", "sent"]]
    for run in runs:
        headline, sent = run.privacy.headline, size_text(run.lines[-1]["bytes"])
        table.append([
            run.name, run.privacy.algorithm, *(_figure(run.final_metric(of)) for of in ("average", "mean")),
            round_up(headline.epsilon), headline.kind, str(headline.view),
            str(strongest_attack([run]) or "not attacked"), sent,
        ])  # fmt: skip
        table += _baseline_rows(run.name, run.baselines, len(table[0]))
    return table


def _unlike(runs: "list[RunDocuments]") -> list[str]:
    """At which delta and about what each epsilon is, where that is not the same for all."""
    promises: dict[str, list[str]] = {}
    for run in runs:
        privacy = run.privacy
        if math.isfinite(privacy.headline.epsilon):
            about = f"delta {privacy.delta:g}, {changed_data(privacy.adjacency, privacy.headline.change)}"
            promises.setdefault(about, []).append(run.name)
    each = "; ".join(f"{about}: {', '.join(names)}" for about, names in promises.items())
    return [f"Epsilons are about different things. {each}."] if len(promises) > 1 else []


def _baseline_rows(name: str, baselines: "Document | None", width: int) -> Table:
    """The same training without noise, and by each node alone, where that was computed."""
    if baselines is None:
        return []
    together, alone = baselines["without_noise"], baselines["alone"]
    rows = [[f"{name}, each alone", "", "", _figure(alone["mean"])]]
    if together is not None:
        rows.insert(0, [f"{name}, without noise", "", _figure(together["average"]), _figure(together["mean"])])
    return [[*row, *[""] * (width - len(row))] for row in rows]
