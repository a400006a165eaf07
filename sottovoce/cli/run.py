"""`sotto run`: one experiment, or a sweep of them, from a TOML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, facts, note, progress
from sottovoce.errors import InputError
from sottovoce.report.numbers import up

if TYPE_CHECKING:
    from sottovoce.config import Document
    from sottovoce.run.sweep import Planned


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file; see docs/run.md and the folder recipes.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. training.rounds=50; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an unfinished run stopped.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of data sets; else SOTTOVOCE_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that runs are written into.")] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(min=1, max=64, help="Runs of a sweep at once; one per core unless given.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only runs of a sweep whose name contains this.")] = None,
    as_json: Json = False,
) -> None:
    """Train, with metrics, guarantees and checkpoints in runs/NAME. Example: sotto run recipes/digits.toml"""
    from sottovoce.config import changed, read
    from sottovoce.files import check_folder
    from sottovoce.run.sweep import planned

    check_folder(out)
    document = changed(read(file), settings or [])
    runs = planned(document, str(file))
    if only is not None and not any(only in run.experiment.name for run in runs):
        raise InputError(f"--only {only}", f"no run of {file} has that in its name", f"e.g. {runs[0].experiment.name}")
    if len(runs) == 1 and not runs[0].variant:
        with progress(runs[0].experiment.name, rate=True) as tell:
            from sottovoce.run.folder import carry_out

            one = runs[0].experiment
            result = carry_out(one, out / one.name, data=data, resume=resume, tell=tell)
        answer(result, as_json, _facts(result))
        return
    chosen = [run for run in runs if only is None or only in run.experiment.name]
    _sweep(document, file, settings or [], chosen, data=data, out=out, resume=resume, jobs=jobs, as_json=as_json)


def _sweep(
    document: "Document",
    file: Path,
    settings: list[str],
    runs: "list[Planned]",
    *,
    data: Path | None,
    out: Path,
    resume: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Carry out all runs, write the page of results, and print its table."""
    from sottovoce.report.results import write_results
    from sottovoce.run.results import rows
    from sottovoce.run.together import carry_out_all

    name = str(document["name"])
    with progress(name) as tell:
        finished = carry_out_all(runs, out, data=data, resume=resume, jobs=jobs, tell=tell)
    command = " ".join(["sotto run", str(file), *(f"--set {setting}" for setting in settings)])
    page = write_results(out / name, name, runs[0].experiment.about, finished, command)
    documents = [row.document() for row in rows(finished)]
    answer({"name": name, "page": str(page), "runs": documents}, as_json, _table(documents))
    if not as_json:
        note(f"Page: {page}")


def _facts(result: "Document") -> Table:
    """What one run came to."""
    last = result["metrics"]
    metric = next(key for key in ("accuracy", "rmse") if key in last)
    shown: dict[str, Any] = {
        "run": result["name"],
        "algorithm": f"{result['algorithm']} on {result['topology']}, {result['rounds']} rounds",
        f"test {metric} of the average model": f"{last[metric]['average']:.4f}",
        f"test {metric} of nodes": "{mean:.4f} ({min:.4f} to {max:.4f})".format(**last[metric]),
        "sent": f"{last['messages']:,} messages, {last['bytes'] / 1e6:,.1f} MB",
        "epsilon": _epsilon(result),
        "seconds": f"{result['seconds']:.1f}",
        "folder": result["folder"],
    }
    return facts(shown)


def _epsilon(result: "Document") -> str:
    headline = result["headline"]
    if headline is None:
        return "none is proven: see privacy.json"
    what = "a node's data" if result["adjacency"] == "user" else "one record"
    done = "replaced" if headline["change"] == "replace" else "made to count as nothing"
    epsilon = up(float(headline["epsilon"]))
    return f"{epsilon} at delta {result['delta']:g}, {headline['view']} as adversary, {what} {done}, {headline['kind']}"


def _table(found: list["Document"]) -> Table:
    """A sweep: means over seeds, with deviations."""
    from sottovoce.report.results import shown

    metric = found[0]["metric"] if found else ""
    table = [["run", "seeds", f"{metric}, average model", f"{metric}, nodes", "test loss", "epsilon", "MB sent"]]
    for row in found:
        epsilon = "none" if row["epsilon"] is None else up(float(row["epsilon"]))
        figures = [shown(row[key]) for key in ("average_model", "mean_node", "loss")]
        table.append([row["run"], str(row["seeds"]), *figures, epsilon, f"{row['megabytes']:,.1f}"])
    return table
