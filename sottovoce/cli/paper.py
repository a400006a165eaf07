"""`sotto paper`: the figures of the papers, made here, with what holds of them."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Data, Jobs, Json, Yes
from sottovoce.cli.output import Table, answer, picked, print_remark, print_sentences
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.papers.catalogue import PaperFigure


@app.command()
def paper(
    name: str | None = Argument(None, metavar="PAPER", help="A paper; default: list all."),
    figure: str | None = Argument(None, help="One figure or table; default: all of the paper."),
    full: bool = Option(False, "--full", help="At the paper's size; goes on where an earlier one stopped."),
    seeds: int | None = Option(None, min=1, help="Number of seeds; default: that of the figure."),
    out: Path = Option(Path("papers"), "--out", help="Folder for figures and runs."),
    data: Data = None,
    jobs: Jobs = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make the figures of five papers, and see what holds. Example: sotto paper muffliato 1a"""
    from sottovoce.papers.catalogue import figures_of, one_figure, papers

    if name is None:
        if full or seeds is not None:
            raise InputError("no paper", "figures are made of one paper", "write sotto paper muffliato 1a")
        _list({paper: figures_of(paper) for paper in papers()})
        return
    every = figures_of(name)
    wanted = {figure: one_figure(name, figure)} if figure is not None else every
    from sottovoce.papers.making import Making, make

    skipped = {number: one.not_run for number, one in wanted.items() if one.not_run and figure is None}
    made = []
    for number in (number for number in wanted if number not in skipped):
        with activity(f"{name} {number}") as work:
            how = Making(out=out, full=full, seeds=seeds, data=data, jobs=jobs, progress=work.tell)
            made.append(make(name, number, how))
        if not as_json:
            found = (*made[-1].findings, *made[-1].notes)
            print_sentences([f"{name} {number}: {wanted[number].shows}.", *(f"  {one}" for one in found)])
            print_remark(f"  {made[-1].files[-1]}")
    answer({"made": [one.document() for one in made], "not_run": skipped}, [])
    print_sentences(f"{name} {number}: not run here: {reason}." for number, reason in skipped.items())


def _list(every: "dict[str, dict[str, PaperFigure]]") -> None:
    document = [
        {"paper": paper, "figure": name, **picked(one, "shows", "scaled", "takes", "full", "state", "not_run")}
        for paper, figures in every.items()
        for name, one in figures.items()
    ]
    table: Table = [["paper", "figure", "state", "size", "takes", "shows"]]
    table += [
        [one["paper"], one["figure"], one["state"], "" if one["not_run"] else "reduced" if one["scaled"] else "full",
         one["takes"], one["shows"]]
        for one in document
    ]  # fmt: skip
    answer({"figures": document}, table)
