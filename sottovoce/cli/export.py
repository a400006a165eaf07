"""`sotto export` and `sotto predict`: the model of a run, handed on and used."""

from pathlib import Path

from typer import Argument, Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Json, Yes
from sottovoce.cli.output import answer, facts, print_remark
from sottovoce.cli.progress import activity
from sottovoce.privacy.rounding import round_up


@app.command()
def export(
    run: Path = Argument(help="Folder of a finished run, runs/NAME, or of a member's run."),
    node: str | None = Option(None, help="Node whose model to export, by name or number; default: the average model."),
    out: Path | None = Option(None, help="New folder for the model; default: RUN/export."),
    data: Path | None = Option(None, "--data", help="Folder of the files that the run read."),
    uncovered: bool = Option(
        False, "--uncovered", help="Export even a model that no privacy figure covers; its card says so."
    ),
    scores: bool = Option(
        False, "--scores", help="Put figures on held-out rows into the card; no privacy figure covers these."
    ),
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write the model of a run as a state dict and as safetensors, with its card. Example: sotto export runs/digits"""
    with activity("the run and its figures"):
        from sottovoce.report.model_export import export_model
        from sottovoce.report.quality import quality_rows

        found = export_model(run, out, node=node, data=data, uncovered=uncovered, scores=scores)
    shown = {
        "model": "average of all nodes" if found.node is None else f"of {found.node}",
        "parameters": f"{found.parameters:,}",
        "epsilon": "none covers this model" if found.epsilon is None else f"{round_up(found.epsilon)}, which covers it",
        **quality_rows(found.scores),
        "folder": str(found.folder),
    }
    answer(found.document(), facts(shown))
    if found.scores is not None:
        print_remark("Not checked: held-out figures, which result.json of the run states (sotto audit compares them).")
    if not found.covered:
        print_remark("No privacy figure covers this model: do not hand it on where its training rows are private.")


@app.command()
def predict(
    folder: Path = Argument(help="The folder that sotto export wrote."),
    data: Path = Option(..., "--data", help="New rows: a .csv, .npz or .parquet file."),
    out: Path | None = Option(None, help="A .csv file for the predictions; default: print them."),
    as_json: Json = False,
) -> None:
    """Predict new rows with an exported model. Example: sotto predict runs/hospitals/export --data new.csv"""
    from sottovoce.learning.exported_model import read_exported_model
    from sottovoce.support.files import check_writable, write_text

    place = None if out is None else check_writable(out)
    found = read_exported_model(folder).predict(data)
    if place is not None:
        write_text(place, found.csv(), private=True)
    document = {
        "target": found.target, "classes": list(found.classes),
        "threshold": found.threshold if len(found.classes) == 2 else None, "rows": len(found),
        "file": None if out is None else str(out), "predictions": [] if out is not None else found.rows(),
        "row_names": None if found.row_names is None or out is not None else found.row_names._asdict(),
    }  # fmt: skip
    table = [[str(cell) for cell in row] for row in found.table()]
    answer(document, table if out is None else facts({"rows": f"{len(found):,}", "file": str(out)}))
