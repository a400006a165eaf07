"""`sotto compare`: finished runs beside each other, as a table and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, size
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.config import Document


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of sweeps.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page; beside the runs unless given.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    as_json: Json = False,
) -> None:
    """Trade-offs of finished runs, and a page of figures. Example: sotto compare runs/a runs/b --out both.html"""
    from sottovoce.core.files import check_writable, write_text
    from sottovoce.report.page import page
    from sottovoce.report.told import told, unfinished

    found, left_out = told(runs), unfinished(runs)
    target = _place(runs) if out is None else out
    check_writable(target)
    write_text(target, page(found, title, left_out=len(left_out)))
    documents = [run.ending() for run in found]
    document = {"page": str(target), "runs": documents, "left_out": [str(folder) for folder in left_out]}
    answer(document, as_json, _table(documents))
    if left_out and not as_json:
        typer.echo(f"Left out, stopped or gone astray: {', '.join(map(str, left_out))}", err=True)
    if not as_json:
        typer.echo(f"Page: {target}", err=True)


def _place(runs: list[Path]) -> Path:
    """A single run's or sweep's page lies in its folder; one of several in the folder they share, or here."""
    from sottovoce.run.layout import RunFiles

    if len(runs) == 1:
        return RunFiles(runs[0]).page
    parents = {path.resolve().parent for path in runs}
    return (runs[0].parent if len(parents) == 1 else Path()) / "compare.html"


def _shown(figure: float | None) -> str:
    return "astray" if figure is None else f"{figure:.4f}"


def _table(found: "list[Document]") -> Table:
    metric, area = found[0]["metric"], "{value:.3f} ({low:.3f} to {high:.3f}) {attack}"
    figures = [f"{metric}, average model", f"{metric}, nodes"]
    table = [["run", "algorithm", *figures, "epsilon", "kind", "adversary", "attack's AUC", "sent"]]
    for one in found:
        epsilon = "none proven" if one["epsilon"] is None else round_up(float(one["epsilon"]))
        attack = "not attacked" if one["attack"] is None else area.format(**one["attack"])
        table.append([
            one["run"], one["algorithm"], _shown(one["average_model"]), _shown(one["mean_node"]), epsilon,
            one["kind"] or "", one["adversary"] or "", attack, size(one["bytes"]),
        ])  # fmt: skip
    return table
